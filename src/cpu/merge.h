/* Joining attention results over disjoint sets of keys, one query row at a time. */
#ifndef MLA_CPU_MERGE_H
#define MLA_CPU_MERGE_H

#include "mla.h"

/*
 * Weights that join `num_parts` results with the given lse (natural log; +-INFINITY: no keys).
 * weights[i] is 0 for a part without keys, whose values must not be read. Returns the joined lse,
 * -INFINITY when no part has keys.
 */
float mla_merge_weights(const float *lses, int64_t num_parts, float *weights);

/* mla_merge() on resolved arguments. */
void mla_cpu_merge(const mla_merge_args *args, int32_t num_threads);

#endif
