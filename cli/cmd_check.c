/* `mla check`: every backend and instruction set against the reference, over the case list. */
#include "check.h"
#include "row_sample.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LANES = 8, NAME_SIZE = 160, SAMPLED_ROWS = 24 };

/* Above so many products of a query row and a key the reference computes a sample of rows only. */
static const double reference_row_keys = 6e6;

typedef struct lane_tally {
    int64_t passed, failed, skipped;
    double worst_share;
    char worst_name[NAME_SIZE];
} lane_tally;

typedef struct check_run {
    tool_options options;
    bool quick, verbose, list;
    const char *filter;
    uint64_t first_seed, num_seeds;
    engine reference;
    check_lane lanes[MAX_LANES];
    lane_tally tallies[MAX_LANES];
    int32_t num_lanes;
    int64_t done;
    bool progress; /* stderr is a terminal */
} check_run;

/* What the signal handler reports: the check that was running. */
static char running[NAME_SIZE];

static void on_fault(int number)
{
    static const char text[] = "\nmla check: memory fault in: ";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    written += write(STDERR_FILENO, running, strlen(running));
    written += write(STDERR_FILENO, "\n", 1);
    (void)written;
    signal(number, SIG_DFL);
    raise(number);
}

static void show_progress(const check_run *run, const char *name)
{
    snprintf(running, sizeof running, "%.150s", name);
    if (run->progress) {
        fprintf(stderr, "\r\033[K%lld checks done, now %.100s", (long long)run->done, name);
    }
}

static void record(check_run *run, int32_t lane, const char *name, const check_result *result)
{
    lane_tally *tally = &run->tallies[lane];
    static const char *const words[] = {"pass", "FAIL", "skip"};
    tally->passed += result->verdict == CHECK_PASSED;
    tally->failed += result->verdict == CHECK_FAILED;
    tally->skipped += result->verdict == CHECK_SKIPPED;
    run->done++;
    if (result->verdict == CHECK_PASSED && result->worst_share > tally->worst_share) {
        tally->worst_share = result->worst_share;
        snprintf(tally->worst_name, sizeof tally->worst_name, "%s", name);
    }
    if (result->verdict == CHECK_FAILED || run->verbose) {
        if (run->progress) {
            fputs("\r\033[K", stderr);
        }
        printf("%s %s%s%s\n", words[result->verdict], name, result->detail[0] ? ": " : "",
               result->detail);
        fflush(stdout);
    }
}

/* Compares one lane with `want`, or with a sample of the reference's rows when the batch is large.
 */
static void run_lane(const check_run *run, const check_lane *lane, const batch *input,
                     batch_outputs *got, const batch_outputs *want, bool sampled, uint64_t seed,
                     check_result *result)
{
    comparison compared;
    batch_outputs_reset(got);
    if (!check_status(result, "mla_run", job_once(&lane->runner, input, got))) {
        return;
    }
    if (sampled) {
        mla_tensors tensors = batch_host_tensors(input, got);
        if (!sample_rows(&run->reference, input, &tensors, SAMPLED_ROWS, seed,
                         engine_rounds_p(&lane->runner), &compared)) {
            check_fail(result, "the reference failed");
            return;
        }
    } else {
        compare_outputs(input, got, want,
                        engine_rounds_p(&lane->runner) ? run->reference.ctx : NULL, &compared);
    }
    check_take(result, &compared);
}

static bool wanted(const check_run *run, const char *name)
{
    return run->filter == NULL || strstr(name, run->filter) != NULL;
}

/* One batch over all lanes. */
static void run_batch(check_run *run, const char *name, const check_case *item,
                      const batch_spec *spec, uint64_t seed)
{
    char lane_names[MAX_LANES][NAME_SIZE];
    bool any = false;
    for (int32_t i = 0; i < run->num_lanes; i++) {
        snprintf(lane_names[i], NAME_SIZE, "%.90s [%.30s] seed %llu", name, run->lanes[i].name,
                 (unsigned long long)seed);
        any = any || (!run->lanes[i].is_reference && wanted(run, lane_names[i]));
    }
    if (!any) {
        return;
    }
    batch input;
    batch_outputs got, want;
    show_progress(run, name);
    if (!batch_build(&input, spec, seed) || !batch_outputs_alloc(&got, &input) ||
        !batch_outputs_alloc(&want, &input)) {
        exit(TOOL_FAILED);
    }
    bool sampled = (double)input.keys_read * (double)input.problem.h_q > reference_row_keys;
    mla_status status = sampled ? MLA_OK : job_once(&run->reference, &input, &want);
    for (int32_t i = 0; i < run->num_lanes; i++) {
        check_result result = {.verdict = CHECK_PASSED};
        if (run->lanes[i].is_reference || !wanted(run, lane_names[i])) {
            continue;
        }
        show_progress(run, lane_names[i]);
        if (item->cpu_only && run->lanes[i].runner.info.backend == MLA_BACKEND_CUDA) {
            check_skip(&result, "sums of more than float32's precision are for CPUs");
        } else if (check_status(&result, "the reference", status)) {
            run_lane(run, &run->lanes[i], &input, &got, &want, sampled, seed, &result);
        }
        record(run, i, lane_names[i], &result);
    }
    batch_outputs_free(&want);
    batch_outputs_free(&got);
    batch_free(&input);
}

static void run_case(check_run *run, const check_case *item)
{
    for (int32_t i = 0; i < check_case_count(item); i++) {
        char name[NAME_SIZE];
        batch_spec spec;
        if (!check_case_spec(item, i, &spec, name, sizeof name)) {
            continue;
        }
        for (uint64_t s = 0; s < run->num_seeds; s++) {
            run_batch(run, name, item, &spec, run->first_seed + s);
        }
    }
}

static void run_special(check_run *run, const check_special *item)
{
    for (uint64_t s = 0; s < run->num_seeds; s++) {
        for (int32_t i = 0; i < run->num_lanes; i++) {
            char name[NAME_SIZE];
            uint64_t seed = run->first_seed + s;
            snprintf(name, sizeof name, "%s [%s] seed %llu", item->name, run->lanes[i].name,
                     (unsigned long long)seed);
            if (!wanted(run, name) || (run->lanes[i].is_reference && !item->on_reference)) {
                continue;
            }
            check_result result = {.verdict = CHECK_PASSED};
            show_progress(run, name);
            item->run(&run->reference, &run->lanes[i], seed, &result);
            record(run, i, name, &result);
        }
    }
}

static void run_specials(check_run *run, const check_special *items, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (!run->quick || items[i].quick) {
            run_special(run, &items[i]);
        }
    }
}

static bool add_lane(check_run *run, const tool_options *options, const char *name)
{
    assert(run->num_lanes < MAX_LANES);
    check_lane *lane = &run->lanes[run->num_lanes];
    if (!engine_open(&lane->runner, options)) {
        return false;
    }
    snprintf(lane->name, sizeof lane->name, "%s", name);
    lane->is_reference = options->backend == MLA_BACKEND_CPU &&
                         options->isa_mask == (uint32_t)MLA_ISA_REFERENCE;
    run->num_lanes++;
    return true;
}

/* The reference, and a lane for each backend and instruction set that was asked for and is there.
 */
static bool open_lanes(check_run *run)
{
    tool_options cpu = run->options;
    cpu.backend = MLA_BACKEND_CPU;
    cpu.device = 0;
    cpu.isa_mask = MLA_ISA_REFERENCE;
    if (!engine_open(&run->reference, &cpu)) {
        return false;
    }
    uint32_t offered = run->reference.info.isa_available;
    uint32_t asked;
    if (!tool_isa_mask(&run->options, &asked)) {
        return false;
    }
    asked = asked == 0 ? UINT32_MAX : asked;
    for (int bit = 0; bit < 6 && run->options.backend != MLA_BACKEND_CUDA; bit++) {
        cpu.isa_mask = 1u << bit;
        if ((asked & offered & cpu.isa_mask) != 0 &&
            !add_lane(run, &cpu, mla_isa_name((mla_isa)cpu.isa_mask))) {
            return false;
        }
    }
    int32_t gpus = 0;
    bool optional = run->options.backend == MLA_BACKEND_AUTO;
    if (run->options.backend == MLA_BACKEND_CPU ||
        (optional && (mla_device_count(MLA_BACKEND_CUDA, &gpus) != MLA_OK || gpus == 0))) {
        return true;
    }
    tool_options cuda = run->options;
    cuda.backend = MLA_BACKEND_CUDA;
    return add_lane(run, &cuda, "cuda") || optional;
}

static int report(const check_run *run, double seconds)
{
    lane_tally total = {0, 0, 0, 0.0, ""};
    if (run->progress) {
        fputs("\r\033[K", stderr);
    }
    printf("%-14s %8s %8s %8s   %s\n", "lane", "passed", "failed", "skipped",
           "largest error as a share of the tolerance");
    for (int32_t i = 0; i < run->num_lanes; i++) {
        const lane_tally *tally = &run->tallies[i];
        total.passed += tally->passed;
        total.failed += tally->failed;
        total.skipped += tally->skipped;
        printf("%-14s %8lld %8lld %8lld   ", run->lanes[i].name, (long long)tally->passed,
               (long long)tally->failed, (long long)tally->skipped);
        if (tally->worst_share > 0.0) {
            printf("%.2f in %s\n", tally->worst_share, tally->worst_name);
        } else {
            printf("-\n");
        }
    }
    printf("%.1f s\n", seconds);
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)total.passed,
           (long long)total.failed, (long long)total.skipped);
    if (run->done == 0) {
        tool_error("no check matches; `mla check --list` shows the cases, and `mla info` the "
                   "instruction sets of this machine");
        return TOOL_BAD_INPUT;
    }
    return total.failed == 0 ? TOOL_OK : TOOL_FAILED;
}

static void list_cases(void)
{
    for (int32_t i = 0; i < num_check_cases; i++) {
        const check_case *item = &check_cases[i];
        printf("%s%s%s%s\n", item->name, item->sweep != NULL ? " " : "",
               item->sweep != NULL ? item->sweep : "", item->quick ? " (quick)" : "");
    }
    for (int32_t i = 0; i < num_check_oracles; i++) {
        printf("%s%s\n", check_oracles[i].name, check_oracles[i].quick ? " (quick)" : "");
    }
    for (int32_t i = 0; i < num_check_contracts; i++) {
        printf("%s%s\n", check_contracts[i].name, check_contracts[i].quick ? " (quick)" : "");
    }
}

static error_t parse_check(int key, char *arg, struct argp_state *state)
{
    check_run *run = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &run->options;
        return 0;
    case 'q':
        run->quick = true;
        return 0;
    case 'v':
        run->verbose = true;
        return 0;
    case 'l':
        run->list = true;
        return 0;
    case 'f':
        run->filter = arg;
        return 0;
    case 's':
        run->first_seed = (uint64_t)tool_parse_int(state, "--seed", arg, 0, INT64_MAX / 2);
        return 0;
    case 'n':
        run->num_seeds = (uint64_t)tool_parse_int(state, "--seeds", arg, 1, 1000000);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_check(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"quick", 'q', 0, 0, "A part of the case list: about half a minute on two cores", 0},
        {"filter", 'f', "TEXT", 0,
         "Only checks whose name contains TEXT, e.g. 'poison', 'fp8_656' or '[avx2]'", 0},
        {"seed", 's', "S", 0, "Seed of the random data, default 1", 0},
        {"seeds", 'n', "N", 0, "Run every check with N seeds: S, S + 1, ...", 0},
        {"list", 'l', 0, 0, "Print the case list and stop", 0},
        {"verbose", 'v', 0, 0, "Print every check, not only the failed ones", 0},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_check,
        "",
        "Compares every backend and instruction set of this machine with the double-precision "
        "reference, over the kinds of input that broke other kernels: poisoned memory, lengths "
        "around every edge, odd head counts and pages, huge and tiny numbers, holes in sparse "
        "lists. All of it takes minutes; start with --quick.\v"
        "Examples:\n"
        "  mla check --quick                     is it right on this machine?\n"
        "  mla check --filter fp8_656 --seeds 5  FP8 rows, five times the data\n"
        "  mla check --isa avx2 --verbose        one instruction set, every verdict\n"
        "\n"
        "Each failed check prints its worst element. The last line is always "
        "`N passed, N failed, N skipped`; the exit status is 0 when none failed, 1 otherwise. "
        "Skipped is what a backend or instruction set does not offer. Batches too large for the "
        "reference are compared on a random sample of rows. Tolerances: docs/tool.md.",
        tool_options_child,
        0,
        0};
    static check_run run; /* zero, and too large for the stack */
    run.first_seed = 1;
    run.num_seeds = 1;
    run.progress = isatty(STDERR_FILENO);
    tool_parse(&argp, "mla check", argc, argv, &run);
    if (run.list) {
        list_cases();
        return TOOL_OK;
    }
    if (!open_lanes(&run)) {
        return TOOL_FAILED;
    }
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    double start = tool_now();
    for (int32_t i = 0; i < num_check_cases; i++) {
        if (!run.quick || check_cases[i].quick) {
            run_case(&run, &check_cases[i]);
        }
    }
    run_specials(&run, check_oracles, num_check_oracles);
    run_specials(&run, check_contracts, num_check_contracts);
    int status = report(&run, tool_now() - start);
    for (int32_t i = 0; i < run.num_lanes; i++) {
        engine_close(&run.lanes[i].runner);
    }
    engine_close(&run.reference);
    return status;
}
