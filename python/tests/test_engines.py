"""The calls of vLLM and SGLang, imitated line by line (see docs/engines.md)."""

import flash_mla
import flash_mla.flash_mla_interface
import pytest
import torch
from dense_cases import DenseBatch, DenseCase


def case(lengths_seed=0, **changes):
    fields = dict(b=4, s_q=2, s_k=200, h_q=16, seed=lengths_seed)
    return DenseCase(**{**fields, **changes})


def test_names_at_import():
    for module in (flash_mla, flash_mla.flash_mla_interface):
        for name in ("FlashMLASchedMeta", "get_mla_metadata", "flash_mla_with_kvcache",
                     "flash_mla_sparse_fwd"):
            assert hasattr(module, name)


def test_vllm_step(device):
    """One get_mla_metadata a step, one call a layer, by keyword, num_splits left out."""
    batch = DenseBatch(case(), device)
    num_q_heads, max_query_len = 16, 2
    scheduler_metadata, _ = flash_mla.get_mla_metadata(
        batch.seqlens, max_query_len * num_q_heads, 1, is_fp8_kvcache=False)
    layer_cache = batch.cache.squeeze(2)  # [num_blocks, page, 576], as vLLM stores it
    for _ in range(3):
        out, lse = flash_mla.flash_mla_with_kvcache(
            q=batch.q, k_cache=layer_cache.unsqueeze(-2), block_table=batch.table,
            cache_seqlens=batch.seqlens, head_dim_v=512,
            tile_scheduler_metadata=scheduler_metadata, softmax_scale=576**-0.5, causal=True,
            is_fp8_kvcache=False)
        batch.check(out, lse)


def test_vllm_step_newer_object(device):
    batch = DenseBatch(case(), device)
    metadata, none = flash_mla.get_mla_metadata()
    assert isinstance(metadata, flash_mla.FlashMLASchedMeta) and none is None
    assert metadata.tile_scheduler_metadata is None and metadata.num_splits is None
    for layer in range(3):
        batch.check(*flash_mla.flash_mla_with_kvcache(
            batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True))
        if layer == 0:
            table = metadata.tile_scheduler_metadata
            assert table.dtype == torch.int32 and table.shape[1] == 8
            assert metadata.num_splits.tolist()[0] == 0 and len(metadata.num_splits) == 5
        assert metadata.tile_scheduler_metadata is table  # built once, kept for all layers


@pytest.mark.parametrize("style", ["attribute", "object", "argument"])
def test_vllm_batch_invariant(style, device):
    """One partition [1, 8] and zero num_splits: a request's bits do not depend on its mates."""
    batch = DenseBatch(case(b=5, s_k=1500), device)

    def step(rows):
        one = torch.zeros(1, 8, dtype=torch.int32, device=device)
        one[0, 2] = len(rows)
        zeros = torch.zeros(len(rows) + 1, dtype=torch.int32, device=device)
        seqlens = batch.seqlens[rows]
        if style == "object":
            metadata, _ = flash_mla.get_mla_metadata()
        else:
            metadata, _ = flash_mla.get_mla_metadata(seqlens, 2 * 16, 1)
        num_splits = None
        if style == "argument":
            metadata, num_splits = one, zeros
        else:
            metadata.tile_scheduler_metadata, metadata.num_splits = one, zeros
        calls = [flash_mla.flash_mla_with_kvcache(
            batch.q[rows], batch.cache, batch.table[rows], seqlens, 512, metadata, num_splits,
            causal=True) for _ in range(2)]
        assert torch.equal(calls[0][0], calls[1][0])
        return calls[0]

    together = step([0, 1, 2, 3, 4])
    batch.check(*together)
    for i in range(5):
        alone = step([i])
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])


def test_sglang_kept_buffers(device):
    """Buffers made for the largest batch, copy_ before each replay, num_splits cut to the batch."""
    max_batch, s_q, heads = 64, 2, 16
    kept_metadata, kept_num_splits = flash_mla.get_mla_metadata(
        torch.ones(max_batch, dtype=torch.int32, device=device), s_q * heads, 1)
    for seed, b in ((1, 4), (2, 7), (3, 1), (4, 64)):
        batch = DenseBatch(case(seed, b=b), device)
        seq_lens = batch.seqlens.to(torch.int64)
        metadata, num_splits = flash_mla.get_mla_metadata(seq_lens.to(torch.int32), s_q * heads, 1)
        assert num_splits.dtype == torch.int32 and num_splits.shape == (b + 1,)
        assert (num_splits.diff() >= 1).all() and num_splits[0] == 0
        kept_metadata.copy_(metadata)
        kept_num_splits[: b + 1].copy_(num_splits)
        for _ in range(2):
            out, lse = flash_mla.flash_mla_with_kvcache(
                q=batch.q, k_cache=batch.cache, block_table=batch.table,
                cache_seqlens=seq_lens.to(torch.int32), head_dim_v=512,
                tile_scheduler_metadata=kept_metadata, num_splits=kept_num_splits[: b + 1],
                softmax_scale=576**-0.5, causal=True)
            batch.check(out, lse)


def test_metadata_size_depends_on_the_device_alone(device):
    def table(b, rows, h_kv, **more):
        seqlens = torch.full((b,), 1000, dtype=torch.int32, device=device)
        return flash_mla.get_mla_metadata(seqlens, rows, h_kv, **more)[0]

    first = table(1, 16, 1)
    assert first.dtype == torch.int32 and first.ndim == 2 and first.shape[1] == 8
    for arguments in ((500, 16, 1), (1, 1, 1), (3, 512, 1), (2, 64, 2), (70000, 1, 1), (8, 1, 1),
                      (33, 128, 1)):
        assert table(*arguments).shape == first.shape


def test_graph_padding_rows(device):
    """Dummy rows of a padded batch: length 0, 1 or 1024 with -1 past the table's end."""
    batch = DenseBatch(case(b=6), device)
    batch.table[batch.table == 2147480000] = -1
    for row, length in ((4, 0), (5, 1)):
        batch.seqlens[row] = batch.lengths[row] = length
    metadata, num_splits = flash_mla.get_mla_metadata(batch.seqlens, 32, 1)
    batch.check(*flash_mla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, num_splits, causal=True))


def test_schedule_follows_lengths_changed_in_place(device):
    """The same object in the next step, with the lengths' tensor overwritten."""
    batch = DenseBatch(case(s_k=1500), device)
    metadata, _ = flash_mla.get_mla_metadata()

    def call():
        return flash_mla.flash_mla_with_kvcache(
            batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True)

    batch.check(*call())
    before = metadata.tile_scheduler_metadata.clone()
    batch.lengths = [length // 3 for length in batch.lengths]
    batch.seqlens.copy_(torch.tensor(batch.lengths, dtype=torch.int32))
    batch.check(*call())
    assert not torch.equal(metadata.tile_scheduler_metadata, before)


def test_one_object_for_two_shapes(device):
    metadata, _ = flash_mla.get_mla_metadata()
    for b in (2, 5, 2):
        batch = DenseBatch(case(b=b), device)
        batch.check(*flash_mla.flash_mla_with_kvcache(
            batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True))


def test_inference_mode(device):
    """Tensors of inference mode count no versions."""
    with torch.inference_mode():
        batch = DenseBatch(case(), device)
        metadata, _ = flash_mla.get_mla_metadata()
        for _ in range(2):
            batch.check(*flash_mla.flash_mla_with_kvcache(
                batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True))


def test_cuts_depend_on_lengths_and_rows_alone(device):
    """What get_mla_metadata() rests on: it knows neither page size nor dtype nor s_q."""
    from libmla import plan_decode

    seqlens = torch.tensor([100, 5000, 0, 777], dtype=torch.int32, device=device)
    want, _ = flash_mla.get_mla_metadata(seqlens, 64, 1)
    for s_q, h_q, page_size, dtype, causal in ((1, 64, 64, torch.bfloat16, False),
                                               (4, 16, 64, torch.bfloat16, True),
                                               (2, 32, 128, torch.float16, True)):
        q = torch.empty(4, s_q, h_q, 576, dtype=dtype, device=device)
        cache = torch.empty(1, page_size, 1, 576, dtype=dtype, device=device)
        table = torch.zeros(4, 10000 // page_size, dtype=torch.int32, device=device)
        try:
            plan = plan_decode(q, cache, table, seqlens, causal=causal)
        except NotImplementedError as error:
            assert device == "cuda" and "page_size" in str(error)
            continue
        records = len(plan.parts()) + 2
        assert torch.equal(plan.table[:records], want[:records])


def test_num_splits_tell_the_schedule(device):
    from libmla import plan_decode

    seqlens = torch.tensor([90000, 10, 0, 3], dtype=torch.int32, device=device)
    q = torch.empty(4, 1, 16, 576, dtype=torch.bfloat16, device=device)
    cache = torch.empty(1, 64, 1, 576, dtype=torch.bfloat16, device=device)
    table = torch.zeros(4, 1500, dtype=torch.int32, device=device)
    plan = plan_decode(q, cache, table, seqlens)
    counts = plan.num_splits().diff().tolist()
    parts = plan.parts()
    assert counts[1:] == [1, 1, 1]
    _, num_splits = flash_mla.get_mla_metadata(seqlens, 16, 1)
    assert num_splits.diff().tolist() == counts
    assert counts[0] == sum(part.begin_req == 0 for part in parts)
    assert sum(part.num_blocks for part in parts) == sum(-(-n // 64) for n in seqlens.tolist())


@pytest.mark.parametrize("s_q,h_q,h_kv", [(4, 20, 1), (3, 9, 3), (2, 128, 1), (2, 126, 2)])
def test_older_metadata_with_odd_heads(s_q, h_q, h_kv, device):
    """The tensor tells rows, not tokens and heads; where that matters, the call plans itself."""
    batch = DenseBatch(DenseCase(3, s_q, 300, h_q, h_kv), device)
    metadata, num_splits = flash_mla.get_mla_metadata(batch.seqlens, s_q * h_q // h_kv, h_kv)
    batch.check(*flash_mla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, num_splits, causal=True))


@pytest.fixture
def pretended_gpu(monkeypatch):
    """CPU tensors that pass for CUDA's, so that what Python does for a GPU runs without one."""
    from libmla import device, launch, torch_arrays

    cpu, arrays = device.context_of(("cpu", 0)), torch_arrays.TorchArrays
    real = arrays.describe
    capturing = [False]
    monkeypatch.setattr(launch, "context_of", lambda where: cpu)
    monkeypatch.setattr(launch, "launch_table", launch._LaunchTable())
    monkeypatch.setattr(arrays, "describe", staticmethod(
        lambda tensor: real(tensor)._replace(device=("cuda", 0))))
    monkeypatch.setattr(arrays, "stream", staticmethod(lambda index: 0))
    monkeypatch.setattr(arrays, "capturing", staticmethod(lambda: capturing[0]))
    for module in ("attention", "drop_in"):
        monkeypatch.setattr(f"libmla.{module}.launch_table", launch.launch_table)
    return capturing


@pytest.mark.parametrize("style", ["object", "vllm"])
def test_schedules_of_captures_stay_apart(style, pretended_gpu):
    """A plan made in a capture lives in the graph's memory and is never filled outside of it."""
    batch = DenseBatch(case())
    if style == "object":
        metadata, _ = flash_mla.get_mla_metadata()
    else:
        metadata, _ = flash_mla.get_mla_metadata(batch.seqlens, 32, 1)

    def kept_plan():
        batch.check(*flash_mla.flash_mla_with_kvcache(
            batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True))
        return metadata._mla_plan

    before = kept_plan()
    assert (before is None) == (style == "vllm")  # there the schedule is in the tensor
    pretended_gpu[0] = True
    captured = kept_plan()
    assert captured is not None and captured is not before
    assert kept_plan() is captured  # the other layers of the capture share it
    pretended_gpu[0] = False
    if style == "object":
        assert kept_plan() is not captured


@pytest.mark.parametrize("style", ["kept", "within", "invariant"])
def test_what_python_does_for_a_gpu(style, pretended_gpu):
    from libmla import decode, plan_decode

    batch = DenseBatch(case(b=5))
    arrays = (batch.q, batch.cache, batch.table, batch.seqlens)
    options = dict(causal=True, lse_empty_pos_inf=True)
    if style == "kept":
        plan = plan_decode(*arrays, causal=True)
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8)
        batch.check(*decode(*arrays, plan=plan, **options))
        batch.check(*decode(*arrays, plan=plan, workspace=workspace, **options))
    else:
        batch.check(*decode(*arrays, batch_invariant=style == "invariant", **options))
