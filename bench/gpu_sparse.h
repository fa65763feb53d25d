/* The modes of gpu_sparse, by the file that holds them. */
#ifndef MLA_BENCH_GPU_SPARSE_H
#define MLA_BENCH_GPU_SPARSE_H

#include "mla.h"

/* sparse_check.c: the cases whose name contains `filter`, all for NULL; 1 when one failed. */
int check_sparse(const char *filter);

/* sparse_timing.c: shapes whose name contains `filter`; `num_parts` is that of every plan, 0 is the
 * library's choice. Large ones beside cuBLAS, small ones by replays of a graph. */
void bench_sparse_large(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter,
                        int32_t num_parts);
void bench_sparse_small(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter,
                        int32_t num_parts);

#endif
