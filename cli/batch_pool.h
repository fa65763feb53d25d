/* The KV pool of a made-up batch: poison everywhere, and values only in the slots that are asked
 * for. */
#ifndef MLA_CLI_BATCH_POOL_H
#define MLA_CLI_BATCH_POOL_H

#include "batch.h"
#include "random_values.h"

typedef struct batch_pool {
    const batch_spec *spec;
    int64_t page_size, num_pages;
    int64_t page_bytes;  /* of a contiguous page */
    int64_t page_stride; /* bytes */
    uint8_t *data;
    uint8_t *slot_written; /* one flag a slot, so that shared slots are written once */
    uint8_t *page_touched; /* NULL when the whole pool was poisoned at once */
    value_stock values;    /* native values, or the RoPE part of FP8 rows */
    value_stock fp8_values;
    rng random;
} batch_pool;

/* Maps and poisons the pool. `spec` must outlive it. Prints the reason and returns false on
 * failure. */
bool batch_pool_open(batch_pool *pool, guarded_memory *memory, const batch_spec *spec,
                     int64_t page_size, int64_t num_pages, uint64_t seed);

/* Gives a slot its row of every KV head; does nothing the second time. */
void batch_pool_write(batch_pool *pool, int64_t slot);

/* Makes the first value of a written native row a NaN. */
void batch_pool_write_nan(batch_pool *pool, int64_t slot);

/* Releases all but the memory of the pool itself. */
void batch_pool_close(batch_pool *pool);

/* Bytes of one token's row of all KV heads. */
int64_t batch_row_bytes(const batch_spec *spec);

/* Writes `count` elements of poison. */
void poison_fill(const batch_spec *spec, uint16_t *values, int64_t count);

#endif
