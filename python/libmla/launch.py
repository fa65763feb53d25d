"""From arrays to argument structs: the checks that a call goes through once for each signature.

A Launch holds the C structs of one signature (shapes, strides, types, device, options). A call with
a signature seen before only writes pointers into them. Launches belong to one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading

from . import abi
from .arrays import BF16, BYTE, F16, F32, I32, adaptor_of
from .device import context_of
from .library import check, lib

D_V = 512
_DTYPES = {BF16: abi.DTYPE_BF16, F16: abi.DTYPE_F16, F32: abi.DTYPE_F32}
_FP8_FORMATS = {656: abi.KV_FP8_656, 584: abi.KV_FP8_584}
_MAX_LAUNCHES = 1024  # of one thread; shapes beyond that start the table anew


def dtype_code(array, name: str, kinds=(BF16, F16)) -> int:
    """The mla_dtype of a described array."""
    if array.kind not in kinds:
        raise TypeError(f"{name}: dtype must be {' or '.join(kinds)}, got {array.dtype}")
    return _DTYPES[array.kind]


def check_one_framework(adaptor, **arrays) -> None:
    """Refuses a call that mixes frameworks, naming the argument."""
    for name, array in arrays.items():
        if array is not None and adaptor_of(array, name) is not adaptor:
            raise TypeError(f"{name}: is a {type(array).__name__}, but this call is of "
                            f"{adaptor.name} arrays")


def check_writable(adaptor, **arrays) -> None:
    """Refuses an array for results that may not be written to, naming the argument."""
    for name, array in arrays.items():
        if array is not None and not adaptor.writable(array):
            raise ValueError(f"{name}: cannot be written to")


def describe_strided(adaptor, array, name: str):
    """Description of an array of any strides."""
    check_one_framework(adaptor, **{name: array})
    try:
        return adaptor.describe(array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def describe(adaptor, array, name: str):
    """Description of an array, whose last dimension must be contiguous."""
    seen = describe_strided(adaptor, array, name)
    if seen.shape and seen.shape[-1] > 1 and seen.stride[-1] != 1:
        raise ValueError(f"{name}: the last dimension must be contiguous, its stride is "
                         f"{seen.stride[-1]}")
    return seen


def expect(seen, name: str, kind, device, shape, names: str) -> None:
    """Refuses another element type, device or shape; None in `shape` stands for any number."""
    if kind is not None and seen.kind != kind:
        raise TypeError(f"{name}: dtype must be {kind}, got {seen.dtype}")
    if device is not None and seen.device != device:
        raise ValueError(f"{name}: is on {seen.device[0]}:{seen.device[1]}, the arguments before "
                         f"it on {device[0]}:{device[1]}")
    fits = len(seen.shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, seen.shape)
    )
    if not fits:
        wanted = ", ".join("?" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: expected shape {names} = [{wanted}], got {list(seen.shape)}")


def row_strides(seen, name: str, num_dims: int = 3) -> tuple:
    """Strides of the leading dimensions; those of single rows, which mean nothing, replaced."""
    shape, stride = seen.shape, list(seen.stride)
    least = shape[-1]
    for i in range(num_dims - 1, -1, -1):
        if shape[i] <= 1:
            stride[i] = least
        least = max(least, stride[i] * max(shape[i], 1))
    if not any(stride[:num_dims]):
        # All-zero strides tell the C library that the array is contiguous.
        raise ValueError(f"{name}: is expanded over all its dimensions; pass a copy of it")
    return tuple(stride[:num_dims])


def lse_strides(seen) -> tuple:
    """(batch, token, head) strides of [b, h_q, s_q]; those of single entries mean nothing."""
    batch, head, token = (step if size > 1 else 1 for size, step in zip(seen.shape, seen.stride))
    return batch, token, head


def cache_format(seen, name: str, is_fp8: bool, q_kind, of: str = "q") -> int:
    """The mla_kv_format of a [num_blocks, page_size, h_kv, row] cache."""
    if len(seen.shape) != 4:
        raise ValueError(f"{name}: expected shape [num_blocks, page_size, h_kv, row], got "
                         f"{list(seen.shape)}")
    if not is_fp8:
        if seen.kind == BYTE:
            raise TypeError(f"{name}: has dtype {seen.dtype}; FP8 rows need is_fp8_kvcache=True")
        if seen.kind != q_kind:
            raise TypeError(f"{name}: dtype must be that of {of}, {q_kind}, got {seen.dtype}")
        return abi.KV_NATIVE
    if seen.kind != BYTE:
        raise TypeError(f"{name}: FP8 rows are uint8, int8 or float8_e4m3fn, got {seen.dtype}")
    if seen.shape[3] not in _FP8_FORMATS:
        raise ValueError(f"{name}: FP8 rows have 656 or 584 bytes, got {seen.shape[3]}")
    return _FP8_FORMATS[seen.shape[3]]


def cache_strides(seen, name: str, kv_format: int) -> tuple:
    """mla_pool.stride of a cache."""
    num_pages, page_size, _, row = seen.shape
    page, token = seen.stride[0], seen.stride[1]
    if kv_format == abi.KV_NATIVE:
        if num_pages > 1 and page == 0:
            raise ValueError(f"{name}: pages are expanded (stride 0); pass a copy of it")
        return row_strides(seen, name)
    if page_size > 1 and (token != row if kv_format == abi.KV_FP8_584 else token < row):
        raise ValueError(f"{name}: rows of {row} bytes are {token} bytes apart")
    if num_pages > 1 and page < page_size * row:
        raise ValueError(f"{name}: pages of {page_size} rows of {row} bytes are {page} apart")
    return (
        page if num_pages > 1 else 0,
        token if kv_format == abi.KV_FP8_656 and page_size > 1 else 0,
        0,
    )


def schedule_shape(problem) -> tuple:
    """What the cuts of a schedule depend on, lengths apart."""
    p = problem
    sparse = p.op != abi.OP_DENSE_DECODE
    rows = p.h_q if sparse else p.s_q * p.h_q
    return p.batch, rows, p.h_kv, sparse and (p.s_q, p.topk)


def problem_key(problem) -> tuple:
    """What the C library compares of a plan's problem and a call's."""
    p = problem
    return (p.op, p.dtype, p.kv_format, p.batch, p.s_q, p.h_q, p.h_kv, p.d_qk, p.page_size, p.topk,
            p.extra_page_size, p.extra_topk, p.num_parts, p.causal, p.batch_invariant)


def _one_of_each(problem):
    """The problem with one request or token where there is none, which C does not know."""
    problem = abi.Problem.from_buffer_copy(problem)
    problem.batch, problem.s_q = max(problem.batch, 1), max(problem.s_q, 1)
    return problem


class Launch:
    """The structs of one signature, filled but for the pointers.

    is_empty: there is no request, or no query token; then nothing is computed.
    """

    def __init__(self, adaptor, device, problem, tensors, like):
        self.adaptor = adaptor
        self.tracks_grad = adaptor.tracks_grad
        self.device = device
        self.on_cuda = device[0] == "cuda"
        self.context = context_of(device).handle
        self.problem = problem
        self.problem_at = ctypes.addressof(problem)
        self.problem_key = problem_key(problem)
        self.schedule_shape = schedule_shape(problem)
        self.batch_invariant = problem.batch_invariant
        self.has_extra_pool = problem.extra_topk > 0
        self.tensors = tensors
        self.tensors_at = ctypes.addressof(tensors)
        self.kv = tensors.kv
        self.extra_kv = tensors.extra_kv
        self.lengths = abi.Lengths()
        self.is_empty = problem.batch == 0 or problem.s_q == 0
        checked = _one_of_each(problem) if self.is_empty else problem
        checked_at, sizes = ctypes.addressof(checked), abi.Sizes()
        check(lib.mla_get_sizes(self.context, checked_at, ctypes.addressof(sizes)))
        self.plan_bytes = sizes.plan_bytes
        self.workspace_bytes = sizes.workspace_bytes
        sparse = problem.op != abi.OP_DENSE_DECODE
        self.num_reqs = problem.batch * (problem.s_q if sparse else 1)
        self._prepare_results(problem, like)
        # For plans whose buffer someone else keeps: bound to the problem once, moved as needed.
        # Attaching reads no buffer, so any aligned address does for now.
        self.attached = abi.Plan(buffer=64, buffer_bytes=self.plan_bytes)
        self.attached_at = ctypes.addressof(self.attached)
        self.table_type = None  # Type and signature
        self.table_signature = None  # of the caller's buffer that was last looked at,
        self.table_serves = False  # and whether the schedule in such a buffer is this call's
        check(lib.mla_plan_attach(self.context, checked_at, self.attached_at))

    def _prepare_results(self, problem, like) -> None:
        """Makers of what the caller does not bring: outputs, and on a GPU the workspace."""
        b, s_q, h_q = problem.batch, problem.s_q, problem.h_q
        out_shape, lse_shape = (b, s_q, h_q, D_V), (b, h_q, s_q)
        if problem.op == abi.OP_SPARSE_PREFILL:
            out_shape, lse_shape = out_shape[1:], (s_q, h_q)
        kind = BF16 if problem.dtype == abi.DTYPE_BF16 else F16
        maker = self.adaptor.maker
        self.new_out = maker(out_shape, kind, like)
        self.new_lse = maker(lse_shape, F32, like)
        # A plan that is built within the call lies behind the workspace.
        self.plan_offset = (self.workspace_bytes + 15) & ~15
        self.scratch_bytes = self.plan_offset + self.plan_bytes
        if self.on_cuda:
            self.new_workspace = maker((self.workspace_bytes,), BYTE, like)
            self.new_scratch = maker((self.scratch_bytes,), BYTE, like)

    def stream(self) -> int:
        return self.adaptor.stream(self.device[1]) if self.on_cuda else 0

    def capturing(self) -> bool:
        return self.on_cuda and self.adaptor.tracks_capture and self.adaptor.capturing()


def _indices_strides(seen, name: str, h_kv: int) -> tuple:
    """Strides (batch, token, KV head) of [b, s_q, topk] indices, which all KV heads share."""
    batch, token = row_strides(seen, name, 2) if any(seen.stride[:2]) else (0, 0)
    head = seen.shape[2] if h_kv == 1 else 0
    if not (batch or token or head):
        raise ValueError(f"{name}: is expanded over all its dimensions; pass a copy of it")
    return batch, token, head


def _list_width(seen, name: str) -> int:
    """topk of a list of indices."""
    topk = seen.shape[-1]
    if topk == 0:
        raise ValueError(f"{name}: topk, the last dimension, is 0; it must be at least 1 (-1 is an "
                         "index that is skipped)")
    return topk


def _lengths_vector(adaptor, array, name, device, count, names="[batch]") -> None:
    seen = describe(adaptor, array, name)
    expect(seen, name, I32, device, (count,), names)


def _prepare_sparse_list(adaptor, problem, tensors, device, prefix, arrays, is_extra) -> None:
    """Fills one of the two lists of sparse decode: the first, or the extra pool's."""
    cache, indices, topk_length = arrays
    seen = describe(adaptor, indices, prefix[1])
    expect(seen, prefix[1], I32, device, (problem.batch, problem.s_q, None), "[b, s_q, topk]")
    strides = abi.Stride3(*_indices_strides(seen, prefix[1], problem.h_kv))
    if topk_length is not None:
        _lengths_vector(adaptor, topk_length, prefix[2], device, problem.batch)
    if not is_extra:
        problem.topk, tensors.indices_stride = _list_width(seen, prefix[1]), strides
        return
    problem.extra_topk = _list_width(seen, prefix[1])
    tensors.extra_indices_stride = strides
    pool = describe(adaptor, cache, prefix[0])
    is_fp8 = problem.kv_format != abi.KV_NATIVE
    q_kind = BF16 if problem.dtype == abi.DTYPE_BF16 else F16
    if cache_format(pool, prefix[0], is_fp8, q_kind) != problem.kv_format:
        raise ValueError(f"{prefix[0]}: must have the row format of k_cache")
    expect(pool, prefix[0], None, device, (None, None, problem.h_kv, None),
           "[num_blocks, page_size, h_kv, row]")
    problem.extra_page_size = pool.shape[1]
    tensors.extra_kv.num_pages = pool.shape[0]
    tensors.extra_kv.stride = abi.Stride3(*cache_strides(pool, prefix[0], problem.kv_format))


def _prepare_block_table(adaptor, problem, tensors, device, block_table, cache_seqlens) -> None:
    if block_table is None or cache_seqlens is None:
        missing = "block_table" if block_table is None else "cache_seqlens"
        raise ValueError(f"{missing}: is None; dense decode needs it (sparse decode: pass indices)")
    seen = describe(adaptor, block_table, "block_table")
    expect(seen, "block_table", I32, device, (problem.batch, None), "[batch, max_pages]")
    max_pages = seen.shape[1]
    if problem.batch > 1 and max_pages > 0 and seen.stride[0] < 1:
        raise ValueError(f"block_table: rows are {seen.stride[0]} elements apart; pass a copy")
    tensors.max_pages = max_pages
    if problem.batch > 1:
        tensors.block_table_stride = seen.stride[0]
    _lengths_vector(adaptor, cache_seqlens, "cache_seqlens", device, problem.batch)


def _prepare_outputs(adaptor, problem, tensors, device, q_kind, out, lse) -> None:
    """Strides of out [b, s_q, h_q, 512] and lse [b, h_q, s_q]: the caller's, or contiguous ones."""
    b, s_q, h_q = problem.batch, problem.s_q, problem.h_q
    if out is not None:
        seen = describe(adaptor, out, "out")
        expect(seen, "out", q_kind, device, (b, s_q, h_q, D_V), "[b, s_q, h_q, 512]")
        tensors.out_stride = abi.Stride3(*row_strides(seen, "out"))
    tensors.lse_stride = abi.Stride3(h_q * s_q, 1, s_q)
    if lse is not None:
        seen = describe_strided(adaptor, lse, "lse")
        expect(seen, "lse", F32, device, (b, h_q, s_q), "[b, h_q, s_q]")
        tensors.lse_stride = abi.Stride3(*lse_strides(seen))
    check_writable(adaptor, out=out, lse=lse)


def _check_options(head_dim_v, causal, indices, extra_k_cache, extra_indices, lengths) -> None:
    if head_dim_v != D_V:
        raise ValueError(f"head_dim_v = {head_dim_v}: must be {D_V}")
    if (extra_k_cache is None) != (extra_indices is None):
        missing = "extra_k_cache" if extra_k_cache is None else "extra_indices_in_kvcache"
        raise ValueError(f"{missing}: is None; the second pool needs both")
    if indices is not None:
        if causal:
            raise ValueError("causal = True: sparse decode takes its mask from indices")
        return
    for array, name in ((extra_k_cache, "extra_k_cache"), (lengths[0], "topk_length"),
                        (lengths[1], "extra_topk_length")):
        if array is not None:
            raise ValueError(f"{name}: is set, but indices is None")


def prepare_decode(adaptor, q, k_cache, block_table, cache_seqlens, indices, attn_sink,
                   extra_k_cache, extra_indices, topk_length, extra_topk_length, out, lse,
                   options) -> Launch:
    """Checks a decode call by the names of flash_mla_with_kvcache() and fills its structs."""
    head_dim_v, softmax_scale, causal, is_fp8, invariant, pos_inf, num_parts = options
    _check_options(head_dim_v, causal, indices, extra_k_cache, extra_indices,
                   (topk_length, extra_topk_length))
    seen_q = describe(adaptor, q, "q")
    expect(seen_q, "q", None, None, (None, None, None, None), "[b, s_q, h_q, d]")
    device = seen_q.device
    b, s_q, h_q, d_qk = seen_q.shape
    if num_parts >= 2**31:  # ctypes would cut it to 32 bits, and the library not see it
        raise ValueError(f"num_parts: at most 65536, got {num_parts}")
    seen_kv = describe(adaptor, k_cache, "k_cache")
    expect(seen_kv, "k_cache", None, device, (None,) * 4, "[num_blocks, page_size, h_kv, row]")
    problem = abi.Problem(
        op=abi.OP_DENSE_DECODE if indices is None else abi.OP_SPARSE_DECODE,
        dtype=dtype_code(seen_q, "q"),
        kv_format=cache_format(seen_kv, "k_cache", is_fp8, seen_q.kind),
        batch=b, s_q=s_q, h_q=h_q, h_kv=seen_kv.shape[2], d_qk=d_qk, d_v=D_V,
        page_size=seen_kv.shape[1], num_parts=num_parts, causal=causal, batch_invariant=invariant,
        lse_empty_pos_inf=pos_inf,
    )
    set_scale(problem, softmax_scale)
    row = d_qk if problem.kv_format == abi.KV_NATIVE else seen_kv.shape[3]
    if seen_kv.shape[3] != row:
        raise ValueError(f"k_cache: rows have {seen_kv.shape[3]} values, those of q {d_qk}")
    tensors = abi.Tensors(q_stride=row_strides(seen_q, "q"))
    tensors.kv.num_pages = seen_kv.shape[0]
    tensors.kv.stride = abi.Stride3(*cache_strides(seen_kv, "k_cache", problem.kv_format))
    if indices is None:
        _prepare_block_table(adaptor, problem, tensors, device, block_table, cache_seqlens)
    else:
        _prepare_sparse_list(adaptor, problem, tensors, device,
                             ("k_cache", "indices", "topk_length"),
                             (k_cache, indices, topk_length), False)
    if extra_k_cache is not None:
        _prepare_sparse_list(
            adaptor, problem, tensors, device,
            ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"),
            (extra_k_cache, extra_indices, extra_topk_length), True)
    elif extra_topk_length is not None:
        raise ValueError("extra_topk_length: is set, but extra_k_cache is None")
    if attn_sink is not None:
        expect(describe(adaptor, attn_sink, "attn_sink"), "attn_sink", F32, device, (h_q,), "[h_q]")
    _prepare_outputs(adaptor, problem, tensors, device, seen_q.kind, out, lse)
    return Launch(adaptor, device, problem, tensors, q)


def set_scale(problem, softmax_scale) -> None:
    """0 means the default in C; in Python the default is None, and 0 weighs all keys alike."""
    if softmax_scale is not None:
        problem.softmax_scale = softmax_scale if softmax_scale != 0.0 else 1e-50


def prepare_prefill(adaptor, q, kv, indices, attn_sink, topk_length, options) -> Launch:
    """Checks a flash_mla_sparse_fwd() call and fills its structs."""
    sm_scale, d_v, pos_inf = options
    if d_v != D_V:
        raise ValueError(f"d_v = {d_v}: must be {D_V}")
    seen_q, seen_kv = describe(adaptor, q, "q"), describe(adaptor, kv, "kv")
    expect(seen_q, "q", None, None, (None, None, None), "[s_q, h_q, d]")
    device = seen_q.device
    s_q, h_q, d_qk = seen_q.shape
    expect(seen_kv, "kv", seen_q.kind, device, (None, None, d_qk), "[s_kv, h_kv, d]")
    s_kv, h_kv, _ = seen_kv.shape
    seen = describe(adaptor, indices, "indices")
    expect(seen, "indices", I32, device, (s_q, h_kv, None), "[s_q, h_kv, topk]")
    problem = abi.Problem(
        op=abi.OP_SPARSE_PREFILL, dtype=dtype_code(seen_q, "q"), batch=1, s_q=s_q, h_q=h_q,
        h_kv=h_kv, d_qk=d_qk, d_v=D_V, page_size=1, topk=_list_width(seen, "indices"),
        lse_empty_pos_inf=pos_inf,
    )
    set_scale(problem, sm_scale)
    token, head = row_strides(seen_q, "q", 2)
    tensors = abi.Tensors(q_stride=(s_q * token, token, head), lse_stride=(s_q * h_q, h_q, 1))
    token, head = row_strides(seen_kv, "kv", 2)
    tensors.kv.num_pages = s_kv
    tensors.kv.stride = abi.Stride3(token, token, head)
    token, head = row_strides(seen, "indices", 2)
    tensors.indices_stride = abi.Stride3(s_q * token, token, head)
    if topk_length is not None:
        _lengths_vector(adaptor, topk_length, "topk_length", device, s_q, "[s_q]")
    if attn_sink is not None:
        expect(describe(adaptor, attn_sink, "attn_sink"), "attn_sink", F32, device, (h_q,), "[h_q]")
    return Launch(adaptor, device, problem, tensors, q)


class _LaunchTable(threading.local):
    """Launches of one thread by signature."""

    def __init__(self):
        self.launches = {}

    def keep(self, key, launch) -> None:
        if len(self.launches) >= _MAX_LAUNCHES:
            self.launches.clear()
        self.launches[key] = launch


launch_table = _LaunchTable()
# Launches name contexts, of which a forked process needs its own.
os.register_at_fork(after_in_child=lambda: launch_table.launches.clear())
