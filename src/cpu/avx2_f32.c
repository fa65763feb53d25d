/* The FP32 attention core on AVX2, FMA and F16C. */
#include "cpu_features.h"
#include "kernels.h"

#include <immintrin.h>

typedef __m256 vec;

#define ROW_TILE 6

enum { VEC_LANES = 8, KEY_TILE = 6, KEY_TILE_NARROW = 12, DOT_TILE = 8 };

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a);
}

static inline vec vec_set1(float a)
{
    return _mm256_set1_ps(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_scale_exp2(vec power, vec exponent, vec x)
{
    /* Not-less-than keeps NaN; results below the normal numbers become 0, which no FMA is slow
     * on. */
    __m256 normal = _mm256_cmp_ps(x, vec_set1(-126.0f), _CMP_NLT_UQ);
    __m256i bits = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(normal, _mm256_mul_ps(power, _mm256_castsi256_ps(bits)));
}

static inline vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline void vec_sum4(const vec *a, float factor, float *sums)
{
    vec halves = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    _mm_storeu_ps(sums, _mm_mul_ps(sum, _mm_set1_ps(factor)));
}

static inline vec vec_from_bf16(const uint8_t *data)
{
    __m128i bits = _mm_loadu_si128((const __m128i *)data);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static inline vec vec_from_f16(const uint8_t *data)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)data));
}

/* Moved into the fields of fp16, an e4m3 number reads as 2^-8 of itself, subnormal or not. */
static inline vec vec_from_e4m3(const uint8_t *data)
{
    __m128i bits = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)data));
    __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(0x7f));
    __m128i sign = _mm_slli_epi16(_mm_xor_si128(bits, magnitude), 8);
    __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

#include "attend_f32.h"

const mla_cpu_kernel mla_avx2_kernel = {.isa = MLA_ISA_AVX2,
                                        .available = mla_cpu_has_avx2,
                                        .serves = serves_f32,
                                        .scratch_bytes = sizeof(f32_scratch),
                                        .attend = attend_f32,
                                        .narrow = narrow_row,
                                        .largest = largest_magnitude};
