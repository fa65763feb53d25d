/* The FP32 attention core in C with the compiler's own vectors: SSE2, NEON or whatever there is. */
#include "formats.h"
#include "kernels.h"

typedef float vec __attribute__((vector_size(16)));
typedef uint32_t vec_bits __attribute__((vector_size(16)));

#define ROW_TILE 6

enum { VEC_LANES = 4, KEY_TILE = 6, KEY_TILE_NARROW = 12, DOT_TILE = 8 };

static inline vec vec_load(const float *p)
{
    vec a;
    memcpy(&a, p, sizeof a);
    return a;
}

static inline void vec_store(float *p, vec a)
{
    memcpy(p, &a, sizeof a);
}

static inline vec vec_set1(float a)
{
    return (vec){a, a, a, a};
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

static inline vec vec_mul(vec a, vec b)
{
    return a * b;
}

static inline vec vec_add(vec a, vec b)
{
    return a + b;
}

static inline vec vec_sub(vec a, vec b)
{
    return a - b;
}

static inline vec vec_select(vec_bits mask, vec a, vec b)
{
    return (vec)((mask & (vec_bits)a) | (~mask & (vec_bits)b));
}

static inline vec vec_max(vec a, vec b)
{
    return vec_select((vec_bits)(a > b), a, b);
}

/* Adding 1.5 * 2^23 leaves no bits for a fraction. Right for |a| < 2^22; larger ones are below the
 * range of vec_exp2() anyway. */
static inline vec vec_round(vec a)
{
    const vec magic = vec_set1(0x1.8p23f);
    return a + magic - magic;
}

static inline vec vec_scale_exp2(vec power, vec exponent, vec x)
{
    /* The exponent's number of the low bits of exponent + magic. Not-less-than keeps NaN. */
    vec_bits bits = (vec_bits)(exponent + vec_set1(0x1.8p23f)) << 23;
    vec scaled = (vec)((vec_bits)power + bits);
    return vec_select((vec_bits)(x < vec_set1(-126.0f)), vec_set1(0.0f),
                      vec_select((vec_bits)(x != x), x, scaled));
}

static inline void vec_sum4(const vec *a, float factor, float *sums)
{
    for (int i = 0; i < 4; i++) {
        sums[i] = ((a[i][0] + a[i][1]) + (a[i][2] + a[i][3])) * factor;
    }
}

static inline vec vec_from_bf16(const uint8_t *data)
{
    uint16_t bits[VEC_LANES];
    memcpy(bits, data, sizeof bits);
    return (vec){mla_bf16_to_f32(bits[0]), mla_bf16_to_f32(bits[1]), mla_bf16_to_f32(bits[2]),
                 mla_bf16_to_f32(bits[3])};
}

static inline vec vec_from_f16(const uint8_t *data)
{
    uint16_t bits[VEC_LANES];
    memcpy(bits, data, sizeof bits);
    return (vec){mla_f16_to_f32(bits[0]), mla_f16_to_f32(bits[1]), mla_f16_to_f32(bits[2]),
                 mla_f16_to_f32(bits[3])};
}

static inline vec vec_from_e4m3(const uint8_t *data)
{
    return (vec){mla_e4m3_to_f32(data[0]), mla_e4m3_to_f32(data[1]), mla_e4m3_to_f32(data[2]),
                 mla_e4m3_to_f32(data[3])};
}

#include "attend_f32.h"

static bool always_available(void)
{
    return true;
}

const mla_cpu_kernel mla_portable_kernel = {.isa = MLA_ISA_PORTABLE,
                                            .available = always_available,
                                            .serves = serves_f32,
                                            .scratch_bytes = sizeof(f32_scratch),
                                            .attend = attend_f32,
                                            .narrow = narrow_row,
                                            .largest = largest_magnitude};
