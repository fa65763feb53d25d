/*
 * Times the CPU kernels job by job, without driver and plan: GFLOP/s of decode over
 * random pages or random slots, one request a job, the jobs dealt out to the threads.
 *
 * Usage: time_cpu_jobs [threads] [query rows] [keys] [kernel]
 */
#include "cpu_features.h"
#include "formats.h"
#include "kernels.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 64, DISTINCT_ROWS = 509, REQUESTS_A_THREAD = 4, ROUNDS = 5 };

typedef struct bench_set {
    const char *name;
    mla_kv_format kv_format;
    bool sparse;
    float scale_factor; /* FP8 rows: what the writer's scales, powers of two, are multiplied by */
    int64_t d_qk, row_bytes, num_slots, num_keys;
    int32_t rows, num_requests;
    uint8_t *pool;
    int32_t *lists; /* block tables or indices, of each request */
    uint16_t *q;
    float *out;
} bench_set;

static uint64_t random_state = 7;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void random_values(int64_t count, uint16_t *values)
{
    for (int64_t i = 0; i < count; i++) {
        double u = (random_bits() + 1.0) / 4294967297.0, v = random_bits() / 4294967296.0;
        values[i] = mla_f32_to_bf16((float)(0.1 * sqrt(-2.0 * log(u)) * cos(6.2831853 * v)));
    }
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return memory;
}

static void fill_pool(bench_set *set)
{
    uint8_t *distinct = allocate((size_t)(DISTINCT_ROWS * set->row_bytes));
    for (int64_t i = 0; i < DISTINCT_ROWS; i++) {
        uint16_t values[MLA_D_QK_MAX];
        random_values(set->d_qk, values);
        uint8_t *row = distinct + i * set->row_bytes;
        mla_row_encode(set->kv_format, set->d_qk, values, row, row + MLA_FP8_656_SCALES_AT);
        for (int j = 0; j < 4 && set->kv_format == MLA_KV_FP8_656; j++) {
            float scale;
            memcpy(&scale, row + MLA_FP8_656_SCALES_AT + 4 * j, sizeof scale);
            scale *= set->scale_factor;
            memcpy(row + MLA_FP8_656_SCALES_AT + 4 * j, &scale, sizeof scale);
        }
    }
#pragma omp parallel for
    for (int64_t slot = 0; slot < set->num_slots; slot++) {
        memcpy(set->pool + slot * set->row_bytes, distinct + slot % DISTINCT_ROWS * set->row_bytes,
               (size_t)set->row_bytes);
    }
    free(distinct);
}

static bench_set make_set(bench_set set, int32_t rows, int64_t num_keys, int threads)
{
    set.rows = rows;
    set.num_keys = num_keys;
    set.d_qk = 576;
    set.num_requests = threads * REQUESTS_A_THREAD;
    set.row_bytes = set.kv_format == MLA_KV_FP8_656 ? MLA_FP8_656_BYTES : set.d_qk * 2;
    int64_t pages = (num_keys + PAGE - 1) / PAGE;
    set.num_slots = set.num_requests * pages * PAGE;
    set.pool = allocate((size_t)(set.num_slots * set.row_bytes));
    fill_pool(&set);
    int64_t entries = set.sparse ? num_keys : pages;
    set.lists = allocate((size_t)(set.num_requests * entries) * sizeof *set.lists);
    for (int64_t i = 0; i < set.num_requests * entries; i++) {
        int64_t limit = set.sparse ? set.num_slots : set.num_requests * pages;
        set.lists[i] = (int32_t)(random_bits() % (uint64_t)limit);
    }
    set.q = allocate((size_t)(set.num_requests * rows * set.d_qk) * sizeof *set.q);
    random_values(set.num_requests * rows * set.d_qk, set.q);
    set.out = allocate((size_t)set.num_requests * (size_t)rows * MLA_D_V * sizeof *set.out);
    return set;
}

static void attend(const bench_set *set, const mla_cpu_kernel *kernel, int32_t request,
                   void *scratch)
{
    int64_t pages = (set->num_keys + PAGE - 1) / PAGE;
    mla_key_rows keys = {.kv_format = set->kv_format,
                         .dtype = MLA_DTYPE_BF16,
                         .d_qk = set->d_qk,
                         .num_keys = {set->num_keys, 0}};
    keys.pool[0] = (mla_key_pool){set->pool, PAGE * set->row_bytes, set->row_bytes, PAGE,
                                  set->num_slots};
    if (set->sparse) {
        keys.indices[0] = set->lists + request * set->num_keys;
    } else {
        keys.block_table = set->lists + request * pages;
    }
    const uint16_t *q_rows[MLA_CPU_TILE_ROWS];
    double lse[MLA_CPU_TILE_ROWS];
    float row_max[MLA_CPU_TILE_ROWS];
    for (int32_t row = 0; row < set->rows; row++) {
        q_rows[row] = set->q + (request * set->rows + row) * set->d_qk;
    }
    mla_cpu_job job = {.keys = &keys,
                       .key_end = set->num_keys,
                       .rows = set->rows,
                       .q_rows = q_rows,
                       .scale = 1.0f / 24.0f,
                       .scratch = scratch,
                       .out = set->out + (int64_t)request * set->rows * MLA_D_V,
                       .out_stride = MLA_D_V,
                       .lse = lse,
                       .row_max = row_max};
    kernel->attend(&job);
}

/* GFLOP/s of one pass over all requests, best of the rounds and median of them. */
static void time_kernel(const bench_set *set, const mla_cpu_kernel *kernel, const char *name,
                        int threads)
{
    double rates[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
        {
            void *scratch = allocate(kernel->scratch_bytes);
#pragma omp for schedule(static)
            for (int32_t request = 0; request < set->num_requests; request++) {
                attend(set, kernel, request, scratch);
            }
            free(scratch);
        }
        double seconds = omp_get_wtime() - start;
        if (round >= 0) {
            rates[round] = 2e-9 * set->num_requests * set->rows * (double)set->num_keys *
                           (double)(set->d_qk + MLA_D_V) / seconds;
        }
    }
    for (int i = 1; i < ROUNDS; i++) {
        for (int j = i; j > 0 && rates[j - 1] > rates[j]; j--) {
            double swap = rates[j];
            rates[j] = rates[j - 1];
            rates[j - 1] = swap;
        }
    }
    printf("%-12s %-23s rows %3d keys %5d threads %2d: median %8.1f best %8.1f GFLOP/s\n", name,
           set->name, set->rows, (int)set->num_keys, threads, rates[ROUNDS / 2], rates[ROUNDS - 1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        const mla_cpu_kernel *kernel;
        const char *name;
    } kernels[] = {{&mla_amx_bf16_kernel, "amx_bf16"},
                   {&mla_avx512_bf16_kernel, "avx512_bf16"},
                   {&mla_avx512_kernel, "avx512"}};
    int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    int32_t rows = argc > 2 ? atoi(argv[2]) : 128;
    int64_t num_keys = argc > 3 ? atoll(argv[3]) : 4096;
    const char *only = argc > 4 ? argv[4] : NULL;
    if (threads < 1 || rows < 1 || num_keys < 1) {
        printf(
            "usage: time_cpu_jobs [threads] [query rows] [keys] [amx_bf16|avx512_bf16|avx512]\n");
        return 1;
    }
    static const bench_set sets[] = {
        {.name = "dense bf16", .kv_format = MLA_KV_NATIVE},
        {.name = "sparse bf16", .kv_format = MLA_KV_NATIVE, .sparse = true},
        {.name = "sparse fp8_656", .kv_format = MLA_KV_FP8_656, .sparse = true, .scale_factor = 1},
        {.name = "sparse fp8_656 scale/3",
         .kv_format = MLA_KV_FP8_656,
         .sparse = true,
         .scale_factor = 1.0f / 3}};
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        bench_set set = make_set(sets[s], rows, num_keys, threads);
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
            if (kernels[i].kernel->available() &&
                (only == NULL || strcmp(only, kernels[i].name) == 0)) {
                time_kernel(&set, kernels[i].kernel, kernels[i].name, threads);
            }
        }
        free(set.pool);
        free(set.lists);
        free(set.q);
        free(set.out);
    }
    return 0;
}
