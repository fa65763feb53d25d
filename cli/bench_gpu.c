#include "bench_gpu.h"
#include "random_values.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    GEMM_SIZE = 8192,
    GEMM_PATTERN = 1 << 22,      /* values that repeat through a matrix */
    TENSOR_FLOP_PER_CLOCK = 4096 /* of a Hopper multiprocessor, bf16 and fp16 */
};

/* What plain reads of memory reach, where that was measured. The bus alone promises 10 % more. */
static const struct {
    const char *device;
    double read_gbs;
} measured_memory[] = {
    {"H200", 4400.0}, /* 132 SMs, 2026-11-30 */
};

static void sleep_for(double seconds)
{
    struct timespec span = {.tv_sec = (time_t)seconds};
    span.tv_nsec = (long)(1e9 * (seconds - (double)span.tv_sec));
    nanosleep(&span, NULL);
}

static void find_memory_limit(gpu_lab *gpu, const char *device_name)
{
    gpu->memory_gbs = gpu->traits.bus_gbs;
    for (size_t i = 0; i < sizeof measured_memory / sizeof measured_memory[0]; i++) {
        if (strstr(device_name, measured_memory[i].device) != NULL) {
            gpu->memory_gbs = measured_memory[i].read_gbs;
            gpu->memory_measured = true;
        }
    }
}

static void *random_matrix(const memory_space *memory, uint64_t seed)
{
    const size_t elems = (size_t)GEMM_SIZE * GEMM_SIZE;
    uint16_t *pattern = tool_alloc(GEMM_PATTERN, sizeof *pattern);
    value_stock *stock = tool_alloc(1, sizeof *stock);
    rng random;
    rng_seed(&random, seed);
    value_stock_fill(stock, &small_bf16, 1.0, seed);
    value_stock_draw(stock, &random, pattern, GEMM_PATTERN);
    uint16_t *matrix = memory_alloc(memory, elems * sizeof *matrix);
    bool ok = matrix != NULL;
    for (size_t at = 0; ok && at < elems; at += GEMM_PATTERN) {
        ok = memory_upload(memory, matrix + at, pattern, GEMM_PATTERN * sizeof *pattern);
    }
    free(stock);
    free(pattern);
    if (!ok) {
        memory_free(memory, matrix);
        return NULL;
    }
    return matrix;
}

bool gpu_lab_open(gpu_lab *gpu, const engine *runner, bool no_blas)
{
    const memory_space *memory = &runner->memory;
    *gpu = (gpu_lab){.a = NULL};
    if (!memory_device_traits(memory, &gpu->traits)) {
        return false;
    }
    find_memory_limit(gpu, runner->info.device_name);
    gpu_sensors_open(&gpu->sensors, gpu->traits.bus_id);
    if (no_blas || !cublas_open(&gpu->blas, memory_stream(memory))) {
        return true;
    }
    gpu->a = random_matrix(memory, 1);
    gpu->b = random_matrix(memory, 2);
    gpu->c = memory_alloc(memory, (size_t)GEMM_SIZE * GEMM_SIZE * sizeof(uint16_t));
    if (gpu->a == NULL || gpu->b == NULL || gpu->c == NULL) {
        gpu_lab_close(gpu, memory);
        return false;
    }
    return true;
}

void gpu_lab_close(gpu_lab *gpu, const memory_space *memory)
{
    cublas_close(&gpu->blas);
    gpu_sensors_close(&gpu->sensors);
    memory_free(memory, gpu->a);
    memory_free(memory, gpu->b);
    memory_free(memory, gpu->c);
    *gpu = (gpu_lab){.a = NULL};
}

double gpu_tensor_peak(const engine *runner, double megahertz)
{
    return 1e-3 * megahertz * runner->info.num_sms * TENSOR_FLOP_PER_CLOCK;
}

bool gpu_time_graph(const gpu_lab *gpu, const memory_space *memory, void *graph, int64_t times,
                    double expected, double *seconds, gpu_reading *reading)
{
    assert(times > 0);
    *seconds = 0.0;
    bool ok = memory_timer_start(memory);
    for (int64_t i = 0; ok && i < times; i++) {
        ok = memory_graph_run(memory, graph);
    }
    if (ok && reading != NULL && gpu->sensors.library != NULL) {
        sleep_for(0.75 * expected);
        if (!gpu_sensors_read(&gpu->sensors, &reading->megahertz, &reading->watts)) {
            *reading = (gpu_reading){.watts = 0.0};
        }
    }
    ok = ok && memory_timer_stop(memory, seconds);
    *seconds /= (double)times;
    return ok;
}

bool gpu_time_gemm(const gpu_lab *gpu, const memory_space *memory, int64_t times, double *gflops)
{
    const double n = GEMM_SIZE;
    double seconds = 0.0;
    bool ok = memory_timer_start(memory);
    for (int64_t i = 0; ok && i < times; i++) {
        ok = cublas_multiply(&gpu->blas, GEMM_SIZE, gpu->a, gpu->b, gpu->c);
        if (!ok) {
            tool_error("cublasGemmEx failed");
        }
    }
    ok = ok && memory_timer_stop(memory, &seconds);
    *gflops = 2e-9 * n * n * n * (double)times / seconds;
    return ok;
}

void gpu_idle(void)
{
    sleep_for(0.4);
}
