#include "rounding_bound.h"
#include "random_values.h"
#include "tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The keys of one row: their values, [num_keys, d_qk] bf16 or fp16, and their weights. */
typedef struct key_list {
    int64_t num_keys, d_qk;
    uint16_t *rows;
    double *weights;
} key_list;

/* Slots that an index list names, those outside the pool left out. */
static int64_t listed_slots(const mla_pool *pool, int64_t page_size, const int32_t *indices,
                            int64_t count, int64_t *slots)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] >= 0 && indices[i] < pool->num_pages * page_size) {
            slots[found++] = indices[i];
        }
    }
    return found;
}

/* Keys of a row of a dense batch, from its tensors alone: it may have come from a file. */
static int64_t dense_keys(const batch *input, int64_t request, int64_t token)
{
    const mla_problem *problem = &input->problem;
    const int64_t hidden = problem->causal ? problem->s_q - 1 - token : 0;
    const int64_t keys = input->tensors.seqlens[request] - hidden;
    return keys < 0 ? 0 : keys;
}

static int64_t dense_slots(const batch *input, int64_t request, int64_t token, int64_t *slots)
{
    const mla_tensors *tensors = &input->tensors;
    const int64_t page_size = input->problem.page_size;
    const int32_t *pages = tensors->block_table + request * tensors->block_table_stride;
    const int64_t num_keys = dense_keys(input, request, token);
    for (int64_t i = 0; i < num_keys; i++) {
        slots[i] = pages[i / page_size] * page_size + i % page_size;
    }
    return num_keys;
}

/* Reads the rows of `slots` of one pool behind those that the list has. */
static bool read_rows(const mla_ctx *cpu, const batch *input, const mla_pool *pool,
                      int64_t page_size, int64_t kv_head, const int64_t *slots, int64_t count,
                      key_list *keys)
{
    const mla_problem *problem = &input->problem;
    const bool native = problem->kv_format == MLA_KV_NATIVE;
    const char *head = (const char *)pool->data + (native ? kv_head * pool->stride[2] * 2 : 0);
    const mla_pack_args args = {.struct_size = sizeof args,
                                .kv_format = problem->kv_format,
                                .dtype = native ? problem->dtype : MLA_DTYPE_BF16,
                                .num_tokens = count,
                                .h_kv = 1,
                                .d_qk = keys->d_qk,
                                .page_size = page_size,
                                .num_pages = pool->num_pages,
                                .rows = keys->rows + keys->num_keys * keys->d_qk,
                                .cache = (void *)(uintptr_t)head,
                                .cache_stride = {pool->stride[0], pool->stride[1], pool->stride[2]},
                                .slots = slots};
    if (count > 0 && mla_unpack(cpu, &args, NULL) != MLA_OK) {
        return false;
    }
    keys->num_keys += count;
    return true;
}

static bool read_keys(const mla_ctx *cpu, const batch *input, int64_t request, int64_t token,
                      int64_t kv_head, int64_t *slots, key_list *keys)
{
    const mla_problem *problem = &input->problem;
    const mla_tensors *t = &input->tensors;
    if (problem->op == MLA_OP_DENSE_DECODE) {
        const int64_t count = dense_slots(input, request, token, slots);
        return read_rows(cpu, input, &t->kv, problem->page_size, kv_head, slots, count, keys);
    }
    const int64_t entry = problem->op == MLA_OP_SPARSE_PREFILL ? token : request;
    const int64_t at[3] = {request, token, kv_head};
    const mla_pool *const pools[2] = {&t->kv, &t->extra_kv};
    const int32_t *const indices[2] = {t->indices, t->extra_indices};
    const int32_t *const lengths[2] = {t->topk_length, t->extra_topk_length};
    const int64_t *const strides[2] = {t->indices_stride, t->extra_indices_stride};
    const int64_t counts[2] = {problem->topk, problem->extra_topk};
    const int64_t pages[2] = {problem->page_size, problem->extra_page_size};
    for (int i = 0; i < 2 && counts[i] > 0; i++) {
        int64_t length = lengths[i] == NULL ? counts[i] : lengths[i][entry];
        length = length < 0 ? 0 : length < counts[i] ? length : counts[i];
        const int32_t *list = indices[i] + at[0] * strides[i][0] + at[1] * strides[i][1] +
                              at[2] * strides[i][2];
        const int64_t count = listed_slots(pools[i], pages[i], list, length, slots);
        if (!read_rows(cpu, input, pools[i], pages[i], kv_head, slots, count, keys)) {
            return false;
        }
    }
    return true;
}

/* Softmax weights of the keys, in double, the share of a sink taken off. */
static void weigh_keys(const batch *input, int64_t request, int64_t token, int64_t head,
                       mla_dtype key_dtype, key_list *keys)
{
    const mla_problem *problem = &input->problem;
    const int64_t *stride = input->tensors.q_stride;
    const uint16_t *q = (const uint16_t *)input->tensors.q + request * stride[0] +
                        token * stride[1] + head * stride[2];
    const double scale = problem->softmax_scale != 0.0 ? problem->softmax_scale
                                                       : 1.0 / sqrt((double)keys->d_qk);
    double top = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < keys->num_keys; i++) {
        double dot = 0.0;
        for (int64_t d = 0; d < keys->d_qk; d++) {
            dot += (double)elem_to_float(problem->dtype, q[d]) *
                   (double)elem_to_float(key_dtype, keys->rows[i * keys->d_qk + d]);
        }
        keys->weights[i] = dot * scale;
        top = fmax(top, keys->weights[i]);
    }
    for (int64_t i = 0; i < keys->num_keys; i++) {
        keys->weights[i] = exp(keys->weights[i] - top);
        sum += keys->weights[i];
    }
    if (input->tensors.attn_sink != NULL) {
        sum += exp((double)input->tensors.attn_sink[head] - top);
    }
    for (int64_t i = 0; i < keys->num_keys; i++) {
        keys->weights[i] /= sum;
    }
}

bool rounding_bound_row(const mla_ctx *cpu, const batch *input, int64_t request, int64_t token,
                        int64_t head, double bound[ROUNDING_BOUND_COLUMNS])
{
    const mla_problem *problem = &input->problem;
    const bool dense = problem->op == MLA_OP_DENSE_DECODE;
    const int64_t most = dense ? dense_keys(input, request, token)
                               : problem->topk + problem->extra_topk;
    const mla_dtype key_dtype = problem->kv_format == MLA_KV_NATIVE ? problem->dtype
                                                                    : MLA_DTYPE_BF16;
    const double unit = problem->dtype == MLA_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    memset(bound, 0, ROUNDING_BOUND_COLUMNS * sizeof *bound);
    if (most == 0) {
        return true;
    }
    key_list keys = {.d_qk = problem->d_qk};
    keys.rows = tool_alloc((size_t)(most * keys.d_qk), sizeof *keys.rows);
    keys.weights = tool_alloc((size_t)most, sizeof *keys.weights);
    int64_t *slots = tool_alloc((size_t)most, sizeof *slots);
    const bool ok = read_keys(cpu, input, request, token, head / (problem->h_q / problem->h_kv),
                              slots, &keys);
    if (ok) {
        weigh_keys(input, request, token, head, key_dtype, &keys);
        for (int64_t column = 0; column < ROUNDING_BOUND_COLUMNS; column++) {
            double sum = 0.0, squares = 0.0;
            for (int64_t i = 0; i < keys.num_keys; i++) {
                const uint16_t value = keys.rows[i * keys.d_qk + column];
                const double part = keys.weights[i] * fabs(elem_to_float(key_dtype, value));
                sum += part;
                squares += part * part;
            }
            bound[column] = unit * fmin(sum, 2.5 * sqrt(squares));
        }
    }
    free(slots);
    free(keys.weights);
    free(keys.rows);
    return ok;
}
