/* What `mla bench` needs on a GPU: its limits, its sensors, and cuBLAS to compare with. */
#ifndef MLA_CLI_BENCH_GPU_H
#define MLA_CLI_BENCH_GPU_H

#include "cublas_baseline.h"
#include "engine.h"
#include "gpu_sensors.h"

typedef struct gpu_lab {
    device_traits traits;
    double memory_gbs;    /* that a plain read reaches */
    bool memory_measured; /* else what the bus carries */
    gpu_sensors sensors;
    cublas_baseline blas;
    void *a, *b, *c; /* matrices of the products */
} gpu_lab;

typedef struct gpu_reading {
    double megahertz, watts; /* 0: unknown */
} gpu_reading;

/* Sensors and cuBLAS may be missing. Prints the reason and returns false on failure. */
bool gpu_lab_open(gpu_lab *gpu, const engine *runner, bool no_blas);
void gpu_lab_close(gpu_lab *gpu, const memory_space *memory); /* one that is all zero is allowed */

/* GFLOP/s of the tensor cores at a clock: the least possible time is by this. */
double gpu_tensor_peak(const engine *runner, double megahertz);

/*
 * Runs a graph `times` times back to back: seconds of one, by events. The sensors are read once
 * three quarters of the `expected` seconds of all have passed; NULL: they are not.
 */
bool gpu_time_graph(const gpu_lab *gpu, const memory_space *memory, void *graph, int64_t times,
                    double expected, double *seconds, gpu_reading *reading);

/* GFLOP/s of cuBLAS, bf16 8192 x 8192 x 8192, `times` of them back to back, by events. */
bool gpu_time_gemm(const gpu_lab *gpu, const memory_space *memory, int64_t times, double *gflops);

/* Lets the chip cool and its clock rise. */
void gpu_idle(void);

#endif
