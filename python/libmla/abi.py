"""include/mla.h in ctypes: enums, structs and prototypes, in the header's order and with its names.

python/tests/test_abi.py compares every size and offset here with what a C compiler says.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_char_p, c_int, c_void_p

OK = 0
ERR_INVALID_ARGUMENT = 1
ERR_UNSUPPORTED = 2
ERR_BUFFER_TOO_SMALL = 3
ERR_PLAN_MISMATCH = 4
ERR_OUT_OF_MEMORY = 5
ERR_DEVICE = 6

BACKEND_AUTO = 0
BACKEND_CPU = 1
BACKEND_CUDA = 2

ISA_REFERENCE = 1 << 0
ISA_PORTABLE = 1 << 1
ISA_AVX2 = 1 << 2
ISA_AVX512 = 1 << 3
ISA_AVX512_BF16 = 1 << 4
ISA_AMX_BF16 = 1 << 5

OP_DENSE_DECODE = 1
OP_SPARSE_DECODE = 2
OP_SPARSE_PREFILL = 3

DTYPE_BF16 = 1
DTYPE_F16 = 2
DTYPE_F32 = 3

KV_NATIVE = 0
KV_FP8_656 = 1
KV_FP8_584 = 2

BLOCK_TOKENS = 64
VERSION = (0, 1)  # major and minor of the header that this file mirrors

Stride3 = c_int64 * 3
Stride2 = c_int64 * 2


class _Struct(ctypes.Structure):
    """An argument struct: struct_size is set, every other field begins as zero, its default."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


class CtxParams(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int),
        ("device", c_int32),
        ("num_threads", c_int32),
        ("isa_mask", c_uint32),
    ]


class Info(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int),
        ("device", c_int32),
        ("device_name", c_char * 128),
        ("num_threads", c_int32),
        ("isa_available", c_uint32),
        ("isa_allowed", c_uint32),
        ("isa_used", c_int),
        ("num_sms", c_int32),
        ("driver_version", c_int32),
        ("memory_bytes", c_int64),
    ]


class Problem(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int),
        ("dtype", c_int),
        ("kv_format", c_int),
        ("batch", c_int64),
        ("s_q", c_int64),
        ("h_q", c_int64),
        ("h_kv", c_int64),
        ("d_qk", c_int64),
        ("d_v", c_int64),
        ("page_size", c_int64),
        ("topk", c_int64),
        ("extra_page_size", c_int64),
        ("extra_topk", c_int64),
        ("softmax_scale", c_double),
        ("num_parts", c_int32),
        ("causal", c_bool),
        ("batch_invariant", c_bool),
        ("lse_empty_pos_inf", c_bool),
    ]


class Sizes(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("plan_bytes", c_size_t),
        ("workspace_bytes", c_size_t),
    ]


class Lengths(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("seqlens", c_void_p),
        ("topk_length", c_void_p),
        ("extra_topk_length", c_void_p),
    ]


class Plan(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("buffer", c_void_p),
        ("buffer_bytes", c_size_t),
        ("problem", Problem),
        ("context_id", c_uint64),
    ]


class PlanPart(ctypes.Structure):
    _fields_ = [
        ("begin_req", c_int64),
        ("end_req", c_int64),
        ("begin_block", c_int32),
        ("end_block", c_int32),
        ("num_splits", c_int32),
        ("num_blocks", c_int32),
    ]


class Pool(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("num_pages", c_int64),
        ("stride", Stride3),
    ]


class Tensors(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("q_stride", Stride3),
        ("kv", Pool),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("max_pages", c_int64),
        ("seqlens", c_void_p),
        ("indices", c_void_p),
        ("indices_stride", Stride3),
        ("topk_length", c_void_p),
        ("extra_kv", Pool),
        ("extra_indices", c_void_p),
        ("extra_indices_stride", Stride3),
        ("extra_topk_length", c_void_p),
        ("attn_sink", c_void_p),
        ("out", c_void_p),
        ("out_stride", Stride3),
        ("lse", c_void_p),
        ("lse_stride", Stride3),
        ("max_logits", c_void_p),
    ]


class MergeArgs(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_parts", c_int64),
        ("batch", c_int64),
        ("s_q", c_int64),
        ("h_q", c_int64),
        ("d_v", c_int64),
        ("part_dtype", c_int),
        ("part_outs", POINTER(c_void_p)),
        ("part_lses", POINTER(c_void_p)),
        ("part_out_stride", Stride3),
        ("part_lse_stride", Stride3),
        ("out_dtype", c_int),
        ("out", c_void_p),
        ("out_stride", Stride3),
        ("lse", c_void_p),
        ("lse_stride", Stride3),
        ("lse_empty_pos_inf", c_bool),
    ]


class PackArgs(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kv_format", c_int),
        ("dtype", c_int),
        ("num_tokens", c_int64),
        ("h_kv", c_int64),
        ("d_qk", c_int64),
        ("page_size", c_int64),
        ("num_pages", c_int64),
        ("rows", c_void_p),
        ("rows_stride", Stride2),
        ("cache", c_void_p),
        ("cache_stride", Stride3),
        ("slots", c_void_p),
    ]


# The C name of each struct above, for the test that compares layouts.
C_NAMES = {
    CtxParams: "mla_ctx_params",
    Info: "mla_info",
    Problem: "mla_problem",
    Sizes: "mla_sizes",
    Lengths: "mla_lengths",
    Plan: "mla_plan",
    PlanPart: "mla_plan_part",
    Pool: "mla_pool",
    Tensors: "mla_tensors",
    MergeArgs: "mla_merge_args",
    PackArgs: "mla_pack_args",
}

# Structs are passed as addresses: converting an int costs less than converting a byref().
PROTOTYPES = {
    "mla_status_name": (c_char_p, [c_int]),
    "mla_last_error": (c_char_p, []),
    "mla_version": (c_int32, []),
    "mla_isa_name": (c_char_p, [c_int]),
    "mla_ctx_create": (c_int, [c_void_p, c_void_p]),
    "mla_ctx_destroy": (None, [c_void_p]),
    "mla_ctx_get_info": (c_int, [c_void_p, c_void_p]),
    "mla_device_count": (c_int, [c_int, c_void_p]),
    "mla_supports": (c_int, [c_void_p, c_void_p]),
    "mla_get_sizes": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mla_plan_build": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "mla_plan_attach": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mla_plan_get_part": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "mla_run": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "mla_merge": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mla_pack": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mla_unpack": (c_int, [c_void_p, c_void_p, c_void_p]),
    "mla_page_bytes": (c_int64, [c_int, c_int, c_int64, c_int64, c_int64]),
}
