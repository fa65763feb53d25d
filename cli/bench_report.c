/* Results of `mla bench` as a table, as CSV, as JSON and as a picture. */
#include "bench.h"
#include "roofline_picture.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MLA_TOOL_JSON
#include <cjson/cJSON.h>
#endif

static const char *op_name(mla_op op)
{
    static const char *const names[] = {"dense", "sparse", "prefill"};
    assert(op >= MLA_OP_DENSE_DECODE && op <= MLA_OP_SPARSE_PREFILL);
    return names[op - 1];
}

static const char *row_format(const mla_problem *problem)
{
    return problem->kv_format == MLA_KV_NATIVE ? tool_dtype_name(problem->dtype)
                                               : tool_format_name(problem->kv_format);
}

void bench_label(const bench_result *result, char *text, size_t size)
{
    const mla_problem *problem = &result->problem;
    snprintf(text, size, "%s %s b %lld, s_q %lld, h_q %lld, %lld keys", op_name(problem->op),
             row_format(problem), (long long)problem->batch, (long long)problem->s_q,
             (long long)problem->h_q, (long long)result->keys);
}

static void print_gpu_header(const bench_lab *lab, bool rotated)
{
    const gpu_lab *gpu = &lab->gpu;
    char l2[32];
    tool_format_bytes((double)gpu->traits.l2_bytes, l2, sizeof l2);
    if (gpu->blas.library != NULL) {
        printf("cuBLAS %d, bf16 8192 x 8192 x 8192, between the blocks of runs", gpu->blas.version);
    } else {
        printf("no cuBLAS");
    }
    printf("; memory limit %.0f GB/s, %s; tensor cores: 4,096 FLOP a clock and multiprocessor\n",
           gpu->memory_gbs, gpu->memory_measured ? "a plain read, measured" : "of the bus");
    printf("%s\n", gpu->sensors.library != NULL
                       ? "SM clock and power are read while the runs of a block go on"
                       : "no NVML: the clock is unknown, the limit is that of the highest clock");
    printf("time: of one call in replays of a CUDA graph of many calls (plan built before), by "
           "events; %s %s.\nSustained: median of blocks of 50 ms after 0.5 s back to back, +- half "
           "the quartile distance. Burst: median of 7 replays\nafter 0.4 s idle.\n\n",
           rotated ? "the caches read in turn exceed twice the L2 of"
                   : "one cache is read again and again, and may stay in the L2 of",
           l2);
    printf("%-6s %-5s %4s %4s %4s %7s | %10s %8s %7s | %10s %6s %8s %7s %7s %11s | %5s %5s | %9s "
           "%6s\n",
           "op", "rows", "b", "s_q", "h_q", "keys", "burst us", "TFLOP/s", "/cuBLAS", "sust. us",
           "+-", "TFLOP/s", "/cuBLAS", "GB/s", "limit", "MHz", "W", "cuBLAS TF", "error");
}

void bench_print_header(const bench_lab *lab, const bench_settings *settings)
{
    char who[256], bytes[32];
    engine_describe(&lab->runner, who, sizeof who);
    if (lab->runner.info.backend == MLA_BACKEND_CUDA) {
        printf("%s\n", who);
        print_gpu_header(lab, !settings->no_rotation);
        return;
    }
    printf("%s", who);
    if (lab->clock_ghz > 0.0) {
        printf(", %.2f GHz at the start", lab->clock_ghz);
    }
    printf("\n");
    if (lab->runner.info.backend == MLA_BACKEND_CPU) {
        tool_format_bytes((double)lab->read_bytes, bytes, sizeof bytes);
        printf("peaks and memory speed are measured between the runs, memory over %s; ", bytes);
        if (lab->blas != NULL) {
            printf("baseline: %s\n", openblas_version(lab->blas));
        } else {
            printf("no baseline%s\n",
                   settings->no_blas ? "" : ": OpenBLAS is not installed (Debian: libopenblas0)");
        }
    }
    printf("time: median of runs after a warm-up of 0.1 s, +- half the quartile distance; the "
           "cache is read from copies in turn\n\n");
    printf("%-8s %-8s %5s %5s %4s %7s %10s %6s %9s %7s %9s %6s %14s %8s %8s %6s\n", "op", "rows",
           "b", "s_q", "h_q", "keys", "time us", "+-", "GFLOP/s", "GB/s", "FP32 peak", "share",
           "limit", "/OpenBLAS", "/dense", "error");
}

/* Ratios that were not measured print as a dash. */
static void ratio_text(double ratio, char text[16])
{
    if (ratio > 0.0) {
        snprintf(text, 16, "%.2f", ratio);
    } else {
        snprintf(text, 16, "-");
    }
}

/* Speed of ours over that of cuBLAS; 0 when that was not measured. */
static double gemm_ratio(double flops, sample_stat seconds, sample_stat gemm)
{
    return gemm.median > 0.0 ? flops / seconds.median * 1e-9 / gemm.median : 0.0;
}

static void print_gpu_row(const bench_result *result)
{
    const mla_problem *problem = &result->problem;
    double flops = result->gflops * 1e9 * result->seconds.median;
    char burst[16], sustained[16], limit[32], megahertz[16] = "-", watts[16] = "-", gemm[32] = "-";
    ratio_text(gemm_ratio(flops, result->burst_seconds, result->burst_gemm), burst);
    ratio_text(gemm_ratio(flops, result->seconds, result->gemm), sustained);
    snprintf(limit, sizeof limit, "%.0f%% %s", 100.0 * result->limit_share, result->limit);
    if (result->megahertz.median > 0.0) {
        snprintf(megahertz, sizeof megahertz, "%.0f", result->megahertz.median);
        snprintf(watts, sizeof watts, "%.0f", result->watts.median);
    }
    if (result->gemm.median > 0.0) {
        snprintf(gemm, sizeof gemm, "%.0f %.0f", 1e-3 * result->burst_gemm.median,
                 1e-3 * result->gemm.median);
    }
    printf("%-6s %-5s %4lld %4lld %4lld %7lld | %10.1f %8.1f %7s | %10.1f %5.1f%% %8.1f %7s %7.0f "
           "%11s | %5s %5s | %9s %6.2f\n",
           op_name(problem->op), row_format(problem), (long long)problem->batch,
           (long long)problem->s_q, (long long)problem->h_q, (long long)result->keys,
           1e6 * result->burst_seconds.median, 1e-12 * flops / result->burst_seconds.median, burst,
           1e6 * result->seconds.median, 100.0 * result->seconds.spread, 1e-3 * result->gflops,
           sustained, result->gbs, limit, megahertz, watts, gemm, result->error_share);
    fflush(stdout);
}

void bench_print_row(const bench_result *result)
{
    const mla_problem *problem = &result->problem;
    if (result->on_gpu) {
        print_gpu_row(result);
        return;
    }
    char blas[16], dense[16], peak[16] = "-", share[16] = "-", limit[40] = "-";
    ratio_text(result->blas_ratio, blas);
    ratio_text(result->dense_ratio, dense);
    if (result->fma_peak.median > 0.0) {
        snprintf(peak, sizeof peak, "%.0f", result->fma_peak.median);
        snprintf(share, sizeof share, "%.0f%%", 100.0 * result->fp32_share);
        snprintf(limit, sizeof limit, "%.0f%% %s", 100.0 * result->limit_share, result->limit);
    }
    printf("%-8s %-8s %5lld %5lld %4lld %7lld %10.1f %5.1f%% %9.1f %7.1f %9s %6s %14s %8s %8s "
           "%6.2f\n",
           op_name(problem->op), row_format(problem), (long long)problem->batch,
           (long long)problem->s_q, (long long)problem->h_q, (long long)result->keys,
           1e6 * result->seconds.median, 100.0 * result->seconds.spread, result->gflops,
           result->gbs, peak, share, limit, blas, dense, result->error_share);
    fflush(stdout);
}

static double mean_of(const bench_result *results, int32_t count, size_t offset)
{
    double sum = 0.0;
    for (int32_t i = 0; i < count; i++) {
        sample_stat stat;
        memcpy(&stat, (const uint8_t *)&results[i] + offset, sizeof stat);
        sum += stat.median;
    }
    return sum / count;
}

static void print_gpu_summary(const bench_result *results, int32_t count)
{
    printf("\nTFLOP/s: 2 h_q (d_qk + d_v) a key and query token. GB/s: cache, queries and output "
           "once. /cuBLAS: our TFLOP/s over its.\nlimit: least possible time over sustained "
           "time, by the limit that binds: memory, or the tensor cores at the clock of\nthe runs. "
           "W: averaged by the driver, over our runs and cuBLAS's. error: largest of the checked "
           "rows, 1 is the tolerance.\nblocks of a line: %lld to %lld; calls in its graph: %lld "
           "to %lld\n",
           (long long)results[0].reps, (long long)results[count - 1].reps,
           (long long)results[0].calls, (long long)results[count - 1].calls);
}

void bench_print_summary(const bench_result *results, int32_t count)
{
    if (results[0].on_gpu) {
        print_gpu_summary(results, count);
        return;
    }
    double product = mean_of(results, count, offsetof(bench_result, product_peak));
    double memory = mean_of(results, count, offsetof(bench_result, memory));
    printf("\nshare: of the FP32 multiply-add peak. limit: least possible time over time, by the "
           "limit that binds.\n/OpenBLAS and /dense: their time over ours. error: largest of the "
           "checked rows, 1 is the tolerance.\n");
    if (memory > 0.0) {
        printf("memory read: %.1f GB/s", memory);
        if (product > 0.0) {
            printf("; bf16 products: %.0f GFLOP/s", product);
        }
        printf("; runs of a line: %lld to %lld\n", (long long)results[0].reps,
               (long long)results[count - 1].reps);
    }
}

/* Names and values of a result, shared by CSV and JSON. */
typedef struct number_field {
    const char *name;
    double value;
} number_field;

enum { NUMBER_FIELDS = 30 };

/* What was not measured is 0 in a result: an empty field in CSV, null in JSON. */
static double measured(double value)
{
    return value > 0.0 ? value : NAN;
}

static void number_fields(const bench_result *result, number_field fields[NUMBER_FIELDS])
{
    const mla_problem *problem = &result->problem;
    double flops = result->gflops * 1e9 * result->seconds.median;
    const number_field all[NUMBER_FIELDS] = {
        {"batch", (double)problem->batch},
        {"s_q", (double)problem->s_q},
        {"h_q", (double)problem->h_q},
        {"h_kv", (double)problem->h_kv},
        {"d_qk", (double)problem->d_qk},
        {"page_size", (double)problem->page_size},
        {"topk", (double)problem->topk},
        {"keys", (double)result->keys},
        {"repetitions", (double)result->reps},
        {"cache_copies", (double)result->rotations},
        {"microseconds", 1e6 * result->seconds.median},
        {"spread", result->seconds.spread},
        {"gflops", result->gflops},
        {"gbytes_per_s", result->gbs},
        {"flops_per_byte", result->flops_per_byte},
        {"fp32_peak_gflops", measured(result->fma_peak.median)},
        {"bf16_peak_gflops", measured(result->product_peak.median)},
        {"memory_gbytes_per_s", measured(result->memory.median)},
        {"fp32_share", measured(result->fp32_share)},
        {"limit_share", measured(result->limit_share)},
        {"openblas_ratio", measured(result->blas_ratio)},
        {"dense_ratio", measured(result->dense_ratio)},
        {"error_of_tolerance", result->error_share},
        {"burst_microseconds", measured(1e6 * result->burst_seconds.median)},
        {"sm_megahertz", measured(result->megahertz.median)},
        {"watts", measured(result->watts.median)},
        {"cublas_gflops", measured(result->gemm.median)},
        {"cublas_burst_gflops", measured(result->burst_gemm.median)},
        {"cublas_ratio", measured(gemm_ratio(flops, result->seconds, result->gemm))},
        {"cublas_burst_ratio",
         measured(gemm_ratio(flops, result->burst_seconds, result->burst_gemm))}};
    memcpy(fields, all, sizeof all);
}

static bool finish_file(FILE *file, const char *path)
{
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        tool_error("cannot write %s", path);
        return false;
    }
    return true;
}

bool bench_write_csv(const char *path, const bench_lab *lab, const bench_result *results,
                     int32_t count)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        tool_error("cannot write %s", path);
        return false;
    }
    const mla_info *info = &lab->runner.info;
    number_field fields[NUMBER_FIELDS];
    fprintf(file, "backend,isa,threads,clock_ghz,op,rows,limit");
    for (int32_t i = 0; i < count; i++) {
        number_fields(&results[i], fields);
        for (int f = 0; i == 0 && f < NUMBER_FIELDS; f++) {
            fprintf(file, ",%s", fields[f].name);
        }
        bool cpu = info->backend == MLA_BACKEND_CPU;
        fprintf(file, "\n%s,%s,%d,%.3f,%s,%s,%s", tool_backend_name(info->backend),
                cpu ? mla_isa_name(info->isa_used) : "-", info->num_threads, lab->clock_ghz,
                op_name(results[i].problem.op), row_format(&results[i].problem), results[i].limit);
        for (int f = 0; f < NUMBER_FIELDS; f++) {
            fputc(',', file);
            if (!isnan(fields[f].value)) {
                fprintf(file, "%.6g", fields[f].value);
            }
        }
    }
    fprintf(file, "\n");
    return finish_file(file, path);
}

#if MLA_TOOL_JSON
bool bench_can_write_json(const char *path)
{
    return tool_can_write(path);
}

bool bench_write_json(const char *path, const bench_lab *lab, const bench_result *results,
                      int32_t count)
{
    const mla_info *info = &lab->runner.info;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "device", info->device_name);
    cJSON_AddStringToObject(root, "backend", tool_backend_name(info->backend));
    if (info->backend == MLA_BACKEND_CPU) {
        cJSON_AddStringToObject(root, "isa", mla_isa_name(info->isa_used));
        cJSON_AddNumberToObject(root, "threads", info->num_threads);
        cJSON_AddNumberToObject(root, "clock_ghz", lab->clock_ghz);
    }
    cJSON_AddNumberToObject(root, "version_number", mla_version());
    cJSON *list = cJSON_AddArrayToObject(root, "results");
    for (int32_t i = 0; i < count; i++) {
        number_field fields[NUMBER_FIELDS];
        cJSON *item = cJSON_CreateObject();
        number_fields(&results[i], fields);
        cJSON_AddStringToObject(item, "op", op_name(results[i].problem.op));
        cJSON_AddStringToObject(item, "rows", row_format(&results[i].problem));
        cJSON_AddStringToObject(item, "limit", results[i].limit);
        for (int f = 0; f < NUMBER_FIELDS; f++) {
            cJSON_AddNumberToObject(item, fields[f].name, fields[f].value);
        }
        cJSON_AddItemToArray(list, item);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    FILE *file = text != NULL ? fopen(path, "w") : NULL;
    if (file == NULL) {
        tool_error("cannot write %s", path);
        cJSON_free(text);
        return false;
    }
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return finish_file(file, path);
}

#else

bool bench_can_write_json(const char *path)
{
    tool_error("%s: JSON output was not built in, since cJSON was missing; --csv works", path);
    return false;
}

bool bench_write_json(const char *path, const bench_lab *lab, const bench_result *results,
                      int32_t count)
{
    (void)lab;
    (void)results;
    (void)count;
    return bench_can_write_json(path);
}

#endif

bool bench_draw(const char *path, const bench_lab *lab, const bench_result *results, int32_t count)
{
    bool on_gpu = results[0].on_gpu;
    if (!on_gpu && results[0].fma_peak.median <= 0.0) {
        tool_error("no picture: the limits of this device are not measured");
        return false;
    }
    roofline_point *points = tool_alloc((size_t)count, sizeof *points);
    for (int32_t i = 0; i < count; i++) {
        char label[72];
        bench_label(&results[i], label, sizeof label);
        snprintf(points[i].label, sizeof points[i].label, "%s: %.0f GFLOP/s", label,
                 results[i].gflops);
        points[i].flops_per_byte = results[i].flops_per_byte;
        points[i].gflops = results[i].gflops;
    }
    char subtitle[320], who[256], peak[96], product[96];
    double peak_gflops = mean_of(results, count, offsetof(bench_result, fma_peak));
    double product_gflops = mean_of(results, count, offsetof(bench_result, product_peak));
    double memory_gbs = mean_of(results, count, offsetof(bench_result, memory));
    engine_describe(&lab->runner, who, sizeof who);
    if (on_gpu) {
        double gemm = mean_of(results, count, offsetof(bench_result, gemm));
        peak_gflops = gemm > 0.0 ? gemm : product_gflops;
        snprintf(subtitle, sizeof subtitle, "%s, sustained, mean SM clock %.0f MHz", who,
                 mean_of(results, count, offsetof(bench_result, megahertz)));
        snprintf(peak, sizeof peak, "limit: %.0f GB/s %s, %s", memory_gbs,
                 lab->gpu.memory_measured ? "read" : "of the bus",
                 gemm > 0.0 ? "cuBLAS bf16 8192^3" : "tensor cores");
        snprintf(product, sizeof product, "limit: %.0f GFLOP/s of the tensor cores",
                 product_gflops);
    } else {
        snprintf(subtitle, sizeof subtitle, "%s, %.2f GHz", who, lab->clock_ghz);
        snprintf(peak, sizeof peak, "limit: %.1f GB/s read, %.0f GFLOP/s FP32", memory_gbs,
                 peak_gflops);
        snprintf(product, sizeof product, "limit: %.0f GFLOP/s bf16 products", product_gflops);
    }
    roofline picture = {.title = "libmla: measured speed under the limits of the machine",
                        .subtitle = subtitle,
                        .peak_gflops = peak_gflops,
                        .peak_label = peak,
                        .product_gflops = product_gflops,
                        .product_label = product,
                        .memory_gbs = memory_gbs,
                        .points = points,
                        .num_points = count};
    bool ok = roofline_draw(path, &picture);
    free(points);
    return ok;
}
