/*
 * Dense decode on sm_90a: a CTA attends 64 query rows of a request to blocks of 64 keys and keeps
 * all 512 output columns, half in each of two consumer warpgroups (the seesaw).
 *
 *   left   S0 = Q K0^T, P0;  O_L += P0 V0_L, then P1 V1_L
 *   right  S1 = Q K1^T, P1;  O_R += P0 V0_R, then P1 V1_R
 *   producer  four warps, one for each half of the two K buffers, one lane a tile
 *
 * While one warpgroup computes exponentials the other's products run. The softmax has no row
 * maximum in its common path: p = exp2(s - ref) against a reference that is only raised, and the
 * accumulators with it, when a sum leaves the range of the 16-bit format. After normalisation the
 * reference cancels. Limits: the tensor cores at the clock that power allows (128 heads), HBM
 * (64 heads and fewer). The schedule is drawn in docs/kernels/sm90-dense-decode.md.
 */
#include "dense_columns.cuh"
#include "dense_producer.cuh"

/* The left warpgroup's part of one piece of at least one block. */
template <bool f16>
__device__ __forceinline__ void attend_left(const mla_sm90_dense_args &args, const cta_place &place,
                                            const mla_piece &piece, int32_t all_see, phases &at,
                                            float (&o)[128], row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const uint64_t v0 = v_major(sm.k[0][0]), v1 = v_major(sm.k[1][0]);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t q8[16], p[16];

    load_q8(args, place, piece.req, row, q8);
    wait_for(sm.q_full, at.q++ & 1);
    int32_t block = piece.begin, accumulate = 0;
    for (;;) {
        /* S0. Its first tiles land first: the left half is released before the right one. */
        const uint32_t parity = at.k[0]++ & 1;
        wgmma_fence();
        qk_tile<f16, 0>(s, q8, 0, parity, true);
        qk_tile<f16, 1>(s, q8, 0, parity, false);
        qk_tile<f16, 2>(s, q8, 0, parity, false);
        qk_tile<f16, 3>(s, q8, 0, parity, false);
        qk_tile<f16, 4>(s, q8, 0, parity, false);
        qk_tile<f16, 5>(s, q8, 0, parity, false);
        qk_tile<f16, 6>(s, q8, 0, parity, false);
        qk_tile<f16, 7>(s, q8, 0, parity, false);
        qk_tile<f16, 8>(s, q8, 0, parity, false);
        wgmma_commit();
        if (accumulate) {
            /* P1 V1_L of the previous pair, queued behind S0: it runs during the softmax. */
            bar_sync<BAR_P1_READY, CONSUMERS>();
            follow_references(o, rows, RIGHT);
            wgmma_fence();
            pv_ss<f16>(o, sm.p[1], v1, 1);
            wgmma_commit();
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            if ((block + 1) * MLA_BLOCK_TOKENS > piece.tokens) {
                zero_v_rows<LEFT, 4>(0, 0, piece.tokens - block * MLA_BLOCK_TOKENS);
            }
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, scale, rows, LEFT);
        if (accumulate) {
            /* P1 V1_L of the previous pair ran behind S0 and is done about now. Left until P0 V0_L
             * is done too, its keys' successors come 700 clocks too late for S1. */
            wgmma_wait<0>();
            release(sm.k_empty[1][0]);
        }
        wgmma_fence();
        pv_rs<f16>(o, p, v0, 0, accumulate);
        pv_rs<f16>(o, p, v0, 1, 1);
        wgmma_commit();
        softmax_half<f16, 1>(s, o, p, scale, rows, LEFT);
        wgmma_fence();
        pv_rs<f16>(o, p, v0, 2, 1);
        pv_rs<f16>(o, p, v0, 3, 1);
        wgmma_commit();
        store_p(p, LEFT, rows.raised);
        bar_arrive<BAR_P0_READY, CONSUMERS>();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[0][0]);
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
    follow_references(o, rows, RIGHT);
    if (block * MLA_BLOCK_TOKENS > piece.tokens) {
        zero_v_rows<LEFT, 4>(1, 0, piece.tokens - (block - 1) * MLA_BLOCK_TOKENS);
    }
    wgmma_fence();
    pv_ss<f16>(o, sm.p[1], v1, 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    release(sm.k_empty[1][0]);
}

/* The right warpgroup's part of one piece of at least one block. */
template <bool f16>
__device__ __forceinline__ void
attend_right(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
             int32_t all_see, phases &at, float (&o)[128], row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const uint64_t v0 = v_major(sm.k[0][4]), v1 = v_major(sm.k[1][4]);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t q8[16], p[16];

    load_q8(args, place, piece.req, row, q8);
    const uint32_t q_parity = at.q++ & 1;
    if (piece.begin + 1 == piece.end) {
        release(sm.q_empty); /* no odd block: this side never reads Q from shared memory */
    }
    int32_t accumulate = 0;
    for (int32_t block = piece.begin + 1;; block += 2) {
        bar_sync<BAR_P0_READY, CONSUMERS>();
        follow_references(o, rows, LEFT);
        if (block * MLA_BLOCK_TOKENS > piece.tokens) {
            zero_v_rows<RIGHT, 4>(0, 4, piece.tokens - (block - 1) * MLA_BLOCK_TOKENS);
        }
        wgmma_fence();
        pv_ss<f16>(o, sm.p[0], v0, accumulate);
        wgmma_commit();
        accumulate = 1;
        if (block >= piece.end) {
            break;
        }
        /* S1. Its right half was released first, by this warpgroup, so it is there first. */
        const uint32_t parity = at.k[1]++ & 1;
        wait_for(sm.q_full, q_parity);
        qk_tile<f16, 4>(s, q8, 1, parity, true);
        wgmma_commit();
        /* P0 V0_R is done while four products of S1 keep the tensor cores busy. After all twenty of
         * this half it would be noticed 750 clocks later, and the next S0 wait for its keys. */
        wgmma_wait<1>();
        wgmma_pin(o);
        release(sm.k_empty[0][1]);
        qk_tile<f16, 5>(s, q8, 1, parity, false);
        qk_tile<f16, 6>(s, q8, 1, parity, false);
        qk_tile<f16, 7>(s, q8, 1, parity, false);
        qk_tile<f16, 8>(s, q8, 1, parity, false);
        qk_tile<f16, 0>(s, q8, 1, parity, false);
        qk_tile<f16, 1>(s, q8, 1, parity, false);
        qk_tile<f16, 2>(s, q8, 1, parity, false);
        qk_tile<f16, 3>(s, q8, 1, parity, false);
        wgmma_commit();
        bar_arrive<BAR_QK1_ISSUED, CONSUMERS>();
        wgmma_wait<0>();
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            if ((block + 1) * MLA_BLOCK_TOKENS > piece.tokens) {
                zero_v_rows<RIGHT, 4>(1, 4, piece.tokens - block * MLA_BLOCK_TOKENS);
            }
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, scale, rows, RIGHT);
        softmax_half<f16, 1>(s, o, p, scale, rows, RIGHT);
        store_p(p, RIGHT, rows.raised);
        bar_arrive<BAR_P1_READY, CONSUMERS>();
        wgmma_fence();
        pv_rs<f16>(o, p, v1, 0, 1);
        pv_rs<f16>(o, p, v1, 1, 1);
        pv_rs<f16>(o, p, v1, 2, 1);
        pv_rs<f16>(o, p, v1, 3, 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[1][1]);
        if (block + 1 >= piece.end) {
            return;
        }
    }
    wgmma_wait<0>();
    wgmma_pin(o);
    release(sm.k_empty[0][1]);
}

template <bool f16, int side>
__device__ __forceinline__ void consume(const mla_sm90_dense_args &args, const cta_place &place)
{
    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    const int32_t first_token = row_token(args, place.first_row);
    phases at = {{0, 0}, 0};
    mla_piece piece;
    while (walk_next(args, walk, piece)) {
        if (piece.begin >= piece.end) {
            store_empty_piece<side>(args, place, piece);
            continue;
        }
        float o[128];
        row_state rows = first_state(args, place);
        const int32_t all_see = token_limit(args, piece.tokens, first_token);
        if constexpr (side == LEFT) {
            attend_left<f16>(args, place, piece, all_see, at, o, rows);
        } else {
            attend_right<f16>(args, place, piece, all_see, at, o, rows);
        }
        join_row_sums(rows, side);
        store_piece<f16, side>(args, place, piece, o, rows);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Kernels
 * ---------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void init_barriers()
{
    mla_sm90_dense_smem &sm = shared();
    if (threadIdx.x == 0) {
        for (int32_t buffer = 0; buffer < 2; ++buffer) {
            for (int32_t tile = 0; tile < MLA_SM90_K_TILES; ++tile) {
                mbarrier_init(smem_addr(&sm.k_full[buffer][tile]), 1);
            }
            mbarrier_init(smem_addr(&sm.k_empty[buffer][0]), 4);
            mbarrier_init(smem_addr(&sm.k_empty[buffer][1]), 4);
        }
        mbarrier_init(smem_addr(&sm.q_full), 1);
        mbarrier_init(smem_addr(&sm.q_empty), 8);
        fence_mbarrier_init();
    }
    __syncthreads();
}

template <bool f16, int side, bool may_share_columns>
__device__ __forceinline__ void consume_any(const mla_sm90_dense_args &args, cta_place place)
{
    int32_t thread = 0;
    forget_origin(place, thread);
    if (!may_share_columns || place.column_parts == 1) {
        place.column_part = 0;
        consume<f16, side>(args, place);
    } else if constexpr (may_share_columns) {
        /* For itself: what the variants share would be computed before and held throughout. */
        forget_origin(place, thread);
        consume_columns<f16, side>(args, place);
    }
}

template <bool f16, bool may_share_columns>
__device__ __forceinline__ void dense_decode(const mla_sm90_dense_args &args)
{
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&args.q_map);
        tensor_map_prefetch(&args.kv_map);
    }
    init_barriers();
    /* All of this overlapped the launch before; nothing of it read the caller's memory. */
    wait_dependencies();
    const cta_place place = find_place<may_share_columns>(args);
    const int32_t role = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / WARPGROUP, 0);
    if (role == LEFT) {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume_any<f16, LEFT, may_share_columns>(args, place);
    } else if (role == RIGHT) {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume_any<f16, RIGHT, may_share_columns>(args, place);
    } else {
        setmaxnreg_dec<PRODUCER_REGS>();
        produce(args, place);
        launch_dependents();
    }
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<false, false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<true, false>(args);
}

/* For batches so small that plans may divide the columns among CTAs. */
extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_bf16_small(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<false, true>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_f16_small(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<true, true>(args);
}
