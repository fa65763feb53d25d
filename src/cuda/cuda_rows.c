#include "cuda_rows.h"

#include "cuda_context.h"
#include "sm90/row_args.h"
#include "status.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* One launch with a warp for each of `num_rows` rows. */
static mla_status enqueue_rows(const mla_ctx *ctx, mla_cuda_kernel kernel, int64_t num_rows,
                               const void *args, void *stream)
{
    const int64_t rows_a_block = MLA_SM90_ROW_THREADS / 32;
    const int64_t blocks = (num_rows + rows_a_block - 1) / rows_a_block;
    if (blocks == 0) {
        return MLA_OK;
    }
    if (blocks > INT32_MAX) {
        return mla_fail(MLA_ERR_UNSUPPORTED, "%lld rows: CUDA takes at most %lld in a call",
                        (long long)num_rows, (long long)INT32_MAX * (long long)rows_a_block);
    }
    const mla_cuda_launch launch = {
        .kernel = kernel, .grid = blocks, .threads = MLA_SM90_ROW_THREADS, .args = args};
    return mla_cuda_enqueue(ctx, &launch, 1, stream);
}

mla_status mla_cuda_merge(const mla_ctx *ctx, const mla_merge_args *args, void *stream)
{
    assert(args->num_parts >= 1 && args->num_parts <= MLA_SM90_MERGE_PARTS);
    assert(args->d_v == 512);
    mla_sm90_merge_args given = {.out = args->out,
                                 .lse = args->lse,
                                 .num_rows = args->batch * args->s_q * args->h_q,
                                 .s_q = args->s_q,
                                 .h_q = args->h_q,
                                 .num_parts = (int32_t)args->num_parts,
                                 .part_dtype = args->part_dtype,
                                 .out_dtype = args->out_dtype,
                                 .lse_empty = args->lse_empty_pos_inf ? INFINITY : -INFINITY};
    for (int64_t i = 0; i < args->num_parts; i++) {
        given.part_outs[i] = args->part_outs[i];
        given.part_lses[i] = args->part_lses[i];
    }
    memcpy(given.part_out_stride, args->part_out_stride, sizeof given.part_out_stride);
    memcpy(given.part_lse_stride, args->part_lse_stride, sizeof given.part_lse_stride);
    memcpy(given.out_stride, args->out_stride, sizeof given.out_stride);
    memcpy(given.lse_stride, args->lse_stride, sizeof given.lse_stride);
    return enqueue_rows(ctx, MLA_CUDA_MERGE, given.num_rows, &given, stream);
}

static mla_status enqueue_pack(const mla_ctx *ctx, mla_cuda_kernel kernel,
                               const mla_pack_args *args, void *stream)
{
    mla_sm90_pack_args given = {.rows = args->rows,
                                .cache = args->cache,
                                .slots = args->slots,
                                .num_rows = args->num_tokens * args->h_kv,
                                .num_slots = args->num_pages * args->page_size,
                                .h_kv = args->h_kv,
                                .d_qk = args->d_qk,
                                .page_size = args->page_size,
                                .kv_format = args->kv_format};
    memcpy(given.rows_stride, args->rows_stride, sizeof given.rows_stride);
    memcpy(given.cache_stride, args->cache_stride, sizeof given.cache_stride);
    return enqueue_rows(ctx, kernel, given.num_rows, &given, stream);
}

mla_status mla_cuda_pack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    return enqueue_pack(ctx, MLA_CUDA_PACK, args, stream);
}

mla_status mla_cuda_unpack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    return enqueue_pack(ctx, MLA_CUDA_UNPACK, args, stream);
}
