"""numpy, torch and CuPy arrays behind one small interface: what the calls need to know of them.

Each adaptor is stateless. signature() and pointer() are on the path of every call and do no more
than read attributes; describe() is for the checks that a new signature goes through once.
"""

from __future__ import annotations

import math
import sys
from ctypes import addressof, c_char
from functools import partial
from typing import Any, NamedTuple

import numpy as np

# Element kinds, named once for all frameworks.
BF16, F16, F32, I32, I64, BYTE = "bfloat16", "float16", "float32", "int32", "int64", "byte"


class Described(NamedTuple):
    """What an array is: strides are in elements."""

    shape: tuple
    stride: tuple
    kind: str | None  # one of the element kinds above; None: another type
    dtype: Any  # the framework's own, for messages
    device: tuple  # ("cpu", 0) or ("cuda", ordinal)


# numpy has no bfloat16: its bits travel as uint16, or as ml_dtypes.bfloat16 where that is there.
_NUMPY_KINDS = {
    "bfloat16": BF16,
    "uint16": BF16,
    "float16": F16,
    "float32": F32,
    "int32": I32,
    "int64": I64,
    "uint8": BYTE,
    "int8": BYTE,
    "float8_e4m3fn": BYTE,
}
_NUMPY_TYPES = {BF16: np.uint16, F16: np.float16, F32: np.float32, I32: np.int32, BYTE: np.uint8}


def _type_like(like, kind):
    return like.dtype if _NUMPY_KINDS.get(like.dtype.name) == kind else _NUMPY_TYPES[kind]


def _element_strides(array) -> tuple:
    """Strides of an array that counts them in bytes. Those of an empty array say nothing."""
    if not array.dtype.isnative:
        raise TypeError(f"dtype must be of this machine's byte order, got {array.dtype.str}")
    if array.size == 0:
        sizes = [max(size, 1) for size in array.shape]
        return tuple(math.prod(sizes[i + 1 :]) for i in range(array.ndim))
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise ValueError(f"strides {array.strides} in bytes are not multiples of the element size")
    return tuple(stride // size for stride in array.strides)


class NumpyArrays:
    """numpy on the CPU."""

    name = "numpy"
    tracks_capture = False
    tracks_grad = False

    @staticmethod
    def signature(array):
        return array.shape, array.strides, array.dtype

    @staticmethod
    def pointer(array) -> int:
        # The buffer protocol is three times as quick, but serves writable, contiguous arrays of
        # types that it knows.
        try:
            return addressof(c_char.from_buffer(array))
        except (TypeError, ValueError):
            return array.ctypes.data

    @staticmethod
    def describe(array) -> Described:
        kind = _NUMPY_KINDS.get(array.dtype.name)
        return Described(array.shape, _element_strides(array), kind, array.dtype, ("cpu", 0))

    @staticmethod
    def maker(shape, kind, like):
        """Makes new arrays, uninitialised, on the device of `like` and of its type if that fits."""
        return partial(np.empty, shape, _type_like(like, kind))

    @staticmethod
    def writable(array) -> bool:
        return array.flags.writeable

    @staticmethod
    def stream(device) -> int:
        return 0

    @staticmethod
    def version(array):
        """What compares unequal once the contents changed. numpy keeps no count: always unequal."""
        return object()

    @staticmethod
    def split_table(records, batch, num_reqs):
        return _split_table(np, records, batch, num_reqs)


def _split_table(module, records, batch, num_reqs):
    """Of plan records int32 [n, 8]: cumulative split counts of the requests, int32 [batch + 1]."""
    # mla_plan_part: end_req is the second int64; num_splits, for the request it cuts, int32 6.
    end_req, splits = records[:, :4].copy().view(np.int64)[:, 1], records[:, 6]
    counts = module.ones(num_reqs, np.int32)
    counts[end_req[splits > 0]] = splits[splits > 0]
    table = module.zeros(batch + 1, np.int32)
    table[1:] = module.cumsum(counts.reshape(batch, -1).sum(1))
    return table


class CupyArrays:
    """CuPy on CUDA devices, where torch is not in use."""

    name = "cupy"
    tracks_capture = False
    tracks_grad = False

    @staticmethod
    def signature(array):
        return array.shape, array.strides, array.dtype, array.device.id

    @staticmethod
    def pointer(array) -> int:
        return array.data.ptr

    @staticmethod
    def describe(array) -> Described:
        kind = _NUMPY_KINDS.get(array.dtype.name)
        device = ("cuda", array.device.id)
        return Described(array.shape, _element_strides(array), kind, array.dtype, device)

    @staticmethod
    def maker(shape, kind, like):
        import cupy

        dtype, device = _type_like(like, kind), like.device

        def make():
            with device:
                return cupy.empty(shape, dtype)

        return make

    @staticmethod
    def writable(array) -> bool:
        return True

    @staticmethod
    def stream(device) -> int:
        import cupy

        with cupy.cuda.Device(device):
            return cupy.cuda.get_current_stream().ptr

    @staticmethod
    def version(array):
        return object()

    @staticmethod
    def split_table(records, batch, num_reqs):
        import cupy

        with records.device:
            return _split_table(cupy, records, batch, num_reqs)


_adaptors: dict[type, Any] = {np.ndarray: NumpyArrays}


def adaptor_of(array, name: str):
    """The adaptor of an array's type; TypeError naming the argument for what is no array."""
    found = _adaptors.get(type(array))
    if found is None:
        found = _find_adaptor(array, name)
        _adaptors[type(array)] = found
    return found


def _find_adaptor(array, name: str):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from .torch_arrays import TorchArrays

        return TorchArrays
    if isinstance(array, np.ndarray):
        return NumpyArrays
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return CupyArrays
    raise TypeError(f"{name}: expected a torch tensor or a numpy array, got {type(array).__name__}")


def is_native(array) -> bool:
    """True for what needs no adopt(): None and arrays that an adaptor serves as they are."""
    if array is None or type(array) in _adaptors:
        return True
    modules = sys.modules
    return (
        isinstance(array, np.ndarray)
        or ("torch" in modules and isinstance(array, modules["torch"].Tensor))
        or ("cupy" in modules and isinstance(array, modules["cupy"].ndarray))
    )


def adopt(array, name: str):
    """A view, without a copy, of another library's array (JAX and all that speak DLPack)."""
    if is_native(array):
        return array
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(f"{name}: expected an array, got {type(array).__name__}")
    device_type, _ = array.__dlpack_device__()
    if device_type == 1:  # kDLCPU
        # The array protocol knows ml_dtypes' bfloat16, which DLPack into numpy does not.
        try:
            return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{name}: numpy cannot take it through DLPack: {error}") from None
    if device_type != 2:  # kDLCUDA
        raise NotImplementedError(f"{name}: DLPack device type {device_type} is not supported")
    for module_name in ("torch", "cupy"):
        try:
            module = __import__(module_name)
        except ImportError:
            continue
        return module.from_dlpack(array)
    raise NotImplementedError(f"{name}: GPU arrays need torch or cupy, which allocate the outputs")
