/*
 * The largest magnitude among values, in C that compilers make vectors of. Each ISA's file includes
 * it and so has it compiled for that ISA.
 */
#ifndef MLA_CPU_LARGEST_MAGNITUDE_H
#define MLA_CPU_LARGEST_MAGNITUDE_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* Without their signs, bf16 and fp16 numbers compare like integers. Rows may lie at any address. */
static inline uint16_t magnitude_at(const uint8_t *row, int64_t i)
{
    uint16_t bits;
    memcpy(&bits, row + 2 * i, sizeof bits);
    return bits & 0x7fff;
}

static uint16_t largest_magnitude(int32_t rows, const uint16_t *const *row, int64_t count)
{
    assert(rows >= 1);
    uint16_t most = 0;
    /* Four rows at a time share the search through a vector's lanes. */
    for (int32_t first = 0; first < rows; first += 4) {
        const uint8_t *r[4];
        for (int32_t i = 0; i < 4; i++) {
            r[i] = (const uint8_t *)row[first + i < rows ? first + i : rows - 1];
        }
        for (int64_t i = 0; i < count; i++) {
            uint16_t a = magnitude_at(r[0], i), b = magnitude_at(r[1], i);
            uint16_t c = magnitude_at(r[2], i), d = magnitude_at(r[3], i);
            a = a > b ? a : b;
            c = c > d ? c : d;
            a = a > c ? a : c;
            most = most > a ? most : a;
        }
    }
    return most;
}

#endif
