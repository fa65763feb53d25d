"""`check`: every operation on this machine, against float64 attention in numpy."""

from __future__ import annotations

import sys

import numpy as np

import libmla

from .numpy_reference import (
    attend,
    bf16_bits,
    bf16_values,
    check_lse,
    check_out,
    rounding_bound,
)

WILD_PAGE = 2147480000  # in block-table entries past a request's end
NAN_BITS = 0x7FC0


def show_progress(text: str) -> None:
    """Replaces the line being shown where a person watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class _Host:
    """numpy in, numpy out; bf16 as its bits."""

    @staticmethod
    def put(array):
        return array

    @staticmethod
    def get(array):
        return array

    @staticmethod
    def bound(*row_args):
        """The CPU's kernels make up for rounding P."""


class _Gpu:
    """The same through torch CUDA tensors."""

    def __init__(self, index):
        import torch

        self.torch, self.device = torch, f"cuda:{index}"

    def put(self, array):
        tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        if array.dtype == np.uint16:
            tensor = self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return tensor.to(self.device)

    @staticmethod
    def bound(*row_args):
        return lambda: rounding_bound(*row_args)

    def get(self, tensor):
        tensor = tensor.cpu()
        if tensor.dtype == self.torch.bfloat16:
            return tensor.view(self.torch.int16).numpy().view(np.uint16)
        return tensor.numpy()


def _dense(mover, rng, lengths, s_q, h_q, h_kv=1, page_size=64, causal=True, **options):
    """Unused slots, pages and table entries are poisoned. Returns the largest relative error."""
    pages = [-(-n // page_size) for n in lengths]
    cache = bf16_bits(rng.standard_normal((sum(pages) + 1, page_size, h_kv, 576)))
    q = bf16_bits(rng.standard_normal((len(lengths), s_q, h_q, 576)))
    table = np.full((len(lengths), max(pages) + 1), WILD_PAGE, np.int32)
    order = rng.permutation(sum(pages) + 1)
    cache[order[-1]] = NAN_BITS
    for i, length in enumerate(lengths):
        table[i, : pages[i]] = order[sum(pages[:i]) : sum(pages[: i + 1])]
        if length % page_size:
            cache[table[i, pages[i] - 1], length % page_size :] = NAN_BITS
    seqlens = np.array(lengths, np.int32)
    out, lse = map(mover.get, libmla.decode(
        *map(mover.put, (q, cache, table, seqlens)), causal=causal, lse_empty_pos_inf=True,
        **options))
    worst = 0.0
    for i, length in enumerate(lengths):
        keys = bf16_values(cache[table[i, : pages[i]]]).reshape(-1, h_kv, 576)[:length]
        visible = [length - s_q + 1 + t if causal else length for t in range(s_q)]
        row_args = bf16_values(q[i]), keys, 576**-0.5, visible
        want, want_lse, _ = attend(*row_args)
        worst = max(worst, check_out(bf16_values(out[i]), want, f"out[{i}]",
                                     mover.bound(*row_args)))
        check_lse(lse[i], want_lse, f"lse[{i}]")
    return worst


def _sparse(mover, rng, row_bytes, topk, h_q, page_size=64):
    d = 512 if row_bytes == 584 else 576
    rows = mover.put(bf16_bits(rng.standard_normal((6 * page_size, 1, d))))
    if row_bytes == 2 * d:
        cache, values = rows.reshape(6, page_size, 1, d), bf16_values(mover.get(rows))
    else:
        cache = libmla.fp8_cache(6, page_size, row_bytes, rows)
        libmla.pack_kv(rows, cache)
        values = bf16_values(mover.get(libmla.unpack_kv(cache)))
    q = bf16_bits(rng.standard_normal((2, 2, h_q, d)))
    indices = rng.integers(-50, len(values) + 50, (2, 2, topk), dtype=np.int32)
    out, lse = map(mover.get, libmla.decode(
        mover.put(q), cache, indices=mover.put(indices), is_fp8_kvcache=row_bytes != 2 * d,
        lse_empty_pos_inf=True))
    worst = 0.0
    for i in range(2):
        for t in range(2):
            chosen = indices[i, t][(indices[i, t] >= 0) & (indices[i, t] < len(values))]
            row_args = bf16_values(q[i, t : t + 1]), values[chosen], d**-0.5
            want, want_lse, _ = attend(*row_args)
            worst = max(worst, check_out(bf16_values(out[i, t : t + 1]), want,
                                         bound=mover.bound(*row_args)))
            check_lse(lse[i, :, t : t + 1], want_lse)
    return worst


def _prefill(mover, rng, s_q, h_q, topk):
    q = bf16_bits(rng.standard_normal((s_q, h_q, 576)))
    kv = bf16_bits(rng.standard_normal((300, 1, 576)))
    indices = rng.integers(-20, 320, (s_q, 1, topk), dtype=np.int32)
    out, _, lse = map(mover.get, libmla.sparse_prefill(*map(mover.put, (q, kv, indices)), 0.05))
    worst = 0.0
    for t in range(s_q):
        chosen = indices[t, 0][(indices[t, 0] >= 0) & (indices[t, 0] < 300)]
        row_args = bf16_values(q[t : t + 1]), bf16_values(kv[chosen]), 0.05
        want, want_lse, _ = attend(*row_args)
        worst = max(worst, check_out(bf16_values(out[t : t + 1]), want,
                                     bound=mover.bound(*row_args)))
        check_lse(lse[t], want_lse[:, 0])
    return worst


def _merge(mover, rng):
    outs = rng.standard_normal((3, 2, 1, 8, 512)).astype(np.float32)
    lses = rng.standard_normal((3, 2, 8, 1)).astype(np.float32)
    lses[1, 0], lses[2, 1] = np.inf, -np.inf  # parts without keys
    out, lse = map(mover.get, libmla.merge(list(map(mover.put, outs)), list(map(mover.put, lses))))
    weights = np.where(np.isfinite(lses), np.exp(lses.astype(np.float64)), 0.0)
    want = (weights.transpose(0, 1, 3, 2)[..., None] * outs).sum(0)
    want /= weights.sum(0).transpose(0, 2, 1)[..., None]
    check_lse(lse, np.log(weights.sum(0)))
    return check_out(out, want)


CASES = [
    ("dense: one request, 128 heads", _dense, dict(lengths=[1000], s_q=1, h_q=128)),
    ("dense: mixed lengths, some zero", _dense, dict(lengths=[0, 1, 63, 64, 65, 700], s_q=1,
                                                      h_q=16)),
    ("dense: two tokens, causal", _dense, dict(lengths=[1, 130, 640], s_q=2, h_q=128)),
    ("dense: small prompt", _dense, dict(lengths=[200, 40], s_q=33, h_q=16)),
    ("dense: three KV heads", _dense, dict(lengths=[300, 5], s_q=2, h_q=63, h_kv=3)),
    ("dense: page of 16", _dense, dict(lengths=[300, 17], s_q=1, h_q=20, page_size=16)),
    ("dense: page of 256", _dense, dict(lengths=[300, 17], s_q=1, h_q=20, page_size=256)),
    ("dense: 32 parts", _dense, dict(lengths=[3000], s_q=1, h_q=16, num_parts=32)),
    ("dense: batch-invariant", _dense, dict(lengths=[900, 30], s_q=1, h_q=64,
                                            batch_invariant=True)),
    ("sparse: 656-byte rows", _sparse, dict(row_bytes=656, topk=200, h_q=64)),
    ("sparse: 584-byte rows", _sparse, dict(row_bytes=584, topk=200, h_q=64)),
    ("sparse: bf16 rows", _sparse, dict(row_bytes=1152, topk=65, h_q=128)),
    ("sparse: 656-byte rows, page of 61", _sparse, dict(row_bytes=656, topk=64, h_q=16,
                                                        page_size=61)),
    ("sparse prefill", _prefill, dict(s_q=40, h_q=64, topk=128)),
    ("merge of three parts", _merge, {}),
]


def run_checks(device: str, index: int = 0) -> int:
    """Prints a line for each case; returns how many failed."""
    info = libmla.device_info(device, index)
    mover = _Host() if device == "cpu" else _Gpu(index)
    print(f"libmla {libmla.__version__} on {info.name or device}"
          + (f", {info.isa_used}, {info.num_threads} threads" if device == "cpu" else ""))
    failed = 0
    for i, (name, function, arguments) in enumerate(CASES):
        show_progress(f"{i + 1}/{len(CASES)} {name}")
        try:
            error = function(mover, np.random.default_rng(i), **arguments)
            result = f"ok      relative error {error:.1e}"
        except NotImplementedError as error:
            result = f"absent  {error}"
        except AssertionError as error:
            failed += 1
            result = f"FAILED  {error}"
        show_progress("")
        print(f"{name:36s}{result}")
    print(f"{failed} failed" if failed else "all right")
    return failed
