#include "cuda_dense.h"

#include "cuda_context.h"
#include "plan.h"
#include "sm90/dense_args.h"
#include "sm90/plan_args.h"
#include "status.h"

#include <math.h>

/*
 * In blocks of 64 keys. Starting and finishing a piece takes about 9,000 clocks, a block 2,800.
 * While that fills the chip, parts of two blocks are fine, and of one up to 16 parts: a larger
 * minimum, 4, changed nothing at 128 heads and lost 2 us of 14 and 1 of 23 at 16. (H200, November
 * 2026.)
 */
static const mla_cost_model cost_model = {.request_cost = 3,
                                          .block_cost = 1,
                                          .min_piece_blocks = 2,
                                          .min_part_blocks = 2,
                                          .few_parts = 16};

/*
 * Blocks a part up to which four CTAs share the columns of a piece. With 16, four requests of 4,096
 * tokens took 32 us instead of 26 at 128 heads, sixteen of 2,048 took 32 instead of 28 at 16.
 */
enum { COLUMN_BLOCKS = 4 };

/* How 64 query rows of a CTA are taken from q; see mla_sm90_dense_args. */
typedef struct row_layout {
    int32_t group_pad;
    int32_t row_tiles;
    int64_t dim_rows;   /* tensor map: rows of the second dimension */
    int64_t dim_tokens; /* and of the fourth */
    int32_t box_rows, box_tokens;
    int32_t rows_a_token; /* rows after which the fourth dimension advances */
} row_layout;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/*
 * Rows that are 64 neighbours of one dimension, or whole heads of several tokens, fit one box.
 * Otherwise tiles stay within a token, and the last tile of each is padded. The choice must not
 * depend on strides, since plans are built without them: several tokens merge into one dimension
 * only where every layout allows it.
 */
static row_layout lay_out_rows(const mla_shape *shape)
{
    const int64_t group = shape->group, s_q = shape->problem.s_q;
    row_layout rows = {.group_pad = (int32_t)group,
                       .dim_rows = group,
                       .dim_tokens = s_q,
                       .box_rows = MLA_SM90_TILE_ROWS,
                       .box_tokens = 1,
                       .rows_a_token = (int32_t)group};
    if (s_q == 1) {
        rows.rows_a_token = INT32_MAX;
    } else if (MLA_SM90_TILE_ROWS % group == 0) {
        rows.box_rows = (int32_t)group;
        rows.box_tokens = (int32_t)(MLA_SM90_TILE_ROWS / group);
    } else {
        rows.group_pad = (int32_t)(ceil_div(group, MLA_SM90_TILE_ROWS) * MLA_SM90_TILE_ROWS);
        rows.rows_a_token = rows.group_pad;
    }
    rows.row_tiles = (int32_t)ceil_div(s_q * rows.group_pad, MLA_SM90_TILE_ROWS);
    return rows;
}

mla_status mla_cuda_dense_supports(const mla_ctx *ctx, const mla_shape *shape)
{
    (void)ctx;
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
    if (p->h_q > INT32_MAX / 2 || p->s_q > INT32_MAX / 2 ||
        (shape->group + MLA_SM90_TILE_ROWS) * p->s_q > INT32_MAX / 2) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.s_q = %lld, problem.h_q = %lld: too many rows", (long long)p->s_q,
                        (long long)p->h_q);
    }
    /* The merge counts its units in 32 bits. */
    const int64_t parts = p->num_parts > 1 ? p->num_parts * (int64_t)MLA_SM90_COMBINE_UNITS : 1;
    if (parts * lay_out_rows(shape).row_tiles > INT32_MAX / p->h_kv) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.num_parts = %d: with these rows, too many thread blocks",
                        p->num_parts);
    }
    return MLA_OK;
}

mla_cut_rule mla_cuda_cut_rule(const mla_ctx *ctx, const mla_shape *shape)
{
    const int64_t ctas_a_part = (int64_t)lay_out_rows(shape).row_tiles * shape->problem.h_kv;
    int64_t parts = ctx->info.num_sms / ctas_a_part;
    mla_cut_rule rule = {.num_reqs = shape->num_reqs,
                         .whole_requests = shape->problem.batch_invariant,
                         .exact_parts = shape->problem.num_parts > 0,
                         .column_parts = 1,
                         .column_blocks = COLUMN_BLOCKS,
                         .cost = cost_model};
    if (rule.exact_parts) {
        parts = shape->problem.num_parts;
    }
    rule.max_parts = parts > 1 ? (int32_t)parts : 1;
    /* Whether columns are shared depends on the whole batch, so not where it may not matter. */
    if (!rule.exact_parts && !rule.whole_requests &&
        rule.num_reqs * MLA_SM90_COLUMN_PARTS <= rule.max_parts) {
        rule.column_parts = MLA_SM90_COLUMN_PARTS;
    }
    return rule;
}

static mla_cuda_kernel dense_kernel(const mla_shape *shape, const mla_cut_rule *rule)
{
    const bool bf16 = shape->problem.dtype == MLA_DTYPE_BF16;
    if (rule->column_parts > 1) {
        return bf16 ? MLA_CUDA_DENSE_BF16_SMALL : MLA_CUDA_DENSE_F16_SMALL;
    }
    return bf16 ? MLA_CUDA_DENSE_BF16 : MLA_CUDA_DENSE_F16;
}

static bool may_split(const mla_cut_rule *rule)
{
    return rule->max_parts > 1 && !rule->whole_requests;
}

/* Partial results of 64 rows each. */
static int64_t num_partials(const mla_cut_rule *rule, const mla_shape *shape)
{
    return (int64_t)rule->max_parts * 2 * shape->problem.h_kv * lay_out_rows(shape).row_tiles;
}

mla_status mla_cuda_dense_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes)
{
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, shape);
    const size_t partial_bytes = MLA_SM90_TILE_ROWS * (MLA_SM90_D_V + 1) * sizeof(float);
    sizes->plan_bytes = mla_plan_bytes(rule.max_parts);
    sizes->workspace_bytes = may_split(&rule) ? (size_t)num_partials(&rule, shape) * partial_bytes
                                              : 0;
    return MLA_OK;
}

mla_status mla_cuda_dense_plan(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_lengths *lengths, void *plan_buffer, void *stream)
{
    const mla_sm90_plan_args args = {
        .rule = mla_cuda_cut_rule(ctx, shape), .seqlens = lengths->seqlens, .plan = plan_buffer};
    const mla_cuda_launch launch = {
        .kernel = MLA_CUDA_PLAN_CUT, .grid = 1, .threads = MLA_SM90_PLAN_THREADS, .args = &args};
    return mla_cuda_enqueue(ctx, &launch, 1, stream);
}

enum { ALIGNMENT = 16 }; /* bytes, of what the copy engine and 16-byte stores reach */

static mla_status check_alignment(const void *data, const int64_t *stride, const int64_t *dims,
                                  int64_t elem_bytes, const char *name, const char *stride_name)
{
    if ((uintptr_t)data % ALIGNMENT != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "tensors.%s = %p: CUDA needs %d-byte alignment",
                        name, data, ALIGNMENT);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = stride[i] * elem_bytes;
        if (dims[i] > 1 && bytes % ALIGNMENT != 0) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                            "tensors.%s[%d]: %lld bytes are no multiple of %d", stride_name, i,
                            (long long)bytes, ALIGNMENT);
        }
        if (dims[i] > 1 && bytes >= (int64_t)1 << 40) {
            return mla_fail(MLA_ERR_UNSUPPORTED,
                            "tensors.%s[%d]: %lld bytes, CUDA's tensor maps end at 2^40",
                            stride_name, i, (long long)bytes);
        }
    }
    return MLA_OK;
}

/* A stride that a tensor map accepts: that of a dimension of one entry is never used. */
static cuuint64_t map_stride(int64_t bytes, int64_t dim)
{
    return dim > 1 ? (cuuint64_t)bytes : ALIGNMENT;
}

static mla_status encode_map(const mla_ctx *ctx, const mla_shape *shape, CUtensorMap *map,
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

static mla_status encode_q(const mla_ctx *ctx, const mla_shape *shape, const row_layout *rows,
                           const mla_tensors *t, CUtensorMap *map)
{
    const mla_problem *p = &shape->problem;
    const cuuint64_t dims[5] = {(cuuint64_t)p->d_qk, (cuuint64_t)rows->dim_rows,
                                (cuuint64_t)p->h_kv, (cuuint64_t)rows->dim_tokens,
                                (cuuint64_t)p->batch};
    const cuuint64_t strides[4] = {map_stride(t->q_stride[2] * 2, rows->dim_rows),
                                   map_stride(t->q_stride[2] * 2 * shape->group, p->h_kv),
                                   map_stride(t->q_stride[1] * 2, rows->dim_tokens),
                                   map_stride(t->q_stride[0] * 2, p->batch)};
    const cuuint32_t box[5] = {MLA_SM90_TILE_COLS, (cuuint32_t)rows->box_rows, 1,
                               (cuuint32_t)rows->box_tokens, 1};
    return encode_map(ctx, shape, map, 5, t->q, dims, strides, box);
}

static mla_status encode_kv(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *t,
                            CUtensorMap *map)
{
    const mla_problem *p = &shape->problem;
    const int64_t num_pages = t->kv.num_pages;
    const cuuint64_t dims[4] = {(cuuint64_t)p->d_qk, (cuuint64_t)p->page_size,
                                (cuuint64_t)num_pages, (cuuint64_t)p->h_kv};
    const cuuint64_t strides[3] = {map_stride(t->kv.stride[1], p->page_size),
                                   map_stride(t->kv.stride[0], num_pages),
                                   map_stride(t->kv.stride[2], p->h_kv)};
    const cuuint32_t box[4] = {
        MLA_SM90_TILE_COLS,
        (cuuint32_t)(p->page_size < MLA_BLOCK_TOKENS ? p->page_size : MLA_BLOCK_TOKENS), 1, 1};
    return encode_map(ctx, shape, map, 4, t->kv.data, dims, strides, box);
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
    const int64_t row_dims[3] = {p->batch, p->s_q, p->h_q};
    const int64_t kv_dims[3] = {t->kv.num_pages, p->page_size, p->h_kv};
    mla_status status = check_alignment(t->q, t->q_stride, row_dims, 2, "q", "q_stride");
    if (status == MLA_OK) {
        status = check_alignment(t->out, t->out_stride, row_dims, 2, "out", "out_stride");
    }
    if (status == MLA_OK) {
        status = check_alignment(t->kv.data, t->kv.stride, kv_dims, 1, "kv.data", "kv.stride");
    }
    if (status == MLA_OK && t->kv.num_pages > INT32_MAX) {
        status = mla_fail(MLA_ERR_UNSUPPORTED, "tensors.kv.num_pages = %lld: CUDA counts to 2^31",
                          (long long)t->kv.num_pages);
    }
    return status;
}

static void fill_args(const mla_shape *shape, const row_layout *rows, const mla_tensors *t,
                      mla_sm90_dense_args *args)
{
    const mla_problem *p = &shape->problem;
    const float log2_e = 1.44269504088896341f;
    const float scale = shape->scale * log2_e;
    args->q = t->q;
    args->seqlens = t->seqlens;
    args->block_table = t->block_table;
    args->block_table_stride = t->block_table_stride;
    args->out = t->out;
    args->lse = t->lse;
    args->attn_sink = t->attn_sink;
    for (int i = 0; i < 3; i++) {
        args->q_stride[i] = t->q_stride[i];
        args->out_stride[i] = t->out_stride[i];
        args->lse_stride[i] = t->lse_stride[i];
    }
    /* A scale of zero weighs all keys alike. So does this one, and hidden keys stay at -inf. */
    args->scale_log2 = scale == 0 ? 1e-37f : scale;
    args->lse_empty = p->lse_empty_pos_inf ? INFINITY : -INFINITY;
    args->batch = (int32_t)p->batch;
    args->s_q = (int32_t)p->s_q;
    args->h_kv = (int32_t)p->h_kv;
    args->group = (int32_t)shape->group;
    args->group_pad = rows->group_pad;
    args->group_pad_inverse = rows->group_pad > 1 ? UINT64_MAX / (uint64_t)rows->group_pad + 1 : 0;
    args->q_dim_rows = rows->rows_a_token;
    args->row_tiles = rows->row_tiles;
    args->d_qk = (int32_t)p->d_qk;
    args->page_size = (int32_t)p->page_size;
    args->max_tokens = table_tokens(shape, t);
    args->causal = p->causal;
    args->req_tokens = 1;
}

mla_status mla_cuda_dense_run(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              void *stream)
{
    mla_sm90_dense_args args = {.plan = plan_buffer};
    const row_layout rows = lay_out_rows(shape);
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, shape);
    const bool bf16 = shape->problem.dtype == MLA_DTYPE_BF16;
    mla_status status = check_tensors(shape, tensors);
    if (status != MLA_OK ||
        (status = encode_q(ctx, shape, &rows, tensors, &args.q_map)) != MLA_OK) {
        return status;
    }
    fill_args(shape, &rows, tensors, &args);
    if (args.max_tokens > 0 && (status = encode_kv(ctx, shape, tensors, &args.kv_map)) != MLA_OK) {
        return status;
    }
    if (may_split(&rule)) {
        args.partial_out = workspace;
        args.partial_lse = args.partial_out +
                           num_partials(&rule, shape) * MLA_SM90_TILE_ROWS * MLA_SM90_D_V;
    }
    const int64_t ctas = (int64_t)rule.max_parts * rows.row_tiles * shape->problem.h_kv;
    const int64_t units = ctas * MLA_SM90_COMBINE_UNITS;
    const int64_t resident = ctx->info.num_sms;
    const mla_cuda_launch launches[2] = {
        {.kernel = dense_kernel(shape, &rule),
         .grid = ctas,
         .threads = MLA_SM90_THREADS,
         .args = &args},
        {.kernel = bf16 ? MLA_CUDA_COMBINE_BF16 : MLA_CUDA_COMBINE_F16,
         .grid = units < resident ? units : resident,
         .threads = MLA_SM90_COMBINE_THREADS,
         .args = &args,
         .early = true}};
    return mla_cuda_enqueue(ctx, launches, may_split(&rule) ? 2 : 1, stream);
}
