/* Number formats, one value at a time: bf16, fp16, e4m3fn, e8m0, and rows made of them. */
#ifndef MLA_SRC_FORMATS_H
#define MLA_SRC_FORMATS_H

#include "mla.h"

#include <math.h>
#include <string.h>

/* Layout of the FP8 rows, see mla_kv_format. */
enum {
    MLA_FP8_656_LATENT = 512,
    MLA_FP8_656_GROUP = 128, /* values that share one float32 scale */
    MLA_FP8_656_SCALES_AT = 512,
    MLA_FP8_656_ROPE_AT = 528,
    MLA_FP8_656_BYTES = 656,
    MLA_FP8_584_LATENT = 448,
    MLA_FP8_584_GROUP = 64, /* values that share one e8m0 scale */
    MLA_FP8_584_ROPE_AT = 448,
    MLA_FP8_584_DATA_BYTES = 576,
    MLA_FP8_584_SCALE_BYTES = 8,
    MLA_FP8_584_BYTES = 584,
    MLA_ROPE_DIM = 64
};

static inline float mla_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t mla_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mla_bf16_to_f32(uint16_t bits)
{
    return mla_f32_from_bits((uint32_t)bits << 16);
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t mla_f32_to_bf16(float value)
{
    uint32_t bits = mla_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float mla_f16_to_f32(uint16_t bits);
uint16_t mla_f32_to_f16(float value); /* round to nearest even, overflow to infinity */
float mla_e4m3_to_f32(uint8_t bits);
uint8_t mla_f32_to_e4m3(float value); /* round to nearest even, saturate to +-448 */

static inline float mla_e8m0_to_f32(uint8_t bits)
{
    if (bits == 255) {
        return NAN;
    }
    return mla_f32_from_bits(bits == 0 ? 0x00400000u : (uint32_t)bits << 23);
}

static inline float mla_elem_to_f32(mla_dtype dtype, uint16_t bits)
{
    return dtype == MLA_DTYPE_BF16 ? mla_bf16_to_f32(bits) : mla_f16_to_f32(bits);
}

static inline uint16_t mla_elem_from_f32(mla_dtype dtype, float value)
{
    return dtype == MLA_DTYPE_BF16 ? mla_f32_to_bf16(value) : mla_f32_to_f16(value);
}

/*
 * Decodes one row into d_qk floats. `data` and `scales` as in the format (scales: where the row's
 * scales lie, NULL for native rows). Scale times value is one float32 product; a scale of 0 gives
 * 0.
 */
void mla_row_decode(mla_kv_format kv_format, mla_dtype dtype, int64_t d_qk, const uint8_t *data,
                    const uint8_t *scales, float *values);

/* Encodes d_qk values into one row, up to rounding the inverse of mla_row_decode. Values are
 * bf16 for FP8 rows and of the cache's own dtype for native ones. */
void mla_row_encode(mla_kv_format kv_format, int64_t d_qk, const uint16_t *values, uint8_t *data,
                    uint8_t *scales);

#endif
