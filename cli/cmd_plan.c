/* `mla plan`: how a batch is cut over parts, printed and drawn. */
#include "plan_picture.h"
#include "random_values.h"
#include "roofline_picture.h"
#include "tool.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    KEY_SEQLENS = 256,
    KEY_BATCH,
    KEY_MEAN,
    KEY_SIGMA,
    KEY_PARTS,
    KEY_HQ,
    KEY_HKV,
    KEY_SQ,
    KEY_SEED,
    KEY_SVG,
    KEY_INVARIANT,
    MAX_LISTED = 4096,
    MAX_PRINTED = 256
};

typedef struct plan_args {
    tool_options options;
    int64_t listed[MAX_LISTED];
    int32_t num_listed;
    int64_t batch;
    double mean, sigma;
    int64_t parts, h_q, h_kv, s_q;
    bool batch_invariant;
    uint64_t seed;
    const char *svg;
} plan_args;

static error_t parse_plan(int key, char *arg, struct argp_state *state)
{
    plan_args *args = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->options;
        return 0;
    case KEY_SEQLENS:
        args->num_listed = tool_parse_list(state, "--seqlens", arg, 0, INT32_MAX, args->listed,
                                           MAX_LISTED);
        return 0;
    case KEY_BATCH:
        args->batch = tool_parse_int(state, "--batch", arg, 1, 10000000);
        return 0;
    case KEY_MEAN:
        args->mean = tool_parse_double(state, "--mean", arg);
        return 0;
    case KEY_SIGMA:
        args->sigma = tool_parse_double(state, "--sigma", arg);
        return 0;
    case KEY_PARTS:
        args->parts = tool_parse_int(state, "--parts", arg, 1, 65536);
        return 0;
    case KEY_HQ:
        args->h_q = tool_parse_int(state, "--hq", arg, 1, 65536);
        return 0;
    case KEY_HKV:
        args->h_kv = tool_parse_int(state, "--hkv", arg, 1, 65536);
        return 0;
    case KEY_SQ:
        args->s_q = tool_parse_int(state, "--sq", arg, 1, 65536);
        return 0;
    case KEY_SEED:
        args->seed = (uint64_t)tool_parse_int(state, "--seed", arg, 0, INT64_MAX / 2);
        return 0;
    case KEY_SVG:
        args->svg = arg;
        return 0;
    case KEY_INVARIANT:
        args->batch_invariant = true;
        return 0;
    case ARGP_KEY_END:
        if (args->num_listed > 0 && args->batch > 0) {
            argp_error(state, "give either --seqlens or --batch, not both");
        }
        if (args->num_listed == 0 && args->batch == 0) {
            argp_error(state, "say which batch: --seqlens 100,5000,... or --batch N --mean M "
                              "--sigma S");
        }
        if (args->h_q % args->h_kv != 0) {
            argp_error(state, "--hkv %lld does not divide --hq %lld", (long long)args->h_kv,
                       (long long)args->h_q);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int32_t *make_lengths(const plan_args *args, int64_t *count)
{
    *count = args->num_listed > 0 ? args->num_listed : args->batch;
    int32_t *lengths = tool_alloc((size_t)*count, sizeof *lengths);
    rng random;
    rng_seed(&random, args->seed);
    for (int64_t r = 0; r < *count; r++) {
        double length = args->num_listed > 0 ? (double)args->listed[r]
                                             : args->mean + args->sigma * rng_normal(&random);
        lengths[r] = (int32_t)fmin(fmax(nearbyint(length), 0.0), (double)INT32_MAX);
    }
    return lengths;
}

/* Builds the plan where the engine lives and brings its bytes to the host. */
static mla_status build(const engine *runner, const mla_problem *problem, const int32_t *lengths,
                        mla_plan *host_plan)
{
    const memory_space *memory = &runner->memory;
    mla_sizes sizes = {.struct_size = sizeof sizes};
    mla_status status = mla_get_sizes(runner->ctx, problem, &sizes);
    if (status != MLA_OK) {
        return status;
    }
    size_t length_bytes = (size_t)problem->batch * sizeof *lengths;
    void *placed = memory_alloc(memory, length_bytes);
    mla_plan plan = {.struct_size = sizeof plan,
                     .buffer = memory_alloc(memory, sizes.plan_bytes),
                     .buffer_bytes = sizes.plan_bytes};
    mla_lengths args = {.struct_size = sizeof args, .seqlens = placed};
    if (placed == NULL || plan.buffer == NULL ||
        !memory_upload(memory, placed, lengths, length_bytes)) {
        status = MLA_ERR_DEVICE;
    } else {
        status = mla_plan_build(runner->ctx, problem, &args, &plan, NULL);
    }
    if (status == MLA_OK) {
        *host_plan = plan;
        host_plan->buffer = tool_alloc(sizes.plan_bytes, 1);
        if (!memory_wait(memory) ||
            !memory_download(memory, host_plan->buffer, plan.buffer, sizes.plan_bytes)) {
            status = MLA_ERR_DEVICE;
        }
    }
    memory_free(memory, plan.buffer);
    memory_free(memory, placed);
    return status;
}

static void print_part(const plan_view *view, int64_t index)
{
    const mla_plan_part *part = &view->parts[index];
    if (plan_part_is_idle(part)) {
        printf("%5lld   idle\n", (long long)index);
        return;
    }
    double share = (double)part->num_blocks / (double)view->most_blocks;
    printf("%5lld   %8lld:%-6d %8lld:%-6d %8d  %5.1f%%  ", (long long)index,
           (long long)part->begin_req, part->begin_block, (long long)part->end_req, part->end_block,
           part->num_blocks, 100.0 * share);
    for (int column = 0; column < (int)(share * 24.0 + 0.5); column++) {
        putchar('#');
    }
    if (part->num_splits > 0) {
        printf("  ends the request whose %d pieces begin here", part->num_splits);
    }
    putchar('\n');
}

/* Why parts have nothing to do. */
static void explain_idle(const plan_view *view, const engine *runner, const plan_args *args)
{
    printf("%lld part%s idle: ", (long long)view->idle_parts,
           view->idle_parts == 1 ? " is" : "s are");
    if (args->batch_invariant) {
        printf("--batch-invariant keeps every request in one part\n");
    } else if (args->parts == 0 && runner->info.backend == MLA_BACKEND_CPU &&
               view->split_reqs == 0) {
        printf("there are tiles of query rows enough to keep the %d thread%s busy, so requests are "
               "kept\nwhole, and every tile goes through all parts. --parts N cuts requests as "
               "well\n",
               runner->info.num_threads, runner->info.num_threads == 1 ? "" : "s");
    } else {
        printf("the batch has too few blocks for so many parts\n");
    }
}

static void print_plan(const plan_view *view, const engine *runner, const plan_args *args)
{
    char who[256];
    engine_describe(runner, who, sizeof who);
    printf("%s\n%lld requests, %lld tokens, %lld blocks of %d tokens, in %lld parts\n\n", who,
           (long long)view->num_reqs, (long long)view->total_tokens, (long long)view->total_blocks,
           MLA_BLOCK_TOKENS, (long long)view->num_parts);
    printf("%5s   %8s:%-6s %8s:%-6s %8s  %6s\n", "part", "from", "block", "up to", "block",
           "blocks", "load");
    for (int64_t i = 0; i < view->num_parts && i < MAX_PRINTED; i++) {
        print_part(view, i);
    }
    if (view->num_parts > MAX_PRINTED) {
        printf("  ... and %lld parts more\n", (long long)view->num_parts - MAX_PRINTED);
    }
    printf("\nlargest part %lld blocks, mean %.1f: balance %.1f%% (mean over largest, idle parts "
           "included)\nrequests split over several parts: %lld\n",
           (long long)view->most_blocks, view->mean_blocks, 100.0 * view->balance,
           (long long)view->split_reqs);
    if (view->idle_parts > 0) {
        explain_idle(view, runner, args);
    }
}

int cmd_plan(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"seqlens", KEY_SEQLENS, "N,N,...", 0, "Lengths of the requests", 1},
        {"batch", KEY_BATCH, "N", 0, "So many requests with normally distributed lengths", 1},
        {"mean", KEY_MEAN, "M", 0, "Mean of the lengths, default 4096", 1},
        {"sigma", KEY_SIGMA, "S", 0, "Standard deviation of the lengths, default 2048", 1},
        {"seed", KEY_SEED, "S", 0, "Seed of the lengths", 1},
        {"parts", KEY_PARTS, "N", 0, "Parts to cut into, default what the device takes", 1},
        {"hq", KEY_HQ, "N", 0, "Query heads, default 128", 1},
        {"hkv", KEY_HKV, "N", 0, "KV heads, default 1", 1},
        {"sq", KEY_SQ, "N", 0, "Query tokens, default 1", 1},
        {"batch-invariant", KEY_INVARIANT, 0, 0, "Cut between requests only", 1},
        {"svg", KEY_SVG, "FILE.svg", 0, "Draw the plan: a bar for each part (needs gnuplot)", 1},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_plan,
        "",
        "Shows how a batch of requests is cut over the parts (CPU threads, GPU multiprocessors) "
        "that work at the same time: every request's blocks of 64 tokens are laid end to end and "
        "cut into parts of about equal cost. A request that lies in several parts is joined "
        "afterwards. Nothing is computed.\v"
        "Balance is the mean load over the largest: at 100% all parts end at the same time. "
        "Example: mla plan --seqlens 100,5000,30000,200 --parts 8 --svg plan.svg",
        tool_options_child,
        0,
        0};
    plan_args *args = tool_alloc(1, sizeof *args);
    args->mean = 4096.0;
    args->sigma = 2048.0;
    args->h_q = 128;
    args->h_kv = args->s_q = 1;
    args->seed = 1;
    tool_parse(&argp, "mla plan", argc, argv, args);

    engine runner;
    if ((args->svg != NULL && !gnuplot_can_draw(args->svg)) ||
        !engine_open(&runner, &args->options)) {
        free(args);
        return TOOL_FAILED;
    }
    int64_t count;
    int32_t *lengths = make_lengths(args, &count);
    mla_problem problem = {.struct_size = sizeof problem,
                           .op = MLA_OP_DENSE_DECODE,
                           .dtype = MLA_DTYPE_BF16,
                           .batch = count,
                           .s_q = args->s_q,
                           .h_q = args->h_q,
                           .h_kv = args->h_kv,
                           .d_qk = 576,
                           .d_v = 512,
                           .page_size = 64,
                           .num_parts = (int32_t)args->parts,
                           .batch_invariant = args->batch_invariant};
    mla_plan plan = {.buffer = NULL};
    plan_view view = {.lengths = lengths, .num_reqs = count};
    mla_status status = build(&runner, &problem, lengths, &plan);
    status = status == MLA_OK ? plan_view_read(&view, &plan) : status;
    int result = TOOL_OK;
    if (status != MLA_OK) {
        tool_library_error("cannot plan", status);
        result = status == MLA_ERR_DEVICE ? TOOL_FAILED : TOOL_BAD_INPUT;
    } else {
        print_plan(&view, &runner, args);
        if (args->svg != NULL) {
            if (plan_draw(args->svg, &view)) {
                printf("wrote %s\n", args->svg);
            } else {
                result = TOOL_FAILED;
            }
        }
    }
    free(view.parts);
    free(plan.buffer);
    free(lengths);
    engine_close(&runner);
    free(args);
    return result;
}
