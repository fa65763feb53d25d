#include "batch.h"
#include "batch_pool.h"
#include "tool.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512, TILE = 64 };

const char *tensor_name(tensor_id id)
{
    static const char *const names[TENSOR_COUNT] = {"q",
                                                    "kv_cache",
                                                    "block_table",
                                                    "seqlens",
                                                    "indices",
                                                    "topk_length",
                                                    "extra_kv_cache",
                                                    "extra_indices",
                                                    "extra_topk_length",
                                                    "attn_sink",
                                                    "out",
                                                    "lse",
                                                    "max_logits"};
    assert(id >= 0 && id < TENSOR_COUNT);
    return names[id];
}

void tensor_bind(mla_tensors *tensors, tensor_id id, void *data)
{
    switch (id) {
    case TENSOR_Q:
        tensors->q = data;
        break;
    case TENSOR_KV:
        tensors->kv.data = data;
        break;
    case TENSOR_BLOCK_TABLE:
        tensors->block_table = data;
        break;
    case TENSOR_SEQLENS:
        tensors->seqlens = data;
        break;
    case TENSOR_INDICES:
        tensors->indices = data;
        break;
    case TENSOR_TOPK_LENGTH:
        tensors->topk_length = data;
        break;
    case TENSOR_EXTRA_KV:
        tensors->extra_kv.data = data;
        break;
    case TENSOR_EXTRA_INDICES:
        tensors->extra_indices = data;
        break;
    case TENSOR_EXTRA_TOPK_LENGTH:
        tensors->extra_topk_length = data;
        break;
    case TENSOR_ATTN_SINK:
        tensors->attn_sink = data;
        break;
    case TENSOR_OUT:
        tensors->out = data;
        break;
    case TENSOR_LSE:
        tensors->lse = data;
        break;
    default:
        assert(id == TENSOR_MAX_LOGITS);
        tensors->max_logits = data;
        break;
    }
}

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value == 0 ? fallback : value;
}

static batch_spec with_defaults(const batch_spec *given)
{
    batch_spec spec = *given;
    bool dense = spec.op == MLA_OP_DENSE_DECODE;
    spec.dtype = spec.dtype == 0 ? MLA_DTYPE_BF16 : spec.dtype;
    spec.batch = or_default(spec.batch, 1);
    spec.s_q = or_default(spec.s_q, 1);
    spec.h_q = or_default(spec.h_q, 16);
    spec.h_kv = or_default(spec.h_kv, 1);
    spec.d_qk = spec.kv_format == MLA_KV_FP8_584 ? 512 : or_default(spec.d_qk, 576);
    spec.page_size = spec.op == MLA_OP_SPARSE_PREFILL ? 1 : or_default(spec.page_size, 64);
    spec.spare_pages = spec.spare_pages < 0 ? 0 : or_default(spec.spare_pages, 3);
    spec.topk = dense ? 0 : or_default(spec.topk, 64);
    spec.pool_slots = or_default(spec.pool_slots, 512);
    spec.extra_page_size = spec.extra_topk == 0 ? 0 : or_default(spec.extra_page_size, 64);
    spec.extra_pool_slots = or_default(spec.extra_pool_slots, 512);
    spec.q_std = spec.q_std == 0.0 ? 1.0 : fmax(spec.q_std, 0.0);
    spec.kv_std = spec.kv_std == 0.0 ? 1.0 : spec.kv_std;
    spec.alignment = spec.alignment == 0 ? 1 : spec.alignment;
    return spec;
}

mla_problem batch_problem(const batch_spec *given)
{
    const batch_spec spec = with_defaults(given);
    return (mla_problem){.struct_size = sizeof(mla_problem),
                         .op = spec.op,
                         .dtype = spec.dtype,
                         .kv_format = spec.kv_format,
                         .batch = spec.batch,
                         .s_q = spec.s_q,
                         .h_q = spec.h_q,
                         .h_kv = spec.h_kv,
                         .d_qk = spec.d_qk,
                         .d_v = D_V,
                         .page_size = spec.page_size,
                         .topk = spec.topk,
                         .extra_page_size = spec.extra_page_size,
                         .extra_topk = spec.extra_topk,
                         .softmax_scale = spec.softmax_scale,
                         .num_parts = (int32_t)spec.num_parts,
                         .causal = spec.causal,
                         .batch_invariant = spec.batch_invariant,
                         .lse_empty_pos_inf = spec.lse_empty_pos_inf};
}

/* Strides of a [batch, s_q, h_q, width] tensor with a gap after each head. */
static void fill_strides(const batch_spec *spec, int64_t width, int64_t stride[3])
{
    stride[2] = width + spec->head_gap;
    stride[1] = stride[2] * spec->h_q;
    stride[0] = stride[1] * spec->s_q;
}

static bool build_q(batch *built, uint64_t seed)
{
    const batch_spec *spec = &built->spec;
    int64_t *stride = built->tensors.q_stride;
    fill_strides(spec, spec->d_qk, stride);
    int64_t rows = spec->batch * spec->s_q * spec->h_q;
    int64_t count = rows * stride[2] - spec->head_gap;
    guarded_memory *memory = &built->memory[TENSOR_Q];
    if (!guarded_alloc(memory, (size_t)count * 2, spec->alignment)) {
        return false;
    }
    uint16_t *values = (uint16_t *)(void *)memory->data;
    poison_fill(spec, values, count);
    static value_stock stock;
    value_stock_fill(&stock, spec->dtype == MLA_DTYPE_BF16 ? &small_bf16 : &small_f16, spec->q_std,
                     seed);
    rng random;
    rng_seed(&random, seed + 1);
    for (int64_t row = 0; row < rows; row++) {
        value_stock_draw(&stock, &random, values + row * stride[2], spec->d_qk);
    }
    built->io_bytes = rows * (spec->d_qk + D_V) * 2;
    return true;
}

static int32_t *alloc_ints(batch *built, tensor_id id, int64_t count)
{
    guarded_memory *memory = &built->memory[id];
    if (!guarded_alloc(memory, (size_t)count * sizeof(int32_t), built->spec.alignment)) {
        return NULL;
    }
    return (int32_t *)(void *)memory->data;
}

static int64_t pages_of(const batch_spec *spec, int64_t tokens)
{
    return (tokens + spec->page_size - 1) / spec->page_size;
}

/* Lengths of the requests; returns the pages that they need, or -1. */
static int64_t build_seqlens(batch *built, rng *random, int64_t *max_pages)
{
    const batch_spec *spec = &built->spec;
    int32_t *seqlens = alloc_ints(built, TENSOR_SEQLENS, spec->batch);
    if (seqlens == NULL) {
        return -1;
    }
    int64_t num_pages = 0;
    *max_pages = 0;
    for (int64_t r = 0; r < spec->batch; r++) {
        int64_t length = spec->num_lengths > 0
                             ? spec->lengths[r % spec->num_lengths]
                             : spec->len_min + rng_below(random, spec->len_max - spec->len_min + 1);
        seqlens[r] = (int32_t)length;
        int64_t pages = pages_of(spec, length);
        num_pages += pages;
        *max_pages = pages > *max_pages ? pages : *max_pages;
    }
    return num_pages;
}

static const uint32_t wild_ints[] = {UINT32_MAX, INT32_MAX, 0xDEADBEEF, 0x80000000u};

static bool build_dense(batch *built, batch_pool *pool, uint64_t seed)
{
    batch_spec *spec = &built->spec;
    mla_tensors *tensors = &built->tensors;
    rng random;
    rng_seed(&random, seed + 10);
    int64_t max_pages;
    int64_t own_pages = build_seqlens(built, &random, &max_pages);
    if (own_pages < 0) {
        return false;
    }
    bool shared = spec->pool_pages > 0;
    int64_t num_pages = (shared ? spec->pool_pages : own_pages) + spec->spare_pages;
    tensors->max_pages = max_pages + spec->table_columns;
    tensors->block_table_stride = tensors->max_pages + (spec->table_columns > 0 ? 3 : 0);
    int64_t entries = spec->batch * tensors->block_table_stride;
    int32_t *table = alloc_ints(built, TENSOR_BLOCK_TABLE, entries);
    if (table == NULL || !batch_pool_open(pool, &built->memory[TENSOR_KV], spec, spec->page_size,
                                          num_pages, seed + 20)) {
        return false;
    }
    for (int64_t i = 0; i < entries; i++) {
        table[i] = (int32_t)wild_ints[i % 4];
    }
    int32_t *order = tool_alloc((size_t)num_pages, sizeof *order);
    rng_shuffle(&random, order, num_pages);
    const int32_t *seqlens = (const int32_t *)(const void *)built->memory[TENSOR_SEQLENS].data;
    int64_t next = 0;
    for (int64_t r = 0; r < spec->batch; r++) {
        int32_t *row = table + r * tensors->block_table_stride;
        for (int64_t token = 0; token < seqlens[r]; token++) {
            int64_t column = token / spec->page_size;
            if (token % spec->page_size == 0) {
                row[column] = order[shared ? rng_below(&random, spec->pool_pages) : next++];
            }
            batch_pool_write(pool, row[column] * spec->page_size + token % spec->page_size);
        }
        if (spec->nan_request == r + 1 && seqlens[r] > 0) {
            batch_pool_write_nan(pool, row[0] * spec->page_size);
        }
        built->kv_bytes += seqlens[r] * batch_row_bytes(spec);
    }
    free(order);
    tensors->kv.num_pages = num_pages;
    tensors->kv.stride[0] = pool->page_stride / (spec->kv_format == MLA_KV_NATIVE ? 2 : 1);
    if (spec->kv_format == MLA_KV_NATIVE) {
        tensors->kv.stride[1] = spec->h_kv * spec->d_qk;
        tensors->kv.stride[2] = spec->d_qk;
    }
    return true;
}

static bool is_hole(const batch_spec *spec, rng *random, int64_t lane, int64_t topk)
{
    switch (spec->holes) {
    case HOLES_SCATTERED:
        return rng_below(random, 5) == 0;
    case HOLES_FIRST_TILE:
        return lane < TILE;
    case HOLES_MIDDLE_TILE:
        return lane / TILE == topk / TILE / 2;
    case HOLES_LAST_TILE:
        return lane >= (topk - 1) / TILE * TILE;
    case HOLES_ALL:
        return true;
    default:
        return false;
    }
}

/* One list of indices with the pool that it points into and its lengths. */
typedef struct index_list {
    tensor_id kv, indices, lengths;
    int64_t topk, page_size, slots;
} index_list;

static bool build_lengths(batch *built, const index_list *list, rng *random)
{
    const batch_spec *spec = &built->spec;
    if (spec->topk_length == TOPK_LENGTH_NONE) {
        return true;
    }
    int64_t count = spec->op == MLA_OP_SPARSE_PREFILL ? spec->s_q : spec->batch;
    int32_t *lengths = alloc_ints(built, list->lengths, count);
    for (int64_t i = 0; lengths != NULL && i < count; i++) {
        const int32_t of_rule[] = {0, (int32_t)rng_below(random, list->topk + 1), 0,
                                   -7 - (int32_t)i, (int32_t)list->topk + 1 + (int32_t)i % 1000};
        lengths[i] = of_rule[spec->topk_length];
    }
    return lengths != NULL;
}

static int64_t list_keys(const batch *built, const index_list *list, int64_t request, int64_t token)
{
    const uint8_t *data = built->memory[list->lengths].data;
    if (data == NULL) {
        return list->topk;
    }
    const int32_t *lengths = (const int32_t *)(const void *)data;
    int64_t length = lengths[built->spec.op == MLA_OP_SPARSE_PREFILL ? token : request];
    return length < 0 ? 0 : length > list->topk ? list->topk : length;
}

static bool build_list(batch *built, const index_list *list, batch_pool *pool, mla_pool *bound,
                       int64_t stride[3], uint64_t seed)
{
    const batch_spec *spec = &built->spec;
    rng random;
    rng_seed(&random, seed);
    int64_t num_pages = (list->slots + list->page_size - 1) / list->page_size + spec->spare_pages;
    int64_t num_slots = num_pages * list->page_size;
    stride[2] = list->topk;
    stride[1] = stride[2] * spec->h_kv;
    stride[0] = stride[1] * spec->s_q;
    int32_t *indices = alloc_ints(built, list->indices, spec->batch * stride[0]);
    if (indices == NULL || !build_lengths(built, list, &random) ||
        !batch_pool_open(pool, &built->memory[list->kv], spec, list->page_size, num_pages,
                         seed + 20)) {
        return false;
    }
    for (int64_t row = 0; row < spec->batch * spec->s_q * spec->h_kv; row++) {
        int64_t query = row / spec->h_kv;
        int64_t keys = list_keys(built, list, query / spec->s_q, query % spec->s_q);
        for (int64_t lane = 0; lane < list->topk; lane++) {
            int32_t *index = &indices[row * list->topk + lane];
            if (lane >= keys) {
                /* The last slot lies in a spare page: in the pool, and poison. */
                *index = lane % 2 == 0 ? (int32_t)num_slots - 1 : (int32_t)wild_ints[lane / 2 % 4];
            } else if (is_hole(spec, &random, lane, list->topk)) {
                const int32_t outside[] = {-1, (int32_t)num_slots, INT32_MAX, INT32_MIN};
                *index = outside[rng_below(&random, 4)];
            } else {
                *index = (int32_t)(spec->in_order ? (query * list->topk + lane) % list->slots
                                                  : rng_below(&random, list->slots));
                batch_pool_write(pool, *index);
            }
        }
        built->kv_bytes += keys * batch_row_bytes(spec) / spec->h_kv;
    }
    bound->num_pages = num_pages;
    bound->stride[0] = pool->page_stride / (spec->kv_format == MLA_KV_NATIVE ? 2 : 1);
    if (spec->kv_format == MLA_KV_NATIVE) {
        bound->stride[1] = spec->h_kv * spec->d_qk;
        bound->stride[2] = spec->d_qk;
    }
    return true;
}

static index_list main_list(const batch_spec *spec)
{
    return (index_list){TENSOR_KV,  TENSOR_INDICES,  TENSOR_TOPK_LENGTH,
                        spec->topk, spec->page_size, spec->pool_slots};
}

static index_list extra_list(const batch_spec *spec)
{
    return (index_list){TENSOR_EXTRA_KV,  TENSOR_EXTRA_INDICES,  TENSOR_EXTRA_TOPK_LENGTH,
                        spec->extra_topk, spec->extra_page_size, spec->extra_pool_slots};
}

static bool build_sparse(batch *built, batch_pool *pool, uint64_t seed)
{
    mla_tensors *tensors = &built->tensors;
    index_list list = main_list(&built->spec);
    if (!build_list(built, &list, pool, &tensors->kv, tensors->indices_stride, seed + 30)) {
        return false;
    }
    if (built->spec.extra_topk == 0) {
        return true;
    }
    batch_pool_close(pool);
    list = extra_list(&built->spec);
    return build_list(built, &list, pool, &tensors->extra_kv, tensors->extra_indices_stride,
                      seed + 60);
}

static bool build_sink(batch *built, uint64_t seed)
{
    const batch_spec *spec = &built->spec;
    if (spec->sink == SINK_NONE) {
        return true;
    }
    guarded_memory *memory = &built->memory[TENSOR_ATTN_SINK];
    if (!guarded_alloc(memory, (size_t)spec->h_q * sizeof(float), spec->alignment)) {
        return false;
    }
    rng random;
    rng_seed(&random, seed + 5);
    float *sink = (float *)(void *)memory->data;
    for (int64_t h = 0; h < spec->h_q; h++) {
        const float of_turn[3] = {(float)(4.0 * rng_normal(&random)), -INFINITY, INFINITY};
        sink[h] = of_turn[spec->sink == SINK_MIXED ? h % 3 : 0];
    }
    return true;
}

static void fill_output_strides(batch *built)
{
    const batch_spec *spec = &built->spec;
    fill_strides(spec, D_V, built->tensors.out_stride);
    int64_t *stride = built->tensors.lse_stride;
    stride[0] = spec->s_q * spec->h_q;
    stride[1] = spec->lse_by_head ? 1 : spec->h_q;
    stride[2] = spec->lse_by_head ? spec->s_q : 1;
}

bool batch_build(batch *built, const batch_spec *spec, uint64_t seed)
{
    *built = (batch){.spec = with_defaults(spec),
                     .problem = batch_problem(spec),
                     .tensors.struct_size = sizeof(mla_tensors)};
    assert(built->spec.h_q % built->spec.h_kv == 0);
    assert(built->spec.len_min <= built->spec.len_max);
    batch_pool *pool = tool_alloc(1, sizeof *pool);
    bool ok = build_q(built, seed) && build_sink(built, seed);
    if (ok) {
        ok = built->spec.op == MLA_OP_DENSE_DECODE ? build_dense(built, pool, seed)
                                                   : build_sparse(built, pool, seed);
    }
    batch_pool_close(pool);
    free(pool);
    if (!ok) {
        batch_free(built);
        return false;
    }
    fill_output_strides(built);
    for (int id = 0; id < TENSOR_FIRST_OUTPUT; id++) {
        tensor_bind(&built->tensors, (tensor_id)id,
                    built->memory[id].bytes > 0 ? built->memory[id].data : NULL);
    }
    for (int64_t r = 0; r < built->spec.batch; r++) {
        for (int64_t t = 0; t < built->spec.s_q; t++) {
            built->keys_read += batch_row_keys(built, r, t);
        }
    }
    return true;
}

int64_t batch_row_keys(const batch *input, int64_t request, int64_t token)
{
    const batch_spec *spec = &input->spec;
    if (spec->op != MLA_OP_DENSE_DECODE) {
        index_list list = main_list(spec), extra = extra_list(spec);
        return list_keys(input, &list, request, token) + list_keys(input, &extra, request, token);
    }
    const int32_t *seqlens = (const int32_t *)(const void *)input->memory[TENSOR_SEQLENS].data;
    int64_t keys = seqlens[request] - (spec->causal ? spec->s_q - 1 - token : 0);
    return keys < 0 ? 0 : keys;
}
