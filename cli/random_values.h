/* Random numbers by seed, and the number formats of the tensors: the same seed gives the same data
 * on every machine. */
#ifndef MLA_CLI_RANDOM_VALUES_H
#define MLA_CLI_RANDOM_VALUES_H

#include "mla.h"

/* xoshiro256**, seeded through splitmix64. */
typedef struct rng {
    uint64_t state[4];
} rng;

void rng_seed(rng *random, uint64_t seed);
uint64_t rng_next(rng *random);
int64_t rng_below(rng *random, int64_t limit); /* 0 ... limit - 1; limit >= 1 */
double rng_uniform(rng *random);               /* 0 <= value < 1 */
double rng_normal(rng *random);                /* mean 0, standard deviation 1 */

/* Permutes 0 ... count - 1. */
void rng_shuffle(rng *random, int32_t *values, int64_t count);

/* A floating-point format of at most 16 bits. */
typedef struct small_float {
    int exponent_bits;
    int mantissa_bits;
    bool finite_only; /* e4m3fn: no infinity, and only the highest code is NaN */
} small_float;

extern const small_float small_bf16, small_f16, small_e4m3;

float small_float_decode(const small_float *format, uint32_t bits);
uint32_t small_float_encode(const small_float *format, double value); /* nearest even, saturates */

/* One element of a BF16 or F16 tensor, by table. */
float elem_to_float(mla_dtype dtype, uint16_t bits);

/*
 * A stock of normal values in one format: drawing from it costs a few picoseconds where the normal
 * distribution itself costs tens of nanoseconds.
 */
enum { VALUE_STOCK = 1 << 14 };
typedef struct value_stock {
    uint16_t bits[VALUE_STOCK];
} value_stock;

void value_stock_fill(value_stock *stock, const small_float *format, double std, uint64_t seed);
void value_stock_draw(const value_stock *stock, rng *random, uint16_t *values, int64_t count);
void value_stock_draw_bytes(const value_stock *stock, rng *random, uint8_t *values, int64_t count);

#endif
