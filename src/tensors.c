#include "tensors.h"

#include "arg_struct.h"
#include "formats.h"
#include "status.h"

#include <stdio.h>

enum { MAX_MERGE_PARTS = 256 };

/* Byte offsets must fit int64_t with room to spare. */
#define MAX_EXTENT ((int64_t)1 << 59)

static mla_status check_pointer(const void *pointer, const char *name)
{
    return pointer != NULL ? MLA_OK : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = NULL", name);
}

static mla_status check_absent(const void *pointer, const char *name, const char *where)
{
    return pointer == NULL
               ? MLA_OK
               : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s is set: must be NULL in %s", name, where);
}

static mla_status check_aligned(const void *pointer, size_t alignment, const char *name)
{
    return (uintptr_t)pointer % alignment == 0
               ? MLA_OK
               : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %p: must be aligned to %zu bytes", name,
                          pointer, alignment);
}

/*
 * Replaces an all-zero stride array of a [dims[0], dims[1], ..., last_dim] array by the
 * contiguous one and checks any other. With `distinct`, as outputs need it, rows may not share
 * elements along a dimension.
 */
static mla_status resolve_strides(int64_t *stride, const int64_t *dims, int num_dims,
                                  int64_t last_dim, bool distinct, const char *name)
{
    bool contiguous = true;
    for (int i = 0; i < num_dims; i++) {
        contiguous = contiguous && stride[i] == 0;
    }
    if (contiguous) {
        int64_t elems = last_dim;
        for (int i = num_dims - 1; i >= 0; i--) {
            stride[i] = elems;
            /* The product of all dimensions may exceed int64_t; strides beyond it are refused. */
            elems = elems > MAX_EXTENT / dims[i] ? INT64_MAX : elems * dims[i];
        }
    }
    for (int i = 0; i < num_dims; i++) {
        if (stride[i] < 0 || (distinct && dims[i] > 1 && stride[i] < last_dim)) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s[%d] = %lld: must be at least %lld", name,
                            i, (long long)stride[i], (long long)(distinct ? last_dim : 0));
        }
        if (stride[i] > MAX_EXTENT / dims[i]) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                            "%s[%d] = %lld: %lld of them exceed the address space", name, i,
                            (long long)stride[i], (long long)dims[i]);
        }
    }
    return MLA_OK;
}

/* Strides of a pool or cache, from the units of the manual to bytes. */
static mla_status resolve_pool_strides(mla_kv_format kv_format, int64_t *stride, int64_t num_pages,
                                       int64_t page_size, int64_t h_kv, int64_t d_qk,
                                       int64_t page_bytes, const char *name)
{
    if (kv_format == MLA_KV_NATIVE) {
        const int64_t dims[3] = {num_pages > 0 ? num_pages : 1, page_size, h_kv};
        const bool given = stride[0] != 0 || stride[1] != 0 || stride[2] != 0;
        mla_status status = resolve_strides(stride, dims, 3, d_qk, false, name);
        for (int i = 0; i < 2 && given && status == MLA_OK; i++) {
            if (dims[i] > 1 && stride[i] == 0) {
                return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                                "%s[%d] = 0: would make all %s one; set all strides or none", name,
                                i, i == 0 ? "pages" : "tokens of a page");
            }
        }
        for (int i = 0; i < 3 && status == MLA_OK; i++) {
            stride[i] *= 2;
        }
        return status;
    }
    bool rows_656 = kv_format == MLA_KV_FP8_656;
    if (rows_656 ? stride[1] != 0 && stride[1] < MLA_FP8_656_BYTES : stride[1] != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s[1] = %lld: must be 0%s", name,
                        (long long)stride[1], rows_656 ? " or at least 656 bytes" : "");
    }
    if (stride[1] > MAX_EXTENT / page_size) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "%s[1] = %lld: %lld of them exceed the address space", name,
                        (long long)stride[1], (long long)page_size);
    }
    if (stride[1] == 0) {
        stride[1] = rows_656 ? MLA_FP8_656_BYTES : MLA_FP8_584_DATA_BYTES;
    }
    if (stride[0] == 0) {
        stride[0] = rows_656 ? page_size * stride[1] : page_bytes;
    }
    int64_t least = rows_656 ? MLA_FP8_656_BYTES : page_size * MLA_FP8_584_BYTES;
    if (num_pages > 1 && (stride[0] < least || stride[0] > MAX_EXTENT / num_pages)) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s[0] = %lld: must be %lld to %lld bytes", name,
                        (long long)stride[0], (long long)least,
                        (long long)(MAX_EXTENT / num_pages));
    }
    stride[2] = 0;
    return MLA_OK;
}

static mla_status resolve_pool(const mla_shape *shape, mla_pool *pool, int64_t page_size,
                               int64_t page_bytes, const char *name)
{
    if (pool->num_pages < 0 || pool->num_pages > MAX_EXTENT / page_bytes) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s.num_pages = %lld: must be 0 to %lld", name,
                        (long long)pool->num_pages, (long long)(MAX_EXTENT / page_bytes));
    }
    if (pool->num_pages > 0 && pool->data == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s.data = NULL", name);
    }
    if ((uintptr_t)pool->data % (size_t)shape->kv_elem_bytes != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s.data = %p: must be aligned to %lld bytes",
                        name, pool->data, (long long)shape->kv_elem_bytes);
    }
    const mla_problem *p = &shape->problem;
    char stride_name[48];
    (void)snprintf(stride_name, sizeof stride_name, "%s.stride", name);
    return resolve_pool_strides(p->kv_format, pool->stride, pool->num_pages, page_size, p->h_kv,
                                p->d_qk, page_bytes, stride_name);
}

static mla_status check_zero(int64_t value, const char *name, const char *where)
{
    return value == 0 ? MLA_OK
                      : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %lld: must be 0 in %s", name,
                                 (long long)value, where);
}

/* An array of int32 or float32 that must be there. */
static mla_status check_array(const void *pointer, const char *name)
{
    mla_status status = check_pointer(pointer, name);
    return status != MLA_OK ? status : check_aligned(pointer, 4, name);
}

static mla_status resolve_dense(const mla_shape *shape, mla_tensors *t)
{
    mla_status status;
    if (t->max_pages < 0 || t->max_pages > INT32_MAX) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "tensors.max_pages = %lld: must be 0 to %d",
                        (long long)t->max_pages, INT32_MAX);
    }
    if ((status = check_array(t->seqlens, "tensors.seqlens")) != MLA_OK ||
        (status = check_absent(t->indices, "tensors.indices", "dense decode")) != MLA_OK ||
        (status = check_absent(t->topk_length, "tensors.topk_length", "dense decode")) != MLA_OK) {
        return status;
    }
    if (t->max_pages == 0) {
        return MLA_OK;
    }
    if ((status = check_array(t->block_table, "tensors.block_table")) != MLA_OK) {
        return status;
    }
    int64_t dims[1] = {shape->problem.batch};
    return resolve_strides(&t->block_table_stride, dims, 1, t->max_pages, false,
                           "tensors.block_table_stride");
}

static mla_status resolve_sparse(const mla_shape *shape, mla_tensors *t)
{
    const mla_problem *p = &shape->problem;
    const int64_t dims[3] = {p->batch, p->s_q, p->h_kv};
    const char *where = "sparse operations";
    mla_status status;
    if ((status = check_array(t->indices, "tensors.indices")) != MLA_OK ||
        (status = check_aligned(t->topk_length, 4, "tensors.topk_length")) != MLA_OK ||
        (status = check_absent(t->seqlens, "tensors.seqlens", where)) != MLA_OK ||
        (status = check_absent(t->block_table, "tensors.block_table", where)) != MLA_OK ||
        (status = check_zero(t->max_pages, "tensors.max_pages", where)) != MLA_OK) {
        return status;
    }
    status = resolve_strides(t->indices_stride, dims, 3, p->topk, false, "tensors.indices_stride");
    if (status != MLA_OK || p->extra_topk == 0) {
        return status;
    }
    if ((status = check_array(t->extra_indices, "tensors.extra_indices")) != MLA_OK ||
        (status = check_aligned(t->extra_topk_length, 4, "tensors.extra_topk_length")) != MLA_OK ||
        (status = resolve_pool(shape, &t->extra_kv, p->extra_page_size, shape->extra_page_bytes,
                               "tensors.extra_kv")) != MLA_OK) {
        return status;
    }
    return resolve_strides(t->extra_indices_stride, dims, 3, p->extra_topk, false,
                           "tensors.extra_indices_stride");
}

static mla_status check_no_extra(const mla_tensors *t)
{
    const char *where = "a problem without extra_topk";
    mla_status status;
    if ((status = check_absent(t->extra_kv.data, "tensors.extra_kv.data", where)) != MLA_OK ||
        (status = check_zero(t->extra_kv.num_pages, "tensors.extra_kv.num_pages", where)) !=
            MLA_OK ||
        (status = check_absent(t->extra_indices, "tensors.extra_indices", where)) != MLA_OK) {
        return status;
    }
    return check_absent(t->extra_topk_length, "tensors.extra_topk_length", where);
}

mla_status mla_tensors_resolve(const mla_shape *shape, const mla_tensors *tensors,
                               mla_tensors *resolved)
{
    const mla_problem *p = &shape->problem;
    mla_tensors *t = resolved;
    mla_status status = mla_arg_struct_read(tensors, sizeof *t, t, "tensors");
    if (status != MLA_OK) {
        return status;
    }
    const int64_t dims[3] = {p->batch, p->s_q, p->h_q};
    if ((status = check_pointer(t->q, "tensors.q")) != MLA_OK ||
        (status = check_aligned(t->q, 2, "tensors.q")) != MLA_OK ||
        (status = check_pointer(t->out, "tensors.out")) != MLA_OK ||
        (status = check_aligned(t->out, 2, "tensors.out")) != MLA_OK ||
        (status = check_aligned(t->lse, 4, "tensors.lse")) != MLA_OK ||
        (status = check_aligned(t->max_logits, 4, "tensors.max_logits")) != MLA_OK ||
        (status = check_aligned(t->attn_sink, 4, "tensors.attn_sink")) != MLA_OK ||
        (status = resolve_strides(t->q_stride, dims, 3, p->d_qk, false, "tensors.q_stride")) !=
            MLA_OK ||
        (status = resolve_strides(t->out_stride, dims, 3, p->d_v, true, "tensors.out_stride")) !=
            MLA_OK ||
        (status = resolve_strides(t->lse_stride, dims, 3, 1, true, "tensors.lse_stride")) !=
            MLA_OK ||
        (status = resolve_pool(shape, &t->kv, p->page_size, shape->page_bytes, "tensors.kv")) !=
            MLA_OK) {
        return status;
    }
    if (p->op != MLA_OP_SPARSE_PREFILL &&
        (status = check_absent(t->max_logits, "tensors.max_logits", "decode")) != MLA_OK) {
        return status;
    }
    if (p->extra_topk == 0 && (status = check_no_extra(t)) != MLA_OK) {
        return status;
    }
    return shape->sparse ? resolve_sparse(shape, t) : resolve_dense(shape, t);
}

static mla_status check_count(const char *name, int64_t value, int64_t low, int64_t high)
{
    return value >= low && value <= high
               ? MLA_OK
               : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %lld: must be %lld to %lld", name,
                          (long long)value, (long long)low, (long long)high);
}

static mla_status check_merge_dtype(mla_dtype dtype, const char *name)
{
    return dtype >= MLA_DTYPE_BF16 && dtype <= MLA_DTYPE_F32
               ? MLA_OK
               : mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %d: not an mla_dtype", name, (int)dtype);
}

mla_status mla_merge_args_resolve(const mla_merge_args *args, mla_merge_args *resolved)
{
    mla_merge_args *a = resolved;
    mla_status status = mla_arg_struct_read(args, sizeof *a, a, "args");
    if (status != MLA_OK ||
        (status = check_count("args.num_parts", a->num_parts, 1, MAX_MERGE_PARTS)) != MLA_OK ||
        (status = check_count("args.batch", a->batch, 1, INT32_MAX)) != MLA_OK ||
        (status = check_count("args.s_q", a->s_q, 1, INT32_MAX)) != MLA_OK ||
        (status = check_count("args.h_q", a->h_q, 1, 1 << 20)) != MLA_OK ||
        (status = check_count("args.d_v", a->d_v, 512, 512)) != MLA_OK ||
        (status = check_merge_dtype(a->part_dtype, "args.part_dtype")) != MLA_OK ||
        (status = check_merge_dtype(a->out_dtype, "args.out_dtype")) != MLA_OK ||
        (status = check_pointer(a->part_outs, "args.part_outs")) != MLA_OK ||
        (status = check_pointer(a->part_lses, "args.part_lses")) != MLA_OK ||
        (status = check_pointer(a->out, "args.out")) != MLA_OK) {
        return status;
    }
    if (a->batch * a->s_q > MLA_MAX_ROWS / a->h_q) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "args.batch * s_q * h_q = %lld * %lld * %lld: more than 2^47 rows",
                        (long long)a->batch, (long long)a->s_q, (long long)a->h_q);
    }
    size_t part_bytes = a->part_dtype == MLA_DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < a->num_parts; i++) {
        char name[48];
        (void)snprintf(name, sizeof name, "args.part_outs[%lld]", (long long)i);
        if ((status = check_pointer(a->part_outs[i], name)) != MLA_OK ||
            (status = check_aligned(a->part_outs[i], part_bytes, name)) != MLA_OK) {
            return status;
        }
        (void)snprintf(name, sizeof name, "args.part_lses[%lld]", (long long)i);
        if ((status = check_array(a->part_lses[i], name)) != MLA_OK) {
            return status;
        }
    }
    if ((status = check_aligned(a->out, a->out_dtype == MLA_DTYPE_F32 ? 4 : 2, "args.out")) !=
            MLA_OK ||
        (status = check_aligned(a->lse, 4, "args.lse")) != MLA_OK) {
        return status;
    }
    const int64_t dims[3] = {a->batch, a->s_q, a->h_q};
    if ((status = resolve_strides(a->part_out_stride, dims, 3, a->d_v, false,
                                  "args.part_out_stride")) != MLA_OK ||
        (status = resolve_strides(a->part_lse_stride, dims, 3, 1, false, "args.part_lse_stride")) !=
            MLA_OK ||
        (status = resolve_strides(a->out_stride, dims, 3, a->d_v, true, "args.out_stride")) !=
            MLA_OK) {
        return status;
    }
    return resolve_strides(a->lse_stride, dims, 3, 1, true, "args.lse_stride");
}

mla_status mla_pack_args_resolve(const mla_pack_args *args, mla_pack_args *resolved)
{
    mla_pack_args *a = resolved;
    mla_status status = mla_arg_struct_read(args, sizeof *a, a, "args");
    if (status != MLA_OK) {
        return status;
    }
    if (a->kv_format != MLA_KV_NATIVE && a->dtype != MLA_DTYPE_BF16) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "args.dtype = %d: FP8 caches take MLA_DTYPE_BF16 rows", (int)a->dtype);
    }
    int64_t page_bytes = mla_page_bytes(a->kv_format, a->dtype, a->page_size, a->h_kv, a->d_qk);
    if (page_bytes == 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "args: no cache has kv_format %d, dtype %d, page_size %lld, h_kv %lld, "
                        "d_qk %lld",
                        (int)a->kv_format, (int)a->dtype, (long long)a->page_size,
                        (long long)a->h_kv, (long long)a->d_qk);
    }
    if ((status = check_count("args.num_tokens", a->num_tokens, 0, (int64_t)1 << 40)) != MLA_OK ||
        (status = check_count("args.num_pages", a->num_pages, 0, MAX_EXTENT / page_bytes)) !=
            MLA_OK) {
        return status;
    }
    if (a->num_tokens > 0 && ((status = check_pointer(a->rows, "args.rows")) != MLA_OK ||
                              (status = check_aligned(a->rows, 2, "args.rows")) != MLA_OK)) {
        return status;
    }
    size_t cache_alignment = a->kv_format == MLA_KV_NATIVE ? 2 : 1;
    if ((a->num_pages > 0 && (status = check_pointer(a->cache, "args.cache")) != MLA_OK) ||
        (status = check_aligned(a->cache, cache_alignment, "args.cache")) != MLA_OK ||
        (status = check_aligned(a->slots, sizeof *a->slots, "args.slots")) != MLA_OK) {
        return status;
    }
    const int64_t dims[2] = {a->num_tokens > 0 ? a->num_tokens : 1, a->h_kv};
    if ((status = resolve_strides(a->rows_stride, dims, 2, a->d_qk, false, "args.rows_stride")) !=
        MLA_OK) {
        return status;
    }
    return resolve_pool_strides(a->kv_format, a->cache_stride, a->num_pages, a->page_size, a->h_kv,
                                a->d_qk, page_bytes, "args.cache_stride");
}
