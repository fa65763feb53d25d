/*
 * Merges the partial results of split requests: lse = log2 sum 2^lse_i, out = sum 2^(lse_i - lse)
 * out_i.
 *
 * A warp merges 8 rows and one or two chunks of 32 columns over its share of the splits, against a
 * running maximum; warps that share the splits of the same values are then joined through shared
 * memory in a fixed order. What counts here is latency: a batch of splits is in flight at once, the
 * list of splits is made while decode still runs, and there is little code, since most of the time
 * goes into fetching it.
 *
 * The kernel is launched while decode still runs and waits for it on the device. Where decode
 * occupies the chip its CTAs begin late, one by one: then what comes before that wait counts too.
 */
#include "dense_args.h"
#include "ptx/tma.cuh"
#include "rows.cuh"

enum {
    THREADS = MLA_SM90_COMBINE_THREADS,
    WARPS = THREADS / 32,
    CHUNKS = MLA_SM90_D_V / 32, /* of columns */
    BATCH = 4,                  /* splits in flight */
    NARROW = 1,                 /* chunks a warp, where few requests have many splits */
    WIDE = 2,
    LANE_PARTS = 5, /* of a window of parts, that a lane lists: 132 parts are one window */
    WINDOW = 32 * LANE_PARTS,
};

/* The split requests that begin in a window of parts, spread over the lanes of every warp. */
struct split_list {
    int32_t rank[LANE_PARTS];       /* in the window, of the request that the part begins, or -1 */
    int32_t num_splits[LANE_PARTS]; /* of that request, or 0 */
    int32_t req[LANE_PARTS];
    int32_t count, most_splits; /* of the window */
};

/* A split request. */
struct split_request {
    int32_t first_part, num_splits, req;
};

/* The work of one warp. */
struct merge_job {
    /* This lane's values and its row in partial 1 of the request's first part; partial 0 of the
     * next parts follows. */
    const uint8_t *values, *rows;
    int32_t num_splits;
    int32_t req, kv_head;
    int32_t row;   /* this lane's, of the request */
    int32_t chunk; /* the first of its chunks of columns */
};

/* How the work of a window is divided: jobs of 8 rows and some chunks of a tile, which `shares`
 * warps divide by splits as long as one round of CTAs holds them all. */
struct division {
    int32_t log_eighths; /* groups of 8 rows of a tile, as the logarithm of 2, 4 or 8 */
    int32_t log_shares;
    int32_t num_jobs;
};

/* Running merge of a lane's row. */
struct merge_state {
    float top; /* largest lse so far */
    float sum; /* of 2^(lse - top) */
};

/* Lists the window from part `first` on. Foreign bytes must not lead outside the partials. */
__device__ __forceinline__ split_list list_splits(const mla_sm90_dense_args &args, int32_t first)
{
    const mla_plan_part *parts = (const mla_plan_part *)(args.plan + 1);
    const int32_t lane = threadIdx.x % 32;
    split_list list;
#pragma unroll
    for (int32_t k = 0; k < LANE_PARTS; ++k) {
        const int32_t i = first + 32 * k + lane;
        list.num_splits[k] = i < args.max_parts ? parts[i].num_splits : 0;
        /* The lower half: what foreign bytes have above it need not be told from a request. */
        list.req[k] = i < args.max_parts ? *(const int32_t *)&parts[i].end_req : -1;
    }
    list.count = 0;
    list.most_splits = 0;
#pragma unroll
    for (int32_t k = 0; k < LANE_PARTS; ++k) {
        const bool known = (uint32_t)list.req[k] < (uint32_t)args.batch;
        const int32_t parts_left = args.max_parts - (first + 32 * k + lane);
        list.num_splits[k] = known ? min(list.num_splits[k], parts_left) : 0;
        list.most_splits = max(list.most_splits, list.num_splits[k]);
        const uint32_t found = __ballot_sync(0xffffffffu, list.num_splits[k] > 0);
        const int32_t before = list.count + __popc(found & ((1u << lane) - 1));
        list.rank[k] = list.num_splits[k] > 0 ? before : -1;
        list.count += __popc(found);
    }
    list.most_splits = __reduce_max_sync(0xffffffffu, list.most_splits);
    return list;
}

/* Split request `idx` of the list of a window that begins with part `first`. */
__device__ __forceinline__ split_request find_split(const split_list &list, int32_t first,
                                                    int32_t idx)
{
    split_request split = {0, 0, 0};
#pragma unroll
    for (int32_t k = 0; k < LANE_PARTS; ++k) {
        if (list.rank[k] == idx) {
            split = {first + 32 * k + (int32_t)threadIdx.x % 32, list.num_splits[k], list.req[k]};
        }
    }
    const int32_t owner = __ffs(__ballot_sync(0xffffffffu, split.num_splits > 0)) - 1;
    return {__shfl_sync(0xffffffffu, split.first_part, owner),
            __shfl_sync(0xffffffffu, split.num_splits, owner),
            __shfl_sync(0xffffffffu, split.req, owner)};
}

/* Groups of 16 rows of a tile that hold any row, as the logarithm of 1, 2 or 4. */
__device__ __forceinline__ int32_t log_row_warps(const mla_sm90_dense_args &args)
{
    const int32_t rows = min(MLA_SM90_TILE_ROWS, args.s_q * args.group_pad);
    return rows <= 16 ? 0 : rows <= 32 ? 1 : 2;
}

template <int chunks>
__device__ __forceinline__ division divide_work(const mla_sm90_dense_args &args, int32_t num_items,
                                                int32_t most_splits)
{
    division by = {log_row_warps(args) + 1, 0, 0};
    by.num_jobs = (num_items << by.log_eighths) * (CHUNKS / chunks);
    if constexpr (chunks == NARROW) {
        const int32_t warps = (int32_t)gridDim.x * WARPS;
        while (1 << by.log_shares < WARPS && BATCH << by.log_shares < most_splits &&
               by.num_jobs << by.log_shares <= warps / 2) {
            by.log_shares++;
        }
    }
    return by;
}

template <int chunks>
__device__ __forceinline__ merge_job find_job(const mla_sm90_dense_args &args,
                                              const split_list &list, int32_t first_part,
                                              int32_t job_idx, const division &by)
{
    const int32_t eighth_idx = job_idx / (CHUNKS / chunks);
    const int32_t item = eighth_idx >> by.log_eighths;
    const int32_t head = divide(item, args.row_tiles_inverse);
    const int32_t split_idx = divide(head, args.h_kv_inverse);
    const split_request split = find_split(list, first_part, split_idx);
    const int32_t tile = item - head * args.row_tiles;
    merge_job job;
    job.num_splits = split.num_splits;
    job.req = split.req;
    job.kv_head = head - split_idx * args.h_kv;
    job.chunk = job_idx % (CHUNKS / chunks) * chunks;
    const int32_t lane = threadIdx.x % 32, eighth = eighth_idx & ((1 << by.log_eighths) - 1);
    const int32_t row = eighth * 8 + lane / 4; /* of the tile */
    job.row = tile * MLA_SM90_TILE_ROWS + row;
    const mla_sm90_partial *first =
        args.partials +
        (((int64_t)split.first_part * 2 + 1) * args.h_kv + job.kv_head) * args.row_tiles + tile;
    job.values = (const uint8_t *)first->values[eighth / 2][job.chunk][eighth % 2][lane];
    job.rows = (const uint8_t *)&first->rows[job.chunk / 2][row];
    return job;
}

/* Factor from an old maximum to a new one, both of which may be -inf. */
__device__ __forceinline__ float top_factor(float from, float to)
{
    return from == -INFINITY ? 0 : mla_ptx::exp2_approx(from - to);
}

/* Adds up to BATCH splits, whose loads are all in flight before the first is used. */
template <int chunks>
__device__ __forceinline__ void merge_batch(const mla_sm90_dense_args &args, const merge_job &job,
                                            int32_t first, int32_t shares, merge_state &state,
                                            float (&acc)[8 * chunks])
{
    const uint32_t tiles = (uint32_t)(args.h_kv * args.row_tiles);
    uint4 values[BATCH][chunks];
    float2 rows[BATCH]; /* lse and scale */
#pragma unroll
    for (int32_t i = 0; i < BATCH; ++i) {
        /* From the first part's partial 1 to partial 0 of a later part. */
        const int32_t split = first + i * shares;
        const bool there = split < job.num_splits;
        const uint64_t offset = (uint64_t)((uint32_t)max(2 * split - 1, 0) * tiles) *
                                sizeof(mla_sm90_partial);
        rows[i] = there ? __ldcg((const float2 *)(job.rows + offset)) : make_float2(-INFINITY, 0);
#pragma unroll
        for (int32_t j = 0; j < chunks; ++j) {
            const uint4 *from = (const uint4 *)(job.values + offset + j * 1024);
            values[i][j] = there ? __ldcg(from) : make_uint4(0, 0, 0, 0);
        }
    }
    const float old_top = state.top;
#pragma unroll
    for (int32_t i = 0; i < BATCH; ++i) {
        state.top = fmaxf(state.top, rows[i].x);
    }
    const float lower = top_factor(old_top, state.top);
    state.sum *= lower;
#pragma unroll
    for (int32_t j = 0; j < 8 * chunks; ++j) {
        acc[j] *= lower;
    }
#pragma unroll
    for (int32_t i = 0; i < BATCH; ++i) {
        /* What a split without keys left is not to be read, not even times 0. */
        const bool any = rows[i].x != -INFINITY;
        const float weight = top_factor(rows[i].x, state.top), scaled = weight * rows[i].y;
        state.sum += weight;
#pragma unroll
        for (int32_t j = 0; j < chunks; ++j) {
            const uint32_t words[4] = {any ? values[i][j].x : 0, any ? values[i][j].y : 0,
                                       any ? values[i][j].z : 0, any ? values[i][j].w : 0};
#pragma unroll
            for (int32_t k = 0; k < 4; ++k) {
                const float2 two = mla_ptx::unpack_f16(words[k]);
                acc[8 * j + 2 * k] += scaled * two.x;
                acc[8 * j + 2 * k + 1] += scaled * two.y;
            }
        }
    }
}

/* What the shares of the same values have, to be joined. */
__shared__ float2 shared_acc[WARPS][4][32];
__shared__ merge_state shared_state[WARPS][32];

/* What turns a lane's row into its output. */
__device__ __forceinline__ float output_factor(const mla_sm90_dense_args &args,
                                               const merge_job &job, const merge_state &state)
{
    if (state.sum == 0) {
        return 0;
    }
    const float factor = mla_ptx::reciprocal_approx(state.sum);
    if (args.attn_sink == nullptr) {
        return factor;
    }
    const float lse = state.top + mla_ptx::log2_approx(state.sum);
    return sink_factor(args, job.kv_head, job.row, lse) * factor;
}

/* Where the job's columns of a lane's row go, or null where there is no such row; the lse on the
 * way, by the warp that has a row's first columns. */
__device__ __forceinline__ uint16_t *output_row(const mla_sm90_dense_args &args,
                                                const merge_job &job, const merge_state &state,
                                                bool stores_lse)
{
    const mla_tile_row at = tile_row(args, job.row);
    if (!at.exists) {
        return nullptr;
    }
    if (stores_lse && job.chunk == 0 && threadIdx.x % 4 == 0 && args.lse != nullptr) {
        args.lse[row_offset(args, args.lse_stride, job.req, job.kv_head, at)] = natural_lse(
            args, state.top, state.sum);
    }
    return args.out + row_offset(args, args.out_stride, job.req, job.kv_head, at) + job.chunk * 32;
}

/* Stores what one warp merged alone. */
template <bool f16, int chunks>
__device__ __forceinline__ void store_alone(const mla_sm90_dense_args &args, const merge_job &job,
                                            const merge_state &state,
                                            const float (&acc)[8 * chunks])
{
    const float factor = output_factor(args, job, state);
    uint16_t *const out = output_row(args, job, state, true);
#pragma unroll
    for (int32_t j = 0; j < chunks; ++j) {
        uint32_t words[4];
#pragma unroll
        for (int32_t k = 0; k < 4; ++k) {
            words[k] = pack_pair<f16>(acc[8 * j + 2 * k] * factor, acc[8 * j + 2 * k + 1] * factor);
        }
        quad_transpose(words);
        if (out != nullptr) {
            *(uint4 *)(out + j * 32 + threadIdx.x % 4 * 8) = make_uint4(words[0], words[1],
                                                                        words[2], words[3]);
        }
    }
}

/* Joins the shares of the same values, in their order, and stores: of the four words that a lane
 * stores, the first four shares take one each, or two shares two. */
template <bool f16>
__device__ __forceinline__ void store_joined(const mla_sm90_dense_args &args, const merge_job &job,
                                             const merge_state &own, const float *acc,
                                             int32_t share, int32_t shares)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = warp - share;
    shared_state[warp][lane] = own;
#pragma unroll
    for (int32_t word = 0; word < 4; ++word) {
        shared_acc[warp][word][lane] = make_float2(acc[2 * word], acc[2 * word + 1]);
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t word = share; word < 4; word += shares) {
        merge_state state = {-INFINITY, 0};
        float x = 0, y = 0;
#pragma unroll 2
        for (int32_t other = begin; other < begin + shares; ++other) {
            state.top = fmaxf(state.top, shared_state[other][lane].top);
        }
#pragma unroll 2
        for (int32_t other = begin; other < begin + shares; ++other) {
            const float weight = top_factor(shared_state[other][lane].top, state.top);
            const float2 values = shared_acc[other][word][lane];
            state.sum += weight * shared_state[other][lane].sum;
            x += weight * values.x;
            y += weight * values.y;
        }
        const float factor = output_factor(args, job, state);
        uint16_t *const out = output_row(args, job, state, word == 0);
        if (out != nullptr) {
            *(uint32_t *)(out + word * 8 + lane % 4 * 2) = pack_pair<f16>(x * factor, y * factor);
        }
    }
    __syncthreads(); /* before the next job's values take the place of these */
}

/*
 * One job, or one warp's share of it; all warps of a CTA at once. Who `rehearses` has time until
 * decode ends, and first merges nothing into rows that do not exist: that brings the instructions
 * into the caches.
 */
template <bool f16, int chunks>
__device__ __forceinline__ void merge(const mla_sm90_dense_args &args, merge_job job,
                                      const division &by, bool rehearses)
{
    const int32_t shares = 1 << by.log_shares, share = (int32_t)threadIdx.x / 32 & (shares - 1);
    const int32_t num_splits = job.num_splits, row = job.row;
#pragma unroll 1
    for (int32_t turn = rehearses ? 0 : 1; turn < 2; ++turn) {
        job.num_splits = turn == 0 ? 0 : num_splits;
        job.row = turn == 0 ? args.s_q * args.group_pad : row;
        if (turn > 0) {
            /* The plan is older than decode; only the partials are not. */
            mla_ptx::wait_dependencies();
        }
        merge_state state = {-INFINITY, 0};
        float acc[8 * chunks] = {};
        int32_t first = share;
#pragma unroll 1
        do {
            merge_batch<chunks>(args, job, first, shares, state, acc);
            first += BATCH << by.log_shares;
        } while (first < job.num_splits);
        if (chunks == NARROW && shares > 1) {
            store_joined<f16>(args, job, state, acc, share, shares);
        } else {
            store_alone<f16, chunks>(args, job, state, acc);
        }
    }
}

template <bool f16, int chunks>
__device__ __forceinline__ void combine(const mla_sm90_dense_args &args, const split_list &list,
                                        int32_t first_part, int32_t num_parts)
{
    const int32_t tiles = args.h_kv * args.row_tiles;
    const division by = divide_work<chunks>(args, list.count * tiles, list.most_splits);
    const int32_t jobs_a_cta = WARPS >> by.log_shares;
    /* Where the CTAs of both kernels find room at once, those of this one have begun early. */
    bool rehearses = num_parts * tiles + by.num_jobs / jobs_a_cta < (int32_t)gridDim.x;
    static_assert(2 * CHUNKS / chunks % WARPS == 0, "CTAs have work for all of their warps");
#pragma unroll 1
    for (int32_t i = (int32_t)blockIdx.x * jobs_a_cta; i < by.num_jobs;
         i += (int32_t)gridDim.x * jobs_a_cta) {
        const int32_t job_idx = i + ((int32_t)threadIdx.x / 32 >> by.log_shares);
        const merge_job job = find_job<chunks>(args, list, first_part, job_idx, by);
        merge<f16, chunks>(args, job, by, rehearses);
        rehearses = false;
    }
}

template <bool f16> __device__ __forceinline__ void combine_any(const mla_sm90_dense_args &args)
{
    mla_ptx::launch_dependents();
    const int32_t num_parts = mla_ptx::load_now(&args.plan->num_parts);
    for (int32_t first = 0; first < args.max_parts; first += WINDOW) {
        const split_list list = list_splits(args, first);
        const int32_t num_items = list.count * args.h_kv * args.row_tiles;
        if (num_items << log_row_warps(args) >= MLA_SM90_COMBINE_MANY) {
            combine<f16, WIDE>(args, list, first, num_parts);
        } else {
            combine<f16, NARROW>(args, list, first, num_parts);
        }
    }
    /* Also without work: what follows this launch counts on decode having ended. */
    mla_ptx::wait_dependencies();
}

/* One CTA an SM: else ptxas spares registers, and moves loads behind what waits for others. */
extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS, 1)
    mla_sm90_combine_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine_any<false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_COMBINE_THREADS, 1)
    mla_sm90_combine_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    combine_any<true>(args);
}
