/* Results of dense decode on their way out: to the outputs, or to partials of split requests. */
#ifndef MLA_CUDA_DENSE_STORE_CUH
#define MLA_CUDA_DENSE_STORE_CUH

#include "dense_softmax.cuh"

/* Where the piece of a split request goes. */
__device__ __forceinline__ mla_sm90_partial &
partial_of(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece)
{
    const int64_t partial = (int64_t)place.part_idx * 2 + piece.partial;
    return args.partials[(partial * args.h_kv + place.kv_head) * args.row_tiles +
                         place.first_row / MLA_SM90_TILE_ROWS];
}

__device__ __forceinline__ void store_lse(const mla_sm90_dense_args &args, const cta_place &place,
                                          const mla_piece &piece, int32_t row, float ref, float sum)
{
    const mla_tile_row at = tile_row(args, place.first_row + row);
    if (at.exists) {
        args.lse[row_offset(args, args.lse_stride, piece.req, place.kv_head, at)] = natural_lse(
            args, ref, sum);
    }
}

/* The lse of a lane's two rows, where they go to the output; partials keep them with the values. */
__device__ __forceinline__ void store_lses(const mla_sm90_dense_args &args, const cta_place &place,
                                           const mla_piece &piece, int32_t row,
                                           const row_state &rows)
{
    if (!piece.split && args.lse != nullptr && threadIdx.x % 4 == 0) {
        store_lse(args, place, piece, row, rows.ref0, rows.sum0);
        store_lse(args, place, piece, row + 8, rows.ref1, rows.sum1);
    }
}

/* Largest of a lane's values in each of its two rows; infinities and NaN do not count. */
template <int n>
__device__ __forceinline__ void largest_values(const float *o, float &top0, float &top1)
{
    top0 = 0;
    top1 = 0;
#pragma unroll
    for (int32_t i = 0; i < n; i += 4) {
        top0 = fmaxf(top0, fmaxf(fabsf(o[i]), fabsf(o[i + 1])));
        top1 = fmaxf(top1, fmaxf(fabsf(o[i + 2]), fabsf(o[i + 3])));
    }
    if (__any_sync(0xffffffffu, fmaxf(top0, top1) == INFINITY)) {
        top0 = 0;
        top1 = 0;
#pragma unroll
        for (int32_t i = 0; i < n; ++i) {
            const float value = fabsf(o[i]) < INFINITY ? fabsf(o[i]) : 0;
            top0 = i % 4 < 2 ? fmaxf(top0, value) : top0;
            top1 = i % 4 < 2 ? top1 : fmaxf(top1, value);
        }
    }
}

/* The k with 2^14 <= top / 2^k < 2^15, as long as 2^k and its inverse are normal numbers with room
 * for the sums beside them. */
__device__ __forceinline__ int32_t shift_to_f16(float top)
{
    const int32_t exponent = (int32_t)(__float_as_uint(top) >> 23 & 255) - 127;
    return exponent < 128 ? max(exponent - 14, -100) : 0;
}

__device__ __forceinline__ float power_of_2(int32_t exponent)
{
    return __uint_as_float((uint32_t)(127 + exponent) << 23);
}

/* Whether a lane's largest value of a row lies where fp16 serves all of them well. `most` has the
 * largest magnitudes of even and of odd columns. */
__device__ __forceinline__ bool serves_f16(uint32_t most)
{
    const uint32_t largest = max(most & 0xffff, most >> 16);
    const uint32_t least = 0x1400, limit = 0x7800; /* 2^-10 and 2^15 */
    return largest - least < limit - least;
}

/* Stores `n` accumulators, times a factor for each of a lane's rows, as values of a partial.
 * Returns the largest magnitudes that it stored, of even and of odd columns. */
template <int n>
__device__ __forceinline__ uint2 store_f16(uint4 *to, const float *o, float factor0, float factor1)
{
    uint2 most = make_uint2(0, 0);
#pragma unroll
    for (int32_t i = 0; i < n / 8; ++i) {
        const float *x = o + i / 2 * 16 + i % 2 * 2, factor = i % 2 == 0 ? factor0 : factor1;
        const uint4 words = make_uint4(
            pack_f16(x[0] * factor, x[1] * factor), pack_f16(x[4] * factor, x[5] * factor),
            pack_f16(x[8] * factor, x[9] * factor), pack_f16(x[12] * factor, x[13] * factor));
        uint32_t &of_row = i % 2 == 0 ? most.x : most.y;
        of_row = max_abs_f16x2(max_abs_f16x2(of_row, words.x), words.y);
        of_row = max_abs_f16x2(max_abs_f16x2(of_row, words.z), words.w);
        to[i * 32] = words;
    }
    return most;
}

/*
 * Stores `n` accumulators as part of a partial. `factor0` and `factor1` normalise a lane's rows:
 * the merge multiplies by them. The values are stored as they are where their sizes suit fp16, and
 * otherwise again, with a power of two for each row.
 */
template <int n>
__device__ __forceinline__ void
store_partial(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
              const float *o, int32_t row, int32_t first_column, bool exists0, bool exists1,
              const row_state &rows, float factor0, float factor1)
{
    mla_sm90_partial &partial = partial_of(args, place, piece);
    uint4 *to = (uint4 *)partial.values[row / 16][first_column / 32] + threadIdx.x % 32;
    const uint2 most = store_f16<n>(to, o, 1, 1);
    const bool suits = (!exists0 || serves_f16(most.x)) && (!exists1 || serves_f16(most.y));
    if (!__all_sync(0xffffffffu, suits)) {
        float top0, top1;
        largest_values<n>(o, top0, top1);
        const int32_t shift0 = shift_to_f16(quad_max(top0));
        const int32_t shift1 = shift_to_f16(quad_max(top1));
        factor0 *= power_of_2(shift0);
        factor1 *= power_of_2(shift1);
        store_f16<n>(to, o, power_of_2(-shift0), power_of_2(-shift1));
    }
    if (threadIdx.x % 4 == 0) {
        const mla_sm90_partial::mla_sm90_partial_row row0 = {rows.ref0 + log2_approx(rows.sum0),
                                                             factor0};
        const mla_sm90_partial::mla_sm90_partial_row row1 = {rows.ref1 + log2_approx(rows.sum1),
                                                             factor1};
#pragma unroll
        for (int32_t i = 0; i < n / 32; ++i) {
            partial.rows[first_column / MLA_SM90_TILE_COLS + i][row] = row0;
            partial.rows[first_column / MLA_SM90_TILE_COLS + i][row + 8] = row1;
        }
    }
}

/* Stores `n` accumulators, of columns first_column on, times a factor for each of a lane's rows:
 * to the outputs, or to a partial when other parts hold the rest of the request. */
template <bool f16, int n>
__device__ __forceinline__ void
store_columns_of(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
                 const float *o, int32_t row, int32_t first_column, const row_state &rows,
                 float factor0, float factor1)
{
    const mla_tile_row at0 = tile_row(args, place.first_row + row);
    const mla_tile_row at1 = tile_row(args, place.first_row + row + 8);
    if (piece.split) {
        if (__any_sync(0xffffffffu, at0.exists || at1.exists)) {
            store_partial<n>(args, place, piece, o, row, first_column, at0.exists, at1.exists, rows,
                             factor0, factor1);
        }
        return;
    }
    uint16_t *out0 = nullptr, *out1 = nullptr;
    if (at0.exists) {
        out0 = args.out + row_offset(args, args.out_stride, piece.req, place.kv_head, at0) +
               first_column;
    }
    if (at1.exists) {
        out1 = args.out + row_offset(args, args.out_stride, piece.req, place.kv_head, at1) +
               first_column;
    }
#pragma unroll
    for (int32_t i = 0; i < n / 16; ++i) {
        store_columns<f16>(o + 16 * i, out0, out1, 32 * i, factor0, factor1);
    }
}

/* Hides from the compiler where these come from. Offsets of rows, computed once for all pieces,
 * would cost registers that the main loop lacks (24 bytes were spilled). */
__device__ __forceinline__ void forget_origin(cta_place &place, int32_t &thread)
{
    hide_values(place.first_row, place.kv_head, place.part_idx, thread);
}

/* What turns a row's accumulators into its output or partial: 1 / sum, and for an output the sink. */
__device__ __forceinline__ float row_factor(const mla_sm90_dense_args &args, const cta_place &place,
                                            const mla_piece &piece, int32_t row, float ref,
                                            float sum)
{
    if (sum == 0) {
        return 0;
    }
    const float factor = reciprocal_approx(sum);
    if (args.attn_sink == nullptr || piece.split) {
        return factor;
    }
    return sink_factor(args, place.kv_head, place.first_row + row, ref + log2_approx(sum)) * factor;
}

/* Normalises and stores this warpgroup's 256 columns; the left one also stores the lse. */
template <bool f16>
__device__ __forceinline__ void store_piece(const mla_sm90_dense_args &args, cta_place place,
                                            const mla_piece &piece, const float (&o)[128],
                                            const row_state &rows, int32_t side)
{
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    const int32_t row = thread / 32 * 16 + thread % 32 / 4;
    if (side == LEFT) {
        store_lses(args, place, piece, row, rows);
    }
    store_columns_of<f16, 128>(args, place, piece, o, row, side * 256, rows,
                               row_factor(args, place, piece, row, rows.ref0, rows.sum0),
                               row_factor(args, place, piece, row + 8, rows.ref1, rows.sum1));
}

/* A piece without keys: zeros, or a partial whose lse alone says that it is not to be read. */
__device__ __forceinline__ void store_empty_piece(const mla_sm90_dense_args &args, cta_place place,
                                                  const mla_piece &piece, int32_t side)
{
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    if (piece.split) {
        auto *rows = &partial_of(args, place, piece).rows[0][0];
        const int32_t count = MLA_SM90_TILE_ROWS * MLA_SM90_D_V / MLA_SM90_TILE_COLS;
        for (int32_t i = thread; side == LEFT && i < count; i += WARPGROUP) {
            rows[i] = {-INFINITY, 1};
        }
        return;
    }
    if (side == LEFT && thread < MLA_SM90_TILE_ROWS && args.lse != nullptr) {
        store_lse(args, place, piece, thread, -INFINITY, 0);
    }
    for (int32_t i = thread; i < MLA_SM90_TILE_ROWS * 32; i += WARPGROUP) {
        const mla_tile_row at = tile_row(args, place.first_row + i / 32);
        if (at.exists) {
            uint16_t *out = args.out +
                            row_offset(args, args.out_stride, piece.req, place.kv_head, at);
            *(uint4 *)(out + side * 256 + i % 32 * 8) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* A lane's sums become those of the whole rows, over this warpgroup's blocks. */
__device__ __forceinline__ void add_quad(row_state &rows)
{
#pragma unroll
    for (int32_t lanes = 1; lanes <= 2; lanes *= 2) {
        rows.sum0 += __shfl_xor_sync(0xffffffffu, rows.sum0, lanes);
        rows.sum1 += __shfl_xor_sync(0xffffffffu, rows.sum1, lanes);
    }
}

/* Both warpgroups' shares of the denominators; each lane ends with its rows' whole sums. */
__device__ __forceinline__ void join_row_sums(row_state &rows, int32_t side)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
    add_quad(rows);
    if (threadIdx.x % 4 == 0) {
        sm.row_sum[side][row] = rows.sum0;
        sm.row_sum[side][row + 8] = rows.sum1;
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
    /* Both sides add in the same order, so that both divide by the same bits. */
    rows.sum0 = sm.row_sum[LEFT][row] + sm.row_sum[RIGHT][row];
    rows.sum1 = sm.row_sum[LEFT][row + 8] + sm.row_sum[RIGHT][row + 8];
}

#endif
