/* Joining attention results over disjoint sets of keys, one query row at a time, in double. */
#ifndef MLA_CPU_MERGE_H
#define MLA_CPU_MERGE_H

#include "mla.h"

/* mla_merge() on resolved arguments. */
void mla_cpu_merge(const mla_merge_args *args, int32_t num_threads);

#endif
