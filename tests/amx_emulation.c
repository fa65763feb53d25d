/* The AMX instructions in plain C, with the semantics of Intel's manual: see src/cpu/amx_tiles.h. */
#include "amx_tiles.h"
#include "formats.h"

#include <assert.h>
#include <string.h>

enum { TILES = 8, WORDS = MLA_TILE_ROW_BYTES / 4 };

typedef struct tile {
    uint32_t word[MLA_TILE_ROWS][WORDS];
} tile;

static _Thread_local tile tiles[TILES];
static _Thread_local bool configured;

void mla_tile_configure(const mla_tile_config *config)
{
    assert(config->palette == 1 && config->start_row == 0);
    for (int i = 0; i < TILES; i++) {
        assert(config->rows[i] == MLA_TILE_ROWS && config->row_bytes[i] == MLA_TILE_ROW_BYTES);
    }
    memset(tiles, 0, sizeof tiles);
    configured = true;
}

void mla_tile_release(void)
{
    configured = false;
}

void mla_tile_zero(int number)
{
    assert(configured && number < TILES);
    memset(&tiles[number], 0, sizeof tiles[number]);
}

void mla_tile_load(int number, const void *base, int64_t stride)
{
    assert(configured && number < TILES);
    for (int row = 0; row < MLA_TILE_ROWS; row++) {
        memcpy(tiles[number].word[row], (const uint8_t *)base + row * stride, MLA_TILE_ROW_BYTES);
    }
}

void mla_tile_store(int number, void *base, int64_t stride)
{
    assert(configured && number < TILES);
    for (int row = 0; row < MLA_TILE_ROWS; row++) {
        memcpy((uint8_t *)base + row * stride, tiles[number].word[row], MLA_TILE_ROW_BYTES);
    }
}

static float low_half(uint32_t pair)
{
    float value = mla_f32_from_bits(pair << 16);
    return (pair & 0x7f80) == 0 ? 0.0f * value : value; /* a denormal counts as zero */
}

static float high_half(uint32_t pair)
{
    return low_half(pair >> 16);
}

void mla_tile_dpbf16(int c, int a, int b)
{
    assert(configured && c < TILES && a < TILES && b < TILES);
    for (int m = 0; m < MLA_TILE_ROWS; m++) {
        float even[WORDS] = {0}, odd[WORDS] = {0};
        for (int k = 0; k < WORDS; k++) {
            uint32_t pair = tiles[a].word[m][k];
            float a_even = low_half(pair), a_odd = high_half(pair);
            for (int n = 0; n < WORDS; n++) {
                even[n] += a_even * low_half(tiles[b].word[k][n]);
                odd[n] += a_odd * high_half(tiles[b].word[k][n]);
            }
        }
        for (int n = 0; n < WORDS; n++) {
            float sum = mla_f32_from_bits(tiles[c].word[m][n]);
            tiles[c].word[m][n] = mla_f32_bits(sum + (even[n] + odd[n]));
        }
    }
}
