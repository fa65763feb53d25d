/*
 * What a careful user gets from OpenBLAS today, to compare with: per KV head, blocks of keys are
 * upcast to FP32 once and multiplied by sgemm, with an online softmax between.
 */
#ifndef MLA_CLI_OPENBLAS_BASELINE_H
#define MLA_CLI_OPENBLAS_BASELINE_H

#include "mla.h"

typedef struct openblas_baseline openblas_baseline;

/* Loads libopenblas with the best kernels for `isa_available`; NULL when it is not there. */
openblas_baseline *openblas_open(uint32_t isa_available);
void openblas_close(openblas_baseline *blas);
const char *openblas_version(const openblas_baseline *blas);

/* Whether the baseline computes this problem: dense, native rows, not causal. */
bool openblas_serves(const mla_problem *problem);

/*
 * Computes the problem into `out`, [batch, s_q, h_q, d_v] of its dtype, from host tensors. Returns
 * false when memory is short. `threads` of OpenMP share the work, each with a single-threaded BLAS.
 */
bool openblas_run(openblas_baseline *blas, const mla_problem *problem, const mla_tensors *tensors,
                  uint16_t *out, int32_t num_threads);

#endif
