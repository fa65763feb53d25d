/* What the GPU drivers share: failing loudly, device memory, random numbers. */
#ifndef MLA_BENCH_GPU_DRIVER_H
#define MLA_BENCH_GPU_DRIVER_H

#include "mla.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(error));
        exit(2);
    }
}

static inline void check_mla(mla_status status, const char *what)
{
    if (status != MLA_OK) {
        printf("%s: %s: %s\n", what, mla_status_name(status), mla_last_error());
        exit(2);
    }
}

static inline void *device_alloc(size_t bytes)
{
    void *data = NULL;
    check_cuda(cudaMalloc(&data, bytes > 0 ? bytes : 16), "cudaMalloc");
    return data;
}

static inline void *device_copy(const void *host, size_t bytes)
{
    void *data = device_alloc(bytes);
    check_cuda(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return data;
}

/* Everything random comes from here, so that a case is the same in every run. */
static uint64_t random_state = 1;

static inline uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static inline float random_normal(void)
{
    /* Sum of eight uniforms: variance 8/12, tails long enough for a test. */
    float sum = 0;
    for (int i = 0; i < 8; i++) {
        sum += (float)random_bits() / 4294967296.0f - 0.5f;
    }
    return sum * 1.2247449f;
}

/* Contexts of both backends; the CPU's is the reference. */
static inline void open_contexts(mla_ctx **gpu, mla_ctx **cpu)
{
    const mla_ctx_params gpu_params = {.struct_size = sizeof gpu_params,
                                       .backend = MLA_BACKEND_CUDA};
    const mla_ctx_params cpu_params = {.struct_size = sizeof cpu_params,
                                       .backend = MLA_BACKEND_CPU};
    check_cuda(cudaSetDevice(0), "cudaSetDevice");
    check_mla(mla_ctx_create(&gpu_params, gpu), "CUDA context");
    check_mla(mla_ctx_create(&cpu_params, cpu), "CPU context");
}

#endif
