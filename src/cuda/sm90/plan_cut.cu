/*
 * The schedule, built on the device from the live lengths: one CTA, any number of requests.
 *
 * Two passes over the lengths, 512 at a time. The first adds them up and chooses the number of
 * parts; the second scans their costs, and each thread places those cuts that fall into the chunk.
 * All arithmetic of cuts is that of plan_rule.h, so that the bytes are the host's (mla_plan_cut).
 *
 * Nearly all of its 5 us are latency, much of that fetching instructions: loops are not unrolled
 * where one turn is the rule.
 */
#include "plan_args.h"
#include "plan_rule.h"

enum {
    THREADS = MLA_SM90_PLAN_THREADS,
    WARPS = THREADS / 32,
    SHARED_PARTS = 256, /* up to so many parts are made in shared memory and written at the end */
};

__device__ __forceinline__ int64_t load_blocks(const mla_sm90_plan_args &args, int64_t req)
{
    const int64_t entry = args.reqs_a_length == 1 ? req : (uint32_t)req / args.reqs_a_length;
    const int64_t tokens = mla_cut_length(args.lengths, entry, args.most_tokens) +
                           mla_cut_length(args.extra_lengths, entry, args.most_extra_tokens);
    return (tokens + MLA_BLOCK_TOKENS - 1) / MLA_BLOCK_TOKENS;
}

__device__ __forceinline__ int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

__device__ __forceinline__ int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Totals of all requests, known to every thread; and the blocks of the thread's first request. */
__device__ mla_cut_totals add_up(const mla_sm90_plan_args &args, int64_t &first_blocks)
{
    __shared__ mla_cut_totals warp_totals[WARPS];
    mla_cut_totals totals = {0, INT64_MAX, 0};
    first_blocks = 0;
#pragma unroll 1
    for (int64_t req = threadIdx.x; req < args.rule.num_reqs; req += THREADS) {
        const int64_t blocks = load_blocks(args, req);
        first_blocks = req < THREADS ? blocks : first_blocks;
        totals.blocks += blocks;
        totals.min_blocks = min64(totals.min_blocks, blocks);
        totals.max_blocks = max64(totals.max_blocks, blocks);
    }
    for (int32_t lanes = 16; lanes > 0; lanes /= 2) {
        totals.blocks += __shfl_xor_sync(0xffffffffu, totals.blocks, lanes);
    }
    /* A request's blocks fit 32 bits; without requests there are as many as those hold. */
    totals.min_blocks = __reduce_min_sync(0xffffffffu,
                                          (uint32_t)min64(totals.min_blocks, UINT32_MAX));
    totals.max_blocks = __reduce_max_sync(0xffffffffu, (uint32_t)totals.max_blocks);
    if (threadIdx.x % 32 == 0) {
        warp_totals[threadIdx.x / 32] = totals;
    }
    __syncthreads();
    totals = warp_totals[0];
    for (int32_t i = 1; i < WARPS; ++i) {
        totals.blocks += warp_totals[i].blocks;
        totals.min_blocks = min64(totals.min_blocks, warp_totals[i].min_blocks);
        totals.max_blocks = max64(totals.max_blocks, warp_totals[i].max_blocks);
    }
    return totals;
}

/* Inclusive sum over the threads of the CTA. */
__device__ int64_t scan(int64_t value)
{
    __shared__ int64_t warp_sums[WARPS];
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t lanes = 1; lanes < 32; lanes *= 2) {
        const int64_t below = __shfl_up_sync(0xffffffffu, value, lanes);
        value += lane >= lanes ? below : 0;
    }
    if (lane == 31) {
        warp_sums[warp] = value;
    }
    __syncthreads();
#pragma unroll 4
    for (int32_t i = 0; i < warp; ++i) {
        value += warp_sums[i];
    }
    return value;
}

/* First cut of 1 ... num_parts that lies at `cost` or later. */
__device__ int32_t first_cut_from(const mla_cut_rule &rule, const mla_cut_choice &choice,
                                  int64_t cost)
{
    int32_t lo = 1, hi = choice.num_parts;
#pragma unroll 1
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (mla_cut_place(&rule, &choice, mid) < cost) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Until count_parts() runs, the blocks that lie before a part's end are parked in its counts. */
__device__ __forceinline__ void park(mla_plan_part &part, int64_t blocks_before_end)
{
    part.num_splits = (int32_t)(uint32_t)(uint64_t)blocks_before_end;
    part.num_blocks = (int32_t)(uint32_t)((uint64_t)blocks_before_end >> 32);
}

__device__ __forceinline__ int64_t parked(const mla_plan_part &part)
{
    return (int64_t)((uint64_t)(uint32_t)part.num_blocks << 32 | (uint32_t)part.num_splits);
}

__device__ __forceinline__ void write_cut(mla_plan_part *parts, int32_t cut_idx, mla_cut_pos cut,
                                          int64_t blocks_before)
{
    parts[cut_idx].begin_req = cut.req;
    parts[cut_idx].begin_block = cut.block;
    parts[cut_idx - 1].end_req = cut.req;
    parts[cut_idx - 1].end_block = cut.block;
    park(parts[cut_idx - 1], blocks_before);
}

/* Places the cuts from `from` on that fall into requests [first, first + THREADS), whose costs end
 * at ends[]. Returns the first cut behind them. */
__device__ int32_t place_cuts(const mla_sm90_plan_args &args, const mla_cut_choice &choice,
                              mla_plan_part *parts, const int64_t *ends, int64_t first,
                              int64_t chunk_begin, int32_t count, int32_t from)
{
    const mla_cut_rule &rule = args.rule;
    const bool last_chunk = first + count == rule.num_reqs;
    const int32_t to = last_chunk ? choice.num_parts
                                  : first_cut_from(rule, choice, ends[count - 1]);
    for (int32_t i = from + (int32_t)threadIdx.x; i < to; i += THREADS) {
        const int64_t place = mla_cut_place(&rule, &choice, i);
        int32_t lo = 0, hi = count - 1; /* the request whose costs hold the place */
        while (lo < hi) {
            const int32_t mid = (lo + hi) / 2;
            if (place < ends[mid]) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        const int64_t begin = lo > 0 ? ends[lo - 1] : chunk_begin;
        const int64_t blocks = mla_cut_blocks(&rule.cost,
                                              ends[lo] - begin - rule.cost.request_cost);
        const int64_t before = mla_cut_blocks(&rule.cost,
                                              begin - (first + lo) * rule.cost.request_cost);
        const mla_cut_pos cut = mla_cut_at(&rule, first + lo, blocks, place - begin);
        write_cut(parts, i, cut, before + (cut.req > first + lo ? blocks : cut.block));
    }
    return to;
}

/* Places all cuts where requests are equally long and divide evenly. */
__device__ void place_even_cuts(const mla_sm90_plan_args &args, const mla_cut_choice &choice,
                                mla_plan_part *parts, int64_t blocks)
{
    for (int32_t i = 1 + (int32_t)threadIdx.x; i < choice.num_parts; i += THREADS) {
        const mla_cut_pos cut = mla_cut_evenly(&args.rule, &choice, blocks, i);
        write_cut(parts, i, cut, cut.req * blocks + cut.block);
    }
}

/* First part behind part `part_idx` that ends in a later request. */
__device__ int32_t last_of_split(const mla_plan_part *parts, int32_t num_parts, int32_t part_idx)
{
    int32_t lo = part_idx + 1, hi = num_parts - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;
        if (parts[mid].end_req > parts[part_idx].end_req) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

/* Counts from the highest parts down: a part's count needs what its lower neighbour has parked.
 * Returns the split requests that this thread met. */
__device__ int32_t count_parts(mla_plan_part *parts, int32_t num_parts)
{
    int32_t num_split = 0;
    for (int32_t first = (num_parts - 1) / THREADS * THREADS; first >= 0; first -= THREADS) {
        const int32_t i = first + (int32_t)threadIdx.x;
        int64_t blocks = 0;
        int32_t splits = 0;
        if (i < num_parts) {
            blocks = parked(parts[i]) - (i > 0 ? parked(parts[i - 1]) : 0);
            splits = mla_cut_splits(&parts[i]) ? last_of_split(parts, num_parts, i) - i + 1 : 0;
        }
        __syncthreads();
        if (i < num_parts) {
            parts[i].num_blocks = (int32_t)min64(blocks, INT32_MAX);
            parts[i].num_splits = splits;
            num_split += splits > 0;
        }
        __syncthreads();
    }
    return num_split;
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_PLAN_THREADS, 1)
    mla_sm90_plan_cut(const __grid_constant__ mla_sm90_plan_args args)
{
    __shared__ int64_t ends[THREADS];
    __shared__ int32_t num_split_reqs;
    __shared__ __align__(16) mla_plan_part shared_parts[SHARED_PARTS];
    const mla_cut_rule &rule = args.rule;
    mla_plan_part *const plan_parts = (mla_plan_part *)(args.plan + 1);
    int64_t blocks;
    const mla_cut_totals totals = add_up(args, blocks);
    const mla_cut_choice choice = mla_cut_choose(&rule, &totals);
    /* Threads read each other's cuts again and again. */
    mla_plan_part *const parts = choice.num_parts <= SHARED_PARTS ? shared_parts : plan_parts;

    int64_t chunk_begin = 0;
    int32_t next_cut = 1;
    if (choice.even) {
        place_even_cuts(args, choice, parts, totals.max_blocks);
    }
    for (int64_t first = 0; first < rule.num_reqs && !choice.even; first += THREADS) {
        const int32_t count = (int32_t)min64(THREADS, rule.num_reqs - first);
        const int64_t req = first + threadIdx.x;
        if (first > 0 && req < rule.num_reqs) {
            blocks = load_blocks(args, req);
        }
        const int64_t cost = req < rule.num_reqs ? mla_cut_req_cost(&rule.cost, blocks) : 0;
        ends[threadIdx.x] = chunk_begin + scan(cost);
        __syncthreads();
        next_cut = place_cuts(args, choice, parts, ends, first, chunk_begin, count, next_cut);
        chunk_begin = ends[count - 1];
        __syncthreads();
    }
    const mla_plan_part idle = {rule.num_reqs, rule.num_reqs, 0, 0, 0, 0};
    for (int32_t i = choice.num_parts + (int32_t)threadIdx.x; i < rule.max_parts; i += THREADS) {
        plan_parts[i] = idle;
    }
    if (threadIdx.x == 0) {
        num_split_reqs = 0;
        parts[0].begin_req = 0;
        parts[0].begin_block = 0;
        mla_plan_part &last = parts[choice.num_parts - 1];
        last.end_req = rule.num_reqs;
        last.end_block = 0;
        park(last, totals.blocks);
    }
    __syncthreads();
    const int32_t num_split = count_parts(parts, choice.num_parts);
    for (int32_t i = (int32_t)threadIdx.x; parts != plan_parts && i < choice.num_parts * 2;
         i += THREADS) {
        ((uint4 *)plan_parts)[i] = ((const uint4 *)parts)[i];
    }
    if (num_split > 0) {
        atomicAdd(&num_split_reqs, num_split);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mla_plan_header header = {};
        header.magic = MLA_PLAN_MAGIC;
        header.num_parts = choice.num_parts;
        header.max_parts = rule.max_parts;
        header.num_reqs = rule.num_reqs;
        header.total_blocks = totals.blocks;
        header.num_split_reqs = num_split_reqs;
        *args.plan = header;
    }
}
