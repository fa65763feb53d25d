/*
 * The seesaw: two consumer warpgroups attend 64 query rows to pairs of blocks of 64 keys, each for
 * half of the output columns. docs/kernels/sm90-dense-decode.md draws the schedule.
 */
#ifndef MLA_CUDA_DENSE_SEESAW_CUH
#define MLA_CUDA_DENSE_SEESAW_CUH

#include "dense_store.cuh"

/* Whether keys have a ninth tile: always, never, or as args.d_qk says. */
enum rope_tile { ROPE_ALWAYS, ROPE_NEVER, ROPE_ASKED };

/*
 * What the consumers must know of their keys, at compile time. Keys that are gathered may be
 * missing anywhere in a block: sm.seen tells, and their rows are zero; threads wrote them, and
 * leave the order of that before the tensor cores' reads to the readers. Paged ones end with the
 * request, and rows past its end may hold anything.
 */
struct paged_keys {
    static constexpr rope_tile rope = ROPE_ALWAYS;
    static constexpr bool gathered = false;
    static constexpr bool maxima = false; /* whether the rows' largest products are wanted */
    /* Whether both numerators take turns in the left one's tile, and Q's ninth tile lies in the
     * right one's instead of 16 registers. */
    static constexpr bool shares_p = false;
    /* Whether two CTAs fill their buffers together. */
    static constexpr bool paired = false;
    /* That complete a phase of a tile's barrier. */
    static __device__ constexpr uint32_t arrivals(int32_t)
    {
        return 1;
    }
};

/* Phases of the barriers of a consumer's K buffer and of Q, a bit each: registers are short. */
enum { PHASE_K = 1, PHASE_Q = 2 };

__device__ __forceinline__ uint32_t take_phase(uint32_t &phases, uint32_t which)
{
    const uint32_t parity = (phases & which) != 0;
    phases ^= which;
    return parity;
}

/* The next tile of S, if the keys have it. */
template <bool f16, class Keys, int tile>
__device__ __forceinline__ void next_tile(const mla_sm90_dense_args &args, float (&s)[32],
                                          const uint32_t (&q8)[16], int buffer, uint32_t parity,
                                          bool first)
{
    constexpr int last_tile = Keys::rope == ROPE_ALWAYS ? 8 : 7;
    if constexpr (tile > last_tile) {
        if (Keys::rope == ROPE_NEVER || args.d_qk <= MLA_SM90_Q_TILES * MLA_SM90_TILE_COLS) {
            return;
        }
    }
    if constexpr (tile <= last_tile || Keys::rope == ROPE_ASKED) {
        qk_tile<f16, tile, Keys>(s, q8, buffer, parity, first);
    }
}

/* Hides what the rows do not see of a block, after its tiles have landed. V's rows that may hold
 * anything become zero. */
template <bool f16, class Keys, int side>
__device__ __forceinline__ void hide_keys(const mla_sm90_dense_args &args, const mla_piece &piece,
                                          float (&s)[32], int32_t block, int32_t all_see,
                                          int32_t row)
{
    if constexpr (Keys::gathered) {
        const uint64_t seen = shared().seen[side];
        if (seen != ~(uint64_t)0) {
            mask_unseen(args, s, seen);
        }
    } else if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
        mask_block(args, s, block, piece.tokens, row);
        clean_v_rows<f16, side, 4>(side, side * 4, all_see - block * MLA_BLOCK_TOKENS,
                                   piece.tokens - block * MLA_BLOCK_TOKENS);
    }
}

/* The same for the other side's block, whose keys that side has hidden: V's rows alone. */
template <bool f16, class Keys, int side>
__device__ __forceinline__ void drop_values(const mla_piece &piece, int32_t block, int32_t all_see)
{
    if (!Keys::gathered && (block + 1) * MLA_BLOCK_TOKENS > all_see) {
        clean_v_rows<f16, side, 4>(1 - side, side * 4, all_see - block * MLA_BLOCK_TOKENS,
                                   piece.tokens - block * MLA_BLOCK_TOKENS);
    }
}

/* The left warpgroup's part of one piece of at least one block. */
template <bool f16, class Keys>
__device__ __forceinline__ void attend_left(const mla_sm90_dense_args &args, const cta_place &place,
                                            const mla_piece &piece, int32_t all_see, uint32_t &at,
                                            const uint32_t (&q8)[16], float (&o)[128],
                                            row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = tile_lane_row(place);
    const uint64_t v0 = v_major<Keys>(0, 0), v1 = v_major<Keys>(1, 0);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t p[16];

    wait_for(sm.q_full, take_phase(at, PHASE_Q));
    int32_t block = piece.begin, accumulate = 0;
    for (;;) {
        /* S0. Its first tiles land first: the left half is released before the right one. */
        const uint32_t parity = take_phase(at, PHASE_K);
        wgmma_fence();
        next_tile<f16, Keys, 0>(args, s, q8, 0, parity, true);
        next_tile<f16, Keys, 1>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 2>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 3>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 4>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 5>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 6>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 7>(args, s, q8, 0, parity, false);
        next_tile<f16, Keys, 8>(args, s, q8, 0, parity, false);
        wgmma_commit();
        if (accumulate) {
            /* P1 V1_L of the previous pair, queued behind S0: it runs during the softmax. */
            bar_sync<BAR_P1_READY, CONSUMERS>();
            follow_references(o, true, rows, RIGHT);
            drop_values<f16, Keys, LEFT>(piece, block - 1, all_see);
            wgmma_fence();
            pv_ss<f16, Keys>(o, sm.p[Keys::shares_p ? LEFT : RIGHT], v1, 1);
            wgmma_commit();
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        hide_keys<f16, Keys, LEFT>(args, piece, s, block, all_see, row);
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, accumulate, p, scale, rows, LEFT);
        if (accumulate) {
            /* P1 V1_L of the previous pair ran behind S0 and is done about now. Left until P0 V0_L
             * is done too, its keys' successors come 700 clocks too late for S1. */
            wgmma_wait<0>();
            release_keys<Keys::paired>(sm.k_empty[1][0]);
        }
        wgmma_fence();
        pv_rs<f16, Keys>(o, p, v0, 0, accumulate);
        pv_rs<f16, Keys>(o, p, v0, 1, 1);
        wgmma_commit();
        if constexpr (Keys::maxima) {
            note_tops<0>(scale, s, rows);
        }
        softmax_half<f16, 1>(s, o, true, p, scale, rows, LEFT);
        wgmma_fence();
        pv_rs<f16, Keys>(o, p, v0, 2, 1);
        pv_rs<f16, Keys>(o, p, v0, 3, 1);
        wgmma_commit();
        store_p<Keys::shares_p>(p, LEFT, rows.raised);
        bar_arrive<BAR_P0_READY, CONSUMERS>();
        if constexpr (Keys::maxima) {
            note_tops<1>(scale, s, rows);
        }
        wgmma_wait<0>();
        wgmma_pin(o);
        release_keys<Keys::paired>(sm.k_empty[0][0]);
        accumulate = 1;
        block += 2;
        if (block > piece.end) {
            return;
        }
        bar_sync<BAR_QK1_ISSUED, CONSUMERS>();
        if (block == piece.end) {
            break;
        }
    }
    bar_sync<BAR_P1_READY, CONSUMERS>();
    follow_references(o, true, rows, RIGHT);
    drop_values<f16, Keys, LEFT>(piece, block - 1, all_see);
    wgmma_fence();
    pv_ss<f16, Keys>(o, sm.p[Keys::shares_p ? LEFT : RIGHT], v1, 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    release_keys<Keys::paired>(sm.k_empty[1][0]);
}

/* The right warpgroup's part of one piece of at least one block. */
template <bool f16, class Keys>
__device__ __forceinline__ void
attend_right(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
             int32_t all_see, uint32_t &at, const uint32_t (&q8)[16], float (&o)[128],
             row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = tile_lane_row(place);
    const uint64_t v0 = v_major<Keys>(0, 4), v1 = v_major<Keys>(1, 4);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t p[16];

    const uint32_t q_parity = take_phase(at, PHASE_Q);
    if (piece.begin + 1 == piece.end) {
        release(sm.q_empty); /* no odd block: this side never reads Q from shared memory */
    }
    int32_t accumulate = 0;
    for (int32_t block = piece.begin + 1;; block += 2) {
        bar_sync<BAR_P0_READY, CONSUMERS>();
        follow_references(o, accumulate, rows, LEFT);
        drop_values<f16, Keys, RIGHT>(piece, block - 1, all_see);
        wgmma_fence();
        pv_ss<f16, Keys>(o, sm.p[0], v0, accumulate);
        wgmma_commit();
        accumulate = 1;
        if (block >= piece.end) {
            break;
        }
        /* S1. Its right half was released first, by this warpgroup, so it is there first. */
        const uint32_t parity = take_phase(at, PHASE_K);
        wait_for(sm.q_full, q_parity);
        next_tile<f16, Keys, 4>(args, s, q8, 1, parity, true);
        wgmma_commit();
        /* P0 V0_R is done while four products of S1 keep the tensor cores busy. After all twenty of
         * this half it would be noticed 750 clocks later, and the next S0 wait for its keys. */
        wgmma_wait<1>();
        wgmma_pin(o);
        release_keys<Keys::paired>(sm.k_empty[0][1]);
        next_tile<f16, Keys, 5>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 6>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 7>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 8>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 0>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 1>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 2>(args, s, q8, 1, parity, false);
        next_tile<f16, Keys, 3>(args, s, q8, 1, parity, false);
        wgmma_commit();
        bar_arrive<BAR_QK1_ISSUED, CONSUMERS>();
        wgmma_wait<0>();
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        hide_keys<f16, Keys, RIGHT>(args, piece, s, block, all_see, row);
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, true, p, scale, rows, RIGHT);
        softmax_half<f16, 1>(s, o, true, p, scale, rows, RIGHT);
        store_p<Keys::shares_p>(p, RIGHT, rows.raised);
        bar_arrive<BAR_P1_READY, CONSUMERS>();
        wgmma_fence();
        pv_rs<f16, Keys>(o, p, v1, 0, 1);
        pv_rs<f16, Keys>(o, p, v1, 1, 1);
        pv_rs<f16, Keys>(o, p, v1, 2, 1);
        pv_rs<f16, Keys>(o, p, v1, 3, 1);
        wgmma_commit();
        if constexpr (Keys::maxima) {
            note_tops<0>(scale, s, rows);
            note_tops<1>(scale, s, rows);
        }
        wgmma_wait<0>();
        wgmma_pin(o);
        release_keys<Keys::paired>(sm.k_empty[1][1]);
        if (block + 1 >= piece.end) {
            return;
        }
    }
    wgmma_wait<0>();
    wgmma_pin(o);
    release_keys<Keys::paired>(sm.k_empty[0][1]);
}

/* The next piece that has keys; those without are stored. False at the end of the part. */
template <class Keys, class Args>
__device__ __forceinline__ bool next_keys(const Args &any, const cta_place &place, int32_t side,
                                          mla_part_walk &walk, mla_piece &piece)
{
    while (walk_next(any, walk, piece)) {
        if (piece.begin < piece.end) {
            return true;
        }
        store_empty_piece(rows_of(any), place, piece, side);
        if constexpr (Keys::maxima) {
            store_no_tops(any, place, piece, side);
        }
    }
    return false;
}

/*
 * One consumer warpgroup's way through its part. `Args` is that of the dense or the sparse kernel.
 * Where `side` is no constant, both sides run the same code but for the seesaw itself: small
 * batches wait for instructions, and with code for each side (9,300 instead of 6,700 instructions)
 * they took 2 to 3 us more. Sparse decode would spill.
 */
template <bool f16, class Keys, class Args>
__device__ __forceinline__ void consume(const Args &any, const cta_place &place, int32_t side)
{
    const mla_sm90_dense_args &args = rows_of(any);
    uint32_t q8[16];
    int32_t q8_req = first_req(args, place.part);
    if constexpr (!Keys::gathered) {
        /* Before the request's length is known, and before K's copies fill the memory's queues. */
        load_q8(args, place, q8_req, tile_lane_row(place), q8);
    }
    mla_part_walk walk = walk_begin(any, place.part, place.first_row);
    const int32_t first_token = row_token(args, place.first_row);
    uint32_t at = 0;
    mla_piece piece;
    while (next_keys<Keys>(any, place, side, walk, piece)) {
        if constexpr (Keys::rope != ROPE_NEVER && !Keys::shares_p) {
            if (Keys::gathered || piece.req != q8_req) {
                load_q8(args, place, piece.req, tile_lane_row(place), q8);
                q8_req = piece.req;
            }
        }
        float o[128];
        row_state rows = first_state(args, place);
        const int32_t all_see = token_limit(args, piece.tokens, first_token);
        if (side == LEFT) {
            attend_left<f16, Keys>(args, place, piece, all_see, at, q8, o, rows);
        } else {
            attend_right<f16, Keys>(args, place, piece, all_see, at, q8, o, rows);
        }
        if constexpr (Keys::maxima) {
            piece.split = false; /* those whose maxima are wanted are not cut */
            leave_tops(any, rows, side);
        }
        join_row_sums(rows, side);
        store_piece<f16>(args, place, piece, o, rows, side);
        if constexpr (Keys::maxima) {
            store_tops(any, place, piece, rows, side);
        }
    }
}

/* One thread initialises the mbarriers; a barrier of the CTA is to publish it. */
template <class Keys> __device__ __forceinline__ void set_up_barriers()
{
    mla_sm90_dense_smem &sm = shared();
    if (threadIdx.x == 0) {
        for (int32_t buffer = 0; buffer < 2; ++buffer) {
            for (int32_t tile = 0; tile < MLA_SM90_K_TILES; ++tile) {
                mbarrier_init(smem_addr(&sm.k_full[buffer][tile]), Keys::arrivals(tile));
            }
            mbarrier_init(smem_addr(&sm.k_empty[buffer][0]), Keys::paired ? 8 : 4);
            mbarrier_init(smem_addr(&sm.k_empty[buffer][1]), Keys::paired ? 8 : 4);
        }
        mbarrier_init(smem_addr(&sm.q_full), 1);
        mbarrier_init(smem_addr(&sm.q_empty), 8);
        mbarrier_init(smem_addr(&sm.q_first), 1);
        fence_mbarrier_init();
    }
}

template <class Keys> __device__ __forceinline__ void init_barriers()
{
    set_up_barriers<Keys>();
    if constexpr (Keys::paired) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

#endif
