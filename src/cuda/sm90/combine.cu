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
    WARPS = MLA_SM90_COMBINE_THREADS / 32,
    COLUMN_GROUPS = MLA_SM90_D_V / 8,
    FEW_SPLITS = 4, /* that one warp merges alone */
};

/* The work of one warp. */
struct merge_job {
    int32_t first_part; /* with its partial 1 the request begins; partials 0 of the next follow */
    int32_t num_splits;
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

/* The n-th part, from 0, with which a split request begins. All threads of a warp. */
__device__ __forceinline__ int32_t nth_split(const mla_sm90_dense_args &args, int32_t n)
{
    const int32_t lane = threadIdx.x % 32, num_parts = args.plan->num_parts;
    for (int32_t first = 0; first < num_parts; first += 32) {
        const bool begins = first + lane < num_parts && parts_of(args)[first + lane].num_splits > 0;
        const uint32_t found = __ballot_sync(0xffffffffu, begins);
        if (n < __popc(found)) {
            return first + (int32_t)__fns(found, 0, n + 1);
        }
        n -= __popc(found);
    }
    return -1;
}

__device__ __forceinline__ int64_t partial_of(const mla_sm90_dense_args &args, const merge_job &job,
                                              int32_t split)
{
    const int64_t partial = mla_plan_partial_idx(job.first_part + split, split == 0 ? 0 : 1);
    return (partial * args.h_kv + job.kv_head) * args.row_tiles + job.tile;
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
    const int32_t lane = threadIdx.x % 32, row = job.row_warp * 16 + lane / 4;
    float4 values[batch][groups];
    float lse0[batch], lse1[batch];
#pragma unroll
    for (int32_t i = 0; i < batch; ++i) {
        const int32_t split = first + i * job.shares;
        lse0[i] = lse1[i] = -INFINITY;
        if (split < job.num_splits) {
            const int64_t partial = partial_of(args, job, split);
            const float4 *from = (const float4 *)args.partial_out +
                                 ((partial * 4 + job.row_warp) * COLUMN_GROUPS + job.first_group) *
                                     32 +
                                 lane;
            lse0[i] = __ldcg(args.partial_lse + partial * MLA_SM90_TILE_ROWS + row);
            lse1[i] = __ldcg(args.partial_lse + partial * MLA_SM90_TILE_ROWS + row + 8);
#pragma unroll
            for (int32_t j = 0; j < groups; ++j) {
                values[i][j] = __ldcg(from + j * 32);
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
    const float factor0 = state.sum0 == 0 ? 0 : 1 / state.sum0;
    const float factor1 = state.sum1 == 0 ? 0 : 1 / state.sum1;
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

/* Unit `i` of the CTAs' work: fills this warp's job; false where other units cover the columns. */
template <int groups>
__device__ __forceinline__ bool find_job(const mla_sm90_dense_args &args, int64_t i,
                                         int64_t num_items, int32_t row_warps, merge_job &job)
{
    const int32_t warp = threadIdx.x / 32;
    const int64_t item = i % num_items, tiles = (int64_t)args.h_kv * args.row_tiles;
    job.first_part = nth_split(args, (int32_t)(item / tiles));
    const mla_plan_part &part = parts_of(args)[job.first_part];
    job.num_splits = part.num_splits;
    job.req = (int32_t)part.end_req;
    job.kv_head = (int32_t)(item % tiles / args.row_tiles);
    job.tile = (int32_t)(item % args.row_tiles);
    job.shares = job.num_splits <= FEW_SPLITS ? 1 : WARPS / row_warps;
    const int32_t chunks = WARPS / row_warps / job.shares;
    const int32_t chunk = (int32_t)(i / num_items);
    job.share = warp % job.shares;
    job.row_warp = warp / job.shares % row_warps;
    job.first_group = (chunk + warp / job.shares / row_warps) * groups;
    return chunk % chunks == 0;
}

template <bool f16, int groups>
__device__ __forceinline__ void combine(const mla_sm90_dense_args &args, int64_t num_items)
{
    /* 16-row groups of a tile that hold any row: 1, 2 or 4. */
    const int32_t rows = min(MLA_SM90_TILE_ROWS, args.s_q * args.group_pad);
    const int32_t row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : 4;
    const int64_t num_units = num_items * (COLUMN_GROUPS / groups);
    for (int64_t i = blockIdx.x; i < num_units; i += gridDim.x) {
        merge_job job;
        if (!find_job<groups>(args, i, num_items, row_warps, job)) {
            continue;
        }
        constexpr int32_t batch = groups == 4 ? 4 : 8;
        merge_state state = {-INFINITY, -INFINITY, 0, 0};
        float acc[4 * groups] = {};
        for (int32_t first = job.share; first < job.num_splits; first += batch * job.shares) {
            merge_batch<groups, batch>(args, job, first, state, acc);
        }
        if (job.shares > 1) {
            join_shares<groups>(job, state, acc);
        }
        if (job.share == 0) {
            store_merged<f16, groups>(args, job, state, acc);
        }
        __syncthreads();
    }
}

template <bool f16> __device__ __forceinline__ void combine_any(const mla_sm90_dense_args &args)
{
    mla_ptx::launch_dependents();
    const int64_t num_items = args.plan->num_split_reqs * args.h_kv * args.row_tiles;
    /* Also where there is nothing to do: what follows in the stream must find decode finished. */
    mla_ptx::wait_dependencies();
    /* Few requests are divided more finely, to occupy all SMs. */
    if (num_items * 16 >= MLA_SM90_COMBINE_MANY) {
        combine<f16, 4>(args, num_items);
    } else {
        combine<f16, 1>(args, num_items);
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
