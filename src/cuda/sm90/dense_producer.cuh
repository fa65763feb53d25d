/* The producer warps of dense decode: copies of K and Q into shared memory. */
#ifndef MLA_CUDA_DENSE_PRODUCER_CUH
#define MLA_CUDA_DENSE_PRODUCER_CUH

#include "dense_cta.cuh"
#include "ptx/tma.cuh"

/* Where a block lies that lies in one page. */
struct block_page {
    int32_t page;
    int32_t first_token; /* in the page */
};

/*
 * The page of a block, where a block lies in one. It is looked up before it is known whether the
 * request has such a block: the table has an entry of any value then, and nothing is copied.
 */
__device__ __forceinline__ block_page look_up_page(const mla_sm90_dense_args &args, int32_t req,
                                                   int32_t block)
{
    block_page at = {0, 0};
    /* Unsigned, since foreign bytes in the plan may have made the block's number wrap. */
    const bool in_table = (uint32_t)block < (uint32_t)args.max_tokens / MLA_BLOCK_TOKENS;
    if (args.page_blocks > 0 && req < args.batch && in_table) {
        const int32_t idx = divide(block, args.page_blocks_inverse);
        at.first_token = (block - idx * args.page_blocks) * MLA_BLOCK_TOKENS;
        at.page = load_now(args.block_table + req * args.block_table_stride + idx);
    }
    return at;
}

/* Copies one block's tile of K, box by box, where pages are smaller than the block. Pages past the
 * request's last token are not looked up: the table's entry may be anything. */
__device__ __forceinline__ void copy_small_pages(const mla_sm90_dense_args &args,
                                                 const mla_piece &piece, int32_t block, uint32_t to,
                                                 uint32_t full, int32_t column, int32_t kv_head)
{
    const int32_t *pages = args.block_table + piece.req * args.block_table_stride +
                           block * args.block_pages;
    const int32_t page_bytes = args.page_size * MLA_SM90_TILE_COLS * 2;
    const int32_t tokens = min(MLA_BLOCK_TOKENS, piece.tokens - block * MLA_BLOCK_TOKENS);
    const int32_t num_pages = ceil_div(tokens * args.block_pages, MLA_BLOCK_TOKENS);
    mbarrier_arrive_expect_tx(full, num_pages * page_bytes);
#pragma unroll 1
    for (int32_t i = 0; i < num_pages; ++i) {
        tma_load_4d(to + i * page_bytes, &args.kv_map, full, kL2EvictFirst, column, 0, pages[i],
                    kv_head);
    }
}

/* Copies one block's tile `tile` of K. */
__device__ __forceinline__ void copy_k_tile(const mla_sm90_dense_args &args, const mla_piece &piece,
                                            int32_t block, block_page at, int32_t buffer,
                                            int32_t tile, int32_t kv_head)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t full = smem_addr(&sm.k_full[buffer][tile]);
    const uint32_t to = smem_addr(sm.k[buffer][tile]);
    const int32_t column = tile * MLA_SM90_TILE_COLS;
    if (args.page_blocks > 0) {
        mbarrier_arrive_expect_tx(full, MLA_SM90_TILE_BYTES);
        tma_load_4d(to, &args.kv_map, full, kL2EvictFirst, column, at.first_token, at.page,
                    kv_head);
    } else {
        copy_small_pages(args, piece, block, to, full, column, kv_head);
    }
}

/* Q's first eight tiles, or all nine where P leaves room for the last, whose bytes complete on
 * `full`. The consumers have issued and finished their last use of the old. */
template <bool shares_p>
__device__ __forceinline__ void copy_q(const mla_sm90_dense_args &args, const cta_place &place,
                                       int32_t req, int32_t lane,
                                       const uint64_t &full = shared().q_full)
{
    mla_sm90_dense_smem &sm = shared();
    if (lane == 0) {
        mbarrier_arrive_expect_tx(smem_addr(&full),
                                  sizeof sm.q + (shares_p ? MLA_SM90_TILE_BYTES : 0));
    }
    __syncwarp();
    if (lane < MLA_SM90_Q_TILES + (shares_p ? 1 : 0)) {
        const int32_t entry = divide(req, args.req_tokens_inverse);
        const int32_t token = divide(place.first_row, args.q_dim_rows_inverse);
        const void *to = lane < MLA_SM90_Q_TILES ? sm.q[lane] : sm.p[RIGHT];
        tma_load_5d(smem_addr(to), &args.q_map, smem_addr(&full), kL2EvictLast,
                    lane * MLA_SM90_TILE_COLS, place.first_row - token * args.q_dim_rows,
                    place.kv_head, token + req - entry * args.req_tokens, entry);
    }
}

/* Brings Q of the next piece with keys. `early` is the request whose Q is on its way already, -1 if
 * there is none: mostly it is this one. */
__device__ __forceinline__ void bring_q(const mla_sm90_dense_args &args, const cta_place &place,
                                        int32_t req, int32_t lane, int32_t &early, uint32_t &pieces)
{
    mla_sm90_dense_smem &sm = shared();
    wait_for(sm.q_empty, ++pieces & 1);
    if (early >= 0) {
        wait_for(sm.q_first, 0);
    }
    if (req != early) {
        copy_q<false>(args, place, req, lane);
    } else if (lane == 0) {
        mbarrier_arrive(smem_addr(&sm.q_full));
    }
    early = -1;
    __syncwarp();
}

/* Warp 2 * buffer + half fills that half of that buffer; the last warp also fetches Q. */
__device__ __forceinline__ void produce(const mla_sm90_dense_args &args, const cta_place &place)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x / 32 % 4, lane = (int32_t)threadIdx.x % 32;
    const int32_t buffer = warp / 2, half = warp % 2;
    const int32_t tile = half * 4 + lane;
    const bool copies = lane < (half == 0 ? 4 : 5);
    uint32_t uses = 0, pieces = 0;

    /* A piece's first page is on its way together with the request's length: the other way round
     * the compiler waits for the length first. So is the part's first Q, before it is known whether
     * its request has keys: behind K's first copies it would share the way to shared memory. */
    const int32_t req = first_req(args, place.part);
    block_page page = look_up_page(args, req, max(place.part.begin_block, 0) + buffer);
    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    mla_piece piece;
    int32_t early = -1;
    bar_sync<BAR_INIT, MLA_SM90_THREADS>();
    if (warp == 3 && req < args.batch) {
        early = req;
        copy_q<false>(args, place, req, lane, sm.q_first);
        __syncwarp();
    }
    for (; walk_next(args, walk, piece); page = look_up_page(args, walk.begin_req, buffer)) {
        if (piece.begin >= piece.end) {
            continue;
        }
        if (warp == 3) {
            bring_q(args, place, piece.req, lane, early, pieces);
        }
        for (int32_t block = piece.begin + buffer; block < piece.end; block += 2) {
            wait_for(sm.k_empty[buffer][half], ++uses & 1);
            if (copies) {
                copy_k_tile(args, piece, block, page, buffer, tile, place.kv_head);
            }
            __syncwarp();
            page = look_up_page(args, piece.req, block + 2);
        }
    }
    if (early >= 0) {
        wait_for(sm.q_first, 0); /* a copy must not outlive the CTA */
    }
}

#endif
