/* The AMX instructions in plain C, with the semantics of Intel's manual: see src/cpu/amx_tiles.h. */
#include "amx_tiles.h"
#include "formats.h"

#include <stdlib.h>
#include <string.h>

enum { TILES = 8, WORDS = MLA_TILE_ROW_BYTES / 4 };

typedef struct tile {
    uint32_t word[MLA_TILE_ROWS][WORDS];
} tile;

static _Thread_local tile tiles[TILES];
static _Thread_local bool configured;

/* The real instructions fault where this stops; so it must not depend on NDEBUG. */
static void check(int number)
{
    if (!configured || number < 0 || number >= TILES) {
        abort();
    }
}

/* Only the configuration that the kernel uses: eight whole tiles. */
void mla_tile_configure(const mla_tile_config *config)
{
    configured = config->palette == 1 && config->start_row == 0;
    for (int i = 0; i < TILES; i++) {
        configured = configured && config->rows[i] == MLA_TILE_ROWS &&
                     config->row_bytes[i] == MLA_TILE_ROW_BYTES;
    }
    memset(tiles, 0, sizeof tiles);
}

void mla_tile_release(void)
{
    configured = false;
}

void mla_tile_zero(int number)
{
    check(number);
    memset(&tiles[number], 0, sizeof tiles[number]);
}

void mla_tile_load(int number, const void *base, int64_t stride)
{
    check(number);
    for (int row = 0; row < MLA_TILE_ROWS; row++) {
        memcpy(tiles[number].word[row], (const uint8_t *)base + row * stride, MLA_TILE_ROW_BYTES);
    }
}

void mla_tile_store(int number, void *base, int64_t stride)
{
    check(number);
    for (int row = 0; row < MLA_TILE_ROWS; row++) {
        memcpy((uint8_t *)base + row * stride, tiles[number].word[row], MLA_TILE_ROW_BYTES);
    }
}

/* A denormal counts as zero. */
static float widen(uint32_t bf16)
{
    return (bf16 & 0x7f80) == 0 ? 0.0f : mla_bf16_to_f32((uint16_t)bf16);
}

void mla_tile_dpbf16(int c, int a, int b)
{
    check(c);
    check(a);
    check(b);
    float b_even[WORDS][WORDS], b_odd[WORDS][WORDS];
    for (int k = 0; k < WORDS; k++) {
        for (int n = 0; n < WORDS; n++) {
            b_even[k][n] = widen(tiles[b].word[k][n] & 0xffff);
            b_odd[k][n] = widen(tiles[b].word[k][n] >> 16);
        }
    }
    for (int m = 0; m < MLA_TILE_ROWS; m++) {
        float even[WORDS] = {0}, odd[WORDS] = {0};
        for (int k = 0; k < WORDS; k++) {
            float a_even = widen(tiles[a].word[m][k] & 0xffff);
            float a_odd = widen(tiles[a].word[m][k] >> 16);
            for (int n = 0; n < WORDS; n++) {
                even[n] += a_even * b_even[k][n];
                odd[n] += a_odd * b_odd[k][n];
            }
        }
        for (int n = 0; n < WORDS; n++) {
            float sum = mla_f32_from_bits(tiles[c].word[m][n]);
            tiles[c].word[m][n] = mla_f32_bits(sum + (even[n] + odd[n]));
        }
    }
}
