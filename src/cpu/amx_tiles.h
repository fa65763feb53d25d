/*
 * The AMX instructions that the kernel uses, one a name. Tile numbers must be literals. With
 * MLA_AMX_EMULATED they are C functions of the test build instead, so that the kernel's logic is
 * tested on processors without AMX.
 */
#ifndef MLA_CPU_AMX_TILES_H
#define MLA_CPU_AMX_TILES_H

#include "cpu_features.h"

#include <stdint.h>

enum {
    MLA_TILE_ROWS = 16,
    MLA_TILE_ROW_BYTES = 64,
    MLA_TILE_BYTES = MLA_TILE_ROWS * MLA_TILE_ROW_BYTES
};

/* The operand of LDTILECFG. */
typedef struct mla_tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mla_tile_config;

_Static_assert(sizeof(mla_tile_config) == 64, "as the instruction reads it");

#ifdef MLA_AMX_EMULATED

#define mla_tile_available mla_cpu_has_avx512_bf16

void mla_tile_configure(const mla_tile_config *config);
void mla_tile_release(void);
void mla_tile_zero(int tile);
void mla_tile_load(int tile, const void *base, int64_t stride);
void mla_tile_store(int tile, void *base, int64_t stride);
/* c[m][n] += sum over pairs k of a[m][k] . b[k][n], in FP32; bf16 denormals count as zero. */
void mla_tile_dpbf16(int c, int a, int b);

#define mla_tile_fence()

#else

#include <immintrin.h>

#define mla_tile_available mla_cpu_has_amx_bf16

#define mla_tile_configure(config)         _tile_loadconfig(config)
#define mla_tile_release()                 _tile_release()
#define mla_tile_zero(tile)                _tile_zero(tile)
#define mla_tile_load(tile, base, stride)  _tile_loadd(tile, base, stride)
#define mla_tile_store(tile, base, stride) _tile_stored(tile, base, stride)
#define mla_tile_dpbf16(c, a, b)           _tile_dpbf16ps(c, a, b)

/* GCC does not know that a tile load reads memory. Stores before this are made before it. */
#define mla_tile_fence()                   __asm__ volatile("" ::: "memory")

#endif

#endif
