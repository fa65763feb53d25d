#include "decode_tensors.h"
#include "tool.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512, ROW_656 = 656, ROW_584 = 584 };

bool decode_wrong(const decode_input *in, const st_tensor *tensor, const char *format, ...)
{
    char what[200], expected[256];
    va_list args;
    va_start(args, format);
    vsnprintf(expected, sizeof expected, format, args);
    va_end(args);
    st_describe(tensor, what, sizeof what);
    tool_error("%s: tensor '%.64s' is %s: expected %s", in->path, tensor->name, what, expected);
    return false;
}

/* Also says what is there instead: most often the name is only misspelt. */
static bool missing(const decode_input *in, const char *name, const char *expected)
{
    char names[256] = "nothing";
    size_t used = 0;
    for (int32_t i = 0; i < in->file.num_tensors && used < sizeof names; i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.40s", i > 0 ? ", " : "",
                                 in->file.tensors[i].name);
    }
    tool_error("%s: tensor '%s' is missing: expected %s; the file holds %s", in->path, name,
               expected, names);
    return false;
}

bool decode_open(decode_input *in, const char *path)
{
    *in = (decode_input){.path = path};
    in->input.tensors.struct_size = sizeof in->input.tensors;
    if (!st_open(&in->file, path)) {
        tool_error("%s: %s", path, in->file.error);
        return false;
    }
    return true;
}

void decode_close(decode_input *in)
{
    for (int id = 0; id < TENSOR_COUNT; id++) {
        free(in->owned[id]);
    }
    st_close(&in->file);
}

bool decode_bind(decode_input *in, tensor_id id, const st_tensor *tensor)
{
    guarded_memory *memory = &in->input.memory[id];
    uint8_t *data = (uint8_t *)(uintptr_t)tensor->data;
    in->used[id] = tensor;
    if ((uintptr_t)data % st_dtype_bytes(tensor->dtype) != 0) {
        data = malloc(tensor->bytes);
        in->owned[id] = data;
        if (data == NULL) {
            tool_error("%s: out of memory to realign tensor '%.64s'", in->path, tensor->name);
            return false;
        }
        memcpy(data, tensor->data, tensor->bytes);
    }
    *memory = (guarded_memory){.data = data, .bytes = tensor->bytes};
    return true;
}

/* An I32 or I64 tensor as int32. Numbers that int32 cannot hold become -1, which no list contains
 * and no length may be. */
static bool bind_ints(decode_input *in, tensor_id id, const st_tensor *tensor)
{
    assert(tensor->dtype == ST_I32 || tensor->dtype == ST_I64);
    if (tensor->dtype == ST_I32) {
        return decode_bind(in, id, tensor);
    }
    size_t count = tensor->bytes / sizeof(int64_t);
    int32_t *values = malloc(count * sizeof *values + 1);
    in->owned[id] = values;
    in->used[id] = tensor;
    if (values == NULL) {
        tool_error("%s: out of memory to convert tensor '%.64s'", in->path, tensor->name);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, tensor->data + i * sizeof value, sizeof value);
        values[i] = value >= INT32_MIN && value <= INT32_MAX ? (int32_t)value : -1;
    }
    in->input.memory[id] = (guarded_memory){.data = (uint8_t *)values,
                                            .bytes = count * sizeof *values};
    return true;
}

static bool is_ints(const st_tensor *tensor)
{
    return tensor->dtype == ST_I32 || tensor->dtype == ST_I64;
}

static bool native_dtype(const st_tensor *tensor, mla_dtype *dtype)
{
    *dtype = tensor->dtype == ST_F16 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
    return tensor->dtype == ST_F16 || tensor->dtype == ST_BF16;
}

static bool read_q(decode_input *in, const decode_options *options)
{
    mla_problem *problem = &in->input.problem;
    const char *expected = options->prefill
                               ? "BF16 or F16 [s_q, h_q, 576 or 512]: --prefill takes one prompt"
                               : "BF16 or F16 [batch, s_q, h_q, 576 or 512], or with indices "
                                 "[s_q, h_q, 576 or 512] for sparse prefill";
    const st_tensor *q = st_find(&in->file, "q");
    if (q == NULL) {
        return missing(in, "q", expected);
    }
    bool sparse = st_find(&in->file, "indices") != NULL;
    bool prefill = options->prefill || (sparse && q->num_dims == 3);
    const int64_t *shape = q->shape + (prefill ? 0 : 1);
    if (!native_dtype(q, &problem->dtype) || q->num_dims != (prefill ? 3 : 4) || q->bytes == 0 ||
        (shape[2] != 576 && shape[2] != 512)) {
        return decode_wrong(in, q, "%s", expected);
    }
    problem->op = prefill  ? MLA_OP_SPARSE_PREFILL
                  : sparse ? MLA_OP_SPARSE_DECODE
                           : MLA_OP_DENSE_DECODE;
    problem->batch = prefill ? 1 : q->shape[0];
    problem->s_q = shape[0];
    problem->h_q = shape[1];
    problem->d_qk = shape[2];
    problem->d_v = D_V;
    return decode_bind(in, TENSOR_Q, q);
}

/* FP8 rows come as U8 or F8_E4M3 with the bytes of a row as the last dimension. */
static bool read_fp8_layout(const decode_input *in, const st_tensor *tensor, int64_t page_size,
                            cache_layout *layout)
{
    const char *expected = "[pages, page, 656 or 584] or [pages, page, 1, 656 or 584], or with "
                           "--page-size N [tokens, 656] or [pages, bytes of a page]";
    int32_t dims = tensor->num_dims;
    const int64_t *shape = tensor->shape;
    int64_t row = dims > 0 ? shape[dims - 1] : 0;
    if (dims == 2 && page_size > 0) {
        int64_t page_584 = mla_page_bytes(MLA_KV_FP8_584, MLA_DTYPE_BF16, page_size, 1, 512);
        if (row == ROW_656 && shape[0] % page_size == 0) {
            *layout = (cache_layout){MLA_KV_FP8_656,     0, shape[0] / page_size, page_size, 1, 576,
                                     page_size * ROW_656};
            return true;
        }
        if (row == page_584 || row == page_size * ROW_656) {
            bool is_584 = row == page_584;
            *layout = (cache_layout){is_584 ? MLA_KV_FP8_584 : MLA_KV_FP8_656,
                                     0,
                                     shape[0],
                                     page_size,
                                     1,
                                     is_584 ? 512 : 576,
                                     row};
            return true;
        }
    } else if ((dims == 3 || (dims == 4 && shape[2] == 1)) && (row == ROW_656 || row == ROW_584) &&
               shape[1] > 0) {
        *layout = (cache_layout){row == ROW_656 ? MLA_KV_FP8_656 : MLA_KV_FP8_584,
                                 0,
                                 shape[0],
                                 shape[1],
                                 1,
                                 row == ROW_656 ? 576 : 512,
                                 shape[1] * row};
        return true;
    }
    return decode_wrong(in, tensor, "FP8 rows as %s", expected);
}

/* The dimensions of an empty tensor may be anything; what is too large is refused later. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

bool cache_layout_read(const decode_input *in, const st_tensor *tensor, int64_t page_size,
                       cache_layout *layout)
{
    if (tensor->dtype == ST_U8 || tensor->dtype == ST_F8_E4M3) {
        return read_fp8_layout(in, tensor, page_size, layout);
    }
    mla_dtype dtype;
    const int64_t *shape = tensor->shape;
    int32_t dims = tensor->num_dims;
    int64_t d_qk = dims > 0 ? shape[dims - 1] : 0;
    int32_t flat_dims = page_size > 0 ? dims : 0;
    bool ok = native_dtype(tensor, &dtype) && (d_qk == 576 || d_qk == 512);
    if (ok && (flat_dims == 2 || flat_dims == 3) && shape[0] % page_size == 0) {
        int64_t h_kv = dims == 3 ? shape[1] : 1;
        *layout = (cache_layout){MLA_KV_NATIVE,
                                 dtype,
                                 shape[0] / page_size,
                                 page_size,
                                 h_kv,
                                 d_qk,
                                 product(product(page_size, h_kv), d_qk)};
    } else if (ok && page_size == 0 && (dims == 3 || dims == 4) && shape[1] > 0) {
        int64_t h_kv = dims == 4 ? shape[2] : 1;
        *layout = (cache_layout){MLA_KV_NATIVE,
                                 dtype,
                                 shape[0],
                                 shape[1],
                                 h_kv,
                                 d_qk,
                                 product(product(shape[1], h_kv), d_qk)};
    } else {
        ok = false;
    }
    if (!ok || layout->h_kv < 1) {
        return decode_wrong(in, tensor,
                            "BF16 or F16 [pages, page, h_kv, 576 or 512] or [pages, page, 576 or "
                            "512]; with --page-size N [tokens, h_kv, 576 or 512], tokens a "
                            "multiple of N; or FP8 rows as U8 or F8_E4M3");
    }
    return true;
}

/* The rows of a prompt lie one after the other: there are no pages. */
static bool check_prompt(const decode_input *in)
{
    const st_tensor *kv = st_find(&in->file, "kv");
    kv = kv != NULL ? kv : st_find(&in->file, "kv_cache");
    if (kv == NULL) {
        return missing(in, "kv", "for sparse prefill the prompt's rows, [s_kv, h_kv, 576 or 512]");
    }
    mla_dtype dtype;
    bool flat = kv->num_dims == 2 || kv->num_dims == 3 || !native_dtype(kv, &dtype);
    return flat ||
           decode_wrong(in, kv,
                        "for sparse prefill rows without pages, [s_kv, h_kv, 576 or 512] of "
                        "the dtype of q");
}

/* A pool of the problem: kv_cache (kv for prefill), or extra_kv_cache. */
static bool read_pool(decode_input *in, tensor_id id, const char *name, int64_t page_size,
                      mla_pool *pool, cache_layout *layout)
{
    const mla_problem *problem = &in->input.problem;
    const st_tensor *tensor = st_find(&in->file, name);
    if (tensor == NULL) {
        return missing(in, name, "the rows of the cache");
    }
    if (!cache_layout_read(in, tensor, page_size, layout)) {
        return false;
    }
    if (layout->d_qk != problem->d_qk) {
        return decode_wrong(in, tensor, "rows of %lld values, as q has", (long long)problem->d_qk);
    }
    if (layout->kv_format == MLA_KV_NATIVE && layout->dtype != problem->dtype) {
        return decode_wrong(in, tensor, "the dtype of q");
    }
    if (problem->h_q % layout->h_kv != 0) {
        return decode_wrong(in, tensor, "a number of KV heads that divides the %lld query heads",
                            (long long)problem->h_q);
    }
    pool->num_pages = layout->num_pages;
    pool->stride[0] = layout->page_stride;
    if (layout->kv_format == MLA_KV_NATIVE) {
        pool->stride[1] = layout->h_kv * layout->d_qk;
        pool->stride[2] = layout->d_qk;
    }
    return decode_bind(in, id, tensor);
}

static bool read_cache(decode_input *in, const decode_options *options)
{
    mla_problem *problem = &in->input.problem;
    cache_layout layout;
    bool prefill = problem->op == MLA_OP_SPARSE_PREFILL;
    const char *name = prefill && st_find(&in->file, "kv") != NULL ? "kv" : "kv_cache";
    if ((prefill && !check_prompt(in)) ||
        !read_pool(in, TENSOR_KV, name, prefill ? 1 : options->page_size, &in->input.tensors.kv,
                   &layout)) {
        return false;
    }
    problem->kv_format = layout.kv_format;
    problem->h_kv = layout.h_kv;
    problem->page_size = layout.page_size;
    return true;
}

/* An integer tensor of a given shape; with num_dims 2 the last dimension is free. */
static bool read_ints(decode_input *in, tensor_id id, bool optional, const int64_t *shape,
                      int32_t num_dims, bool last_is_free)
{
    char expected[160];
    const char *name = tensor_name(id);
    const st_tensor *tensor = st_find(&in->file, name);
    size_t used = (size_t)snprintf(expected, sizeof expected, "I32 or I64 [");
    bool same = tensor != NULL && is_ints(tensor) && tensor->num_dims == num_dims;
    for (int32_t i = 0; i < num_dims; i++) {
        bool is_free = last_is_free && i == num_dims - 1;
        same = same && (is_free || tensor->shape[i] == shape[i]);
        used += is_free ? (size_t)snprintf(expected + used, sizeof expected - used, "any")
                        : (size_t)snprintf(expected + used, sizeof expected - used, "%lld%s",
                                           (long long)shape[i], i + 1 < num_dims ? ", " : "");
    }
    snprintf(expected + used, sizeof expected - used, "]");
    if (tensor == NULL && id == TENSOR_INDICES) {
        return missing(in, name,
                       "for sparse prefill each query token's rows of kv, I32 or I64 "
                       "[s_q, h_kv, topk]");
    }
    if (tensor == NULL) {
        return optional || missing(in, name, expected);
    }
    return same ? bind_ints(in, id, tensor) : decode_wrong(in, tensor, "%s", expected);
}

static const int32_t *ints_of(const decode_input *in, tensor_id id)
{
    return (const int32_t *)(const void *)in->input.memory[id].data;
}

/* Lengths within the block table, pages within the pool: a GPU could not refuse them. */
static bool check_table(const decode_input *in)
{
    const mla_problem *problem = &in->input.problem;
    const mla_tensors *tensors = &in->input.tensors;
    const int32_t *seqlens = ints_of(in, TENSOR_SEQLENS);
    const int32_t *table = ints_of(in, TENSOR_BLOCK_TABLE);
    for (int64_t r = 0; r < problem->batch; r++) {
        if (seqlens[r] < 0 || seqlens[r] > tensors->max_pages * problem->page_size) {
            return decode_wrong(in, in->used[TENSOR_SEQLENS],
                                "element %lld to be 0 to %lld (%lld pages of %lld), but it is %d",
                                (long long)r, (long long)(tensors->max_pages * problem->page_size),
                                (long long)tensors->max_pages, (long long)problem->page_size,
                                seqlens[r]);
        }
        int64_t pages = (seqlens[r] + problem->page_size - 1) / problem->page_size;
        for (int64_t i = 0; i < pages; i++) {
            int32_t page = table[r * tensors->max_pages + i];
            if (page < 0 || page >= tensors->kv.num_pages) {
                return decode_wrong(in, in->used[TENSOR_BLOCK_TABLE],
                                    "element [%lld, %lld] to be a page, 0 to %lld, but it is %d",
                                    (long long)r, (long long)i,
                                    (long long)tensors->kv.num_pages - 1, page);
            }
        }
    }
    return true;
}

static bool read_dense(decode_input *in)
{
    const mla_problem *problem = &in->input.problem;
    const int64_t shape[2] = {problem->batch, 0};
    if (!read_ints(in, TENSOR_BLOCK_TABLE, false, shape, 2, true) ||
        !read_ints(in, TENSOR_SEQLENS, false, shape, 1, false)) {
        return false;
    }
    in->input.tensors.max_pages = in->used[TENSOR_BLOCK_TABLE]->shape[1];
    return check_table(in);
}

/* One list of indices, [batch, s_q, topk] or with a KV head dimension, and its lengths. */
static bool read_list(decode_input *in, tensor_id id, tensor_id lengths, int64_t *topk)
{
    const mla_problem *problem = &in->input.problem;
    bool prefill = problem->op == MLA_OP_SPARSE_PREFILL;
    const st_tensor *tensor = st_find(&in->file, tensor_name(id));
    const int64_t full[4] = {problem->batch, problem->s_q, problem->h_kv, 0};
    const int64_t *shape = prefill ? full + 1 : full;
    int32_t num_dims = prefill ? 3 : 4;
    const int64_t length_shape[1] = {prefill ? problem->s_q : problem->batch};
    if (tensor != NULL && problem->h_kv == 1 && tensor->num_dims == num_dims - 1) {
        num_dims--;
    }
    if (!read_ints(in, id, false, shape, num_dims, true) ||
        !read_ints(in, lengths, true, length_shape, 1, false)) {
        return false;
    }
    *topk = tensor->shape[num_dims - 1];
    return *topk >= 1 || decode_wrong(in, tensor, "at least one index for each query token");
}

static bool read_sparse(decode_input *in, const decode_options *options)
{
    mla_problem *problem = &in->input.problem;
    mla_tensors *tensors = &in->input.tensors;
    if (!read_list(in, TENSOR_INDICES, TENSOR_TOPK_LENGTH, &problem->topk)) {
        return false;
    }
    if (st_find(&in->file, "extra_kv_cache") == NULL) {
        return st_find(&in->file, "extra_indices") == NULL ||
               missing(in, "extra_kv_cache", "the pool of extra_indices");
    }
    cache_layout layout;
    if (!read_list(in, TENSOR_EXTRA_INDICES, TENSOR_EXTRA_TOPK_LENGTH, &problem->extra_topk) ||
        !read_pool(in, TENSOR_EXTRA_KV, "extra_kv_cache", options->extra_page_size,
                   &tensors->extra_kv, &layout)) {
        return false;
    }
    problem->extra_page_size = layout.page_size;
    if (layout.kv_format != problem->kv_format || layout.h_kv != problem->h_kv) {
        return decode_wrong(in, in->used[TENSOR_EXTRA_KV], "the format of kv_cache");
    }
    return true;
}

static bool read_sink(decode_input *in)
{
    const st_tensor *tensor = st_find(&in->file, "attn_sink");
    if (tensor == NULL) {
        return true;
    }
    if (tensor->dtype != ST_F32 || tensor->num_dims != 1 ||
        tensor->shape[0] != in->input.problem.h_q) {
        return decode_wrong(in, tensor, "F32 [%lld]", (long long)in->input.problem.h_q);
    }
    return decode_bind(in, TENSOR_ATTN_SINK, tensor);
}

/* Tensors that nobody asked for: most often a misspelt name. */
static void report_unused(const decode_input *in)
{
    for (int32_t i = 0; i < in->file.num_tensors; i++) {
        bool used = false;
        for (int id = 0; id < TENSOR_COUNT; id++) {
            used = used || in->used[id] == &in->file.tensors[i];
        }
        if (!used) {
            tool_error("%s: note: tensor '%.64s' is not used", in->path, in->file.tensors[i].name);
        }
    }
}

/* What the batch's other users (outputs, samples, figures) need to know. */
static void fill_rest(decode_input *in)
{
    batch *input = &in->input;
    const mla_problem *problem = &input->problem;
    mla_tensors *tensors = &input->tensors;
    input->spec = (batch_spec){.op = problem->op,
                               .dtype = problem->dtype,
                               .kv_format = problem->kv_format,
                               .batch = problem->batch,
                               .s_q = problem->s_q,
                               .h_q = problem->h_q,
                               .h_kv = problem->h_kv,
                               .d_qk = problem->d_qk,
                               .page_size = problem->page_size,
                               .topk = problem->topk,
                               .extra_topk = problem->extra_topk,
                               .causal = problem->causal};
    const int64_t widths[3] = {problem->d_qk, D_V, 1};
    int64_t *const strides[3] = {tensors->q_stride, tensors->out_stride, tensors->lse_stride};
    for (int i = 0; i < 3; i++) {
        strides[i][2] = widths[i];
        strides[i][1] = widths[i] * problem->h_q;
        strides[i][0] = strides[i][1] * problem->s_q;
    }
    tensors->block_table_stride = tensors->max_pages;
    int64_t *const lists[2] = {tensors->indices_stride, tensors->extra_indices_stride};
    const int64_t topks[2] = {problem->topk, problem->extra_topk};
    for (int i = 0; i < 2; i++) {
        lists[i][2] = topks[i];
        lists[i][1] = topks[i] * problem->h_kv;
        lists[i][0] = lists[i][1] * problem->s_q;
    }
    for (int id = 0; id < TENSOR_FIRST_OUTPUT; id++) {
        guarded_memory *memory = &input->memory[id];
        tensor_bind(tensors, (tensor_id)id, memory->bytes > 0 ? memory->data : NULL);
    }
}

/* Options that the file gives no use for are mistakes, as are tensors' wrong shapes. */
static bool check_options(const decode_input *in, const decode_options *options)
{
    mla_op op = in->input.problem.op;
    if (options->causal && op != MLA_OP_DENSE_DECODE) {
        tool_error("--causal goes with dense decode; sparse lists say themselves what is seen");
    } else if (options->page_size > 0 && op == MLA_OP_SPARSE_PREFILL) {
        tool_error("--page-size goes with decode; the rows of a prompt lie one after the other");
    } else if (options->extra_page_size > 0 && op != MLA_OP_SPARSE_DECODE) {
        tool_error("--extra-page-size goes with sparse decode, whose tensors are indices, "
                   "extra_kv_cache and extra_indices; this file is one of %s",
                   op == MLA_OP_DENSE_DECODE ? "dense decode" : "sparse prefill");
    } else if (options->extra_page_size > 0 && st_find(&in->file, "extra_kv_cache") == NULL) {
        missing(in, "extra_kv_cache", "the pool that --extra-page-size speaks of");
    } else {
        return true;
    }
    return false;
}

bool decode_read(decode_input *in, const decode_options *options)
{
    mla_problem *problem = &in->input.problem;
    problem->struct_size = sizeof *problem;
    problem->softmax_scale = options->softmax_scale;
    problem->num_parts = (int32_t)options->num_parts;
    problem->causal = options->causal;
    problem->batch_invariant = options->batch_invariant;
    problem->lse_empty_pos_inf = options->lse_empty_pos_inf;
    if (!read_q(in, options) || !check_options(in, options) || !read_cache(in, options)) {
        return false;
    }
    bool dense = problem->op == MLA_OP_DENSE_DECODE;
    if (!(dense ? read_dense(in) : read_sparse(in, options)) || !read_sink(in)) {
        return false;
    }
    report_unused(in);
    fill_rest(in);
    return true;
}
