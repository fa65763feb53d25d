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
 * but Q, once per job. A panel with too few rows for its lanes takes S as dot products instead,
 * with lanes along d; the rest is the same. The limit is the FMA units; a block of keys lives in
 * L2, a panel's S in L1.
 *
 * An ISA provides: VEC_LANES, vec, vec_load, vec_store (unaligned), vec_set1, vec_fma (a * b + c),
 * vec_mul, vec_add, vec_sub, vec_max (b when either is NaN), vec_round (to integers),
 * vec_scale_exp2 (power * 2^exponent, but 0 where x < -126), vec_sum4 (the sums over the lanes of
 * four vectors, times a factor), vec_from_bf16, vec_from_f16, vec_from_e4m3 (VEC_LANES values from
 * memory, any alignment), and the tile sizes KEY_TILE (keys of a score tile), KEY_TILE_NARROW (the
 * same when the tile is a single vector of rows wide), DOT_TILE (dot products of a tile), ROW_TILE
 * (rows of a value tile). Loops over a tile are unrolled whole, so that it stays in registers.
 */
#ifndef MLA_CPU_ATTEND_F32_H
#define MLA_CPU_ATTEND_F32_H

#include "exact_scores.h"
#include "f32_products.h"
#include "largest_magnitude.h"
#include "narrow_row.h"

typedef struct f32_scratch {
    union {
        float panel[MLA_D_QK_MAX][PANEL]; /* Q^T */
        float row[PANEL][MLA_D_QK_MAX];   /* for dot products */
    } q[PANELS];
    float keys[BLOCK][KEY_STRIDE];
    float scores[BLOCK][PANEL];       /* of one panel: S^T in base 2, then P^T */
    float row_max[MLA_CPU_TILE_ROWS]; /* base 2 */
    float row_sum[MLA_CPU_TILE_ROWS];
    float rescale[MLA_CPU_TILE_ROWS]; /* what a row's earlier sums are multiplied by */
    f32_block block[2];               /* the block at work and the one being prefetched */
} f32_scratch;

/* Query rows [begin, begin + count) of a panel that see the same first `num_keys` of the block. */
typedef struct f32_row_group {
    int32_t begin, count, num_keys;
} f32_row_group;

/* ---- Queries ---- */

static int32_t panel_rows(const mla_cpu_job *job, int32_t panel)
{
    int32_t rows = job->rows - panel * PANEL;
    return rows < PANEL ? rows : PANEL;
}

/*
 * Whether a panel's scores are dot products, which use all lanes but must sum over them, rather
 * than outer products, which leave lanes idle. (AVX-512, Xeon, November 2026, share of the FMA
 * peak, dot and outer: 8 rows 0.46 and 0.39, 16 rows 0.62 and 0.65.)
 */
static bool takes_dot_products(int32_t rows)
{
    int32_t lanes = (rows + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    return rows * 9 < lanes * 8;
}

/* Rows to columns. `values` is free until the first block. */
static void pack_panel(const mla_key_rows *keys, const uint16_t *const *q_rows, int32_t rows,
                       float (*values)[KEY_STRIDE], float (*columns)[PANEL])
{
    enum { LINE_VALUES = LINE_BYTES / sizeof(float) };
    for (int32_t row = 0; row < rows; row++) {
        widen_elems(keys->dtype, keys->d_qk, (const uint8_t *)q_rows[row], values[row]);
    }
    for (int32_t row = rows; row < PANEL; row++) {
        memset(values[row], 0, sizeof values[row]);
    }
    /* A line of every row at a time: they and the columns they become stay in L1. */
    for (int64_t begin = 0; begin < keys->d_qk; begin += LINE_VALUES) {
        for (int64_t d = begin; d < begin + LINE_VALUES; d++) {
            for (int32_t row = 0; row < PANEL; row++) {
                columns[d][row] = values[row][d];
            }
        }
    }
}

static void pack_queries(const mla_cpu_job *job, f32_scratch *scratch)
{
    int64_t d_qk = job->keys->d_qk;
    for (int32_t panel = 0; panel * PANEL < job->rows; panel++) {
        int32_t rows = panel_rows(job, panel);
        const uint16_t *const *q_rows = job->q_rows + panel * PANEL;
        if (takes_dot_products(rows)) {
            for (int32_t row = 0; row < rows; row++) {
                widen_elems(job->keys->dtype, d_qk, (const uint8_t *)q_rows[row],
                            scratch->q[panel].row[row]);
            }
            continue;
        }
        pack_panel(job->keys, q_rows, rows, scratch->keys, scratch->q[panel].panel);
    }
}

/* S^T of one panel against the whole block. Keys of a tile past num_keys are computed from what
 * the last block left there, and not looked at; nor are rows of the panel that no query has. */
static void score_panel(f32_scratch *scratch, const float (*q)[PANEL], int32_t rows, int64_t d_qk,
                        int32_t num_keys, float scale, f32_prefetch *prefetch)
{
    int32_t tile = rows <= VEC_LANES ? KEY_TILE_NARROW : KEY_TILE;
    for (int64_t d = 0; d < d_qk; d += DEPTH) {
        int64_t depth = d_qk - d < DEPTH ? d_qk - d : DEPTH;
        bool first = d == 0;
        float factor = d + depth == d_qk ? scale : 1.0f;
        for (int32_t key = 0; key < num_keys; key += tile) {
            const float *keys = &scratch->keys[key][d];
            float *scores = scratch->scores[key];
            if (tile == KEY_TILE_NARROW) {
                score_tile(KEY_TILE_NARROW, 1, keys, q[d], depth, first, factor, scores, prefetch);
            } else {
                score_tile(KEY_TILE, 2, keys, q[d], depth, first, factor, scores, prefetch);
            }
        }
    }
}

static void score_few_rows(f32_scratch *scratch, const float (*q)[MLA_D_QK_MAX], int32_t rows,
                           int64_t d_qk, int32_t num_keys, float scale, f32_prefetch *prefetch)
{
    for (int32_t key = 0; key < num_keys; key += DOT_TILE) {
        int32_t row = 0;
        for (; row + DOT_ROWS <= rows; row += DOT_ROWS) {
            for (int32_t k = key; k < key + DOT_TILE; k += DOT_TILE / DOT_ROWS) {
                dot_tile(DOT_ROWS, scratch->keys[k], q[row], d_qk, scale, &scratch->scores[k][row],
                         prefetch);
            }
        }
        for (; row < rows; row++) {
            dot_tile(1, scratch->keys[key], q[row], d_qk, scale, &scratch->scores[key][row],
                     prefetch);
        }
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
                        job->out + row * job->out_stride + column, job->out_stride, prefetch);
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

/* Weights of keys that compete with the largest, once more from exact products. */
static void refine_weights(const mla_cpu_job *job, f32_scratch *scratch, int32_t row,
                           int32_t num_keys)
{
    double max = scratch->row_max[row];
    if (!mla_scores_are_large(max)) {
        return;
    }
    int64_t d_qk = job->keys->d_qk;
    double scale = job->scale * 1.4426950408889634;
    float q[MLA_D_QK_MAX];
    widen_elems(job->keys->dtype, d_qk, (const uint8_t *)job->q_rows[row], q);
    for (int32_t key = 0; key < num_keys; key++) {
        float *weight = &scratch->scores[key][row % PANEL];
        if (*weight > MLA_EXACT_WEIGHT) {
            float exact = (float)exp2(mla_exact_dot(q, scratch->keys[key], d_qk) * scale - max);
            scratch->row_sum[row] += exact - *weight;
            *weight = exact;
        }
    }
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
        while (end < rows &&
               visible_keys(job, panel_row + end, block->begin, block->num_keys) == keys) {
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
                         int32_t panel, bool first, f32_prefetch *prefetch)
{
    int32_t rows = panel_rows(job, panel);
    f32_row_group groups[PANEL];
    int32_t most_keys;
    int32_t num_groups = group_rows(job, block, panel * PANEL, rows, groups, &most_keys);
    float scale = (float)(job->scale * 1.4426950408889634);
    if (takes_dot_products(rows)) {
        score_few_rows(scratch, (const float(*)[MLA_D_QK_MAX])scratch->q[panel].row, rows,
                       job->keys->d_qk, most_keys, scale, prefetch);
    } else {
        score_panel(scratch, (const float(*)[PANEL])scratch->q[panel].panel, rows, job->keys->d_qk,
                    most_keys, scale, prefetch);
    }
    for (int32_t g = 0; g < num_groups; g++) {
        mask_scores(scratch, &groups[g], most_keys);
    }
    for (int32_t lane = 0; lane < rows; lane += VEC_LANES) {
        softmax_column(scratch, panel * PANEL, lane, most_keys);
    }
    for (int32_t row = panel * PANEL; row < panel * PANEL + rows; row++) {
        refine_weights(job, scratch, row, most_keys);
    }
    value_panel(job, scratch, panel * PANEL, groups, num_groups, first, prefetch);
}

static void finish_rows(const mla_cpu_job *job, const f32_scratch *scratch, bool no_keys)
{
    for (int32_t row = 0; row < job->rows; row++) {
        float *out = job->out + row * job->out_stride;
        float sum = scratch->row_sum[row];
        job->row_max[row] = (float)(scratch->row_max[row] * 0.6931471805599453);
        job->lse[row] = scratch->row_max[row] * 0.6931471805599453 + log(sum);
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

/* Stretches of a block's products, for the pace of the prefetcher. */
static int32_t count_stretches(const mla_cpu_job *job)
{
    int32_t stretches = 0;
    for (int32_t panel = 0; panel * PANEL < job->rows; panel++) {
        int32_t rows = panel_rows(job, panel);
        if (takes_dot_products(rows)) {
            stretches += rows / DOT_ROWS * (BLOCK / (DOT_TILE / DOT_ROWS)) +
                         rows % DOT_ROWS * (BLOCK / DOT_TILE);
        } else {
            stretches += BLOCK / (rows <= VEC_LANES ? KEY_TILE_NARROW : KEY_TILE) *
                         (int32_t)(job->keys->d_qk / STRETCH);
        }
        stretches += MLA_D_V / PANEL * ((rows + ROW_TILE - 1) / ROW_TILE) * (BLOCK / STRETCH);
    }
    return stretches;
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
    int64_t row_bytes = row_data_bytes(job->keys);
    int32_t stretches = count_stretches(job);
    f32_block *block = &scratch->block[0], *next_block = &scratch->block[1];
    int64_t next = resolve_block(job, job->key_begin, end, block);
    bool first = true;
    while (block->num_keys > 0) {
        widen_block(job->keys, block, scratch->keys);
        next = resolve_block(job, next, end, next_block);
        f32_prefetch prefetch = {
            .block = next_block, .row_bytes = row_bytes, .stretches = stretches};
        for (int32_t panel = 0; panel < panels; panel++) {
            attend_panel(job, scratch, block, panel, first, &prefetch);
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
