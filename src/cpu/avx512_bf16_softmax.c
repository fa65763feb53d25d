/*
 * The online softmax of the bf16 kernels: 16 query rows in the lanes of a vector, keys one after
 * another.
 *
 * Weights are taken relative to a reference that only moves when a row's maximum has outgrown it by
 * 2^8, so that O is seldom rescaled; where the reference stands cancels out in the end.
 *
 * Few keys. Rounding P to bf16 makes an error in O of about 2^-9.3 |V| sqrt(sum P^2) / sum P: noise
 * that averages out over many keys, but where a few keys' values cancel it is as large as O itself.
 * A row may leave blocks at that while its sum of (P max |V|)^2 over all of them stays under a
 * tenth of the squared sum of P; with |V| normal, max |V| is 4.5 deviations, and five deviations of
 * the error are 6e-4, below the 8e-4 that the manual allows. It is a twentieth where V is rounded
 * as well. In other blocks the remainders are multiplied too. The choice is each row's own and does
 * not depend on keys that it may not see: blocks with such keys always get their remainders.
 */
#include "bf16_attend.h"
#include "bf16_vectors.h"
#include "exact_scores.h"
#include "unroll.h"

#include <math.h>

#define FEW_KEYS_PART       0.1f
#define FEW_KEYS_PART_SPLIT 0.05f
#define REF_HEADROOM        8.0f /* base 2 */

typedef struct group_view {
    const float (*scores)[MLA_BF16_LANES];
    mla_bf16_pair (*pairs)[MLA_BF16_LANES];
    __m512 scale, ref;
    __m512i visible;
} group_view;

/*
 * 2^x, 0 where x < -126 (the caller has denormals flushed), NaN for NaN. Relative error 2e-7: the
 * minimax polynomial of 2^f on [-1/2, 1/2], its constant rounded to 1 so that 2^0 is 1.
 */
static inline __m512 exp2_ps(__m512 x)
{
    /* The second operand is returned for NaN. The bound keeps infinity out of x - n. */
    x = _mm512_max_ps(_mm512_set1_ps(-300.0f), x);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 power = _mm512_set1_ps(0.0013276472454890609f);
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.009675540961325169f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.05550713092088699f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.24022120237350464f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(0.6931469440460205f));
    power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(power, n);
}

static inline __mmask16 sees(const group_view *view, int32_t key)
{
    return _mm512_cmpgt_epi32_mask(view->visible, _mm512_set1_epi32(key));
}

static inline __attribute__((always_inline)) __m512 weight(const group_view *view, int32_t key,
                                                           bool masked)
{
    __m512 x = _mm512_fmsub_ps(_mm512_load_ps(view->scores[key]), view->scale, view->ref);
    __m512 p = exp2_ps(x);
    return masked ? _mm512_maskz_mov_ps(sees(view, key), p) : p;
}

/* Rounds the weights of keys 2i and 2i + 1 to bf16 and pairs them. */
static inline __m512i pair_weights(__m512 even, __m512 odd)
{
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
                                                9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                                17, 1, 16, 0);
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* The largest S of each row, unscaled; NaN is passed over. */
static inline __attribute__((always_inline)) __m512 largest_score(const group_view *view,
                                                                  int32_t padded_keys, bool masked)
{
    __m512 max[4];
    for (int i = 0; i < 4; i++) {
        max[i] = _mm512_set1_ps(-INFINITY);
    }
    for (int32_t key = 0; key < padded_keys; key += 4) {
        MLA_UNROLL
        for (int i = 0; i < 4; i++) {
            __m512 s = _mm512_load_ps(view->scores[key + i]);
            max[i] = masked ? _mm512_mask_max_ps(max[i], sees(view, key + i), s, max[i])
                            : _mm512_max_ps(s, max[i]);
        }
    }
    return _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
}

/* Writes the pairs of weights; their sum and the sum of their squares. */
static inline __attribute__((always_inline)) void
sum_weights(const group_view *view, int32_t padded_keys, bool masked, __m512 *sum, __m512 *squares)
{
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0, squares0 = sum0, squares1 = sum0;
    for (int32_t key = 0; key < padded_keys; key += 2) {
        __m512 even = weight(view, key, masked);
        __m512 odd = weight(view, key + 1, masked);
        sum0 = _mm512_add_ps(sum0, even);
        sum1 = _mm512_add_ps(sum1, odd);
        squares0 = _mm512_fmadd_ps(even, even, squares0);
        squares1 = _mm512_fmadd_ps(odd, odd, squares1);
        _mm512_store_si512(view->pairs[key / 2], pair_weights(even, odd));
    }
    *sum = _mm512_add_ps(sum0, sum1);
    *squares = _mm512_add_ps(squares0, squares1);
}

static group_view view_group(mla_bf16_scratch *scratch, int32_t group, float scale)
{
    int32_t row = group * MLA_BF16_LANES;
    __mmask16 large = scratch->large_scores[group];
    return (group_view){
        .scores = (const float(*)[MLA_BF16_LANES])scratch->s[group],
        .pairs = scratch->p[group],
        .scale = _mm512_mask_mov_ps(_mm512_set1_ps(scale), large, _mm512_set1_ps(1.0f)),
        .ref = _mm512_maskz_mov_ps(~large, _mm512_load_ps(scratch->row_ref + row)),
        .visible = _mm512_load_si512(scratch->visible + row)};
}

bool mla_bf16_move_ref(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys, float scale,
                       bool masked)
{
    int32_t row = group * MLA_BF16_LANES;
    scratch->large_scores[group] = 0;
    group_view view = view_group(scratch, group, scale);
    __m512 max = masked ? largest_score(&view, padded_keys, true)
                        : largest_score(&view, padded_keys, false);
    max = _mm512_mul_ps(max, view.scale);
    /* 0 * -INFINITY is NaN: a row that sees nothing keeps its -INFINITY also when the scale is 0. */
    __mmask16 none = masked ? _mm512_cmple_epi32_mask(view.visible, _mm512_setzero_si512()) : 0;
    max = _mm512_mask_mov_ps(max, none, _mm512_set1_ps(-INFINITY));
    __m512 row_max = _mm512_load_ps(scratch->row_max + row);
    row_max = _mm512_max_ps(max, row_max);
    _mm512_store_ps(scratch->row_max + row, row_max);

    __m512 limit = _mm512_add_ps(view.ref, _mm512_set1_ps(REF_HEADROOM));
    __mmask16 moves = _mm512_cmp_ps_mask(max, limit, _CMP_GT_OQ);
    __m512 factor = _mm512_set1_ps(1.0f);
    factor = _mm512_mask_mov_ps(factor, moves, exp2_ps(_mm512_sub_ps(view.ref, max)));
    __m512 ref = _mm512_mask_mov_ps(view.ref, moves, max);
    _mm512_store_ps(scratch->row_ref + row, ref);
    _mm512_store_ps(scratch->rescale, factor);

    __m512 size = _mm512_abs_ps(row_max);
    __mmask16 large = _mm512_cmp_ps_mask(size, _mm512_set1_ps(MLA_LARGE_SCORE), _CMP_GE_OQ);
    large = _mm512_mask_cmp_ps_mask(large, size, _mm512_set1_ps(MLA_HUGE_SCORE), _CMP_LT_OQ);
    scratch->large_scores[group] = large;
    return moves != 0;
}

void mla_bf16_softmax(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys, float scale,
                      bool masked, bool split)
{
    int32_t row = group * MLA_BF16_LANES;
    group_view view = view_group(scratch, group, scale);
    __m512 sum, squares;
    if (masked) {
        sum_weights(&view, padded_keys, true, &sum, &squares);
    } else {
        sum_weights(&view, padded_keys, false, &sum, &squares);
    }
    __m512 factor = _mm512_load_ps(scratch->rescale);
    sum = _mm512_fmadd_ps(_mm512_load_ps(scratch->row_sum + row), factor, sum);
    _mm512_store_ps(scratch->row_sum + row, sum);
    __m512 rounded = _mm512_load_ps(scratch->row_rounded + row);
    rounded = _mm512_mul_ps(rounded, _mm512_mul_ps(factor, factor));
    __m512 value_max = _mm512_set1_ps(scratch->value_max);
    squares = _mm512_fmadd_ps(squares, _mm512_mul_ps(value_max, value_max), rounded);
    __m512 part = _mm512_set1_ps(split ? FEW_KEYS_PART_SPLIT : FEW_KEYS_PART);
    part = _mm512_mul_ps(_mm512_mul_ps(sum, sum), part);
    __mmask16 few = _mm512_cmp_ps_mask(squares, part, _CMP_GT_OQ);
    scratch->few_keys[group] = few;
    _mm512_store_ps(scratch->row_rounded + row, _mm512_mask_mov_ps(squares, few, rounded));
}

void mla_bf16_softmax_few(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys,
                          float scale, bool masked, bool remainders)
{
    group_view view = view_group(scratch, group, scale);
    const __m512i odd_half = _mm512_set1_epi32((int)0xffff0000);
    __mmask16 few = scratch->few_keys[group];
    for (int32_t key = 0; key < padded_keys; key += 2) {
        __m512 even = _mm512_maskz_mov_ps(few, weight(&view, key, masked));
        __m512 odd = _mm512_maskz_mov_ps(few, weight(&view, key + 1, masked));
        __m512i pair = pair_weights(even, odd);
        if (remainders) {
            __m512 rounded_even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            __m512 rounded_odd = _mm512_castsi512_ps(_mm512_and_si512(pair, odd_half));
            pair = pair_weights(_mm512_sub_ps(even, rounded_even), _mm512_sub_ps(odd, rounded_odd));
        }
        _mm512_store_si512(view.pairs[key / 2], pair);
    }
}
