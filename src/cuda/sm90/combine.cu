/*
 * Merges the partial results of split requests: lse = log2 sum 2^lse_i, out = sum 2^(lse_i - lse)
 * out_i.
 *
 * A warp merges 16 rows and `groups` column groups of 8 over its share of the splits in one pass,
 * against a running maximum; warps that share the splits of the same values are then joined
 * through shared memory in a fixed order. A CTA has 16 warps: the row tile's 16-row groups, times
 * the shares, times neighbouring chunks of columns where few splits leave warps over. The loads of
 * several splits are in flight at once: what counts here is latency.
 *
 * The kernel is launched while decode still runs and waits for it on the device.
 */
#include "dense_args.h"
#include "ptx/tma.cuh"
#include "rows.cuh"

enum {
    THREADS = MLA_SM90_COMBINE_THREADS,
    WARPS = THREADS / 32,
    COLUMN_GROUPS = MLA_SM90_D_V / 8,
    PARTIAL_VECTORS = MLA_SM90_TILE_ROWS * MLA_SM90_D_V / 4, /* float4s of a partial */
    FEW_SPLITS = 4,                                          /* that one warp merges alone */
};

/* The work of one warp. */
struct merge_job {
    int32_t first_part; /* with its partial 1 the request begins; partials 0 of the next follow */
    int32_t num_splits;
    const float4 *values; /* this lane's, in partial 0 of the first part */
    const float *lse;
    int32_t req, kv_head, tile;
    int32_t row_warp;      /* which 16 rows of the tile */
    int32_t share, shares; /* this warp's splits: share, share + shares ... */
    int32_t first_group;
};

/* Running merge of a lane's two rows. */
struct merge_state {
    float top0, top1; /* largest lse so far */
    float sum0, sum1; /* of 2^(lse - top) */
};

__device__ __forceinline__ const mla_plan_part *parts_of(const mla_sm90_dense_args &args)
{
    return (const mla_plan_part *)(args.plan + 1);
}

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
 * of splits among them. All threads. */
__device__ __forceinline__ int32_t list_splits(const mla_sm90_dense_args &args, int32_t first,
                                               int32_t num_parts, int32_t &most_splits)
{
    const int32_t i = first + (int32_t)threadIdx.x, warp = threadIdx.x / 32,
                  lane = threadIdx.x % 32;
    const int32_t num_splits = i < num_parts ? parts_of(args)[i].num_splits : 0;
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
        splits.req[at] = (int32_t)parts_of(args)[i].end_req;
    }
    __syncthreads();
    return all;
}

/* Partials of 64 rows from the first part's partial 0 to that of a split (mla_plan_partial_idx). */
__device__ __forceinline__ int64_t partials_to(const mla_sm90_dense_args &args, int32_t split)
{
    return (int64_t)(split == 0 ? 1 : 2 * split) * (args.h_kv * args.row_tiles);
}

/* Factor from an old maximum to a new one, both of which may be -inf. */
__device__ __forceinline__ float top_factor(float from, float to)
{
    return from == -INFINITY ? 0 : exp2f(from - to);
}

/* Adds up to `batch` splits, whose loads are all in flight before the first is used. */
template <int groups, int batch>
__device__ __forceinline__ void merge_batch(const mla_sm90_dense_args &args, const merge_job &job,
                                            int32_t first, merge_state &state,
                                            float (&acc)[4 * groups])
{
    float4 values[batch][groups];
    float lse0[batch], lse1[batch];
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        const int32_t split = first + i * job.shares;
        lse0[i] = lse1[i] = -INFINITY;
        if (split < job.num_splits) {
            const int64_t partials = partials_to(args, split);
            lse0[i] = __ldcg(job.lse + partials * MLA_SM90_TILE_ROWS);
            lse1[i] = __ldcg(job.lse + partials * MLA_SM90_TILE_ROWS + 8);
#pragma unroll
            for (int32_t j = 0; j < groups; ++j) {
                values[i][j] = __ldcg(job.values + partials * PARTIAL_VECTORS + j * 32);
            }
        }
    }
    float top0 = state.top0, top1 = state.top1;
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        top0 = fmaxf(top0, lse0[i]);
        top1 = fmaxf(top1, lse1[i]);
    }
    const float factor0 = top_factor(state.top0, top0), factor1 = top_factor(state.top1, top1);
    state = {top0, top1, state.sum0 * factor0, state.sum1 * factor1};
#pragma unroll
    for (int32_t j = 0; j < groups; ++j) {
        acc[4 * j] *= factor0;
        acc[4 * j + 1] *= factor0;
        acc[4 * j + 2] *= factor1;
        acc[4 * j + 3] *= factor1;
    }
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        /* What a split without keys left is not to be read, not even times 0. */
        const bool any0 = lse0[i] != -INFINITY, any1 = lse1[i] != -INFINITY;
        const float weight0 = top_factor(lse0[i], top0), weight1 = top_factor(lse1[i], top1);
        state.sum0 += weight0;
        state.sum1 += weight1;
#pragma unroll
        for (int32_t j = 0; j < groups; ++j) {
            acc[4 * j] += any0 ? weight0 * values[i][j].x : 0;
            acc[4 * j + 1] += any0 ? weight0 * values[i][j].y : 0;
            acc[4 * j + 2] += any1 ? weight1 * values[i][j].z : 0;
            acc[4 * j + 3] += any1 ? weight1 * values[i][j].w : 0;
        }
    }
}

/* Each warp's values on their way to the warp of share 0. */
__shared__ float shared_acc[WARPS][16][32];
__shared__ merge_state shared_state[WARPS][32];

/* Joins the shares of the same values, in their order, in the warp of share 0. */
template <int groups>
__device__ __forceinline__ void join_shares(const merge_job &job, merge_state &state,
                                            float (&acc)[4 * groups])
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    shared_state[warp][lane] = state;
#pragma unroll
    for (int32_t i = 0; i < 4 * groups; ++i) {
        shared_acc[warp][i][lane] = acc[i];
    }
    __syncthreads();
    if (job.share > 0) {
        return;
    }
#pragma unroll 1
    for (int32_t other = warp + 1; other < warp + job.shares; ++other) {
        const merge_state from = shared_state[other][lane];
        const float top0 = fmaxf(state.top0, from.top0), top1 = fmaxf(state.top1, from.top1);
        const float mine0 = top_factor(state.top0, top0), mine1 = top_factor(state.top1, top1);
        const float his0 = top_factor(from.top0, top0), his1 = top_factor(from.top1, top1);
        state = {top0, top1, state.sum0 * mine0 + from.sum0 * his0,
                 state.sum1 * mine1 + from.sum1 * his1};
#pragma unroll
        for (int32_t i = 0; i < 4 * groups; i += 4) {
            acc[i] = acc[i] * mine0 + shared_acc[other][i][lane] * his0;
            acc[i + 1] = acc[i + 1] * mine0 + shared_acc[other][i + 1][lane] * his0;
            acc[i + 2] = acc[i + 2] * mine1 + shared_acc[other][i + 2][lane] * his1;
            acc[i + 3] = acc[i + 3] * mine1 + shared_acc[other][i + 3][lane] * his1;
        }
    }
}

template <bool f16, int groups>
__device__ __forceinline__ void store_merged(const mla_sm90_dense_args &args, const merge_job &job,
                                             const merge_state &state,
                                             const float (&acc)[4 * groups])
{
    const int32_t lane = threadIdx.x % 32, row = job.row_warp * 16 + lane / 4;
    const float tops[2] = {state.top0, state.top1}, sums[2] = {state.sum0, state.sum1};
    uint16_t *out[2] = {nullptr, nullptr};
#pragma unroll
    for (int32_t below = 0; below < 2; ++below) {
        const mla_tile_row at = tile_row(args, job.tile * MLA_SM90_TILE_ROWS + row + 8 * below);
        if (!at.exists) {
            continue;
        }
        out[below] = args.out + row_offset(args, args.out_stride, job.req, job.kv_head, at) +
                     job.first_group * 8;
        if (job.first_group == 0 && lane % 4 == 0 && args.lse != nullptr) {
            args.lse[row_offset(args, args.lse_stride, job.req, job.kv_head, at)] =
                sums[below] == 0 ? args.lse_empty
                                 : (tops[below] + log2f(sums[below])) * 0.69314718055994531f;
        }
    }
    float factor0 = state.sum0 == 0 ? 0 : 1 / state.sum0;
    float factor1 = state.sum1 == 0 ? 0 : 1 / state.sum1;
    if (args.attn_sink != nullptr) {
        const int32_t tile_row0 = job.tile * MLA_SM90_TILE_ROWS + row;
        if (state.sum0 != 0) {
            factor0 *= sink_factor(args, job.kv_head, tile_row0, state.top0 + log2f(state.sum0));
        }
        if (state.sum1 != 0) {
            factor1 *= sink_factor(args, job.kv_head, tile_row0 + 8,
                                   state.top1 + log2f(state.sum1));
        }
    }
    if constexpr (groups == 4) {
        store_columns<f16>(acc, out[0], out[1], factor0, factor1);
    } else {
        static_assert(groups == 1, "one group: a lane stores two columns of each row");
        if (out[0] != nullptr) {
            *(uint32_t *)(out[0] + lane % 4 * 2) = pack_pair<f16>(acc[0] * factor0,
                                                                  acc[1] * factor0);
        }
        if (out[1] != nullptr) {
            *(uint32_t *)(out[1] + lane % 4 * 2) = pack_pair<f16>(acc[2] * factor1,
                                                                  acc[3] * factor1);
        }
    }
}

/* How the 16 warps of a CTA divide a unit; the same for all units of a window. */
struct division {
    int32_t row_warps; /* 16-row groups of a tile that hold any row: 1, 2 or 4 */
    int32_t shares;    /* warps that divide the splits of the same values */
    int32_t chunks;    /* neighbouring chunks of columns */
};

__device__ __forceinline__ division divide(const mla_sm90_dense_args &args, int32_t most_splits)
{
    const int32_t rows = min(MLA_SM90_TILE_ROWS, args.s_q * args.group_pad);
    division by;
    by.row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : 4;
    by.shares = most_splits <= FEW_SPLITS ? 1 : WARPS / by.row_warps;
    by.chunks = WARPS / by.row_warps / by.shares;
    return by;
}

/* This warp's job in unit `i`: the units of a request's tiles lie `num_items` apart, so that
 * neighbouring CTAs read different requests. */
template <int groups>
__device__ __forceinline__ merge_job find_job(const mla_sm90_dense_args &args, int32_t i,
                                              int32_t num_items, const division &by)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t item = i % num_items, tiles = args.h_kv * args.row_tiles;
    const int32_t split_idx = item / tiles;
    merge_job job;
    job.first_part = splits.first_part[split_idx];
    job.num_splits = splits.num_splits[split_idx];
    job.req = splits.req[split_idx];
    job.kv_head = item % tiles / args.row_tiles;
    job.tile = item % args.row_tiles;
    job.shares = by.shares;
    job.share = warp % by.shares;
    job.row_warp = warp / by.shares % by.row_warps;
    job.first_group = (i / num_items * by.chunks + warp / by.shares / by.row_warps) * groups;
    const int64_t partial =
        ((int64_t)job.first_part * 2 * args.h_kv + job.kv_head) * args.row_tiles + job.tile;
    job.values = (const float4 *)args.partial_out + partial * PARTIAL_VECTORS +
                 (job.row_warp * COLUMN_GROUPS + job.first_group) * 32 + lane;
    job.lse = args.partial_lse + partial * MLA_SM90_TILE_ROWS + job.row_warp * 16 + lane / 4;
    return job;
}

template <bool f16, int groups>
__device__ __forceinline__ void combine(const mla_sm90_dense_args &args, int32_t num_items,
                                        int32_t most_splits)
{
    const division by = divide(args, most_splits);
    const int32_t num_units = num_items * (COLUMN_GROUPS / groups / by.chunks);
#pragma unroll 1
    for (int32_t i = blockIdx.x; i < num_units; i += (int32_t)gridDim.x) {
        const merge_job job = find_job<groups>(args, i, num_items, by);
        constexpr int32_t batch = groups == 4 ? 2 : 4;
        merge_state state = {-INFINITY, -INFINITY, 0, 0};
        float acc[4 * groups] = {};
#pragma unroll 1
        for (int32_t first = job.share; first < job.num_splits; first += batch * job.shares) {
            merge_batch<groups, batch>(args, job, first, state, acc);
        }
        if (job.shares > 1) {
            join_shares<groups>(job, state, acc);
        }
        if (job.share == 0) {
            store_merged<f16, groups>(args, job, state, acc);
        }
        if (job.shares > 1) {
            __syncthreads(); /* before the next unit's values take the place of these */
        }
    }
    __syncthreads(); /* before the list changes */
}

template <bool f16> __device__ __forceinline__ void combine_any(const mla_sm90_dense_args &args)
{
    mla_ptx::launch_dependents();
    const int32_t tiles = args.h_kv * args.row_tiles;
    const int32_t num_split_reqs = (int32_t)args.plan->num_split_reqs;
    const int32_t num_parts = args.plan->num_parts;
    bool waited = false;
    for (int32_t first = 0; first < num_parts; first += THREADS) {
        int32_t most_splits = 0;
        const int32_t num_items = list_splits(args, first, num_parts, most_splits) * tiles;
        if (!waited) {
            /* The plan is older than decode; only the partials are not. */
            mla_ptx::wait_dependencies();
            waited = true;
        }
        /* Few requests are divided more finely, to occupy all SMs. */
        if (num_split_reqs * tiles * 16 >= MLA_SM90_COMBINE_MANY) {
            combine<f16, 4>(args, num_items, most_splits);
        } else {
            combine<f16, 1>(args, num_items, most_splits);
        }
    }
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
