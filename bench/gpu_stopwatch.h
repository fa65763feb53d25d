/*
 * Times work on the GPU, with its clock and power, and cuBLAS beside it as the yardstick. Both
 * libraries are opened when the program runs and may be absent.
 */
#ifndef MLA_BENCH_GPU_STOPWATCH_H
#define MLA_BENCH_GPU_STOPWATCH_H

#include "cublas_baseline.h"
#include "gpu_sensors.h"

#include <cuda_runtime_api.h>

/* cuBLAS, bf16 8192^3, with its matrices, and the sensors of the first device. */
typedef struct yardstick {
    cublas_baseline blas; /* its library is NULL when absent */
    void *a, *b, *c;
    gpu_sensors sensors;
} yardstick;

yardstick open_yardstick(void);

/* What is timed: one launch sequence, and how many of them a measurement repeats. */
typedef struct workload {
    void (*run)(void *state, int idx);
    void *state;
} workload;

/*
 * One line of a table: single runs of a chip that idled (burst) and runs back to back (sustained),
 * each beside cuBLAS before and after, as shares of its speed.
 */
void print_beside_head(void);
void time_beside_gemm(const char *name, const workload *w, double flops, double bytes,
                      const yardstick *beside);

/* Seconds a run: the median of replays of a CUDA graph of several. The workload enqueues on
 * `stream`, which is none of the default ones. */
void print_graph_head(void);
double time_graph(const workload *w, cudaStream_t stream);

#endif
