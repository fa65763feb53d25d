/*
 * Blocks of keys for the FP32 attention core (attend_f32.h): found, prefetched, and widened to
 * float32.
 */
#ifndef MLA_CPU_F32_KEYS_H
#define MLA_CPU_F32_KEYS_H

#include "formats.h"
#include "kernels.h"

#include <assert.h>

enum {
    PANEL = 2 * VEC_LANES, /* query rows or value columns of a tile */
    PANELS = MLA_CPU_TILE_ROWS / PANEL,
    BLOCK = 96,                     /* keys widened at a time */
    KEY_STRIDE = MLA_D_QK_MAX + 16, /* an odd number of cache lines: all sets of L1 are used */
    /* Products of one chain of additions. Shorter chains round less, and a panel of Q^T this deep
     * stays in L1 while the block's keys pass. */
    DEPTH = 192,
    STRETCH = 48, /* steps of a product during which one row is prefetched */
    WIDEN_AHEAD = 4,
    TOUCHED_ROWS = 8,
    LINE_BYTES = 64,
    DOT_ROWS = 4 /* query rows of a tile of dot products */
};

_Static_assert(BLOCK % KEY_TILE == 0 && BLOCK % DOT_TILE == 0 && BLOCK % KEY_TILE_NARROW == 0,
               "whole tiles fill a block");
_Static_assert(DOT_ROWS == 4 && DOT_TILE % 4 == 0, "dot products are summed by fours");
_Static_assert(PANEL <= BLOCK, "a panel's queries fit where the keys go");
_Static_assert(MLA_CPU_TILE_ROWS % PANEL == 0, "whole panels fill a tile of rows");

typedef struct f32_block {
    mla_key_row rows[BLOCK];
    int32_t num_keys;
    int32_t prefetched; /* rows that have been asked for */
    int64_t begin;      /* place of the first key in the key list; exact for dense lists */
} f32_block;

/* Pulls the next keys of the job from the list, a whole block unless the list ends. */
static int64_t resolve_block(const mla_cpu_job *job, int64_t begin, int64_t end, f32_block *block)
{
    block->begin = begin;
    block->num_keys = 0;
    block->prefetched = 0;
    while (begin < end && block->num_keys < BLOCK) {
        int64_t room = BLOCK - block->num_keys;
        int64_t stop = end - begin < room ? end : begin + room;
        block->num_keys += mla_key_rows_resolve(job->keys, begin, stop,
                                                block->rows + block->num_keys);
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

/* Bytes of a row's data, for the prefetcher. */
static int64_t row_data_bytes(const mla_key_rows *keys)
{
    return keys->kv_format == MLA_KV_FP8_656   ? MLA_FP8_656_BYTES
           : keys->kv_format == MLA_KV_FP8_584 ? MLA_FP8_584_DATA_BYTES
                                               : keys->d_qk * 2;
}

/* The scales of 584-byte rows lie apart from the data; others have none or have them inside. */
static inline const uint8_t *scales_or_data(const mla_key_row *row)
{
    return row->scales != NULL ? row->scales : row->data;
}

/* Rows that the products left to ask for, the first block's and those of jobs with few rows, are
 * asked for a little ahead. */
static void widen_block(const mla_key_rows *keys, const f32_block *block,
                        float (*values)[KEY_STRIDE])
{
    int64_t row_bytes = row_data_bytes(keys);
    for (int32_t key = 0; key < block->num_keys; key++) {
        int32_t ahead = key + WIDEN_AHEAD;
        if (ahead >= block->prefetched && ahead < block->num_keys) {
            for (int64_t at = 0; at < row_bytes; at += LINE_BYTES) {
                __builtin_prefetch(block->rows[ahead].data + at);
            }
            __builtin_prefetch(scales_or_data(&block->rows[ahead]));
        }
        widen_row(keys, block->rows[key], values[key]);
    }
}

/*
 * The next block's rows are asked for while this one is computed, one row per stretch of a product,
 * a line every other step. Rows come from memory in any order, where no hardware prefetcher helps,
 * and a burst of requests would keep the product's own loads waiting for a fill buffer (a row at a
 * time before each tile took 0.56 of the FMA peak at 16 rows, this 0.62).
 */
typedef struct f32_prefetch {
    f32_block *block;
    int64_t row_bytes;
    int32_t credit; /* a row is due when the stretches add up to `stretches`, BLOCK for each */
    int32_t stretches;
} f32_prefetch;

/*
 * Asks for one line of each of the next rows, and for their scales. A prefetch cannot retire before
 * its page is found, which takes as long as a miss of the caches where rows are spread over a large
 * pool: several of them at once wait together. (AVX-512, 656-byte rows at random in 260 MB of small
 * pages, 128 rows: 0.76 of the FMA peak without, 0.83 with.)
 */
static inline void touch_rows(const f32_block *block)
{
    int32_t stop = block->prefetched + TOUCHED_ROWS;
    stop = stop < block->num_keys ? stop : block->num_keys;
    for (int32_t i = block->prefetched; i < stop; i++) {
        __builtin_prefetch(block->rows[i].data, 0, 2);
        __builtin_prefetch(scales_or_data(&block->rows[i]), 0, 2);
    }
}

/* The first line to prefetch during a stretch; *last is the last one. The same line again and
 * again where no row is due. */
static inline const uint8_t *prefetch_row(f32_prefetch *prefetch, const uint8_t **last)
{
    prefetch->credit += BLOCK;
    if (prefetch->credit < prefetch->stretches ||
        prefetch->block->prefetched >= prefetch->block->num_keys) {
        return *last = (const uint8_t *)prefetch;
    }
    prefetch->credit -= prefetch->stretches;
    f32_block *block = prefetch->block;
    if (block->prefetched % TOUCHED_ROWS == 0) {
        touch_rows(block);
    }
    const mla_key_row *row = &block->rows[block->prefetched++];
    *last = row->data + prefetch->row_bytes - 1;
    return row->data;
}

#endif
