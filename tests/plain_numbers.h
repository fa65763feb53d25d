/*
 * The number formats once more, by arithmetic instead of bit fields, so that the library's own
 * conversions are not what its answers are checked with.
 */
#ifndef MLA_TESTS_PLAIN_NUMBERS_H
#define MLA_TESTS_PLAIN_NUMBERS_H

#include <mla.h>

/* Fills the tables that the decoders read. Call it once, before any of them. */
void plain_numbers_init(void);

float plain_bf16(uint16_t bits);
float plain_f16(uint16_t bits);
float plain_e4m3(uint8_t bits);
float plain_e8m0(uint8_t bits);
float plain_elem(mla_dtype dtype, uint16_t bits);

/* Rounds to the nearest value of the dtype, ties to even; overflow gives infinity. */
uint16_t plain_elem_bits(mla_dtype dtype, double value);

#endif
