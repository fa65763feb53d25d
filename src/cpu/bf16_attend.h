/*
 * Attention in bf16 with FP32 accumulation: what AVX512-BF16 and AMX share. Lanes and tile columns
 * run over query rows, in groups of 16:
 *
 *     S^T[key][row] = K[key][d] * Q^T[d][row]          keys as they lie in the cache
 *     P^T           = bf16(exp2(S^T * scale - ref))    no reduction crosses lanes
 *     O            += P * V                            an engine chooses O's orientation
 *
 * Products of bf16 values are exact and so are q, native rows, e4m3 values, and e4m3 values times a
 * power of two. Other scales of FP8 rows are applied to S in FP32, group by group of values; V is
 * split into two bf16 numbers, high + low = value within 2^-17. P is rounded to bf16, and of a split
 * V the high part is used: errors of 2^-9 of each product that average out where many keys share a
 * row's weight. Where few do, the remainders P - bf16(P) and the low parts of V are multiplied too
 * (avx512_bf16_softmax.c says when).
 *
 * NaN and infinities of a key that not all rows of the tile may see are kept out of the product,
 * where a weight of 0 would make NaN of them, and put into the rows that do see it at the end. Both
 * instruction sets take bf16 denormals for zero.
 */
#ifndef MLA_CPU_BF16_ATTEND_H
#define MLA_CPU_BF16_ATTEND_H

#include "kernels.h"

#include <stdalign.h>

enum {
    MLA_BF16_LANES = 16,
    MLA_BF16_GROUPS = MLA_CPU_TILE_ROWS / MLA_BF16_LANES,
    /* Keys of a block. Its K, V, S and P and the job's Q and O are 0.8 MiB: two threads of a core
     * share 2 MiB of L2. 128, 256, 384 and 512 keys: dense 5.7, 5.4, 5.3, 5.7 TFLOP/s, FP8 5.4, 4.2,
     * 4.1, 4.0 (16 threads of a Xeon with AMX, medians of two runs, November 2026). */
    MLA_BF16_KEYS = 128,
    MLA_BF16_PANEL = 32, /* keys of a panel; the keys of a block are padded to whole panels */
    MLA_BF16_D_PAIRS = MLA_D_QK_MAX / 2,
    MLA_BF16_KEY_PAIRS = MLA_BF16_KEYS / 2,
    MLA_BF16_STRIPS = MLA_D_V / MLA_BF16_LANES, /* of 16 value columns */
    MLA_BF16_ROW_BYTES = MLA_D_QK_MAX * 2,
    MLA_BF16_VALUE_BYTES = MLA_D_V * 2,
    MLA_BF16_SCALES = 4, /* of a 656-byte row */
    /* Scales of 2^e with |e| up to this keep every e4m3 value a normal bf16 number. */
    MLA_BF16_MAX_EXPONENT = 100,
    MLA_E4M3_MAGNITUDES = 128
};

/* Two bf16 values in one word, the even one in the low half: the unit of every product. */
typedef uint32_t mla_bf16_pair;

/* bf16 of all magnitudes of e4m3 times a power of two, in halves. */
typedef struct mla_bf16_codes {
    alignas(64) uint8_t low[MLA_E4M3_MAGNITUDES];
    alignas(64) uint8_t high[MLA_E4M3_MAGNITUDES];
} mla_bf16_codes;

/* Keys of a block, first as the cache has them, then as rows of bf16. */
typedef struct mla_bf16_block {
    int64_t begin; /* place of the first key in the list; exact for dense lists */
    int32_t num_keys;
    int32_t padded_keys;               /* a multiple of MLA_BF16_PANEL */
    mla_key_row source[MLA_BF16_KEYS]; /* num_keys entries */
    /* K and V: padded_keys entries, the last ones are rows of zeros. */
    const uint8_t *key_row[MLA_BF16_KEYS];
    const uint8_t *value_row[MLA_BF16_KEYS];
    /* Key rows lack the scales of their latent values, which scratch->scales holds; value rows are
     * rounded, and scratch->low holds what they lack. */
    bool split;
    /* What rows have to be decoded from, panel by panel, before they are read; MLA_KV_NATIVE: they
     * need not, or it is done. */
    mla_kv_format coded;
} mla_bf16_block;

/* Dimensions [begin, end) of a row; multiples of 32. */
typedef struct mla_bf16_span {
    int32_t begin, end;
} mla_bf16_span;

/* Rows of the next block that are still to be asked for while this one is computed. */
typedef struct mla_bf16_prefetch {
    const mla_bf16_block *block;
    int32_t key;
    int32_t byte;
    int32_t row_bytes;
} mla_bf16_prefetch;

typedef struct mla_bf16_scratch {
    /* Those of the scales met so far in the job, by exponent + MLA_BF16_MAX_EXPONENT. */
    mla_bf16_codes codes[2 * MLA_BF16_MAX_EXPONENT + 1];
    bool has_codes[2 * MLA_BF16_MAX_EXPONENT + 1];
    alignas(64) mla_bf16_pair q[MLA_BF16_GROUPS][MLA_BF16_D_PAIRS][MLA_BF16_LANES];
    /* Rows that are not used in place: decoded from FP8, or copied to lie evenly. Those of the
     * panel at work, which stay near; of a split block all. */
    alignas(64) uint8_t rows[MLA_BF16_KEYS][MLA_BF16_ROW_BYTES];
    /* Of a split block: V, what V lacks, the scales, and S of the groups of values so far. */
    alignas(64) uint8_t high[MLA_BF16_KEYS][MLA_BF16_VALUE_BYTES];
    alignas(64) uint8_t low[MLA_BF16_KEYS][MLA_BF16_VALUE_BYTES];
    alignas(64) float s_scaled[MLA_BF16_GROUPS][MLA_BF16_KEYS][MLA_BF16_LANES];
    float scales[MLA_BF16_KEYS][MLA_BF16_SCALES];
    /* V by pairs of keys. Strips 2i and 2i + 1 hold columns 32i ... 32i + 31 in the order of
     * mla_bf16_strip_column(). */
    alignas(64) mla_bf16_pair v[MLA_BF16_STRIPS][MLA_BF16_KEY_PAIRS][MLA_BF16_LANES];
    alignas(64) float s[MLA_BF16_GROUPS][MLA_BF16_KEYS][MLA_BF16_LANES];
    alignas(64) mla_bf16_pair p[MLA_BF16_GROUPS][MLA_BF16_KEY_PAIRS][MLA_BF16_LANES];
    alignas(64) float o[MLA_BF16_GROUPS][MLA_BF16_STRIPS][MLA_BF16_LANES][MLA_BF16_LANES];
    alignas(64) float row_ref[MLA_CPU_TILE_ROWS]; /* weights are exp2(S - ref); base 2 */
    alignas(64) float row_max[MLA_CPU_TILE_ROWS]; /* base 2 */
    alignas(64) float row_sum[MLA_CPU_TILE_ROWS];
    alignas(64) float row_rounded[MLA_CPU_TILE_ROWS]; /* sum of (P max |V|)^2 where P was rounded */
    alignas(64) float rescale[MLA_BF16_LANES];        /* of the group at work */
    alignas(64) int32_t visible[MLA_CPU_TILE_ROWS];   /* keys of the block that a row sees */
    uint16_t few_keys[MLA_BF16_GROUPS]; /* bit r: row r needs the remainders in this block */
    /* Bit r: row r's scores are large, see exact_scores.h. Its column of `s` then holds scores
     * relative to row_ref, in base 2. */
    uint16_t large_scores[MLA_BF16_GROUPS];
    float value_max; /* largest |V| of the block; huge if not all rows see all its keys */
    bool has_nan_columns;
    uint32_t nan_columns[MLA_CPU_TILE_ROWS][MLA_D_V / 32]; /* bit masks, if has_nan_columns */
    mla_bf16_block block[2]; /* the block at work and the one being prefetched */
    mla_bf16_prefetch prefetch;
} mla_bf16_scratch;

/* What an instruction set does its own way. `groups` counts groups of 16 rows. */
typedef struct mla_bf16_engine {
    /* scratch->s = S^T over the dimensions of `span`, unscaled, of the block's padded keys; and the
     * columns of `span` of scratch->v. */
    void (*scores)(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t groups,
                   mla_bf16_span span);
    /* Brings scratch->p of a group, [pair of keys][row], into the order that values() reads. */
    void (*arrange)(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys);
    /* O of the chosen groups += P * V, or = P * V when `first`. */
    void (*values)(mla_bf16_scratch *scratch, const int32_t *groups, int32_t num_groups,
                   int32_t padded_keys, bool first);
    /* O of a group *= scratch->rescale, row by row. */
    void (*rescale)(mla_bf16_scratch *scratch, int32_t group);
    /* O of a group, times `factor` row by row, to `rows` rows of the caller's. */
    void (*store)(const mla_bf16_scratch *scratch, int32_t group, const float *factor, int32_t rows,
                  float *out, int64_t out_stride);
} mla_bf16_engine;

void mla_bf16_attend(const mla_cpu_job *job, const mla_bf16_engine *engine);
bool mla_bf16_serves(mla_kv_format kv_format, mla_dtype dtype);

/* ---- avx512_bf16_rows.c ---- */

/* Packs the queries of a job, negated when `negate`; absent rows of the last group are zero. The
 * first block is being prefetched meanwhile. */
void mla_bf16_pack_queries(const mla_cpu_job *job, bool negate, mla_bf16_scratch *scratch);

/* Pulls the next keys from the list, a whole block unless the list ends; returns where it stopped.
 * Fills `begin`, `num_keys`, `padded_keys` and `source`. */
int64_t mla_bf16_resolve(const mla_key_rows *keys, int64_t begin, int64_t end,
                         mla_bf16_block *block);

/* Fills `key_row`, `value_row`, `split` and `coded`, and what belongs to a split block. */
void mla_bf16_decode(const mla_key_rows *keys, mla_bf16_block *block, mla_bf16_scratch *scratch);

/* Decodes the rows of the panel that begins with key `key`, if need be. */
void mla_bf16_decode_panel(const mla_bf16_block *block, mla_bf16_scratch *scratch, int32_t key);

/* Where a key's row goes if it is not used in place. */
static inline uint8_t *mla_bf16_own_row(const mla_bf16_block *block, mla_bf16_scratch *scratch,
                                        int32_t key)
{
    return scratch->rows[block->split ? key : key % MLA_BF16_PANEL];
}

/* The columns of `span`, as far as there are, of scratch->v, for keys [begin, end), both even. */
void mla_bf16_pair_values(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t begin,
                          int32_t end, mla_bf16_span span);

/* The largest |V| of scratch->v. */
float mla_bf16_largest_value(const mla_bf16_scratch *scratch, int32_t padded_keys);

/* Puts the low parts of V in place of a split block's value rows. */
void mla_bf16_use_low_values(mla_bf16_block *block, mla_bf16_scratch *scratch);

/* scratch->s_scaled = its old value (0 if `first`) + scale `scale_idx` of each key * scratch->s. */
void mla_bf16_scale_scores(mla_bf16_scratch *scratch, int32_t groups, int32_t padded_keys,
                           int32_t scale_idx, bool first);

/* scratch->s += scratch->s_scaled. */
void mla_bf16_add_scaled_scores(mla_bf16_scratch *scratch, int32_t groups, int32_t padded_keys);

/* Sets NaN and infinities in scratch->v to 0; scratch->nan_columns notes which results they make
 * NaN, given what rows see. (An infinite value is an infinite key: its weight is NaN, or 0.) */
void mla_bf16_hide_non_finite(mla_bf16_scratch *scratch, int32_t padded_keys);

/* The value column in a lane of a strip. */
static inline int32_t mla_bf16_strip_column(int32_t strip, int32_t lane)
{
    return strip / 2 * 32 + lane / 4 * 8 + strip % 2 * 4 + lane % 4;
}

/* Asks for the next `lines` cache lines. */
static inline void mla_bf16_prefetch_lines(mla_bf16_prefetch *prefetch, int32_t lines)
{
    for (; lines > 0 && prefetch->key < prefetch->block->num_keys; lines--) {
        const mla_key_row *row = &prefetch->block->source[prefetch->key];
        __builtin_prefetch(row->data + prefetch->byte, 0, 2);
        prefetch->byte += 64;
        if (prefetch->byte >= prefetch->row_bytes) {
            if (row->scales != NULL) { /* which may lie apart */
                __builtin_prefetch(row->scales, 0, 2);
            }
            prefetch->byte = 0;
            prefetch->key++;
        }
    }
}

/* ---- avx512_bf16_softmax.c ---- */

/*
 * First half of one block of the online softmax of a group: its row_max, row_ref and large_scores,
 * and scratch->rescale. `scale` takes S to base 2 and is not negative. Row r sees the first
 * scratch->visible[r] keys; `masked` is false only if all rows see all padded keys. Returns whether
 * O must be rescaled.
 */
bool mla_bf16_move_ref(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys, float scale,
                       bool masked);

/* Second half: scratch->s to scratch->p, and the group's row_sum and few_keys. `split` if V is
 * rounded. */
void mla_bf16_softmax(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys, float scale,
                      bool masked, bool split);

/*
 * After mla_bf16_softmax(): scratch->p of a group once more, 0 in the rows that are not among its
 * few_keys; with `remainders`, P - bf16(P) in place of P.
 */
void mla_bf16_softmax_few(mla_bf16_scratch *scratch, int32_t group, int32_t padded_keys,
                          float scale, bool masked, bool remainders);

#endif
