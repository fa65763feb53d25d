/*
 * Rows of few keys whose logits cancel, and rows of huge logits.
 *
 * A logit is a sum of products, and float32 leaves an error in it that is proportional to |q| |k|,
 * whatever the logit itself is. Among many keys some have large logits and lse is as large. Where a
 * row sees few, lse can be small beside |q| |k|, and its error larger than what the manual allows;
 * and so can that of the weights of keys that compete. Such rows are found here, after they have
 * been computed, so that the driver can leave them to the reference. For others it takes some
 * nanoseconds, and next to nothing where rows see more than MLA_FEW_KEYS keys.
 *
 * Where logits are huge, float32 does not tell which key is the largest, among however many.
 */
#ifndef MLA_CPU_REFINE_ROWS_H
#define MLA_CPU_REFINE_ROWS_H

#include "kernels.h"

/* For |lse| to be small, no logit may be large and positive, as half of them are: each further key
 * halves the chance. */
enum { MLA_FEW_KEYS = 32 };

/* Query rows of a plan request and KV head, and its keys, if the rows see few of them. */
typedef struct mla_few_keys {
    const mla_key_rows *keys;
    float scale;
    bool wants_max; /* the row maximum is a result, too */
    int32_t count;  /* entries of `row`, the first keys of the list; 0: no row sees few */
    /* No less than any of the rows' and keys' lengths, unless they hold NaN. */
    double q_length, k_length;
    mla_key_row row[2 * MLA_FEW_KEYS];
    double exact_length[MLA_FEW_KEYS]; /* of each key; negative while it is not known */
} mla_few_keys;

/* Results of a row, as the kernels left them. */
typedef struct mla_row_sums {
    double lse;
    float row_max;
} mla_row_sums;

/* Fills *few for the rows of a job; only its keys, rows, q_rows, row_keys and scale are read. The
 * keys must outlive *few. */
void mla_few_keys_find(const mla_cpu_job *job, const mla_cpu_kernel *kernel, bool wants_max,
                       mla_few_keys *few);

/* Whether the row of query `q`, which sees the first `num_keys` entries of the list, must be
 * computed in double precision. Depends on nothing but what that row sees. */
bool mla_row_is_coarse(mla_few_keys *few, const uint16_t *q, int64_t num_keys, mla_row_sums sums);

#endif
