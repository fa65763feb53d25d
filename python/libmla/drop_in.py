"""FlashMLA's interface: its names, arguments, defaults, shapes and return conventions.

Two contracts for the schedule meet here, told apart by num_splits:

* Newer: get_mla_metadata() gives an object, num_splits is left out of the call. The first call
  with the object builds the schedule, later calls with the same shape and lengths reuse it. Inside
  a CUDA graph the build is captured: a replay cuts the batch by the lengths then in memory.
* Older: get_mla_metadata(cache_seqlens, num_q_tokens_per_head_k, num_heads_k) gives an int32 tensor
  that holds the schedule and an int32 tensor num_splits; both are passed to every call. The caller
  keeps the tensor current, under CUDA graphs by copy_() into the one that was captured. Its size
  depends on the device alone.

vLLM calls get_mla_metadata with the older arguments and then follows the newer contract, so the
tensor carries the attributes of the newer object too.
"""

from __future__ import annotations

import ctypes
import operator

from . import abi, attention, plans
from .arrays import I32, adaptor_of, adopt, is_native
from .launch import Launch, check_one_framework, describe, expect, launch_table
from .library import check, lib

# This shape of tile_scheduler_metadata stands for one partition of all requests, none of them
# split: vLLM's batch-invariant mode overwrites the attribute with such a tensor.
_ONE_PARTITION = (1, 8)
_NO_ATTRIBUTES: dict = {}


class FlashMLASchedMeta:
    """A schedule that the first flash_mla_with_kvcache() call with it builds.

    tile_scheduler_metadata   None, then the schedule's table, int32 [n, 8]. Overwritten with an
                              int32 tensor [1, 8], it asks for the batch-invariant mode.
    num_splits                None, then int32 [batch + 1], cumulative; may be overwritten.
    have_initialized          whether a call has built the schedule
    """

    def __init__(self):
        self.tile_scheduler_metadata = None
        self.have_initialized = False
        self._mla_plan = None
        self._num_splits = None

    def __getstate__(self):
        """A copy, also a pickled one, builds a schedule of its own; what a caller set stays set."""
        state = dict(self.__dict__, _mla_plan=None, have_initialized=False)
        if self._mla_plan is not None and self.tile_scheduler_metadata is self._mla_plan.table:
            state["tile_scheduler_metadata"] = None
        return state

    @property
    def num_splits(self):
        if self._num_splits is None and self._mla_plan is not None:
            return self._mla_plan.num_splits()
        return self._num_splits

    @num_splits.setter
    def num_splits(self, value):
        self._num_splits = value


def get_mla_metadata(*args, **kwargs):
    """The schedule of a decode step.

    get_mla_metadata() -> (FlashMLASchedMeta, None)

    get_mla_metadata(cache_seqlens, num_q_tokens_per_head_k, num_heads_k, num_heads_q=None,
                     is_fp8_kvcache=False, topk=None) -> (tile_scheduler_metadata, num_splits)
        cache_seqlens             [batch] int32
        num_q_tokens_per_head_k   s_q * num_heads_q / num_heads_k
        tile_scheduler_metadata   int32 [n, 8]; n depends on the device alone
        num_splits                int32 [batch + 1]
    """
    if len(args) + len(kwargs) < 3 and "num_heads_k" not in kwargs:
        return FlashMLASchedMeta(), None
    return _build_metadata(*args, **kwargs)


def _build_metadata(cache_seqlens, num_q_tokens_per_head_k, num_heads_k, num_heads_q=None,
                    is_fp8_kvcache=False, topk=None):
    cache_seqlens = adopt(cache_seqlens, "cache_seqlens")
    adaptor = adaptor_of(cache_seqlens, "cache_seqlens")
    num_heads_k = _as_count(num_heads_k, "num_heads_k")
    rows = _as_count(num_q_tokens_per_head_k, "num_q_tokens_per_head_k") * num_heads_k
    shape = (rows, num_heads_k, num_heads_q, bool(is_fp8_kvcache), topk)
    key = ("metadata", shape, adaptor.signature(cache_seqlens))
    launch = launch_table.launches.get(key)
    if launch is None:
        launch = _prepare_metadata(adaptor, cache_seqlens, *shape)
        launch_table.keep(key, launch)
    plan = plans.Plan(launch, cache_seqlens, launch.table_bytes)
    plan._build(launch, (cache_seqlens if topk is None else None, None, None))
    table, num_splits = plan.table, plan.num_splits()
    if adaptor.name == "torch":
        table.tile_scheduler_metadata = None
        table.num_splits = num_splits
        table._mla_shape = launch.schedule_shape
        table._mla_plan = None
    return table, num_splits


def _as_count(number, name: str) -> int:
    """A whole number, of which an array of one element may be one."""
    try:
        count = operator.index(number)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {number!r}") from None
    if not -2**31 <= count < 2**31:
        raise ValueError(f"{name}: {count} is beyond 32 bits")
    return count


def _prepare_metadata(adaptor, cache_seqlens, rows, num_heads_k, num_heads_q, is_fp8, topk):
    """Checks the older call and makes the Launch that its schedule is built with."""
    seen = describe(adaptor, cache_seqlens, "cache_seqlens")
    expect(seen, "cache_seqlens", I32, None, (None,), "[batch]")
    if topk is not None and num_heads_q is None:
        raise ValueError("num_heads_q: is None; a sparse schedule (topk) needs it")
    if topk is not None and (num_heads_q < 1 or rows % num_heads_q):
        raise ValueError(f"num_heads_q = {num_heads_q}: does not divide {rows} query rows")
    problem = _canonical_problem(seen.shape[0], rows, num_heads_k, num_heads_q, is_fp8, topk)
    launch = Launch(adaptor, seen.device, problem, abi.Tensors(), cache_seqlens)
    launch.table_bytes = max(launch.plan_bytes, _roomiest_bytes(launch))
    return launch


def _canonical_problem(batch, rows, h_kv, num_heads_q, is_fp8, topk):
    """The problem that stands for all that get_mla_metadata() cannot tell apart."""
    problem = abi.Problem(op=abi.OP_DENSE_DECODE, dtype=abi.DTYPE_BF16, batch=batch, s_q=1,
                          h_q=rows, h_kv=h_kv, d_qk=576, d_v=512, page_size=64)
    if topk is not None:
        problem.op, problem.topk = abi.OP_SPARSE_DECODE, topk
        problem.s_q, problem.h_q = rows // num_heads_q, num_heads_q
        problem.kv_format = abi.KV_FP8_656 if is_fp8 else abi.KV_NATIVE
    return problem


def _plan_bytes(launch, problem) -> int:
    """What the plan of another problem takes on the device of a launch."""
    sizes = abi.Sizes()
    check(lib.mla_get_sizes(launch.context, ctypes.addressof(problem), ctypes.addressof(sizes)))
    return sizes.plan_bytes


def _roomiest_bytes(launch) -> int:
    """The largest plan of a device: whole requests, more of them than parts, a row each.

    Every table has room for it, so that tables of all batches can be copied over one another.
    """
    problem = _canonical_problem(2**31 - 1, 1, 1, None, False, None)
    problem.batch_invariant = True
    return _plan_bytes(launch, problem)


def _is_cut_canonically(launch) -> bool:
    """Whether a call cuts its batch as the canonical problem of its rows does.

    Cuts follow from the lengths and the number of parts, which follows from the rows of a KV head
    and which the buffer's size tells. A backend may need more room for rows of which tokens and
    heads are known: then the schedule in the tensor is not this call's.
    """
    p = launch.problem
    topk = None if p.op == abi.OP_DENSE_DECODE else p.topk
    problem = _canonical_problem(p.batch, p.s_q * p.h_q, p.h_kv, p.h_q,
                                 p.kv_format == abi.KV_FP8_656, topk)
    return _plan_bytes(launch, problem) == launch.plan_bytes


def _asks_one_partition(table) -> bool:
    return table is not None and table.shape == _ONE_PARTITION


def _is_batch_invariant(metadata) -> bool:
    if type(metadata) is FlashMLASchedMeta:
        # Asking the schedule's own table for its shape would take longer than all of this.
        table, plan = metadata.tile_scheduler_metadata, metadata._mla_plan
        own = table is None or (plan is not None and table is plan.table)
        return not own and _asks_one_partition(table)
    if _asks_one_partition(_attributes(metadata).get("tile_scheduler_metadata")):
        return True
    try:
        return metadata.shape == _ONE_PARTITION
    except AttributeError:  # no array; what it is, is asked later
        return False


def _attributes(metadata) -> dict:
    """What was set on the object or tensor; looking for what was not is slow on a tensor itself."""
    return getattr(metadata, "__dict__", _NO_ATTRIBUTES)


def _kept_plan(holder, launch, lengths, like) -> int:
    """The newer contract: the address of the plan that `holder` keeps, built when it must be."""
    plan = holder._mla_plan
    if plan is None or not plan._fits(launch):
        plan = plans.Plan(launch, like)
        plan._build(launch, lengths)
        holder._mla_plan = plan
        if isinstance(holder, FlashMLASchedMeta):
            if not _asks_one_partition(holder.tile_scheduler_metadata):
                holder.tile_scheduler_metadata = plan.table
            holder.have_initialized = True
    elif not plan._is_current(lengths):
        plan._build(launch, lengths)
    return plan._c_plan_at


def plan_address(metadata, num_splits, launch, lengths, like) -> int:
    """Address of the mla_plan of a call; 0: to be built within the call."""
    if launch.is_empty:
        return 0
    if isinstance(metadata, FlashMLASchedMeta):
        if num_splits is not None:
            raise ValueError("num_splits: must be left out with a FlashMLASchedMeta")
        return _kept_plan(metadata, launch, lengths, like)
    if launch.batch_invariant:
        return _kept_plan(metadata, launch, lengths, like) if hasattr(metadata, "_mla_plan") else 0
    if lengths[1] is not None or lengths[2] is not None or launch.has_extra_pool:
        return 0  # get_mla_metadata() knew nothing of these
    made_for = _attributes(metadata).get("_mla_shape")
    if made_for is not None and made_for != launch.schedule_shape:
        return 0
    if made_for is not None and num_splits is None and launch.capturing():
        return _kept_plan(metadata, launch, lengths, like)
    return _attach(metadata, launch)


def _attach(metadata, launch) -> int:
    """The older contract: the schedule lies in the caller's tensor."""
    adaptor = launch.adaptor
    if type(metadata) is not launch.table_type:
        if not is_native(metadata):
            raise TypeError("tile_scheduler_metadata: expected the result of get_mla_metadata(), "
                            f"got {type(metadata).__name__}")
        check_one_framework(adaptor, tile_scheduler_metadata=metadata)
        launch.table_type = type(metadata)
    signature = adaptor.signature(metadata)
    if signature != launch.table_signature:
        _check_table(metadata, launch)
        launch.table_signature = signature
        launch.table_serves = _is_cut_canonically(launch)
    if not launch.table_serves:
        return 0
    table_at = adaptor.pointer(metadata)
    if not launch.on_cuda and not plans.host_table_serves(launch, table_at):
        return 0
    launch.attached.buffer = table_at
    return launch.attached_at


def _check_table(metadata, launch) -> None:
    seen = describe(launch.adaptor, metadata, "tile_scheduler_metadata")
    expect(seen, "tile_scheduler_metadata", I32, launch.device, (None, 8), "[n, 8]")
    if seen.shape[0] * 32 < launch.plan_bytes or (seen.shape[0] > 1 and seen.stride[0] != 8):
        raise ValueError(f"tile_scheduler_metadata: has {seen.shape[0]} rows of 8, this call needs "
                         f"{launch.plan_bytes // 32} contiguous ones")


def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v: int,
    tile_scheduler_metadata,
    num_splits=None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    *,
    out=None,
    lse=None,
    workspace=None,
):
    """Decode attention over a paged cache: dense through block_table, sparse through indices.

    q                         [b, s_q, h_q, 576 or 512], bf16 or fp16
    k_cache                   [num_blocks, page_size, h_kv, 576 or 512]; with is_fp8_kvcache
                              [num_blocks, page_size, 1, 656 or 584], uint8, int8 or float8_e4m3fn
    block_table               [b, max_pages] int32; None with indices
    cache_seqlens             [b] int32; None with indices
    head_dim_v                512
    tile_scheduler_metadata   of get_mla_metadata()
    num_splits                its second result, or left out with a FlashMLASchedMeta
    softmax_scale             default: d ** -0.5
    causal                    query token t of s_q sees keys 0 ... len - s_q + t; dense only
    indices                   [b, s_q, topk] int32: page * page_size + offset, -1: skipped
    attn_sink                 [h_q] float32
    extra_k_cache, extra_indices_in_kvcache   a second pool and its [b, s_q, topk] indices
    topk_length, extra_topk_length            [b] int32
    out, lse, workspace       written in place when given (not in FlashMLA)

    Returns out [b, s_q, h_q, 512] and lse [b, h_q, s_q] float32, natural logarithm. A row without
    keys has out 0 and lse +inf.
    """
    if attention.torch_is_compiling(q):
        return attention.torch_ops().decode_in_graph(
            q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata,
            softmax_scale, causal, is_fp8_kvcache, indices, attn_sink, extra_k_cache,
            extra_indices_in_kvcache, topk_length, extra_topk_length, out, lse)
    if indices is not None:
        block_table = cache_seqlens = None  # what they say, indices say already
    arrays = (q, k_cache, block_table, cache_seqlens, indices, attn_sink, extra_k_cache,
              extra_indices_in_kvcache, topk_length, extra_topk_length, out, lse)
    if not is_native(q):
        arrays = attention.adopt_all(arrays)
    if tile_scheduler_metadata is None:
        raise TypeError("tile_scheduler_metadata: is None; pass the result of get_mla_metadata()")
    options = (head_dim_v, attention.as_scale(softmax_scale), causal, is_fp8_kvcache,
               _is_batch_invariant(tile_scheduler_metadata), True, 0)
    launch = attention.find_launch(arrays, options)
    lengths = (arrays[3], arrays[8], arrays[9])
    plan_at = plan_address(tile_scheduler_metadata, num_splits, launch, lengths, arrays[0])
    return attention.run_decode(launch, arrays, plan_at, workspace)


def flash_mla_sparse_fwd(q, kv, indices, sm_scale: float, d_v: int = 512, attn_sink=None,
                         topk_length=None):
    """Sparse attention of a prompt: each token over its own indices.

    q             [s_q, h_q, 576 or 512], bf16 or fp16
    kv            [s_kv, h_kv, same]
    indices       [s_q, h_kv, topk] int32; below 0 or beyond s_kv: skipped
    attn_sink     [h_q] float32
    topk_length   [s_q] int32

    Returns out [s_q, h_q, 512], max_logits [s_q, h_q] and lse [s_q, h_q], float32, natural
    logarithms. A row without keys has out 0, max_logits -inf and lse +inf.
    """
    if attention.torch_is_compiling(q):
        return attention.torch_ops().prefill_in_graph(q, kv, indices, sm_scale, d_v, attn_sink,
                                                      topk_length)
    arrays = (q, kv, indices, attn_sink, topk_length)
    if not is_native(q):
        arrays = tuple(adopt(array, name) for array, name in zip(arrays, attention.PREFILL_NAMES))
    options = (attention.as_scale(sm_scale), d_v, True)
    return attention.run_prefill(arrays, options)
