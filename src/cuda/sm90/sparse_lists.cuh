/* The lists of the sparse kernels: how many keys a query token has, and where their rows lie. */
#ifndef MLA_CUDA_SPARSE_LISTS_CUH
#define MLA_CUDA_SPARSE_LISTS_CUH

#include "dense_cta.cuh"
#include "ptx/tma.cuh"
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

__device__ __forceinline__ int32_t seen_tokens(const mla_sm90_sparse_args &, int32_t tokens,
                                               int32_t)
{
    return tokens;
}

template <> struct asks_ahead<mla_sm90_sparse_args> {
    static constexpr bool value = false;
};

__device__ __forceinline__ int32_t clamp_tokens(const mla_sm90_sparse_args &, int32_t tokens)
{
    return tokens; /* load_tokens() has done it */
}

/* Where a producer warp is among the blocks of a part. It lies in shared memory: registers are
 * short, and it is needed once a block. */
struct block_cursor {
    int32_t kv_head, first_row; /* of the CTA */
    mla_part_walk walk;
    mla_piece piece;
    int32_t block;
    bool more;                /* whether there is such a block */
    int32_t opens;            /* request that begins with this block; -1: none does */
    int32_t opened;           /* and with the block before */
    int32_t wanted;           /* request whose Q is to be fetched; -1: none */
    uint32_t pieces;          /* whose Q was fetched */
    int32_t first_tokens;     /* of the piece's keys, those of pool 0 */
    uint32_t seen;            /* of the warp's rows of a block, which there are, a bit each */
    const int32_t *list[2];   /* of the piece's request */
    uint64_t page_inverse[2]; /* ceil(2^64 / page size) of each pool, 0 for 1 */
    int32_t posted[16];       /* entries of a block to come, by post_keys() */
    uint32_t posted_second;   /* which of them are of pool 1, a bit each */
};

/* The dense plan of shared memory, and what gathering needs beside it. */
struct sparse_smem {
    mla_sm90_dense_smem dense;
    block_cursor cursor[4]; /* of each producer warp */
};

static_assert(sizeof(sparse_smem) <= MLA_SM90_SMEM_LIMIT, "shared memory");

__device__ __forceinline__ block_cursor &my_cursor()
{
    return ((sparse_smem *)smem_bytes)->cursor[threadIdx.x / 32 % 4];
}

__device__ __forceinline__ const int32_t *find_list(const mla_sm90_sparse_args &args,
                                                    const mla_sm90_sparse_pool &pool, int32_t req,
                                                    int32_t kv_head)
{
    const int32_t entry = req / args.rows.req_tokens;
    const int32_t token = req - entry * args.rows.req_tokens;
    return pool.indices + entry * pool.indices_stride[0] + token * pool.indices_stride[1] +
           kv_head * pool.indices_stride[2];
}

__device__ __forceinline__ uint64_t inverse(int32_t divisor)
{
    return divisor <= 1 ? 0 : ~(uint64_t)0 / (uint32_t)divisor + 1;
}

__device__ __forceinline__ void begin_part(const mla_sm90_sparse_args &args, const cta_place &place)
{
    const mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    block_cursor &at = my_cursor();
    if (threadIdx.x % 32 == 0) {
        at.kv_head = place.kv_head;
        at.first_row = place.first_row;
        at.walk = walk;
        at.block = 0;
        at.wanted = -1;
        at.pieces = 0;
        at.opens = -1;
        at.piece.begin = 0;
        at.piece.end = 0;
        at.piece.tokens = 0;
        at.page_inverse[0] = inverse(args.pool[0].page_size);
        at.page_inverse[1] = inverse(args.pool[1].page_size);
    }
    __syncwarp();
}

/* On to the next piece that has keys. */
__device__ __forceinline__ bool next_piece(const mla_sm90_sparse_args &args)
{
    block_cursor &at = my_cursor();
    mla_part_walk walk = at.walk;
    mla_piece piece;
    do {
        if (!walk_next(args, walk, piece)) {
            return false;
        }
    } while (piece.begin >= piece.end);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        at.walk = walk;
        at.piece = piece;
        at.first_tokens = list_length(args, args.pool[0], piece.req);
#pragma unroll 1
        for (int32_t i = 0; i < 2; ++i) {
            at.list[i] = find_list(args, args.pool[i], piece.req, at.kv_head);
        }
    }
    __syncwarp();
    return true;
}

/* On to the next block of the part, if there is one. */
__device__ __forceinline__ bool next_block(const mla_sm90_sparse_args &args)
{
    block_cursor &at = my_cursor();
    int32_t block = at.block + 1, opens = -1;
    bool more = true;
    if (block >= at.piece.end) {
        more = next_piece(args);
        block = at.piece.begin;
        opens = more ? at.piece.req : -1;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        at.block = block;
        at.opened = at.opens;
        at.opens = opens;
        at.more = more;
    }
    __syncwarp();
    return more;
}

/* The K buffer of the cursor's block. */
__device__ __forceinline__ int32_t block_buffer()
{
    const block_cursor &at = my_cursor();
    return __shfl_sync(0xffffffffu, (at.block - at.piece.begin) & 1, 0);
}

/* An entry of a list. */
struct listed_key {
    int32_t slot; /* negative: no key */
    bool second;  /* of pool 1 */
};

/* This lane's entry of the cursor's block: a warp has 16 rows, lanes 16 to 31 the same again. */
__device__ __forceinline__ listed_key load_key()
{
    const block_cursor &at = my_cursor();
    const int32_t thread = thread_index(), row = thread / 32 % 4 * 16 + thread % 16;
    listed_key key = {-1, false};
    const int32_t token = at.block * MLA_BLOCK_TOKENS + row;
    if (token < at.piece.tokens) {
        key.second = token >= at.first_tokens;
        key.slot = at.list[key.second][token - (key.second ? at.first_tokens : 0)];
    }
    return key;
}

/*
 * The same on its way to shared memory, to be taken an iteration later. A load into a register
 * would share one of six scoreboards with the rows' loads, and whoever needs the entry wait for
 * those too.
 */
__device__ __forceinline__ void post_keys()
{
    block_cursor &at = my_cursor();
    const int32_t thread = thread_index(), row = thread % 32;
    const int32_t token = at.block * MLA_BLOCK_TOKENS + thread / 32 % 4 * 16 + row;
    const bool second = token >= at.first_tokens;
    const uint32_t seconds = __ballot_sync(0xffffffffu, second) & 0xffff;
    if (row == 0) {
        at.posted_second = seconds;
    }
    if (row < 16) {
        if (token < at.piece.tokens) {
            cp_async_4((uint32_t)__cvta_generic_to_shared(&at.posted[row]),
                       at.list[second] + token - (second ? at.first_tokens : 0));
        } else {
            at.posted[row] = -1;
        }
    }
    cp_async_commit();
}

/* Lanes i and i + 16: entry i. */
__device__ __forceinline__ listed_key take_key()
{
    const block_cursor &at = my_cursor();
    const int32_t row = thread_index() % 16;
    cp_async_wait();
    __syncwarp();
    listed_key key;
    key.slot = at.posted[row];
    key.second = at.posted_second >> row & 1;
    return key;
}

/* What takes the place of a row that is missing: reading zeros spares every reader a condition. */
__device__ const uint4 absent_row[72] = {};

/* Where a key's row lies. */
struct key_row {
    const uint8_t *page;
    int32_t token; /* in the page */
    int32_t page_size;
    const uint8_t *data; /* null: there is no such row */
};

__device__ __forceinline__ key_row find_row(const mla_sm90_sparse_args &args, const listed_key &key)
{
    const mla_sm90_sparse_pool &pool = args.pool[key.second ? 1 : 0];
    key_row row = {};
    if (key.slot < 0 || key.slot >= pool.num_slots) {
        return row;
    }
    row.page_size = pool.page_size;
    const uint64_t inverse = my_cursor().page_inverse[key.second ? 1 : 0];
    const int32_t page = inverse == 0 ? key.slot : (int32_t)__umul64hi((uint64_t)key.slot, inverse);
    row.token = key.slot - page * row.page_size;
    row.page = pool.data + page * pool.page_stride;
    row.data = row.page + row.token * pool.token_stride + my_cursor().kv_head * pool.head_stride;
    return row;
}

/* A pointer that another lane holds. */
__device__ __forceinline__ const uint8_t *pointer_of_lane(const uint8_t *pointer, int32_t lane)
{
    return (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)pointer, lane);
}

#endif
