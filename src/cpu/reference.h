/* The specification: every operation in scalar C with double accumulation, straight from the
 * tensors. */
#ifndef MLA_CPU_REFERENCE_H
#define MLA_CPU_REFERENCE_H

#include "shape.h"

/* mla_run() without plan or workspace. Lengths, pages and strides were checked. */
void mla_reference_run(const mla_shape *shape, const mla_tensors *tensors, int32_t num_threads);

/* One row of it: out, and lse and max_logits where they are wanted. */
void mla_reference_row(const mla_shape *shape, const mla_tensors *tensors, mla_row_pos pos);

#endif
