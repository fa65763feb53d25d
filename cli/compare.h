/* Comparison of two sets of outputs with the tolerances that every backend must keep. */
#ifndef MLA_CLI_COMPARE_H
#define MLA_CLI_COMPARE_H

#include "batch.h"

/* Part of a batch: requests, query tokens and heads to compare. */
typedef struct row_range {
    int64_t first_request, num_requests;
    int64_t first_token, num_tokens;
    int64_t first_head, num_heads;
} row_range;

typedef struct comparison {
    bool passed;
    double worst_share; /* largest error as a share of what is allowed; above 1 is a failure */
    double out_norm;    /* ||got - want|| / ||want|| of out */
    double out_cosine;  /* 1 - cosine of the angle between got and want */
    double lse_error;   /* largest |got - want| of lse */
    char worst[160];    /* the worst element: which, where, what it is and should be */
} comparison;

/*
 * Compares `got` with `want`, both of the shape of `input`, and verifies that nothing but the
 * elements was written to `got`. With `rounded_p`, a CPU context, an element of out may also be off
 * by what a 16-bit P explains (rounding_bound.h).
 */
void compare_outputs(const batch *input, const batch_outputs *got, const batch_outputs *want,
                     const mla_ctx *rounded_p, comparison *result);

/* Compares the rows of `range` with `want`, whose request, token and head 0 are the range's first.
 */
void compare_rows(const batch *input, const mla_tensors *got, const mla_tensors *want,
                  const row_range *range, const mla_ctx *rounded_p, comparison *result);

/* Whether two sets of outputs are byte for byte the same; else says where they differ. */
bool outputs_same_bytes(const batch_outputs *a, const batch_outputs *b, comparison *result);

#endif
