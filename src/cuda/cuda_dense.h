/* Dense decode on the GPU: what it supports, how it is cut, and its launches. */
#ifndef MLA_CUDA_DENSE_H
#define MLA_CUDA_DENSE_H

#include "backend.h"
#include "plan.h"

mla_status mla_cuda_dense_supports(const mla_ctx *ctx, const mla_shape *shape);
/* How the plan of a problem is cut; the plan kernel and mla_plan_cut() obey it alike. */
mla_cut_rule mla_cuda_cut_rule(const mla_ctx *ctx, const mla_shape *shape);
mla_status mla_cuda_dense_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes);
mla_status mla_cuda_dense_plan(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_lengths *lengths, void *plan_buffer, void *stream);
mla_status mla_cuda_dense_run(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              void *stream);

#endif
