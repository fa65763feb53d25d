/* `mla demo`: some steps of a DeepSeek-V3 decode batch, checked and timed, with an explanation. */
#include "batch_file.h"
#include "engine.h"
#include "fma_peak.h"
#include "random_values.h"
#include "roofline_picture.h"
#include "row_sample.h"
#include "sample_stats.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_SAVE = 256,
    HEADS = 128,
    D_QK = 576,
    STEPS = 6,
    RUNS = 5, /* timed runs of a step; the median is shown */
    CHECKED_ROWS = 12,
    HEAD_COUNTS = 4
};

/* Twelve users: short chats, long documents, one that has just begun, one at the edge of a page. */
static const int64_t demo_lengths[] = {37, 640, 1, 4095, 6000, 1300, 64, 2500, 128, 900, 3000, 333};
enum { REQUESTS = sizeof demo_lengths / sizeof demo_lengths[0] };

typedef struct demo {
    tool_options options;
    const char *svg, *save; /* NULL: none */
    bool svg_asked;         /* by an option; else it is drawn where that can be done */
    uint64_t seed;
    engine runner, reference;
    batch input;
    batch_outputs outputs;
    job work;
    rng random;
    value_stock stock;
    int32_t *free_pages; /* pages that no request owns */
    int64_t num_free;
    void *device_rows, *device_slots;
    void *read_memory;
    size_t read_bytes;
    double fma_peak, memory_gbs; /* 0 on a GPU */
    roofline_point points[STEPS + HEAD_COUNTS];
    int32_t num_points;
    int failures;
} demo;

/* Speed of one step, with the limits measured beside it. */
typedef struct step_speed {
    double seconds, gflops, gbs, flops_per_byte, share;
    bool memory_binds;
} step_speed;

static bool time_runs(demo *show, job *work, const batch *input, step_speed *speed)
{
    double seconds[RUNS], peaks[RUNS], reads[RUNS];
    const engine *runner = &show->runner;
    bool cpu = runner->info.backend == MLA_BACKEND_CPU;
    for (int i = 0; i < RUNS; i++) {
        if (cpu) {
            mla_isa isa = runner->info.isa_used;
            peaks[i] = fma_peak_measure(isa, runner->info.num_threads, 0.005);
            reads[i] = memory_read_measure(show->read_memory, show->read_bytes,
                                           runner->info.num_threads);
        }
        memory_timer_start(&runner->memory);
        mla_status status = job_run(work);
        if (status != MLA_OK || !memory_timer_stop(&runner->memory, &seconds[i])) {
            tool_library_error("mla_run", status);
            return false;
        }
    }
    double flops = batch_flops(input), bytes = (double)(input->kv_bytes + input->io_bytes);
    *speed = (step_speed){.seconds = sample_stat_of(seconds, RUNS).median};
    speed->gflops = flops / speed->seconds * 1e-9;
    speed->gbs = bytes / speed->seconds * 1e-9;
    speed->flops_per_byte = flops / bytes;
    if (cpu) {
        show->fma_peak = sample_stat_of(peaks, RUNS).median;
        show->memory_gbs = sample_stat_of(reads, RUNS).median;
        double compute = flops / show->fma_peak * 1e-9, read = bytes / show->memory_gbs * 1e-9;
        speed->share = fmax(compute, read) / speed->seconds;
        speed->memory_binds = read > compute;
    }
    return true;
}

/* Gives every request one more token: a page when the last one is full, a slot, and its row. */
static bool append_tokens(demo *show)
{
    batch *input = &show->input;
    const memory_space *memory = &show->runner.memory;
    int32_t *seqlens = (int32_t *)(void *)input->memory[TENSOR_SEQLENS].data;
    int32_t *table = (int32_t *)(void *)input->memory[TENSOR_BLOCK_TABLE].data;
    int64_t page_size = input->problem.page_size, slots[REQUESTS];
    uint16_t rows[REQUESTS * D_QK];
    input->keys_read = input->kv_bytes = 0;
    for (int64_t r = 0; r < REQUESTS; r++) {
        int64_t column = seqlens[r] / page_size;
        int32_t *entry = &table[r * input->tensors.block_table_stride + column];
        if (seqlens[r] % page_size == 0) {
            assert(show->num_free > 0 && column < input->tensors.max_pages);
            *entry = show->free_pages[--show->num_free];
        }
        slots[r] = *entry * page_size + seqlens[r] % page_size;
        seqlens[r]++;
        input->keys_read += seqlens[r];
        input->kv_bytes += (int64_t)seqlens[r] * D_QK * 2;
    }
    value_stock_draw(&show->stock, &show->random, rows, REQUESTS * D_QK);
    value_stock_draw(&show->stock, &show->random, (uint16_t *)(void *)input->memory[TENSOR_Q].data,
                     REQUESTS * HEADS * D_QK);

    mla_pack_args pack = {.struct_size = sizeof pack,
                          .kv_format = MLA_KV_NATIVE,
                          .dtype = MLA_DTYPE_BF16,
                          .num_tokens = REQUESTS,
                          .h_kv = 1,
                          .d_qk = D_QK,
                          .page_size = page_size,
                          .num_pages = input->tensors.kv.num_pages,
                          .rows = rows,
                          .cache = input->memory[TENSOR_KV].data,
                          .slots = slots};
    mla_status status = mla_pack(show->reference.ctx, &pack, NULL);
    if (status == MLA_OK && show->runner.info.backend == MLA_BACKEND_CUDA) {
        pack.rows = show->device_rows;
        pack.cache = show->work.copies[TENSOR_KV];
        pack.slots = show->device_slots;
        if (!memory_upload(memory, show->device_rows, rows, sizeof rows) ||
            !memory_upload(memory, show->device_slots, slots, sizeof slots)) {
            return false;
        }
        status = mla_pack(show->runner.ctx, &pack, NULL);
        for (int id = TENSOR_Q; status == MLA_OK && id <= TENSOR_SEQLENS; id++) {
            if (id != TENSOR_KV &&
                !memory_upload(memory, show->work.copies[id], input->memory[id].data,
                               input->memory[id].bytes)) {
                return false;
            }
        }
    }
    if (status != MLA_OK) {
        tool_library_error("mla_pack", status);
    }
    return status == MLA_OK;
}

static void add_point(demo *show, const step_speed *speed, const char *label)
{
    roofline_point *point = &show->points[show->num_points++];
    snprintf(point->label, sizeof point->label, "%s: %.0f GFLOP/s", label, speed->gflops);
    point->flops_per_byte = speed->flops_per_byte;
    point->gflops = speed->gflops;
}

static void print_speed(const step_speed *speed)
{
    printf("%10.0f %9.1f %8.2f", 1e6 * speed->seconds, speed->gflops, speed->gbs);
    if (speed->share > 0.0) {
        printf("  %3.0f%% of %-10s", 100.0 * speed->share,
               speed->memory_binds ? "memory" : "arithmetic");
    } else {
        printf("  %17s", "-");
    }
}

static bool run_step(demo *show, int step)
{
    step_speed speed;
    comparison compared;
    if (!append_tokens(show)) {
        return false;
    }
    batch_outputs_reset(&show->outputs);
    mla_status status = job_plan(&show->work);
    if (status != MLA_OK) {
        tool_library_error("mla_plan_build", status);
        return false;
    }
    mla_tensors got = batch_host_tensors(&show->input, &show->outputs);
    if (!time_runs(show, &show->work, &show->input, &speed) || !job_fetch(&show->work) ||
        !sample_rows(&show->reference, &show->input, &got, CHECKED_ROWS,
                     show->seed + (uint64_t)step, engine_rounds_p(&show->runner), &compared)) {
        return false;
    }
    printf("%4d %8lld ", step + 1, (long long)show->input.keys_read);
    print_speed(&speed);
    printf("   %s, error %.2f of the tolerance\n", compared.passed ? "right" : "WRONG",
           compared.worst_share);
    if (!compared.passed) {
        printf("     %s\n", compared.worst);
        show->failures++;
    }
    fflush(stdout);
    if (step == STEPS - 1) {
        add_point(show, &speed, "128 heads, last step");
    }
    return true;
}

/* The same lengths read by fewer heads: the fewer share a row, the more memory decides. */
static bool run_head_counts(demo *show)
{
    static const int64_t counts[HEAD_COUNTS] = {64, 16, 4, 1};
    printf("\n%13s %10s %9s %8s  %s\n", "heads", "time us", "GFLOP/s", "GB/s",
           "share of the limit");
    for (int i = 0; i < HEAD_COUNTS; i++) {
        batch input;
        batch_outputs outputs;
        job work;
        step_speed speed;
        char label[32];
        batch_spec spec = show->input.spec;
        spec.h_q = counts[i];
        if (!batch_build(&input, &spec, show->seed) || !batch_outputs_alloc(&outputs, &input)) {
            return false;
        }
        mla_status status = job_open(&work, &show->runner, &input, &outputs);
        status = status == MLA_OK ? job_plan(&work) : status;
        bool ok = status == MLA_OK && time_runs(show, &work, &input, &speed);
        if (ok) {
            snprintf(label, sizeof label, "%lld head%s", (long long)counts[i],
                     counts[i] == 1 ? "" : "s");
            printf("%13lld ", (long long)counts[i]);
            print_speed(&speed);
            printf("\n");
            add_point(show, &speed, label);
        } else {
            tool_library_error("fewer heads", status);
        }
        job_close(&work);
        batch_outputs_free(&outputs);
        batch_free(&input);
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* Pages that no block table names, found in the table itself. */
static void find_free_pages(demo *show)
{
    const batch *input = &show->input;
    const mla_tensors *tensors = &input->tensors;
    int64_t num_pages = tensors->kv.num_pages;
    uint8_t *owned = tool_alloc((size_t)num_pages, 1);
    show->free_pages = tool_alloc((size_t)num_pages, sizeof *show->free_pages);
    for (int64_t r = 0; r < REQUESTS; r++) {
        for (int64_t i = 0; i * input->problem.page_size < tensors->seqlens[r]; i++) {
            owned[tensors->block_table[r * tensors->block_table_stride + i]] = 1;
        }
    }
    for (int64_t page = 0; page < num_pages; page++) {
        if (!owned[page]) {
            show->free_pages[show->num_free++] = (int32_t)page;
        }
    }
    free(owned);
}

static bool open_demo(demo *show)
{
    tool_options reference = {.backend = MLA_BACKEND_CPU,
                              .num_threads = show->options.num_threads,
                              .isa_mask = MLA_ISA_REFERENCE};
    batch_spec spec = {.op = MLA_OP_DENSE_DECODE,
                       .batch = REQUESTS,
                       .h_q = HEADS,
                       .lengths = demo_lengths,
                       .num_lengths = REQUESTS,
                       .spare_pages = 32,
                       .table_columns = 2,
                       .poison = POISON_MIXED,
                       .alignment = 64};
    if (!engine_open(&show->runner, &show->options) || !engine_open(&show->reference, &reference) ||
        !batch_build(&show->input, &spec, show->seed) ||
        !batch_outputs_alloc(&show->outputs, &show->input)) {
        return false;
    }
    mla_status status = job_open(&show->work, &show->runner, &show->input, &show->outputs);
    if (status != MLA_OK) {
        tool_library_error("the batch does not run here", status);
        return false;
    }
    rng_seed(&show->random, show->seed + 99);
    value_stock_fill(&show->stock, &small_bf16, 1.0, show->seed + 98);
    find_free_pages(show);
    const memory_space *memory = &show->runner.memory;
    if (memory->backend == MLA_BACKEND_CUDA) {
        show->device_rows = memory_alloc(memory, REQUESTS * D_QK * 2);
        show->device_slots = memory_alloc(memory, REQUESTS * sizeof(int64_t));
        return show->device_rows != NULL && show->device_slots != NULL;
    }
    size_t wanted = 2 * last_level_cache_bytes(), most = (size_t)512 << 20;
    show->read_bytes = wanted < most ? wanted : most;
    show->read_memory = memory_alloc(memory, show->read_bytes);
    if (show->read_memory != NULL) {
        memset(show->read_memory, 0x3c, show->read_bytes);
    }
    return show->read_memory != NULL;
}

static void close_demo(demo *show)
{
    memory_free(&show->runner.memory, show->device_rows);
    memory_free(&show->runner.memory, show->device_slots);
    memory_free(&show->runner.memory, show->read_memory);
    free(show->free_pages);
    job_close(&show->work);
    batch_outputs_free(&show->outputs);
    batch_free(&show->input);
    engine_close(&show->reference);
    engine_close(&show->runner);
}

static void explain(const demo *show)
{
    char who[256], cache[32], pages[32];
    double token_bytes = D_QK * 2;
    engine_describe(&show->runner, who, sizeof who);
    tool_format_bytes((double)show->input.kv_bytes, cache, sizeof cache);
    tool_format_bytes(token_bytes * 64, pages, sizeof pages);
    printf("%s\n\n"
           "DeepSeek-V3 decoding: %d requests of 1 to 6000 tokens, %d query heads each, one KV "
           "head.\n"
           "The cache holds one row of %d bf16 values (%d bytes) per token in shuffled pages of 64 "
           "tokens\n"
           "(%s each), %s in all. Rows that no request owns are NaN and infinity, entries of the "
           "block\n"
           "table past a request's last page are wild numbers: none of it may change a result.\n\n"
           "Each step appends one token to every request (mla_pack), plans (mla_plan_build), and "
           "attends\n"
           "with all heads (mla_run, median of %d). %d random rows are compared with the "
           "double-precision\n"
           "reference, which is too slow for all of them.\n\n",
           who, (int)REQUESTS, HEADS, D_QK, D_QK * 2, pages, cache, RUNS, CHECKED_ROWS);
    if (show->svg_asked && show->runner.info.backend == MLA_BACKEND_CUDA) {
        printf(
            "No picture: on a GPU, `mla bench --plot %s` measures the limits and draws them.\n\n",
            show->svg);
    }
}

/* What the instruction set in use multiplies, and what the measured peak is therefore of. */
static const char *product_name(const demo *show)
{
    mla_isa isa = show->runner.info.isa_used;
    return fma_peak_fp32_isa(isa) == isa ? "FP32" : "bf16";
}

static void conclude(const demo *show, double seconds)
{
    if (show->fma_peak > 0.0) {
        printf("\nLimits measured between the runs: %.0f GFLOP/s of %s multiply-adds from "
               "registers, %.1f GB/s read\nfrom memory. With 128 heads every row of the cache is "
               "used for 278,528 FLOP, so arithmetic decides;\nwith few heads reading the rows "
               "does. A share near 100%% means that the machine can do no more.\n",
               show->fma_peak, product_name(show), show->memory_gbs);
    }
    printf("\n%s in %.1f s.\n",
           show->failures == 0 ? "All compared rows are within the tolerances"
                               : "Some rows are WRONG",
           seconds);
}

static bool draw(demo *show)
{
    char subtitle[300], who[256], roof[96];
    if (show->svg == NULL || show->fma_peak <= 0.0 || show->num_points == 0) {
        return true;
    }
    engine_describe(&show->runner, who, sizeof who);
    snprintf(subtitle, sizeof subtitle, "%s; 12 requests of 1 to 6000 tokens, bf16", who);
    snprintf(roof, sizeof roof, "limit: %.1f GB/s read, %.0f GFLOP/s %s", show->memory_gbs,
             show->fma_peak, product_name(show));
    roofline picture = {.title = "mla demo: decode speed under the limits of this machine",
                        .subtitle = subtitle,
                        .peak_gflops = show->fma_peak,
                        .peak_label = roof,
                        .memory_gbs = show->memory_gbs,
                        .points = show->points,
                        .num_points = show->num_points};
    bool ok = roofline_draw(show->svg, &picture);
    if (ok) {
        printf("The roofline picture is in %s.\n", show->svg);
    }
    return ok;
}

/* A wrong path or a missing gnuplot shows before the work, not after it. */
static bool can_write_outputs(demo *show)
{
    if (show->save != NULL && !batch_can_save(show->save)) {
        return false;
    }
    if (gnuplot_can_draw(show->svg)) {
        return true;
    }
    show->svg = NULL;
    return !show->svg_asked;
}

static error_t parse_demo(int key, char *arg, struct argp_state *state)
{
    demo *show = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &show->options;
        return 0;
    case 'o':
        show->svg = arg;
        show->svg_asked = true;
        return 0;
    case KEY_SAVE:
        show->save = arg;
        return 0;
    case 's':
        show->seed = (uint64_t)tool_parse_int(state, "--seed", arg, 0, INT64_MAX / 2);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_demo(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "FILE.svg", 0,
         "Picture to draw, default demo.svg; needs gnuplot, and a CPU that computes", 1},
        {"save", KEY_SAVE, "FILE.safetensors", 0,
         "Write the last step's tensors, an input for mla decode", 1},
        {"seed", 's', "S", 0, "Seed of the random data", 1},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_demo,
        "",
        "Runs a few steps of a DeepSeek-V3 decode batch: tokens are appended to a paged cache, the "
        "work is planned and computed, rows are compared with the reference, and the speed is set "
        "against what the machine can do. It takes seconds, and says what it does.\v"
        "Next: mla demo --save in.safetensors, then mla decode in.safetensors -o out.safetensors "
        "--verify. Exit status: 0 all right, 1 a wrong row or an output that cannot be written.",
        tool_options_child,
        0,
        0};
    demo *show = tool_alloc(1, sizeof *show);
    show->svg = "demo.svg";
    show->seed = 1;
    tool_parse(&argp, "mla demo", argc, argv, show);

    if (!can_write_outputs(show)) {
        free(show);
        return TOOL_FAILED;
    }
    double start = tool_now();
    bool ok = open_demo(show);
    if (ok) {
        explain(show);
        printf("%4s %8s %10s %9s %8s  %-18s   %s\n", "step", "tokens", "time us", "GFLOP/s", "GB/s",
               "share of the limit", "check");
    }
    for (int step = 0; ok && step < STEPS; step++) {
        ok = run_step(show, step);
    }
    if (ok && show->save != NULL) {
        ok = batch_save(show->save, &show->input);
    }
    ok = ok && run_head_counts(show);
    if (ok) {
        conclude(show, tool_now() - start);
        ok = draw(show);
    }
    if (ok && show->save != NULL) {
        printf("The last step's tensors are in %s; try: mla decode %s -o out.safetensors "
               "--verify\n",
               show->save, show->save);
    }
    int status = ok && show->failures == 0 ? TOOL_OK : TOOL_FAILED;
    close_demo(show);
    free(show);
    return status;
}
