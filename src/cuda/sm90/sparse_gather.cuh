/*
 * Producer of 16-bit rows: four warps copy 16 rows each of every block, 16 bytes a lane, straight
 * into the tiles. Eight lanes take the 128 bytes of a row in a tile, so a warp takes four rows.
 */
#ifndef MLA_CUDA_SPARSE_GATHER_CUH
#define MLA_CUDA_SPARSE_GATHER_CUH

#include "sparse_attend.cuh"

/* Where a lane copies from and to: four rows, each at one chunk of 16 bytes a tile. */
struct row_copies {
    const uint8_t *from[4];
    uint32_t to; /* in the tile; row groups of four alternate between two places in the swizzle */
};

/* Tiles `first` to `last` of a block. The arrival waits for the copies before it. */
template <int first, int last>
__device__ __forceinline__ void copy_tiles(const row_copies &rows, int32_t buffer, int32_t tiles,
                                           uint64_t policy)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t even = smem_addr(sm.k[buffer]) + rows.to, odd = even ^ 64;
#pragma unroll
    for (int32_t tile = first; tile <= last; ++tile) {
        if (tile == MLA_SM90_Q_TILES && tiles == MLA_SM90_Q_TILES) {
            continue;
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            cp_async_16((i % 2 == 0 ? even : odd) + tile * MLA_SM90_TILE_BYTES + i * 512,
                        rows.from[i] + tile * 128, policy);
        }
    }
    cp_async_arrive(smem_addr(&sm.k_full[buffer][first]));
}

__device__ __forceinline__ void gather_rows(const mla_sm90_sparse_args &args,
                                            const cta_place &place, uint64_t policy)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x / 32 % 4, lane = (int32_t)threadIdx.x % 32;
    const int32_t tiles = args.rows.d_qk / MLA_SM90_TILE_COLS;
    row_copies rows;
    rows.to = (warp * 16 + lane / 8) * 128 + (lane % 8 ^ lane / 8) * 16;
    uint32_t uses = 0; /* phases of k_empty, a bit for each buffer */

    begin_part(args, place);
    bool more = next_block(args);
    listed_key key = load_key();
    while (more) {
        const int32_t buffer = block_buffer();
        const uint8_t *row = find_row(args, key).data;
        const uint32_t seen = __ballot_sync(0xffffffffu, row != nullptr);
        row = row != nullptr ? row : (const uint8_t *)absent_row;
        /* The next block's entries are on their way while this one is copied. */
        more = next_block(args);
        key = load_key();
        want_q<false>(args);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            rows.from[i] = pointer_of_lane(row, 4 * i + lane / 8) + lane % 8 * 16;
        }
        uses ^= 1u << buffer;
#pragma unroll 1
        for (int32_t i = 0; i < 2; ++i) {
            /* The odd block's right half is released and read first. */
            const int32_t half = i ^ buffer;
            wait_for_room<false>(args, sm.k_empty[buffer][half], uses >> buffer & 1);
            if (half == 0) {
                copy_tiles<0, 3>(rows, buffer, tiles, policy);
                continue;
            }
            if (lane == 0) {
                ((uint16_t *)&sm.seen[buffer])[warp] = (uint16_t)seen;
                mbarrier_arrive(smem_addr(&sm.k_full[buffer][4]));
            }
            copy_tiles<4, 8>(rows, buffer, tiles, policy);
        }
    }
    end_part<false>(args);
}

/* Keys of d_qk 576 or 512 in 16 bits. */
template <bool wants_maxima> struct gathered_keys {
    static constexpr rope_tile rope = ROPE_ASKED;
    static constexpr bool gathered = true;
    static constexpr bool maxima = wants_maxima;
    static constexpr bool shares_p = false;
    static constexpr bool paired = false;
    static constexpr bool one_code = false; /* would spill */
    static constexpr int consumer_regs = 224, producer_regs = 56;
    static_assert(2 * consumer_regs + producer_regs <= 3 * 168, "setmaxnreg would never return");

    /* One of each thread, and of each warp in the half with which it publishes what there is. */
    static __device__ constexpr uint32_t arrivals(int32_t tile)
    {
        return tile == 4 ? 128 + 4 : 128;
    }

    static __device__ __forceinline__ void produce(const mla_sm90_sparse_args &args,
                                                   const cta_place &place)
    {
        /* In prefill many queries share a row; in decode each has rows of its own. */
        gather_rows(args, place, wants_maxima ? kL2EvictLast : kL2EvictFirst);
    }
};

#endif
