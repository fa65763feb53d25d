"""Calls without requests or without query tokens: empty results of the right shapes.

Engines pad and slice batches; one that comes out empty is a step without work, not an error.
"""

import libmla
import numpy as np
import pytest


def _zeros(framework):
    if framework == "numpy":
        return lambda *shape, dtype="float16": np.zeros(shape, dtype)
    torch = pytest.importorskip("torch")
    return lambda *shape, dtype="float16": torch.zeros(shape, dtype=getattr(torch, dtype))


frameworks = pytest.mark.parametrize("framework", ["numpy", "torch"])
sizes = pytest.mark.parametrize("b,s_q", [(0, 1), (0, 3), (2, 0)])


def _dense(framework, b, s_q):
    zeros = _zeros(framework)
    return (zeros(b, s_q, 8, 576), zeros(4, 16, 1, 576), zeros(b, 4, dtype="int32"),
            zeros(b, dtype="int32"))


def _check(results, b, s_q):
    out, lse = results
    assert tuple(out.shape) == (b, s_q, 8, 512) and tuple(lse.shape) == (b, 8, s_q)
    assert "float16" in str(out.dtype) and "float32" in str(lse.dtype)


@frameworks
@pytest.mark.parametrize("contract,b,s_q", [("newer", 0, 1), ("newer", 0, 3), ("newer", 2, 0),
                                            ("older", 0, 1), ("older", 0, 3)])
def test_drop_in(contract, b, s_q, framework):
    q, cache, table, seqlens = _dense(framework, b, s_q)
    metadata, num_splits = libmla.get_mla_metadata()
    if contract == "older":
        metadata, num_splits = libmla.get_mla_metadata(seqlens, s_q * 8, 1)
        full, _ = libmla.get_mla_metadata(_zeros(framework)(5, dtype="int32"), 8, 1)
        assert metadata.shape == full.shape and tuple(num_splits.shape) == (b + 1,)
        assert not num_splits.any()
    for _ in range(2):
        _check(libmla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata, num_splits,
                                             causal=True), b, s_q)
    indices = _zeros(framework)(b, s_q, 64, dtype="int32")
    _check(libmla.flash_mla_with_kvcache(q, cache, None, None, 512, metadata, num_splits,
                                         indices=indices), b, s_q)


@frameworks
@sizes
def test_decode_with_a_plan(b, s_q, framework):
    arrays = _dense(framework, b, s_q)
    plan = libmla.plan_decode(*arrays)
    assert plan.parts() == [] and tuple(plan.num_splits().shape) == (b + 1,)
    plan.update(arrays[3])
    _check(libmla.decode(*arrays, plan=plan), b, s_q)
    _check(libmla.decode(*arrays), b, s_q)
    out, lse = libmla.decode(*arrays)
    again = libmla.decode(*arrays, out=out, lse=lse)
    assert again[0] is out and again[1] is lse


@frameworks
def test_an_object_that_saw_an_empty_batch_serves_the_next(framework):
    metadata, _ = libmla.get_mla_metadata()
    for b in (0, 2, 0, 3):
        q, cache, table, seqlens = _dense(framework, b, 1)
        _check(libmla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata), b, 1)


@frameworks
def test_prefill_and_merge(framework):
    zeros = _zeros(framework)
    out, max_logits, lse = libmla.flash_mla_sparse_fwd(
        zeros(0, 8, 576), zeros(100, 1, 576), zeros(0, 1, 64, dtype="int32"), 0.1)
    assert tuple(out.shape) == (0, 8, 512)
    assert tuple(max_logits.shape) == tuple(lse.shape) == (0, 8)
    _check(libmla.merge([zeros(0, 1, 8, 512)] * 2, [zeros(0, 8, 1, dtype="float32")] * 2), 0, 1)


def test_torch_compile():
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()

    def layer(q, cache, table, seqlens):
        metadata, _ = libmla.get_mla_metadata()
        return libmla.flash_mla_with_kvcache(q, cache, table, seqlens, 512, metadata)

    _check(torch.compile(layer, fullgraph=True, backend="aot_eager")(*_dense("torch", 0, 1)), 0, 1)


def test_what_is_wrong_with_an_empty_batch_is_still_said():
    q, cache, table, seqlens = _dense("numpy", 0, 1)
    with pytest.raises(ValueError, match="cache_seqlens: expected shape"):
        libmla.decode(q, cache, table, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="h_kv = 3"):
        libmla.decode(q, np.zeros((4, 16, 3, 576), np.float16), table, seqlens)
