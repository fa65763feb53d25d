/*
 * Rounding a row of results to the caller's dtype, in C that compilers make vectors of. Each ISA's
 * file includes it and so has it compiled for that ISA.
 */
#ifndef MLA_CPU_NARROW_ROW_H
#define MLA_CPU_NARROW_ROW_H

#include "formats.h"
#include "kernels.h"

/* As mla_f32_to_f16(), without branches, so that the compiler makes vectors of the loop. */
static inline uint16_t f16_from_f32(float value)
{
    uint32_t bits = mla_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Adding 0.5 leaves a multiple of 2^-24, the step of subnormal fp16, in the low bits. */
    uint32_t subnormal = mla_f32_bits(mla_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

/* As mla_f32_to_bf16(), without branches. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = mla_f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

static void narrow_row(mla_dtype dtype, const float *restrict values, float factor,
                       uint16_t *restrict out)
{
    if (dtype == MLA_DTYPE_BF16) {
        for (int i = 0; i < MLA_D_V; i++) {
            out[i] = bf16_from_f32(values[i] * factor);
        }
    } else {
        for (int i = 0; i < MLA_D_V; i++) {
            out[i] = f16_from_f32(values[i] * factor);
        }
    }
}

#endif
