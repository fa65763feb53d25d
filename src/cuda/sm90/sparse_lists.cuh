/* The lists of the sparse kernels: how many keys a query token has, and where their rows lie. */
#ifndef MLA_CUDA_SPARSE_LISTS_CUH
#define MLA_CUDA_SPARSE_LISTS_CUH

#include "pieces.cuh"
#include "sparse_args.h"

__device__ __forceinline__ const mla_sm90_dense_args &rows_of(const mla_sm90_sparse_args &args)
{
    return args.rows;
}

/* Entries of a pool's list that count. */
__device__ __forceinline__ int32_t list_length(const mla_sm90_sparse_args &args,
                                               const mla_sm90_sparse_pool &pool, int32_t req)
{
    if (pool.lengths == nullptr) {
        return pool.topk;
    }
    return min(max(pool.lengths[req / args.lengths_tokens], 0), pool.topk);
}

__device__ __forceinline__ int32_t load_tokens(const mla_sm90_sparse_args &args, int32_t req)
{
    if (req >= args.rows.batch) {
        return 0;
    }
    return list_length(args, args.pool[0], req) + list_length(args, args.pool[1], req);
}

/* Walks the blocks of a part, those of all its pieces in a row. */
struct block_cursor {
    mla_part_walk walk;
    mla_piece piece;
    int32_t block;
    bool more;              /* whether there is such a block */
    int32_t first_tokens;   /* of the piece's keys, those of pool 0 */
    const int32_t *list[2]; /* of the piece's request */
};

__device__ __forceinline__ const int32_t *find_list(const mla_sm90_sparse_args &args,
                                                    const mla_sm90_sparse_pool &pool, int32_t req,
                                                    int32_t kv_head)
{
    const int32_t entry = req / args.rows.req_tokens;
    const int32_t token = req - entry * args.rows.req_tokens;
    return pool.indices + entry * pool.indices_stride[0] + token * pool.indices_stride[1] +
           kv_head * pool.indices_stride[2];
}

/* On to the next block; pieces without keys have none. */
__device__ __forceinline__ void advance(const mla_sm90_sparse_args &args, int32_t kv_head,
                                        block_cursor &at)
{
    at.block++;
    if (at.block < at.piece.end) {
        return;
    }
    do {
        at.more = walk_next(args, at.walk, at.piece);
    } while (at.more && at.piece.begin >= at.piece.end);
    if (at.more) {
        at.block = at.piece.begin;
        at.first_tokens = list_length(args, args.pool[0], at.piece.req);
        at.list[0] = find_list(args, args.pool[0], at.piece.req, kv_head);
        at.list[1] = find_list(args, args.pool[1], at.piece.req, kv_head);
    }
}

__device__ __forceinline__ block_cursor first_block(const mla_sm90_sparse_args &args,
                                                    const mla_plan_part &part, int32_t first_row,
                                                    int32_t kv_head)
{
    block_cursor at;
    at.walk = walk_begin(args, part, first_row);
    at.block = 0;
    at.piece.end = 0;
    advance(args, kv_head, at);
    return at;
}

/* An entry of a list. */
struct listed_key {
    int32_t slot; /* negative: no key */
    bool second;  /* of pool 1 */
};

/* Entry `row` of the cursor's block. */
__device__ __forceinline__ listed_key load_key(const block_cursor &at, int32_t row)
{
    listed_key key = {-1, false};
    const int32_t token = at.block * MLA_BLOCK_TOKENS + row;
    if (at.more && token < at.piece.tokens) {
        key.second = token >= at.first_tokens;
        key.slot = key.second ? at.list[1][token - at.first_tokens] : at.list[0][token];
    }
    return key;
}

/* What takes the place of a row that is missing: reading zeros spares every reader a condition. */
__device__ const uint4 absent_row[72] = {};

/* Where a key's row lies; null if there is no such row. Bytes of a page beside it: */
struct key_row {
    const uint8_t *page;
    int32_t token; /* in the page */
    int32_t page_size;
    const uint8_t *data;
};

__device__ __forceinline__ key_row find_row(const mla_sm90_sparse_args &args, const listed_key &key,
                                            int32_t kv_head)
{
    const mla_sm90_sparse_pool &first = args.pool[0], &extra = args.pool[1];
    key_row row = {};
    if (key.slot < 0 || key.slot >= (key.second ? extra.num_slots : first.num_slots)) {
        return row;
    }
    row.page_size = key.second ? extra.page_size : first.page_size;
    const int32_t page = (int32_t)((uint32_t)key.slot / (uint32_t)row.page_size);
    row.token = key.slot - page * row.page_size;
    row.page = (key.second ? extra.data : first.data) +
               page * (key.second ? extra.page_stride : first.page_stride);
    row.data = row.page + row.token * (key.second ? extra.token_stride : first.token_stride) +
               kv_head * (key.second ? extra.head_stride : first.head_stride);
    return row;
}

/* A pointer that another lane holds. */
__device__ __forceinline__ const uint8_t *pointer_of_lane(const uint8_t *pointer, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)pointer, lane);
}

#endif
