#include "key_rows.h"

#include "formats.h"

#include <assert.h>

/* The row of token `token` of page `page`. */
static mla_key_row pool_row(const mla_key_rows *keys, const mla_key_pool *pool, int64_t page,
                            int64_t token)
{
    const uint8_t *page_base = pool->base + page * pool->page_stride;
    mla_key_row row = {page_base + token * pool->token_stride, NULL};
    if (keys->kv_format == MLA_KV_FP8_656) {
        row.scales = row.data + MLA_FP8_656_SCALES_AT;
    } else if (keys->kv_format == MLA_KV_FP8_584) {
        row.scales = page_base + pool->page_size * MLA_FP8_584_DATA_BYTES +
                     token * MLA_FP8_584_SCALE_BYTES;
    }
    return row;
}

static int32_t resolve_dense(const mla_key_rows *keys, int64_t begin, int64_t end,
                             mla_key_row *rows)
{
    const mla_key_pool *pool = &keys->pool[0];
    int64_t page_idx = begin / pool->page_size;
    int64_t token = begin % pool->page_size;
    for (int64_t key = begin; key < end; key++) {
        rows[key - begin] = pool_row(keys, pool, keys->block_table[page_idx], token);
        if (++token == pool->page_size) {
            token = 0;
            page_idx++;
        }
    }
    return (int32_t)(end - begin);
}

static int32_t resolve_sparse(const mla_key_rows *keys, const mla_key_pool *pool,
                              const int32_t *indices, int64_t count, mla_key_row *rows)
{
    int32_t num_rows = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t slot = indices[i];
        if (slot < 0 || slot >= pool->num_slots) {
            continue;
        }
        int64_t page = slot, token = 0;
        if (pool->page_size > 1) {
            /* 32-bit division is several times faster than 64-bit. */
            uint32_t page_size = (uint32_t)pool->page_size;
            page = (uint32_t)slot / page_size;
            token = (uint32_t)slot % page_size;
        }
        rows[num_rows++] = pool_row(keys, pool, page, token);
    }
    return num_rows;
}

int32_t mla_key_rows_resolve(const mla_key_rows *keys, int64_t begin, int64_t end,
                             mla_key_row *rows)
{
    assert(0 <= begin && begin <= end && end <= keys->num_keys[0] + keys->num_keys[1]);
    assert(end - begin <= INT32_MAX && keys->pool[0].page_size <= INT32_MAX);
    if (keys->block_table != NULL) {
        return resolve_dense(keys, begin, end, rows);
    }
    int32_t num_rows = 0;
    int64_t list_begin = 0;
    for (int list = 0; list < 2; list++) {
        int64_t list_end = list_begin + keys->num_keys[list];
        int64_t from = begin > list_begin ? begin : list_begin;
        int64_t to = end < list_end ? end : list_end;
        if (from < to) {
            num_rows += resolve_sparse(keys, &keys->pool[list],
                                       keys->indices[list] + (from - list_begin), to - from,
                                       rows + num_rows);
        }
        list_begin = list_end;
    }
    return num_rows;
}
