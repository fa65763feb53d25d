/* Sparse decode and sparse prefill on the GPU: what they support, and their launches. */
#ifndef MLA_CUDA_SPARSE_H
#define MLA_CUDA_SPARSE_H

#include "backend.h"

mla_status mla_cuda_sparse_supports(const mla_shape *shape);
mla_status mla_cuda_sparse_run(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                               void *stream);

#endif
