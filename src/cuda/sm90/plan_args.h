/* What the plan kernel is told; included by host C and device code. */
#ifndef MLA_CUDA_PLAN_ARGS_H
#define MLA_CUDA_PLAN_ARGS_H

#include "plan.h"

enum { MLA_SM90_PLAN_THREADS = 512 };

/* A request has the tokens of entry req / reqs_a_length of both arrays together. */
typedef struct mla_sm90_plan_args {
    mla_cut_rule rule;
    const int32_t *lengths;       /* sparse: may be NULL, all most_tokens */
    const int32_t *extra_lengths; /* may be NULL, all most_extra_tokens */
    int32_t most_tokens, most_extra_tokens;
    int32_t reqs_a_length; /* plan requests that share an entry */
    mla_plan_header *plan;
} mla_sm90_plan_args;

#endif
