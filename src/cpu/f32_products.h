/*
 * Register tiles of the FP32 attention core (attend_f32.h): what one call keeps in registers from
 * its first product to its last. Arguments that say so must be constants where they are inlined.
 */
#ifndef MLA_CPU_F32_PRODUCTS_H
#define MLA_CPU_F32_PRODUCTS_H

#include "f32_keys.h"
#include "unroll.h"

/*
 * acc[i][v] += sum over k of a[i * a_row + k * a_step] * b[k * b_step + v * VEC_LANES]. `tile` and
 * `vecs` must be constants where this is inlined.
 */
static inline __attribute__((always_inline)) void
outer_product(int tile, int vecs, vec (*acc)[2], const float *a, int64_t a_row, int64_t a_step,
              const float *b, int64_t b_step, int64_t count, f32_prefetch *prefetch)
{
    for (int64_t k = 0; k < count;) {
        const uint8_t *last, *line = prefetch_row(prefetch, &last);
        int64_t stop = count - k < STRETCH ? count : k + STRETCH;
        for (; k < stop; k++) {
            __builtin_prefetch(line, 0, 2);
            line = line + LINE_BYTES <= last ? line + LINE_BYTES : last;
            vec b0 = vec_load(b);
            vec b1 = vecs > 1 ? vec_load(b + VEC_LANES) : b0;
            MLA_UNROLL
            for (int i = 0; i < tile; i++) {
                vec a_i = vec_set1(a[i * a_row]);
                acc[i][0] = vec_fma(a_i, b0, acc[i][0]);
                if (vecs > 1) {
                    acc[i][1] = vec_fma(a_i, b1, acc[i][1]);
                }
            }
            a += a_step;
            b += b_step;
        }
    }
}

/*
 * One tile of S^T over `depth` values: `tile` keys by `vecs` vectors of rows, both constants. The
 * first stretch of the depth starts from zero, the later ones add to what is there; the last
 * applies the scale, the others pass 1.
 */
static inline __attribute__((always_inline)) void score_tile(int tile, int vecs, const float *keys,
                                                             const float *q, int64_t depth,
                                                             bool first, float scale, float *scores,
                                                             f32_prefetch *prefetch)
{
    vec acc[KEY_TILE_NARROW][2];
    MLA_UNROLL
    for (int i = 0; i < tile; i++) {
        acc[i][0] = acc[i][1] = vec_set1(0.0f);
    }
    outer_product(tile, vecs, acc, keys, KEY_STRIDE, 1, q, PANEL, depth, prefetch);
    vec scales = vec_set1(scale);
    MLA_UNROLL
    for (int i = 0; i < tile; i++) {
        MLA_UNROLL
        for (int v = 0; v < vecs; v++) {
            float *score = scores + i * PANEL + v * VEC_LANES;
            vec sum = first ? acc[i][v] : vec_add(vec_load(score), acc[i][v]);
            vec_store(score, vec_mul(sum, scales));
        }
    }
}

/* S of `rows` query rows and DOT_TILE / rows keys as dot products. `rows` must be a constant, 1 or
 * DOT_ROWS, where this is inlined. */
static inline __attribute__((always_inline)) void dot_tile(int rows, const float *keys,
                                                           const float *q, int64_t d_qk,
                                                           float scale, float *scores,
                                                           f32_prefetch *prefetch)
{
    const int num_keys = DOT_TILE / rows;
    vec acc[DOT_TILE];
    MLA_UNROLL
    for (int i = 0; i < DOT_TILE; i++) {
        acc[i] = vec_set1(0.0f);
    }
    const uint8_t *last, *line = prefetch_row(prefetch, &last);
    for (int64_t d = 0; d < d_qk; d += VEC_LANES) {
        __builtin_prefetch(line, 0, 2);
        line = line + LINE_BYTES <= last ? line + LINE_BYTES : last;
        vec q_row[DOT_ROWS];
        MLA_UNROLL
        for (int row = 0; row < rows; row++) {
            q_row[row] = vec_load(q + row * MLA_D_QK_MAX + d);
        }
        MLA_UNROLL
        for (int key = 0; key < num_keys; key++) {
            vec values = vec_load(keys + key * KEY_STRIDE + d);
            MLA_UNROLL
            for (int row = 0; row < rows; row++) {
                acc[key * rows + row] = vec_fma(values, q_row[row], acc[key * rows + row]);
            }
        }
    }
    MLA_UNROLL
    for (int i = 0; i < DOT_TILE; i += 4) {
        if (rows == 4) {
            vec_sum4(&acc[i], scale, scores + i / 4 * PANEL);
        } else {
            float sums[4];
            vec_sum4(&acc[i], scale, sums);
            for (int key = 0; key < 4; key++) {
                scores[(i + key) * PANEL] = sums[key];
            }
        }
    }
}

/*
 * One tile of O: `tile` rows by two vectors of columns, over the first `num_keys` keys. What is
 * there is multiplied by the rows' factors, or taken for zero when `rescale` is NULL.
 */
static inline __attribute__((always_inline)) void
value_tile(int tile, const float *weights, const float *values, int64_t num_keys,
           const float *rescale, float *out, int64_t out_stride, f32_prefetch *prefetch)
{
    vec acc[ROW_TILE][2];
    MLA_UNROLL
    for (int i = 0; i < tile; i++) {
        MLA_UNROLL
        for (int v = 0; v < 2; v++) {
            acc[i][v] = rescale ? vec_mul(vec_load(out + i * out_stride + v * VEC_LANES),
                                          vec_set1(rescale[i]))
                                : vec_set1(0.0f);
        }
    }
    outer_product(tile, 2, acc, weights, 1, PANEL, values, KEY_STRIDE, num_keys, prefetch);
    MLA_UNROLL
    for (int i = 0; i < tile; i++) {
        vec_store(out + i * out_stride, acc[i][0]);
        vec_store(out + i * out_stride + VEC_LANES, acc[i][1]);
    }
}

static void value_group(int32_t count, const float *weights, const float *values, int64_t num_keys,
                        const float *rescale, float *out, int64_t out_stride,
                        f32_prefetch *prefetch)
{
    assert(count >= 1 && count <= ROW_TILE);
    switch (count) {
#define VALUE_TILE(tile)                                                                           \
    case tile:                                                                                     \
        value_tile(tile, weights, values, num_keys, rescale, out, out_stride, prefetch);           \
        return;
        VALUE_TILE(1)
        VALUE_TILE(2)
        VALUE_TILE(3)
        VALUE_TILE(4)
        VALUE_TILE(5)
        VALUE_TILE(6)
#if ROW_TILE > 6
        VALUE_TILE(7)
        VALUE_TILE(8)
#endif
#undef VALUE_TILE
    }
}

#endif
