"""Contexts: one per device, made when first needed and kept for the life of the process."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from dataclasses import dataclass

from . import abi
from .library import check, lib

_BACKENDS = {"cpu": abi.BACKEND_CPU, "cuda": abi.BACKEND_CUDA}


@dataclass(frozen=True)
class DeviceInfo:
    """What a context runs on; see mla_info in mla.h."""

    backend: str
    device: int
    name: str
    num_threads: int
    isa_available: tuple
    isa_used: str
    num_sms: int
    driver_version: int
    memory_bytes: int


class Context:
    """A context of the C library. Calls find the one of their tensors' device by themselves."""

    def __init__(self, backend: str, device: int = 0, *, num_threads: int = 0, isa_mask: int = 0):
        if backend not in _BACKENDS:
            raise ValueError(f"backend = {backend!r}: must be 'cpu' or 'cuda'")
        params = abi.CtxParams(
            backend=_BACKENDS[backend], device=device, num_threads=num_threads, isa_mask=isa_mask
        )
        handle = ctypes.c_void_p()
        check(lib.mla_ctx_create(ctypes.addressof(params), ctypes.addressof(handle)))
        self.handle = handle.value
        self.backend = backend
        self.device = device

    def info(self) -> DeviceInfo:
        raw = abi.Info()
        check(lib.mla_ctx_get_info(self.handle, ctypes.addressof(raw)))
        names = [
            lib.mla_isa_name(1 << bit).decode()
            for bit in range(6)
            if raw.isa_available >> bit & 1
        ]
        return DeviceInfo(
            backend=self.backend,
            device=raw.device,
            name=raw.device_name.decode(errors="replace"),
            num_threads=raw.num_threads,
            isa_available=tuple(names),
            isa_used=lib.mla_isa_name(raw.isa_used).decode() if raw.isa_used else "",
            num_sms=raw.num_sms,
            driver_version=raw.driver_version,
            memory_bytes=raw.memory_bytes,
        )


_contexts: dict[tuple, Context] = {}
_lock = threading.Lock()
_CPU = ("cpu", 0)
_lost_threads = False


def _after_fork_in_child() -> None:
    """The threads of the parent's contexts did not come along, and OpenMP would wait for them."""
    global _lock, _lost_threads
    _lock = threading.Lock()  # another thread may have held it
    mine = _contexts.get(_CPU)
    _lost_threads = _lost_threads or (mine is not None and mine.info().num_threads > 1)
    _contexts.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def has_lost_threads() -> bool:
    """Whether this process was forked from one that may have started OpenMP's threads."""
    return _lost_threads


def _new_context(device: tuple) -> Context:
    if device != _CPU or not _lost_threads:
        return Context(*device)
    warnings.warn("libmla computes with one thread in this process, which was forked from one that "
                  "had used libmla: OpenMP's threads do not survive a fork. Start processes with "
                  "the 'spawn' or 'forkserver' method to use them all.", RuntimeWarning,
                  stacklevel=2)
    return Context(*device, num_threads=1)


def context_of(device: tuple) -> Context:
    """The context of ("cpu", 0) or ("cuda", ordinal)."""
    found = _contexts.get(device)
    if found is None:
        if device[0] not in _BACKENDS:
            raise NotImplementedError(f"device {device[0]}: libmla has CPU and CUDA backends")
        with _lock:
            found = _contexts.get(device)
            if found is None:
                found = _contexts[device] = _new_context(device)
    return found


def device_info(device: str = "cpu", index: int = 0) -> DeviceInfo:
    """What libmla knows of a device ("cpu" or "cuda"); raises where it cannot be used."""
    return context_of((device, index)).info()


class _Scratch(threading.local):
    """Host workspaces: one for each thread, since a workspace serves one call at a time."""

    def __init__(self):
        self.buffer = None
        self.address = 0
        self.bytes = 0

    def reserve(self, size: int) -> int:
        if size > self.bytes:
            self.buffer = ctypes.create_string_buffer(size + 63)
            self.address = (ctypes.addressof(self.buffer) + 63) & ~63
            self.bytes = size
        return self.address


host_scratch = _Scratch()
