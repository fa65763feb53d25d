"""Properties of torch tensors beside shape, dtype and strides: what is served, what is refused."""

import warnings

import libmla
import pytest
import torch
from dense_cases import DenseBatch, DenseCase


@pytest.fixture
def batch():
    return DenseBatch(DenseCase(b=2, s_q=1, s_k=200, h_q=16))


def call(batch, **changes):
    arguments = dict(q=batch.q, k_cache=batch.cache, block_table=batch.table,
                     cache_seqlens=batch.seqlens, head_dim_v=512,
                     tile_scheduler_metadata=libmla.get_mla_metadata()[0])
    return libmla.flash_mla_with_kvcache(**{**arguments, **changes})


@pytest.mark.parametrize("name", ["q", "k_cache", "block_table", "cache_seqlens", "out", "lse"])
def test_lazily_negated_views(name, batch):
    """Their memory holds the values with the other sign."""
    out, lse = call(batch)
    given = dict(q=batch.q, k_cache=batch.cache, block_table=batch.table,
                 cache_seqlens=batch.seqlens, out=out, lse=lse)
    for _ in range(2):  # also after a call of this signature went through
        with pytest.raises(ValueError, match=f"{name}: is a lazily negated view"):
            call(batch, **{name: torch._neg_view(given[name])})
        call(batch, **{name: given[name]})


def test_lazily_negated_views_elsewhere(batch):
    out, lse = call(batch)
    neg = torch._neg_view
    kv, indices = batch.cache.view(-1, 1, 576), torch.zeros(2, 1, 64, dtype=torch.int32)
    rows = torch.zeros(1, 576, dtype=batch.q.dtype)
    for function, text in (
            (lambda: libmla.flash_mla_sparse_fwd(neg(batch.q[:, 0]), kv, indices, 0.1), "q: "),
            (lambda: libmla.merge([out, neg(out)], [lse, lse]), r"outs\[1\]: "),
            (lambda: libmla.merge([out, out], [neg(lse), lse]), r"lses\[0\]: "),
            (lambda: libmla.pack_kv(neg(rows), batch.cache), "rows: "),
            (lambda: libmla.unpack_kv(neg(batch.cache)), "cache: "),
            (lambda: libmla.get_mla_metadata(neg(batch.seqlens), 16, 1), "cache_seqlens: ")):
        with pytest.raises(ValueError, match=text + "is a lazily negated view"):
            function()


def test_resolved_negation_is_served(batch):
    want = call(batch, q=-batch.q)
    got = call(batch, q=torch._neg_view(batch.q).resolve_neg())
    assert torch.equal(got[0], want[0])


def test_no_gradient_without_a_warning(batch):
    """There is no backward pass; who wants one must learn it from the call."""
    trained = batch.q.clone().requires_grad_()
    for _ in range(2):
        with pytest.warns(UserWarning, match="no backward"):
            out, lse = call(batch, q=trained)
    assert not out.requires_grad and not lse.requires_grad
    with pytest.warns(UserWarning, match="no backward"):
        libmla.flash_mla_sparse_fwd(trained[:, 0], batch.cache.view(-1, 1, 576),
                                    torch.zeros(2, 1, 64, dtype=torch.int32), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            call(batch, q=trained)
        with torch.inference_mode():
            call(batch, q=trained)
        call(batch)


def test_out_in_the_memory_of_q(batch):
    q = batch.q.clone()
    with pytest.raises(ValueError, match="out: lies in the memory of q"):
        call(batch, q=q, out=q[..., :512])
    assert torch.equal(q, batch.q)
    # Beside q in one allocation is another matter.
    both = torch.cat([batch.q, torch.empty(2, 1, 16, 512, dtype=q.dtype)], -1)
    out, _ = call(batch, q=both[..., :576], out=both[..., 576:])
    assert torch.equal(out, call(batch)[0]) and torch.equal(both[..., :576], batch.q)


def test_lengths_changed_in_place_in_inference_mode():
    """No version tells of it there; the schedule must follow all the same."""
    batch = DenseBatch(DenseCase(b=1, s_q=1, s_k=3000, h_q=16))
    with torch.inference_mode():
        seqlens = torch.tensor([1], dtype=torch.int32)
        metadata, _ = libmla.get_mla_metadata()
        call(batch, cache_seqlens=seqlens, tile_scheduler_metadata=metadata, causal=True)
        before = metadata.tile_scheduler_metadata.clone()
        seqlens.copy_(batch.seqlens)
        out, lse = call(batch, cache_seqlens=seqlens, tile_scheduler_metadata=metadata, causal=True)
        batch.check(out, lse)
        assert not torch.equal(metadata.tile_scheduler_metadata, before)


@pytest.mark.parametrize("view", ["layers", "wide table", "heads", "token-major"])
def test_views_that_engines_pass(view, batch):
    want = call(batch)
    changes = {}
    if view == "layers":  # one cache of all layers, [num_blocks, layers, page, 1, 576]
        layers = torch.full((len(batch.cache), 3, *batch.cache.shape[1:]), float("nan"),
                            dtype=batch.cache.dtype)
        layers[:, 1] = batch.cache
        changes["k_cache"] = layers[:, 1]
    elif view == "wide table":  # the first columns of a table for the longest request
        table = torch.full((2, 50), -1, dtype=torch.int32)
        columns = batch.table.shape[1]
        table[:, :columns] = batch.table
        changes["block_table"] = table[:, :columns]
    elif view == "heads":  # this rank's heads of all
        changes["q"] = torch.cat([batch.q, batch.q.nan_to_num() * float("nan")], 2)[:, :, :16]
    else:  # as a projection for all heads leaves it
        changes["q"] = batch.q.transpose(1, 2).contiguous().transpose(1, 2)
    got = call(batch, **changes)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_dtypes_of_fp8_caches(dtype, batch):
    q = batch.q.bfloat16()
    cache = libmla.fp8_cache(len(batch.cache), 64, 656, q)
    libmla.pack_kv(torch.randn(len(batch.cache) * 64, 576).bfloat16(), cache)
    want = call(batch, q=q, k_cache=cache, is_fp8_kvcache=True)
    got = call(batch, q=q, k_cache=cache.view(dtype), is_fp8_kvcache=True)
    assert torch.equal(got[0], want[0])
    with pytest.raises(TypeError, match="k_cache: has dtype"):
        call(batch, q=q, k_cache=cache.view(dtype))


def test_compiled_for_any_batch():
    """One graph with symbolic sizes, both contracts."""
    torch._dynamo.reset()

    def layer(q, cache, table, seqlens, metadata, num_splits=None):
        out, lse = libmla.flash_mla_with_kvcache(
            q * 0.5, cache, table, seqlens, 512, metadata, num_splits, causal=True)
        return out + 1, lse

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for b, s_q in ((2, 2), (3, 1), (5, 4), (1, 1)):
        batch = DenseBatch(DenseCase(b, s_q, 200, 16))
        tensors = (batch.q, batch.cache, batch.table, batch.seqlens)
        for schedule in (libmla.get_mla_metadata(),
                         libmla.get_mla_metadata(batch.seqlens, s_q * 16, 1)):
            want, got = layer(*tensors, *schedule), compiled(*tensors, *schedule)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
