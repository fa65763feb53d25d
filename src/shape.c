#include "shape.h"

#include "arg_struct.h"
#include "formats.h"
#include "status.h"

#include <math.h>

enum { MAX_PARTS = 65536 };

#define MAX_COUNT ((int64_t)INT32_MAX)
#define MAX_HEADS ((int64_t)1 << 20)

static mla_status check_range(const char *field, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) {
        return MLA_OK;
    }
    return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.%s = %lld: must be %lld to %lld", field,
                    (long long)value, (long long)low, (long long)high);
}

static mla_status check_unused(const char *field, int64_t value, const char *where)
{
    if (value == 0) {
        return MLA_OK;
    }
    return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.%s = %lld: must be 0 in %s", field,
                    (long long)value, where);
}

static mla_status check_enums(const mla_problem *p)
{
    if (p->op < MLA_OP_DENSE_DECODE || p->op > MLA_OP_SPARSE_PREFILL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.op = %d: not an mla_op", (int)p->op);
    }
    if (p->dtype != MLA_DTYPE_BF16 && p->dtype != MLA_DTYPE_F16) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "problem.dtype = %d: must be MLA_DTYPE_BF16 or MLA_DTYPE_F16",
                        (int)p->dtype);
    }
    if ((int)p->kv_format < MLA_KV_NATIVE || p->kv_format > MLA_KV_FP8_584) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.kv_format = %d: not an mla_kv_format",
                        (int)p->kv_format);
    }
    return MLA_OK;
}

static mla_status check_dims(const mla_problem *p)
{
    if (p->d_qk != 576 && p->d_qk != 512) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.d_qk = %lld: must be 576 or 512",
                        (long long)p->d_qk);
    }
    if (p->d_v != 512) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.d_v = %lld: must be 512",
                        (long long)p->d_v);
    }
    if (p->h_q % p->h_kv != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.h_kv = %lld: must divide h_q = %lld",
                        (long long)p->h_kv, (long long)p->h_q);
    }
    if (p->kv_format == MLA_KV_NATIVE) {
        return MLA_OK;
    }
    if (p->h_kv != 1) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "problem.h_kv = %lld: FP8 rows hold one KV head",
                        (long long)p->h_kv);
    }
    if (p->d_qk != (p->kv_format == MLA_KV_FP8_656 ? 576 : 512)) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "problem.d_qk = %lld: rows of %d bytes have d_qk %d", (long long)p->d_qk,
                        p->kv_format == MLA_KV_FP8_656 ? 656 : 584,
                        p->kv_format == MLA_KV_FP8_656 ? 576 : 512);
    }
    return MLA_OK;
}

static mla_status check_counts(const mla_problem *p)
{
    bool sparse = p->op != MLA_OP_DENSE_DECODE;
    mla_status status;
    if ((status = check_range("batch", p->batch, 1, MAX_COUNT)) != MLA_OK ||
        (status = check_range("s_q", p->s_q, 1, MAX_COUNT)) != MLA_OK ||
        (status = check_range("h_q", p->h_q, 1, MAX_HEADS)) != MLA_OK ||
        (status = check_range("h_kv", p->h_kv, 1, MAX_HEADS)) != MLA_OK ||
        (status = check_range("page_size", p->page_size, 1, MAX_COUNT)) != MLA_OK ||
        (status = check_range("num_parts", p->num_parts, 0, MAX_PARTS)) != MLA_OK) {
        return status;
    }
    if (p->batch * p->s_q > MLA_MAX_ROWS / p->h_q) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "problem.batch * s_q * h_q = %lld * %lld * %lld: more than 2^47 rows",
                        (long long)p->batch, (long long)p->s_q, (long long)p->h_q);
    }
    if (!sparse) {
        if ((status = check_unused("topk", p->topk, "dense decode")) != MLA_OK ||
            (status = check_unused("extra_topk", p->extra_topk, "dense decode")) != MLA_OK) {
            return status;
        }
        return check_unused("extra_page_size", p->extra_page_size, "dense decode");
    }
    if ((status = check_range("topk", p->topk, 1, MAX_COUNT)) != MLA_OK) {
        return status;
    }
    if (p->causal) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "problem.causal = true: only dense decode is causal");
    }
    if (p->op == MLA_OP_SPARSE_PREFILL) {
        if ((status = check_range("batch", p->batch, 1, 1)) != MLA_OK ||
            (status = check_unused("extra_topk", p->extra_topk, "sparse prefill")) != MLA_OK) {
            return status;
        }
        return check_unused("extra_page_size", p->extra_page_size, "sparse prefill");
    }
    if (p->extra_topk == 0) {
        return check_unused("extra_page_size", p->extra_page_size, "a problem without extra_topk");
    }
    if ((status = check_range("extra_topk", p->extra_topk, 1, MAX_COUNT)) != MLA_OK) {
        return status;
    }
    return check_range("extra_page_size", p->extra_page_size, 1, MAX_COUNT);
}

mla_status mla_shape_init(const mla_problem *problem, mla_shape *shape)
{
    mla_problem p;
    mla_status status = mla_arg_struct_read(problem, sizeof p, &p, "problem");
    if (status != MLA_OK || (status = check_enums(&p)) != MLA_OK ||
        (status = check_counts(&p)) != MLA_OK || (status = check_dims(&p)) != MLA_OK) {
        return status;
    }
    /* Kernels multiply it by log2(e), in float32. */
    if (!(fabs(p.softmax_scale) <= 0x1p127)) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "problem.softmax_scale = %g: must be -2^127 to 2^127", p.softmax_scale);
    }
    shape->problem = p;
    shape->sparse = p.op != MLA_OP_DENSE_DECODE;
    shape->num_reqs = shape->sparse ? p.batch * p.s_q : p.batch;
    shape->group = p.h_q / p.h_kv;
    shape->rows = shape->sparse ? shape->group : p.s_q * shape->group;
    shape->kv_elem_bytes = p.kv_format == MLA_KV_NATIVE ? 2 : 1;
    shape->kv_row_bytes = p.kv_format == MLA_KV_NATIVE    ? p.d_qk * 2
                          : p.kv_format == MLA_KV_FP8_656 ? MLA_FP8_656_BYTES
                                                          : MLA_FP8_584_DATA_BYTES;
    shape->page_bytes = mla_page_bytes(p.kv_format, p.dtype, p.page_size, p.h_kv, p.d_qk);
    shape->extra_page_bytes = p.extra_topk == 0 ? 0
                                                : mla_page_bytes(p.kv_format, p.dtype,
                                                                 p.extra_page_size, p.h_kv, p.d_qk);
    shape->scale = (float)(p.softmax_scale == 0.0 ? 1.0 / sqrt((double)p.d_qk) : p.softmax_scale);
    return MLA_OK;
}

int64_t mla_page_bytes(mla_kv_format kv_format, mla_dtype dtype, int64_t page_size, int64_t h_kv,
                       int64_t d_qk)
{
    if (page_size < 1 || page_size > MAX_COUNT || h_kv < 1 || h_kv > MAX_HEADS ||
        (d_qk != 576 && d_qk != 512)) {
        return 0;
    }
    switch (kv_format) {
    case MLA_KV_NATIVE:
        if (dtype != MLA_DTYPE_BF16 && dtype != MLA_DTYPE_F16) {
            return 0;
        }
        return page_size * (h_kv * d_qk * 2);
    case MLA_KV_FP8_656:
        return h_kv == 1 && d_qk == 576 ? page_size * MLA_FP8_656_BYTES : 0;
    case MLA_KV_FP8_584:
        if (h_kv != 1 || d_qk != 512) {
            return 0;
        }
        return (page_size * MLA_FP8_584_BYTES + MLA_FP8_584_DATA_BYTES - 1) /
               MLA_FP8_584_DATA_BYTES * MLA_FP8_584_DATA_BYTES;
    }
    return 0;
}
