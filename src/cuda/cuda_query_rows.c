#include "cuda_query_rows.h"

#include "cuda_plan.h"
#include "status.h"

#include <math.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Query tokens that share the keys of a plan request. */
static int64_t tokens_a_request(const mla_shape *shape)
{
    return shape->sparse ? 1 : shape->problem.s_q;
}

/*
 * Rows that are 64 neighbours of one dimension, or whole heads of several tokens, fit one box.
 * Otherwise tiles stay within a token, and the last tile of each is padded. The choice must not
 * depend on strides, since plans are built without them: several tokens merge into one dimension
 * only where every layout allows it.
 */
mla_cuda_row_layout mla_cuda_lay_out_rows(const mla_shape *shape)
{
    const int64_t group = shape->group, tokens = tokens_a_request(shape);
    mla_cuda_row_layout rows = {.dim_rows = group,
                                .box_rows = MLA_SM90_TILE_ROWS,
                                .box_tokens = 1,
                                .group_pad = (int32_t)group,
                                .rows_a_token = (int32_t)group};
    if (tokens == 1) {
        rows.rows_a_token = INT32_MAX;
    } else if (MLA_SM90_TILE_ROWS % group == 0) {
        rows.box_rows = (int32_t)group;
        rows.box_tokens = (int32_t)(MLA_SM90_TILE_ROWS / group);
    } else {
        rows.group_pad = (int32_t)(ceil_div(group, MLA_SM90_TILE_ROWS) * MLA_SM90_TILE_ROWS);
        rows.rows_a_token = rows.group_pad;
    }
    rows.row_tiles = ceil_div(tokens * rows.group_pad, MLA_SM90_TILE_ROWS);
    return rows;
}

mla_status mla_cuda_check_counts(const mla_shape *shape)
{
    const mla_problem *p = &shape->problem;
    if (shape->num_reqs > INT32_MAX) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.batch * s_q = %lld * %lld: CUDA counts query tokens in 32 bits",
                        (long long)p->batch, (long long)p->s_q);
    }
    if ((shape->group + MLA_SM90_TILE_ROWS) * tokens_a_request(shape) > INT32_MAX / 2) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.s_q = %lld, problem.h_q = %lld: too many rows", (long long)p->s_q,
                        (long long)p->h_q);
    }
    /* The merge counts its units in 32 bits. */
    const int64_t parts = p->num_parts > 1 ? p->num_parts * (int64_t)MLA_SM90_COMBINE_UNITS : 1;
    if (parts * mla_cuda_lay_out_rows(shape).row_tiles > INT32_MAX / p->h_kv) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.num_parts = %d: with these rows, too many thread blocks",
                        p->num_parts);
    }
    return MLA_OK;
}

mla_status mla_cuda_check_alignment(const void *data, const int64_t *stride, const int64_t *dims,
                                    int64_t elem_bytes, const char *name)
{
    if ((uintptr_t)data % MLA_CUDA_ALIGNMENT != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "tensors.%s = %p: CUDA needs %d-byte alignment",
                        name, data, MLA_CUDA_ALIGNMENT);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = stride[i] * elem_bytes;
        if (dims[i] > 1 && bytes % MLA_CUDA_ALIGNMENT != 0) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                            "tensors.%s stride %d: %lld bytes are no multiple of %d", name, i,
                            (long long)bytes, MLA_CUDA_ALIGNMENT);
        }
    }
    return MLA_OK;
}

mla_status mla_cuda_check_reach(const int64_t *stride, const int64_t *dims, int64_t elem_bytes,
                                const char *name)
{
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = stride[i] * elem_bytes;
        if (dims[i] > 1 && bytes >= (int64_t)1 << 40) {
            return mla_fail(MLA_ERR_UNSUPPORTED,
                            "tensors.%s stride %d: %lld bytes, CUDA's tensor maps end at 2^40",
                            name, i, (long long)bytes);
        }
    }
    return MLA_OK;
}

mla_status mla_cuda_check_rows(const mla_shape *shape, const mla_tensors *tensors)
{
    const mla_problem *p = &shape->problem;
    const int64_t dims[3] = {p->batch, p->s_q, p->h_q};
    mla_status status = mla_cuda_check_alignment(tensors->q, tensors->q_stride, dims, 2, "q");
    if (status == MLA_OK) {
        status = mla_cuda_check_reach(tensors->q_stride, dims, 2, "q");
    }
    if (status == MLA_OK) {
        status = mla_cuda_check_alignment(tensors->out, tensors->out_stride, dims, 2, "out");
    }
    return status;
}

mla_status mla_cuda_encode_map(const mla_ctx *ctx, const mla_shape *shape, CUtensorMap *map,
                               cuuint32_t rank, const void *data, const cuuint64_t *dims,
                               const cuuint64_t *strides, const cuuint32_t *box)
{
    const mla_cuda_driver *driver = ((const mla_cuda_state *)ctx->state)->driver;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const CUtensorMapDataType type = shape->problem.dtype == MLA_DTYPE_BF16
                                         ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return mla_cuda_check(
        driver,
        driver->tensor_map_encode(map, type, rank, (void *)(uintptr_t)data, dims, strides, box,
                                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
}

static mla_status encode_q(const mla_ctx *ctx, const mla_shape *shape,
                           const mla_cuda_row_layout *layout, const mla_tensors *t,
                           CUtensorMap *map)
{
    const mla_problem *p = &shape->problem;
    const cuuint64_t dims[5] = {(cuuint64_t)p->d_qk, (cuuint64_t)layout->dim_rows,
                                (cuuint64_t)p->h_kv, (cuuint64_t)p->s_q, (cuuint64_t)p->batch};
    const cuuint64_t strides[4] = {mla_cuda_map_stride(t->q_stride[2] * 2, layout->dim_rows),
                                   mla_cuda_map_stride(t->q_stride[2] * 2 * shape->group, p->h_kv),
                                   mla_cuda_map_stride(t->q_stride[1] * 2, p->s_q),
                                   mla_cuda_map_stride(t->q_stride[0] * 2, p->batch)};
    const cuuint32_t box[5] = {MLA_SM90_TILE_COLS, (cuuint32_t)layout->box_rows, 1,
                               (cuuint32_t)layout->box_tokens, 1};
    return mla_cuda_encode_map(ctx, shape, map, 5, t->q, dims, strides, box);
}

/* For mla_sm90_dense_args. */
static uint64_t inverse(int32_t n)
{
    return n > 1 ? UINT64_MAX / (uint64_t)n + 1 : 0;
}

mla_status mla_cuda_fill_rows(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              mla_sm90_dense_args *rows)
{
    const mla_problem *p = &shape->problem;
    const mla_cuda_row_layout layout = mla_cuda_lay_out_rows(shape);
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, shape);
    const float log2_e = 1.44269504088896341f;
    const float scale = shape->scale * log2_e;
    rows->plan = plan_buffer;
    rows->q = tensors->q;
    rows->out = tensors->out;
    rows->lse = tensors->lse;
    rows->attn_sink = tensors->attn_sink;
    for (int i = 0; i < 3; i++) {
        rows->q_stride[i] = tensors->q_stride[i];
        rows->out_stride[i] = tensors->out_stride[i];
        rows->lse_stride[i] = tensors->lse_stride[i];
    }
    if (mla_cuda_may_split(&rule)) {
        rows->partials = workspace;
    }
    /* A scale of zero weighs all keys alike. So does this one, and hidden keys stay at -inf. */
    rows->scale_log2 = scale == 0 ? 1e-37f : scale;
    rows->lse_empty = p->lse_empty_pos_inf ? INFINITY : -INFINITY;
    rows->batch = (int32_t)shape->num_reqs;
    rows->s_q = (int32_t)tokens_a_request(shape);
    rows->req_tokens = shape->sparse ? (int32_t)p->s_q : 1;
    rows->h_kv = (int32_t)p->h_kv;
    rows->group = (int32_t)shape->group;
    rows->group_pad = layout.group_pad;
    rows->group_pad_inverse = inverse(rows->group_pad);
    rows->q_dim_rows = layout.rows_a_token;
    rows->q_dim_rows_inverse = inverse(rows->q_dim_rows);
    rows->row_tiles = (int32_t)layout.row_tiles;
    rows->row_tiles_inverse = inverse(rows->row_tiles);
    rows->h_kv_inverse = inverse(rows->h_kv);
    rows->req_tokens_inverse = inverse(rows->req_tokens);
    rows->max_parts = rule.max_parts;
    rows->d_qk = (int32_t)p->d_qk;
    rows->page_size = (int32_t)p->page_size;
    rows->page_blocks = (int32_t)(p->page_size / MLA_BLOCK_TOKENS);
    rows->page_blocks_inverse = inverse(rows->page_blocks);
    rows->block_pages = p->page_size > 0 ? (int32_t)(MLA_BLOCK_TOKENS / p->page_size) : 0;
    rows->causal = p->causal;
    return encode_q(ctx, shape, &layout, tensors, &rows->q_map);
}

mla_status mla_cuda_enqueue_rows(const mla_ctx *ctx, const mla_shape *shape, mla_cuda_kernel kernel,
                                 const void *args, const mla_sm90_dense_args *rows, void *stream)
{
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, shape);
    const bool bf16 = shape->problem.dtype == MLA_DTYPE_BF16;
    const int64_t ctas = (int64_t)rule.max_parts * rows->row_tiles * rows->h_kv;
    const int64_t units = ctas * MLA_SM90_COMBINE_UNITS;
    const int64_t resident = ctx->info.num_sms;
    const mla_cuda_launch launches[2] = {
        {.kernel = kernel, .grid = ctas, .threads = MLA_SM90_THREADS, .args = args},
        {.kernel = bf16 ? MLA_CUDA_COMBINE_BF16 : MLA_CUDA_COMBINE_F16,
         .grid = units < resident ? units : resident,
         .threads = MLA_SM90_COMBINE_THREADS,
         .args = rows,
         .early = true}};
    return mla_cuda_enqueue(ctx, launches, mla_cuda_may_split(&rule) ? 2 : 1, stream);
}
