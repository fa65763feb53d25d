#include "bench.h"
#include "fma_peak.h"
#include "row_sample.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    D_V = 512,
    MIN_REPS = 5,
    CHECKED_ROWS = 6,
    MAX_ROTATIONS = 512,
    READ_WINDOW = 64 << 20 /* bytes of a measurement of the memory */
};

static const size_t rotation_bytes_most = (size_t)1 << 30;
static const double warm_up_seconds = 0.1, peak_seconds_least = 0.004, peak_seconds_most = 0.1;

/* GPU: a graph, a block of graphs that makes one sample, and the time until the clock has fallen
 * to what the chip's power allows. */
static const double graph_seconds = 0.002, block_seconds = 0.05, gpu_warm_up_seconds = 0.5;
enum { GRAPH_MAX_CALLS = 512, BURST_RUNS = 7, GEMMS_A_BLOCK = 10 };

/* Samples of one quantity. */
typedef struct samples {
    double values[BENCH_MAX_REPS];
    int32_t count;
} samples;

static void add_sample(samples *list, double value)
{
    if (list->count < BENCH_MAX_REPS) {
        list->values[list->count++] = value;
    }
}

static sample_stat stat_of(samples *list)
{
    return sample_stat_of(list->values, list->count);
}

bool bench_lab_open(bench_lab *lab, const bench_settings *settings)
{
    *lab = (bench_lab){.blas = NULL};
    tool_options reference = {.backend = MLA_BACKEND_CPU,
                              .num_threads = settings->options.num_threads,
                              .isa_mask = MLA_ISA_REFERENCE};
    if (!engine_open(&lab->runner, &settings->options)) {
        return false;
    }
    if (!engine_open(&lab->reference, &reference)) {
        engine_close(&lab->runner);
        return false;
    }
    if (lab->runner.info.backend == MLA_BACKEND_CPU) {
        tool_options only = settings->options;
        only.isa_mask = (uint32_t)lab->runner.info.isa_used;
        if (!engine_open(&lab->used_isa, &only)) {
            bench_lab_close(lab);
            return false;
        }
        /* Twice the last level, so that no line of a pass is still there in the next. */
        size_t wanted = 2 * last_level_cache_bytes();
        lab->read_bytes = wanted < rotation_bytes_most ? wanted : rotation_bytes_most;
        lab->read_memory = memory_alloc(&lab->runner.memory, lab->read_bytes);
        if (lab->read_memory == NULL) {
            bench_lab_close(lab);
            return false;
        }
        memset(lab->read_memory, 0x3c, lab->read_bytes);
        lab->blas = settings->no_blas ? NULL : openblas_open(lab->runner.info.isa_available);
        lab->clock_ghz = clock_measure(0.02);
    } else if (!gpu_lab_open(&lab->gpu, &lab->runner, settings->no_blas)) {
        bench_lab_close(lab);
        return false;
    }
    return true;
}

void bench_lab_close(bench_lab *lab)
{
    openblas_close(lab->blas);
    gpu_lab_close(&lab->gpu, &lab->runner.memory);
    memory_free(&lab->runner.memory, lab->read_memory);
    if (lab->used_isa.ctx != NULL) {
        engine_close(&lab->used_isa);
    }
    engine_close(&lab->reference);
    engine_close(&lab->runner);
}

/* One timed subject: a job whose cache is read from several copies in turn. */
typedef struct subject {
    batch input;
    batch_outputs outputs;
    job work;
    uint8_t *copies; /* of the pool; NULL when there is one only */
    int64_t rotations;
    size_t pool_bytes;
    void *graph; /* GPU: of `calls` runs, which read the copies in turn */
    int64_t calls;
    samples seconds;
} subject;

/* Makes enough copies of the cache that a run does not find the rows of the last in the caches. */
static bool rotate_cache(subject *one, const bench_settings *settings, size_t cache_bytes)
{
    const memory_space *memory = &one->work.runner->memory;
    const guarded_memory *pool = &one->input.memory[TENSOR_KV];
    size_t wanted = 2 * cache_bytes;
    wanted = wanted < rotation_bytes_most ? wanted : rotation_bytes_most;
    one->rotations = 1;
    one->pool_bytes = (pool->bytes + 255) / 256 * 256;
    if (settings->no_rotation || one->pool_bytes == 0) {
        return true;
    }
    /* A sparse job reads a part of its pool only. */
    size_t read = (size_t)one->input.kv_bytes;
    read = read == 0 || read > one->pool_bytes ? one->pool_bytes : read;
    size_t copies_most = rotation_bytes_most / one->pool_bytes;
    copies_most = copies_most < MAX_ROTATIONS ? copies_most : MAX_ROTATIONS;
    size_t copies = (wanted + read - 1) / read;
    copies = copies < copies_most ? copies : copies_most;
    if (copies < 2) {
        return true;
    }
    one->copies = memory_alloc(memory, copies * one->pool_bytes);
    for (size_t i = 0; one->copies != NULL && i < copies; i++) {
        if (!memory_upload(memory, one->copies + i * one->pool_bytes, pool->data, pool->bytes)) {
            return false;
        }
    }
    one->rotations = (int64_t)copies;
    return one->copies != NULL;
}

static void select_copy(subject *one, int64_t rep)
{
    if (one->copies != NULL) {
        one->work.tensors.kv.data = one->copies + (size_t)(rep % one->rotations) * one->pool_bytes;
    }
}

static void subject_close(subject *one)
{
    if (one->work.runner != NULL) {
        memory_graph_free(&one->work.runner->memory, one->graph);
        memory_free(&one->work.runner->memory, one->copies);
    }
    job_close(&one->work);
    batch_outputs_free(&one->outputs);
    batch_free(&one->input);
}

/* Times one run on a copy of the cache. */
static bool subject_time(subject *one, int64_t rep, double *seconds)
{
    const memory_space *memory = &one->work.runner->memory;
    select_copy(one, rep);
    if (!memory_timer_start(memory)) {
        return false;
    }
    mla_status status = job_run(&one->work);
    if (status != MLA_OK) {
        tool_library_error("mla_run", status);
        return false;
    }
    return memory_timer_stop(memory, seconds);
}

/* About so many runs as take graph_seconds, and as many on each copy of the cache: a replay must
 * not begin with what the last one ended on. */
static bool record_graph(subject *one)
{
    const memory_space *memory = &one->work.runner->memory;
    double seconds = 0.0;
    if (!subject_time(one, 0, &seconds) || !subject_time(one, 1, &seconds)) {
        return false;
    }
    double wanted = fmin(graph_seconds / fmax(seconds, 1e-7), GRAPH_MAX_CALLS);
    one->calls = (int64_t)ceil(wanted / (double)one->rotations) * one->rotations;
    mla_status status = MLA_OK;
    bool ok = memory_graph_start(memory);
    for (int64_t i = 0; ok && status == MLA_OK && i < one->calls; i++) {
        select_copy(one, i);
        status = job_run(&one->work);
    }
    if (status != MLA_OK) {
        tool_library_error("mla_run while a CUDA graph is recorded", status);
    }
    return ok && memory_graph_stop(memory, &one->graph) && status == MLA_OK;
}

static bool subject_open(subject *one, bench_lab *lab, const bench_settings *settings,
                         const batch_spec *spec)
{
    batch_spec aligned = *spec;
    aligned.alignment = 64;
    aligned.plain_scales = true;
    memset(one, 0, sizeof *one);
    if (!batch_build(&one->input, &aligned, settings->seed) ||
        !batch_outputs_alloc(&one->outputs, &one->input)) {
        return false;
    }
    mla_status status = job_open(&one->work, &lab->runner, &one->input, &one->outputs);
    status = status == MLA_OK ? job_plan(&one->work) : status;
    status = status == MLA_OK ? job_run(&one->work) : status;
    if (status != MLA_OK) {
        tool_library_error("this shape does not run here", status);
        return false;
    }
    bool on_gpu = lab->runner.info.backend == MLA_BACKEND_CUDA;
    size_t cache_bytes = on_gpu ? lab->gpu.traits.l2_bytes : last_level_cache_bytes();
    return job_fetch(&one->work) && rotate_cache(one, settings, cache_bytes) &&
           (!on_gpu || record_graph(one));
}

/* Everything that is measured in turn, one sample of each in a repetition. */
typedef struct session {
    bench_lab *lab;
    const bench_settings *settings;
    subject main, dense;
    bool has_dense, has_blas;
    uint16_t *blas_out;
    samples fma, product, memory, blas;
    samples megahertz, watts, gemm, burst, burst_gemm; /* GPU */
} session;

static bool measure_blas(session *run, int64_t rep, double *seconds)
{
    select_copy(&run->main, rep);
    double start = tool_now();
    bool ok = openblas_run(run->lab->blas, &run->main.work.problem, &run->main.work.tensors,
                           run->blas_out, run->lab->runner.info.num_threads);
    *seconds = tool_now() - start;
    return ok;
}

/* Reads the next window of a memory that is larger than the caches, so that none of it is there. */
static double measure_memory(bench_lab *lab)
{
    if (lab->read_at + READ_WINDOW > lab->read_bytes) {
        lab->read_at = 0;
    }
    size_t bytes = READ_WINDOW < lab->read_bytes ? READ_WINDOW : lab->read_bytes;
    double gbs = memory_read_measure(lab->read_memory + lab->read_at, bytes,
                                     lab->runner.info.num_threads);
    lab->read_at += READ_WINDOW;
    return gbs;
}

/*
 * How long to run the multiply-adds: as long as the kernel ran. A burst of a few milliseconds would
 * show a speed that a shared or power-limited machine does not keep up for the kernel either.
 */
static double peak_seconds(const session *run)
{
    const samples *kernel = &run->main.seconds;
    double seconds = kernel->count > 0 ? kernel->values[kernel->count - 1] : peak_seconds_most;
    return fmin(fmax(seconds, peak_seconds_least), peak_seconds_most);
}

/* A block of replays of a subject's graph; adds the time of one of its calls. */
static bool measure_graph(session *run, subject *one, samples *seconds, gpu_reading *reading)
{
    const memory_space *memory = &run->lab->runner.memory;
    /* By the last block; the first one is as long as a graph should be. */
    double graph = graph_seconds, measured = 0.0;
    if (seconds->count > 0) {
        graph = seconds->values[seconds->count - 1] * (double)one->calls;
    }
    int64_t times = (int64_t)fmax(block_seconds / graph, 1.0);
    if (!gpu_time_graph(&run->lab->gpu, memory, one->graph, times, (double)times * graph, &measured,
                        reading)) {
        return false;
    }
    add_sample(seconds, measured / (double)one->calls);
    return true;
}

/* One sample of everything on a GPU: a block of our runs, then a block of cuBLAS's. */
static bool measure_gpu_once(session *run)
{
    bench_lab *lab = run->lab;
    gpu_reading reading = {0.0, 0.0};
    if (!measure_graph(run, &run->main, &run->main.seconds, &reading) ||
        (run->has_dense && !measure_graph(run, &run->dense, &run->dense.seconds, NULL))) {
        return false;
    }
    if (reading.megahertz > 0.0) {
        add_sample(&run->megahertz, reading.megahertz);
        add_sample(&run->watts, reading.watts);
    }
    double gflops = 0.0;
    if (lab->gpu.blas.library != NULL) {
        if (!gpu_time_gemm(&lab->gpu, &lab->runner.memory, GEMMS_A_BLOCK, &gflops)) {
            return false;
        }
        add_sample(&run->gemm, gflops);
    }
    return true;
}

/* Single graphs of a chip that idled, then single products of cuBLAS's after it idled again. */
static bool measure_bursts(session *run)
{
    bench_lab *lab = run->lab;
    const memory_space *memory = &lab->runner.memory;
    double value = 0.0;
    gpu_idle();
    for (int i = 0; i < BURST_RUNS; i++) {
        if (!gpu_time_graph(&lab->gpu, memory, run->main.graph, 1, 0.0, &value, NULL)) {
            return false;
        }
        add_sample(&run->burst, value / (double)run->main.calls);
    }
    if (lab->gpu.blas.library != NULL) {
        gpu_idle();
        for (int i = 0; i < BURST_RUNS; i++) {
            if (!gpu_time_gemm(&lab->gpu, memory, 1, &value)) {
                return false;
            }
            add_sample(&run->burst_gemm, value);
        }
    }
    return true;
}

/* Until the machine runs as it will while it is measured. */
static bool warm_up(session *run)
{
    bool ok = true;
    if (run->lab->runner.info.backend == MLA_BACKEND_CUDA) {
        samples unused = {.count = 0};
        double start = tool_now();
        while (ok && tool_now() - start < gpu_warm_up_seconds) {
            ok = measure_graph(run, &run->main, &unused, NULL);
        }
        return ok;
    }
    double seconds = 0.0, warm = 0.0;
    for (int64_t rep = 0; ok && warm < warm_up_seconds; rep++) {
        ok = subject_time(&run->main, rep, &seconds);
        warm += fmax(seconds, 1e-6);
    }
    return ok;
}

static bool measure_once(session *run, int64_t rep)
{
    const mla_info *info = &run->lab->runner.info;
    double seconds;
    if (info->backend == MLA_BACKEND_CUDA) {
        return measure_gpu_once(run);
    }
    mla_isa fp32 = fma_peak_fp32_isa(info->isa_used);
    double window = peak_seconds(run);
    add_sample(&run->fma, fma_peak_measure(fp32, info->num_threads, window));
    if (fp32 != info->isa_used) {
        add_sample(&run->product, fma_peak_measure(info->isa_used, info->num_threads, window));
    }
    add_sample(&run->memory, measure_memory(run->lab));
    if (!subject_time(&run->main, rep, &seconds)) {
        return false;
    }
    add_sample(&run->main.seconds, seconds);
    if (run->has_dense) {
        if (!subject_time(&run->dense, rep, &seconds)) {
            return false;
        }
        add_sample(&run->dense.seconds, seconds);
    }
    if (run->has_blas) {
        if (!measure_blas(run, rep, &seconds)) {
            return false;
        }
        add_sample(&run->blas, seconds);
    }
    return true;
}

/* The baseline must compute the same thing, or its time says nothing. */
static bool blas_agrees(const session *run)
{
    const batch *input = &run->main.input;
    mla_tensors ours = batch_host_tensors(input, &run->main.outputs);
    mla_tensors theirs = ours;
    theirs.out = run->blas_out;
    comparison compared;
    row_range all = {0, input->problem.batch, 0, input->problem.s_q, 0, input->problem.h_q};
    compare_rows(input, &ours, &theirs, &all, NULL, &compared);
    if (compared.out_norm > 1e-2) {
        tool_error("the OpenBLAS baseline gives another answer (%.1e); it is left out",
                   compared.out_norm);
        return false;
    }
    return true;
}

static bool open_session(session *run, const bench_point *point)
{
    bench_lab *lab = run->lab;
    if (!subject_open(&run->main, lab, run->settings, &point->spec)) {
        return false;
    }
    const mla_problem *problem = &run->main.input.problem;
    run->has_dense = point->with_dense && problem->op == MLA_OP_SPARSE_DECODE;
    if (run->has_dense) {
        batch_spec dense = {.op = MLA_OP_DENSE_DECODE,
                            .dtype = problem->dtype,
                            .batch = problem->batch * problem->s_q,
                            .h_q = problem->h_q,
                            .h_kv = problem->h_kv,
                            .d_qk = problem->d_qk,
                            .len_min = problem->topk,
                            .len_max = problem->topk};
        if (!subject_open(&run->dense, lab, run->settings, &dense)) {
            return false;
        }
    }
    run->has_blas = lab->blas != NULL && openblas_serves(problem);
    if (run->has_blas) {
        double unused;
        run->blas_out = tool_alloc((size_t)(problem->batch * problem->s_q * problem->h_q), D_V * 2);
        run->has_blas = measure_blas(run, 0, &unused) && blas_agrees(run);
    }
    return true;
}

static bool check_rows(const session *run, bench_result *result)
{
    comparison compared = {.passed = true};
    mla_tensors got = batch_host_tensors(&run->main.input, &run->main.outputs);
    if (!run->settings->no_check &&
        !sample_rows(&run->lab->reference, &run->main.input, &got, CHECKED_ROWS,
                     run->settings->seed, engine_rounds_p(&run->lab->runner), &compared)) {
        return false;
    }
    if (!compared.passed) {
        tool_error("wrong result, not timed: %s (%.2f of what is allowed)", compared.worst,
                   compared.worst_share);
        return false;
    }
    result->error_share = compared.worst_share;
    return true;
}

/* What only a GPU has, once speed and traffic of the runs are known. */
static void conclude_gpu(session *run, double flops, double bytes, bench_result *result)
{
    const bench_lab *lab = run->lab;
    result->on_gpu = true;
    result->calls = run->main.calls;
    result->megahertz = stat_of(&run->megahertz);
    result->watts = stat_of(&run->watts);
    result->gemm = stat_of(&run->gemm);
    result->burst_seconds = stat_of(&run->burst);
    result->burst_gemm = stat_of(&run->burst_gemm);
    /* Without a reading the highest clock is assumed, which can only understate the share. */
    bool known = result->megahertz.median > 0.0;
    double clock = known ? result->megahertz.median : 1e3 * lab->gpu.traits.clock_ghz;
    result->product_peak.median = gpu_tensor_peak(&lab->runner, clock);
    result->memory.median = lab->gpu.memory_gbs;
    double compute = flops / result->product_peak.median * 1e-9;
    double read = bytes / result->memory.median * 1e-9;
    result->limit = read > compute ? "memory" : "tensor";
    result->limit_share = fmax(read, compute) / result->seconds.median;
}

static void conclude(session *run, bench_result *result)
{
    const batch *input = &run->main.input;
    double flops = batch_flops(input), bytes = (double)(input->kv_bytes + input->io_bytes);
    result->problem = input->problem;
    result->keys = input->keys_read / (input->problem.batch * input->problem.s_q);
    result->rotations = run->main.rotations;
    result->reps = run->main.seconds.count;
    result->seconds = stat_of(&run->main.seconds);
    result->gflops = flops / result->seconds.median * 1e-9;
    result->gbs = bytes / result->seconds.median * 1e-9;
    result->flops_per_byte = flops / bytes;
    result->fma_peak = stat_of(&run->fma);
    result->product_peak = stat_of(&run->product);
    result->memory = stat_of(&run->memory);
    result->blas = stat_of(&run->blas);
    result->blas_ratio = result->blas.median / result->seconds.median;
    result->dense_ratio = stat_of(&run->dense.seconds).median / result->seconds.median;
    if (run->lab->runner.info.backend == MLA_BACKEND_CUDA) {
        conclude_gpu(run, flops, bytes, result);
    } else if (result->fma_peak.median > 0.0) {
        /* What bf16 products cannot serve, such as f16, runs on FP32 units. */
        bool bf16 = result->product_peak.median > 0.0 &&
                    mla_supports(run->lab->used_isa.ctx, &input->problem) == MLA_OK;
        double peak = bf16 ? result->product_peak.median : result->fma_peak.median;
        double compute = flops / peak * 1e-9, read = bytes / result->memory.median * 1e-9;
        result->fp32_share = result->gflops / result->fma_peak.median;
        result->limit = read > compute ? "memory" : bf16 ? "bf16" : "FP32";
        result->limit_share = fmax(read, compute) / result->seconds.median;
    }
}

bool bench_measure(bench_lab *lab, const bench_settings *settings, const bench_point *point,
                   bench_result *result)
{
    session *run = tool_alloc(1, sizeof *run);
    *result = (bench_result){.point = *point, .limit = "-"};
    run->lab = lab;
    run->settings = settings;
    bool ok = open_session(run, point) && check_rows(run, result);
    if (lab->runner.info.backend == MLA_BACKEND_CUDA) {
        ok = ok && measure_bursts(run);
    }
    ok = ok && warm_up(run);
    int64_t most = settings->reps > 0 ? settings->reps : BENCH_MAX_REPS;
    double start = tool_now();
    for (int64_t rep = 0; ok && rep < most; rep++) {
        bool enough = rep >= MIN_REPS && tool_now() - start > settings->seconds;
        if (settings->reps == 0 && enough) {
            break;
        }
        ok = measure_once(run, rep);
    }
    if (ok) {
        conclude(run, result);
    }
    free(run->blas_out);
    subject_close(&run->dense);
    subject_close(&run->main);
    free(run);
    return ok;
}
