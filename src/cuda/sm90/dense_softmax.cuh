/*
 * The softmax of dense decode: numerators against a reference that is only raised, in the rare case
 * that a sum leaves the range of the 16-bit format, instead of a maximum for every block.
 */
#ifndef MLA_CUDA_DENSE_SOFTMAX_CUH
#define MLA_CUDA_DENSE_SOFTMAX_CUH

#include "dense_products.cuh"

/* A lane's two rows (its accumulators' and 8 below) of the softmax. */
struct row_state {
    float ref0, ref1; /* reference, base 2; -inf before the first key */
    float sum0, sum1; /* this lane's columns of this warpgroup's blocks, against the reference */
    int32_t raised;   /* whether the reference rose in this block; the same in all of a warp */
    float top0, top1; /* where wanted: largest product of this lane's columns, smallest if the scale
                       * is negative */
};

/* Hides keys that a row does not see. `hidden` is the infinity that scaling turns into -inf. */
__device__ __forceinline__ void mask_block(const mla_sm90_dense_args &args, float (&s)[32],
                                           int32_t block, int32_t tokens, int32_t row)
{
    const float hidden = args.scale_log2 < 0 ? INFINITY : -INFINITY;
    const int32_t column = block * MLA_BLOCK_TOKENS + (int32_t)threadIdx.x % 4 * 2;
    const int32_t limit0 = token_limit(args, tokens, row_token(args, row)) - column;
    const int32_t limit1 = token_limit(args, tokens, row_token(args, row + 8)) - column;
#pragma unroll
    for (int32_t i = 0; i < 32; i += 4) {
        s[i] = 2 * i < limit0 ? s[i] : hidden;
        s[i + 1] = 2 * i + 1 < limit0 ? s[i + 1] : hidden;
        s[i + 2] = 2 * i < limit1 ? s[i + 2] : hidden;
        s[i + 3] = 2 * i + 1 < limit1 ? s[i + 3] : hidden;
    }
}

/* The same for a block of gathered keys, of which `seen` has a bit each. */
__device__ __forceinline__ void mask_unseen(const mla_sm90_dense_args &args, float (&s)[32],
                                            uint64_t seen)
{
    const float hidden = args.scale_log2 < 0 ? INFINITY : -INFINITY;
    const uint64_t mine = seen >> (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int32_t i = 0; i < 32; i += 4) {
        const bool see0 = mine >> 2 * i & 1, see1 = mine >> (2 * i + 1) & 1;
        s[i] = see0 ? s[i] : hidden;
        s[i + 1] = see1 ? s[i + 1] : hidden;
        s[i + 2] = see0 ? s[i + 2] : hidden;
        s[i + 3] = see1 ? s[i + 3] : hidden;
    }
}

/* p = exp2(s * scale - ref) over 32 keys, and the lane's sums. A reference of -inf makes them
 * infinite or NaN: the row has none yet. */
__device__ __forceinline__ void exponentials(const float *s, float (&p)[16], float scale,
                                             float ref0, float ref1, float &sum0, float &sum1)
{
    sum0 = 0;
    sum1 = 0;
#pragma unroll
    for (int32_t i = 0; i < 16; i += 4) {
        p[i] = exp2_approx(fmaf(s[i], scale, -ref0));
        p[i + 1] = exp2_approx(fmaf(s[i + 1], scale, -ref0));
        p[i + 2] = exp2_approx(fmaf(s[i + 2], scale, -ref1));
        p[i + 3] = exp2_approx(fmaf(s[i + 3], scale, -ref1));
        sum0 += p[i] + p[i + 1];
        sum1 += p[i + 2] + p[i + 3];
    }
}

/* Factor that takes values from the old reference to the new one; both may still be -inf. */
__device__ __forceinline__ float reference_factor(float from, float to)
{
    return from == to ? 1.0f : exp2_approx(from - to);
}

/*
 * Raises the references to the true maximum of the block and leaves the factors for the other
 * warpgroup. The second half gets here only where the first half's sums fitted, so the maximum lies
 * in it. A row whose keys are all hidden stays at -inf: its next key comes here again.
 */
template <int half>
__device__ __forceinline__ void raise_references(const float (&s)[32], float scale, row_state &rows,
                                                 int32_t side, float &factor0, float &factor1)
{
    mla_sm90_dense_smem &sm = shared();
    float top0 = -INFINITY, top1 = -INFINITY;
#pragma unroll
    for (int32_t i = 16 * half; i < 32; i += 4) {
        top0 = fmaxf(top0, fmaxf(s[i] * scale, s[i + 1] * scale));
        top1 = fmaxf(top1, fmaxf(s[i + 2] * scale, s[i + 3] * scale));
    }
    const float ref0 = fmaxf(rows.ref0, quad_max(top0));
    const float ref1 = fmaxf(rows.ref1, quad_max(top1));
    factor0 = reference_factor(rows.ref0, ref0);
    factor1 = reference_factor(rows.ref1, ref1);
    rows.ref0 = ref0;
    rows.ref1 = ref1;
    rows.sum0 *= factor0;
    rows.sum1 *= factor1;
    if (threadIdx.x % 4 == 0) {
        const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
        sm.row_factor[side][row] = rows.raised ? sm.row_factor[side][row] * factor0 : factor0;
        sm.row_factor[side][row + 8] = rows.raised ? sm.row_factor[side][row + 8] * factor1
                                                   : factor1;
        sm.row_ref[side][row] = ref0;
        sm.row_ref[side][row + 8] = ref1;
    }
    rows.raised = 1;
}

/* Takes half a block's products into account for the rows' largest scaled one. */
template <int half>
__device__ __forceinline__ void note_tops(float scale, const float (&s)[32], row_state &rows)
{
    if (scale < 0) {
#pragma unroll
        for (int32_t i = 16 * half; i < 16 * half + 16; i += 4) {
            rows.top0 = fminf(rows.top0, fminf(s[i], s[i + 1]));
            rows.top1 = fminf(rows.top1, fminf(s[i + 2], s[i + 3]));
        }
        return;
    }
#pragma unroll
    for (int32_t i = 16 * half; i < 16 * half + 16; i += 4) {
        rows.top0 = fmaxf(rows.top0, fmaxf(s[i], s[i + 1]));
        rows.top1 = fmaxf(rows.top1, fmaxf(s[i + 2], s[i + 3]));
    }
}

/* The state before the first block. Against a reference of +inf the numerators are 0: rows that do
 * not exist put zeros into the products, which saves the energy of multiplying. */
__device__ __forceinline__ row_state first_state(const mla_sm90_dense_args &args,
                                                 const cta_place &place)
{
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const float no_top = args.scale_log2 < 0 ? INFINITY : -INFINITY;
    row_state rows = {INFINITY, INFINITY, 0, 0, 0, no_top, no_top};
    if (tile_row(args, row).exists) {
        rows.ref0 = -INFINITY;
    }
    if (tile_row(args, row + 8).exists) {
        rows.ref1 = -INFINITY;
    }
    return rows;
}

/* Largest sum of a lane that leaves every numerator finite and precise in the 16-bit format. */
template <bool f16> __device__ __forceinline__ float sum_limit()
{
    return f16 ? 0x1p12f : 0x1p64f;
}

/*
 * Numerators of 32 keys (half 0 or 1 of the block) from S, packed as A operand. In the rare case
 * that a sum is too large, infinite or NaN, the references are raised, and everything that was
 * computed against the old ones is rescaled: accumulators, if they hold anything yet, sums, the
 * first half's numerators.
 */
template <bool f16, int half, int n>
__device__ __forceinline__ void softmax_half(const float (&s)[32], float (&o)[n], bool any_o,
                                             uint32_t (&p)[16], float scale, row_state &rows,
                                             int32_t side)
{
    float numerators[16], sum0, sum1;
    exponentials(s + 16 * half, numerators, scale, rows.ref0, rows.ref1, sum0, sum1);
    const bool fits = sum0 < sum_limit<f16>() && sum1 < sum_limit<f16>();
    if (!__all_sync(0xffffffffu, fits)) {
        float factor0, factor1;
        wgmma_wait<0>();
        wgmma_pin(o);
        raise_references<half>(s, scale, rows, side, factor0, factor1);
        if (any_o) {
            scale_rows(o, factor0, factor1);
        }
        if constexpr (half == 1) {
            const uint32_t pair0 = pack_pair<f16>(factor0, factor0);
            const uint32_t pair1 = pack_pair<f16>(factor1, factor1);
#pragma unroll
            for (int32_t i = 0; i < 8; i += 2) {
                p[i] = f16 ? mul_f16x2(p[i], pair0) : mul_bf16x2(p[i], pair0);
                p[i + 1] = f16 ? mul_f16x2(p[i + 1], pair1) : mul_bf16x2(p[i + 1], pair1);
            }
        }
        /* A row whose reference is still -inf has only hidden keys here: against 0 they give 0. */
        exponentials(s + 16 * half, numerators, scale, rows.ref0 == -INFINITY ? 0 : rows.ref0,
                     rows.ref1 == -INFINITY ? 0 : rows.ref1, sum0, sum1);
    }
    rows.sum0 += sum0;
    rows.sum1 += sum1;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
        p[8 * half + i] = pack_pair<f16>(numerators[2 * i], numerators[2 * i + 1]);
    }
}

/* Takes over what the other warpgroup's block did to the references. */
__device__ __forceinline__ void follow_references(float (&o)[128], bool any_o, row_state &rows,
                                                  int32_t from)
{
    const mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x % 128 / 32;
    if (sm.raised[from][warp]) {
        const int32_t row = warp * 16 + (int32_t)threadIdx.x % 32 / 4;
        const float factor0 = sm.row_factor[from][row], factor1 = sm.row_factor[from][row + 8];
        if (any_o) {
            scale_rows(o, factor0, factor1);
        }
        rows.sum0 *= factor0;
        rows.sum1 *= factor1;
        rows.ref0 = sm.row_ref[from][row];
        rows.ref1 = sm.row_ref[from][row + 8];
    }
}

/*
 * Leaves P in shared memory for the other warpgroup's products: 16-byte chunk c of row r lies at
 * chunk c XOR r % 8. The caller's named barrier, after the fence, publishes it. Where both sides
 * share a tile, this one must be done with the other's P, all of its warps.
 */
template <bool shares_p>
__device__ __forceinline__ void store_p(const uint32_t (&p)[16], int32_t side, int32_t raised)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x % 128 / 32;
    if (shares_p) {
        if (side == LEFT) {
            bar_sync<BAR_LEFT, WARPGROUP>();
        } else {
            bar_sync<BAR_RIGHT, WARPGROUP>();
        }
    }
    const uint32_t row = smem_addr(sm.p[shares_p ? LEFT : side]) + (warp * 16 + lane % 16) * 128;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        const int32_t chunk = (2 * i + lane / 16) ^ (lane % 8);
        stmatrix_x4(row + chunk * 16, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
    }
    if (lane == 0) {
        sm.raised[side][warp] = raised;
    }
    fence_proxy_async();
}

#endif
