/* The FP32 attention core on AVX-512 (F, BW, DQ, VL). */
#include "cpu_features.h"
#include "kernels.h"

#include <immintrin.h>

typedef __m512 vec;

#define ROW_TILE 8

enum { VEC_LANES = 16, KEY_TILE = 8, KEY_TILE_NARROW = 16, DOT_TILE = 16 };

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec a)
{
    _mm512_storeu_ps(p, a);
}

static inline vec vec_set1(float a)
{
    return _mm512_set1_ps(a);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_scale_exp2(vec power, vec exponent, vec x)
{
    /* Not-less-than keeps NaN; results below the normal numbers become 0, which no FMA is slow
     * on. */
    __mmask16 normal = _mm512_cmp_ps_mask(x, vec_set1(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, power, exponent);
}

static inline vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Lanes of 128 bits first, down to one for each vector, then inside of them. */
static inline void vec_sum4(const vec *a, float factor, float *sums)
{
    vec ab = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44),
                           _mm512_shuffle_f32x4(a[0], a[1], 0xee));
    vec cd = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44),
                           _mm512_shuffle_f32x4(a[2], a[3], 0xee));
    vec abcd = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                             _mm512_shuffle_f32x4(ab, cd, 0xdd));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0xb1));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
    __m128 sum = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, abcd));
    _mm_storeu_ps(sums, _mm_mul_ps(sum, _mm_set1_ps(factor)));
}

static inline vec vec_from_bf16(const uint8_t *data)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)data);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline vec vec_from_f16(const uint8_t *data)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)data));
}

/* Moved into the fields of fp16, an e4m3 number reads as 2^-8 of itself, subnormal or not. */
static inline vec vec_from_e4m3(const uint8_t *data)
{
    __m256i bits = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)data));
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(bits, magnitude), 8);
    __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    __m256i half = _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

#include "attend_f32.h"

const mla_cpu_kernel mla_avx512_kernel = {.isa = MLA_ISA_AVX512,
                                          .available = mla_cpu_has_avx512,
                                          .serves = serves_f32,
                                          .scratch_bytes = sizeof(f32_scratch),
                                          .attend = attend_f32,
                                          .narrow = narrow_row,
                                          .largest = largest_magnitude};
