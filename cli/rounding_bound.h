/*
 * What rounding the softmax numerators to 16 bits may change in `out`.
 *
 * Matrix units multiply 16-bit numbers, so P reaches the product P V as bf16 or fp16. Its relative
 * error, at most u = 2^-8 or 2^-11, moves an element of out by at most u * sum(P |V|), and since
 * the errors of the keys are independent, hardly ever by more than 2.5 u * sqrt(sum(P^2 V^2)), six
 * standard deviations. Where many keys share the weight or V is small this vanishes beside the
 * tolerance; where two keys with values of 100 share it, no kernel with a 16-bit P can stay within
 * 8e-4.
 */
#ifndef MLA_CLI_ROUNDING_BOUND_H
#define MLA_CLI_ROUNDING_BOUND_H

#include "batch.h"

enum { ROUNDING_BOUND_COLUMNS = 512 };

/* Fills bound[512] for one head of one query token of `input`, which must be host memory. `cpu` is
 * any CPU context: it reads the cache. False, and the bound all zero, when it could not be read. */
bool rounding_bound_row(const mla_ctx *cpu, const batch *input, int64_t request, int64_t token,
                        int64_t head, double bound[ROUNDING_BOUND_COLUMNS]);

#endif
