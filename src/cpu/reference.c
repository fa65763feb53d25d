/*
 * Attention as the manual states it, one query row after another. Nothing here is shared with the
 * fast kernels but the number formats.
 */
#include "reference.h"

#include "formats.h"

#include <math.h>

enum { D_V = 512, D_QK_MAX = 576 };

/* Softmax-weighted sum of the values seen so far, relative to the largest logit so far. */
typedef struct attention_row {
    double max;      /* largest S, -INFINITY before the first key */
    double sum;      /* sum of exp(S - max) */
    double acc[D_V]; /* sum of exp(S - max) * V */
    double q[D_QK_MAX];
} attention_row;

/* Keys of one query row: the first num_keys entries of up to two lists. */
typedef struct key_list {
    const mla_pool *pool;
    int64_t page_size;
    int64_t num_keys;
    const int32_t *pages;   /* dense: the block table's row */
    const int32_t *indices; /* sparse: slots */
} key_list;

static void load_query(const mla_shape *shape, const mla_tensors *t, mla_row_pos pos,
                       attention_row *row)
{
    const uint16_t *q = (const uint16_t *)t->q + pos.batch_idx * t->q_stride[0] +
                        pos.token_idx * t->q_stride[1] + pos.head_idx * t->q_stride[2];
    for (int64_t i = 0; i < shape->problem.d_qk; i++) {
        row->q[i] = mla_elem_to_f32(shape->problem.dtype, q[i]);
    }
    for (int i = 0; i < D_V; i++) {
        row->acc[i] = 0.0;
    }
    row->max = -INFINITY;
    row->sum = 0.0;
}

/* The slot of entry `key`, or -1 where a sparse list has a hole. */
static int64_t key_slot(const key_list *list, int64_t key)
{
    if (list->pages != NULL) {
        return list->pages[key / list->page_size] * list->page_size + key % list->page_size;
    }
    int64_t slot = list->indices[key];
    return slot >= 0 && slot < list->pool->num_pages * list->page_size ? slot : -1;
}

static void load_key(const mla_shape *shape, const key_list *list, int64_t slot, int64_t kv_head,
                     float *values)
{
    const mla_problem *p = &shape->problem;
    int64_t in_page = slot % list->page_size;
    const uint8_t *page = (const uint8_t *)list->pool->data +
                          slot / list->page_size * list->pool->stride[0];
    const uint8_t *data = page + in_page * list->pool->stride[1] + kv_head * list->pool->stride[2];
    const uint8_t *scales = NULL;
    if (p->kv_format == MLA_KV_FP8_656) {
        scales = data + MLA_FP8_656_SCALES_AT;
    } else if (p->kv_format == MLA_KV_FP8_584) {
        scales = page + list->page_size * MLA_FP8_584_DATA_BYTES +
                 in_page * MLA_FP8_584_SCALE_BYTES;
    }
    mla_row_decode(p->kv_format, p->dtype, p->d_qk, data, scales, values);
}

static void attend_key(const mla_shape *shape, const float *key, attention_row *row)
{
    double logit = 0.0;
    for (int64_t i = 0; i < shape->problem.d_qk; i++) {
        logit += row->q[i] * key[i];
    }
    logit *= shape->scale;
    if (logit > row->max) {
        double shrink = exp(row->max - logit);
        for (int i = 0; i < D_V; i++) {
            row->acc[i] *= shrink;
        }
        row->sum *= shrink;
        row->max = logit;
    }
    /* Nothing may be subtracted from a maximum of -INFINITY; such a key weighs nothing. */
    double weight = logit == -INFINITY ? 0.0 : exp(logit - row->max);
    for (int i = 0; i < D_V; i++) {
        row->acc[i] += weight * key[i];
    }
    row->sum += weight;
}

static void attend_list(const mla_shape *shape, const key_list *list, int64_t kv_head,
                        attention_row *row)
{
    for (int64_t key = 0; key < list->num_keys; key++) {
        int64_t slot = key_slot(list, key);
        if (slot >= 0) {
            float values[D_QK_MAX];
            load_key(shape, list, slot, kv_head, values);
            attend_key(shape, values, row);
        }
    }
}

/* A row without weights, be it without keys or with logits of -INFINITY only, is an empty row. */
static void store_row(const mla_shape *shape, const mla_tensors *t, mla_row_pos pos,
                      const attention_row *row)
{
    const mla_problem *p = &shape->problem;
    uint16_t *out = (uint16_t *)t->out + pos.batch_idx * t->out_stride[0] +
                    pos.token_idx * t->out_stride[1] + pos.head_idx * t->out_stride[2];
    bool empty = row->sum == 0.0;
    double lse = row->max + log(row->sum);
    double factor = 1.0 / row->sum;
    if (t->attn_sink != NULL) {
        factor *= 1.0 / (1.0 + exp(t->attn_sink[pos.head_idx] - lse));
    }
    for (int i = 0; i < D_V; i++) {
        out[i] = mla_elem_from_f32(p->dtype, empty ? 0.0f : (float)(row->acc[i] * factor));
    }
    if (empty) {
        lse = p->lse_empty_pos_inf ? INFINITY : -INFINITY;
    }
    if (t->lse != NULL) {
        t->lse[pos.batch_idx * t->lse_stride[0] + pos.token_idx * t->lse_stride[1] +
               pos.head_idx * t->lse_stride[2]] = (float)lse;
    }
    if (t->max_logits != NULL) {
        t->max_logits[pos.token_idx * p->h_q + pos.head_idx] = (float)row->max;
    }
}

static int64_t sparse_length(const int32_t *lengths, const mla_shape *shape, mla_row_pos pos,
                             int64_t topk)
{
    if (lengths == NULL) {
        return topk;
    }
    bool decode = shape->problem.op == MLA_OP_SPARSE_DECODE;
    int64_t length = lengths[decode ? pos.batch_idx : pos.token_idx];
    return length < 0 ? 0 : length > topk ? topk : length;
}

static const int32_t *sparse_row(const int32_t *indices, const int64_t *stride, mla_row_pos pos,
                                 int64_t kv_head)
{
    return indices + pos.batch_idx * stride[0] + pos.token_idx * stride[1] + kv_head * stride[2];
}

static void attend_sparse(const mla_shape *shape, const mla_tensors *t, mla_row_pos pos,
                          attention_row *row)
{
    const mla_problem *p = &shape->problem;
    int64_t kv_head = pos.head_idx / shape->group;
    key_list list = {.pool = &t->kv,
                     .page_size = p->page_size,
                     .num_keys = sparse_length(t->topk_length, shape, pos, p->topk),
                     .indices = sparse_row(t->indices, t->indices_stride, pos, kv_head)};
    attend_list(shape, &list, kv_head, row);
    if (p->extra_topk > 0) {
        key_list extra = {
            .pool = &t->extra_kv,
            .page_size = p->extra_page_size,
            .num_keys = sparse_length(t->extra_topk_length, shape, pos, p->extra_topk),
            .indices = sparse_row(t->extra_indices, t->extra_indices_stride, pos, kv_head)};
        attend_list(shape, &extra, kv_head, row);
    }
}

static void attend_dense(const mla_shape *shape, const mla_tensors *t, mla_row_pos pos,
                         attention_row *row)
{
    const mla_problem *p = &shape->problem;
    int64_t num_keys = t->seqlens[pos.batch_idx];
    if (p->causal) {
        num_keys -= p->s_q - 1 - pos.token_idx; /* the last query token sees all keys */
    }
    key_list list = {
        .pool = &t->kv,
        .page_size = p->page_size,
        .num_keys = num_keys,
        .pages = t->max_pages > 0 ? t->block_table + pos.batch_idx * t->block_table_stride : NULL};
    attend_list(shape, &list, pos.head_idx / shape->group, row);
}

void mla_reference_row(const mla_shape *shape, const mla_tensors *tensors, mla_row_pos pos)
{
    attention_row row;
    load_query(shape, tensors, pos, &row);
    if (shape->sparse) {
        attend_sparse(shape, tensors, pos, &row);
    } else {
        attend_dense(shape, tensors, pos, &row);
    }
    store_row(shape, tensors, pos, &row);
}

void mla_reference_run(const mla_shape *shape, const mla_tensors *tensors, int32_t num_threads)
{
    const mla_problem *p = &shape->problem;
    int64_t num_rows = p->batch * p->s_q * p->h_q;
#pragma omp parallel for schedule(dynamic, 16) num_threads(num_threads)
    for (int64_t i = 0; i < num_rows; i++) {
        mla_row_pos pos = {.batch_idx = i / (p->s_q * p->h_q),
                           .token_idx = i / p->h_q % p->s_q,
                           .head_idx = i % p->h_q};
        mla_reference_row(shape, tensors, pos);
    }
}
