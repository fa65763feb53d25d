"""What only a GPU shows: graphs replayed with other lengths, streams, devices, refusals."""

import libmla
import pytest
import torch
from dense_cases import DenseBatch, DenseCase
from test_sparse import Pool, some_indices

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

CASE = DenseCase(6, 2, 700, 16, seed=3)
LENGTHS = ([700, 20, 0, 1, 65, 300], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0],
           [300, 65, 1, 0, 20, 700], [900, 900, 900, 900, 900, 900])


class GraphBatch(DenseBatch):
    """Buffers at fixed addresses with room for 1024 tokens a request."""

    def __init__(self, case=CASE):
        super().__init__(case, "cuda")
        pages = 1024 // case.page_size
        order = torch.randperm(case.b * pages).to(torch.int32).view(case.b, pages)
        self.table = order.cuda()
        self.cache = torch.randn(case.b * pages, case.page_size, 1, case.d).to(case.dtype).cuda()
        self.set_lengths([min(length, 1024) for length in self.lengths])

    def set_lengths(self, lengths):
        self.lengths = list(lengths)
        self.seqlens.copy_(torch.tensor(lengths, dtype=torch.int32))

    def call(self, metadata, num_splits=None, seqlens=None):
        return libmla.flash_mla_with_kvcache(
            self.q, self.cache, self.table, self.seqlens if seqlens is None else seqlens, 512,
            metadata, num_splits, causal=True)


def capture(step, warm_up):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


@pytest.mark.parametrize("style", ["object", "vllm"])
def test_graph_builds_its_schedule(style):
    """vLLM: metadata made outside the graph, the schedule built and captured by the first layer."""
    batch = GraphBatch()

    def metadata():
        if style == "object":
            return libmla.get_mla_metadata()[0]
        return libmla.get_mla_metadata(batch.seqlens, 2 * 16, 1)[0]

    kept = metadata()
    graph, layers = capture(lambda: [batch.call(kept) for _ in range(3)],
                            lambda: batch.call(metadata()))
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        graph.replay()
        for out, lse in layers:
            batch.check(out, lse)


def test_object_used_before_and_after_a_capture():
    batch = GraphBatch()
    metadata, _ = libmla.get_mla_metadata()
    batch.check(*batch.call(metadata))
    graph, (out, lse) = capture(lambda: batch.call(metadata), lambda: batch.call(metadata))
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        graph.replay()
        batch.check(out, lse)
        batch.check(*batch.call(metadata))


@pytest.mark.parametrize("h_q", [16, 20])
def test_sglang_graph(h_q):
    """SGLang: kept buffers, refreshed by copy_ before each replay."""
    batch = GraphBatch(DenseCase(6, 2, 700, h_q, seed=3))
    seq_lens = batch.seqlens.to(torch.int64)
    kept, kept_splits = libmla.get_mla_metadata(
        torch.ones(128, dtype=torch.int32, device="cuda"), 2 * h_q, 1)

    def refresh():
        metadata, num_splits = libmla.get_mla_metadata(seq_lens.to(torch.int32), 2 * h_q, 1)
        kept.copy_(metadata)
        kept_splits[: batch.case.b + 1].copy_(num_splits)

    def layers():
        return [batch.call(kept, kept_splits[: batch.case.b + 1], seq_lens.to(torch.int32))
                for _ in range(3)]

    refresh()
    graph, results = capture(layers, layers)
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        seq_lens.copy_(batch.seqlens)
        refresh()
        graph.replay()
        for out, lse in results:
            batch.check(out, lse)


def test_plan_updated_inside_a_graph():
    batch = GraphBatch()
    plan = libmla.plan_decode(batch.q, batch.cache, batch.table, batch.seqlens, causal=True)
    out = torch.full((6, 2, 16, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")

    def step():
        plan.update(batch.seqlens)
        return libmla.decode(batch.q, batch.cache, batch.table, batch.seqlens, plan=plan,
                             causal=True, lse_empty_pos_inf=True, out=out, workspace=workspace)

    graph, (_, lse) = capture(step, step)
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        out.fill_(float("nan"))
        graph.replay()
        batch.check(out, lse)


def test_batch_invariant_graph():
    batch = GraphBatch()
    metadata, _ = libmla.get_mla_metadata(batch.seqlens, 2 * 16, 1)
    metadata.tile_scheduler_metadata = torch.zeros(1, 8, dtype=torch.int32, device="cuda")
    metadata.num_splits = torch.zeros(7, dtype=torch.int32, device="cuda")
    graph, (out, lse) = capture(lambda: batch.call(metadata), lambda: batch.call(metadata))
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        graph.replay()
        batch.check(out, lse)


@pytest.mark.parametrize("row,d", [("656", 576), ("584", 512), ("bf16", 576)])
def test_sparse_graph_builds_its_schedule(row, d):
    pool = Pool(20, 64, d, row, "cuda", h_q=64)
    indices = some_indices(4, 2, 700, len(pool.values))
    lengths = torch.full((4,), 700, dtype=torch.int32, device="cuda")
    pool.decode(indices, topk_length=lengths)  # makes q
    on_gpu = indices.cuda()

    def step():
        return libmla.flash_mla_with_kvcache(
            pool.q, pool.cache, None, None, 512, libmla.get_mla_metadata()[0],
            is_fp8_kvcache=pool.fp8, indices=on_gpu, topk_length=lengths)

    graph, (out, lse) = capture(step, step)
    for values in ([700, 20, 0, 1], [0, 0, 0, 0], [64, 65, 5000, -3]):
        lengths.copy_(torch.tensor(values))
        graph.replay()
        pool.check(indices, out, lse, lengths=torch.tensor(values))


def test_other_stream():
    """Work follows the current stream: inputs written there late are seen."""
    batch = GraphBatch()
    right = batch.q.clone()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        batch.q.zero_()
        torch.cuda._sleep(20_000_000)
        batch.q.copy_(right)
        out, lse = batch.call(libmla.get_mla_metadata()[0])
    stream.synchronize()
    batch.check(out, lse)


def test_two_streams_at_once():
    batches = [GraphBatch(DenseCase(6, 2, 700, 16, seed=seed)) for seed in range(2)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in batches]
    results = [[], []]
    for _ in range(20):
        for i, batch in enumerate(batches):
            with torch.cuda.stream(streams[i]):
                results[i].append(batch.call(libmla.get_mla_metadata()[0]))
    torch.cuda.synchronize()
    for batch, calls in zip(batches, results):
        for out, _ in calls:
            assert torch.equal(out, calls[0][0])
        batch.check(*calls[0])


def test_other_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    batch = DenseBatch(CASE, "cuda:1")
    assert torch.cuda.current_device() == 0
    batch.check(*libmla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, libmla.get_mla_metadata()[0],
        causal=True))
    assert torch.cuda.current_device() == 0


def test_compiled_into_a_graph():
    batch = GraphBatch()
    metadata, _ = libmla.get_mla_metadata()

    def layer(q, cache, table, seqlens):
        out, lse = libmla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata,
                                                 causal=True)
        return out.clone(), lse.clone()

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for lengths in LENGTHS:
        batch.set_lengths(lengths)
        torch.compiler.cudagraph_mark_step_begin()
        out, lse = compiled(batch.q, batch.cache, batch.table, batch.seqlens)
        batch.check(out, lse)


def test_lengths_beyond_the_table_do_no_harm():
    """Device memory cannot be refused: a wrong answer, never a fault."""
    batch = GraphBatch()
    batch.seqlens.copy_(torch.tensor([-1, 2**31 - 1, 5000, 3, 4, 5], dtype=torch.int32))
    batch.call(libmla.get_mla_metadata()[0])
    torch.cuda.synchronize()


def test_what_the_gpu_lacks_says_so():
    """Dense decode over FP8 rows; the same rows by indices are there."""
    cache = libmla.fp8_cache(2, 64, 656, torch.empty(0, device="cuda"))
    q = torch.zeros(1, 1, 16, 576, dtype=torch.bfloat16, device="cuda")
    table, seqlens = (torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in ((1, 2), 1))
    with pytest.raises(NotImplementedError, match="CUDA"):
        libmla.decode(q, cache, table, seqlens, is_fp8_kvcache=True)


@pytest.mark.parametrize("row_bytes", [656, 584, 1152])
def test_rows_are_packed_as_on_the_cpu(row_bytes):
    torch.manual_seed(0)
    rows = torch.randn(300, 512 if row_bytes == 584 else 576).bfloat16() * 3
    slots = torch.randperm(7 * 64)[:300]
    slots[::50] = -1
    caches = []
    for device in ("cpu", "cuda"):
        if row_bytes == 1152:
            cache = torch.zeros(7, 64, 1, 576, dtype=torch.bfloat16, device=device)
        else:
            cache = libmla.fp8_cache(7, 64, row_bytes, rows.to(device))
        caches.append(libmla.pack_kv(rows.to(device), cache, slots.to(device)))
    assert torch.equal(caches[0], caches[1].cpu())
    back = [libmla.unpack_kv(cache, slots.to(cache.device)) for cache in caches]
    assert torch.equal(back[0], back[1].cpu())


def test_merge_agrees_with_the_cpu():
    torch.manual_seed(0)
    outs, lses = torch.randn(4, 3, 2, 16, 512).half(), torch.randn(4, 3, 16, 2)
    lses[1, 0], lses[2, 1] = float("inf"), float("-inf")
    want = libmla.merge(outs.unbind(), lses.unbind())
    got = libmla.merge(outs.cuda().unbind(), lses.cuda().unbind())
    torch.testing.assert_close(got[0].cpu(), want[0], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=1e-5, atol=1e-5)


def test_tensors_of_two_devices():
    batch = GraphBatch()
    with pytest.raises(ValueError, match="cache_seqlens: is on cpu:0, the arguments"):
        batch.call(libmla.get_mla_metadata()[0], seqlens=batch.seqlens.cpu())


def test_cupy():
    cupy = pytest.importorskip("cupy")
    batch = GraphBatch(DenseCase(6, 2, 700, 16, seed=3, dtype=torch.float16))
    arrays = [cupy.from_dlpack(tensor)
              for tensor in (batch.q, batch.cache, batch.table, batch.seqlens)]
    torch.cuda.synchronize()
    out, lse = libmla.flash_mla_with_kvcache(*arrays, 512, libmla.get_mla_metadata()[0],
                                             causal=True)
    assert type(out) is cupy.ndarray
    cupy.cuda.get_current_stream().synchronize()
    batch.check(torch.from_dlpack(out), torch.from_dlpack(lse))


def test_host_time_of_a_call(capsys):
    """Wall-clock time of enqueueing a layer with a reused schedule, the C library included."""
    import time

    batch = GraphBatch()
    metadata, _ = libmla.get_mla_metadata()
    for _ in range(20):
        batch.call(metadata)
    torch.cuda.synchronize()
    rounds = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            batch.call(metadata)
        rounds.append((time.perf_counter() - start) / 50 * 1e6)
        torch.cuda.synchronize()
    with capsys.disabled():
        print(f"\nhost time of flash_mla_with_kvcache on CUDA: {sorted(rounds)[10]:.1f} us "
              "(median; checks, allocations, tensor maps and launches)")
