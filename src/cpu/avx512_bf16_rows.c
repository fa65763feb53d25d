/* Queries and keys on their way into the bf16 kernels. */
#include "bf16_attend.h"
#include "bf16_vectors.h"
#include "formats.h"

#include <assert.h>

enum {
    GROUP_WORDS = 16, /* pairs of dimensions transposed at a time */
    E4M3_TO_BF16_BIAS = 127 - 7,
    /* Scales of 2^e with |e| up to this keep values and their low parts normal bf16 numbers. */
    MAX_SCALE_EXPONENT = 100
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

static bool scale_in_range(float scale)
{
    int32_t exponent = (int32_t)(mla_f32_bits(scale) >> 23 & 0xff) - 127;
    return scale == 0.0f || (exponent >= -MAX_SCALE_EXPONENT && exponent <= MAX_SCALE_EXPONENT);
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

/* A group of values whose scale is a power of two, or 0. */
static inline __attribute__((always_inline)) void decode_group(int count, const uint8_t *data,
                                                               float scale, uint8_t *row)
{
    if (scale == 0.0f) {
        memset(row, 0, (size_t)count * 2);
        return;
    }
    int32_t exponent = (int32_t)(mla_f32_bits(scale) >> 23) - 127;
    for (int i = 0; i < count; i += 32) {
        _mm512_storeu_si512(row + 2 * i, e4m3_to_bf16(data + i, exponent));
    }
}

/* A group of values with any scale; `low` gets what `row` lacks. */
static inline void split_group(int count, const uint8_t *data, float scale, uint8_t *row,
                               uint8_t *low)
{
    const __m512 scales = _mm512_set1_ps(scale);
    for (int i = 0; i < count; i += 32) {
        __m512i values = e4m3_to_bf16(data + i, 0);
        __m512 left = _mm512_mul_ps(widen(_mm512_castsi512_si256(values)), scales);
        __m512 right = _mm512_mul_ps(widen(_mm512_extracti64x4_epi64(values, 1)), scales);
        __m512i high = (__m512i)_mm512_cvtne2ps_pbh(right, left);
        left = _mm512_sub_ps(left, widen(_mm512_castsi512_si256(high)));
        right = _mm512_sub_ps(right, widen(_mm512_extracti64x4_epi64(high, 1)));
        _mm512_storeu_si512(row + 2 * i, high);
        _mm512_storeu_si512(low + 2 * i, (__m512i)_mm512_cvtne2ps_pbh(right, left));
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

/* Whether all scales of the block are powers of two, so that one bf16 number holds a value. */
static bool has_plain_scales(const mla_bf16_block *block)
{
    __m128i found = _mm_setzero_si128();
    for (int32_t key = 0; key < block->num_keys; key++) {
        __m128i scales = _mm_loadu_si128((const __m128i *)block->source[key].scales);
        found = _mm_or_si128(found, scales);
    }
    return _mm_test_epi32_mask(found, _mm_set1_epi32((int)0x807fffff)) == 0;
}

/* These return false for a row that is not served. `low` is NULL when scales are plain. */
static bool decode_656(mla_key_row source, uint8_t *row, uint8_t *low)
{
    float scales[MLA_FP8_656_LATENT / MLA_FP8_656_GROUP];
    memcpy(scales, source.scales, sizeof scales);
    for (int i = 0; i < MLA_FP8_656_LATENT; i += MLA_FP8_656_GROUP) {
        float scale = scales[i / MLA_FP8_656_GROUP];
        if (!scale_in_range(scale)) {
            return false;
        }
        if (low != NULL) {
            split_group(MLA_FP8_656_GROUP, source.data + i, scale, row + 2 * i, low + 2 * i);
        } else {
            decode_group(MLA_FP8_656_GROUP, source.data + i, scale, row + 2 * i);
        }
    }
    memcpy(row + 2 * MLA_FP8_656_LATENT, source.data + MLA_FP8_656_ROPE_AT, MLA_ROPE_DIM * 2);
    return !has_e4m3_nan(MLA_FP8_656_LATENT, source.data);
}

static bool decode_584(mla_key_row source, uint8_t *row)
{
    for (int i = 0; i < MLA_FP8_584_LATENT; i += MLA_FP8_584_GROUP) {
        float scale = mla_e8m0_to_f32(source.scales[i / MLA_FP8_584_GROUP]);
        if (!scale_in_range(scale)) {
            return false;
        }
        decode_group(MLA_FP8_584_GROUP, source.data + i, scale, row + 2 * i);
    }
    memcpy(row + 2 * MLA_FP8_584_LATENT, source.data + MLA_FP8_584_ROPE_AT, MLA_ROPE_DIM * 2);
    return !has_e4m3_nan(MLA_FP8_584_LATENT, source.data);
}

static bool decode_rows(mla_kv_format kv_format, mla_bf16_block *block, mla_bf16_scratch *scratch)
{
    for (int32_t key = 0; key < block->num_keys; key++) {
        uint8_t *row = scratch->rows[key];
        uint8_t *low = block->split ? scratch->low[key] : NULL;
        bool served = kv_format == MLA_KV_FP8_656 ? decode_656(block->source[key], row, low)
                                                  : decode_584(block->source[key], row);
        if (!served) {
            return false;
        }
        block->row[key] = row;
        scratch->low_block.row[key] = low;
    }
    return true;
}

bool mla_bf16_decode(const mla_key_rows *keys, mla_bf16_block *block, mla_bf16_scratch *scratch)
{
    block->split = keys->kv_format == MLA_KV_FP8_656 && !has_plain_scales(block);
    if (keys->kv_format != MLA_KV_NATIVE) {
        if (!decode_rows(keys->kv_format, block, scratch)) {
            return false;
        }
    } else {
        for (int32_t key = 0; key < block->num_keys; key++) {
            block->row[key] = block->source[key].data;
        }
    }
    for (int32_t key = block->num_keys; key < block->padded_keys; key++) {
        block->row[key] = scratch->low_block.row[key] = zero_row;
    }
    scratch->low_block.num_keys = block->num_keys;
    scratch->low_block.padded_keys = block->padded_keys;
    return true;
}

void mla_bf16_pair_values(mla_bf16_scratch *scratch, const mla_bf16_block *block)
{
    for (int32_t key = 0; key < block->padded_keys; key += 2) {
        for (int32_t strip = 0; strip < MLA_BF16_STRIPS; strip += 2) {
            mla_bf16_pair_columns(block->row[key] + strip * 32, block->row[key + 1] + strip * 32,
                                  scratch->v[strip][key / 2], scratch->v[strip + 1][key / 2]);
        }
    }
}

bool mla_bf16_values_finite(const mla_bf16_block *block)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int32_t key = 0; key < block->num_keys; key++) {
        for (int64_t at = 0; at < MLA_D_V * 2; at += 64) {
            __m512i values = _mm512_loadu_si512(block->row[key] + at);
            found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(values, exponent), exponent);
        }
    }
    return found == 0;
}
