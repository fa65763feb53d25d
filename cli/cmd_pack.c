/* `mla pack` and `mla unpack`: rows of a safetensors file to a cache in any format, and back. */
#include "batch_file.h"
#include "decode_tensors.h"
#include "engine.h"
#include "safetensors_writer.h"
#include "tool.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_FORMAT = 256, KEY_PAGE, KEY_TOKENS, DEFAULT_PAGE = 64 };

typedef struct pack_args {
    tool_options options;
    const char *in, *out;
    mla_kv_format kv_format;
    int64_t page_size, tokens;
    bool unpack;
} pack_args;

static error_t parse_pack(int key, char *arg, struct argp_state *state)
{
    pack_args *args = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->options;
        return 0;
    case 'o':
        args->out = arg;
        return 0;
    case KEY_FORMAT:
        args->kv_format = tool_parse_format(state, arg);
        return 0;
    case KEY_PAGE:
        args->page_size = tool_parse_int(state, "--page-size", arg, 1, INT32_MAX);
        return 0;
    case KEY_TOKENS:
        args->tokens = tool_parse_int(state, "--tokens", arg, 1, INT64_MAX / 2);
        return 0;
    case ARGP_KEY_ARG:
        if (args->in != NULL) {
            argp_error(state, "one input file at a time; '%s' is the second", arg);
        }
        args->in = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->in == NULL || args->out == NULL) {
            argp_error(state,
                       "say what to read and what to write: mla %s IN.safetensors -o "
                       "OUT.safetensors",
                       args->unpack ? "unpack" : "pack");
        }
        if (st_same_file(args->in, args->out)) {
            argp_error(state, "%s is the input; name another output", args->out);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The tensor of rows: kv or kv_cache. */
static const st_tensor *find_rows(const decode_input *in)
{
    const st_tensor *tensor = st_find(&in->file, "kv");
    tensor = tensor != NULL ? tensor : st_find(&in->file, "kv_cache");
    if (tensor == NULL) {
        tool_error("%s: tensor 'kv' (or 'kv_cache') is missing", in->path);
    }
    return tensor;
}

/* Packs or unpacks on the device: copies in, converts, copies out. */
static mla_status convert(const engine *runner, mla_pack_args *args, bool unpack, size_t rows_bytes,
                          size_t cache_bytes)
{
    const memory_space *memory = &runner->memory;
    uint8_t *host_rows = args->rows, *host_cache = args->cache;
    bool copies = memory->backend == MLA_BACKEND_CUDA;
    if (copies) {
        args->rows = memory_alloc(memory, rows_bytes);
        args->cache = memory_alloc(memory, cache_bytes);
        if (args->rows == NULL || args->cache == NULL ||
            !memory_upload(memory, args->rows, host_rows, rows_bytes) ||
            !memory_upload(memory, args->cache, host_cache, cache_bytes)) {
            return MLA_ERR_DEVICE;
        }
    }
    mla_status status = unpack ? mla_unpack(runner->ctx, args, NULL)
                               : mla_pack(runner->ctx, args, NULL);
    if (copies && status == MLA_OK) {
        bool ok = memory_wait(memory) &&
                  (unpack ? memory_download(memory, host_rows, args->rows, rows_bytes)
                          : memory_download(memory, host_cache, args->cache, cache_bytes));
        status = ok ? MLA_OK : MLA_ERR_DEVICE;
    }
    if (copies) {
        memory_free(memory, args->rows);
        memory_free(memory, args->cache);
    }
    return status;
}

static int write_tensor(const pack_args *args, const st_tensor *tensor)
{
    char error[200], what[160];
    if (!st_write(args->out, tensor, 1, error, sizeof error)) {
        tool_error("cannot write %s: %s", args->out, error);
        return TOOL_FAILED;
    }
    st_describe(tensor, what, sizeof what);
    printf("wrote %s: %s %s\n", args->out, tensor->name, what);
    return TOOL_OK;
}

static int library_failure(mla_status status)
{
    tool_library_error("cannot convert", status);
    return status == MLA_ERR_INVALID_ARGUMENT ? TOOL_BAD_INPUT : TOOL_FAILED;
}

/* [tokens, d_qk], [tokens, h_kv, d_qk] or with pages: all of it is a list of rows. */
static int pack(const pack_args *args, decode_input *in, const engine *runner)
{
    const st_tensor *rows = find_rows(in);
    if (rows == NULL) {
        return TOOL_BAD_INPUT;
    }
    int32_t dims = rows->num_dims;
    int64_t d_qk = dims > 0 ? rows->shape[dims - 1] : 0;
    bool native = args->kv_format == MLA_KV_NATIVE;
    int64_t h_kv = dims >= 3 ? rows->shape[dims - 2] : 1;
    int64_t wanted = args->kv_format == MLA_KV_FP8_656 ? 576 : 512;
    bool right_dtype = rows->dtype == ST_BF16 || (native && rows->dtype == ST_F16);
    if (!right_dtype || dims < 2 || dims > 4 || rows->bytes == 0 ||
        (native ? d_qk != 576 && d_qk != 512 : d_qk != wanted || h_kv != 1)) {
        decode_wrong(in, rows, "BF16%s [tokens, %s%s] for %s rows", native ? " or F16" : "",
                     native ? "h_kv, " : "",
                     native          ? "576 or 512"
                     : wanted == 576 ? "576"
                                     : "512",
                     tool_format_name(args->kv_format));
        return TOOL_BAD_INPUT;
    }
    int64_t tokens = (int64_t)(rows->bytes / 2) / (h_kv * d_qk);
    int64_t page_size = args->page_size > 0 ? args->page_size : DEFAULT_PAGE;
    int64_t num_pages = (tokens + page_size - 1) / page_size;
    int64_t row_bytes = native ? h_kv * d_qk * 2 : args->kv_format == MLA_KV_FP8_656 ? 656 : 584;
    size_t cache_bytes = (size_t)(num_pages * page_size * row_bytes);
    if (!decode_bind(in, TENSOR_KV, rows)) {
        return TOOL_FAILED;
    }
    uint8_t *cache = tool_alloc(cache_bytes, 1);
    mla_pack_args call = {.struct_size = sizeof call,
                          .kv_format = args->kv_format,
                          .dtype = rows->dtype == ST_F16 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16,
                          .num_tokens = tokens,
                          .h_kv = h_kv,
                          .d_qk = d_qk,
                          .page_size = page_size,
                          .num_pages = num_pages,
                          .rows = in->input.memory[TENSOR_KV].data,
                          .cache = cache,
                          .cache_stride = {native ? 0 : page_size * row_bytes, 0, 0}};
    mla_status status = convert(runner, &call, false, rows->bytes, cache_bytes);
    st_tensor out = {.name = (char[]){"kv_cache"},
                     .dtype = native ? rows->dtype : ST_U8,
                     .num_dims = native ? 4 : 3,
                     .shape = {num_pages, page_size, native ? h_kv : row_bytes, d_qk},
                     .data = cache,
                     .bytes = cache_bytes};
    int result = status == MLA_OK ? write_tensor(args, &out) : library_failure(status);
    free(cache);
    return result;
}

static int unpack(const pack_args *args, decode_input *in, const engine *runner)
{
    const st_tensor *cache = find_rows(in);
    cache_layout layout;
    if (cache == NULL || !cache_layout_read(in, cache, args->page_size, &layout)) {
        return TOOL_BAD_INPUT;
    }
    int64_t slots = layout.num_pages * layout.page_size;
    int64_t tokens = args->tokens > 0 ? args->tokens : slots;
    if (tokens > slots) {
        tool_error("--tokens %lld: the cache holds %lld", (long long)tokens, (long long)slots);
        return TOOL_BAD_INPUT;
    }
    if (!decode_bind(in, TENSOR_KV, cache)) {
        return TOOL_FAILED;
    }
    bool native = layout.kv_format == MLA_KV_NATIVE;
    size_t rows_bytes = (size_t)(tokens * layout.h_kv * layout.d_qk) * 2;
    uint8_t *rows = tool_alloc(rows_bytes, 1);
    mla_pack_args call = {.struct_size = sizeof call,
                          .kv_format = layout.kv_format,
                          .dtype = native ? layout.dtype : MLA_DTYPE_BF16,
                          .num_tokens = tokens,
                          .h_kv = layout.h_kv,
                          .d_qk = layout.d_qk,
                          .page_size = layout.page_size,
                          .num_pages = layout.num_pages,
                          .rows = rows,
                          .cache = in->input.memory[TENSOR_KV].data,
                          .cache_stride = {native ? 0 : layout.page_stride, 0, 0}};
    mla_status status = convert(runner, &call, true, rows_bytes, cache->bytes);
    st_tensor out = {.name = (char[]){"kv"},
                     .dtype = call.dtype == MLA_DTYPE_F16 ? ST_F16 : ST_BF16,
                     .num_dims = 3,
                     .shape = {tokens, layout.h_kv, layout.d_qk},
                     .data = rows,
                     .bytes = rows_bytes};
    int result = status == MLA_OK ? write_tensor(args, &out) : library_failure(status);
    free(rows);
    return result;
}

static int run(pack_args *args)
{
    decode_input in;
    engine runner;
    int result = TOOL_BAD_INPUT;
    if (decode_open(&in, args->in)) {
        result = TOOL_FAILED;
        if (batch_can_save(args->out) && engine_open(&runner, &args->options)) {
            result = args->unpack ? unpack(args, &in, &runner) : pack(args, &in, &runner);
            engine_close(&runner);
        }
    }
    decode_close(&in);
    return result;
}

int cmd_pack(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "OUT.safetensors", 0, "File to write: kv_cache", 1},
        {"format", KEY_FORMAT, "fp8_656|fp8_584|native", 0, "Rows to write, default fp8_656", 1},
        {"page-size", KEY_PAGE, "N", 0, "Tokens of a page, default 64", 1},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_pack,
        "IN.safetensors -o OUT.safetensors",
        "Writes the rows of tensor kv (or kv_cache), BF16 [tokens, 576 or 512], into a cache: row "
        "i goes to slot i. fp8_656 takes 576 values a token, fp8_584 takes 512; the result is "
        "kv_cache, U8 [pages, page, 656 or 584], as `mla decode` reads it.\v"
        "Rows of the last page that no token fills are zero. FP8 rounds: a value keeps about two "
        "digits, RoPE values stay bf16; mla unpack shows what became of them.",
        tool_options_child,
        0,
        0};
    pack_args args = {.kv_format = MLA_KV_FP8_656};
    tool_parse(&argp, "mla pack", argc, argv, &args);
    return run(&args);
}

int cmd_unpack(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "OUT.safetensors", 0, "File to write: kv", 1},
        {"page-size", KEY_PAGE, "N", 0, "The cache is flat, with pages of N tokens", 1},
        {"tokens", KEY_TOKENS, "N", 0, "Only the first N slots", 1},
        {0, 0, 0, 0, 0, 0}};
    static const struct argp argp = {
        options,
        parse_pack,
        "IN.safetensors -o OUT.safetensors",
        "Reads a cache, tensor kv_cache of U8 or F8_E4M3 [pages, page, 656 or 584] (or native "
        "rows), back into rows: kv, BF16 [tokens, 1, 576 or 512], in the order of slots.",
        tool_options_child,
        0,
        0};
    pack_args args = {.unpack = true};
    tool_parse(&argp, "mla unpack", argc, argv, &args);
    return run(&args);
}
