"""torch.library operators over the same calls, for torch.compile.

    torch.ops.libmla.decode           flash_mla_with_kvcache() with out and lse made by the operator
    torch.ops.libmla.decode_out       the same, writing into out and lse
    torch.ops.libmla.sparse_prefill   flash_mla_sparse_fwd()

A compiled graph holds no Python objects, so of the schedule only a tensor can come along: the one
that get_mla_metadata(cache_seqlens, ...) or Plan.table gives. With None, or a FlashMLASchedMeta,
each operator builds its own on the stream.
"""

from __future__ import annotations

import torch

from . import attention, drop_in

# The operands of decode, as torch.library wants them written.
_DECODE = (
    "Tensor q, Tensor k_cache, Tensor? block_table, Tensor? cache_seqlens, Tensor? schedule, "
    "float? softmax_scale, bool causal, bool is_fp8_kvcache, bool batch_invariant, "
    "Tensor? indices, Tensor? attn_sink, Tensor? extra_k_cache, Tensor? extra_indices, "
    "Tensor? topk_length, Tensor? extra_topk_length"
)


def _call(q, k_cache, block_table, cache_seqlens, schedule, softmax_scale, causal, is_fp8_kvcache,
          batch_invariant, indices, attn_sink, extra_k_cache, extra_indices, topk_length,
          extra_topk_length, out, lse):
    if indices is not None:
        block_table = cache_seqlens = None
    arrays = (q, k_cache, block_table, cache_seqlens, indices, attn_sink, extra_k_cache,
              extra_indices, topk_length, extra_topk_length, out, lse)
    options = (attention.D_V, softmax_scale, causal, is_fp8_kvcache, batch_invariant, True, 0)
    launch = attention.find_launch(arrays, options)
    plan_at = 0
    if schedule is not None and not batch_invariant:
        lengths = (cache_seqlens, topk_length, extra_topk_length)
        plan_at = drop_in.plan_address(schedule, True, launch, lengths, q)
    return attention.run_decode(launch, arrays, plan_at, None)


@torch.library.custom_op("libmla::decode", mutates_args=(),
                         schema=f"({_DECODE}) -> (Tensor, Tensor)")
def _decode(*operands):
    return _call(*operands, None, None)


@_decode.register_fake
def _(q, *others):
    b, s_q, h_q, _ = q.shape
    return (q.new_empty((b, s_q, h_q, attention.D_V)),
            q.new_empty((b, h_q, s_q), dtype=torch.float32))


@torch.library.custom_op("libmla::decode_out", mutates_args=("out", "lse"),
                         schema=f"({_DECODE}, Tensor(a!) out, Tensor(b!) lse) -> ()")
def _decode_out(*operands):
    _call(*operands)


@_decode_out.register_fake
def _(*operands):
    return None


@torch.library.custom_op(
    "libmla::sparse_prefill", mutates_args=(),
    schema="(Tensor q, Tensor kv, Tensor indices, float? sm_scale, Tensor? attn_sink, "
           "Tensor? topk_length) -> (Tensor, Tensor, Tensor)")
def _sparse_prefill(q, kv, indices, sm_scale, attn_sink, topk_length):
    arrays = (q, kv, indices, attn_sink, topk_length)
    return attention.run_prefill(arrays, (sm_scale, attention.D_V, True))


@_sparse_prefill.register_fake
def _(q, *others):
    s_q, h_q, _ = q.shape
    per_row = (s_q, h_q)
    return (q.new_empty((s_q, h_q, attention.D_V)), q.new_empty(per_row, dtype=torch.float32),
            q.new_empty(per_row, dtype=torch.float32))


def decode_in_graph(q, k_cache, block_table, cache_seqlens, head_dim_v, metadata, softmax_scale,
                    causal, is_fp8_kvcache, indices, attn_sink, extra_k_cache, extra_indices,
                    topk_length, extra_topk_length, out, lse):
    """flash_mla_with_kvcache() as torch.compile sees it."""
    if head_dim_v != attention.D_V:
        raise ValueError("head_dim_v: must be 512")
    table = metadata.tile_scheduler_metadata if (
        isinstance(metadata, drop_in.FlashMLASchedMeta)) else metadata
    batch_invariant = table is not None and table.shape[0] == 1
    schedule = metadata if isinstance(metadata, torch.Tensor) and not batch_invariant else None
    arguments = (q, k_cache, block_table, cache_seqlens, schedule, softmax_scale, causal,
                 is_fp8_kvcache, batch_invariant, indices, attn_sink, extra_k_cache, extra_indices,
                 topk_length, extra_topk_length)
    if out is None and lse is None:
        return torch.ops.libmla.decode(*arguments)
    b, s_q, h_q, _ = q.shape
    if out is None:
        out = q.new_empty((b, s_q, h_q, attention.D_V))
    if lse is None:
        lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    torch.ops.libmla.decode_out(*arguments, out, lse)
    return out, lse


def prefill_in_graph(q, kv, indices, sm_scale, d_v, attn_sink, topk_length):
    """flash_mla_sparse_fwd() as torch.compile sees it."""
    if d_v != attention.D_V:
        raise ValueError("d_v: must be 512")
    return torch.ops.libmla.sparse_prefill(q, kv, indices, sm_scale, attn_sink, topk_length)
