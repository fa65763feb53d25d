#include "gpu_stopwatch.h"

#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GEMM_SIZE = 8192 };
const double gemm_flops = 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE;

gemm_bench open_gemm(void)
{
    gemm_bench gemm = {.a = NULL};
    if (!cublas_open(&gemm.blas, NULL)) {
        printf("no cuBLAS\n");
        return gemm;
    }
    gemm.a = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    gemm.b = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    gemm.c = device_alloc((size_t)GEMM_SIZE * GEMM_SIZE * 2);
    return gemm;
}

void run_gemm(void *state, int idx)
{
    const gemm_bench *gemm = state;
    (void)idx;
    if (!cublas_multiply(&gemm->blas, GEMM_SIZE, gemm->a, gemm->b, gemm->c)) {
        printf("cublasGemmEx failed\n");
        exit(2);
    }
}

gpu_sensors open_sensors(void)
{
    gpu_sensors sensors;
    char bus_id[32];
    check_cuda(cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, 0), "cudaDeviceGetPCIBusId");
    gpu_sensors_open(&sensors, bus_id);
    return sensors;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

timing time_back_to_back(const workload *w, double warm, double measure, const gpu_sensors *sensors)
{
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    timing result = {0};
    double t0 = now();
    int runs = 0;
    do {
        w->run(w->state, runs++);
        if (runs % 4 == 0) {
            check_cuda(cudaDeviceSynchronize(), "warm-up");
        }
    } while (now() - t0 < warm);
    check_cuda(cudaDeviceSynchronize(), "warm-up");
    t0 = now();
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "one run");
    int count = (int)(measure / (now() - t0)) + 1;
    cudaEventRecord(begin, NULL);
    for (int i = 0; i < count; i++) {
        w->run(w->state, i);
        if (i == count * 3 / 4) {
            gpu_sensors_read(sensors, &result.megahertz, &result.watts);
        }
    }
    cudaEventRecord(end, NULL);
    check_cuda(cudaEventSynchronize(end), "timed runs");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    result.seconds = ms * 1e-3 / count;
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return result;
}

float median(float *values, int count)
{
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const float swap = values[j];
            values[j] = values[j - 1];
            values[j - 1] = swap;
        }
    }
    return values[count / 2];
}

double time_burst(const workload *w)
{
    enum { RUNS = 7 };
    float ms[RUNS];
    struct timespec idle = {0, 400000000};
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "burst");
    nanosleep(&idle, NULL);
    w->run(w->state, 0);
    for (int i = 0; i < RUNS; i++) {
        cudaEventRecord(begin, NULL);
        w->run(w->state, i + 1);
        cudaEventRecord(end, NULL);
        check_cuda(cudaEventSynchronize(end), "burst");
        cudaEventElapsedTime(&ms[i], begin, end);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return median(ms, RUNS) * 1e-3;
}
