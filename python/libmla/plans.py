"""Schedules: how a batch is cut over threads or multiprocessors, built once a step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import abi
from .arrays import I32, adaptor_of
from .device import has_lost_threads
from .launch import describe, expect
from .library import check, lib

# A plan buffer is a header of 64 bytes and records of 32, so it is also an int32 table [n, 8].
_RECORD_INTS = 8
_RECORD_BYTES = 4 * _RECORD_INTS
_HEADER_RECORDS = 2
_MAGIC = 0x504C414D


class _Header(ctypes.Structure):
    """The first fields of a plan buffer; mla_plan_get_part() is the public way to the rest."""

    _fields_ = [("magic", ctypes.c_uint32), ("num_parts", ctypes.c_int32),
                ("max_parts", ctypes.c_int32), ("zero", ctypes.c_int32),
                ("num_reqs", ctypes.c_int64)]


@dataclass(frozen=True)
class PlanPart:
    """One part of a schedule; see mla_plan_part in mla.h."""

    begin_req: int
    end_req: int
    begin_block: int
    end_block: int
    num_splits: int
    num_blocks: int


def new_table(adaptor, num_bytes: int, like):
    """An int32 table [n, 8] with room for a plan, on the device of `like`."""
    records = -(-num_bytes // _RECORD_BYTES)
    return adaptor.maker((records, _RECORD_INTS), I32, like)()


def build(launch, lengths, plan, lengths_of_call) -> None:
    """mla_plan_build() with these structs, on the current stream; plan.buffer is set."""
    pointer = launch.adaptor.pointer
    seqlens, topk_length, extra_topk_length = lengths_of_call
    lengths.seqlens = None if seqlens is None else pointer(seqlens)
    lengths.topk_length = None if topk_length is None else pointer(topk_length)
    lengths.extra_topk_length = None if extra_topk_length is None else pointer(extra_topk_length)
    status = lib.mla_plan_build(launch.context, launch.problem_at, ctypes.addressof(lengths),
                                ctypes.addressof(plan), launch.stream())
    if status:
        check(status)


def host_table_serves(launch, table_at: int) -> bool:
    """Refuses host memory that holds no plan, or one of another batch.

    False where it may be the parent's of this forked process, cut for another number of threads.
    """
    header = _Header.from_address(table_at)
    if header.magic != _MAGIC:
        raise ValueError("tile_scheduler_metadata: holds no schedule of get_mla_metadata()")
    if header.num_reqs != launch.num_reqs:
        raise ValueError(f"tile_scheduler_metadata: was made for {header.num_reqs} requests, "
                         f"this call has {launch.num_reqs}")
    return not has_lost_threads()


class Plan:
    """The schedule of one batch, for every layer of a step. Made by plan_decode().

    table: the buffer, int32 [n, 8], on the device of the tensors. Its size depends on the shape
    and the device, never on lengths; it holds no pointers and may be copied.
    """

    def __init__(self, launch, like, table_bytes: int = 0):
        self._launch = launch
        self.table = new_table(launch.adaptor, max(table_bytes, launch.plan_bytes), like)
        if launch.is_empty:
            self.table[:] = 0  # nothing will fill it
        self._c_lengths = abi.Lengths()
        self._c_plan = abi.Plan(buffer=launch.adaptor.pointer(self.table),
                                buffer_bytes=launch.plan_bytes)
        self._c_plan_at = ctypes.addressof(self._c_plan)
        self._lengths = (None, None, None)
        self._versions = (None, None, None)
        self._capturing = launch.capturing()

    def _build(self, launch, lengths) -> None:
        if not launch.is_empty:
            build(launch, self._c_lengths, self._c_plan, lengths)
        self._lengths = lengths
        self._versions = self._versions_of(lengths)

    def _versions_of(self, lengths) -> tuple:
        version = self._launch.adaptor.version
        first, second, third = lengths  # spelled out: a loop would take twice the time
        return (None if first is None else version(first),
                None if second is None else version(second),
                None if third is None else version(third))

    def _fits(self, launch) -> bool:
        """True when the table may be rebuilt in place for this call.

        A plan built inside a capture exists only in replays of that graph, whose memory its table
        is in; one built outside would freeze the lengths of the capture. So the two never stand in
        for each other.
        """
        return (self._launch.problem_key == launch.problem_key
                and self._launch.context == launch.context
                and self._capturing == launch.capturing())

    def _is_current(self, lengths) -> bool:
        """True when the schedule was built from these very arrays and they have not changed."""
        was = self._lengths
        return (was[0] is lengths[0] and was[1] is lengths[1] and was[2] is lengths[2]
                and self._versions == self._versions_of(lengths))

    def __reduce_ex__(self, protocol):
        raise TypeError("a Plan holds addresses and cannot be copied or pickled; make another one "
                        "with plan_decode()")

    @property
    def batch_invariant(self) -> bool:
        return self._launch.problem.batch_invariant

    @property
    def num_parts(self) -> int:
        return self._launch.problem.num_parts

    @property
    def workspace_bytes(self) -> int:
        """What a `workspace` for calls with this plan must hold."""
        return self._launch.workspace_bytes

    def update(self, cache_seqlens=None, *, topk_length=None, extra_topk_length=None) -> Plan:
        """Rebuilds the schedule in place, on the current stream, for other lengths.

        Give what the plan was made with: cache_seqlens [batch] for dense decode, topk_length and
        extra_topk_length [batch] for sparse decode (None: all of topk). Inside a CUDA graph the
        replay rebuilds it from the lengths then in memory.
        """
        p = self._launch.problem
        given = {"cache_seqlens": cache_seqlens, "topk_length": topk_length,
                 "extra_topk_length": extra_topk_length}
        wanted = p.op == abi.OP_DENSE_DECODE
        if wanted != (cache_seqlens is not None):
            raise ValueError("cache_seqlens: " + ("is None; dense decode needs it" if wanted
                                                  else "is set; sparse decode takes topk_length"))
        for name, array in given.items():
            if array is not None:
                seen = describe(self._launch.adaptor, array, name)
                expect(seen, name, I32, self._launch.device, (p.batch,), "[batch]")
        self._build(self._launch, (cache_seqlens, topk_length, extra_topk_length))
        return self

    def parts(self) -> list[PlanPart]:
        """The schedule as a list, copied to the host: for looking at, not for the hot path."""
        if self._launch.is_empty:
            return []
        table = self.table
        host = table.cpu() if hasattr(table, "cpu") else table
        host = host.get() if hasattr(host, "get") else host
        raw = abi.Plan(buffer=adaptor_of(host, "table").pointer(host),
                       buffer_bytes=self._launch.plan_bytes)
        raw_at, count, part = ctypes.addressof(raw), ctypes.c_int64(), abi.PlanPart()
        check(lib.mla_plan_get_part(raw_at, 0, None, ctypes.addressof(count)))
        parts = []
        for i in range(count.value):
            check(lib.mla_plan_get_part(raw_at, i, ctypes.addressof(part), None))
            parts.append(PlanPart(*(getattr(part, name) for name, _ in abi.PlanPart._fields_)))
        return parts

    def num_splits(self):
        """FlashMLA's num_splits, int32 [batch + 1], cumulative: request i is in so many pieces."""
        p = self._launch.problem
        if self._launch.is_empty:
            return self.table.reshape(-1)[: p.batch + 1] * 0
        records = self.table[_HEADER_RECORDS : self._launch.plan_bytes // _RECORD_BYTES]
        return self._launch.adaptor.split_table(records, p.batch, self._launch.num_reqs)
