/*
 * Attention on AVX512-BF16 (Cooper Lake, Sapphire Rapids, Zen 4 and later). See bf16_attend.h.
 *
 * Both products are one loop: broadcasts of pairs of one operand against vectors of 16 query rows
 * of the other,
 *
 *     S^T[key][row] += K[key][d pair]      * Q^T[d pair][row]       K straight from the cache
 *     O^T[column][row] += V^T[column][key pair] * P^T[key pair][row]
 *
 * in tiles of 8 by 3 vectors, 24 sums in registers: two loads for every five products, so that the
 * dot-product unit is the limit.
 */
#include "bf16_attend.h"
#include "bf16_vectors.h"
#include "cpu_features.h"
#include "largest_magnitude.h"
#include "narrow_row.h"
#include "unroll.h"

#include <assert.h>
#include <string.h>

enum {
    TILE = 8,
    VECS = 3,
    /* Pairs of one chain of additions. Each adds its own roundings; shorter chains round less. */
    CHAIN = 96
};

/* One operand of a tile: TILE sequences of pairs, `step` bytes between the pairs. */
typedef struct broadcast_operand {
    const uint8_t *row[TILE];
    int64_t step;
} broadcast_operand;

static inline __m512bh broadcast_pair(const uint8_t *data)
{
    int32_t pair;
    memcpy(&pair, data, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* c[v][i] (+)= sum over k of a[i][k] * b[v][k]. `vecs` must be constant where this is inlined. */
static inline __attribute__((always_inline)) void product_tile(int vecs, const broadcast_operand *a,
                                                               const mla_bf16_pair *const *b,
                                                               int64_t depth, bool accumulate,
                                                               float *const *c)
{
    __m512 acc[TILE][VECS];
    MLA_UNROLL
    for (int i = 0; i < TILE; i++) {
        MLA_UNROLL
        for (int v = 0; v < vecs; v++) {
            acc[i][v] = _mm512_setzero_ps();
        }
    }
    for (int64_t k = 0; k < depth; k++) {
        __m512bh b_k[VECS];
        MLA_UNROLL
        for (int v = 0; v < vecs; v++) {
            b_k[v] = (__m512bh)_mm512_load_si512(b[v] + k * MLA_BF16_LANES);
        }
        MLA_UNROLL
        for (int i = 0; i < TILE; i++) {
            __m512bh a_ik = broadcast_pair(a->row[i] + k * a->step);
            MLA_UNROLL
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = _mm512_dpbf16_ps(acc[i][v], a_ik, b_k[v]);
            }
        }
    }
    MLA_UNROLL
    for (int i = 0; i < TILE; i++) {
        MLA_UNROLL
        for (int v = 0; v < vecs; v++) {
            float *c_i = c[v] + i * MLA_BF16_LANES;
            __m512 sum = accumulate ? _mm512_add_ps(_mm512_load_ps(c_i), acc[i][v]) : acc[i][v];
            _mm512_store_ps(c_i, sum);
        }
    }
}

static void product(int32_t vecs, const broadcast_operand *a, const mla_bf16_pair *const *b,
                    int64_t depth, bool accumulate, float *const *c)
{
    assert(vecs >= 1 && vecs <= VECS);
    switch (vecs) {
    case 1:
        product_tile(1, a, b, depth, accumulate, c);
        return;
    case 2:
        product_tile(2, a, b, depth, accumulate, c);
        return;
    case 3:
        product_tile(3, a, b, depth, accumulate, c);
        return;
    }
}

/* How many of `left` groups the next tile takes: 3 at a time, but never leaving 1 of 4. */
static int32_t tile_groups(int32_t left)
{
    return left == 4 ? 2 : left < VECS ? left : VECS;
}

/* S^T of 8 keys and up to 3 groups of rows. */
static void score_tile(mla_bf16_scratch *scratch, const uint8_t *const *rows, int32_t key,
                       int32_t group, int32_t vecs, mla_bf16_span span)
{
    const mla_bf16_pair *b[VECS];
    float *c[VECS];
    for (int32_t v = 0; v < vecs; v++) {
        c[v] = scratch->s[group + v][key];
    }
    for (int32_t d = span.begin; d < span.end; d += 2 * CHAIN) {
        broadcast_operand a = {.step = sizeof(mla_bf16_pair)};
        for (int32_t i = 0; i < TILE; i++) {
            a.row[i] = rows[i] + 2 * d;
        }
        for (int32_t v = 0; v < vecs; v++) {
            b[v] = scratch->q[group + v][d / 2];
        }
        int32_t left = (span.end - d) / 2;
        product(vecs, &a, b, left < CHAIN ? left : CHAIN, d > span.begin, c);
    }
}

static void avx512_scores(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t groups,
                          mla_bf16_span span)
{
    for (int32_t begin = 0; begin < block->padded_keys; begin += MLA_BF16_PANEL) {
        int32_t end = begin + MLA_BF16_PANEL;
        mla_bf16_decode_panel(block, scratch, begin);
        for (int32_t key = begin; key < end; key += TILE) {
            int32_t vecs;
            for (int32_t group = 0; group < groups; group += vecs) {
                vecs = tile_groups(groups - group);
                score_tile(scratch, block->key_row + key, key, group, vecs, span);
            }
            mla_bf16_prefetch_lines(&scratch->prefetch, TILE * (span.end - span.begin) * 2 / 64);
        }
        mla_bf16_pair_values(scratch, block, begin, end, span);
    }
}

static void avx512_arrange(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys)
{
    /* values() reads the order that the softmax writes. */
    (void)scratch, (void)group, (void)padded_keys;
}

/* O of a group is [strip][column][row] here. */
static void avx512_values(mla_bf16_scratch *scratch, const int32_t *groups, int32_t num_groups,
                          int32_t padded_keys, bool first)
{
    for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip++) {
        for (int32_t column = 0; column < MLA_BF16_LANES; column += TILE) {
            broadcast_operand a = {.step = sizeof scratch->v[0][0]};
            for (int32_t i = 0; i < TILE; i++) {
                a.row[i] = (const uint8_t *)&scratch->v[strip][0][column + i];
            }
            int32_t vecs;
            for (int32_t at = 0; at < num_groups; at += vecs) {
                const mla_bf16_pair *b[VECS];
                float *c[VECS];
                vecs = tile_groups(num_groups - at);
                for (int32_t v = 0; v < vecs; v++) {
                    b[v] = scratch->p[groups[at + v]][0];
                    c[v] = scratch->o[groups[at + v]][strip][column];
                }
                product(vecs, &a, b, padded_keys / 2, !first, c);
            }
        }
    }
}

static void avx512_rescale(mla_bf16_scratch *scratch, int32_t group)
{
    __m512 factor = _mm512_load_ps(scratch->rescale);
    float *o = scratch->o[group][0][0];
    for (int32_t i = 0; i < MLA_D_V; i++) {
        float *rows = o + i * MLA_BF16_LANES;
        _mm512_store_ps(rows, _mm512_mul_ps(_mm512_load_ps(rows), factor));
    }
}

static void avx512_store(const mla_bf16_scratch *scratch, int32_t group, const float *factor,
                         int32_t rows, float *out, int64_t out_stride)
{
    for (int32_t column = 0; column < MLA_D_V; column += MLA_BF16_LANES) {
        __m512i words[MLA_BF16_LANES];
        for (int32_t i = 0; i < MLA_BF16_LANES; i++) {
            /* The inverse of the order that mla_bf16_pair_columns() leaves. */
            int32_t in_pair = column % 32 + i;
            int32_t strip = column / 32 * 2 + in_pair % 8 / 4;
            words[i] = _mm512_load_si512(scratch->o[group][strip][in_pair / 8 * 4 + in_pair % 4]);
        }
        mla_transpose_16x16(words);
        for (int32_t row = 0; row < rows; row++) {
            __m512 o = _mm512_mul_ps(_mm512_castsi512_ps(words[row]), _mm512_set1_ps(factor[row]));
            _mm512_storeu_ps(out + row * out_stride + column, o);
        }
    }
}

static void avx512_bf16_attend(const mla_cpu_job *job)
{
    static const mla_bf16_engine engine = {.scores = avx512_scores,
                                           .arrange = avx512_arrange,
                                           .values = avx512_values,
                                           .rescale = avx512_rescale,
                                           .store = avx512_store};
    mla_bf16_attend(job, &engine);
}

const mla_cpu_kernel mla_avx512_bf16_kernel = {.isa = MLA_ISA_AVX512_BF16,
                                               .available = mla_cpu_has_avx512_bf16,
                                               .serves = mla_bf16_serves,
                                               .scratch_bytes = sizeof(mla_bf16_scratch),
                                               .attend = avx512_bf16_attend,
                                               .narrow = narrow_row,
                                               .largest = largest_magnitude};
