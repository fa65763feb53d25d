/*
 * The FP32 attention core, one source for every vector width. An ISA's file defines the vector
 * operations named below, sets the tile sizes and includes this header once.
 *
 * Keys are widened to float32 once per block and shared by all query rows of the tile. Both
 * products are the same outer-product loop, one broadcast against two vectors:
 *
 *     S^T[key][row]    += K[key][d]    * Q^T[d][row]        lanes run over query rows
 *     O  [row][column] += P^T[key][row] * V[key][column]    lanes run over value columns
 *
 * S^T is exactly the P^T that the second product broadcasts from, the softmax runs down a column
 * of vectors, and O is the caller's row-major output: nothing is transposed or reduced across lanes
 * but Q, once per job. The limit is the FMA units; a block of keys and a panel's S live in L2 and
 * L1.
 *
 * An ISA provides: VEC_LANES, vec, vec_load, vec_store (unaligned), vec_set1, vec_fma (a * b + c),
 * vec_mul, vec_add, vec_sub, vec_max (b when either is NaN), vec_round (to integers),
 * vec_scale_exp2 (power * 2^exponent, but 0 where x < -126), vec_from_bf16, vec_from_f16,
 * vec_from_e4m3 (VEC_LANES values from memory, any alignment), and the tile sizes KEY_TILE (keys of
 * a score tile two vectors wide), KEY_TILE_NARROW (one vector wide), ROW_TILE (rows of a value
 * tile). Loops over a tile are unrolled whole, so that it stays in registers.
 */
#ifndef MLA_CPU_ATTEND_F32_H
#define MLA_CPU_ATTEND_F32_H

#include "formats.h"
#include "kernels.h"

#include <assert.h>

enum {
    PANEL = 2 * VEC_LANES, /* query rows or value columns of a tile */
    PANELS = MLA_CPU_TILE_ROWS / PANEL,
    BLOCK = 96,                    /* keys widened at a time */
    KEY_STRIDE = MLA_D_QK_MAX + 16, /* an odd number of cache lines: all sets of L1 are used */
    /* Products of one chain of additions. Shorter chains round less, and a panel of Q^T this deep
     * stays in L1 while the block's keys pass. */
    DEPTH = 192,
    LOG2_LINE = 6
};

_Static_assert(BLOCK % KEY_TILE == 0 && BLOCK % KEY_TILE_NARROW == 0, "whole tiles fill a block");
_Static_assert(MLA_CPU_TILE_ROWS % PANEL == 0, "whole panels fill a tile of rows");

typedef struct f32_block {
    mla_key_row rows[BLOCK];
    int32_t num_keys;
    int64_t begin; /* place of the first key in the key list; exact for dense lists */
} f32_block;

typedef struct f32_scratch {
    float q[PANELS][MLA_D_QK_MAX][PANEL];
    float keys[BLOCK][KEY_STRIDE];
    float scores[BLOCK][PANEL]; /* of one panel: S^T in base 2, then P^T */
    float row_max[MLA_CPU_TILE_ROWS]; /* base 2 */
    float row_sum[MLA_CPU_TILE_ROWS];
    float rescale[MLA_CPU_TILE_ROWS]; /* what a row's earlier sums are multiplied by */
    f32_block block[2];               /* the block at work and the one being prefetched */
} f32_scratch;

/* Query rows [begin, begin + count) of a panel that see the same first `num_keys` of the block. */
typedef struct f32_row_group {
    int32_t begin, count, num_keys;
} f32_row_group;

/* ---- Blocks of keys ---- */

/* Pulls the next keys of the job from the list, a whole block unless the list ends. */
static int64_t resolve_block(const mla_cpu_job *job, int64_t begin, int64_t end, f32_block *block)
{
    block->begin = begin;
    block->num_keys = 0;
    while (begin < end && block->num_keys < BLOCK) {
        int64_t room = BLOCK - block->num_keys;
        int64_t stop = end - begin < room ? end : begin + room;
        block->num_keys +=
            mla_key_rows_resolve(job->keys, begin, stop, block->rows + block->num_keys);
        begin = stop;
    }
    return begin;
}

static void widen_elems(mla_dtype dtype, int64_t count, const uint8_t *data, float *values)
{
    if (dtype == MLA_DTYPE_BF16) {
        for (int64_t i = 0; i < count; i += VEC_LANES) {
            vec_store(values + i, vec_from_bf16(data + 2 * i));
        }
    } else {
        for (int64_t i = 0; i < count; i += VEC_LANES) {
            vec_store(values + i, vec_from_f16(data + 2 * i));
        }
    }
}

static inline void widen_group(int count, const uint8_t *data, float scale, float *values)
{
    /* A scale of 0 gives 0 even where the e4m3 value is NaN. */
    if (scale == 0.0f) {
        memset(values, 0, (size_t)count * sizeof *values);
        return;
    }
    vec scales = vec_set1(scale);
    for (int i = 0; i < count; i += VEC_LANES) {
        vec_store(values + i, vec_mul(vec_from_e4m3(data + i), scales));
    }
}

static void widen_row(const mla_key_rows *keys, mla_key_row row, float *values)
{
    switch (keys->kv_format) {
    case MLA_KV_NATIVE:
        widen_elems(keys->dtype, keys->d_qk, row.data, values);
        return;
    case MLA_KV_FP8_656:
        for (int i = 0; i < MLA_FP8_656_LATENT; i += MLA_FP8_656_GROUP) {
            float scale;
            memcpy(&scale, row.scales + i / MLA_FP8_656_GROUP * sizeof scale, sizeof scale);
            widen_group(MLA_FP8_656_GROUP, row.data + i, scale, values + i);
        }
        widen_elems(MLA_DTYPE_BF16, MLA_ROPE_DIM, row.data + MLA_FP8_656_ROPE_AT,
                    values + MLA_FP8_656_LATENT);
        return;
    case MLA_KV_FP8_584:
        for (int i = 0; i < MLA_FP8_584_LATENT; i += MLA_FP8_584_GROUP) {
            float scale = mla_e8m0_to_f32(row.scales[i / MLA_FP8_584_GROUP]);
            widen_group(MLA_FP8_584_GROUP, row.data + i, scale, values + i);
        }
        widen_elems(MLA_DTYPE_BF16, MLA_ROPE_DIM, row.data + MLA_FP8_584_ROPE_AT,
                    values + MLA_FP8_584_LATENT);
        return;
    }
    assert(!"unreachable: kv_format was checked");
}

/* Bytes of a row's data, for the prefetcher; the scales of 584-byte rows lie apart and are few. */
static int64_t row_data_bytes(const mla_key_rows *keys)
{
    return keys->kv_format == MLA_KV_FP8_656   ? MLA_FP8_656_BYTES
           : keys->kv_format == MLA_KV_FP8_584 ? MLA_FP8_584_DATA_BYTES
                                               : keys->d_qk * 2;
}

/* Rows of the next block that are still to be asked for while this one is computed. */
typedef struct f32_prefetch {
    const f32_block *block;
    int32_t next, step;
    int64_t row_bytes;
} f32_prefetch;

/* Called once per tile. Rows come from memory in any order, where no hardware prefetcher helps. */
static inline void prefetch_rows(f32_prefetch *prefetch)
{
    int32_t stop = prefetch->next + prefetch->step;
    stop = stop < prefetch->block->num_keys ? stop : prefetch->block->num_keys;
    for (; prefetch->next < stop; prefetch->next++) {
        const uint8_t *data = prefetch->block->rows[prefetch->next].data;
        for (int64_t at = 0; at < prefetch->row_bytes; at += 1 << LOG2_LINE) {
            __builtin_prefetch(data + at, 0, 2);
        }
    }
}

/* ---- Queries ---- */

static void pack_queries(const mla_cpu_job *job, f32_scratch *scratch)
{
    int64_t d_qk = job->keys->d_qk;
    memset(scratch->q, 0, sizeof scratch->q[0] * (size_t)((job->rows + PANEL - 1) / PANEL));
    for (int32_t row = 0; row < job->rows; row++) {
        float *values = scratch->keys[0]; /* free until the first block */
        widen_elems(job->keys->dtype, d_qk, (const uint8_t *)job->q_rows[row], values);
        float(*panel)[PANEL] = scratch->q[row / PANEL];
        for (int64_t d = 0; d < d_qk; d++) {
            panel[d][row % PANEL] = values[d];
        }
    }
}

/* ---- The two products ---- */

/*
 * acc[i][v] += sum over k of a[i * a_row + k * a_step] * b[k * b_step + v * VEC_LANES]. `tile` and
 * `vecs` must be constants where this is inlined.
 */
static inline __attribute__((always_inline)) void
outer_product(int tile, int vecs, vec (*acc)[2], const float *a, int64_t a_row, int64_t a_step,
              const float *b, int64_t b_step, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        vec b0 = vec_load(b);
        vec b1 = vecs > 1 ? vec_load(b + VEC_LANES) : b0;
#pragma GCC unroll 16
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

/*
 * One tile of S^T over `depth` values: `tile` keys by `vecs` vectors of rows. The first stretch of
 * the depth starts from zero, the later ones add to what is there; the last applies the scale, the
 * others pass 1.
 */
static inline __attribute__((always_inline)) void
score_tile(int tile, int vecs, const float *keys, const float *q, int64_t depth, bool first,
           float scale, float *scores)
{
    vec acc[KEY_TILE_NARROW > KEY_TILE ? KEY_TILE_NARROW : KEY_TILE][2];
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
        acc[i][0] = acc[i][1] = vec_set1(0.0f);
    }
    outer_product(tile, vecs, acc, keys, KEY_STRIDE, 1, q, PANEL, depth);
    vec scales = vec_set1(scale);
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            float *score = scores + i * PANEL + v * VEC_LANES;
            vec sum = first ? acc[i][v] : vec_add(vec_load(score), acc[i][v]);
            vec_store(score, vec_mul(sum, scales));
        }
    }
}

/*
 * One tile of O: `tile` rows by two vectors of columns, over the first `num_keys` keys. What is
 * there is multiplied by the rows' factors, or taken for zero when `rescale` is NULL.
 */
static inline __attribute__((always_inline)) void
value_tile(int tile, const float *weights, const float *values, int64_t num_keys,
           const float *rescale, float *out, int64_t out_stride)
{
    vec acc[ROW_TILE][2];
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            acc[i][v] = rescale ? vec_mul(vec_load(out + i * out_stride + v * VEC_LANES),
                                          vec_set1(rescale[i]))
                                : vec_set1(0.0f);
        }
    }
    outer_product(tile, 2, acc, weights, 1, PANEL, values, KEY_STRIDE, num_keys);
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
        vec_store(out + i * out_stride, acc[i][0]);
        vec_store(out + i * out_stride + VEC_LANES, acc[i][1]);
    }
}

/* S^T of one panel against the whole block. Rows of a tile past num_keys are computed from what
 * the last block left there, and not looked at. */
static void score_panel(f32_scratch *scratch, const float (*q)[PANEL], int64_t d_qk,
                        int32_t num_keys, bool narrow, float scale, f32_prefetch *prefetch)
{
    for (int64_t d = 0; d < d_qk; d += DEPTH) {
        int64_t depth = d_qk - d < DEPTH ? d_qk - d : DEPTH;
        bool first = d == 0;
        float factor = d + depth == d_qk ? scale : 1.0f;
        int32_t step = narrow ? KEY_TILE_NARROW : KEY_TILE;
        for (int32_t key = 0; key < num_keys; key += step) {
            const float *keys = &scratch->keys[key][d];
            float *scores = scratch->scores[key];
            if (narrow) {
                score_tile(KEY_TILE_NARROW, 1, keys, q[d], depth, first, factor, scores);
            } else {
                score_tile(KEY_TILE, 2, keys, q[d], depth, first, factor, scores);
            }
            prefetch_rows(prefetch);
        }
    }
}

static void value_group(int32_t count, const float *weights, const float *values, int64_t num_keys,
                        const float *rescale, float *out, int64_t out_stride)
{
    assert(count >= 1 && count <= ROW_TILE);
    switch (count) {
#define VALUE_TILE(tile)                                                                           \
    case tile:                                                                                     \
        value_tile(tile, weights, values, num_keys, rescale, out, out_stride);                     \
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

/* O of one panel, strip of columns by strip: a strip of V stays in L1 for all groups of rows. */
static void value_panel(const mla_cpu_job *job, f32_scratch *scratch, int32_t panel_row,
                        const f32_row_group *groups, int32_t num_groups, bool first,
                        f32_prefetch *prefetch)
{
    for (int32_t column = 0; column < MLA_D_V; column += PANEL) {
        for (int32_t g = 0; g < num_groups; g++) {
            int32_t row = panel_row + groups[g].begin;
            value_group(groups[g].count, &scratch->scores[0][groups[g].begin],
                        &scratch->keys[0][column], groups[g].num_keys,
                        first ? NULL : scratch->rescale + row,
                        job->out + row * job->out_stride + column, job->out_stride);
            prefetch_rows(prefetch);
        }
    }
}

/* ---- Softmax ---- */

/* 2^x within 2 units in the last place for x <= 0, 0 below 2^-126, NaN for NaN. The polynomial
 * interpolates 2^f on [-1/2, 1/2] at Chebyshev's nodes; its own error is 2.6e-9. */
static inline vec vec_exp2(vec x)
{
    vec exponent = vec_round(x);
    vec f = vec_sub(x, exponent);
    vec power = vec_set1(1.5461444695632573e-4f);
    power = vec_fma(power, f, vec_set1(1.3400428177416093e-3f));
    power = vec_fma(power, f, vec_set1(9.618056678532362e-3f));
    power = vec_fma(power, f, vec_set1(5.550327226670846e-2f));
    power = vec_fma(power, f, vec_set1(0.2402265092228873f));
    power = vec_fma(power, f, vec_set1(0.6931472067028324f));
    power = vec_fma(power, f, vec_set1(1.0f));
    return vec_scale_exp2(power, exponent, x);
}

/* Base-2 softmax of one vector of rows down the block; keeps the running maximum and sum. */
static void softmax_column(f32_scratch *scratch, int32_t panel_row, int32_t lane, int32_t num_keys)
{
    float *scores = &scratch->scores[0][lane];
    float *row_max = scratch->row_max + panel_row + lane;
    float *row_sum = scratch->row_sum + panel_row + lane;
    vec old_max = vec_load(row_max);
    vec new_max = old_max;
    for (int32_t key = 0; key < num_keys; key++) {
        new_max = vec_max(vec_load(scores + key * PANEL), new_max);
    }
    vec_store(row_max, new_max);
    /* A row that has seen nothing yet has a maximum of -INFINITY, which no number may be
     * subtracted from: any finite one in its place leaves its weights at 0. */
    vec lowest = vec_set1(-0x1.fffffep127f);
    old_max = vec_max(lowest, old_max);
    new_max = vec_max(lowest, new_max);
    vec factor = vec_exp2(vec_sub(old_max, new_max));
    vec sum0 = vec_set1(0.0f), sum1 = sum0;
    int32_t key = 0;
    for (; key + 2 <= num_keys; key += 2) {
        float *pair = scores + key * PANEL;
        vec weight0 = vec_exp2(vec_sub(vec_load(pair), new_max));
        vec weight1 = vec_exp2(vec_sub(vec_load(pair + PANEL), new_max));
        vec_store(pair, weight0);
        vec_store(pair + PANEL, weight1);
        sum0 = vec_add(sum0, weight0);
        sum1 = vec_add(sum1, weight1);
    }
    if (key < num_keys) {
        vec weight = vec_exp2(vec_sub(vec_load(scores + key * PANEL), new_max));
        vec_store(scores + key * PANEL, weight);
        sum0 = vec_add(sum0, weight);
    }
    vec_store(row_sum, vec_fma(vec_load(row_sum), factor, vec_add(sum0, sum1)));
    vec_store(scratch->rescale + panel_row + lane, factor);
}

/* How many keys of a block that begins at `begin` row `row` sees. */
static int32_t visible_keys(const mla_cpu_job *job, int32_t row, int64_t begin, int32_t num_keys)
{
    if (job->row_keys == NULL) {
        return num_keys;
    }
    int64_t keys = job->row_keys[row] - begin;
    return keys <= 0 ? 0 : keys < num_keys ? (int32_t)keys : num_keys;
}

/*
 * Splits the rows of a panel into groups of at most ROW_TILE, even in size, whose rows see the same
 * keys. A key that a row may not see is thus never multiplied into it, not even by a weight of 0:
 * its value may be NaN. Returns the number of groups; *most_keys is the most that any row sees.
 */
static int32_t group_rows(const mla_cpu_job *job, const f32_block *block, int32_t panel_row,
                          int32_t rows, f32_row_group *groups, int32_t *most_keys)
{
    int32_t num_groups = 0;
    *most_keys = 0;
    for (int32_t begin = 0; begin < rows;) {
        int32_t keys = visible_keys(job, panel_row + begin, block->begin, block->num_keys);
        int32_t end = begin + 1;
        while (end < rows && visible_keys(job, panel_row + end, block->begin, block->num_keys) ==
                                 keys) {
            end++;
        }
        int32_t pieces = (end - begin + ROW_TILE - 1) / ROW_TILE;
        for (int32_t i = 0; i < pieces; i++) {
            int32_t from = begin + (end - begin) * i / pieces;
            int32_t to = begin + (end - begin) * (i + 1) / pieces;
            groups[num_groups++] = (f32_row_group){from, to - from, keys};
        }
        *most_keys = keys > *most_keys ? keys : *most_keys;
        begin = end;
    }
    return num_groups;
}

static void mask_scores(f32_scratch *scratch, const f32_row_group *group, int32_t most_keys)
{
    for (int32_t key = group->num_keys; key < most_keys; key++) {
        for (int32_t i = 0; i < group->count; i++) {
            scratch->scores[key][group->begin + i] = -INFINITY;
        }
    }
}

/* ---- The job ---- */

static void attend_panel(const mla_cpu_job *job, f32_scratch *scratch, const f32_block *block,
                         int32_t panel_row, bool first, f32_prefetch *prefetch)
{
    int32_t rows = job->rows - panel_row < PANEL ? job->rows - panel_row : PANEL;
    f32_row_group groups[PANEL];
    int32_t most_keys;
    int32_t num_groups = group_rows(job, block, panel_row, rows, groups, &most_keys);
    bool narrow = rows <= VEC_LANES;
    float scale = (float)(job->scale * 1.4426950408889634);
    score_panel(scratch, (const float(*)[PANEL])scratch->q[panel_row / PANEL], job->keys->d_qk,
                most_keys, narrow, scale, prefetch);
    for (int32_t g = 0; g < num_groups; g++) {
        mask_scores(scratch, &groups[g], most_keys);
    }
    softmax_column(scratch, panel_row, 0, most_keys);
    if (!narrow) {
        softmax_column(scratch, panel_row, VEC_LANES, most_keys);
    }
    value_panel(job, scratch, panel_row, groups, num_groups, first, prefetch);
}

static void finish_rows(const mla_cpu_job *job, const f32_scratch *scratch, bool no_keys)
{
    for (int32_t row = 0; row < job->rows; row++) {
        float *out = job->out + row * job->out_stride;
        float sum = scratch->row_sum[row];
        job->row_max[row] = (float)(scratch->row_max[row] * 0.6931471805599453);
        job->lse[row] = (float)(scratch->row_max[row] * 0.6931471805599453 + log(sum));
        if (no_keys || sum == 0.0f) {
            job->lse[row] = -INFINITY;
            memset(out, 0, MLA_D_V * sizeof *out);
            continue;
        }
        vec factor = vec_set1(1.0f / sum);
        for (int32_t column = 0; column < MLA_D_V; column += VEC_LANES) {
            vec_store(out + column, vec_mul(vec_load(out + column), factor));
        }
    }
}

static void attend_f32(const mla_cpu_job *job)
{
    assert(job->rows >= 1 && job->rows <= MLA_CPU_TILE_ROWS);
    assert(job->keys->d_qk % VEC_LANES == 0 && job->keys->d_qk <= MLA_D_QK_MAX);
    f32_scratch *scratch = job->scratch;
    pack_queries(job, scratch);
    for (int32_t row = 0; row < MLA_CPU_TILE_ROWS; row++) {
        scratch->row_max[row] = -INFINITY;
        scratch->row_sum[row] = 0.0f;
    }

    int64_t end = job->key_end;
    if (job->row_keys) {
        int64_t last = 0;
        for (int32_t row = 0; row < job->rows; row++) {
            last = job->row_keys[row] > last ? job->row_keys[row] : last;
        }
        end = last < end ? last : end;
    }
    int32_t panels = (job->rows + PANEL - 1) / PANEL;
    int32_t tiles = panels * (MLA_D_V / PANEL + BLOCK / KEY_TILE);
    f32_block *block = &scratch->block[0], *next_block = &scratch->block[1];
    int64_t next = resolve_block(job, job->key_begin, end, block);
    bool first = true;
    while (block->num_keys > 0) {
        for (int32_t key = 0; key < block->num_keys; key++) {
            widen_row(job->keys, block->rows[key], scratch->keys[key]);
        }
        next = resolve_block(job, next, end, next_block);
        f32_prefetch prefetch = {.block = next_block,
                                 .step = (BLOCK + tiles - 1) / tiles,
                                 .row_bytes = row_data_bytes(job->keys)};
        for (int32_t panel = 0; panel < panels; panel++) {
            attend_panel(job, scratch, block, panel * PANEL, first, &prefetch);
        }
        first = false;
        f32_block *done = block;
        block = next_block;
        next_block = done;
    }
    finish_rows(job, scratch, first);
}

static bool serves_f32(mla_kv_format kv_format, mla_dtype dtype)
{
    (void)kv_format;
    return dtype == MLA_DTYPE_BF16 || dtype == MLA_DTYPE_F16;
}

#endif
