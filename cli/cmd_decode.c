/* `mla decode`: attention on the tensors of a safetensors file. */
#include "batch_file.h"
#include "decode_tensors.h"
#include "row_sample.h"
#include "safetensors_writer.h"
#include "tool.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    KEY_CAUSAL = 256,
    KEY_SCALE,
    KEY_PAGE,
    KEY_EXTRA_PAGE,
    KEY_PREFILL,
    KEY_PARTS,
    KEY_INVARIANT,
    KEY_POS_INF,
    KEY_VERIFY,
    VERIFIED_ROWS = 16,
    D_V = 512
};

typedef struct decode_args {
    tool_options options;
    decode_options decode;
    const char *in, *out;
    bool verify;
} decode_args;

static error_t parse_decode(int key, char *arg, struct argp_state *state)
{
    decode_args *args = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->options;
        return 0;
    case 'o':
        args->out = arg;
        return 0;
    case KEY_CAUSAL:
        args->decode.causal = true;
        return 0;
    case KEY_SCALE:
        args->decode.softmax_scale = tool_parse_double(state, "--scale", arg);
        if (args->decode.softmax_scale == 0.0) {
            args->decode.softmax_scale = 1e-50; /* 0 itself stands for the default */
        }
        return 0;
    case KEY_PAGE:
        args->decode.page_size = tool_parse_int(state, "--page-size", arg, 1, INT32_MAX);
        return 0;
    case KEY_EXTRA_PAGE:
        args->decode.extra_page_size = tool_parse_int(state, "--extra-page-size", arg, 1,
                                                      INT32_MAX);
        return 0;
    case KEY_PREFILL:
        args->decode.prefill = true;
        return 0;
    case KEY_PARTS:
        args->decode.num_parts = tool_parse_int(state, "--parts", arg, 1, 65536);
        return 0;
    case KEY_INVARIANT:
        args->decode.batch_invariant = true;
        return 0;
    case KEY_POS_INF:
        args->decode.lse_empty_pos_inf = true;
        return 0;
    case KEY_VERIFY:
        args->verify = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->in != NULL) {
            argp_error(state, "one input file at a time; '%s' is the second", arg);
        }
        args->in = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->in == NULL || args->out == NULL) {
            argp_error(state, "say what to read and what to write: mla decode IN.safetensors -o "
                              "OUT.safetensors");
        }
        if (st_same_file(args->in, args->out)) {
            argp_error(state, "%s is the input; name another output", args->out);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Plans, runs twice (the second run is timed: the first one maps the file's pages) and fetches. */
static mla_status run_timed(const engine *runner, const batch *input, batch_outputs *outputs,
                            double *seconds)
{
    job work;
    mla_status status = job_open(&work, runner, input, outputs);
    status = status == MLA_OK ? job_plan(&work) : status;
    status = status == MLA_OK ? job_run(&work) : status;
    if (status == MLA_OK &&
        !(memory_wait(&runner->memory) && memory_timer_start(&runner->memory))) {
        status = MLA_ERR_DEVICE;
    }
    status = status == MLA_OK ? job_run(&work) : status;
    if (status == MLA_OK && !(memory_timer_stop(&runner->memory, seconds) && job_fetch(&work))) {
        status = MLA_ERR_DEVICE;
    }
    job_close(&work);
    return status;
}

static bool write_outputs(const decode_args *args, const batch *input, const batch_outputs *outputs)
{
    const mla_problem *problem = &input->problem;
    bool prefill = problem->op == MLA_OP_SPARSE_PREFILL;
    char error[200];
    st_tensor tensors[TENSOR_OUTPUTS];
    int32_t count = prefill ? 3 : 2;
    for (int32_t i = 0; i < count; i++) {
        st_tensor *tensor = &tensors[i];
        const int64_t shape[4] = {problem->batch, problem->s_q, problem->h_q, D_V};
        *tensor = (st_tensor){.name = (char *)(uintptr_t)tensor_name((tensor_id)(TENSOR_OUT + i)),
                              .data = outputs->memory[i].data + outputs->offset,
                              .dtype = ST_F32};
        if (i == 0) {
            tensor->dtype = problem->dtype == MLA_DTYPE_BF16 ? ST_BF16 : ST_F16;
        }
        tensor->bytes = st_dtype_bytes(tensor->dtype);
        for (int d = prefill ? 1 : 0; d < (i == 0 ? 4 : 3); d++) {
            tensor->shape[tensor->num_dims++] = shape[d];
            tensor->bytes *= (size_t)shape[d];
        }
    }
    if (!st_write(args->out, tensors, count, error, sizeof error)) {
        tool_error("cannot write %s: %s", args->out, error);
        return false;
    }
    return true;
}

static bool verify(const decode_args *args, const batch *input, const batch_outputs *outputs,
                   bool rounded_p)
{
    engine reference;
    tool_options options = {.backend = MLA_BACKEND_CPU,
                            .num_threads = args->options.num_threads,
                            .isa_mask = MLA_ISA_REFERENCE};
    comparison compared;
    mla_tensors got = batch_host_tensors(input, outputs);
    if (!engine_open(&reference, &options)) {
        return false;
    }
    bool ran = sample_rows(&reference, input, &got, VERIFIED_ROWS, 1, rounded_p, &compared);
    engine_close(&reference);
    if (ran && !compared.passed) {
        tool_error("wrong result, nothing written: %s", compared.worst);
    } else if (ran) {
        printf("%d rows compared with the reference: largest error %.2f of what is allowed\n",
               VERIFIED_ROWS, compared.worst_share);
    }
    return ran && compared.passed;
}

static int decode(const decode_args *args, decode_input *in)
{
    engine runner;
    batch_outputs outputs;
    double seconds = 0.0;
    const mla_problem *problem = &in->input.problem;
    if (!engine_open(&runner, &args->options)) {
        return TOOL_FAILED;
    }
    if (!batch_outputs_alloc(&outputs, &in->input)) {
        engine_close(&runner);
        return TOOL_FAILED;
    }
    int result = TOOL_OK;
    mla_status status = run_timed(&runner, &in->input, &outputs, &seconds);
    if (status != MLA_OK) {
        tool_library_error(args->in, status);
        result = status == MLA_ERR_INVALID_ARGUMENT ? TOOL_BAD_INPUT : TOOL_FAILED;
    } else if ((args->verify && !verify(args, &in->input, &outputs, engine_rounds_p(&runner))) ||
               !write_outputs(args, &in->input, &outputs)) {
        result = TOOL_FAILED;
    } else {
        static const char *const ops[] = {"dense decode", "sparse decode", "sparse prefill"};
        char who[256];
        engine_describe(&runner, who, sizeof who);
        printf("%s: %lld request%s, s_q %lld, h_q %lld, h_kv %lld, d_qk %lld, %s rows, page %lld\n"
               "%s: %.1f us\nwrote %s\n",
               ops[problem->op - 1], (long long)problem->batch, problem->batch == 1 ? "" : "s",
               (long long)problem->s_q, (long long)problem->h_q, (long long)problem->h_kv,
               (long long)problem->d_qk,
               problem->kv_format == MLA_KV_NATIVE ? tool_dtype_name(problem->dtype)
                                                   : tool_format_name(problem->kv_format),
               (long long)problem->page_size, who, 1e6 * seconds, args->out);
    }
    batch_outputs_free(&outputs);
    engine_close(&runner);
    return result;
}

int cmd_decode(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "OUT.safetensors", 0, "File to write: out, lse (prefill: and max_logits)",
         1},
        {"causal", KEY_CAUSAL, 0, 0, "Query token t sees keys 0 ... seqlen - s_q + t", 1},
        {"scale", KEY_SCALE, "X", 0,
         "Factor of q . K^T, default 1 / sqrt(d_qk). DeepSeek V3 trained with 1 / sqrt(192) = "
         "0.0722, times mscale^2 with YaRN",
         1},
        {"page-size", KEY_PAGE, "N", 0,
         "kv_cache is flat, [tokens, ...]: slot i is row i, a page is N rows", 1},
        {"extra-page-size", KEY_EXTRA_PAGE, "N", 0, "The same for extra_kv_cache", 1},
        {"prefill", KEY_PREFILL, 0, 0,
         "Insist on sparse prefill, which a file with indices and q [s_q, h_q, d_qk] is anyway", 1},
        {"parts", KEY_PARTS, "N", 0,
         "Pieces that the work is cut into, default what the device takes", 1},
        {"batch-invariant", KEY_INVARIANT, 0, 0,
         "Never split a request: its bits do not depend on the others", 1},
        {"lse-empty-positive", KEY_POS_INF, 0, 0,
         "lse of a row without keys is +infinity, not -infinity", 1},
        {"verify", KEY_VERIFY, 0, 0, "Compare a sample of rows with the reference first", 1},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_decode,
        "IN.safetensors -o OUT.safetensors",
        "Computes attention on the tensors of a file, found by name:\n"
        "  q            BF16 or F16 [batch, s_q, h_q, 576 or 512]\n"
        "  kv_cache     the same dtype [pages, page, h_kv, 576 or 512], or FP8 rows as U8 or "
        "F8_E4M3 [pages, page, 656 or 584]\n"
        "dense decode:\n"
        "  block_table  I32 or I64 [batch, max_pages]\n"
        "  seqlens      I32 or I64 [batch]\n"
        "sparse decode, when there are indices instead:\n"
        "  indices      I32 or I64 [batch, s_q, topk]; a slot is page * page_size + row, others "
        "are skipped\n"
        "  topk_length  optional, [batch]; attn_sink  optional, F32 [h_q]\n"
        "  extra_kv_cache, extra_indices, extra_topk_length  optional, a second pool\n"
        "sparse prefill, when there are indices and q is [s_q, h_q, d_qk]:\n"
        "  kv           the dtype of q [s_kv, h_kv, d_qk]: the rows of the prompt\n"
        "  indices      I32 or I64 [s_q, h_kv, topk]; topk_length  optional, [s_q]\v"
        "Results are tensors out, of the dtype and shape of q with 512 values, and lse, F32 "
        "[batch, "
        "s_q, h_q], the natural logarithm. examples/make_decode_input.py and mla demo --save write "
        "inputs.\n"
        "The input is mapped, not copied. The output appears whole or not at all. Exit status: 0 "
        "done, 1 failed, 2 the input is wrong; the message names the tensor and what was expected.",
        tool_options_child,
        0,
        0};
    decode_args args = {.in = NULL};
    decode_input in;
    tool_parse(&argp, "mla decode", argc, argv, &args);
    int result = TOOL_BAD_INPUT;
    if (decode_open(&in, args.in) && decode_read(&in, &args.decode)) {
        result = batch_can_save(args.out) ? decode(&args, &in) : TOOL_FAILED;
    }
    decode_close(&in);
    return result;
}
