"""The calls: decode, dense or sparse, and sparse prefill, with or without an explicit plan."""

from __future__ import annotations

import sys

from . import plans
from .arrays import BYTE, adaptor_of, adopt, is_native
from .device import host_scratch
from .launch import (
    D_V,
    check_one_framework,
    describe,
    launch_table,
    prepare_decode,
    prepare_prefill,
)
from .library import check, lib
from .plans import Plan

_NAMES = ("q", "k_cache", "block_table", "cache_seqlens", "indices", "attn_sink", "extra_k_cache",
          "extra_indices_in_kvcache", "topk_length", "extra_topk_length", "out", "lse")
PREFILL_NAMES = ("q", "kv", "indices", "attn_sink", "topk_length")


# torch's own question whether it compiles; None when torch is imported later, or never.
_is_compiling = sys.modules["torch"].compiler.is_compiling if "torch" in sys.modules else None


def torch_is_compiling(q) -> bool:
    """True while torch.compile traces: ctypes is out of its sight, so a custom op goes there.

    Nothing here looks at sys.modules: while torch traces, that table grows under its feet.
    """
    if _is_compiling is not None:
        return _is_compiling()
    if not hasattr(q, "requires_grad"):  # no tensor of torch's
        return False
    import torch

    return torch.compiler.is_compiling()


def torch_ops():
    from . import torch_ops as module

    return module


def as_scale(softmax_scale):
    """A plain number, which may key a table; a tensor's value could change behind the key."""
    if softmax_scale is None or type(softmax_scale) is float:
        return softmax_scale
    try:
        return float(softmax_scale)
    except (TypeError, ValueError):
        raise TypeError(f"softmax_scale: expected a number, got {softmax_scale!r}") from None


def find_launch(arrays: tuple, options: tuple):
    """The Launch of a decode call. `arrays` in the order of _NAMES, None where left out."""
    (q, k_cache, block_table, cache_seqlens, indices, attn_sink, extra_k_cache, extra_indices,
     topk_length, extra_topk_length, out, lse) = arrays
    signature = adaptor_of(q, "q").signature
    try:
        # Dense decode as engines call it first: that spares it a microsecond.
        if (indices is attn_sink is extra_k_cache is extra_indices is topk_length
                is extra_topk_length is out is lse is None is not block_table):
            key = (options, signature(q), signature(k_cache), signature(block_table),
                   signature(cache_seqlens))
        else:
            key = (options, signature(q), signature(k_cache),
                   *[array if array is None else signature(array) for array in arrays[2:]])
        launch = launch_table.launches.get(key)
    except (AttributeError, TypeError):
        check_one_framework(adaptor_of(q, "q"), **dict(zip(_NAMES, arrays)))
        if k_cache is None:
            raise TypeError("k_cache: is None") from None
        if cache_seqlens is None:
            raise ValueError("cache_seqlens: is None; dense decode needs it") from None
        raise
    if launch is None:
        launch = prepare_decode(adaptor_of(q, "q"), *arrays, options)
        launch_table.keep(key, launch)
    return launch


def run_decode(launch, arrays: tuple, plan_at: int, workspace):
    """Runs a decode call. plan_at is the address of a built mla_plan, or 0: builds one for it."""
    (q, k_cache, block_table, cache_seqlens, indices, attn_sink, extra_k_cache, extra_indices,
     topk_length, extra_topk_length, out, lse) = arrays
    tensors, pointer = launch.tensors, launch.adaptor.pointer
    if launch.tracks_grad and q.requires_grad:
        launch.adaptor.warn_of_grad(q)
    if out is None:
        out = launch.new_out()
    if lse is None:
        lse = launch.new_lse()
    if launch.is_empty:
        return out, lse
    tensors.q = q_at = pointer(q)
    launch.kv.data = pointer(k_cache)
    tensors.out = out_at = pointer(out)
    if out_at == q_at:
        raise ValueError("out: lies in the memory of q, which is still read while it is written")
    tensors.lse = pointer(lse)
    if indices is None:
        tensors.block_table = pointer(block_table)
        tensors.seqlens = pointer(cache_seqlens)
    else:
        tensors.indices = pointer(indices)
        if topk_length is not None:
            tensors.topk_length = pointer(topk_length)
        if extra_k_cache is not None:
            launch.extra_kv.data = pointer(extra_k_cache)
            tensors.extra_indices = pointer(extra_indices)
            if extra_topk_length is not None:
                tensors.extra_topk_length = pointer(extra_topk_length)
    if attn_sink is not None:
        tensors.attn_sink = pointer(attn_sink)
    lengths = (None if indices is not None else cache_seqlens, topk_length, extra_topk_length)
    run(launch, plan_at, lengths, workspace)
    return out, lse


def run(launch, plan_at: int, lengths: tuple, workspace) -> None:
    """mla_run() with the structs of a launch, after building a plan where none is given."""
    needed = launch.workspace_bytes
    total = needed if plan_at else launch.scratch_bytes
    scratch_at = 0
    if workspace is not None:
        scratch_at = _workspace_address(launch, workspace, total)
    elif total and launch.on_cuda:
        # From the framework's allocator, which knows streams and graphs.
        workspace = launch.new_workspace() if plan_at else launch.new_scratch()
        scratch_at = launch.adaptor.pointer(workspace)
    elif total:
        scratch_at = host_scratch.reserve(total)
    if not plan_at:
        launch.attached.buffer = scratch_at + launch.plan_offset
        plans.build(launch, launch.lengths, launch.attached, lengths)
        plan_at = launch.attached_at
    status = lib.mla_run(launch.context, launch.problem_at, launch.tensors_at, plan_at, scratch_at,
                         needed, launch.stream())
    if status:
        check(status)


def _workspace_address(launch, workspace, total: int) -> int:
    seen = describe(launch.adaptor, workspace, "workspace")
    if seen.kind != BYTE or len(seen.shape) != 1 or seen.device != launch.device:
        raise ValueError("workspace: expected a one-dimensional uint8 array on the device of q")
    if seen.shape[0] < total:
        raise ValueError(f"workspace: has {seen.shape[0]} bytes, this call needs {total}")
    return launch.adaptor.pointer(workspace)


def adopt_all(arrays: tuple) -> tuple:
    return tuple(adopt(array, name) for array, name in zip(arrays, _NAMES))


def decode(
    q,
    k_cache,
    block_table=None,
    cache_seqlens=None,
    *,
    plan: Plan | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    batch_invariant: bool = False,
    lse_empty_pos_inf: bool = False,
    num_parts: int = 0,
    out=None,
    lse=None,
    workspace=None,
):
    """Attention of s_q query tokens of each request over a paged cache.

    q                 [b, s_q, h_q, 576 or 512], bf16 or fp16
    k_cache           [num_blocks, page_size, h_kv, 576 or 512], dtype of q; with is_fp8_kvcache
                      [num_blocks, page_size, 1, 656 or 584], uint8, int8 or float8_e4m3fn
    block_table       [b, max_pages] int32; dense decode
    cache_seqlens     [b] int32: tokens in the cache; dense decode
    indices           [b, s_q, topk] int32: page * page_size + offset, -1 skipped; sparse decode
    topk_length       [b] int32: entries of indices in use
    attn_sink         [h_q] float32
    plan              of plan_decode() for these shapes and lengths; None: built within the call
    batch_invariant, num_parts   as in mla_problem; a plan brings its own
    out, lse          written in place when given
    workspace         uint8 [plan.workspace_bytes]; None: taken from the framework's allocator

    Returns out [b, s_q, h_q, 512] of the dtype of q and lse [b, h_q, s_q] float32, the natural
    logarithm. A row without keys gets out 0 and lse -inf (+inf with lse_empty_pos_inf).
    """
    arrays = (q, k_cache, block_table, cache_seqlens, indices, attn_sink, extra_k_cache,
              extra_indices_in_kvcache, topk_length, extra_topk_length, out, lse)
    if not is_native(q):
        arrays = adopt_all(arrays)
    if plan is not None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan: expected a Plan, as plan_decode() makes it, got "
                            f"{type(plan).__name__}")
        batch_invariant, num_parts = plan.batch_invariant, plan.num_parts
    options = (D_V, as_scale(softmax_scale), causal, is_fp8_kvcache, batch_invariant,
               lse_empty_pos_inf, num_parts)
    launch = find_launch(arrays, options)
    return run_decode(launch, arrays, 0 if plan is None else plan._c_plan_at, workspace)


def plan_decode(
    q,
    k_cache,
    block_table=None,
    cache_seqlens=None,
    *,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    batch_invariant: bool = False,
    num_parts: int = 0,
) -> Plan:
    """The schedule of decode() calls with these shapes and lengths, for all layers of a step.

    Arguments as for decode(); of q, the caches and the indices only shape, dtype and device are
    looked at. plan.update() rebuilds it in place for the next step.
    """
    arrays = (q, k_cache, block_table, cache_seqlens, indices, None, extra_k_cache,
              extra_indices_in_kvcache, topk_length, extra_topk_length, None, None)
    if not is_native(q):
        arrays = adopt_all(arrays)
    options = (D_V, None, causal, is_fp8_kvcache, batch_invariant, False, num_parts)
    launch = find_launch(arrays, options)
    plan = Plan(launch, arrays[0])
    plan._build(launch, (arrays[3] if indices is None else None, arrays[8], arrays[9]))
    return plan


def sparse_prefill(
    q,
    kv,
    indices,
    softmax_scale: float | None = None,
    *,
    attn_sink=None,
    topk_length=None,
    lse_empty_pos_inf: bool = False,
    workspace=None,
):
    """Attention of a prompt's tokens over chosen tokens each.

    q             [s_q, h_q, 576 or 512], bf16 or fp16
    kv            [s_kv, h_kv, same], dtype of q
    indices       [s_q, h_kv, topk] int32: rows of kv; below 0 or beyond s_kv: skipped
    attn_sink     [h_q] float32
    topk_length   [s_q] int32: entries of indices in use

    Returns out [s_q, h_q, 512], max_logits [s_q, h_q] float32 (the row maximum of scaled q.k) and
    lse [s_q, h_q] float32, natural logarithms.
    """
    arrays = (q, kv, indices, attn_sink, topk_length)
    if not is_native(q):
        arrays = tuple(adopt(array, name) for array, name in zip(arrays, PREFILL_NAMES))
    options = (as_scale(softmax_scale), D_V, lse_empty_pos_inf)
    return run_prefill(arrays, options, workspace)


def run_prefill(arrays: tuple, options: tuple, workspace=None):
    """Runs a sparse prefill; `arrays` in the order of PREFILL_NAMES."""
    adaptor = adaptor_of(arrays[0], "q")
    check_one_framework(adaptor, **dict(zip(PREFILL_NAMES, arrays)))
    key = ("prefill", options,
           *[None if array is None else adaptor.signature(array) for array in arrays])
    launch = launch_table.launches.get(key)
    if launch is None:
        launch = prepare_prefill(adaptor, *arrays, options)
        launch_table.keep(key, launch)
    q, kv, indices, attn_sink, topk_length = arrays
    if launch.tracks_grad and q.requires_grad:
        launch.adaptor.warn_of_grad(q)
    out, max_logits, lse = launch.new_out(), launch.new_lse(), launch.new_lse()
    if launch.is_empty:
        return out, max_logits, lse
    tensors, pointer = launch.tensors, adaptor.pointer
    tensors.q, launch.kv.data, tensors.indices = pointer(q), pointer(kv), pointer(indices)
    tensors.out, tensors.lse, tensors.max_logits = pointer(out), pointer(lse), pointer(max_logits)
    if attn_sink is not None:
        tensors.attn_sink = pointer(attn_sink)
    if topk_length is not None:
        tensors.topk_length = pointer(topk_length)
    run(launch, 0, (None, topk_length, None), workspace)
    return out, max_logits, lse
