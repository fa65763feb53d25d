"""The adaptor for torch tensors; imported only once torch is."""

from __future__ import annotations

import warnings
from functools import partial

import torch

from .arrays import BF16, BYTE, F16, F32, I32, I64, Described

_KINDS = {
    torch.bfloat16: BF16,
    torch.float16: F16,
    torch.float32: F32,
    torch.int32: I32,
    torch.int64: I64,
    torch.uint8: BYTE,
    torch.int8: BYTE,
    torch.float8_e4m3fn: BYTE,
}
_TYPES = {
    BF16: torch.bfloat16,
    F16: torch.float16,
    F32: torch.float32,
    I32: torch.int32,
    BYTE: torch.uint8,
}


def _current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# What torch's own compiler calls: the same number without making a Stream object.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)
_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


class TorchArrays:
    """torch on the CPU and on CUDA devices."""

    name = "torch"
    tracks_capture = True
    tracks_grad = True

    @staticmethod
    def signature(tensor):
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()

    @staticmethod
    def pointer(tensor) -> int:
        return tensor.data_ptr()

    @staticmethod
    def describe(tensor) -> Described:
        if tensor.layout is not torch.strided:
            raise TypeError(f"expected a dense tensor, got layout {tensor.layout}")
        if tensor.is_neg():
            # The memory holds the values with the other sign.
            raise ValueError("is a lazily negated view; pass its resolve_neg()")
        device = (tensor.device.type, tensor.device.index or 0)
        kind = _KINDS.get(tensor.dtype)
        return Described(tuple(tensor.shape), tensor.stride(), kind, tensor.dtype, device)

    @staticmethod
    def maker(shape, kind, like):
        # Likeness to a tensor is quicker than a shape, a dtype and a device; one element is enough.
        one = torch.empty(1, dtype=_TYPES[kind], device=like.device).expand(shape)
        return partial(torch.empty_like, one, memory_format=torch.contiguous_format)

    @staticmethod
    def writable(tensor) -> bool:
        return not (tensor.requires_grad and tensor.is_leaf)

    @staticmethod
    def stream(device: int) -> int:
        return _raw_stream(device)

    @staticmethod
    def capturing() -> bool:
        return _capturing()

    @staticmethod
    def version(tensor):
        """Torch counts in-place changes, but not of tensors made in inference mode.

        Those pass for changed on the CPU, where building a plan costs nothing beside the call, and
        for unchanged on a GPU, where engines take a new schedule each step.
        """
        if tensor.is_inference():
            return None if tensor.is_cuda else object()
        return tensor._version

    @staticmethod
    def warn_of_grad(tensor) -> None:
        if tensor.requires_grad and torch.is_grad_enabled():
            warnings.warn("q requires grad, but libmla has no backward pass: out and lse carry no "
                          "gradient. Call it under torch.no_grad() or torch.inference_mode().",
                          stacklevel=4)

    @staticmethod
    def split_table(records, batch, num_reqs):
        # As _split_table() of arrays.py, without the masks, whose sizes the host would wait for.
        end_req = records[:, :4].view(torch.int64)[:, 1].clamp(0, num_reqs)
        counts = torch.ones(num_reqs + 1, dtype=torch.int32, device=records.device)
        counts.scatter_reduce_(0, end_req, records[:, 6].clamp(min=1), "amax")
        table = torch.zeros(batch + 1, dtype=torch.int32, device=records.device)
        per_request = counts[:num_reqs].view(batch, -1).sum(1)
        torch.cumsum(per_request, 0, dtype=torch.int32, out=table[1:])
        return table
