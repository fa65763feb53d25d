/*
 * Merges the partial results of split requests: lse = log2 sum 2^lse_i, out = sum 2^(lse_i - lse)
 * out_i, once over all splits, in their order.
 *
 * A unit is one row tile of one split request and 32 of its columns. A CTA's 16 warps are 4 x 16
 * rows times 4 shares of the splits, added up through shared memory in a fixed order. It is
 * launched while the decode kernel still runs and waits for it on the device.
 */
#include "dense_args.h"
#include "ptx/tma.cuh"
#include "rows.cuh"

enum {
    THREADS = MLA_SM90_COMBINE_THREADS,
    SHARES = THREADS / 128,  /* warps that divide the splits of the same rows */
    COLUMN_UNITS = MLA_SM90_COMBINE_UNITS,
    LANES_A_ROW = THREADS / MLA_SM90_TILE_ROWS
};

/* The split request of a unit. */
struct split_request {
    int32_t first_part; /* its first piece is partial 1 there, partial 0 of the parts that follow */
    int32_t num_splits;
    int32_t req;
    int32_t kv_head, tile;
};

__device__ __forceinline__ const mla_plan_part *parts_of(const mla_sm90_dense_args &args)
{
    return (const mla_plan_part *)(args.plan + 1);
}

/* Number of a partial, or -1 when that part holds no block of the request. */
__device__ __forceinline__ int64_t partial_of(const mla_sm90_dense_args &args,
                                              const split_request &split, int32_t i)
{
    const int32_t part_idx = split.first_part + i;
    const mla_plan_part &part = parts_of(args)[part_idx];
    if (i > 0 && part.begin_req == part.end_req && part.begin_block == part.end_block) {
        return -1;
    }
    const int64_t partial = mla_plan_partial_idx(part_idx, i == 0 ? 0 : 1);
    return (partial * args.h_kv + split.kv_head) * args.row_tiles + split.tile;
}

/* The n-th part, from 0, with which a split request begins. All threads of a warp. */
__device__ int32_t nth_split(const mla_sm90_dense_args &args, int32_t n)
{
    const int32_t lane = threadIdx.x % 32, num_parts = args.plan->num_parts;
    for (int32_t first = 0; first < num_parts; first += 32) {
        const bool begins = first + lane < num_parts && parts_of(args)[first + lane].num_splits > 0;
        uint32_t found = __ballot_sync(0xffffffffu, begins);
        if (n < __popc(found)) {
            for (; n > 0; --n) {
                found &= found - 1;
            }
            return first + __ffs(found) - 1;
        }
        n -= __popc(found);
    }
    return -1;
}

/* lse of each row over all splits, to shared memory; LANES_A_ROW lanes share a row. */
__device__ __forceinline__ void merge_lse(const mla_sm90_dense_args &args,
                                          const split_request &split, float *row_lse)
{
    const int32_t row = threadIdx.x / LANES_A_ROW, lane = threadIdx.x % LANES_A_ROW;
    float top = -INFINITY, sum = 0;
    for (int32_t i = lane; i < split.num_splits; i += LANES_A_ROW) {
        const int64_t partial = partial_of(args, split, i);
        const float lse =
            partial < 0 ? -INFINITY : args.partial_lse[partial * MLA_SM90_TILE_ROWS + row];
        if (lse != -INFINITY) {
            const float higher = fmaxf(top, lse);
            sum = sum * exp2f(top - higher) + exp2f(lse - higher);
            top = higher;
        }
    }
    float whole = top;
#pragma unroll
    for (int32_t lanes = 1; lanes < LANES_A_ROW; lanes *= 2) {
        whole = fmaxf(whole, __shfl_xor_sync(0xffffffffu, whole, lanes));
    }
    sum = sum == 0 ? 0 : sum * exp2f(top - whole);
#pragma unroll
    for (int32_t lanes = 1; lanes < LANES_A_ROW; lanes *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    }
    if (lane == 0) {
        row_lse[row] = whole + log2f(sum);
    }
}

/* This warp's share of the splits, weighted, for two rows and 4 column groups a lane. */
__device__ __forceinline__ void add_share(const mla_sm90_dense_args &args,
                                          const split_request &split, const float *row_lse,
                                          int32_t row_warp, int32_t share, int32_t unit,
                                          float (&acc)[16])
{
    const int32_t lane = threadIdx.x % 32, row = row_warp * 16 + lane / 4;
    const float lse0 = row_lse[row], lse1 = row_lse[row + 8];
#pragma unroll 4
    for (int32_t i = share; i < split.num_splits; i += SHARES) {
        const int64_t partial = partial_of(args, split, i);
        if (partial < 0) {
            continue;
        }
        const float *lse = args.partial_lse + partial * MLA_SM90_TILE_ROWS + row;
        const float4 *from = (const float4 *)args.partial_out +
                             ((partial * 4 + row_warp) * 64 + unit * 4) * 32 + lane;
        float4 values[4];
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
            values[j] = __ldcg(from + j * 32);
        }
        /* A weight of 0 does not silence what an empty piece never wrote. */
        const bool any0 = lse[0] != -INFINITY, any1 = lse[8] != -INFINITY;
        const float weight0 = any0 ? exp2f(lse[0] - lse0) : 0;
        const float weight1 = any1 ? exp2f(lse[8] - lse1) : 0;
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
            acc[4 * j] += any0 ? weight0 * values[j].x : 0;
            acc[4 * j + 1] += any0 ? weight0 * values[j].y : 0;
            acc[4 * j + 2] += any1 ? weight1 * values[j].z : 0;
            acc[4 * j + 3] += any1 ? weight1 * values[j].w : 0;
        }
    }
}

template <bool f16>
__device__ __forceinline__ void store_unit(const mla_sm90_dense_args &args,
                                           const split_request &split, const float *row_lse,
                                           int32_t row_warp, int32_t unit, const float (&acc)[16])
{
    const int32_t lane = threadIdx.x % 32, row = row_warp * 16 + lane / 4;
    const int32_t first_row = split.tile * MLA_SM90_TILE_ROWS;
    uint16_t *out[2] = {nullptr, nullptr};
    for (int32_t below = 0; below < 2; ++below) {
        const mla_tile_row at = tile_row(args, first_row + row + 8 * below);
        if (!at.exists) {
            continue;
        }
        out[below] = args.out + row_offset(args, args.out_stride, split.req, split.kv_head, at) +
                     unit * 32;
        if (unit == 0 && lane % 4 == 0 && args.lse != nullptr) {
            const float lse = row_lse[row + 8 * below];
            args.lse[row_offset(args, args.lse_stride, split.req, split.kv_head, at)] =
                lse == -INFINITY ? args.lse_empty : lse * 0.69314718055994531f;
        }
    }
    store_columns<f16>(acc, out[0], out[1], 1, 1);
}

template <bool f16>
__device__ __forceinline__ void combine_unit(const mla_sm90_dense_args &args,
                                             const split_request &split, int32_t unit)
{
    __shared__ float row_lse[MLA_SM90_TILE_ROWS];
    __shared__ float shares[SHARES - 1][16][128];
    const int32_t row_warp = threadIdx.x / 32 % 4, share = threadIdx.x / 128;
    const int32_t thread = threadIdx.x % 128;
    merge_lse(args, split, row_lse);
    __syncthreads();
    float acc[16] = {};
    add_share(args, split, row_lse, row_warp, share, unit, acc);
    if (share > 0) {
#pragma unroll
        for (int32_t i = 0; i < 16; ++i) {
            shares[share - 1][i][thread] = acc[i];
        }
    }
    __syncthreads();
    if (share == 0) {
#pragma unroll
        for (int32_t i = 0; i < 16; ++i) {
            for (int32_t other = 0; other < SHARES - 1; ++other) {
                acc[i] += shares[other][i][thread];
            }
        }
        store_unit<f16>(args, split, row_lse, row_warp, unit, acc);
    }
    __syncthreads();
}

template <bool f16> __device__ __forceinline__ void combine(const mla_sm90_dense_args &args)
{
    const int64_t tiles = (int64_t)args.h_kv * args.row_tiles;
    const int64_t num_units = args.plan->num_split_reqs * tiles * COLUMN_UNITS;
    /* Also where there is nothing to do: what follows in the stream must find decode finished. */
    mla_ptx::wait_dependencies();
    for (int64_t i = blockIdx.x; i < num_units; i += gridDim.x) {
        const int64_t item = i / COLUMN_UNITS;
        split_request split;
        split.first_part = nth_split(args, (int32_t)(item / tiles));
        const mla_plan_part &part = parts_of(args)[split.first_part];
        split.num_splits = part.num_splits;
        split.req = (int32_t)part.end_req;
        split.kv_head = (int32_t)(item % tiles / args.row_tiles);
        split.tile = (int32_t)(item % args.row_tiles);
        combine_unit<f16>(args, split, (int32_t)(i % COLUMN_UNITS));
    }
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS)
    mla_sm90_combine_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine<false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS)
    mla_sm90_combine_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine<true>(args);
}
