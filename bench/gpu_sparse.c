/*
 * Checks and times sparse decode and sparse prefill of the CUDA backend on the GPU at hand.
 *
 *   gpu_sparse check [filter]   compares with the CPU backend, and two launches byte by byte
 *   gpu_sparse bench [filter [parts]]   times shapes interleaved with cuBLAS bf16 8192^3
 */
#include "gpu_sparse.h"
#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check", *filter = argc > 2 ? argv[2] : NULL;
    if (strcmp(mode, "check") == 0) {
        return check_sparse(filter);
    }
    if (strcmp(mode, "bench") != 0) {
        printf("usage: gpu_sparse check|bench [filter [parts]]\n");
        return 1;
    }
    mla_ctx *gpu, *cpu;
    open_contexts(&gpu, &cpu);
    bench_sparse(gpu, cpu, filter, argc > 3 ? atoi(argv[3]) : 0);
    mla_ctx_destroy(gpu);
    mla_ctx_destroy(cpu);
    return 0;
}
