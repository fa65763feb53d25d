/*
 * Attention on AMX (Sapphire Rapids and later). See bf16_attend.h.
 *
 *     S^T tile [16 keys][16 rows]    += K tile [16 keys][32 d]    * Q^T tile [16 d pairs][16 rows]
 *     O tile   [16 rows][16 columns] += P tile [16 rows][32 keys] * V tile [16 key pairs][16 columns]
 *
 * K tiles are read where the rows lie, if 16 of them lie evenly. Both products go in blocks of two
 * by two tiles: four loads for four products, of which half hit L1. The tile unit is busy for 64
 * cycles with those four, so V is paired and the next block fetched in between.
 */
#include "amx_tiles.h"
#include "bf16_attend.h"
#include "bf16_vectors.h"
#include "largest_magnitude.h"
#include "narrow_row.h"

#include <assert.h>
#include <string.h>

enum {
    D_TILE = 32, /* dimensions or keys that one tile product sums over */
    PANEL_PAIRS = MLA_BF16_PANEL / 2
};

/* 16 rows of K, `stride` bytes apart. */
typedef struct key_tile {
    const uint8_t *base;
    int64_t stride;
} key_tile;

/* What is done between the tile products of one panel of keys. */
typedef struct side_work {
    mla_bf16_scratch *scratch;
    const uint8_t *value_row[MLA_BF16_PANEL]; /* of the panel's keys */
    int32_t first_pair;                       /* of the panel, in the block */
    int32_t pairs;                            /* of a step */
    int32_t prefetch_lines;                   /* of a step */
} side_work;

/*
 * The rows of 16 keys as a tile; copied when they lie unevenly. V is then read from the copy too,
 * unless its rows are others.
 */
static key_tile gather_keys(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t key,
                            mla_bf16_span span, const uint8_t **value_row)
{
    const uint8_t *const *row = block->key_row + key;
    intptr_t stride = (intptr_t)((uintptr_t)row[1] - (uintptr_t)row[0]);
    bool even = true;
    for (int32_t i = 0; i < MLA_TILE_ROWS; i++) {
        even = even && (i == 0 || (intptr_t)((uintptr_t)row[i] - (uintptr_t)row[i - 1]) == stride);
        value_row[i] = block->value_row[key + i];
    }
    if (even) {
        return (key_tile){row[0], stride};
    }
    for (int32_t i = 0; i < MLA_TILE_ROWS; i++) {
        uint8_t *copy = mla_bf16_own_row(block, scratch, key + i);
        if (row[i] != copy) {
            memcpy(copy + 2 * span.begin, row[i] + 2 * span.begin,
                   2 * (size_t)(span.end - span.begin));
        }
        value_row[i] = value_row[i] == row[i] ? copy : value_row[i];
    }
    return (key_tile){mla_bf16_own_row(block, scratch, key), MLA_BF16_ROW_BYTES};
}

/* Pairs V of the next few pairs of keys in dimensions [d, d + 32), and asks for the next block. */
static inline void do_side_work(const side_work *work, int32_t pass, int64_t d)
{
    mla_bf16_scratch *scratch = work->scratch;
    if (d < MLA_D_V) {
        int32_t end = (pass + 1) * work->pairs < PANEL_PAIRS ? (pass + 1) * work->pairs
                                                             : PANEL_PAIRS;
        int64_t strip = d / MLA_BF16_LANES;
        for (int32_t pair = pass * work->pairs; pair < end; pair++) {
            mla_bf16_pair_columns(work->value_row[2 * pair] + d * 2,
                                  work->value_row[2 * pair + 1] + d * 2,
                                  scratch->v[strip][work->first_pair + pair],
                                  scratch->v[strip + 1][work->first_pair + pair]);
        }
    }
    mla_bf16_prefetch_lines(&scratch->prefetch, work->prefetch_lines);
}

/* S^T of 32 keys and two groups of rows. */
static void score_tiles_2x2(const side_work *work, const key_tile *keys, mla_bf16_span span,
                            int32_t group)
{
    mla_bf16_pair(*q0)[MLA_BF16_LANES] = work->scratch->q[group];
    mla_bf16_pair(*q1)[MLA_BF16_LANES] = work->scratch->q[group + 1];
    float(*s0)[MLA_BF16_LANES] = work->scratch->s[group] + 2 * work->first_pair;
    float(*s1)[MLA_BF16_LANES] = work->scratch->s[group + 1] + 2 * work->first_pair;
    mla_tile_zero(0);
    mla_tile_zero(1);
    mla_tile_zero(2);
    mla_tile_zero(3);
    for (int64_t d = span.begin; d < span.end; d += D_TILE) {
        mla_tile_load(4, keys[0].base + d * 2, keys[0].stride);
        mla_tile_load(6, q0[d / 2], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(0, 4, 6);
        mla_tile_load(7, q1[d / 2], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(1, 4, 7);
        mla_tile_load(5, keys[1].base + d * 2, keys[1].stride);
        mla_tile_dpbf16(2, 5, 6);
        mla_tile_dpbf16(3, 5, 7);
        do_side_work(work, group / 2, d);
    }
    mla_tile_store(0, s0[0], MLA_TILE_ROW_BYTES);
    mla_tile_store(1, s1[0], MLA_TILE_ROW_BYTES);
    mla_tile_store(2, s0[MLA_TILE_ROWS], MLA_TILE_ROW_BYTES);
    mla_tile_store(3, s1[MLA_TILE_ROWS], MLA_TILE_ROW_BYTES);
}

/* S^T of 32 keys and the last group of an odd number of them. */
static void score_tiles_2x1(const side_work *work, const key_tile *keys, mla_bf16_span span,
                            int32_t group)
{
    mla_bf16_pair(*q)[MLA_BF16_LANES] = work->scratch->q[group];
    float(*s)[MLA_BF16_LANES] = work->scratch->s[group] + 2 * work->first_pair;
    mla_tile_zero(0);
    mla_tile_zero(2);
    for (int64_t d = span.begin; d < span.end; d += D_TILE) {
        mla_tile_load(6, q[d / 2], MLA_TILE_ROW_BYTES);
        mla_tile_load(4, keys[0].base + d * 2, keys[0].stride);
        mla_tile_dpbf16(0, 4, 6);
        mla_tile_load(5, keys[1].base + d * 2, keys[1].stride);
        mla_tile_dpbf16(2, 5, 6);
        do_side_work(work, group / 2, d);
    }
    mla_tile_store(0, s[0], MLA_TILE_ROW_BYTES);
    mla_tile_store(2, s[MLA_TILE_ROWS], MLA_TILE_ROW_BYTES);
}

/* A panel of 32 keys stays in L1, as far as it fits beside the queries that pass. */
static void amx_scores(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t groups,
                       mla_bf16_span span)
{
    int32_t passes = (groups + 1) / 2; /* of the queries past a panel of keys */
    int32_t panel_steps = passes * (MLA_D_QK_MAX / D_TILE);
    int32_t panel_lines = MLA_BF16_PANEL * (MLA_BF16_ROW_BYTES / 64 + 1);
    side_work work = {.scratch = scratch,
                      .pairs = (PANEL_PAIRS + passes - 1) / passes,
                      .prefetch_lines = (panel_lines + panel_steps - 1) / panel_steps};
    for (int32_t key = 0; key < block->padded_keys; key += MLA_BF16_PANEL) {
        key_tile keys[2];
        mla_bf16_decode_panel(block, scratch, key);
        for (int32_t i = 0; i < 2; i++) {
            keys[i] = gather_keys(scratch, block, key + i * MLA_TILE_ROWS, span,
                                  work.value_row + i * MLA_TILE_ROWS);
        }
        work.first_pair = key / 2;
        mla_tile_fence();
        for (int32_t group = 0; group < groups; group += 2) {
            if (group + 1 < groups) {
                score_tiles_2x2(&work, keys, span, group);
            } else {
                score_tiles_2x1(&work, keys, span, group);
            }
        }
    }
    mla_tile_fence();
}

/* [key pair][row] to tiles of [row][16 key pairs]. */
static void amx_arrange(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys)
{
    for (int32_t pair = 0; pair < padded_keys / 2; pair += PANEL_PAIRS) {
        __m512i words[MLA_BF16_LANES];
        for (int32_t i = 0; i < PANEL_PAIRS; i++) {
            words[i] = _mm512_load_si512(scratch->p[group][pair + i]);
        }
        mla_transpose_16x16(words);
        for (int32_t i = 0; i < MLA_BF16_LANES; i++) {
            _mm512_store_si512(scratch->p[group][pair + i], words[i]);
        }
    }
}

static inline void load_o_tiles(const float *o0, const float *o1, bool first)
{
    if (first) {
        mla_tile_zero(0);
        mla_tile_zero(1);
        mla_tile_zero(2);
        mla_tile_zero(3);
    } else {
        mla_tile_load(0, o0, MLA_TILE_ROW_BYTES);
        mla_tile_load(1, o0 + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
        mla_tile_load(2, o1, MLA_TILE_ROW_BYTES);
        mla_tile_load(3, o1 + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
    }
}

/* O of 32 rows and two strips of columns. */
static void value_tiles_2x2(mla_bf16_pair (*p0)[MLA_BF16_LANES],
                            mla_bf16_pair (*p1)[MLA_BF16_LANES],
                            mla_bf16_pair (*v)[MLA_BF16_KEY_PAIRS][MLA_BF16_LANES],
                            int32_t padded_keys, bool first, float *o0, float *o1)
{
    load_o_tiles(o0, o1, first);
    for (int32_t pair = 0; pair < padded_keys / 2; pair += PANEL_PAIRS) {
        mla_tile_load(4, p0[pair], MLA_TILE_ROW_BYTES);
        mla_tile_load(6, v[0][pair], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(0, 4, 6);
        mla_tile_load(7, v[1][pair], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(1, 4, 7);
        mla_tile_load(5, p1[pair], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(2, 5, 6);
        mla_tile_dpbf16(3, 5, 7);
    }
    mla_tile_store(0, o0, MLA_TILE_ROW_BYTES);
    mla_tile_store(1, o0 + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
    mla_tile_store(2, o1, MLA_TILE_ROW_BYTES);
    mla_tile_store(3, o1 + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
}

/* O of 16 rows and two strips of columns. */
static void value_tiles_1x2(mla_bf16_pair (*p)[MLA_BF16_LANES],
                            mla_bf16_pair (*v)[MLA_BF16_KEY_PAIRS][MLA_BF16_LANES],
                            int32_t padded_keys, bool first, float *o)
{
    if (first) {
        mla_tile_zero(0);
        mla_tile_zero(1);
    } else {
        mla_tile_load(0, o, MLA_TILE_ROW_BYTES);
        mla_tile_load(1, o + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
    }
    for (int32_t pair = 0; pair < padded_keys / 2; pair += PANEL_PAIRS) {
        mla_tile_load(4, p[pair], MLA_TILE_ROW_BYTES);
        mla_tile_load(6, v[0][pair], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(0, 4, 6);
        mla_tile_load(7, v[1][pair], MLA_TILE_ROW_BYTES);
        mla_tile_dpbf16(1, 4, 7);
    }
    mla_tile_store(0, o, MLA_TILE_ROW_BYTES);
    mla_tile_store(1, o + MLA_TILE_BYTES / 4, MLA_TILE_ROW_BYTES);
}

/* O of a group is [strip][row][column] here. Two strips of V stay in L1 while all rows pass. */
static void amx_values(mla_bf16_scratch *scratch, const int32_t *groups, int32_t num_groups,
                       int32_t padded_keys, bool first)
{
    mla_tile_fence();
    for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip += 2) {
        int32_t at = 0;
        for (; at + 1 < num_groups; at += 2) {
            int32_t g0 = groups[at], g1 = groups[at + 1];
            value_tiles_2x2(scratch->p[g0], scratch->p[g1], scratch->v + strip, padded_keys, first,
                            scratch->o[g0][strip][0], scratch->o[g1][strip][0]);
        }
        if (at < num_groups) {
            int32_t group = groups[at];
            value_tiles_1x2(scratch->p[group], scratch->v + strip, padded_keys, first,
                            scratch->o[group][strip][0]);
        }
    }
    mla_tile_fence();
}

static void amx_rescale(mla_bf16_scratch *scratch, int32_t group)
{
    for (int32_t row = 0; row < MLA_BF16_LANES; row++) {
        __m512 factor = _mm512_set1_ps(scratch->rescale[row]);
        for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip++) {
            float *o = scratch->o[group][strip][row];
            _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), factor));
        }
    }
}

static void amx_store(const mla_bf16_scratch *scratch, int32_t group, const float *factor,
                      int32_t rows, float *out, int64_t out_stride)
{
    /* The inverse of the order that mla_bf16_pair_columns() leaves. */
    const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
    for (int32_t row = 0; row < rows; row++) {
        __m512 scale = _mm512_set1_ps(factor[row]);
        float *columns = out + row * out_stride;
        for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip += 2) {
            __m512 o0 = _mm512_mul_ps(_mm512_load_ps(scratch->o[group][strip][row]), scale);
            __m512 o1 = _mm512_mul_ps(_mm512_load_ps(scratch->o[group][strip + 1][row]), scale);
            _mm512_storeu_ps(columns, _mm512_permutex2var_ps(o0, left, o1));
            _mm512_storeu_ps(columns + MLA_BF16_LANES, _mm512_permutex2var_ps(o0, right, o1));
            columns += 2 * MLA_BF16_LANES;
        }
    }
}

static void amx_bf16_attend(const mla_cpu_job *job)
{
    static const mla_bf16_engine engine = {.scores = amx_scores,
                                           .arrange = amx_arrange,
                                           .values = amx_values,
                                           .rescale = amx_rescale,
                                           .store = amx_store};
    mla_tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = MLA_TILE_ROWS;
        config.row_bytes[tile] = MLA_TILE_ROW_BYTES;
    }
    mla_tile_fence();
    mla_tile_configure(&config);
    mla_bf16_attend(job, &engine);
    mla_tile_release();
}

const mla_cpu_kernel mla_amx_bf16_kernel = {.isa = MLA_ISA_AMX_BF16,
                                            .available = mla_tile_available,
                                            .serves = mla_bf16_serves,
                                            .scratch_bytes = sizeof(mla_bf16_scratch),
                                            .attend = amx_bf16_attend,
                                            .narrow = narrow_row,
                                            .largest = largest_magnitude};
