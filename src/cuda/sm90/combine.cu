/*
 * Merges the partial results of split requests: lse = log2 sum 2^lse_i, out = sum 2^(lse_i - lse)
 * out_i.
 *
 * A warp merges 16 rows and `pairs` pairs of column groups of 8 over its share of the splits in
 * one pass, against a running maximum; warps that share the splits of the same values are then
 * joined through shared memory in a fixed order. What counts here is latency: a batch of splits is
 * in flight at once, and the list of splits is made while decode still runs.
 *
 * The kernel is launched while decode still runs and waits for it on the device.
 */
#include "dense_args.h"
#include "ptx/tma.cuh"
#include "rows.cuh"

enum {
    THREADS = MLA_SM90_COMBINE_THREADS,
    WARPS = THREADS / 32,
    PAIRS = MLA_SM90_D_V / 16, /* of column groups */
    NARROW = 1,                /* pairs a warp, where few requests have many splits */
    WIDE = 2,
    NARROW_BATCH = 4, /* splits in flight */
    WIDE_BATCH = 3,
};

/* The work of one warp. */
struct merge_job {
    const mla_sm90_partial *first; /* partial 1 of the request's first part; 0 of the next follow */
    int32_t num_splits;
    int32_t req, kv_head, tile;
    int32_t row_warp;      /* which 16 rows of the tile */
    int32_t share, shares; /* this warp's splits: share, share + shares ... */
    int32_t first_pair;
    uint16_t *out0, *out1; /* the first of its columns in a lane's rows, or null: no such row */
};

/* Running merge of a lane's two rows. */
struct merge_state {
    float top0, top1; /* largest lse so far */
    float sum0, sum1; /* of 2^(lse - top) */
};

/* The split requests that begin in a window of THREADS parts. */
struct split_list {
    int32_t first_part[THREADS];
    int32_t num_splits[THREADS];
    int32_t req[THREADS];
    int32_t warp_count[WARPS];
    int32_t warp_most[WARPS]; /* largest num_splits that each warp met */
};

__shared__ split_list splits;

/* Fills the list from part `first` on, in order; returns how many there are and the largest number
 * of splits among them. All threads. Foreign bytes must not lead outside the partials. */
__device__ __forceinline__ int32_t list_splits(const mla_sm90_dense_args &args, int32_t first,
                                               int32_t &most_splits)
{
    const int32_t i = first + (int32_t)threadIdx.x, warp = threadIdx.x / 32,
                  lane = threadIdx.x % 32;
    int32_t num_splits = 0, req = 0;
    if (i < args.max_parts) {
        const mla_plan_part part = ((const mla_plan_part *)(args.plan + 1))[i];
        const bool known = part.end_req >= 0 && part.end_req < args.batch;
        req = (int32_t)part.end_req;
        num_splits = known ? min(part.num_splits, args.max_parts - i) : 0;
    }
    const uint32_t found = __ballot_sync(0xffffffffu, num_splits > 0);
    const int32_t most = __reduce_max_sync(0xffffffffu, num_splits);
    if (lane == 0) {
        splits.warp_count[warp] = __popc(found);
        splits.warp_most[warp] = most;
    }
    __syncthreads();
    int32_t before = 0, all = 0;
#pragma unroll
    for (int32_t other = 0; other < WARPS; ++other) {
        before += other < warp ? splits.warp_count[other] : 0;
        all += splits.warp_count[other];
        most_splits = max(most_splits, splits.warp_most[other]);
    }
    if (num_splits > 0) {
        const int32_t at = before + __popc(found & ((1u << lane) - 1));
        splits.first_part[at] = i;
        splits.num_splits[at] = num_splits;
        splits.req[at] = req;
    }
    __syncthreads();
    return all;
}

/* 16-row groups of a tile that hold any row. */
__device__ __forceinline__ int32_t row_warps_of(const mla_sm90_dense_args &args)
{
    const int32_t rows = min(MLA_SM90_TILE_ROWS, args.s_q * args.group_pad);
    return rows <= 16 ? 1 : rows <= 32 ? 2 : 4;
}

/* Factor from an old maximum to a new one, both of which may be -inf. */
__device__ __forceinline__ float top_factor(float from, float to)
{
    return from == -INFINITY ? 0 : mla_ptx::exp2_approx(from - to);
}

/* Adds up to `batch` splits, whose loads are all in flight before the first is used. */
template <int pairs, int batch>
__device__ __forceinline__ void merge_batch(const mla_sm90_dense_args &args, const merge_job &job,
                                            int32_t first, merge_state &state,
                                            float (&acc)[8 * pairs])
{
    const int32_t lane = threadIdx.x % 32, row = job.row_warp * 16 + lane / 4;
    uint4 values[batch][pairs];
    float2 rows0[batch], rows1[batch]; /* lse and scale */
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        const int32_t split = first + i * job.shares;
        rows0[i] = rows1[i] = make_float2(-INFINITY, 0);
        if (split < job.num_splits) {
            /* From the first part's partial 1 to partial 0 of a later part. */
            const mla_sm90_partial &from =
                job.first[(split == 0 ? 0 : 2 * split - 1) * (int64_t)(args.h_kv * args.row_tiles)];
            const auto *rows = from.rows[job.first_pair / (PAIRS / 8)];
            rows0[i] = __ldcg((const float2 *)&rows[row]);
            rows1[i] = __ldcg((const float2 *)&rows[row + 8]);
#pragma unroll
            for (int32_t j = 0; j < pairs; ++j) {
                values[i][j] = __ldcg(
                    (const uint4 *)from.values[job.row_warp][job.first_pair + j][lane]);
            }
        }
    }
    float top0 = state.top0, top1 = state.top1;
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        top0 = fmaxf(top0, rows0[i].x);
        top1 = fmaxf(top1, rows1[i].x);
    }
    const float factor0 = top_factor(state.top0, top0), factor1 = top_factor(state.top1, top1);
    state = {top0, top1, state.sum0 * factor0, state.sum1 * factor1};
#pragma unroll
    for (int32_t j = 0; j < 8 * pairs; ++j) {
        acc[j] *= j % 4 < 2 ? factor0 : factor1;
    }
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        /* What a split without keys left is not to be read, not even times 0. */
        const bool any0 = rows0[i].x != -INFINITY, any1 = rows1[i].x != -INFINITY;
        const float weight0 = top_factor(rows0[i].x, top0), weight1 = top_factor(rows1[i].x, top1);
        state.sum0 += weight0;
        state.sum1 += weight1;
        const float scaled0 = weight0 * rows0[i].y, scaled1 = weight1 * rows1[i].y;
#pragma unroll
        for (int32_t j = 0; j < pairs; ++j) {
            const uint32_t words[4] = {any0 ? values[i][j].x : 0, any1 ? values[i][j].y : 0,
                                       any0 ? values[i][j].z : 0, any1 ? values[i][j].w : 0};
#pragma unroll
            for (int32_t k = 0; k < 4; ++k) {
                const float2 two = mla_ptx::unpack_f16(words[k]);
                const float scaled = k % 2 == 0 ? scaled0 : scaled1;
                acc[8 * j + 2 * k] += scaled * two.x;
                acc[8 * j + 2 * k + 1] += scaled * two.y;
            }
        }
    }
}

/* What the shares of the same values have, to be joined. */
__shared__ float2 shared_acc[WARPS][4 * NARROW][32];
__shared__ float2 shared_state[WARPS][2][32]; /* top and sum of each row */

/* What turns a lane's row into its output. */
__device__ __forceinline__ float output_factor(const mla_sm90_dense_args &args,
                                               const merge_job &job, int32_t row, float top,
                                               float sum)
{
    if (sum == 0) {
        return 0;
    }
    if (args.attn_sink == nullptr) {
        return 1 / sum;
    }
    return sink_factor(args, job.kv_head, job.tile * MLA_SM90_TILE_ROWS + row, top + log2f(sum)) /
           sum;
}

/* The first of the job's columns in a row, or null where there is no such row. */
__device__ __forceinline__ uint16_t *output_row(const mla_sm90_dense_args &args,
                                                const merge_job &job, int32_t row)
{
    const mla_tile_row at = tile_row(args, job.tile * MLA_SM90_TILE_ROWS + row);
    return at.exists ? args.out + row_offset(args, args.out_stride, job.req, job.kv_head, at) +
                           job.first_pair * 16
                     : nullptr;
}

/* The lse of a row that exists, by the warp that has its first columns. */
__device__ __forceinline__ void store_lse(const mla_sm90_dense_args &args, const merge_job &job,
                                          int32_t row, float top, float sum)
{
    if (job.first_pair == 0 && threadIdx.x % 4 == 0 && args.lse != nullptr) {
        const mla_tile_row at = tile_row(args, job.tile * MLA_SM90_TILE_ROWS + row);
        args.lse[row_offset(args, args.lse_stride, job.req, job.kv_head, at)] =
            sum == 0 ? args.lse_empty : (top + log2f(sum)) * 0.69314718055994531f;
    }
}

/* Stores what one warp merged alone. */
template <bool f16, int pairs>
__device__ __forceinline__ void store_alone(const mla_sm90_dense_args &args, const merge_job &job,
                                            const merge_state &state, const float (&acc)[8 * pairs])
{
    const int32_t lane = threadIdx.x % 32, row = job.row_warp * 16 + lane / 4;
    uint16_t *const out0 = job.out0, *const out1 = job.out1;
    if (out0 != nullptr) {
        store_lse(args, job, row, state.top0, state.sum0);
    }
    if (out1 != nullptr) {
        store_lse(args, job, row + 8, state.top1, state.sum1);
    }
    const float factor0 = output_factor(args, job, row, state.top0, state.sum0);
    const float factor1 = output_factor(args, job, row + 8, state.top1, state.sum1);
    if constexpr (pairs == WIDE) {
        static_assert(WIDE == 2, "32 columns");
        store_columns<f16>(acc, out0, out1, factor0, factor1);
    } else {
#pragma unroll
        for (int32_t i = 0; i < 2 * pairs; ++i) {
            const int32_t column = i * 8 + lane % 4 * 2;
            if (out0 != nullptr) {
                *(uint32_t *)(out0 + column) = pack_pair<f16>(acc[4 * i] * factor0,
                                                              acc[4 * i + 1] * factor0);
            }
            if (out1 != nullptr) {
                *(uint32_t *)(out1 + column) = pack_pair<f16>(acc[4 * i + 2] * factor1,
                                                              acc[4 * i + 3] * factor1);
            }
        }
    }
}

/* Joins the shares of the same values, in their order, and stores: of the four words that a lane
 * stores, the first four shares take one each, or two shares two. */
template <bool f16>
__device__ __forceinline__ void store_joined(const mla_sm90_dense_args &args, const merge_job &job,
                                             const merge_state &state,
                                             const float (&acc)[8 * NARROW])
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    shared_state[warp][0][lane] = make_float2(state.top0, state.sum0);
    shared_state[warp][1][lane] = make_float2(state.top1, state.sum1);
#pragma unroll
    for (int32_t i = 0; i < 4 * NARROW; ++i) {
        shared_acc[warp][i][lane] = make_float2(acc[2 * i], acc[2 * i + 1]);
    }
    __syncthreads();
    const int32_t begin = warp - job.share, end = begin + job.shares;
#pragma unroll 1
    for (int32_t word = job.share; word < 4 * NARROW; word += job.shares) {
        const int32_t below = word % 2, group = word / 2;
        float top = -INFINITY, sum = 0, x = 0, y = 0;
#pragma unroll 4
        for (int32_t other = begin; other < end; ++other) {
            top = fmaxf(top, shared_state[other][below][lane].x);
        }
#pragma unroll 4
        for (int32_t other = begin; other < end; ++other) {
            const float2 from = shared_state[other][below][lane];
            const float2 values = shared_acc[other][word][lane];
            const float weight = top_factor(from.x, top);
            sum += weight * from.y;
            x += weight * values.x;
            y += weight * values.y;
        }
        const int32_t row = job.row_warp * 16 + lane / 4 + 8 * below;
        uint16_t *out = below ? job.out1 : job.out0;
        if (out != nullptr) {
            if (group == 0) {
                store_lse(args, job, row, top, sum);
            }
            const float factor = output_factor(args, job, row, top, sum);
            *(uint32_t *)(out + group * 8 + lane % 4 * 2) = pack_pair<f16>(x * factor, y * factor);
        }
    }
}

/* Jobs of a window: 16 rows and some columns of a tile each, which `shares` warps divide by splits
 * as long as one round of CTAs holds them all. */
struct division {
    int32_t row_warps; /* 16-row groups of a tile that hold any row: 1, 2 or 4 */
    int32_t shares;
    int32_t num_jobs;
};

template <int pairs>
__device__ __forceinline__ division divide_work(const mla_sm90_dense_args &args, int32_t num_items,
                                                int32_t most_splits)
{
    division by = {row_warps_of(args), 1, 0};
    by.num_jobs = num_items * by.row_warps * (PAIRS / pairs);
    if constexpr (pairs == NARROW) {
        while (by.shares < WARPS && by.shares < most_splits &&
               by.num_jobs <= (int32_t)gridDim.x * WARPS / 2 / by.shares) {
            by.shares *= 2;
        }
    }
    return by;
}

template <int pairs>
__device__ __forceinline__ merge_job find_job(const mla_sm90_dense_args &args, int32_t job_idx,
                                              const division &by)
{
    const int32_t row_group = job_idx / (PAIRS / pairs);
    const int32_t item = row_group / by.row_warps;
    const int32_t head = divide(item, args.row_tiles_inverse);
    const int32_t split_idx = divide(head, args.h_kv_inverse);
    merge_job job;
    job.num_splits = splits.num_splits[split_idx];
    job.req = splits.req[split_idx];
    job.kv_head = head - split_idx * args.h_kv;
    job.tile = item - head * args.row_tiles;
    job.shares = by.shares;
    job.share = (int32_t)threadIdx.x / 32 & (by.shares - 1);
    job.row_warp = row_group & (by.row_warps - 1);
    job.first_pair = job_idx % (PAIRS / pairs) * pairs;
    job.first = args.partials +
                (((int64_t)splits.first_part[split_idx] * 2 + 1) * args.h_kv + job.kv_head) *
                    args.row_tiles +
                job.tile;
    const int32_t row = job.row_warp * 16 + (int32_t)threadIdx.x % 32 / 4;
    job.out0 = output_row(args, job, row);
    job.out1 = output_row(args, job, row + 8);
    return job;
}

template <bool f16, int pairs, int batch>
__device__ __forceinline__ void combine(const mla_sm90_dense_args &args, int32_t num_items,
                                        int32_t most_splits)
{
    const division by = divide_work<pairs>(args, num_items, most_splits);
    const int32_t jobs_a_cta = WARPS / by.shares;
    static_assert(PAIRS / pairs % WARPS == 0, "CTAs have work for all of their warps, or none");
#pragma unroll 1
    for (int32_t i = (int32_t)blockIdx.x * jobs_a_cta; i < by.num_jobs;
         i += (int32_t)gridDim.x * jobs_a_cta) {
        const merge_job job = find_job<pairs>(args, i + (int32_t)threadIdx.x / 32 / by.shares, by);
        merge_state state = {-INFINITY, -INFINITY, 0, 0};
        float acc[8 * pairs] = {};
        /* The plan is older than decode; only the partials are not. */
        mla_ptx::wait_dependencies();
#pragma unroll 1
        for (int32_t first = job.share; first < job.num_splits; first += batch * job.shares) {
            merge_batch<pairs, batch>(args, job, first, state, acc);
        }
        if constexpr (pairs == NARROW) {
            if (job.shares > 1) {
                store_joined<f16>(args, job, state, acc);
                __syncthreads(); /* before the next job's values take the place of these */
                continue;
            }
        }
        store_alone<f16, pairs>(args, job, state, acc);
    }
    __syncthreads(); /* before the list changes */
}

template <bool f16> __device__ __forceinline__ void combine_any(const mla_sm90_dense_args &args)
{
    mla_ptx::launch_dependents();
    const int32_t tiles = args.h_kv * args.row_tiles;
    for (int32_t first = 0; first < args.max_parts; first += THREADS) {
        int32_t most_splits = 0;
        const int32_t num_items = list_splits(args, first, most_splits) * tiles;
        if (num_items * row_warps_of(args) >= MLA_SM90_COMBINE_MANY) {
            combine<f16, WIDE, WIDE_BATCH>(args, num_items, most_splits);
        } else {
            combine<f16, NARROW, NARROW_BATCH>(args, num_items, most_splits);
        }
    }
    /* Also without work: what follows this launch counts on decode having ended. */
    mla_ptx::wait_dependencies();
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS)
    mla_sm90_combine_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine_any<false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS)
    mla_sm90_combine_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine_any<true>(args);
}
