#include "batch_pool.h"
#include "tool.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATENT = 512,
    FP8_656_BYTES = 656,
    FP8_584_BYTES = 584,
    FP8_584_DATA = 576,
    POISON_AT_ONCE = 256 << 20 /* larger pools are poisoned page by page as they are touched */
};

/* What e4m3 values are multiplied by before rounding, so that they use the format's range. */
static const double fp8_spread = 64.0;

int64_t batch_row_bytes(const batch_spec *spec)
{
    switch (spec->kv_format) {
    case MLA_KV_FP8_656:
        return FP8_656_BYTES;
    case MLA_KV_FP8_584:
        return FP8_584_BYTES;
    default:
        return spec->h_kv * spec->d_qk * 2;
    }
}

void poison_fill(const batch_spec *spec, uint16_t *values, int64_t count)
{
    uint16_t infinity = spec->dtype == MLA_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    const uint16_t kinds[4] = {infinity | 0x41, infinity, infinity | 0x8000, 0xffff};
    for (int64_t i = 0; i < count; i++) {
        values[i] = kinds[spec->poison == POISON_MIXED ? i % 4 : (int64_t)spec->poison];
    }
}

static void poison_page(const batch_pool *pool, int64_t page)
{
    const batch_spec *spec = pool->spec;
    uint8_t *start = pool->data + page * pool->page_stride;
    if (spec->kv_format != MLA_KV_NATIVE) {
        memset(start, 0xff, (size_t)pool->page_bytes);
        return;
    }
    uint16_t *values = (uint16_t *)(void *)start;
    poison_fill(spec, values, pool->page_bytes / 2);
    int64_t rows = pool->page_size * spec->h_kv;
    for (int64_t row = 0; row < rows; row++) {
        uint16_t *latent = values + row * spec->d_qk;
        if (spec->poison_latent_only && spec->d_qk > LATENT) {
            memset(latent + LATENT, 0, (size_t)(spec->d_qk - LATENT) * 2);
        } else if (spec->poison_rope_only && spec->d_qk > LATENT) {
            memset(latent, 0, LATENT * 2);
        }
    }
}

bool batch_pool_open(batch_pool *pool, guarded_memory *memory, const batch_spec *spec,
                     int64_t page_size, int64_t num_pages, uint64_t seed)
{
    *pool = (batch_pool){.spec = spec, .page_size = page_size, .num_pages = num_pages};
    pool->page_bytes = mla_page_bytes(spec->kv_format, spec->dtype, page_size, spec->h_kv,
                                      spec->d_qk);
    assert(pool->page_bytes > 0);
    bool native = spec->kv_format == MLA_KV_NATIVE;
    pool->page_stride = pool->page_bytes + spec->page_gap * (native ? 2 : 1);
    int64_t bytes = num_pages == 0 ? 0 : (num_pages - 1) * pool->page_stride + pool->page_bytes;
    if (!guarded_alloc(memory, (size_t)bytes, spec->alignment)) {
        return false;
    }
    pool->data = memory->data;
    pool->slot_written = tool_alloc((size_t)(num_pages * page_size), 1);
    if (bytes > POISON_AT_ONCE) {
        pool->page_touched = tool_alloc((size_t)num_pages, 1);
    } else {
        memset(pool->data, 0xff, (size_t)bytes);
        for (int64_t page = 0; page < num_pages; page++) {
            poison_page(pool, page);
        }
    }
    const small_float *format = spec->dtype == MLA_DTYPE_BF16 ? &small_bf16 : &small_f16;
    value_stock_fill(&pool->values, format, spec->kv_std, seed + 1);
    if (!native) {
        value_stock_fill(&pool->fp8_values, &small_e4m3, fp8_spread, seed + 2);
    }
    rng_seed(&pool->random, seed + 3);
    return true;
}

/* A factor that takes fp8_spread back: within a factor of two so that groups differ, or the power
 * of two that is next. */
static double random_scale(batch_pool *pool)
{
    double scale = pool->spec->kv_std / fp8_spread;
    return pool->spec->plain_scales ? exp2(nearbyint(log2(scale)))
                                    : scale * (0.5 + 1.5 * rng_uniform(&pool->random));
}

static void write_656(batch_pool *pool, uint8_t *row)
{
    value_stock_draw_bytes(&pool->fp8_values, &pool->random, row, LATENT);
    float scales[4];
    for (int group = 0; group < 4; group++) {
        double scale = random_scale(pool);
        scales[group] = (float)(pool->spec->odd_scales ? scale : exp2(rint(log2(scale))));
        /* Now and then a group of nothing: scale 0, which must give 0 even where a code is NaN. */
        if (rng_below(&pool->random, 64) == 0) {
            scales[group] = 0.0f;
            memset(row + 128 * group + 64, 0x7f, 64);
        }
    }
    memcpy(row + LATENT, scales, sizeof scales);
    uint16_t rope[64];
    value_stock_draw(&pool->values, &pool->random, rope, 64);
    memcpy(row + LATENT + sizeof scales, rope, sizeof rope);
}

static void write_584(batch_pool *pool, uint8_t *page, int64_t slot_in_page)
{
    uint8_t *row = page + slot_in_page * FP8_584_DATA;
    uint8_t *scales = page + pool->page_size * FP8_584_DATA + slot_in_page * 8;
    value_stock_draw_bytes(&pool->fp8_values, &pool->random, row, 448);
    uint16_t rope[64];
    value_stock_draw(&pool->values, &pool->random, rope, 64);
    memcpy(row + 448, rope, sizeof rope);
    for (int group = 0; group < 7; group++) {
        scales[group] = (uint8_t)(127 + lrint(log2(random_scale(pool))));
    }
}

void batch_pool_write(batch_pool *pool, int64_t slot)
{
    assert(slot >= 0 && slot < pool->num_pages * pool->page_size);
    if (pool->slot_written[slot]) {
        return;
    }
    pool->slot_written[slot] = 1;
    const batch_spec *spec = pool->spec;
    int64_t page = slot / pool->page_size;
    int64_t slot_in_page = slot % pool->page_size;
    uint8_t *start = pool->data + page * pool->page_stride;
    if (pool->page_touched != NULL && !pool->page_touched[page]) {
        pool->page_touched[page] = 1;
        poison_page(pool, page);
    }
    if (spec->equal_keys) {
        rng_seed(&pool->random, 7);
    }
    if (spec->kv_format == MLA_KV_FP8_656) {
        write_656(pool, start + slot_in_page * FP8_656_BYTES);
    } else if (spec->kv_format == MLA_KV_FP8_584) {
        write_584(pool, start, slot_in_page);
    } else {
        int64_t row_values = spec->h_kv * spec->d_qk;
        uint16_t *row = (uint16_t *)(void *)start + slot_in_page * row_values;
        value_stock_draw(&pool->values, &pool->random, row, row_values);
    }
}

void batch_pool_write_nan(batch_pool *pool, int64_t slot)
{
    const batch_spec *spec = pool->spec;
    assert(spec->kv_format == MLA_KV_NATIVE && pool->slot_written[slot]);
    uint8_t *page = pool->data + slot / pool->page_size * pool->page_stride;
    uint16_t *row = (uint16_t *)(void *)page + slot % pool->page_size * spec->h_kv * spec->d_qk;
    *row = 0x7fff;
}

void batch_pool_close(batch_pool *pool)
{
    free(pool->slot_written);
    free(pool->page_touched);
    *pool = (batch_pool){.spec = NULL};
}
