#include "cuda_sparse.h"

#include "cuda_plan.h"
#include "cuda_query_rows.h"
#include "sm90/sparse_args.h"
#include "status.h"

static mla_cuda_kernel sparse_kernel(const mla_shape *shape)
{
    const mla_problem *p = &shape->problem;
    const bool bf16 = p->dtype == MLA_DTYPE_BF16;
    if (p->op == MLA_OP_SPARSE_PREFILL) {
        return bf16 ? MLA_CUDA_SPARSE_PREFILL_BF16 : MLA_CUDA_SPARSE_PREFILL_F16;
    }
    /* Neighbours in the grid attend the two halves of 128 rows to the same keys, so that they can
     * share the conversion. */
    const bool pairs = mla_cuda_lay_out_rows(shape).row_tiles % 2 == 0;
    switch (p->kv_format) {
    case MLA_KV_FP8_656:
        return pairs ? MLA_CUDA_SPARSE_PAIR_FP8_656 : MLA_CUDA_SPARSE_DECODE_FP8_656;
    case MLA_KV_FP8_584:
        return pairs ? MLA_CUDA_SPARSE_PAIR_FP8_584 : MLA_CUDA_SPARSE_DECODE_FP8_584;
    default:
        return bf16 ? MLA_CUDA_SPARSE_DECODE_BF16 : MLA_CUDA_SPARSE_DECODE_F16;
    }
}

mla_status mla_cuda_sparse_supports(const mla_shape *shape)
{
    const mla_problem *p = &shape->problem;
    if (p->kv_format != MLA_KV_NATIVE && p->op == MLA_OP_SPARSE_PREFILL) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.kv_format = %d: sparse prefill on CUDA reads native rows only",
                        (int)p->kv_format);
    }
    if (p->kv_format != MLA_KV_NATIVE && p->dtype != MLA_DTYPE_BF16) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.dtype = %d: CUDA reads FP8 rows for BF16 queries only",
                        (int)p->dtype);
    }
    /* Whole blocks of them fit 32 bits, as those of a block table do. */
    if (p->topk + p->extra_topk > INT32_MAX / MLA_BLOCK_TOKENS * MLA_BLOCK_TOKENS) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.topk + extra_topk = %lld + %lld: CUDA counts them in 32 bits",
                        (long long)p->topk, (long long)p->extra_topk);
    }
    return mla_cuda_check_counts(shape);
}

/* Kernels gather rows by loads of 16 bytes. */
static mla_status check_pool(const mla_shape *shape, const mla_pool *pool, int64_t page_size,
                             const char *name)
{
    const int64_t dims[3] = {pool->num_pages, page_size, shape->problem.h_kv};
    return mla_cuda_check_alignment(pool->data, pool->stride, dims, 1, name);
}

static void fill_pool(const mla_pool *pool, int64_t page_size, int64_t topk, const int32_t *indices,
                      const int64_t *indices_stride, const int32_t *lengths,
                      mla_sm90_sparse_pool *told)
{
    told->data = pool->data;
    told->page_stride = pool->stride[0];
    told->token_stride = pool->stride[1];
    told->head_stride = pool->stride[2];
    told->num_slots = pool->num_pages * page_size;
    told->page_size = (int32_t)page_size;
    told->topk = (int32_t)topk;
    told->indices = indices;
    told->lengths = lengths;
    for (int i = 0; i < 3; i++) {
        told->indices_stride[i] = indices_stride[i];
    }
}

mla_status mla_cuda_sparse_run(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                               void *stream)
{
    const mla_problem *p = &shape->problem;
    mla_sm90_sparse_args args = {.lengths_tokens = p->op == MLA_OP_SPARSE_DECODE ? (int32_t)p->s_q
                                                                                 : 1,
                                 .max_logits = tensors->max_logits};
    mla_status status = mla_cuda_check_rows(shape, tensors);
    if (status == MLA_OK) {
        status = check_pool(shape, &tensors->kv, p->page_size, "kv");
    }
    if (status == MLA_OK && p->extra_topk > 0) {
        status = check_pool(shape, &tensors->extra_kv, p->extra_page_size, "extra_kv");
    }
    if (status == MLA_OK) {
        status = mla_cuda_fill_rows(ctx, shape, tensors, plan_buffer, workspace, &args.rows);
    }
    if (status != MLA_OK) {
        return status;
    }
    fill_pool(&tensors->kv, p->page_size, p->topk, tensors->indices, tensors->indices_stride,
              tensors->topk_length, &args.pool[0]);
    if (p->extra_topk > 0) {
        fill_pool(&tensors->extra_kv, p->extra_page_size, p->extra_topk, tensors->extra_indices,
                  tensors->extra_indices_stride, tensors->extra_topk_length, &args.pool[1]);
    }
    return mla_cuda_enqueue_rows(ctx, shape, sparse_kernel(shape), &args, &args.rows, stream);
}
