#include "formats.h"

#include <assert.h>

float mla_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {
        return mla_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    }
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return mla_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t mla_f32_to_f16(float value)
{
    uint32_t bits = mla_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520, halfway between the largest fp16 and 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14, the smallest normal: count in steps of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(mla_f32_from_bits(magnitude) * 0x1p24f));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
}

float mla_e4m3_to_f32(uint8_t bits)
{
    uint32_t exponent = (bits >> 3) & 0xfu;
    uint32_t mantissa = bits & 0x7u;
    float magnitude;
    if (exponent == 0xf && mantissa == 0x7) {
        return NAN;
    }
    if (exponent == 0) {
        magnitude = (float)mantissa * 0x1p-9f;
    } else {
        magnitude = mla_f32_from_bits((exponent + 120) << 23 | mantissa << 20);
    }
    return bits & 0x80u ? -magnitude : magnitude;
}

uint8_t mla_f32_to_e4m3(float value)
{
    uint32_t bits = mla_f32_bits(value);
    uint8_t sign = (uint8_t)((bits >> 24) & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7f;
    }
    if (magnitude >= 0x43e00000u) { /* 448, the largest value */
        return sign | 0x7e;
    }
    if (magnitude < 0x3c800000u) { /* below 2^-6, the smallest normal: count in steps of 2^-9 */
        return (uint8_t)(sign | (uint8_t)lrintf(mla_f32_from_bits(magnitude) * 0x1p9f));
    }
    uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return (uint8_t)(sign | ((rounded - (120u << 23)) >> 20));
}

static float load_f32(const uint8_t *bytes)
{
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static void decode_elems(mla_dtype dtype, int64_t count, const uint8_t *data, float *values)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        values[i] = mla_elem_to_f32(dtype, bits);
    }
}

/* A scale of 0 gives 0 even where the e4m3 value is NaN. */
static float scaled_e4m3(uint8_t bits, float scale)
{
    return scale == 0.0f ? 0.0f : mla_e4m3_to_f32(bits) * scale;
}

void mla_row_decode(mla_kv_format kv_format, mla_dtype dtype, int64_t d_qk, const uint8_t *data,
                    const uint8_t *scales, float *values)
{
    switch (kv_format) {
    case MLA_KV_NATIVE:
        decode_elems(dtype, d_qk, data, values);
        return;
    case MLA_KV_FP8_656:
        assert(d_qk == MLA_FP8_656_LATENT + MLA_ROPE_DIM);
        for (int i = 0; i < MLA_FP8_656_LATENT; i++) {
            values[i] = scaled_e4m3(data[i], load_f32(scales + i / MLA_FP8_656_GROUP * 4));
        }
        decode_elems(MLA_DTYPE_BF16, MLA_ROPE_DIM, data + MLA_FP8_656_ROPE_AT,
                     values + MLA_FP8_656_LATENT);
        return;
    case MLA_KV_FP8_584:
        assert(d_qk == MLA_FP8_584_LATENT + MLA_ROPE_DIM);
        for (int i = 0; i < MLA_FP8_584_LATENT; i++) {
            values[i] = scaled_e4m3(data[i], mla_e8m0_to_f32(scales[i / MLA_FP8_584_GROUP]));
        }
        decode_elems(MLA_DTYPE_BF16, MLA_ROPE_DIM, data + MLA_FP8_584_ROPE_AT,
                     values + MLA_FP8_584_LATENT);
        return;
    }
    assert(!"unreachable: kv_format was checked");
}

/* 2^ceil(log2(max(amax / 448, 1e-4))) as a power-of-two exponent. */
static int scale_exponent(const uint16_t *values, int count)
{
    float amax = 0.0f;
    for (int i = 0; i < count; i++) {
        float magnitude = fabsf(mla_bf16_to_f32(values[i]));
        /* Drops NaN. fmaxf() would return a signalling one. */
        amax = magnitude > amax ? magnitude : amax;
    }
    int exponent;
    float fraction = frexpf(fmaxf(fminf(amax, 0x1.fep127f) / 448.0f, 1e-4f), &exponent);
    return fraction == 0.5f ? exponent - 1 : exponent;
}

static void encode_group(const uint16_t *values, int count, int exponent, uint8_t *data)
{
    for (int i = 0; i < count; i++) {
        data[i] = mla_f32_to_e4m3(ldexpf(mla_bf16_to_f32(values[i]), -exponent));
    }
}

void mla_row_encode(mla_kv_format kv_format, int64_t d_qk, const uint16_t *values, uint8_t *data,
                    uint8_t *scales)
{
    switch (kv_format) {
    case MLA_KV_NATIVE:
        memcpy(data, values, (size_t)d_qk * 2);
        return;
    case MLA_KV_FP8_656:
        for (int i = 0; i < MLA_FP8_656_LATENT; i += MLA_FP8_656_GROUP) {
            int exponent = scale_exponent(values + i, MLA_FP8_656_GROUP);
            float scale = ldexpf(1.0f, exponent);
            encode_group(values + i, MLA_FP8_656_GROUP, exponent, data + i);
            memcpy(scales + i / MLA_FP8_656_GROUP * 4, &scale, sizeof scale);
        }
        memcpy(data + MLA_FP8_656_ROPE_AT, values + MLA_FP8_656_LATENT, MLA_ROPE_DIM * 2);
        return;
    case MLA_KV_FP8_584:
        for (int i = 0; i < MLA_FP8_584_LATENT; i += MLA_FP8_584_GROUP) {
            int exponent = scale_exponent(values + i, MLA_FP8_584_GROUP);
            encode_group(values + i, MLA_FP8_584_GROUP, exponent, data + i);
            scales[i / MLA_FP8_584_GROUP] = (uint8_t)(exponent + 127);
        }
        scales[MLA_FP8_584_SCALE_BYTES - 1] = 0; /* the pad byte */
        memcpy(data + MLA_FP8_584_ROPE_AT, values + MLA_FP8_584_LATENT, MLA_ROPE_DIM * 2);
        return;
    }
    assert(!"unreachable: kv_format was checked");
}
