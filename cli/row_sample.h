/* Verifies a few rows of a large result: the reference is far too slow to compute all of them. */
#ifndef MLA_CLI_ROW_SAMPLE_H
#define MLA_CLI_ROW_SAMPLE_H

#include "compare.h"
#include "engine.h"

/*
 * Computes `num_samples` times one head of one request, chosen by `seed`, with `reference` (a CPU
 * engine) and compares, with the allowance of compare_outputs() where `rounded_p` says so. `got`
 * holds the host outputs of the whole batch. Only *result of the worst sample is kept. Prints the
 * reason and returns false when the reference itself fails.
 */
bool sample_rows(const engine *reference, const batch *input, const mla_tensors *got,
                 int64_t num_samples, uint64_t seed, bool rounded_p, comparison *result);

#endif
