"""torch.compile without graph breaks, and the operators' own checks."""

import libmla
import pytest
import torch
from dense_cases import DenseBatch, DenseCase


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def layer(q, cache, table, seqlens, metadata, num_splits=None):
    out, lse = libmla.flash_mla_with_kvcache(
        q * 0.5, cache, table, seqlens, 512, metadata, num_splits, causal=True)
    return out + 1, lse * 2


def agrees(got, want):
    return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(got, want))


@pytest.mark.parametrize("style", ["newer", "older", "batch-invariant"])
def test_dense(style, device):
    batch = DenseBatch(DenseCase(3, 2, 200, 16), device)
    tensors = (batch.q, batch.cache, batch.table, batch.seqlens)
    metadata, num_splits = libmla.get_mla_metadata()
    if style == "older":
        metadata, num_splits = libmla.get_mla_metadata(batch.seqlens, 2 * 16, 1)
    if style == "batch-invariant":
        metadata.tile_scheduler_metadata = torch.zeros(1, 8, dtype=torch.int32, device=device)
    want = layer(*tensors, metadata, num_splits)
    assert agrees(compiled(layer)(*tensors, metadata, num_splits), want)


def test_outputs_given(device):
    batch = DenseBatch(DenseCase(3, 2, 200, 16), device)

    def into(out, q, *tensors):
        metadata, _ = libmla.get_mla_metadata()
        libmla.flash_mla_with_kvcache(q, *tensors, 512, metadata, causal=True, out=out)
        return out * 2

    tensors = (batch.q, batch.cache, batch.table, batch.seqlens)
    outs = [torch.empty(3, 2, 16, 512, dtype=batch.q.dtype, device=device) for _ in range(2)]
    want, got = into(outs[0], *tensors), compiled(into)(outs[1], *tensors)
    assert torch.equal(got, want) and torch.equal(outs[0], outs[1])


def sparse_inputs(device):
    torch.manual_seed(0)
    q = torch.randn(2, 2, 16, 576).bfloat16().to(device)
    kv = torch.randn(200, 1, 576).bfloat16().to(device)
    indices = torch.randint(-1, 200, (2, 2, 70), dtype=torch.int32).to(device)
    try:
        libmla.flash_mla_sparse_fwd(q[0], kv, indices[0][:, None], 0.1)
    except NotImplementedError as error:
        pytest.skip(f"sparse on this device: {error}")
    return q, kv, indices


def test_sparse(device):
    q, kv, indices = sparse_inputs(device)

    def both(q, kv, indices):
        metadata, _ = libmla.get_mla_metadata()
        decoded = libmla.flash_mla_with_kvcache(
            q, kv.view(50, 4, 1, 576), None, None, 512, metadata, indices=indices)
        return *decoded, *libmla.flash_mla_sparse_fwd(q[0], kv, indices[0][:, None], 0.1)

    assert agrees(compiled(both)(q, kv, indices), both(q, kv, indices))


def test_operators_pass_torchs_checks(device):
    batch = DenseBatch(DenseCase(2, 2, 100, 16), device)
    operands = (batch.q, batch.cache, batch.table, batch.seqlens, None, None, True, False, False,
                None, None, None, None, None, None)
    torch.library.opcheck(torch.ops.libmla.decode.default, operands)
    out = torch.empty(2, 2, 16, 512, dtype=batch.q.dtype, device=device)
    lse = torch.empty(2, 16, 2, device=device)
    torch.library.opcheck(torch.ops.libmla.decode_out.default, (*operands, out, lse))
    q, kv, indices = sparse_inputs(device)
    torch.library.opcheck(torch.ops.libmla.sparse_prefill.default,
                          (q[0], kv, indices[0][:, None], 0.1, None, None))
