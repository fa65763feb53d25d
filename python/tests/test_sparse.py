"""Sparse decode and sparse prefill through FlashMLA's interface (torch)."""

import flash_mla
import pytest
import torch
from libmla.numpy_reference import attend, check_lse, check_out, rounding_bound

WILD = [-1, -2147483648, 2147483647]


@pytest.fixture(autouse=True)
def _skip_what_the_gpu_lacks(device):
    """Sparse on a GPU either works or says NotImplementedError with a reason."""
    if device != "cuda":
        return
    try:
        Pool(2, 64, 576, "bf16", device).decode(torch.zeros(1, 1, 64, dtype=torch.int32))
    except NotImplementedError as error:
        assert str(error)
        pytest.skip(f"sparse on this GPU: {error}")


def bound(out, row_args):
    """For check_out(): GPU kernels round P, those of the CPU make up for it."""
    return None if out.device.type == "cpu" else lambda: rounding_bound(*row_args)


class Pool:
    """A pool of rows in a format, and the values that its rows decode to."""

    def __init__(self, num_pages, page_size, d, row, device, h_q=16, seed=0):
        torch.manual_seed(seed)
        self.device, self.d, self.h_q, self.fp8 = device, d, h_q, row != "bf16"
        rows = torch.randn(num_pages * page_size, 1, d).bfloat16().to(device)
        if self.fp8:
            self.cache = flash_mla.fp8_cache(num_pages, page_size, int(row), rows)
            flash_mla.pack_kv(rows, self.cache)
            self.values = flash_mla.unpack_kv(self.cache)[:, 0].double().cpu()
        else:
            self.cache = rows.view(num_pages, page_size, 1, d)
            self.values = rows[:, 0].double().cpu()

    def decode(self, indices, **options):
        b, s_q, _ = indices.shape
        torch.manual_seed(1)
        self.q = torch.randn(b, s_q, self.h_q, self.d).bfloat16().to(self.device)
        metadata, _ = flash_mla.get_mla_metadata()
        return flash_mla.flash_mla_with_kvcache(
            self.q, self.cache, None, None, 512, metadata, is_fp8_kvcache=self.fp8,
            indices=indices.to(self.device), **options)

    def keys(self, indices, length):
        chosen = indices[: max(0, length)]
        return self.values[chosen[(chosen >= 0) & (chosen < len(self.values))].long()]

    def check(self, indices, out, lse, lengths=None, sink=None, extra=None):
        b, s_q, topk = indices.shape
        assert out.shape == (b, s_q, self.h_q, 512) and lse.shape == (b, self.h_q, s_q)
        for i in range(b):
            for t in range(s_q):
                keys = self.keys(indices[i, t], topk if lengths is None else int(lengths[i]))
                if extra is not None:
                    pool, more, more_lengths = extra
                    more_keys = pool.keys(more[i, t], int(more_lengths[i]))
                    keys = torch.cat([keys, more_keys])
                row_args = self.q[i, t : t + 1].double().cpu(), keys[:, None], self.d**-0.5
                want, want_lse, _ = attend(*row_args, sink=sink)
                check_out(out[i, t : t + 1].double().cpu(), want, bound=bound(out, row_args))
                check_lse(lse[i, :, t : t + 1].double().cpu(), want_lse)


def some_indices(b, s_q, topk, slots, holes=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, slots, (b, s_q, topk), generator=generator, dtype=torch.int32)
    if holes:
        for value in WILD + [slots]:
            indices[torch.rand(indices.shape, generator=generator) < 0.1] = value
    return indices


FORMATS = [("656", 576), ("584", 512), ("bf16", 576), ("bf16", 512)]


@pytest.mark.parametrize("row,d", FORMATS)
@pytest.mark.parametrize("page_size", [1, 53, 64, 256])
def test_formats_and_pages(row, d, page_size, device):
    pool = Pool(700 // page_size + 1, page_size, d, row, device)
    indices = some_indices(2, 2, 128, len(pool.values))
    pool.check(indices, *pool.decode(indices))


@pytest.mark.parametrize("row,d", FORMATS[:2])
@pytest.mark.parametrize("byte", ["uint8", "int8", "float8_e4m3fn"])
def test_byte_types(row, d, byte, device):
    pool = Pool(4, 64, d, row, device)
    indices = some_indices(1, 1, 64, len(pool.values))
    want = pool.decode(indices)
    pool.cache = pool.cache.view(getattr(torch, byte))
    got = pool.decode(indices)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_pages_of_584_byte_rows_are_padded(device):
    cache = flash_mla.fp8_cache(3, 64, 584, torch.empty(0, device=device))
    assert cache.shape == (3, 64, 1, 584)
    assert cache.stride(0) % 576 == 0 and cache.stride(0) >= 64 * 584


@pytest.mark.parametrize("topk", [1, 63, 64, 65, 2048])
@pytest.mark.parametrize("h_q", [1, 64, 128])
def test_topk_and_heads(topk, h_q, device):
    pool = Pool(20, 64, 576, "656", device, h_q=h_q)
    indices = some_indices(1, 2, topk, len(pool.values))
    pool.check(indices, *pool.decode(indices))


def test_topk_length_and_sink(device):
    pool = Pool(8, 64, 576, "656", device)
    indices = some_indices(4, 2, 100, len(pool.values))
    lengths = torch.tensor([0, 37, 1000, -5], dtype=torch.int32)
    sink = torch.randn(16)
    sink[:2] = torch.tensor([float("-inf"), float("inf")])
    got = pool.decode(indices, topk_length=lengths.to(device), attn_sink=sink.to(device))
    pool.check(indices, *got, lengths=lengths, sink=sink)
    assert not got[0][:, :, 1].any()  # a sink of +inf takes everything


@pytest.mark.parametrize("row,d", FORMATS[:2])
def test_extra_pool(row, d, device):
    pool = Pool(8, 64, d, row, device)
    extra = Pool(5, 2, d, row, device, seed=9)
    indices = some_indices(2, 2, 64, len(pool.values))
    more = some_indices(2, 2, 70, len(extra.values), seed=4)
    lengths, more_lengths = [torch.tensor(n, dtype=torch.int32) for n in ([64, 10], [70, 3])]
    got = pool.decode(
        indices, topk_length=lengths.to(device), extra_k_cache=extra.cache,
        extra_indices_in_kvcache=more.to(device), extra_topk_length=more_lengths.to(device))
    pool.check(indices, *got, lengths=lengths, extra=(extra, more, more_lengths))


def test_nothing_but_holes(device):
    pool = Pool(2, 64, 576, "656", device)
    out, lse = pool.decode(torch.full((2, 1, 130), -1, dtype=torch.int32))
    assert not out.any() and (lse == float("inf")).all()


def test_older_metadata(device):
    """The older call with topk: the schedule comes in the tensor."""
    pool = Pool(8, 64, 576, "656", device)
    indices = some_indices(3, 2, 128, len(pool.values))
    want = pool.decode(indices)
    seqlens = torch.full((3,), 512, dtype=torch.int32, device=device)
    metadata, num_splits = flash_mla.get_mla_metadata(
        seqlens, 2 * 16, 1, num_heads_q=16, is_fp8_kvcache=True, topk=128)
    got = flash_mla.flash_mla_with_kvcache(
        pool.q, pool.cache, None, seqlens, 512, metadata, num_splits, is_fp8_kvcache=True,
        indices=indices.to(device))
    assert num_splits.shape == (4,)
    check_out(got[0].double().cpu(), want[0].double().cpu())
    pool.check(indices, *got)


@pytest.mark.parametrize("s_q,h_q,h_kv,s_kv,topk,d", [
    (1, 128, 1, 100, 64, 576), (62, 16, 1, 128, 130, 512), (33, 12, 3, 300, 65, 576)])
@pytest.mark.parametrize("limited", [False, True])
def test_prefill(s_q, h_q, h_kv, s_kv, topk, d, limited, device):
    torch.manual_seed(0)
    q = torch.randn(s_q, h_q, d).bfloat16()
    kv = torch.randn(s_kv, h_kv, d).bfloat16()
    indices = some_indices(s_q, h_kv, topk, s_kv)
    indices[-1] = -1  # a token without keys
    lengths = torch.randint(-3, topk + 9, (s_q,), dtype=torch.int32) if limited else None
    sink = torch.randn(h_q) if limited else None
    scale = 0.07
    on = lambda tensor: None if tensor is None else tensor.to(device)  # noqa: E731
    out, max_logits, lse = flash_mla.flash_mla_sparse_fwd(
        on(q), on(kv), on(indices), scale, attn_sink=on(sink), topk_length=on(lengths))
    assert out.shape == (s_q, h_q, 512) and max_logits.shape == lse.shape == (s_q, h_q)
    group = h_q // h_kv
    for t in range(s_q):
        for head in range(h_kv):
            rows = slice(head * group, (head + 1) * group)
            chosen = indices[t, head][: topk if lengths is None else max(0, int(lengths[t]))]
            keys = kv[chosen[(chosen >= 0) & (chosen < s_kv)].long(), head : head + 1]
            row_args = q[t : t + 1, rows].double(), keys.double(), scale
            want, want_lse, want_max = attend(*row_args,
                                              sink=None if sink is None else sink[rows])
            check_out(out[t : t + 1, rows].double().cpu(), want, bound=bound(out, row_args))
            check_lse(lse[t, rows].double().cpu(), want_lse[:, 0])
            assert torch.isneginf(max_logits[t, rows].cpu()).all() == (len(keys) == 0)
            if len(keys):
                check_lse(max_logits[t, rows].double().cpu(), want_max[:, 0], "max_logits")
