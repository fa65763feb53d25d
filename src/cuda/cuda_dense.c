#include "cuda_dense.h"

#include "cuda_plan.h"
#include "cuda_query_rows.h"
#include "status.h"

mla_status mla_cuda_dense_supports(const mla_shape *shape)
{
    const mla_problem *p = &shape->problem;
    const int64_t page = p->page_size;
    if (p->kv_format != MLA_KV_NATIVE) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.kv_format = %d: dense decode on CUDA reads native rows only",
                        (int)p->kv_format);
    }
    if (page < MLA_SM90_MIN_PAGE) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.page_size = %lld: CUDA copies boxes of at least %d tokens",
                        (long long)page, MLA_SM90_MIN_PAGE);
    }
    if (page > INT32_MAX || (page % MLA_BLOCK_TOKENS != 0 && MLA_BLOCK_TOKENS % page != 0)) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.page_size = %lld: CUDA needs 8, 16, 32 or a multiple of %d",
                        (long long)page, MLA_BLOCK_TOKENS);
    }
    return mla_cuda_check_counts(shape);
}

static mla_cuda_kernel dense_kernel(const mla_ctx *ctx, const mla_shape *shape)
{
    const bool bf16 = shape->problem.dtype == MLA_DTYPE_BF16;
    if (mla_cuda_cut_rule(ctx, shape).column_parts > 1) {
        return bf16 ? MLA_CUDA_DENSE_BF16_SMALL : MLA_CUDA_DENSE_F16_SMALL;
    }
    return bf16 ? MLA_CUDA_DENSE_BF16 : MLA_CUDA_DENSE_F16;
}

static mla_status encode_kv(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *t,
                            CUtensorMap *map)
{
    const mla_problem *p = &shape->problem;
    const int64_t num_pages = t->kv.num_pages;
    const cuuint64_t dims[4] = {(cuuint64_t)p->d_qk, (cuuint64_t)p->page_size,
                                (cuuint64_t)num_pages, (cuuint64_t)p->h_kv};
    const cuuint64_t strides[3] = {mla_cuda_map_stride(t->kv.stride[1], p->page_size),
                                   mla_cuda_map_stride(t->kv.stride[0], num_pages),
                                   mla_cuda_map_stride(t->kv.stride[2], p->h_kv)};
    const cuuint32_t box[4] = {
        MLA_SM90_TILE_COLS,
        (cuuint32_t)(p->page_size < MLA_BLOCK_TOKENS ? p->page_size : MLA_BLOCK_TOKENS), 1, 1};
    return mla_cuda_encode_map(ctx, shape, map, 4, t->kv.data, dims, strides, box);
}

/* Keys that the block table has room for, in whole blocks that 32 bits count; none where the pool
 * has no page. */
static int32_t table_tokens(const mla_shape *shape, const mla_tensors *t)
{
    const int64_t page = shape->problem.page_size;
    const int32_t most = INT32_MAX / MLA_BLOCK_TOKENS * MLA_BLOCK_TOKENS;
    if (t->kv.num_pages == 0) {
        return 0;
    }
    return t->max_pages < most / page ? (int32_t)(t->max_pages * page) : most;
}

static mla_status check_tensors(const mla_shape *shape, const mla_tensors *t)
{
    const mla_problem *p = &shape->problem;
    const int64_t kv_dims[3] = {t->kv.num_pages, p->page_size, p->h_kv};
    mla_status status = mla_cuda_check_rows(shape, t);
    if (status == MLA_OK) {
        status = mla_cuda_check_alignment(t->kv.data, t->kv.stride, kv_dims, 1, "kv");
    }
    if (status == MLA_OK) {
        status = mla_cuda_check_reach(t->kv.stride, kv_dims, 1, "kv");
    }
    if (status == MLA_OK && t->kv.num_pages > INT32_MAX) {
        status = mla_fail(MLA_ERR_UNSUPPORTED, "tensors.kv.num_pages = %lld: CUDA counts to 2^31",
                          (long long)t->kv.num_pages);
    }
    return status;
}

mla_status mla_cuda_dense_run(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              void *stream)
{
    mla_sm90_dense_args args = {.seqlens = tensors->seqlens,
                                .block_table = tensors->block_table,
                                .block_table_stride = tensors->block_table_stride,
                                .max_tokens = table_tokens(shape, tensors)};
    mla_status status = check_tensors(shape, tensors);
    if (status == MLA_OK) {
        status = mla_cuda_fill_rows(ctx, shape, tensors, plan_buffer, workspace, &args);
    }
    if (status == MLA_OK && args.max_tokens > 0) {
        status = encode_kv(ctx, shape, tensors, &args.kv_map);
    }
    if (status != MLA_OK) {
        return status;
    }
    return mla_cuda_enqueue_rows(ctx, shape, dense_kernel(ctx, shape), &args, &args, stream);
}
