/* The modes of gpu_dense, by the file that holds them. */
#ifndef MLA_BENCH_GPU_DENSE_H
#define MLA_BENCH_GPU_DENSE_H

#include "mla.h"

/* dense_check.c: the cases whose name contains `filter`, all for NULL; 1 when one failed. */
int check_dense(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter);

/* dense_repeats.c: 1 when the same inputs gave other bits. */
int check_repeats(const mla_ctx *gpu);

/* gpu_plan_check.c: 1 when a schedule differs. */
int check_plans(const mla_ctx *gpu);

/* dense_timing.c: `num_parts` is that of every plan; 0 is the library's choice. */
void bench_large(const mla_ctx *gpu, const char *filter, int32_t num_parts);

/* Building a schedule alone. */
void time_plans(const mla_ctx *gpu);

/* Latency: a graph of 20 calls over rotating caches, replayed; microseconds a call. */
void bench_small(const mla_ctx *gpu, const char *filter, int32_t num_parts);

#endif
