/* Query rows of a tile: which exist, where they lie, and storing accumulators to them. */
#ifndef MLA_CUDA_ROWS_CUH
#define MLA_CUDA_ROWS_CUH

#include "dense_args.h"
#include "ptx/warp.cuh"

/* A row by its number in the request (see mla_sm90_dense_args). */
struct mla_tile_row {
    int32_t token;
    int32_t head; /* in the group */
    bool exists;
};

/* a / b of numbers that are not negative, by the inverse of b (see mla_sm90_dense_args). */
__device__ __forceinline__ int32_t divide(int32_t a, uint64_t inverse)
{
    /* The upper half of the product of 64 bits, since a has 32: two multiplications. */
    const uint64_t low = (uint64_t)(uint32_t)a * (uint32_t)inverse >> 32;
    const uint64_t high = (uint64_t)(uint32_t)a * (uint32_t)(inverse >> 32) + low;
    return inverse == 0 ? a : (int32_t)(high >> 32);
}

__device__ __forceinline__ int32_t row_token(const mla_sm90_dense_args &args, int32_t row)
{
    return divide(row, args.group_pad_inverse);
}

__device__ __forceinline__ mla_tile_row tile_row(const mla_sm90_dense_args &args, int32_t row)
{
    mla_tile_row at;
    at.token = row_token(args, row);
    at.head = row - at.token * args.group_pad;
    at.exists = at.token < args.s_q && at.head < args.group;
    return at;
}

/* Offset of a row in a [batch, s_q, h_q] tensor of these strides; `req` counts as the plan does. */
__device__ __forceinline__ int64_t row_offset(const mla_sm90_dense_args &args,
                                              const int64_t *stride, int32_t req, int32_t kv_head,
                                              mla_tile_row at)
{
    const int32_t entry = divide(req, args.req_tokens_inverse);
    const int32_t token = at.token + req - entry * args.req_tokens;
    return entry * stride[0] + token * stride[1] +
           ((int64_t)kv_head * args.group + at.head) * stride[2];
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* The lse of a row to base e, from its reference and the sum of its numerators. */
__device__ __forceinline__ float natural_lse(const mla_sm90_dense_args &args, float ref, float sum)
{
    return sum == 0 ? args.lse_empty : (ref + mla_ptx::log2_approx(sum)) * 0.69314718055994531f;
}

/* What the sink leaves of a row whose logarithm of the sum, base 2, is finite. */
__device__ __forceinline__ float sink_factor(const mla_sm90_dense_args &args, int32_t kv_head,
                                             int32_t row, float lse_log2)
{
    const mla_tile_row at = tile_row(args, row);
    if (!at.exists) {
        return 1;
    }
    const float sink = args.attn_sink[kv_head * args.group + at.head];
    return 1 / (1 + exp2f(fmaf(sink, 1.4426950408889634f, -lse_log2)));
}

template <bool f16> __device__ __forceinline__ uint32_t pack_pair(float lo, float hi)
{
    return f16 ? mla_ptx::pack_f16(lo, hi) : mla_ptx::pack_bf16(lo, hi);
}

/*
 * Transposes 4 x 4 words among the four lanes of a quad: lane t ends with word t of every lane.
 * Accumulators give a lane two neighbouring columns of four groups of 8; afterwards it has all
 * eight columns of group t, one 16-byte store.
 */
__device__ __forceinline__ void quad_transpose(uint32_t (&x)[4])
{
    const int32_t lane = threadIdx.x % 4;
#pragma unroll
    for (int32_t bit = 1; bit <= 2; bit *= 2) {
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            const int32_t lo = bit == 1 ? 2 * i : i, hi = lo + bit;
            const uint32_t sent = upper ? x[lo] : x[hi];
            const uint32_t got = __shfl_xor_sync(0xffffffffu, sent, bit);
            x[lo] = upper ? got : x[lo];
            x[hi] = upper ? x[hi] : got;
        }
    }
}

/*
 * Stores 32 columns of the two rows of a lane: `acc` holds their four column groups, and they begin
 * `first_column` behind what `out0` and `out1` point to, which are null for rows that do not exist.
 */
template <bool f16>
__device__ __forceinline__ void store_columns(const float *acc, uint16_t *out0, uint16_t *out1,
                                              int32_t first_column, float factor0, float factor1)
{
    uint32_t row0[4], row1[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        row0[i] = pack_pair<f16>(acc[4 * i] * factor0, acc[4 * i + 1] * factor0);
        row1[i] = pack_pair<f16>(acc[4 * i + 2] * factor1, acc[4 * i + 3] * factor1);
    }
    quad_transpose(row0);
    quad_transpose(row1);
    const int32_t column = first_column + (int32_t)threadIdx.x % 4 * 8;
    if (out0 != nullptr) {
        *(uint4 *)(out0 + column) = make_uint4(row0[0], row0[1], row0[2], row0[3]);
    }
    if (out1 != nullptr) {
        *(uint4 *)(out1 + column) = make_uint4(row1[0], row1[1], row1[2], row1[3]);
    }
}

#endif
