/*
 * The CPU backend: what it offers, and the checks of lengths and tables that only host memory
 * allows.
 */
#include "backend.h"
#include "merge.h"
#include "pack.h"
#include "plan.h"
#include "reference.h"
#include "status.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

static mla_status cpu_device_count(int32_t *count)
{
    *count = 1;
    return MLA_OK;
}

static mla_status cpu_ctx_open(const mla_ctx_params *params, mla_ctx *ctx)
{
    if (params->device != 0) {
        return mla_fail(MLA_ERR_UNSUPPORTED, "params.device = %d: the CPU is device 0",
                        params->device);
    }
    ctx->info.backend = MLA_BACKEND_CPU;
    ctx->info.num_threads = params->num_threads > 0 ? params->num_threads
                                                    : (int32_t)omp_get_max_threads();
    ctx->info.isa_available = MLA_ISA_REFERENCE;
    ctx->info.isa_allowed = MLA_ISA_REFERENCE;
    ctx->info.isa_used = MLA_ISA_REFERENCE;
    ctx->shape_id = (uint64_t)MLA_BACKEND_CPU << 32 | (uint32_t)ctx->info.num_threads;
    return MLA_OK;
}

static void cpu_ctx_close(mla_ctx *ctx)
{
    (void)ctx;
}

static mla_status cpu_supports(const mla_ctx *ctx, const mla_shape *shape)
{
    (void)ctx, (void)shape;
    return MLA_OK;
}

static mla_cut_rule cut_rule(const mla_ctx *ctx, const mla_shape *shape)
{
    int32_t fixed = shape->problem.num_parts;
    return (mla_cut_rule){.num_reqs = shape->num_reqs,
                          .max_parts = fixed > 0 ? fixed : ctx->info.num_threads,
                          .whole_requests = shape->problem.batch_invariant,
                          .exact_parts = fixed > 0,
                          .cost = {1, 1, 1, 1}};
}

static mla_status cpu_get_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes)
{
    sizes->plan_bytes = mla_plan_bytes(cut_rule(ctx, shape).max_parts);
    sizes->workspace_bytes = 0;
    return MLA_OK;
}

static mla_status check_lengths(const mla_shape *shape, const int32_t *seqlens)
{
    for (int64_t i = 0; i < shape->problem.batch; i++) {
        if (seqlens[i] < 0) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT, "seqlens[%lld] = %d: must not be negative",
                            (long long)i, seqlens[i]);
        }
    }
    return MLA_OK;
}

static mla_status cpu_plan_build(const mla_ctx *ctx, const mla_shape *shape,
                                 const mla_lengths *lengths, void *plan_buffer, void *stream)
{
    (void)stream;
    mla_status status = shape->sparse ? MLA_OK : check_lengths(shape, lengths->seqlens);
    if (status != MLA_OK) {
        return status;
    }
    mla_cut_rule rule = cut_rule(ctx, shape);
    mla_plan_cut(shape, lengths, &rule, plan_buffer);
    return MLA_OK;
}

/* Every page that a request's length makes it reference lies in the pool. */
static mla_status check_pages(const mla_shape *shape, const mla_tensors *t)
{
    int64_t page_size = shape->problem.page_size;
    for (int64_t i = 0; i < shape->problem.batch; i++) {
        int64_t num_pages = (t->seqlens[i] + page_size - 1) / page_size;
        if (num_pages > t->max_pages) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                            "seqlens[%lld] = %d: the block table has room for %lld pages of %lld",
                            (long long)i, t->seqlens[i], (long long)t->max_pages,
                            (long long)page_size);
        }
        const int32_t *pages = t->block_table + i * t->block_table_stride;
        for (int64_t j = 0; j < num_pages; j++) {
            if (pages[j] < 0 || pages[j] >= t->kv.num_pages) {
                return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                                "block_table[%lld][%lld] = %d: the pool has %lld pages",
                                (long long)i, (long long)j, pages[j], (long long)t->kv.num_pages);
            }
        }
    }
    return MLA_OK;
}

static mla_status cpu_run(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                          const void *plan_buffer, void *workspace, void *stream)
{
    (void)plan_buffer, (void)workspace, (void)stream;
    mla_status status = MLA_OK;
    if (!shape->sparse && ((status = check_lengths(shape, tensors->seqlens)) != MLA_OK ||
                           (status = check_pages(shape, tensors)) != MLA_OK)) {
        return status;
    }
    mla_reference_run(shape, tensors, ctx->info.num_threads);
    return MLA_OK;
}

static mla_status cpu_merge(const mla_ctx *ctx, const mla_merge_args *args, void *stream)
{
    (void)stream;
    mla_cpu_merge(args, ctx->info.num_threads);
    return MLA_OK;
}

static mla_status check_slots(const mla_pack_args *args)
{
    int64_t num_slots = args->num_pages * args->page_size;
    for (int64_t i = 0; i < args->num_tokens; i++) {
        int64_t slot = args->slots != NULL ? args->slots[i] : i;
        if (slot >= num_slots) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT, "slots[%lld] = %lld: the cache has %lld",
                            (long long)i, (long long)slot, (long long)num_slots);
        }
    }
    return MLA_OK;
}

static mla_status cpu_pack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    (void)stream;
    mla_status status = check_slots(args);
    if (status == MLA_OK) {
        mla_cpu_pack(args, ctx->info.num_threads);
    }
    return status;
}

static mla_status cpu_unpack(const mla_ctx *ctx, const mla_pack_args *args, void *stream)
{
    (void)stream;
    mla_status status = check_slots(args);
    if (status == MLA_OK) {
        mla_cpu_unpack(args, ctx->info.num_threads);
    }
    return status;
}

const mla_backend_ops mla_cpu_backend = {.backend = MLA_BACKEND_CPU,
                                         .device_count = cpu_device_count,
                                         .ctx_open = cpu_ctx_open,
                                         .ctx_close = cpu_ctx_close,
                                         .supports = cpu_supports,
                                         .get_sizes = cpu_get_sizes,
                                         .plan_build = cpu_plan_build,
                                         .run = cpu_run,
                                         .merge = cpu_merge,
                                         .pack = cpu_pack,
                                         .unpack = cpu_unpack};
