/*
 * Writes rows into a cache and reads them back (mla_pack, mla_unpack), in any row format of
 * mla_kv_format. A warp has one row; a lane has 16 of its FP8 values, so that a group that shares a
 * scale is 8 lanes (656-byte rows) or 4 (584-byte rows). Bound by HBM.
 */
#include "formats.h"
#include "row_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { LANE_VALUES = 16 };

/* Where one KV head of one token lies on both sides. */
struct placed_row {
    uint16_t *values;
    uint8_t *data;
    uint8_t *page; /* of 584-byte rows: scales follow all data rows of the page */
    int64_t in_page;
};

/* False when there is no such row, its slot is to be skipped, or lies outside the cache. */
__device__ __forceinline__ bool place_row(const mla_sm90_pack_args &args, placed_row &row)
{
    const int64_t i = (int64_t)blockIdx.x * (MLA_SM90_ROW_THREADS / 32) + threadIdx.x / 32;
    if (i >= args.num_rows) {
        return false;
    }
    const int64_t token = i / args.h_kv, head = i % args.h_kv;
    const int64_t slot = args.slots != nullptr ? args.slots[token] : token;
    if (slot < 0 || slot >= args.num_slots) {
        return false;
    }
    row.in_page = slot % args.page_size;
    row.page = args.cache + slot / args.page_size * args.cache_stride[0];
    row.data = row.page + row.in_page * args.cache_stride[1] + head * args.cache_stride[2];
    row.values = args.rows + token * args.rows_stride[0] + head * args.rows_stride[1];
    return true;
}

/* What tells the two FP8 formats apart. */
struct fp8_layout {
    int32_t latents, group_lanes, rope_at;
    uint8_t *scale; /* of this lane's group */
};

__device__ __forceinline__ fp8_layout lay_out(const mla_sm90_pack_args &args, const placed_row &row,
                                              int32_t lane)
{
    if (args.kv_format == MLA_KV_FP8_656) {
        const int32_t group_lanes = MLA_FP8_656_GROUP / LANE_VALUES;
        return {MLA_FP8_656_LATENT, group_lanes, MLA_FP8_656_ROPE_AT,
                row.data + MLA_FP8_656_SCALES_AT + lane / group_lanes * 4};
    }
    const int32_t group_lanes = MLA_FP8_584_GROUP / LANE_VALUES;
    return {MLA_FP8_584_LATENT, group_lanes, MLA_FP8_584_ROPE_AT,
            row.page + args.page_size * MLA_FP8_584_DATA_BYTES +
                row.in_page * MLA_FP8_584_SCALE_BYTES + lane / group_lanes};
}

__device__ __forceinline__ float bf16_value(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* The writers' rule of the manual: 2^ceil(log2(max(amax / 448, 1e-4))), as an exponent. */
__device__ __forceinline__ int32_t writer_exponent(float amax)
{
    int32_t exponent;
    const float least = fmaxf(fminf(amax, 3.38953139e38f) / 448.0f, 1e-4f);
    const float fraction = frexpf(least, &exponent);
    return fraction == 0.5f ? exponent - 1 : exponent;
}

__device__ __forceinline__ void pack_fp8(const mla_sm90_pack_args &args, const placed_row &row,
                                         int32_t lane)
{
    const fp8_layout layout = lay_out(args, row, lane);
    const uint16_t *from = row.values + lane * LANE_VALUES;
    const bool has_latents = lane * LANE_VALUES < layout.latents;
    float values[LANE_VALUES], amax = 0;
#pragma unroll
    for (int32_t i = 0; i < LANE_VALUES; ++i) {
        values[i] = has_latents ? bf16_value(from[i]) : 0;
        amax = fmaxf(amax, fabsf(values[i])); /* drops NaN */
    }
    for (int32_t lanes = 1; lanes < layout.group_lanes; lanes *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, lanes));
    }
    const int32_t exponent = writer_exponent(amax);
    if (has_latents) {
#pragma unroll
        for (int32_t i = 0; i < LANE_VALUES; ++i) {
            row.data[lane * LANE_VALUES + i] = __nv_cvt_float_to_fp8(ldexpf(values[i], -exponent),
                                                                     __NV_SATFINITE, __NV_E4M3);
        }
        if (lane % layout.group_lanes == 0) {
            if (args.kv_format == MLA_KV_FP8_656) {
                *(float *)layout.scale = ldexpf(1.0f, exponent);
            } else {
                *layout.scale = (uint8_t)(exponent + 127);
            }
        }
    } else if (args.kv_format == MLA_KV_FP8_584 && lane == MLA_FP8_584_LATENT / LANE_VALUES) {
        *layout.scale = 0; /* the pad byte, where an eighth group's scale would be */
    }
    const uint16_t *rope = row.values + layout.latents;
    uint16_t *to = (uint16_t *)(row.data + layout.rope_at);
    to[lane] = rope[lane];
    to[lane + 32] = rope[lane + 32];
}

__device__ __forceinline__ float read_scale(const mla_sm90_pack_args &args,
                                            const fp8_layout &layout)
{
    if (args.kv_format == MLA_KV_FP8_656) {
        return *(const float *)layout.scale;
    }
    const uint32_t bits = *layout.scale; /* e8m0: 0 is 2^-127, a subnormal; 255 is NaN */
    return __uint_as_float(bits == 0 ? 0x00400000u : bits == 255 ? 0x7fc00000u : bits << 23);
}

__device__ __forceinline__ void unpack_fp8(const mla_sm90_pack_args &args, const placed_row &row,
                                           int32_t lane)
{
    const fp8_layout layout = lay_out(args, row, lane);
    uint16_t *to = row.values + lane * LANE_VALUES;
    if (lane * LANE_VALUES < layout.latents) {
        const float scale = read_scale(args, layout);
#pragma unroll
        for (int32_t i = 0; i < LANE_VALUES; ++i) {
            const __half_raw half = __nv_cvt_fp8_to_halfraw(row.data[lane * LANE_VALUES + i],
                                                            __NV_E4M3);
            const float value = scale == 0 ? 0 : __half2float(__half(half)) * scale;
            to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
        }
    }
    const uint16_t *rope = (const uint16_t *)(row.data + layout.rope_at);
    row.values[layout.latents + lane] = rope[lane];
    row.values[layout.latents + lane + 32] = rope[lane + 32];
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_ROW_THREADS)
    mla_sm90_pack(const __grid_constant__ mla_sm90_pack_args args)
{
    const int32_t lane = threadIdx.x % 32;
    placed_row row;
    if (!place_row(args, row)) {
        return;
    }
    if (args.kv_format != MLA_KV_NATIVE) {
        pack_fp8(args, row, lane);
        return;
    }
    for (int32_t i = lane; i < args.d_qk; i += 32) {
        ((uint16_t *)row.data)[i] = row.values[i];
    }
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_ROW_THREADS)
    mla_sm90_unpack(const __grid_constant__ mla_sm90_pack_args args)
{
    const int32_t lane = threadIdx.x % 32;
    placed_row row;
    if (!place_row(args, row)) {
        return;
    }
    if (args.kv_format != MLA_KV_NATIVE) {
        unpack_fp8(args, row, lane);
        return;
    }
    for (int32_t i = lane; i < args.d_qk; i += 32) {
        row.values[i] = ((const uint16_t *)row.data)[i];
    }
}
