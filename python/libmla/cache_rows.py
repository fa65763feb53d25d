"""Rows into a cache and out of it, and the merge of partial results."""

from __future__ import annotations

import ctypes

from . import abi
from .arrays import BF16, BYTE, F16, F32, I64, adaptor_of, adopt
from .device import context_of
from .launch import (
    D_V,
    cache_format,
    cache_strides,
    check_one_framework,
    check_writable,
    describe,
    describe_strided,
    dtype_code,
    expect,
    lse_strides,
    row_strides,
)
from .library import check, lib

_FP8_ROWS = {656: (abi.KV_FP8_656, 576), 584: (abi.KV_FP8_584, 512)}  # bytes: format, d_qk


def fp8_cache(num_blocks: int, page_size: int, row_bytes: int, like):
    """A cache of FP8 rows, uint8 [num_blocks, page_size, 1, row_bytes], all zero.

    row_bytes   656 (DeepSeek V3.2) or 584 (V4), whose pages are padded to a multiple of 576 bytes:
                the stride between pages is then more than page_size * 584
    like        an array: its framework and device are those of the cache
    """
    if row_bytes not in _FP8_ROWS:
        raise ValueError(f"row_bytes = {row_bytes!r}: must be 656 or 584")
    if num_blocks < 0 or page_size < 1:
        raise ValueError(f"num_blocks = {num_blocks}, page_size = {page_size}: must be at least 0 "
                         "and 1")
    like = adopt(like, "like")
    kv_format, d_qk = _FP8_ROWS[row_bytes]
    page_bytes = lib.mla_page_bytes(kv_format, abi.DTYPE_BF16, page_size, 1, d_qk)
    pages = adaptor_of(like, "like").maker((num_blocks, page_bytes), BYTE, like)()
    pages[:] = 0
    return pages[:, : page_size * row_bytes].reshape(num_blocks, page_size, 1, row_bytes)


def _pack_args(adaptor, rows, cache, slots):
    """The structs of pack_kv() and unpack_kv(), and the device they run on."""
    check_one_framework(adaptor, rows=rows, cache=cache, slots=slots)
    seen_rows, seen = describe(adaptor, rows, "rows"), describe(adaptor, cache, "cache")
    if len(seen_rows.shape) not in (2, 3):
        raise ValueError(f"rows: expected shape [n, h_kv, d] or [n, d], got "
                         f"{list(seen_rows.shape)}")
    dtype = dtype_code(seen_rows, "rows")
    kv_format = cache_format(seen, "cache", seen.kind == BYTE, seen_rows.kind, of="rows")
    num_blocks, page_size, h_kv, row = seen.shape
    d_qk = row if kv_format == abi.KV_NATIVE else _FP8_ROWS[row][1]
    shape = (None, h_kv, d_qk) if len(seen_rows.shape) == 3 or h_kv > 1 else (None, d_qk)
    expect(seen_rows, "rows", None, seen.device, shape, "[n, h_kv, d]")
    num_tokens = seen_rows.shape[0]
    strides = row_strides(seen_rows, "rows", len(shape) - 1)
    args = abi.PackArgs(
        kv_format=kv_format, dtype=dtype, num_tokens=num_tokens, h_kv=h_kv,
        d_qk=d_qk, page_size=page_size, num_pages=num_blocks, rows=adaptor.pointer(rows),
        rows_stride=(strides[0], strides[1] if len(strides) > 1 else d_qk),
        cache=adaptor.pointer(cache), cache_stride=cache_strides(seen, "cache", kv_format),
    )
    if slots is not None:
        expect(describe(adaptor, slots, "slots"), "slots", I64, seen.device, (num_tokens,), "[n]")
        args.slots = adaptor.pointer(slots)
    return args, seen.device


def _run_pack(function, adaptor, args, device) -> None:
    stream = adaptor.stream(device[1]) if device[0] == "cuda" else 0
    check(function(context_of(device).handle, ctypes.addressof(args), stream))


def pack_kv(rows, cache, slots=None):
    """Writes rows into a cache, in the cache's format.

    rows    [n, h_kv, 576 or 512] or, with one KV head, [n, 576 or 512]; bf16 for FP8 caches
    cache   [num_blocks, page_size, h_kv, 576 or 512] of the dtype of rows, or FP8 rows of bytes
            (fp8_cache())
    slots   [n] int64: page * page_size + offset, negative: skipped; None: row i into slot i

    Returns cache.
    """
    rows, cache, slots = adopt(rows, "rows"), adopt(cache, "cache"), adopt(slots, "slots")
    adaptor = adaptor_of(rows, "rows")
    args, device = _pack_args(adaptor, rows, cache, slots)
    check_writable(adaptor, cache=cache)
    _run_pack(lib.mla_pack, adaptor, args, device)
    return cache


def unpack_kv(cache, slots=None, *, out=None):
    """Reads rows of a cache: the inverse of pack_kv(), up to FP8's rounding.

    slots   [n] int64, negative: that row of the result is not written; None: all slots in order
    out     [n, h_kv, d], written in place; None: a new array, of the cache's dtype, or bfloat16 for
            FP8 rows, with zeros where a slot is negative

    Returns [n, h_kv, 576 or 512].
    """
    cache, slots, out = adopt(cache, "cache"), adopt(slots, "slots"), adopt(out, "out")
    adaptor = adaptor_of(cache, "cache")
    seen = describe(adaptor, cache, "cache")
    if out is None:
        if len(seen.shape) != 4:
            raise ValueError(f"cache: expected shape [num_blocks, page_size, h_kv, row], got "
                             f"{list(seen.shape)}")
        num_blocks, page_size, h_kv, row = seen.shape
        count = num_blocks * page_size if slots is None else slots.shape[0]
        d_qk = _FP8_ROWS[row][1] if seen.kind == BYTE and row in _FP8_ROWS else row
        kind = BF16 if seen.kind == BYTE else seen.kind
        out = adaptor.maker((count, h_kv, d_qk), kind, cache)()
        out[:] = 0
    args, device = _pack_args(adaptor, out, cache, slots)
    check_writable(adaptor, out=out)
    _run_pack(lib.mla_unpack, adaptor, args, device)
    return out


def merge(outs, lses, *, out=None, lse=None, lse_empty_pos_inf: bool = False):
    """Joins results of attention over disjoint sets of keys, e.g. of the ranks of a context group.

    outs   sequence of [b, s_q, h_q, 512] arrays, bf16, fp16 or float32, all alike
    lses   sequence of [b, h_q, s_q] float32 arrays, natural logarithms; -inf and +inf both mark a
           part without keys

    Returns out [b, s_q, h_q, 512] of the dtype of the parts and lse [b, h_q, s_q].
    """
    outs, lses = list(outs), list(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"outs, lses: {len(outs)} and {len(lses)} parts; as many of both, >= 1")
    outs = [adopt(part, f"outs[{i}]") for i, part in enumerate(outs)]
    lses = [adopt(part, f"lses[{i}]") for i, part in enumerate(lses)]
    adaptor = adaptor_of(outs[0], "outs[0]")
    for name, parts in (("outs", outs), ("lses", lses)):
        check_one_framework(adaptor, **{f"{name}[{i}]": part for i, part in enumerate(parts)})
    check_one_framework(adaptor, out=out, lse=lse)
    first = describe(adaptor, outs[0], "outs[0]")
    first_lse = describe_strided(adaptor, lses[0], "lses[0]")
    expect(first, "outs[0]", None, None, (None, None, None, D_V), "[b, s_q, h_q, 512]")
    b, s_q, h_q, _ = first.shape
    for i, (part, part_lse) in enumerate(zip(outs, lses)):
        seen = describe(adaptor, part, f"outs[{i}]")
        seen_lse = describe_strided(adaptor, part_lse, f"lses[{i}]")
        expect(seen, f"outs[{i}]", first.kind, first.device, first.shape, "shape of outs[0]")
        expect(seen_lse, f"lses[{i}]", F32, first.device, (b, h_q, s_q), "[b, h_q, s_q]")
        if seen.stride != first.stride or seen_lse.stride != first_lse.stride:
            raise ValueError(f"outs[{i}], lses[{i}]: must have the strides of the first")
    code = dtype_code(first, "outs[0]", (BF16, F16, F32))
    if out is None:
        out = adaptor.maker(first.shape, first.kind, outs[0])()
    if lse is None:
        lse = adaptor.maker((b, h_q, s_q), F32, outs[0])()
    seen, seen_lse = describe(adaptor, out, "out"), describe_strided(adaptor, lse, "lse")
    expect(seen, "out", None, first.device, first.shape, "[b, s_q, h_q, 512]")
    expect(seen_lse, "lse", F32, first.device, (b, h_q, s_q), "[b, h_q, s_q]")
    check_writable(adaptor, out=out, lse=lse)
    if 0 in (b, s_q):
        return out, lse
    pointers = ctypes.c_void_p * len(outs)
    args = abi.MergeArgs(
        num_parts=len(outs), batch=b, s_q=s_q, h_q=h_q, d_v=D_V, part_dtype=code,
        part_outs=pointers(*map(adaptor.pointer, outs)),
        part_lses=pointers(*map(adaptor.pointer, lses)),
        part_out_stride=row_strides(first, "outs[0]"), part_lse_stride=lse_strides(first_lse),
        out_dtype=dtype_code(seen, "out", (BF16, F16, F32)), out=adaptor.pointer(out),
        out_stride=row_strides(seen, "out"), lse=adaptor.pointer(lse),
        lse_stride=lse_strides(seen_lse), lse_empty_pos_inf=lse_empty_pos_inf,
    )
    stream = adaptor.stream(first.device[1]) if first.device[0] == "cuda" else 0
    check(lib.mla_merge(context_of(first.device).handle, ctypes.addressof(args), stream))
    return out, lse
