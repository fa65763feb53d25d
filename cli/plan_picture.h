/* A plan, read back part by part, with its balance; and its picture. */
#ifndef MLA_CLI_PLAN_PICTURE_H
#define MLA_CLI_PLAN_PICTURE_H

#include "engine.h"

typedef struct plan_view {
    const int32_t *lengths; /* [num_reqs], set by the caller */
    int64_t num_reqs;
    mla_plan_part *parts; /* [num_parts], allocated */
    int64_t num_parts;
    int64_t total_tokens, total_blocks;
    int64_t most_blocks; /* of a part */
    int64_t idle_parts;
    double mean_blocks;
    double balance;     /* mean over largest */
    int64_t split_reqs; /* requests in more than one part */
} plan_view;

/* Whether a part has nothing to do. */
bool plan_part_is_idle(const mla_plan_part *part);

/* Reads a plan whose buffer is host memory. */
mla_status plan_view_read(plan_view *view, const mla_plan *plan);

/* One bar a part, one colour a request. Prints the reason and returns false on failure. */
bool plan_draw(const char *svg_path, const plan_view *view);

#endif
