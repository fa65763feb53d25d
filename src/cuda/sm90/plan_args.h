/* What the plan kernel is told; included by host C and device code. */
#ifndef MLA_CUDA_PLAN_ARGS_H
#define MLA_CUDA_PLAN_ARGS_H

#include "plan.h"

enum { MLA_SM90_PLAN_THREADS = 512 };

typedef struct mla_sm90_plan_args {
    mla_cut_rule rule;
    const int32_t *seqlens; /* [rule.num_reqs] */
    mla_plan_header *plan;
} mla_sm90_plan_args;

#endif
