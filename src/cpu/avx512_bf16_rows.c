/* Queries and keys on their way into the bf16 kernels. */
#include "bf16_attend.h"
#include "bf16_vectors.h"
#include "formats.h"

#include <assert.h>
#include <float.h>
#include <math.h>

enum {
    GROUP_WORDS = 16, /* pairs of dimensions transposed at a time */
    E4M3_TO_BF16_BIAS = 127 - 7,
    MAX_E4M3 = 448
};

/* bf16 to float32. */
static inline __m512 widen(__m256i values)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

static const alignas(64) uint8_t zero_row[MLA_BF16_ROW_BYTES];

void mla_bf16_pack_queries(const mla_cpu_job *job, bool negate, mla_bf16_scratch *scratch)
{
    assert(job->rows >= 1 && job->rows <= MLA_CPU_TILE_ROWS);
    __m512i sign = _mm512_set1_epi16(negate ? INT16_MIN : 0);
    int32_t groups = (job->rows + MLA_BF16_LANES - 1) / MLA_BF16_LANES;
    int32_t steps = groups * (int32_t)(job->keys->d_qk / (2 * GROUP_WORDS));
    int32_t block_lines = MLA_BF16_KEYS * (scratch->prefetch.row_bytes / 64 + 1);
    int32_t step_lines = (block_lines + steps - 1) / steps;
    for (int32_t first = 0; first < job->rows; first += MLA_BF16_LANES) {
        mla_bf16_pair(*q)[MLA_BF16_LANES] = scratch->q[first / MLA_BF16_LANES];
        for (int64_t d = 0; d < job->keys->d_qk; d += 2 * GROUP_WORDS) {
            __m512i words[MLA_BF16_LANES];
            for (int32_t i = 0; i < MLA_BF16_LANES; i++) {
                words[i] = first + i < job->rows
                               ? _mm512_xor_si512(_mm512_loadu_si512(job->q_rows[first + i] + d),
                                                  sign)
                               : _mm512_setzero_si512();
            }
            mla_transpose_16x16(words);
            for (int32_t i = 0; i < GROUP_WORDS; i++) {
                _mm512_store_si512(q[d / 2 + i], words[i]);
            }
            mla_bf16_prefetch_lines(&scratch->prefetch, step_lines);
        }
    }
}

int64_t mla_bf16_resolve(const mla_key_rows *keys, int64_t begin, int64_t end,
                         mla_bf16_block *block)
{
    block->begin = begin;
    block->num_keys = 0;
    while (begin < end && block->num_keys < MLA_BF16_KEYS) {
        int64_t room = MLA_BF16_KEYS - block->num_keys;
        int64_t stop = end - begin < room ? end : begin + room;
        block->num_keys += mla_key_rows_resolve(keys, begin, stop, block->source + block->num_keys);
        begin = stop;
    }
    assert(block->num_keys >= 0 && block->num_keys <= MLA_BF16_KEYS);
    block->padded_keys = (block->num_keys + MLA_BF16_PANEL - 1) / MLA_BF16_PANEL * MLA_BF16_PANEL;
    return begin;
}

/* Whether e4m3 values times the scale are bf16 numbers: it is 0 or a power of two of sane size. */
static inline bool scale_is_plain(float scale)
{
    uint32_t bits = mla_f32_bits(scale);
    int32_t exponent = (int32_t)(bits >> 23) - 127;
    bool power = (bits & 0x807fffff) == 0 && exponent >= -MLA_BF16_MAX_EXPONENT &&
                 exponent <= MLA_BF16_MAX_EXPONENT;
    return power || scale == 0.0f;
}

/*
 * bf16 of 32 e4m3 values times 2^exponent, by moving the fields of the format and adding to the
 * exponent; the seven subnormal magnitudes come from a table. NaN is the caller's to exclude.
 */
static inline __attribute__((always_inline)) __m512i e4m3_to_bf16(const uint8_t *data,
                                                                  int32_t exponent)
{
    const __m512i sign = _mm512_set1_epi16(INT16_MIN);
    const __m512i fields = _mm512_set1_epi16((int16_t)0x87f0);
    const __m512i exponent_field = _mm512_set1_epi16(0x0780);
    const __m512i offset = _mm512_set1_epi16((int16_t)(exponent * 128));
    const __m512i bias = _mm512_set1_epi16((int16_t)((exponent + E4M3_TO_BF16_BIAS) * 128));
    /* bf16 of 0, 1, ... 7 times 2^-9. */
    __m512i subnormal = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0x3c603c403c203c00, 0x3bc03b803b000000);
    subnormal = _mm512_mask_add_epi16(subnormal, 0xfe, subnormal, offset);

    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)data));
    __m512i moved = _mm512_and_si512(_mm512_slli_epi16(wide, 4), fields);
    __mmask32 is_subnormal = _mm512_testn_epi16_mask(moved, exponent_field);
    /* The table is indexed by the low five bits: the mantissa, the others being 0 here. */
    __m512i small = _mm512_permutexvar_epi16(wide, subnormal);
    small = _mm512_or_si512(small, _mm512_and_si512(wide, sign));
    return _mm512_mask_mov_epi16(_mm512_add_epi16(moved, bias), is_subnormal, small);
}

/* Which of 32 bf16 numbers are NaN or infinite. */
static inline __mmask32 non_finite(__m512i values)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(values, exponent), exponent);
}

/* 32 e4m3 values times any scale, rounded to bf16; `rest` becomes what the rounding took away. */
static inline __m512i scale_and_round(const uint8_t *data, __m512 scale, __m512i *rest)
{
    __m512i values = e4m3_to_bf16(data, 0);
    __m512 left = _mm512_mul_ps(widen(_mm512_castsi512_si256(values)), scale);
    __m512 right = _mm512_mul_ps(widen(_mm512_extracti64x4_epi64(values, 1)), scale);
    __m512i high = (__m512i)_mm512_cvtne2ps_pbh(right, left);
    left = _mm512_sub_ps(left, widen(_mm512_castsi512_si256(high)));
    right = _mm512_sub_ps(right, widen(_mm512_extracti64x4_epi64(high, 1)));
    __m512i low = (__m512i)_mm512_cvtne2ps_pbh(right, left);
    *rest = _mm512_maskz_mov_epi16(~non_finite(high), low);
    return high;
}

/* Puts NaN where the e4m3 code is NaN and its scale is not 0. */
static void put_nan(int count, int group, const uint8_t *data, const float *scales, uint8_t *row)
{
    const uint16_t nan = 0x7fc0;
    for (int i = 0; i < count * group; i++) {
        if ((data[i] & 0x7f) == 0x7f && scales[i / group] != 0.0f) {
            memcpy(row + 2 * i, &nan, sizeof nan);
        }
    }
}

static bool has_e4m3_nan(int count, const uint8_t *data)
{
    const __m512i sign = _mm512_set1_epi8(INT8_MIN);
    const __m512i nan = _mm512_set1_epi8(-1);
    __mmask64 found = 0;
    for (int i = 0; i < count; i += 64) {
        __m512i bytes = _mm512_loadu_si512(data + i);
        found |= _mm512_cmpeq_epi8_mask(_mm512_or_si512(bytes, sign), nan);
    }
    return found != 0;
}

enum {
    GROUPS_656 = MLA_FP8_656_LATENT / MLA_FP8_656_GROUP,
    GROUPS_584 = MLA_FP8_584_LATENT / MLA_FP8_584_GROUP
};

_Static_assert((int)GROUPS_656 == (int)MLA_BF16_SCALES, "only 656-byte rows are split");

static void make_codes(int32_t exponent, mla_bf16_codes *codes)
{
    const uint16_t nan = 0x7fc0;
    uint8_t magnitudes[MLA_E4M3_MAGNITUDES];
    uint16_t values[MLA_E4M3_MAGNITUDES];
    for (int i = 0; i < MLA_E4M3_MAGNITUDES; i++) {
        magnitudes[i] = (uint8_t)i;
    }
    for (int i = 0; i < MLA_E4M3_MAGNITUDES; i += 32) {
        _mm512_storeu_si512(values + i, e4m3_to_bf16(magnitudes + i, exponent));
    }
    values[MLA_E4M3_MAGNITUDES - 1] = nan;
    for (int i = 0; i < MLA_E4M3_MAGNITUDES; i++) {
        codes->low[i] = (uint8_t)values[i];
        codes->high[i] = (uint8_t)(values[i] >> 8);
    }
}

/* bf16 of `count` e4m3 values, 64 at a time: the halves are looked up by their magnitudes, the
 * signs added, and the halves interleaved. */
static inline __attribute__((always_inline)) void
decode_by_codes(int count, const uint8_t *data, const mla_bf16_codes *codes, uint8_t *row)
{
    /* Interleaving works within 128-bit lanes: this order of quarters comes out straight. */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i sign = _mm512_set1_epi8(INT8_MIN);
    const __m512i low0 = _mm512_load_si512(codes->low), high0 = _mm512_load_si512(codes->high);
    const __m512i low1 = _mm512_load_si512(codes->low + 64);
    const __m512i high1 = _mm512_load_si512(codes->high + 64);
    for (int i = 0; i < count; i += 64) {
        __m512i bytes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(data + i));
        __m512i low = _mm512_permutex2var_epi8(low0, bytes, low1);
        __m512i high = _mm512_permutex2var_epi8(high0, bytes, high1);
        high = _mm512_or_si512(high, _mm512_and_si512(bytes, sign));
        _mm512_storeu_si512(row + 2 * i, _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(row + 2 * i + 64, _mm512_unpackhi_epi8(low, high));
    }
}

/* A group of values of a block that is not split. Scales are plain, or NaN or infinite, or at the
 * very ends of e8m0's range; those products are no numbers, or their rounding is of no account. */
static inline __attribute__((always_inline)) void
decode_group(int count, const uint8_t *data, float scale, mla_bf16_scratch *scratch, uint8_t *row)
{
    if (scale == 0.0f) {
        memset(row, 0, (size_t)count * 2);
    } else if (scale_is_plain(scale)) {
        int32_t exponent = (int32_t)(mla_f32_bits(scale) >> 23) - 127;
        int32_t at = exponent + MLA_BF16_MAX_EXPONENT;
        if (!scratch->has_codes[at]) {
            make_codes(exponent, &scratch->codes[at]);
            scratch->has_codes[at] = true;
        }
        decode_by_codes(count, data, &scratch->codes[at], row);
    } else {
        for (int i = 0; i < count; i += 32) {
            __m512i rest;
            _mm512_storeu_si512(row + 2 * i,
                                scale_and_round(data + i, _mm512_set1_ps(scale), &rest));
        }
        put_nan(1, count, data, &scale, row);
    }
}

static void decode_656(mla_key_row source, mla_bf16_scratch *scratch, uint8_t *row)
{
    for (int i = 0; i < GROUPS_656; i++) {
        float scale;
        memcpy(&scale, source.scales + sizeof scale * (size_t)i, sizeof scale);
        int at = i * MLA_FP8_656_GROUP;
        decode_group(MLA_FP8_656_GROUP, source.data + at, scale, scratch, row + 2 * at);
    }
    memcpy(row + 2 * MLA_FP8_656_LATENT, source.data + MLA_FP8_656_ROPE_AT, MLA_ROPE_DIM * 2);
}

static void decode_584(mla_key_row source, mla_bf16_scratch *scratch, uint8_t *row)
{
    for (int i = 0; i < GROUPS_584; i++) {
        float scale = mla_e8m0_to_f32(source.scales[i]);
        int at = i * MLA_FP8_584_GROUP;
        decode_group(MLA_FP8_584_GROUP, source.data + at, scale, scratch, row + 2 * at);
    }
    memcpy(row + 2 * MLA_FP8_584_LATENT, source.data + MLA_FP8_584_ROPE_AT, MLA_ROPE_DIM * 2);
}

/* Whether a product with the scale may be infinite or NaN. S would not show it if the scale were
 * applied to a sum of products. */
static inline bool scale_overflows(float scale)
{
    return !(fabsf(scale) <= FLT_MAX / MAX_E4M3);
}

/* A row of a split block: K without scales, but for those that overflow, and V in two parts. */
static void split_656(mla_key_row source, int32_t key, mla_bf16_scratch *scratch)
{
    uint8_t *row = scratch->rows[key], *high = scratch->high[key];
    float scales[GROUPS_656];
    memcpy(scales, source.scales, sizeof scales);
    for (int i = 0; i < MLA_FP8_656_LATENT; i += 32) {
        float scale = scales[i / MLA_FP8_656_GROUP];
        __m512i rest, value = scale_and_round(source.data + i, _mm512_set1_ps(scale), &rest);
        bool overflows = scale_overflows(scale);
        _mm512_storeu_si512(row + 2 * i, overflows ? value : e4m3_to_bf16(source.data + i, 0));
        _mm512_storeu_si512(high + 2 * i, value);
        _mm512_storeu_si512(scratch->low[key] + 2 * i, rest);
        scratch->scales[key][i / MLA_FP8_656_GROUP] = overflows ? 1.0f : scale;
    }
    if (has_e4m3_nan(MLA_FP8_656_LATENT, source.data)) {
        put_nan(GROUPS_656, MLA_FP8_656_GROUP, source.data, scales, row);
        put_nan(GROUPS_656, MLA_FP8_656_GROUP, source.data, scales, high);
    }
    memcpy(row + 2 * MLA_FP8_656_LATENT, source.data + MLA_FP8_656_ROPE_AT, MLA_ROPE_DIM * 2);
}

/* Whether a key of the block has a scale whose products no single bf16 number holds. Of a scale
 * that overflows they are no numbers or of no account, and such a key may be one that few rows
 * see. */
static bool has_odd_scale(const mla_bf16_block *block)
{
    const __m128i outside = _mm_set1_epi32((int32_t)0x807fffff);
    const __m128i least = _mm_set1_epi32(127 - MLA_BF16_MAX_EXPONENT);
    const __m128i range = _mm_set1_epi32(2 * MLA_BF16_MAX_EXPONENT);
    bool plain = true;
    for (int32_t key = 0; key < block->num_keys; key++) {
        __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)block->source[key].scales);
        __mmask8 powers = _mm_testn_epi32_mask(bits, outside);
        __m128i exponents = _mm_sub_epi32(_mm_srli_epi32(bits, 23), least);
        if (_mm_mask_cmple_epu32_mask(powers, exponents, range) == 0xf) {
            continue;
        }
        float scales[GROUPS_656];
        memcpy(scales, block->source[key].scales, sizeof scales);
        for (int i = 0; i < GROUPS_656; i++) {
            plain = plain && (scale_is_plain(scales[i]) || scale_overflows(scales[i]));
        }
    }
    return !plain;
}

void mla_bf16_decode(const mla_key_rows *keys, mla_bf16_block *block, mla_bf16_scratch *scratch)
{
    block->split = keys->kv_format == MLA_KV_FP8_656 && has_odd_scale(block);
    block->coded = block->split ? MLA_KV_NATIVE : keys->kv_format;
    for (int32_t key = 0; key < block->num_keys; key++) {
        mla_key_row source = block->source[key];
        const uint8_t *key_row = mla_bf16_own_row(block, scratch, key), *value_row = key_row;
        if (keys->kv_format == MLA_KV_NATIVE) {
            key_row = value_row = source.data;
        } else if (block->split) {
            split_656(source, key, scratch);
            value_row = scratch->high[key];
        }
        block->key_row[key] = key_row;
        block->value_row[key] = value_row;
    }
    for (int32_t key = block->num_keys; key < block->padded_keys; key++) {
        block->key_row[key] = block->value_row[key] = zero_row;
        memset(scratch->scales[key], 0, sizeof scratch->scales[key]);
    }
}

void mla_bf16_decode_panel(const mla_bf16_block *block, mla_bf16_scratch *scratch, int32_t key)
{
    assert(key % MLA_BF16_PANEL == 0);
    if (block->coded == MLA_KV_NATIVE) {
        return;
    }
    int32_t end = key + MLA_BF16_PANEL < block->num_keys ? key + MLA_BF16_PANEL : block->num_keys;
    for (; key < end; key++) {
        uint8_t *row = mla_bf16_own_row(block, scratch, key);
        if (block->coded == MLA_KV_FP8_656) {
            decode_656(block->source[key], scratch, row);
        } else {
            decode_584(block->source[key], scratch, row);
        }
    }
}

float mla_bf16_largest_value(const mla_bf16_scratch *scratch, int32_t padded_keys)
{
    /* Without their signs, bf16 numbers compare like integers. */
    const __m512i magnitude = _mm512_set1_epi16(INT16_MAX);
    __m512i max = _mm512_setzero_si512();
    for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip++) {
        for (int32_t pair = 0; pair < padded_keys / 2; pair++) {
            __m512i values = _mm512_load_si512(scratch->v[strip][pair]);
            max = _mm512_max_epu16(max, _mm512_and_si512(values, magnitude));
        }
    }
    __m512i odd = _mm512_srli_epi32(max, 16),
            even = _mm512_and_si512(max, _mm512_set1_epi32(0xffff));
    return mla_bf16_to_f32((uint16_t)_mm512_reduce_max_epu32(_mm512_max_epu32(odd, even)));
}

void mla_bf16_use_low_values(mla_bf16_block *block, mla_bf16_scratch *scratch)
{
    assert(block->split);
    for (int32_t key = 0; key < block->num_keys; key++) {
        block->value_row[key] = scratch->low[key];
    }
}

void mla_bf16_scale_scores(mla_bf16_scratch *scratch, int32_t groups, int32_t padded_keys,
                           int32_t scale_idx, bool first)
{
    for (int32_t group = 0; group < groups; group++) {
        for (int32_t key = 0; key < padded_keys; key++) {
            float *sum = scratch->s_scaled[group][key];
            __m512 part = _mm512_load_ps(scratch->s[group][key]);
            __m512 scale = _mm512_set1_ps(scratch->scales[key][scale_idx]);
            __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(sum);
            _mm512_store_ps(sum, _mm512_fmadd_ps(part, scale, before));
        }
    }
}

void mla_bf16_add_scaled_scores(mla_bf16_scratch *scratch, int32_t groups, int32_t padded_keys)
{
    for (int32_t group = 0; group < groups; group++) {
        for (int32_t key = 0; key < padded_keys; key++) {
            float *s = scratch->s[group][key];
            __m512 scaled = _mm512_load_ps(scratch->s_scaled[group][key]);
            _mm512_store_ps(s, _mm512_add_ps(_mm512_load_ps(s), scaled));
        }
    }
}

void mla_bf16_pair_values(mla_bf16_scratch *scratch, const mla_bf16_block *block, int32_t begin,
                          int32_t end, mla_bf16_span span)
{
    assert(begin % 2 == 0 && end % 2 == 0 && end <= block->padded_keys);
    int32_t last = span.end < MLA_D_V ? span.end : MLA_D_V;
    for (int32_t key = begin; key < end; key += 2) {
        for (int32_t column = span.begin; column < last; column += 32) {
            int32_t strip = column / MLA_BF16_LANES;
            mla_bf16_pair_columns(block->value_row[key] + 2 * column,
                                  block->value_row[key + 1] + 2 * column,
                                  scratch->v[strip][key / 2], scratch->v[strip + 1][key / 2]);
        }
    }
}

/* A NaN result for the rows that see a key, in the column of its non-finite value. */
static void mark_rows(mla_bf16_scratch *scratch, int32_t key, int32_t column)
{
    for (int32_t row = 0; row < MLA_CPU_TILE_ROWS; row++) {
        if (scratch->visible[row] > key) {
            scratch->nan_columns[row][column / 32] |= 1u << column % 32;
        }
    }
}

void mla_bf16_hide_non_finite(mla_bf16_scratch *scratch, int32_t padded_keys)
{
    for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip++) {
        for (int32_t pair = 0; pair < padded_keys / 2; pair++) {
            mla_bf16_pair *words = scratch->v[strip][pair];
            __m512i values = _mm512_load_si512(words);
            __mmask32 found = non_finite(values);
            if (found == 0) {
                continue;
            }
            _mm512_store_si512(words, _mm512_maskz_mov_epi16(~found, values));
            if (!scratch->has_nan_columns) {
                memset(scratch->nan_columns, 0, sizeof scratch->nan_columns);
                scratch->has_nan_columns = true;
            }
            for (int32_t i = 0; i < 32; i++) {
                if (found >> i & 1) {
                    mark_rows(scratch, 2 * pair + i % 2, mla_bf16_strip_column(strip, i / 2));
                }
            }
        }
    }
}
