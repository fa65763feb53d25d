"""Multi-head Latent Attention kernels for Hopper GPUs and CPUs.

FlashMLA's interface, also importable as `flash_mla`:

    metadata, num_splits = get_mla_metadata(cache_seqlens, s_q * h_q // h_kv, h_kv)
    out, lse = flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 512, metadata,
                                      num_splits, causal=True)

and, beyond it, decode() with an explicit plan, sparse_prefill(), merge(), pack_kv(), unpack_kv().
Arrays are torch tensors (CPU or CUDA), numpy arrays, or what speaks DLPack. The work is done by
libmla.so, a C library, through ctypes; torch is used where the caller's tensors are torch's.
"""

import sys

from .attention import decode, plan_decode, sparse_prefill
from .cache_rows import fp8_cache, merge, pack_kv, unpack_kv
from .device import DeviceInfo, device_info
from .drop_in import (
    FlashMLASchedMeta,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from .library import __version__
from .plans import Plan, PlanPart

if "torch" in sys.modules:  # torch.compile may come first, and traces no registrations
    from . import torch_ops  # noqa: F401

__all__ = [
    "DeviceInfo",
    "FlashMLASchedMeta",
    "Plan",
    "PlanPart",
    "__version__",
    "decode",
    "device_info",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "fp8_cache",
    "get_mla_metadata",
    "merge",
    "pack_kv",
    "plan_decode",
    "sparse_prefill",
    "unpack_kv",
]
