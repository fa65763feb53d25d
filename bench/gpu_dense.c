/*
 * Checks and times dense decode of the CUDA backend on the GPU at hand.
 *
 *   gpu_dense check [filter]   compares with the CPU backend, case by case
 *   gpu_dense repeats          compares the bits of many launches, streams, contexts, batch mates
 *   gpu_dense plan             compares the device's schedules with the host's, byte by byte
 *   gpu_dense plan-time        times building schedules by CUDA graphs
 *   gpu_dense bench [filter [parts]]   times large batches, interleaved with cuBLAS bf16 8192^3
 *   gpu_dense small [filter [parts]]   times small ones by CUDA graphs
 */
#include "gpu_dense.h"
#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check", *filter = argc > 2 ? argv[2] : NULL;
    mla_ctx *gpu, *cpu;
    const int32_t num_parts = argc > 3 ? atoi(argv[3]) : 0;
    open_contexts(&gpu, &cpu);
    int failed = 0;
    if (strcmp(mode, "check") == 0) {
        failed = check_dense(gpu, cpu, filter);
    } else if (strcmp(mode, "plan") == 0) {
        failed = check_plans(gpu);
    } else if (strcmp(mode, "plan-time") == 0) {
        time_plans(gpu);
    } else if (strcmp(mode, "repeats") == 0) {
        failed = check_repeats(gpu);
    } else if (strcmp(mode, "bench") == 0) {
        bench_large(gpu, filter, num_parts);
    } else if (strcmp(mode, "small") == 0) {
        bench_small(gpu, filter, num_parts);
    } else {
        printf("usage: gpu_dense check|repeats|plan|plan-time|bench|small [filter [parts]]\n");
        failed = 1;
    }
    mla_ctx_destroy(gpu);
    mla_ctx_destroy(cpu);
    return failed;
}
