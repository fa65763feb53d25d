/* `mla bench`: speed by presets or for a given shape, against the limits of the machine. */
#include "bench.h"
#include "roofline_picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_SK = 256,
    KEY_HQ,
    KEY_HKV,
    KEY_SQ,
    KEY_DQK,
    KEY_PAGE,
    KEY_DTYPE,
    KEY_FORMAT,
    KEY_TOPK,
    KEY_POOL,
    KEY_OP,
    KEY_CAUSAL,
    KEY_PARTS,
    KEY_INVARIANT,
    KEY_CSV,
    KEY_JSON,
    KEY_PLOT,
    KEY_REPS,
    KEY_SECONDS,
    KEY_NO_BLAS,
    KEY_WARM,
    KEY_NO_CHECK,
    KEY_SEED,
    KEY_PRESET,
    MAX_LISTED = 256,
    MAX_PRESETS = 4
};

typedef struct bench_args {
    bench_settings settings;
    const char *presets[MAX_PRESETS];
    int32_t num_presets;
    bool given; /* a shape was given by options */
    batch_spec spec;
    int64_t lengths[MAX_LISTED];
    const char *csv, *json, *plot;
} bench_args;

static mla_op parse_op(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"dense", "sparse", "prefill"};
    for (int op = 0; op < 3; op++) {
        if (strcmp(text, names[op]) == 0) {
            return (mla_op)(op + MLA_OP_DENSE_DECODE);
        }
    }
    argp_error(state, "--op: '%s' is none of dense, sparse, prefill", text);
    return MLA_OP_DENSE_DECODE;
}

/* Options that describe a shape; false for other keys. */
static bool parse_shape(int key, char *arg, struct argp_state *state, bench_args *args)
{
    batch_spec *spec = &args->spec;
    const int64_t most = INT32_MAX;
    switch (key) {
    case 'b':
        spec->batch = tool_parse_int(state, "--b", arg, 1, most);
        break;
    case KEY_SK:
        spec->num_lengths = tool_parse_list(state, "--sk", arg, 0, most, args->lengths, MAX_LISTED);
        break;
    case KEY_HQ:
        spec->h_q = tool_parse_int(state, "--hq", arg, 1, 65536);
        break;
    case KEY_HKV:
        spec->h_kv = tool_parse_int(state, "--hkv", arg, 1, 65536);
        break;
    case KEY_SQ:
        spec->s_q = tool_parse_int(state, "--sq", arg, 1, most);
        break;
    case KEY_DQK:
        spec->d_qk = tool_parse_int(state, "--dqk", arg, 1, INT32_MAX);
        break;
    case KEY_PAGE:
        spec->page_size = tool_parse_int(state, "--page", arg, 1, 1 << 20);
        break;
    case KEY_DTYPE:
        spec->dtype = tool_parse_dtype(state, arg);
        break;
    case KEY_FORMAT:
        spec->kv_format = tool_parse_format(state, arg);
        break;
    case KEY_TOPK:
        spec->topk = tool_parse_int(state, "--topk", arg, 1, most);
        break;
    case KEY_POOL:
        spec->pool_slots = tool_parse_int(state, "--pool", arg, 1, most);
        break;
    case KEY_OP:
        spec->op = parse_op(state, arg);
        break;
    case KEY_CAUSAL:
        spec->causal = true;
        break;
    case KEY_PARTS:
        spec->num_parts = tool_parse_int(state, "--parts", arg, 1, 65536);
        break;
    case KEY_INVARIANT:
        spec->batch_invariant = true;
        break;
    default:
        return false;
    }
    args->given = true;
    return true;
}

static void add_preset(struct argp_state *state, bench_args *args, const char *name)
{
    bench_point unused[BENCH_MAX_POINTS];
    if (bench_preset(name, MLA_BACKEND_CPU, unused) == 0) {
        argp_error(state,
                   "'%s' is no preset; choose from decode, small, sparse, prefill, or give a shape "
                   "such as --b 4 --sk 4096 --hq 128",
                   name);
    }
    if (args->num_presets == MAX_PRESETS) {
        argp_error(state, "at most %d presets", MAX_PRESETS);
    }
    args->presets[args->num_presets++] = name;
}

static error_t parse_bench(int key, char *arg, struct argp_state *state)
{
    bench_args *args = state->input;
    bench_settings *settings = &args->settings;
    if (parse_shape(key, arg, state, args)) {
        return 0;
    }
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &settings->options;
        return 0;
    case KEY_CSV:
        args->csv = arg;
        return 0;
    case KEY_JSON:
        args->json = arg;
        return 0;
    case KEY_PLOT:
        args->plot = arg;
        return 0;
    case KEY_REPS:
        settings->reps = tool_parse_int(state, "--reps", arg, 1, BENCH_MAX_REPS);
        return 0;
    case KEY_SECONDS:
        settings->seconds = tool_parse_double(state, "--seconds", arg);
        return 0;
    case KEY_NO_BLAS:
        settings->no_blas = true;
        return 0;
    case KEY_WARM:
        settings->no_rotation = true;
        return 0;
    case KEY_NO_CHECK:
        settings->no_check = true;
        return 0;
    case KEY_SEED:
        settings->seed = (uint64_t)tool_parse_int(state, "--seed", arg, 0, INT64_MAX / 2);
        return 0;
    case KEY_PRESET:
        for (char *rest = arg, *name; (name = strtok_r(rest, ",", &rest)) != NULL;) {
            add_preset(state, args, name);
        }
        return 0;
    case ARGP_KEY_ARG:
        add_preset(state, args, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Defaults of the given shape, once it is known to be one. */
static void complete_shape(bench_args *args)
{
    batch_spec *spec = &args->spec;
    bool dense = spec->op == MLA_OP_DENSE_DECODE;
    if (spec->num_lengths == 0) {
        args->lengths[0] = 4096;
        spec->num_lengths = 1;
    }
    spec->lengths = args->lengths;
    spec->batch = spec->batch == 0 && dense ? spec->num_lengths : spec->batch;
    spec->topk = spec->topk == 0 && !dense ? 2048 : spec->topk;
    spec->pool_slots = spec->pool_slots == 0 ? 32768 : spec->pool_slots;
}

/* The points to measure: presets, or the given shape. */
static int32_t choose_points(bench_args *args, mla_backend backend, bench_point *points)
{
    int32_t count = 0;
    if (args->given) {
        complete_shape(args);
        points[count++] = (bench_point){.spec = args->spec,
                                        .with_dense = args->spec.op == MLA_OP_SPARSE_DECODE};
    }
    if (args->num_presets == 0 && !args->given) {
        args->presets[args->num_presets++] = "decode";
    }
    for (int32_t i = 0; i < args->num_presets; i++) {
        bench_point preset[BENCH_MAX_POINTS];
        int32_t added = bench_preset(args->presets[i], backend, preset);
        for (int32_t n = 0; n < added && count < BENCH_MAX_POINTS; n++) {
            points[count++] = preset[n];
        }
    }
    return count;
}

/* Options that contradict each other are refused before any work, with what to do instead. */
static int check_shape(bench_args *args)
{
    batch_spec *spec = &args->spec;
    if (!args->given) {
        return TOOL_OK;
    }
    spec->op = spec->op == 0 ? (spec->topk > 0 ? MLA_OP_SPARSE_DECODE : MLA_OP_DENSE_DECODE)
                             : spec->op;
    spec->h_q = spec->h_q == 0 ? 128 : spec->h_q;
    bool dense = spec->op == MLA_OP_DENSE_DECODE;
    if (spec->h_kv > 0 && spec->h_q % spec->h_kv != 0) {
        tool_error("--hkv %lld does not divide --hq %lld", (long long)spec->h_kv,
                   (long long)spec->h_q);
        return TOOL_BAD_INPUT;
    }
    if (spec->kv_format != MLA_KV_NATIVE && spec->h_kv > 1) {
        tool_error("--format %s goes with --hkv 1: FP8 rows have one KV head",
                   tool_format_name(spec->kv_format));
        return TOOL_BAD_INPUT;
    }
    int64_t row_dqk = spec->kv_format == MLA_KV_FP8_656 ? 576 : 512;
    if (spec->kv_format != MLA_KV_NATIVE && spec->d_qk != 0 && spec->d_qk != row_dqk) {
        tool_error("--format %s: its keys have %lld values; leave --dqk out",
                   tool_format_name(spec->kv_format), (long long)row_dqk);
        return TOOL_BAD_INPUT;
    }
    if (spec->d_qk != 0 && spec->d_qk != 512 && spec->d_qk != 576) {
        tool_error("--dqk %lld: must be 512 or 576", (long long)spec->d_qk);
        return TOOL_BAD_INPUT;
    }
    if (!dense && spec->causal) {
        tool_error("--causal goes with dense calls; a sparse call sees what its --topk indices "
                   "name. Leave one of the two out");
        return TOOL_BAD_INPUT;
    }
    if (!dense && spec->num_lengths > 0) {
        tool_error("--sk goes with dense calls; a sparse call reads --topk tokens of the --pool N "
                   "that it chooses from");
        return TOOL_BAD_INPUT;
    }
    if (dense && (spec->topk > 0 || spec->pool_slots > 0)) {
        tool_error(
            "--topk and --pool go with --op sparse or prefill; a dense call reads all tokens "
            "of --sk");
        return TOOL_BAD_INPUT;
    }
    if (spec->op == MLA_OP_SPARSE_PREFILL && spec->batch > 1) {
        tool_error("--op prefill goes with --b 1; --sq is the number of query tokens");
        return TOOL_BAD_INPUT;
    }
    if (spec->op == MLA_OP_SPARSE_PREFILL && spec->page_size > 0) {
        tool_error("--page goes with decode; the rows of a prompt lie one after the other");
        return TOOL_BAD_INPUT;
    }
    return TOOL_OK;
}

/* What cannot be written should not show after minutes of measuring. */
static bool can_write_results(const bench_args *args)
{
    return (args->csv == NULL || tool_can_write(args->csv)) &&
           (args->json == NULL || bench_can_write_json(args->json)) &&
           (args->plot == NULL || gnuplot_can_draw(args->plot));
}

/* Asks the library about every point before the first is measured. */
static int check_points(const bench_lab *lab, const bench_point *points, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        mla_problem problem = batch_problem(&points[i].spec);
        mla_status status = mla_supports(lab->runner.ctx, &problem);
        if (status != MLA_OK) {
            tool_library_error("this shape does not run here", status);
            return status == MLA_ERR_INVALID_ARGUMENT ? TOOL_BAD_INPUT : TOOL_FAILED;
        }
    }
    return TOOL_OK;
}

static bool wrote(const char *path, bool ok)
{
    if (ok) {
        printf("wrote %s\n", path);
    }
    return ok;
}

static bool write_results(const bench_args *args, const bench_lab *lab, const bench_result *results,
                          int32_t count)
{
    bool ok = true;
    if (args->csv != NULL) {
        ok = wrote(args->csv, bench_write_csv(args->csv, lab, results, count)) && ok;
    }
    if (args->json != NULL) {
        ok = wrote(args->json, bench_write_json(args->json, lab, results, count)) && ok;
    }
    if (args->plot != NULL) {
        ok = wrote(args->plot, bench_draw(args->plot, lab, results, count)) && ok;
    }
    return ok;
}

static const struct argp_option bench_options[] = {
    {"preset", KEY_PRESET, "NAME[,NAME...]", 0, "Presets, as named without the option", 0},
    {0, 0, 0, 0, "A shape of your own (defaults: b 1, sk 4096, hq 128, bf16, page 64):", 1},
    {"op", KEY_OP, "dense|sparse|prefill", 0, "Operation; sparse when --topk is given", 2},
    {"b", 'b', "N", 0, "Requests", 2},
    {"sk", KEY_SK, "N[,N...]", 0, "Tokens of each request; a list is repeated over the batch", 2},
    {"hq", KEY_HQ, "N", 0, "Query heads", 2},
    {"hkv", KEY_HKV, "N", 0, "KV heads", 2},
    {"sq", KEY_SQ, "N", 0, "Query tokens of each request: 1 decodes, more verify drafts", 2},
    {"dqk", KEY_DQK, "512|576", 0, "Width of a key, native rows; default 576", 2},
    {"page", KEY_PAGE, "N", 0,
     "Tokens of a page; CUDA's dense decode takes 8, 16, 32 and multiples of 64", 2},
    {"dtype", KEY_DTYPE, "bf16|f16", 0, "Of q, out and native rows", 2},
    {"format", KEY_FORMAT, "native|fp8_656|fp8_584", 0,
     "Rows of the cache: as dtype, or FP8 as DeepSeek V3.2 (656 bytes) or V4 (584) have them. On a "
     "GPU FP8 rows go with bf16 queries and sparse decode",
     2},
    {"topk", KEY_TOPK, "N", 0, "Sparse: indices of each query token, default 2048", 2},
    {"pool", KEY_POOL, "N", 0, "Sparse: tokens to choose from, default 32768", 2},
    {"causal", KEY_CAUSAL, 0, 0, "Dense: query token t sees keys 0 ... sk - sq + t", 2},
    {"parts", KEY_PARTS, "N", 0, "Pieces that the work is cut into; default: see mla plan", 2},
    {"batch-invariant", KEY_INVARIANT, 0, 0, "Never split a request", 2},
    {0, 0, 0, 0, "How it is measured:", 3},
    {"seconds", KEY_SECONDS, "X", 0, "Time to spend on a line of the table, default 1.5", 4},
    {"reps", KEY_REPS, "N", 0, "A fixed number of runs of each line instead", 4},
    {"warm", KEY_WARM, 0, 0, "Read one cache again and again, not copies in turn", 4},
    {"no-blas", KEY_NO_BLAS, 0, 0, "Leave out the baseline: OpenBLAS, or cuBLAS on a GPU", 4},
    {"no-check", KEY_NO_CHECK, 0, 0, "Leave out the check of some rows before timing", 4},
    {"seed", KEY_SEED, "S", 0, "Seed of the random data", 4},
    {0, 0, 0, 0, "Where the numbers go:", 5},
    {"csv", KEY_CSV, "FILE", 0, "Also as CSV", 6},
    {"json", KEY_JSON, "FILE", 0, "Also as JSON", 6},
    {"plot", KEY_PLOT, "FILE.svg", 0,
     "Draw the measured points under the roofline: speed over arithmetic intensity (needs gnuplot)",
     6},
    {0, 0, 0, 0, 0, 0}};

int cmd_bench(int argc, char **argv)
{
    static const struct argp argp = {
        bench_options,
        parse_bench,
        "[decode] [small] [sparse] [prefill]",
        "Measures the kernels, and in the same seconds what the machine can do at most: FP32 "
        "multiply-adds from registers, bytes from memory, and OpenBLAS on the same problem; on a "
        "GPU clock, power and cuBLAS's matrix product. Give a shape, or presets:\n"
        "  decode   dense decode of full batches (the default)\n"
        "  small    dense decode of one or few requests, where splitting one decides\n"
        "  sparse   decode over chosen tokens, FP8 and bf16 rows, as in DeepSeek V3.2\n"
        "  prefill  sparse attention of a long prompt\v"
        "Examples:\n"
        "  mla bench decode sparse --plot roofline.svg\n"
        "  mla bench --b 4 --sk 4096 --hq 128             a dense shape\n"
        "  mla bench --b 2 --topk 2048 --format fp8_656   a sparse one\n"
        "\n"
        "Read `limit` first: the least possible time over the measured one, and what sets it. "
        "docs/tool.md explains every column. Before it is timed each shape is compared with the "
        "reference. Exit status: 0 done, 1 something failed, 2 wrong use.",
        tool_options_child,
        0,
        0};
    bench_args *args = tool_alloc(1, sizeof *args);
    args->settings.seconds = 1.5;
    args->settings.seed = 1;
    tool_parse(&argp, "mla bench", argc, argv, args);

    bench_lab lab;
    int status = check_shape(args);
    if (status != TOOL_OK || !can_write_results(args) || !bench_lab_open(&lab, &args->settings)) {
        free(args);
        return status != TOOL_OK ? status : TOOL_FAILED;
    }
    bench_point *points = tool_alloc(BENCH_MAX_POINTS, sizeof *points);
    bench_result *results = tool_alloc(BENCH_MAX_POINTS, sizeof *results);
    int32_t count = choose_points(args, lab.runner.info.backend, points), done = 0;
    status = check_points(&lab, points, count);
    if (status == TOOL_OK) {
        bench_print_header(&lab, &args->settings);
    } else {
        count = 0;
    }
    for (int32_t i = 0; i < count; i++) {
        if (bench_measure(&lab, &args->settings, &points[i], &results[done])) {
            bench_print_row(&results[done++]);
        } else {
            status = TOOL_FAILED;
        }
    }
    if (done > 0) {
        bench_print_summary(results, done);
        if (!write_results(args, &lab, results, done)) {
            status = TOOL_FAILED;
        }
    }
    bench_lab_close(&lab);
    free(results);
    free(points);
    free(args);
    return status;
}
