"""numpy on the CPU, without torch: every operation, the explicit plan, foreign arrays, errors."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import libmla
import numpy as np
import pytest
from libmla.numpy_reference import attend, check_lse, check_out
from libmla.numpy_reference import bf16_bits as bf16
from libmla.numpy_reference import bf16_values as f32


class Batch:
    """A small dense batch; dtype: uint16 (bfloat16 bits) or float16."""

    def __init__(self, lengths=(100, 0, 65), s_q=2, h_q=8, h_kv=1, page_size=16, dtype=np.uint16,
                 seed=0):
        rng = np.random.default_rng(seed)
        self.decode_values = f32 if dtype == np.uint16 else np.float32
        encode = bf16 if dtype == np.uint16 else lambda a: a.astype(dtype)
        pages = [-(-n // page_size) for n in lengths]
        num_pages = sum(pages) + 1
        self.cache = encode(rng.standard_normal((num_pages, page_size, h_kv, 576)))
        self.q = encode(rng.standard_normal((len(lengths), s_q, h_q, 576)))
        self.table = np.full((len(lengths), max(pages) + 1), 2147480000, np.int32)
        order = rng.permutation(num_pages)
        for i, count in enumerate(pages):
            self.table[i, :count] = order[sum(pages[:i]) : sum(pages[: i + 1])]
        self.seqlens = np.array(lengths, np.int32)

    def check(self, out, lse, causal=True, empty=np.inf):
        s_q = self.q.shape[1]
        for i, length in enumerate(self.seqlens):
            count = -(-int(length) // self.cache.shape[1])
            keys = self.decode_values(self.cache[self.table[i, :count]])
            keys = keys.reshape(-1, *keys.shape[2:])[:length]
            visible = [length - s_q + 1 + t if causal else length for t in range(s_q)]
            want, want_lse, _ = attend(self.decode_values(self.q[i]), keys, 576**-0.5, visible)
            want_lse[np.isinf(want_lse)] = empty
            check_out(self.decode_values(out[i]), want)
            check_lse(lse[i], want_lse)


def test_torch_is_not_imported():
    code = ("import sys, numpy, libmla, flash_mla; libmla.get_mla_metadata(numpy.ones(2, 'int32'),"
            " 8, 1); assert 'torch' not in sys.modules, 'torch was imported'")
    paths = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize("dtype", [np.uint16, np.float16])
@pytest.mark.parametrize("h_q,h_kv", [(8, 1), (6, 3)])
def test_dense(dtype, h_q, h_kv):
    batch = Batch(h_q=h_q, h_kv=h_kv, dtype=dtype)
    metadata, _ = libmla.get_mla_metadata()
    out, lse = libmla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True)
    assert out.dtype == dtype and lse.dtype == np.float32
    batch.check(out, lse)


def test_older_metadata():
    batch = Batch()
    metadata, num_splits = libmla.get_mla_metadata(batch.seqlens, 2 * 8, 1)
    assert metadata.dtype == np.int32 and metadata.shape[1] == 8
    assert num_splits.dtype == np.int32 and num_splits.shape == (4,)
    batch.check(*libmla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, num_splits, causal=True))


def test_lengths_overwritten_between_calls():
    batch = Batch((400, 300))
    metadata, _ = libmla.get_mla_metadata()
    for lengths in ((400, 300), (3, 0), (64, 299)):
        batch.seqlens[:] = lengths
        batch.check(*libmla.flash_mla_with_kvcache(
            batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True))


def test_explicit_plan():
    batch = Batch((400, 300, 5))
    plan = libmla.plan_decode(batch.q, batch.cache, batch.table, batch.seqlens, causal=True)
    out = np.empty((3, 2, 8, 512), np.uint16)
    lse = np.empty((3, 8, 2), np.float32)
    workspace = np.empty(plan.workspace_bytes + 16, np.uint8)
    workspace = workspace[-workspace.__array_interface__["data"][0] % 16 :][: plan.workspace_bytes]
    for lengths in ((400, 300, 5), (1, 300, 0)):
        batch.seqlens[:] = lengths
        assert plan.update(batch.seqlens) is plan
        got = libmla.decode(batch.q, batch.cache, batch.table, batch.seqlens, plan=plan,
                            causal=True, out=out, lse=lse, workspace=workspace)
        assert got[0] is out and got[1] is lse
        batch.check(out, lse, empty=-np.inf)
        assert sum(part.num_blocks for part in plan.parts()) == sum(-(-n // 64) for n in lengths)
    with pytest.raises(ValueError, match="plan was built for"):
        libmla.decode(batch.q[:2], batch.cache, batch.table[:2], batch.seqlens[:2], plan=plan)


@pytest.mark.parametrize("options", [dict(batch_invariant=True), dict(num_parts=5), {}])
def test_without_a_plan(options):
    batch = Batch((500, 3))
    batch.check(*libmla.decode(batch.q, batch.cache, batch.table, batch.seqlens, causal=True,
                               lse_empty_pos_inf=True, **options))


@pytest.mark.parametrize("row_bytes,d", [(656, 576), (584, 512)])
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_fp8_rows(row_bytes, d, page_size):
    rng = np.random.default_rng(1)
    num_pages = 130 // page_size + 1
    slots = rng.permutation(num_pages * page_size)[:100].astype(np.int64)
    slots[3] = -1
    rows = bf16(rng.standard_normal((100, d)) * 3)
    cache = libmla.fp8_cache(num_pages, page_size, row_bytes, rows)
    libmla.pack_kv(rows, cache, slots)
    back = f32(libmla.unpack_kv(cache, slots))[:, 0]
    kept = slots >= 0
    assert np.array_equal(back[kept, -64:], f32(rows)[kept, -64:])  # RoPE values stay bf16
    error = np.abs(back[kept] - f32(rows)[kept])
    assert (error <= np.abs(f32(rows)[kept]) / 16 + 0.02).all() and not back[3].any()
    indices = np.full((1, 1, 120), -1, np.int32)
    indices[0, 0, 10:110] = slots
    q = bf16(rng.standard_normal((1, 1, 4, d)))
    metadata, _ = libmla.get_mla_metadata()
    out, lse = libmla.flash_mla_with_kvcache(
        q, cache, None, None, 512, metadata, is_fp8_kvcache=True, indices=indices)
    want, want_lse, _ = attend(f32(q[0]), back[kept][:, None], d**-0.5)
    check_out(f32(out[0]), want)
    check_lse(lse[0], want_lse)


def test_native_rows_round_trip():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((40, 3, 576)).astype(np.float16)
    cache = np.zeros((6, 8, 3, 576), np.float16)
    slots = rng.permutation(48)[:40].astype(np.int64)
    assert libmla.pack_kv(rows, cache, slots) is cache
    assert np.array_equal(cache.reshape(48, 3, 576)[slots], rows)
    assert np.array_equal(libmla.unpack_kv(cache, slots), rows)
    assert np.array_equal(libmla.unpack_kv(cache), cache.reshape(48, 3, 576))


def test_sparse_prefill():
    rng = np.random.default_rng(3)
    q, kv = bf16(rng.standard_normal((5, 8, 576))), bf16(rng.standard_normal((90, 1, 576)))
    indices = rng.integers(-5, 95, (5, 1, 40), dtype=np.int32)
    out, max_logits, lse = libmla.sparse_prefill(q, kv, indices, 0.1)
    for t in range(5):
        chosen = indices[t, 0]
        keys = f32(kv)[chosen[(chosen >= 0) & (chosen < 90)]]
        want, want_lse, want_max = attend(f32(q[t : t + 1]), keys, 0.1)
        check_out(f32(out[t : t + 1]), want)
        check_lse(lse[t], want_lse[:, 0])
        check_lse(max_logits[t], want_max[:, 0])


@pytest.mark.parametrize("num_parts", [1, 2, 8])
def test_merged_equals_unsplit(num_parts):
    """Each rank of a context group holds some pages; one of them holds nothing of request 1."""
    batch = Batch((400, 40), s_q=1, dtype=np.float16)  # bf16 parts would add their own rounding
    whole = libmla.decode(batch.q, batch.cache, batch.table, batch.seqlens)
    outs, lses = [], []
    for rank in range(num_parts):
        table, lengths = np.zeros_like(batch.table), np.zeros(2, np.int32)
        for i, length in enumerate(batch.seqlens):
            mine = range(rank, -(-int(length) // 16), num_parts)
            table[i, : len(mine)] = batch.table[i, list(mine)]
            lengths[i] = sum(min(16, length - 16 * page) for page in mine)
        out, lse = libmla.decode(batch.q, batch.cache, table, lengths,
                                 lse_empty_pos_inf=rank % 2 == 1)
        outs.append(out)
        lses.append(lse)
    out, lse = libmla.merge(outs, lses)
    check_out(out, whole[0])
    check_lse(lse, whole[1])


def test_merge_of_nothing():
    out = np.ones((1, 1, 2, 512), np.float32)
    lse = np.array([[[-np.inf], [np.inf]]], np.float32)
    merged, merged_lse = libmla.merge([out, out * np.nan], [lse, lse], lse_empty_pos_inf=True)
    assert not merged.any() and np.isposinf(merged_lse).all()


class Foreign:
    """An array of a library that is neither numpy nor torch and speaks DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack():
    batch = Batch()
    metadata, _ = libmla.get_mla_metadata()
    arguments = [Foreign(a) for a in (batch.q, batch.cache, batch.table, batch.seqlens)]
    batch.check(*libmla.flash_mla_with_kvcache(*arguments, 512, metadata, causal=True))


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    batch = Batch()
    out, lse = libmla.decode(batch.q.view(ml_dtypes.bfloat16), batch.cache.view(ml_dtypes.bfloat16),
                             batch.table, batch.seqlens, causal=True, lse_empty_pos_inf=True)
    assert out.dtype == ml_dtypes.bfloat16
    batch.check(out.view(np.uint16), lse)


def test_threads():
    """Calls of several threads at once, each with its own shapes."""
    batches = [Batch((50 + 30 * i, i), seed=i) for i in range(4)]

    def work(batch):
        for _ in range(5):
            metadata, _ = libmla.get_mla_metadata()
            result = libmla.flash_mla_with_kvcache(
                batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=True)
        return result

    with ThreadPoolExecutor(4) as pool:
        for batch, result in zip(batches, pool.map(work, batches)):
            batch.check(*result)
