#include "attention_case.h"

#include "cmocka_c11.h"
#include "guarded_memory.h"
#include "plain_numbers.h"
#include "random_source.h"

#include <stdlib.h>
#include <string.h>

enum { D_V = 512, ROPE = 64 };

mla_problem dense_problem(mla_dtype dtype, int64_t batch, int64_t s_q, int64_t h_q,
                          int64_t page_size)
{
    return (mla_problem){.struct_size = sizeof(mla_problem),
                         .op = MLA_OP_DENSE_DECODE,
                         .dtype = dtype,
                         .batch = batch,
                         .s_q = s_q,
                         .h_q = h_q,
                         .h_kv = 1,
                         .d_qk = 576,
                         .d_v = D_V,
                         .page_size = page_size};
}

mla_problem sparse_problem(mla_kv_format kv_format, int64_t batch, int64_t s_q, int64_t h_q,
                           int64_t page_size, int64_t topk)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, batch, s_q, h_q, page_size);
    problem.op = MLA_OP_SPARSE_DECODE;
    problem.kv_format = kv_format;
    problem.d_qk = kv_format == MLA_KV_FP8_584 ? 512 : 576;
    problem.topk = topk;
    return problem;
}

mla_problem prefill_problem(mla_dtype dtype, int64_t s_q, int64_t h_q, int64_t topk)
{
    mla_problem problem = dense_problem(dtype, 1, s_q, h_q, 1);
    problem.op = MLA_OP_SPARSE_PREFILL;
    problem.topk = topk;
    return problem;
}

/* ------------------------------------------------------------------------------------------
 * Random data
 * ---------------------------------------------------------------------------------------- */

/* 65,536 normal numbers in a dtype; drawing from a table is what makes large cases cheap. */
typedef struct normal_table {
    mla_dtype dtype;
    double std;
    uint16_t bits[65536];
} normal_table;

static void fill_normal(mla_dtype dtype, double std, random_source *source, uint16_t *elems,
                        int64_t count)
{
    static normal_table table;
    if (table.dtype != dtype || table.std != std) {
        random_source fixed = {.state = 1};
        table.dtype = dtype;
        table.std = std;
        for (int i = 0; i < 65536; i++) {
            table.bits[i] = plain_elem_bits(dtype, std * (double)random_normal(&fixed));
        }
    }
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t bits = random_bits(source);
        for (int64_t j = i; j < count && j < i + 4; j++, bits >>= 16) {
            elems[j] = table.bits[bits & 0xffff];
        }
    }
}

/* e4m3 codes of magnitude up to 2, either sign. */
static void fill_e4m3(random_source *source, uint8_t *codes, int count)
{
    for (int i = 0; i < count; i += 8) {
        uint64_t bits = random_bits(source);
        for (int j = i; j < i + 8; j++, bits >>= 8) {
            codes[j] = (uint8_t)((bits & 0x80) | (bits & 0x7f) % 0x41);
        }
    }
}

static void fill_row(const mla_problem *p, double std, random_source *source, case_row row)
{
    if (p->kv_format == MLA_KV_NATIVE) {
        fill_normal(p->dtype, std, source, (uint16_t *)row.data, p->d_qk);
        return;
    }
    int latent = p->kv_format == MLA_KV_FP8_656 ? 512 : 448;
    fill_e4m3(source, row.data, latent);
    if (p->kv_format == MLA_KV_FP8_656) {
        for (int i = 0; i < 4; i++) {
            float scale = (float)(std * (0.5 + (double)random_below(source, 1000) / 1000.0));
            memcpy(row.scales + 4 * i, &scale, sizeof scale);
        }
    } else {
        for (int i = 0; i < 7; i++) {
            row.scales[i] = (uint8_t)(126 + lrint(log2(std)) + random_below(source, 3));
        }
    }
    uint16_t rope[ROPE];
    fill_normal(MLA_DTYPE_BF16, std, source, rope, ROPE);
    memcpy(row.data + (p->kv_format == MLA_KV_FP8_656 ? 528 : 448), rope, sizeof rope);
}

/* ------------------------------------------------------------------------------------------
 * Layouts
 * ---------------------------------------------------------------------------------------- */

/* Writes the strides of a [batch, s_q, h_q, width] array and returns the elements it spans. */
static int64_t set_strides(case_layout layout, const mla_problem *p, int64_t width, int64_t *stride)
{
    int64_t gap = layout == CASE_GAPS ? 1 : 0;
    if (layout == CASE_HEAD_MAJOR) {
        stride[1] = width;
        stride[0] = stride[1] * p->s_q;
        stride[2] = stride[0] * p->batch;
    } else {
        stride[2] = width + 3 * gap;
        stride[1] = stride[2] * p->h_q + 5 * gap;
        stride[0] = stride[1] * p->s_q + 7 * gap;
    }
    return (p->batch - 1) * stride[0] + (p->s_q - 1) * stride[1] + (p->h_q - 1) * stride[2] + width;
}

static int64_t stride_offset(const int64_t *stride, int64_t batch, int64_t token, int64_t head)
{
    return batch * stride[0] + token * stride[1] + head * stride[2];
}

/* A stride array of a contiguous tensor is left to the library to resolve. */
static void keep_strides(case_layout layout, const int64_t *stride, int64_t *kept)
{
    for (int i = 0; i < 3; i++) {
        kept[i] = layout == CASE_CONTIGUOUS ? 0 : stride[i];
    }
}

static void make_q(attention_case *c, const case_options *o, random_source *source)
{
    const mla_problem *p = &c->problem;
    int64_t stride[3];
    int64_t elems = set_strides(o->layout, p, p->d_qk, stride);
    c->q = guarded_alloc((size_t)elems * 2, 2);
    for (int64_t i = 0; i < p->batch * p->s_q * p->h_q; i++) {
        int64_t at = stride_offset(stride, i / (p->s_q * p->h_q), i / p->h_q % p->s_q, i % p->h_q);
        fill_normal(p->dtype, o->q_std == 0 ? 1 : o->q_std, source, c->q + at, p->d_qk);
    }
    c->tensors.q = c->q;
    keep_strides(o->layout, stride, c->tensors.q_stride);
}

void attention_case_zero_q(attention_case *c)
{
    const mla_problem *p = &c->problem;
    int64_t stride[3];
    set_strides(c->layout, p, p->d_qk, stride);
    for (int64_t i = 0; i < p->batch * p->s_q * p->h_q; i++) {
        int64_t at = stride_offset(stride, i / (p->s_q * p->h_q), i / p->h_q % p->s_q, i % p->h_q);
        memset(c->q + at, 0, (size_t)p->d_qk * 2);
    }
}

/* ------------------------------------------------------------------------------------------
 * Pools
 * ---------------------------------------------------------------------------------------- */

/* Strides of a pool in bytes, with those that stand for the contiguous layout made explicit. */
static void pool_byte_strides(const mla_problem *p, const mla_pool *pool, int64_t page_size,
                              int64_t *stride)
{
    int64_t unit = p->kv_format == MLA_KV_NATIVE ? 2 : 1;
    for (int i = 0; i < 3; i++) {
        stride[i] = pool->stride[i] * unit;
    }
    if (p->kv_format == MLA_KV_FP8_584) {
        stride[1] = 576;
        stride[2] = 0;
    } else if (p->kv_format == MLA_KV_FP8_656) {
        stride[1] = stride[1] != 0 ? stride[1] : 656;
        stride[2] = 0;
    } else if (stride[0] == 0 && stride[1] == 0 && stride[2] == 0) {
        stride[2] = p->d_qk * 2;
        stride[1] = stride[2] * p->h_kv;
        stride[0] = stride[1] * page_size;
    }
    if (stride[0] == 0) {
        stride[0] = p->kv_format == MLA_KV_FP8_584 ? (584 * page_size + 575) / 576 * 576
                                                   : stride[1] * page_size;
    }
}

case_row attention_case_row(const attention_case *c, const mla_pool *pool, int64_t page_size,
                            int64_t slot, int64_t kv_head)
{
    const mla_problem *p = &c->problem;
    int64_t stride[3];
    pool_byte_strides(p, pool, page_size, stride);
    uint8_t *page = (uint8_t *)(uintptr_t)pool->data + slot / page_size * stride[0];
    case_row row = {.data = page + slot % page_size * stride[1] + kv_head * stride[2]};
    if (p->kv_format == MLA_KV_FP8_656) {
        row.scales = row.data + 512;
    } else if (p->kv_format == MLA_KV_FP8_584) {
        row.scales = page + page_size * 576 + slot % page_size * 8;
    }
    return row;
}

/* Allocates a pool, all 0xFF, that ends with its last byte in use. */
static uint8_t *make_pool(const mla_problem *p, const case_options *o, int64_t page_size,
                          int64_t num_pages, mla_pool *pool)
{
    *pool = (mla_pool){.num_pages = num_pages};
    if (num_pages == 0) {
        return NULL;
    }
    int64_t unit = p->kv_format == MLA_KV_NATIVE ? 2 : 1, stride[3];
    pool_byte_strides(p, pool, page_size, stride);
    if (o->page_gap_elems != 0 || o->token_gap_elems != 0) {
        if (p->kv_format != MLA_KV_FP8_584) {
            stride[1] += o->token_gap_elems * unit;
            stride[0] = stride[1] * page_size;
        }
        stride[0] += o->page_gap_elems * unit;
        pool->stride[0] = stride[0] / unit;
        pool->stride[1] = p->kv_format == MLA_KV_FP8_584 ? 0 : stride[1] / unit;
        pool->stride[2] = p->kv_format == MLA_KV_NATIVE ? stride[2] / unit : 0;
    }
    int64_t last_page = p->kv_format == MLA_KV_NATIVE
                            ? (page_size - 1) * stride[1] + (p->h_kv - 1) * stride[2] + p->d_qk * 2
                        : p->kv_format == MLA_KV_FP8_656 ? (page_size - 1) * stride[1] + 656
                                                         : page_size * 584;
    uint8_t *data = guarded_alloc((size_t)((num_pages - 1) * stride[0] + last_page), (size_t)unit);
    pool->data = data;
    return data;
}

static void fill_slot(attention_case *c, const case_options *o, const mla_pool *pool,
                      int64_t page_size, int64_t slot, random_source *source)
{
    for (int64_t head = 0; head < c->problem.h_kv; head++) {
        fill_row(&c->problem, o->kv_std == 0 ? 1 : o->kv_std, source,
                 attention_case_row(c, pool, page_size, slot, head));
    }
}

/* ------------------------------------------------------------------------------------------
 * Dense cases
 * ---------------------------------------------------------------------------------------- */

static int32_t *copy_ints(const int32_t *values, int64_t count)
{
    int32_t *copy = guarded_alloc((size_t)count * sizeof *copy, sizeof *copy);
    memcpy(copy, values, (size_t)count * sizeof *copy);
    return copy;
}

/* What a careless engine leaves in the entries that nobody may read. */
static int32_t wild_int(int64_t i)
{
    const int32_t wild[] = {-1, INT32_MAX, (int32_t)0xdeadbeef, INT32_MIN};
    return wild[i % 4];
}

/* Numbers 0 ... count - 1 in random order. */
static int32_t *shuffled(int64_t count, random_source *source)
{
    int32_t *order = malloc((size_t)(count > 0 ? count : 1) * sizeof *order);
    assert_non_null(order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = random_below(source, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    return order;
}

int64_t dense_slot(const attention_case *c, int64_t req, int64_t token)
{
    int64_t row = c->tensors.block_table_stride != 0 ? c->tensors.block_table_stride
                                                     : c->tensors.max_pages;
    int64_t page = c->block_table[req * row + token / c->problem.page_size];
    return page * c->problem.page_size + token % c->problem.page_size;
}

static void make_table(attention_case *c, const case_options *o, random_source *source)
{
    const mla_problem *p = &c->problem;
    int64_t used_pages = 0, longest = 0;
    for (int64_t i = 0; i < p->batch; i++) {
        int64_t pages = (o->seqlens[i] + p->page_size - 1) / p->page_size;
        used_pages += pages;
        longest = pages > longest ? pages : longest;
    }
    mla_tensors *t = &c->tensors;
    t->max_pages = longest + o->spare_columns;
    t->block_table_stride = o->table_gap != 0 ? t->max_pages + o->table_gap : 0;
    int64_t row = t->max_pages + o->table_gap;
    /* Some pages belong to nobody; a batch without keys has an empty pool. */
    int64_t num_pages = used_pages > 0 ? used_pages + 2 : 0;
    c->pool = make_pool(p, o, p->page_size, num_pages, &t->kv);
    if (t->max_pages == 0) {
        return;
    }
    int64_t entries = (p->batch - 1) * row + t->max_pages;
    c->block_table = guarded_alloc((size_t)entries * sizeof(int32_t), sizeof(int32_t));
    for (int64_t i = 0; i < entries; i++) {
        c->block_table[i] = wild_int(i);
    }
    int32_t *order = shuffled(num_pages, source);
    for (int64_t i = 0, next = 0; i < p->batch; i++) {
        int64_t pages = (o->seqlens[i] + p->page_size - 1) / p->page_size;
        memcpy(c->block_table + i * row, order + next, (size_t)pages * sizeof *order);
        next += pages;
    }
    free(order);
    t->block_table = c->block_table;
}

static void make_dense(attention_case *c, const case_options *o, random_source *source)
{
    const mla_problem *p = &c->problem;
    make_table(c, o, source);
    for (int64_t i = 0; i < p->batch; i++) {
        for (int64_t token = 0; token < o->seqlens[i]; token++) {
            fill_slot(c, o, &c->tensors.kv, p->page_size, dense_slot(c, i, token), source);
        }
    }
    c->seqlens = copy_ints(o->seqlens, p->batch);
    c->tensors.seqlens = c->seqlens;
    c->lengths.seqlens = c->seqlens;
}

/* ------------------------------------------------------------------------------------------
 * Sparse cases
 * ---------------------------------------------------------------------------------------- */

/* Rows of `topk` indices below `num_slots`, some of them holes; `gap` elements between rows. */
static int32_t *make_indices(const mla_problem *p, const case_options *o, int64_t topk,
                             int64_t num_slots, int64_t *stride, random_source *source)
{
    int64_t rows = p->batch * p->s_q * p->h_kv, row = topk + o->indices_gap;
    int64_t entries = (rows - 1) * row + topk;
    int32_t *indices = guarded_alloc((size_t)entries * sizeof *indices, sizeof *indices);
    for (int64_t i = 0; i < entries; i++) {
        bool hole = num_slots == 0 || random_below(source, 100) < o->hole_percent;
        int32_t past_pool = (int32_t)(num_slots + random_below(source, 3));
        indices[i] = !hole        ? (int32_t)random_below(source, num_slots)
                     : i % 2 == 0 ? past_pool
                                  : wild_int(i);
    }
    if (o->indices_gap != 0) {
        stride[2] = row;
        stride[1] = row * p->h_kv;
        stride[0] = stride[1] * p->s_q;
    }
    return indices;
}

static void make_sparse(attention_case *c, const case_options *o, random_source *source)
{
    const mla_problem *p = &c->problem;
    mla_tensors *t = &c->tensors;
    int64_t num_slots = o->pool_pages * p->page_size;
    int64_t num_lengths = p->op == MLA_OP_SPARSE_DECODE ? p->batch : p->s_q;
    c->pool = make_pool(p, o, p->page_size, o->pool_pages, &t->kv);
    for (int64_t slot = 0; slot < num_slots; slot++) {
        fill_slot(c, o, &t->kv, p->page_size, slot, source);
    }
    c->indices = make_indices(p, o, p->topk, num_slots, t->indices_stride, source);
    t->indices = c->indices;
    if (o->topk_length != NULL) {
        t->topk_length = copy_ints(o->topk_length, num_lengths);
        c->lengths.topk_length = t->topk_length;
    }
    if (p->extra_topk == 0) {
        return;
    }
    num_slots = o->extra_pool_pages * p->extra_page_size;
    c->extra_pool = make_pool(p, o, p->extra_page_size, o->extra_pool_pages, &t->extra_kv);
    for (int64_t slot = 0; slot < num_slots; slot++) {
        fill_slot(c, o, &t->extra_kv, p->extra_page_size, slot, source);
    }
    c->extra_indices = make_indices(p, o, p->extra_topk, num_slots, t->extra_indices_stride,
                                    source);
    t->extra_indices = c->extra_indices;
    if (o->extra_topk_length != NULL) {
        t->extra_topk_length = copy_ints(o->extra_topk_length, num_lengths);
        c->lengths.extra_topk_length = t->extra_topk_length;
    }
}

void attention_case_make(attention_case *made, const mla_problem *problem,
                         const case_options *options)
{
    random_source source = {.state = options->seed};
    *made = (attention_case){.problem = *problem,
                             .lengths = {.struct_size = sizeof made->lengths},
                             .tensors = {.struct_size = sizeof made->tensors},
                             .layout = options->layout};
    make_q(made, options, &source);
    if (problem->op == MLA_OP_DENSE_DECODE) {
        make_dense(made, options, &source);
    } else {
        make_sparse(made, options, &source);
    }
}

/* ------------------------------------------------------------------------------------------
 * Runs
 * ---------------------------------------------------------------------------------------- */

/* The case's arguments were accepted; a refusal is the test's failure. */
static void require_ok(mla_status status, const char *call)
{
    if (status != MLA_OK) {
        fail_msg("%s: %s: %s", call, mla_status_name(status), mla_last_error());
    }
}

mla_plan attention_case_plan(const mla_ctx *ctx, const attention_case *c)
{
    mla_sizes sizes = {.struct_size = sizeof sizes};
    require_ok(mla_get_sizes(ctx, &c->problem, &sizes), "mla_get_sizes");
    mla_plan plan = {.struct_size = sizeof plan,
                     .buffer = guarded_alloc(sizes.plan_bytes, 16),
                     .buffer_bytes = sizes.plan_bytes};
    require_ok(mla_plan_build(ctx, &c->problem, &c->lengths, &plan, NULL), "mla_plan_build");
    return plan;
}

attention_result attention_result_alloc(const mla_problem *p)
{
    size_t rows = (size_t)(p->batch * p->s_q * p->h_q);
    attention_result result = {.out = guarded_alloc(rows * D_V * 2, 2),
                               .lse = guarded_alloc(rows * sizeof(float), sizeof(float))};
    if (p->op == MLA_OP_SPARSE_PREFILL) {
        result.max_logits = guarded_alloc(rows * sizeof(float), sizeof(float));
    }
    return result;
}

/* Copies rows of `width` bytes out of a strided buffer and then requires that all that is left in
 * it is 0xFF. */
static void gather_rows(const mla_problem *p, const int64_t *stride, size_t elem_bytes,
                        int64_t width, int64_t span, uint8_t *strided, void *packed)
{
    size_t row_bytes = (size_t)width * elem_bytes;
    for (int64_t i = 0; i < p->batch * p->s_q * p->h_q; i++) {
        uint8_t *row = strided + (size_t)stride_offset(stride, i / (p->s_q * p->h_q),
                                                       i / p->h_q % p->s_q, i % p->h_q) *
                                     elem_bytes;
        memcpy((uint8_t *)packed + (size_t)i * row_bytes, row, row_bytes);
        memset(row, 0xff, row_bytes);
    }
    for (size_t i = 0; i < (size_t)span * elem_bytes; i++) {
        if (strided[i] != 0xff) {
            fail_msg("byte %zu of an output, between its rows, was overwritten", i);
        }
    }
}

attention_result attention_case_run_plan(const mla_ctx *ctx, const attention_case *c,
                                         const mla_plan *plan)
{
    const mla_problem *p = &c->problem;
    attention_result result = attention_result_alloc(p);
    size_t mark = guarded_mark();
    mla_sizes sizes = {.struct_size = sizeof sizes};
    require_ok(mla_get_sizes(ctx, p, &sizes), "mla_get_sizes");
    void *workspace = sizes.workspace_bytes > 0 ? guarded_alloc(sizes.workspace_bytes, 16) : NULL;
    mla_tensors t = c->tensors;
    int64_t out_stride[3], lse_stride[3];
    int64_t out_span = set_strides(c->layout, p, D_V, out_stride);
    int64_t lse_span = set_strides(c->layout, p, 1, lse_stride);
    t.out = guarded_alloc((size_t)out_span * 2, 2);
    t.lse = guarded_alloc((size_t)lse_span * sizeof(float), sizeof(float));
    t.max_logits = result.max_logits;
    keep_strides(c->layout, out_stride, t.out_stride);
    keep_strides(c->layout, lse_stride, t.lse_stride);
    require_ok(mla_run(ctx, p, &t, plan, workspace, sizes.workspace_bytes, NULL), "mla_run");
    gather_rows(p, out_stride, 2, D_V, out_span, t.out, result.out);
    gather_rows(p, lse_stride, sizeof(float), 1, lse_span, (uint8_t *)t.lse, result.lse);
    guarded_release(mark);
    return result;
}

attention_result attention_case_run(const mla_ctx *ctx, const attention_case *c)
{
    mla_plan plan = attention_case_plan(ctx, c);
    return attention_case_run_plan(ctx, c, &plan);
}
