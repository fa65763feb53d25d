/* `mla bench`: what is measured, and the measured numbers. */
#ifndef MLA_CLI_BENCH_H
#define MLA_CLI_BENCH_H

#include "bench_gpu.h"
#include "engine.h"
#include "openblas_baseline.h"
#include "sample_stats.h"

enum { BENCH_MAX_POINTS = 64, BENCH_MAX_REPS = 400 };

/* One line of the table. */
typedef struct bench_point {
    batch_spec spec;
    bool with_dense; /* sparse: also time a dense call over as many tokens */
} bench_point;

typedef struct bench_settings {
    tool_options options;
    double seconds; /* to spend on a point */
    int64_t reps;   /* fixed number of repetitions; 0: as many as fit in `seconds` */
    bool no_blas, no_rotation, no_check;
    uint64_t seed;
} bench_settings;

typedef struct bench_result {
    bench_point point;
    mla_problem problem;
    int64_t keys; /* of a request, when all are equal; else the mean */
    int64_t reps;
    int64_t rotations;   /* copies of the cache that were read in turn */
    sample_stat seconds; /* of one mla_run() */
    double gflops, gbs;  /* from the median */
    double flops_per_byte;
    sample_stat fma_peak;     /* FP32 GFLOP/s in the same seconds; 0: unknown (GPU) */
    sample_stat product_peak; /* bf16 GFLOP/s of the instruction set in use; 0: FP32 is used; of a
                               * GPU's tensor cores at the clock of the runs */
    sample_stat memory;       /* GB/s read */
    double fp32_share;        /* gflops / fma_peak */
    double limit_share;       /* least possible time / time, by the limit that binds */
    const char *limit;        /* "FP32", "bf16", "memory" or "tensor" */
    sample_stat blas;         /* seconds of the OpenBLAS baseline; 0: not run */
    double blas_ratio;        /* its time over ours */
    double dense_ratio; /* time of the dense call over as many tokens, over ours; 0: not run */
    /* GPU. Times are of back-to-back runs on a chip that is warm; burst: of one that idled. */
    bool on_gpu;
    int64_t calls; /* in the CUDA graph that is replayed */
    sample_stat megahertz, watts;
    sample_stat gemm; /* GFLOP/s of cuBLAS between the runs; 0: not run */
    sample_stat burst_seconds, burst_gemm;
    double error_share; /* largest error of the checked rows, as a share of the tolerance */
} bench_result;

/* What is shared by all points of a run. */
typedef struct bench_lab {
    engine runner, reference;
    engine used_isa;         /* CPU: may use nothing but the instruction set in use for bf16 */
    openblas_baseline *blas; /* NULL: none */
    uint8_t *read_memory;    /* larger than the caches, read window by window */
    size_t read_bytes, read_at;
    double clock_ghz;
    gpu_lab gpu; /* all zero on a CPU */
} bench_lab;

bool bench_lab_open(bench_lab *lab, const bench_settings *settings);
void bench_lab_close(bench_lab *lab);

/* Builds, checks and times one point. Prints the reason and returns false on failure. */
bool bench_measure(bench_lab *lab, const bench_settings *settings, const bench_point *point,
                   bench_result *result);

/* Fills `points` with a preset for the backend; returns how many, 0 for an unknown name. */
int32_t bench_preset(const char *name, mla_backend backend, bench_point *points);

void bench_label(const bench_result *result, char *text, size_t size);

void bench_print_header(const bench_lab *lab, const bench_settings *settings);
void bench_print_row(const bench_result *result);
void bench_print_summary(const bench_result *results, int32_t count);
bool bench_write_csv(const char *path, const bench_lab *lab, const bench_result *results,
                     int32_t count);

/* To be asked before the work: prints the reason and returns false. */
bool bench_can_write_json(const char *path);
bool bench_write_json(const char *path, const bench_lab *lab, const bench_result *results,
                      int32_t count);
bool bench_draw(const char *path, const bench_lab *lab, const bench_result *results, int32_t count);

#endif
