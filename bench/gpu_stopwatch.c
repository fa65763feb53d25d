#include "gpu_stopwatch.h"

#include "gpu_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GEMM_SIZE = 8192 };
const double gemm_flops = 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE;

static void load_symbol(void *library, const char *name, void *pointer)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    memcpy(pointer, &address, sizeof address);
}

cublas open_cublas(void)
{
    cublas blas = {0};
    int (*create)(void **);
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    load_symbol(library, "cublasCreate_v2", &create);
    load_symbol(library, "cublasGemmEx", &blas.gemm);
    if (create == NULL || blas.gemm == NULL || create(&blas.handle) != 0) {
        printf("no cuBLAS: %s\n", dlerror());
        return (cublas){0};
    }
    blas.a = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    blas.b = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    blas.c = device_alloc((size_t)GEMM_SIZE * GEMM_SIZE * 2);
    return blas;
}

void run_gemm(void *state, int idx)
{
    enum { TRANSPOSE = 1, PLAIN = 0, BF16 = 14, FP32_COMPUTE = 68, DEFAULT_ALGO = -1 };
    const cublas *blas = state;
    (void)idx;
    const float one = 1, zero = 0;
    const int n = GEMM_SIZE;
    if (blas->gemm(blas->handle, TRANSPOSE, PLAIN, n, n, n, &one, blas->a, BF16, n, blas->b, BF16,
                   n, &zero, blas->c, BF16, n, FP32_COMPUTE, DEFAULT_ALGO) != 0) {
        printf("cublasGemmEx failed\n");
        exit(2);
    }
}

nvml open_nvml(void)
{
    nvml ml = {0};
    int (*init)(void), (*by_index)(unsigned, void **);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    load_symbol(library, "nvmlInit_v2", &init);
    load_symbol(library, "nvmlDeviceGetHandleByIndex_v2", &by_index);
    load_symbol(library, "nvmlDeviceGetClockInfo", &ml.clock);
    load_symbol(library, "nvmlDeviceGetPowerUsage", &ml.power);
    if (init == NULL || by_index == NULL || init() != 0 || by_index(0, &ml.device) != 0) {
        ml.device = NULL;
    }
    return ml;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

timing time_back_to_back(const workload *w, double warm, double measure, const nvml *ml)
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
        if (i == count * 3 / 4 && ml->device != NULL) {
            ml->clock(ml->device, 1, &result.mhz);
            ml->power(ml->device, &result.mw);
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
