/* Dense decode of small batches: several CTAs share the columns of a piece. */
#ifndef MLA_CUDA_DENSE_COLUMNS_CUH
#define MLA_CUDA_DENSE_COLUMNS_CUH

#include "dense_store.cuh"

/* Phases of the K and Q barriers that a consumer has used up. */
struct phases {
    uint32_t k[2], q;
};

/*
 * Few keys, several CTAs to a piece: each repeats the products with K and keeps a
 * quarter of O's columns.
 * The warpgroups take the even and the odd blocks on their own; with one or two blocks to a piece
 * the seesaw would have nothing to alternate.
 */
template <bool f16, int side>
__device__ __forceinline__ void
attend_columns(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
               int32_t all_see, phases &at, const uint32_t (&q8)[16], float (&o)[CTA_COLUMNS / 2],
               row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = tile_lane_row(place);
    const int32_t first_tile = place.column_part * (CTA_COLUMNS / MLA_SM90_TILE_COLS);
    const uint64_t v = v_major(sm.k[side][first_tile]);
    float s[32];
    uint32_t p[16];

    wait_for(sm.q_full, at.q++ & 1);
    int32_t accumulate = 0;
    for (int32_t block = piece.begin + side; block < piece.end; block += 2) {
        const uint32_t parity = at.k[side]++ & 1;
        qk_tile<f16, 0>(s, q8, side, parity, true);
        qk_tile<f16, 1>(s, q8, side, parity, false);
        qk_tile<f16, 2>(s, q8, side, parity, false);
        qk_tile<f16, 3>(s, q8, side, parity, false);
        qk_tile<f16, 4>(s, q8, side, parity, false);
        qk_tile<f16, 5>(s, q8, side, parity, false);
        qk_tile<f16, 6>(s, q8, side, parity, false);
        qk_tile<f16, 7>(s, q8, side, parity, false);
        qk_tile<f16, 8>(s, q8, side, parity, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            clean_v_rows<f16, side, CTA_COLUMNS / MLA_SM90_TILE_COLS>(
                side, first_tile, all_see - block * MLA_BLOCK_TOKENS,
                piece.tokens - block * MLA_BLOCK_TOKENS);
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, args.scale_log2, rows, side);
        softmax_half<f16, 1>(s, o, p, args.scale_log2, rows, side);
        wgmma_fence();
        pv_rs<f16>(o, p, v, 0, accumulate);
        pv_rs<f16>(o, p, v, 1, 1);
        pv_rs<f16>(o, p, v, 2, 1);
        pv_rs<f16>(o, p, v, 3, 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[side][0]);
        release(sm.k_empty[side][1]);
        accumulate = 1;
    }
}

/* Factors that take this warpgroup's accumulators to the higher reference of both.
 * The lanes' sums become those of both, against the higher reference. */
template <int side>
__device__ __forceinline__ void weigh_sides(row_state &rows, float &factor0, float &factor1)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 == 0) {
        sm.row_ref[side][row] = rows.ref0;
        sm.row_ref[side][row + 8] = rows.ref1;
        sm.row_sum[side][row] = rows.sum0;
        sm.row_sum[side][row + 8] = rows.sum1;
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
    float *refs[2] = {&rows.ref0, &rows.ref1}, *sums[2] = {&rows.sum0, &rows.sum1};
    float *factors[2] = {&factor0, &factor1};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const float left = sm.row_ref[LEFT][row + 8 * i], right = sm.row_ref[RIGHT][row + 8 * i];
        const float top = fmaxf(left, right);
        const float to_left = reference_factor(left, top), to_right = reference_factor(right, top);
        const float sum = sm.row_sum[LEFT][row + 8 * i] * to_left +
                          sm.row_sum[RIGHT][row + 8 * i] * to_right;
        *refs[i] = top;
        *sums[i] = sum;
        *factors[i] = side == LEFT ? to_left : to_right;
    }
}

/*
 * Joins both warpgroups' sums and stores: the left one the lower half of the CTA's columns, the
 * right one the upper. The halves change sides through the space of Q, which is done with.
 */
template <bool f16, int side>
__device__ __forceinline__ void store_joined(const mla_sm90_dense_args &args, cta_place place,
                                             const mla_piece &piece, float (&o)[CTA_COLUMNS / 2],
                                             row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    const int32_t row = thread / 32 * 16 + thread % 32 / 4;
    const int32_t first_column = place.column_part * CTA_COLUMNS;
    constexpr int32_t n = CTA_COLUMNS / 2; /* accumulators of a lane, of all the columns */
    const bool alone = piece.end - piece.begin == 1;
    add_quad(rows);
    float factor0 = 1, factor1 = 1;
    if (alone) {
        if (side == RIGHT) {
            return;
        }
    } else {
        weigh_sides<side>(rows, factor0, factor1);
    }
    factor0 *= row_factor(args, place, piece, row, rows.ref0, rows.sum0);
    factor1 *= row_factor(args, place, piece, row + 8, rows.ref1, rows.sum1);
    if (side == LEFT && place.column_part == 0) {
        store_lses(args, place, piece, row, rows);
    }
    scale_rows(o, factor0, factor1);
    if (alone) {
        store_columns_of<f16, n>(args, place, piece, o, row, first_column, rows, 1, 1);
        return;
    }
    constexpr int32_t keep = side == LEFT ? 0 : n / 2, give = n / 2 - keep;
    float(*exchange)[n / 2][WARPGROUP] = (float(*)[n / 2][WARPGROUP]) sm.q;
    static_assert(2 * sizeof exchange[0] <= sizeof sm.q, "the halves fit into the space of Q");
#pragma unroll
    for (int32_t i = 0; i < n / 2; ++i) {
        exchange[side][i][thread] = o[give + i];
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
#pragma unroll
    for (int32_t i = 0; i < n / 2; ++i) {
        o[keep + i] += exchange[1 - side][i][thread];
    }
    store_columns_of<f16, n / 2>(args, place, piece, o + keep, row,
                                 first_column + (side == LEFT ? 0 : CTA_COLUMNS / 2), rows, 1, 1);
    fence_proxy_async(); /* before the copy engine writes Q where these halves were read */
}

template <bool f16, int side>
__device__ __forceinline__ void consume_columns(const mla_sm90_dense_args &args,
                                                const cta_place &place)
{
    uint32_t q8[16];
    int32_t q8_req = first_req(args, place.part);
    load_q8(args, place, q8_req, tile_lane_row(place), q8);
    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    phases at = {{0, 0}, 0};
    mla_piece piece;
    while (walk_next(args, walk, piece)) {
        if (piece.begin >= piece.end) {
            store_empty_piece<side>(args, place, piece);
            continue;
        }
        if (piece.req != q8_req) {
            load_q8(args, place, piece.req, tile_lane_row(place), q8);
            q8_req = piece.req;
        }
        float o[CTA_COLUMNS / 2];
        row_state rows = first_state(args, place);
        const int32_t all_see = token_limit(args, piece.tokens, row_token(args, place.first_row));
        attend_columns<f16, side>(args, place, piece, all_see, at, q8, o, rows);
        store_joined<f16, side>(args, place, piece, o, rows);
        __syncwarp();
        release(shared().q_empty);
    }
}

#endif
