#include "random_values.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>

const small_float small_bf16 = {8, 7, false};
const small_float small_f16 = {5, 10, false};
const small_float small_e4m3 = {4, 3, true};

static uint64_t rotate_left(uint64_t value, int count)
{
    return (value << count) | (value >> (64 - count));
}

void rng_seed(rng *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t mixed = seed;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
        random->state[i] = mixed ^ (mixed >> 31);
    }
}

uint64_t rng_next(rng *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

int64_t rng_below(rng *random, int64_t limit)
{
    assert(limit >= 1);
    return (int64_t)(rng_next(random) % (uint64_t)limit);
}

double rng_uniform(rng *random)
{
    return (double)(rng_next(random) >> 11) * 0x1p-53;
}

double rng_normal(rng *random)
{
    /* Box and Muller; 1 - u keeps the logarithm away from zero. */
    double radius = sqrt(-2.0 * log(1.0 - rng_uniform(random)));
    return radius * cos(6.283185307179586 * rng_uniform(random));
}

void rng_shuffle(rng *random, int32_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = (int32_t)i;
    }
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = rng_below(random, i + 1);
        int32_t value = values[i];
        values[i] = values[other];
        values[other] = value;
    }
}

static int exponent_bias(const small_float *format)
{
    return (1 << (format->exponent_bits - 1)) - 1;
}

float small_float_decode(const small_float *format, uint32_t bits)
{
    uint32_t mantissa_ones = (1u << format->mantissa_bits) - 1;
    uint32_t exponent_ones = (1u << format->exponent_bits) - 1;
    uint32_t mantissa = bits & mantissa_ones;
    uint32_t exponent = (bits >> format->mantissa_bits) & exponent_ones;
    bool negative = (bits >> (format->mantissa_bits + format->exponent_bits)) & 1u;
    float sign = negative ? -1.0f : 1.0f;

    if (exponent == exponent_ones) {
        if (format->finite_only ? mantissa == mantissa_ones : mantissa != 0) {
            return NAN;
        }
        if (!format->finite_only) {
            return sign * INFINITY;
        }
    }
    int power = (exponent == 0 ? 1 : (int)exponent) - exponent_bias(format);
    uint32_t significand = exponent == 0 ? mantissa : mantissa | (mantissa_ones + 1);
    return sign * ldexpf((float)significand, power - format->mantissa_bits);
}

uint32_t small_float_encode(const small_float *format, double value)
{
    uint32_t sign_bit = 1u << (format->mantissa_bits + format->exponent_bits);
    uint32_t sign = signbit(value) ? sign_bit : 0;
    /* The highest finite code: e4m3fn gives up only its last one, the others a whole exponent. */
    uint32_t most = format->finite_only ? sign_bit - 2
                                        : sign_bit - 1 - (1u << format->mantissa_bits);
    if (isnan(value)) {
        return sign | (sign_bit - 1);
    }
    if (value == 0.0) {
        return sign;
    }
    int exponent;
    frexp(value, &exponent);
    int least = 1 - exponent_bias(format);
    int power = exponent - 1 < least ? least : exponent - 1;
    /* Units of the last place; the carry of a rounded-up mantissa runs into the exponent. */
    double units = nearbyint(ldexp(fabs(value), format->mantissa_bits - power));
    double code = units + (double)((int64_t)(power - least) * (1 << format->mantissa_bits));
    return sign | (code > (double)most ? most : (uint32_t)code);
}

static float bf16_values[65536], f16_values[65536];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        bf16_values[bits] = small_float_decode(&small_bf16, bits);
        f16_values[bits] = small_float_decode(&small_f16, bits);
    }
}

float elem_to_float(mla_dtype dtype, uint16_t bits)
{
    assert(dtype == MLA_DTYPE_BF16 || dtype == MLA_DTYPE_F16);
    pthread_once(&tables_once, fill_tables);
    return dtype == MLA_DTYPE_BF16 ? bf16_values[bits] : f16_values[bits];
}

void value_stock_fill(value_stock *stock, const small_float *format, double std, uint64_t seed)
{
    rng random;
    rng_seed(&random, seed);
    for (int i = 0; i < VALUE_STOCK; i++) {
        stock->bits[i] = (uint16_t)small_float_encode(format, std * rng_normal(&random));
    }
}

void value_stock_draw(const value_stock *stock, rng *random, uint16_t *values, int64_t count)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        bits = i % 4 == 0 ? rng_next(random) : bits >> 16;
        values[i] = stock->bits[bits % VALUE_STOCK];
    }
}

void value_stock_draw_bytes(const value_stock *stock, rng *random, uint8_t *values, int64_t count)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        bits = i % 4 == 0 ? rng_next(random) : bits >> 16;
        values[i] = (uint8_t)stock->bits[bits % VALUE_STOCK];
    }
}
