/*
 * Checks and times sparse decode and sparse prefill of the CUDA backend on the GPU at hand.
 *
 *   gpu_sparse check [filter]   compares with the CPU backend, and two launches byte by byte
 *   gpu_sparse bench [filter [parts]]   times large batches, interleaved with cuBLAS bf16 8192^3
 *   gpu_sparse small [filter [parts]]   times small ones by CUDA graphs
 */
#include "gpu_sparse.h"
#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check", *filter = argc > 2 ? argv[2] : NULL;
    const int32_t num_parts = argc > 3 ? atoi(argv[3]) : 0;
    const bool large = strcmp(mode, "bench") == 0;
    if (strcmp(mode, "check") == 0) {
        return check_sparse(filter);
    }
    if (!large && strcmp(mode, "small") != 0) {
        printf("usage: gpu_sparse check|bench|small [filter [parts]]\n");
        return 1;
    }
    mla_ctx *gpu, *cpu;
    open_contexts(&gpu, &cpu);
    (large ? bench_sparse_large : bench_sparse_small)(gpu, cpu, filter, num_parts);
    mla_ctx_destroy(gpu);
    mla_ctx_destroy(cpu);
    return 0;
}
