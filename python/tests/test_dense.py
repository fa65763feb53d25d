"""Dense decode through FlashMLA's interface, over its test grid."""

import os

import flash_mla
import pytest
import torch
from dense_cases import DenseBatch, DenseCase, grid, sample

FULL = os.environ.get("MLA_TEST_FULL") == "1"
CASES = grid() if FULL else sample(grid(), 1e5)


def run(batch, **options):
    case = batch.case
    metadata, _ = flash_mla.get_mla_metadata()
    return flash_mla.flash_mla_with_kvcache(
        batch.q, batch.cache, batch.table, batch.seqlens, 512, metadata, causal=case.causal,
        **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_grid(case, device):
    batch = DenseBatch(case, device)
    batch.check(*run(batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("std", [0.1, 1.0, 100.0])
def test_data(dtype, std, device):
    batch = DenseBatch(DenseCase(2, 2, 300, 16, dtype=dtype, std=std, seed=5), device)
    batch.check(*run(batch))


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256])
def test_page_sizes(page_size, device):
    batch = DenseBatch(DenseCase(3, 1, 300, 16, page_size=page_size), device)
    try:
        batch.check(*run(batch))
    except NotImplementedError as error:
        assert device == "cuda" and "page_size" in str(error)


def test_narrow_rows(device):
    batch = DenseBatch(DenseCase(2, 1, 100, 16, d=512), device)
    try:
        batch.check(*run(batch))
    except NotImplementedError as error:
        assert device == "cuda" and "d_qk" in str(error)


@pytest.mark.parametrize("scale", [0.25, -0.05, 0.0])
def test_softmax_scale(scale, device):
    batch = DenseBatch(DenseCase(2, 1, 100, 16), device)
    batch.check(*run(batch, softmax_scale=scale), scale=scale)
    torch.testing.assert_close(
        run(batch, softmax_scale=torch.tensor(scale))[0], run(batch, softmax_scale=scale)[0],
        rtol=0, atol=0)


def test_speculative_prompt(device):
    """Small prefills go through the same call: s_q up to 128."""
    batch = DenseBatch(DenseCase(2, 97, 150, 16), device)
    batch.check(*run(batch))


def test_causal_rows_equal_shorter_calls(device):
    batch = DenseBatch(DenseCase(2, 4, 200, 16, varlen=False), device)
    out, lse = run(batch)
    for token in range(4):
        single = DenseBatch(DenseCase(2, 4, 200, 16, varlen=False), device)
        single.case = DenseCase(2, 1, 200, 16, varlen=False)
        single.q = batch.q[:, token : token + 1]
        single.seqlens = batch.seqlens - 3 + token
        single.lengths = [length - 3 + token for length in batch.lengths]
        single.check(*run(single))
        torch.testing.assert_close(run(single)[1][:, :, 0], lse[:, :, token], rtol=1e-5, atol=1e-5)


def test_zero_everything(device):
    """An empty pool, a block table without columns, lengths of zero."""
    q = torch.randn(3, 2, 16, 576, dtype=torch.bfloat16, device=device)
    cache = torch.empty(0, 64, 1, 576, dtype=torch.bfloat16, device=device)
    table = torch.empty(3, 0, dtype=torch.int32, device=device)
    seqlens = torch.zeros(3, dtype=torch.int32, device=device)
    metadata, _ = flash_mla.get_mla_metadata()
    out, lse = flash_mla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata)
    assert not out.any() and (lse == float("inf")).all()


def test_strided_arguments(device):
    """Slices of larger tensors: q of a wider projection, layer-interleaved pages, a wide table."""
    batch = DenseBatch(DenseCase(3, 2, 150, 16), device)
    want = run(batch)
    wide_q = torch.full((3, 2, 20, 640), float("nan"), dtype=batch.q.dtype, device=device)
    wide_q[:, :, 2:18, :576] = batch.q
    num_pages = batch.cache.shape[0]
    layers = torch.full((num_pages, 5, 64, 1, 576), float("nan"), dtype=batch.q.dtype,
                        device=device)
    layers[:, 3] = batch.cache
    wide_table = torch.full((3, batch.table.shape[1] + 9), -1, dtype=torch.int32, device=device)
    wide_table[:, : batch.table.shape[1]] = batch.table
    metadata, _ = flash_mla.get_mla_metadata()
    out = torch.full((3, 2, 30, 512), 7.0, dtype=batch.q.dtype, device=device)
    lse = torch.full((3, 2, 16), 7.0, device=device)
    got = flash_mla.flash_mla_with_kvcache(
        wide_q[:, :, 2:18, :576], layers[:, 3], wide_table[:, : batch.table.shape[1]],
        batch.seqlens, 512, metadata, causal=True, out=out[:, :, 4:20], lse=lse.transpose(1, 2))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert (out[:, :, :4] == 7).all() and (out[:, :, 20:] == 7).all()


def test_repeats_are_equal_in_every_bit(device):
    batch = DenseBatch(DenseCase(6, 2, 400, 64), device)
    out, lse = run(batch)
    for _ in range(10):
        again = run(batch)
        assert torch.equal(again[0], out) and torch.equal(again[1], lse)
