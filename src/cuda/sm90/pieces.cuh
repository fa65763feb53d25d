/* Walking a part of the schedule: which blocks of which requests a CTA attends to. */
#ifndef MLA_CUDA_PIECES_CUH
#define MLA_CUDA_PIECES_CUH

#include "rows.cuh"

/* One request's share of a part, seen by one row tile. All warps of a CTA derive the same. */
struct mla_piece {
    int32_t req;
    int32_t tokens;     /* of the request, clamped to its block table */
    int32_t begin, end; /* blocks; those that no row of the tile sees are left out */
    bool split;         /* other parts hold the rest of the request */
    int32_t partial;    /* then: which partial of the part this is, 0 or 1 */
};

struct mla_part_walk {
    int32_t begin_req, begin_block, end_req, end_block;
    int32_t last_token; /* of the row tile, for the causal limit */
    int32_t next_tokens;
};

__device__ __forceinline__ int32_t ceil_div(int32_t a, int32_t b)
{
    return (int32_t)(((uint32_t)a + (uint32_t)b - 1) / (uint32_t)b);
}

/* Keys that a query token sees. */
__device__ __forceinline__ int32_t token_limit(const mla_sm90_dense_args &args, int32_t tokens,
                                               int32_t token)
{
    if (!args.causal) {
        return tokens;
    }
    return max(0, tokens - args.s_q + 1 + min(token, args.s_q - 1));
}

/* What walking needs, of either kind of arguments; sparse_lists.cuh has the other: the common part,
 * a request's keys, and those of them that a token sees. */
__device__ __forceinline__ const mla_sm90_dense_args &rows_of(const mla_sm90_dense_args &args)
{
    return args;
}

__device__ __forceinline__ int32_t load_tokens(const mla_sm90_dense_args &args, int32_t req)
{
    return req < args.batch ? args.seqlens[req] : 0;
}

/* What may be done with a length only once it is needed: it waits for the load. */
__device__ __forceinline__ int32_t clamp_tokens(const mla_sm90_dense_args &args, int32_t tokens)
{
    return min(max(tokens, 0), args.max_tokens);
}

/* The request of a part's first piece; foreign bytes lead to the batch's end at most. */
__device__ __forceinline__ int32_t first_req(const mla_sm90_dense_args &args,
                                             const mla_plan_part &part)
{
    return (int32_t)min(max(part.begin_req, (int64_t)0), (int64_t)args.batch);
}

__device__ __forceinline__ int32_t seen_tokens(const mla_sm90_dense_args &args, int32_t tokens,
                                               int32_t token)
{
    return token_limit(args, tokens, token);
}

/* Whether a walk asks for the next request's length while this one is attended to; it costs a
 * register. */
template <class Args> struct asks_ahead {
    static constexpr bool value = true;
};

/* Stale or foreign bytes in the plan buffer must not lead outside any array, hence the clamps. */
template <class Args>
__device__ __forceinline__ mla_part_walk walk_begin(const Args &any, const mla_plan_part &part,
                                                    int32_t first_row)
{
    const mla_sm90_dense_args &args = rows_of(any);
    mla_part_walk walk;
    walk.begin_req = first_req(args, part);
    walk.end_req = (int32_t)min(part.end_req, (int64_t)args.batch);
    walk.begin_block = max(part.begin_block, 0);
    walk.end_block = walk.end_req < args.batch ? part.end_block : 0;
    walk.last_token = row_token(args, first_row + MLA_SM90_TILE_ROWS - 1);
    walk.next_tokens = asks_ahead<Args>::value ? load_tokens(any, walk.begin_req) : 0;
    return walk;
}

/*
 * The next piece; false at the end of the part. The following length is already on its way. A part
 * that is empty inside a request has one empty piece: the merge expects a partial of it.
 */
template <class Args>
__device__ __forceinline__ bool walk_next(const Args &any, mla_part_walk &walk, mla_piece &piece)
{
    const mla_sm90_dense_args &args = rows_of(any);
    const bool last = walk.begin_req == walk.end_req;
    if (walk.begin_req > walk.end_req || (last && walk.end_block == 0)) {
        return false;
    }
    piece.req = walk.begin_req;
    piece.tokens = clamp_tokens(any, asks_ahead<Args>::value ? walk.next_tokens
                                                             : load_tokens(any, piece.req));
    const int32_t blocks = ceil_div(piece.tokens, MLA_BLOCK_TOKENS);
    const int32_t seen = ceil_div(seen_tokens(any, piece.tokens, walk.last_token),
                                  MLA_BLOCK_TOKENS);
    piece.begin = walk.begin_block;
    piece.end = min(seen, last ? walk.end_block : blocks);
    /* Without partials nothing is split, whatever the plan's bytes say. */
    piece.split = (walk.begin_block > 0 || last) && args.partials != nullptr;
    piece.partial = walk.begin_block == 0 ? 1 : 0;
    walk.begin_req++;
    walk.begin_block = 0;
    if (asks_ahead<Args>::value) {
        walk.next_tokens = load_tokens(any, walk.begin_req);
    }
    return true;
}

#endif
