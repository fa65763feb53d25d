/* AVX-512 pieces of the bf16 kernels. Only for files compiled for AVX512-BF16. */
#ifndef MLA_CPU_BF16_VECTORS_H
#define MLA_CPU_BF16_VECTORS_H

#include "unroll.h"

#include <immintrin.h>
#include <stdint.h>

/* Transposes a 16 x 16 matrix of 32-bit words in registers. */
static inline __attribute__((always_inline)) void mla_transpose_16x16(__m512i rows[16])
{
    __m512i a[16];
    MLA_UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    MLA_UNROLL
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* Now 128-bit lane j of rows[4k + c] holds words 4k ... 4k + 3 of column 4j + c. */
    MLA_UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i even01 = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
        __m512i odd01 = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
        __m512i odd23 = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
        rows[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        rows[8 + c] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        rows[4 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        rows[12 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

/*
 * Pairs 32 value columns of two consecutive keys: words { even[c], odd[c] }. The instructions work
 * within 128-bit lanes, so that the first strip gets columns 8i ... 8i + 3 and the second columns
 * 8i + 4 ... 8i + 7, i = 0 ... 3; the store of O puts them in order again.
 */
static inline void mla_bf16_pair_columns(const uint8_t *even, const uint8_t *odd, uint32_t *strip0,
                                         uint32_t *strip1)
{
    __m512i e = _mm512_loadu_si512(even);
    __m512i o = _mm512_loadu_si512(odd);
    _mm512_store_si512(strip0, _mm512_unpacklo_epi16(e, o));
    _mm512_store_si512(strip1, _mm512_unpackhi_epi16(e, o));
}

#endif
