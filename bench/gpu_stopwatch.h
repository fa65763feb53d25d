/*
 * Times work on the GPU, with its clock and power, and cuBLAS beside it as the yardstick. Both
 * libraries are opened when the program runs and may be absent.
 */
#ifndef MLA_BENCH_GPU_STOPWATCH_H
#define MLA_BENCH_GPU_STOPWATCH_H

#include "cublas_baseline.h"
#include "gpu_sensors.h"

/* cuBLAS, bf16 8192^3, and its matrices. */
typedef struct gemm_bench {
    cublas_baseline blas; /* its library is NULL when absent */
    void *a, *b, *c;
} gemm_bench;

extern const double gemm_flops;

gemm_bench open_gemm(void);

/* A workload: one multiplication; the state is a gemm_bench. */
void run_gemm(void *state, int idx);

/* Of the first device. */
gpu_sensors open_sensors(void);

/* What is timed: one launch sequence, and how many of them a measurement repeats. */
typedef struct workload {
    void (*run)(void *state, int idx);
    void *state;
} workload;

typedef struct timing {
    double seconds;          /* a run, mean over the measured runs */
    double megahertz, watts; /* while they ran; 0: unknown */
} timing;

/* Back to back for about `warm` seconds, then `measure` seconds timed by events. */
timing time_back_to_back(const workload *w, double warm, double measure,
                         const gpu_sensors *sensors);

/* On a chip that idled: the median of single runs, in seconds. */
double time_burst(const workload *w);

/* Sorts the values. */
float median(float *values, int count);

#endif
