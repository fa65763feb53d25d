/*
 * Where the keys of one plan request lie: an ordered list of tokens, found through a block table or
 * through indices, that kernels pull as row pointers. Everything that is not referenced or not
 * valid is dropped here, so kernels never see it.
 */
#ifndef MLA_CPU_KEY_ROWS_H
#define MLA_CPU_KEY_ROWS_H

#include "mla.h"

typedef struct mla_key_pool {
    const uint8_t *base; /* row of slot 0 for this KV head */
    int64_t page_stride; /* bytes */
    int64_t token_stride;
    int64_t page_size;
    int64_t num_slots;
} mla_key_pool;

typedef struct mla_key_rows {
    mla_kv_format kv_format;
    mla_dtype dtype;
    int64_t d_qk;
    mla_key_pool pool[2];       /* [1]: the extra pool */
    const int32_t *block_table; /* dense: this request's row; NULL when sparse */
    const int32_t *indices[2];  /* sparse */
    int64_t num_keys[2];        /* entries of each list; dense: { tokens, 0 } */
} mla_key_rows;

/* A row as the format has it. `scales` points to the scales of FP8 rows (four float32, or seven
 * e8m0 bytes; may be unaligned), NULL for native rows. */
typedef struct mla_key_row {
    const uint8_t *data;
    const uint8_t *scales;
} mla_key_row;

/*
 * Resolves entries [begin, end) of the list (both pools' entries end to end) into `rows`, in order,
 * dropping sparse entries that are not in the pool. Returns how many rows were written, at most end
 * - begin.
 */
int32_t mla_key_rows_resolve(const mla_key_rows *keys, int64_t begin, int64_t end,
                             mla_key_row *rows);

#endif
