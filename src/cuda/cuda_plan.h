/* Plans of the GPU: how a problem is cut, the bytes it takes, and the launch that builds one. */
#ifndef MLA_CUDA_PLAN_H
#define MLA_CUDA_PLAN_H

#include "backend.h"
#include "plan.h"

/* How the plan of a problem is cut; the plan kernel and mla_plan_cut() obey it alike. */
mla_cut_rule mla_cuda_cut_rule(const mla_ctx *ctx, const mla_shape *shape);

/* Whether the rule may cut a request, so that partial results have to be merged. */
bool mla_cuda_may_split(const mla_cut_rule *rule);

/* Partial results of 64 query rows each that the workspace holds. */
int64_t mla_cuda_num_partials(const mla_cut_rule *rule, const mla_shape *shape);

mla_status mla_cuda_get_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes);
mla_status mla_cuda_plan_build(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_lengths *lengths, void *plan_buffer, void *stream);

#endif
