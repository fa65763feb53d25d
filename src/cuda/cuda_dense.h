/* Dense decode on the GPU: what it supports, and its launches. */
#ifndef MLA_CUDA_DENSE_H
#define MLA_CUDA_DENSE_H

#include "backend.h"

mla_status mla_cuda_dense_supports(const mla_shape *shape);
mla_status mla_cuda_dense_run(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              void *stream);

#endif
