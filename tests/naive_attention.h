/*
 * Attention in double precision, written from the manual and not from the library: all keys of a
 * request are gathered first, then each row takes two passes over its logits.
 */
#ifndef MLA_TESTS_NAIVE_ATTENTION_H
#define MLA_TESTS_NAIVE_ATTENTION_H

#include "attention_case.h"

/* Unrounded answers, contiguous: out [rows, 512], lse [rows], max_logits [rows]. */
typedef struct exact_result {
    double *out;
    double *lse;
    double *max_logits;
} exact_result;

exact_result naive_attention(const attention_case *c);
void exact_result_free(exact_result *result);

/* Fails unless `got` is the exact answer rounded to the output's types, up to one rounding tie. */
void assert_rounded_from(const mla_problem *problem, const attention_result *got,
                         const exact_result *exact);

#endif
