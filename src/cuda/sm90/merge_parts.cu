/*
 * Joins the results of attention over disjoint sets of keys (mla_merge). A warp has one row: its
 * lanes first share the parts' lse, then the row's 512 columns. Bound by HBM.
 */
#include "row_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { D_V = 512, COLUMNS = D_V / 32 };

__device__ __forceinline__ float load_value(mla_dtype dtype, const void *base, int64_t idx)
{
    switch (dtype) {
    case MLA_DTYPE_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)base)[idx]);
    case MLA_DTYPE_F16:
        return __half2float(((const __half *)base)[idx]);
    default:
        return ((const float *)base)[idx];
    }
}

__device__ __forceinline__ void store_value(mla_dtype dtype, void *base, int64_t idx, float value)
{
    switch (dtype) {
    case MLA_DTYPE_BF16:
        ((__nv_bfloat16 *)base)[idx] = __float2bfloat16_rn(value);
        break;
    case MLA_DTYPE_F16:
        ((__half *)base)[idx] = __float2half_rn(value);
        break;
    default:
        ((float *)base)[idx] = value;
    }
}

__device__ __forceinline__ int64_t row_at(const mla_sm90_merge_args &args, const int64_t *stride,
                                          int64_t row)
{
    return row / (args.s_q * args.h_q) * stride[0] + row / args.h_q % args.s_q * stride[1] +
           row % args.h_q * stride[2];
}

/* Largest lse of the parts that have keys; NaN if any is, -INFINITY if none has. */
__device__ __forceinline__ float largest_lse(const mla_sm90_merge_args &args, int64_t at)
{
    float most = -INFINITY;
    for (int32_t i = threadIdx.x % 32; i < args.num_parts; i += 32) {
        const float lse = args.part_lses[i][at];
        most = !isinf(lse) && !(lse <= most) ? lse : most;
    }
    for (int32_t lanes = 16; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, lanes);
        most = isnan(most) || other <= most ? most : other;
    }
    return most;
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_ROW_THREADS)
    mla_sm90_merge(const __grid_constant__ mla_sm90_merge_args args)
{
    const int32_t lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * (MLA_SM90_ROW_THREADS / 32) + threadIdx.x / 32;
    if (row >= args.num_rows) {
        return;
    }
    const int64_t lse_at = row_at(args, args.part_lse_stride, row);
    const int64_t part_at = row_at(args, args.part_out_stride, row) + lane;
    const int64_t out_at = row_at(args, args.out_stride, row) + lane;
    const float most = largest_lse(args, lse_at);
    float sum = 0, values[COLUMNS] = {};
    for (int32_t i = 0; i < args.num_parts; ++i) {
        const float lse = args.part_lses[i][lse_at];
        if (isinf(lse)) {
            continue; /* no keys: what this part's out holds is not read */
        }
        const float weight = expf(lse - most);
        sum += weight;
#pragma unroll
        for (int32_t j = 0; j < COLUMNS; ++j) {
            values[j] += weight * load_value(args.part_dtype, args.part_outs[i], part_at + 32 * j);
        }
    }
    const bool empty = most == -INFINITY;
#pragma unroll
    for (int32_t j = 0; j < COLUMNS; ++j) {
        store_value(args.out_dtype, args.out, out_at + 32 * j, empty ? 0 : values[j] / sum);
    }
    if (lane == 0 && args.lse != nullptr) {
        args.lse[row_at(args, args.lse_stride, row)] = empty ? args.lse_empty : most + logf(sum);
    }
}
