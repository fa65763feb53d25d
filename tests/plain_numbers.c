#include "plain_numbers.h"

#include <math.h>
#include <string.h>

static float f16_table[65536];
static float e4m3_table[256];

/* The value of a code with a sign bit, `mantissa_bits` and an exponent field of that bias. */
static double small_float(uint32_t bits, int total_bits, int mantissa_bits, int bias)
{
    double sign = bits >> (total_bits - 1) != 0 ? -1.0 : 1.0;
    int mantissa = (int)(bits & ((1u << mantissa_bits) - 1));
    int exponent = (int)(bits >> mantissa_bits & ((1u << (total_bits - 1 - mantissa_bits)) - 1));
    if (exponent == 0) {
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void plain_numbers_init(void)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        f16_table[bits] = (float)small_float(bits, 16, 10, 15);
        if ((bits & 0x7c00) == 0x7c00) {
            f16_table[bits] = (bits & 0x3ff) != 0 ? NAN : bits >> 15 != 0 ? -INFINITY : INFINITY;
        }
    }
    for (uint32_t bits = 0; bits < 256; bits++) {
        e4m3_table[bits] = (bits & 0x7f) == 0x7f ? NAN : (float)small_float(bits, 8, 3, 7);
    }
}

float plain_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

float plain_f16(uint16_t bits)
{
    return f16_table[bits];
}

float plain_e4m3(uint8_t bits)
{
    return e4m3_table[bits];
}

float plain_e8m0(uint8_t bits)
{
    return bits == 255 ? NAN : ldexpf(1.0f, bits - 127);
}

float plain_elem(mla_dtype dtype, uint16_t bits)
{
    return dtype == MLA_DTYPE_BF16 ? plain_bf16(bits) : plain_f16(bits);
}

uint16_t plain_elem_bits(mla_dtype dtype, double value)
{
    int mantissa_bits = dtype == MLA_DTYPE_BF16 ? 7 : 10;
    int bias = dtype == MLA_DTYPE_BF16 ? 127 : 15;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)((2 * bias + 1) << mantissa_bits);
    if (isnan(value)) {
        return (uint16_t)(sign | infinity | 1u << (mantissa_bits - 1));
    }
    if (isinf(value)) {
        return sign | infinity;
    }
    int exponent;
    (void)frexp(value, &exponent); /* |value| in [2^(exponent - 1), 2^exponent) */
    if (value == 0.0 || exponent - 1 < 1 - bias) {
        exponent = 2 - bias; /* subnormal values share the smallest exponent */
    }
    /* Codes of growing magnitude are consecutive integers, so a carry out of the mantissa is right
     * by itself. */
    double steps = nearbyint(ldexp(fabs(value), mantissa_bits - exponent + 1));
    double code = steps + ((double)(exponent - 2 + bias) * (double)(1 << mantissa_bits));
    return code >= infinity ? sign | infinity : (uint16_t)(sign | (uint16_t)code);
}
