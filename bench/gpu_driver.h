/*
 * What the GPU drivers share: failing loudly, device memory, random numbers, plans with their
 * workspaces, and the count of what passed.
 */
#ifndef MLA_BENCH_GPU_DRIVER_H
#define MLA_BENCH_GPU_DRIVER_H

#include "mla.h"

#include <cuda_runtime_api.h>

/* Print what failed and exit with 2 unless it succeeded. */
void check_cuda(cudaError_t error, const char *what);
void check_mla(mla_status status, const char *what);

void *device_alloc(size_t bytes);

/* Device memory that holds a copy of `host`. */
void *device_copy(const void *host, size_t bytes);

/* Copies device memory to `host`; `what` is named when that fails. */
void device_read(void *host, const void *device, size_t bytes, const char *what);

/* Everything random comes from here, so that a case is the same in every run. Not seeded with 0. */
void random_seed(uint64_t seed);
uint32_t random_bits(void);

/* Mean 0, standard deviation 1. */
float random_normal(void);

/* 0 ... count - 1 shuffled, for the caller to free. */
int32_t *random_order(int64_t count);

/* Device memory that holds `pattern` again and again. */
uint8_t *device_repeat(const void *pattern, size_t pattern_bytes, size_t bytes);

/* Normal bf16 numbers on the device; they repeat after 2^22. */
uint16_t *device_normals(size_t elems, float std);

/* Contexts of both backends; the CPU's is the reference. */
void open_contexts(mla_ctx **gpu, mla_ctx **cpu);

/* Dense decode of bf16, one KV head, d_qk 576, d_v 512, pages of 64. */
mla_problem dense_decode_problem(int64_t batch, int64_t s_q, int64_t h_q);

/* Plan and workspace of a problem on one context. */
typedef struct buffers {
    mla_plan plan;
    void *workspace;
    mla_sizes sizes;
} buffers;

/* Buffers of exact size on the device or the host. The plan is not built. */
void make_buffers(const mla_ctx *ctx, const mla_problem *problem, bool device, buffers *b);
void free_buffers(buffers *b, bool device);

/* Builds the plan and runs it. */
void run_once(const mla_ctx *ctx, const mla_problem *problem, const mla_tensors *t, buffers *b,
              void *stream);

/* What passed and failed. gpu_session.sh adds up the lines that are printed. */
typedef struct tally {
    int passed, failed, skipped;
} tally;

void tally_count(tally *t, bool good);

/* Returns the value for main(): whether anything failed. */
int tally_print(const tally *t, const char *area);

#endif
