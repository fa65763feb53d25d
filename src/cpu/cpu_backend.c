/*
 * The CPU backend: what it offers, and the checks of lengths and tables that only host memory
 * allows.
 */
#include "backend.h"
#include "cpu_features.h"
#include "cpu_run.h"
#include "kernels.h"
#include "merge.h"
#include "pack.h"
#include "plan.h"
#include "reference.h"
#include "status.h"

#include <assert.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ISA_VARIABLE "MLA_CPU_ISA"

static mla_status cpu_device_count(int32_t *count)
{
    *count = 1;
    return MLA_OK;
}

static uint32_t isa_by_name(const char *name, size_t length)
{
    for (uint32_t isa = MLA_ISA_REFERENCE; isa <= MLA_ISA_AMX_BF16; isa <<= 1) {
        const char *known = mla_isa_name((mla_isa)isa);
        if (strlen(known) == length && memcmp(known, name, length) == 0) {
            return isa;
        }
    }
    return 0;
}

enum { ISA_LIST_CHARS = 96 };

/* Writes the names of instruction sets, with commas between. */
static const char *list_isas(uint32_t isas, char text[ISA_LIST_CHARS])
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t isa = MLA_ISA_REFERENCE; isa <= MLA_ISA_AMX_BF16; isa <<= 1) {
        if ((isas & isa) != 0 && used < ISA_LIST_CHARS) {
            used += (size_t)snprintf(text + used, ISA_LIST_CHARS - used, "%s%s",
                                     used > 0 ? ", " : "", mla_isa_name((mla_isa)isa));
        }
    }
    return used > 0 ? text : "none that libmla knows";
}

/* Reads the environment's list of instruction sets; all of them when there is none. */
static mla_status read_isa_variable(uint32_t *isa_mask)
{
    const char *list = getenv(ISA_VARIABLE);
    *isa_mask = list == NULL || *list == '\0' ? UINT32_MAX : 0;
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ",");
        uint32_t isa = isa_by_name(list, length);
        if (isa == 0) {
            return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                            "environment variable " ISA_VARIABLE
                            " names '%.*s': knows reference, portable, avx2, avx512, avx512_bf16 "
                            "and amx_bf16",
                            (int)length, list);
        }
        *isa_mask |= isa;
        list += length + (list[length] == ',');
    }
    return MLA_OK;
}

static mla_status cpu_ctx_open(const mla_ctx_params *params, mla_ctx *ctx)
{
    if (params->device != 0) {
        return mla_fail(MLA_ERR_UNSUPPORTED, "params.device = %d: the CPU is device 0",
                        params->device);
    }
    uint32_t from_environment;
    mla_status status = read_isa_variable(&from_environment);
    if (status != MLA_OK) {
        return status;
    }
    mla_info *info = &ctx->info;
    uint32_t mask = (params->isa_mask != 0 ? params->isa_mask : UINT32_MAX) & from_environment;
    info->isa_available = mla_cpu_isa_available();
    info->isa_allowed = info->isa_available & mask;
    if (info->isa_allowed == 0) {
        char wanted[ISA_LIST_CHARS], there[ISA_LIST_CHARS];
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "params.isa_mask = 0x%x and " ISA_VARIABLE " leave %s: this machine has %s",
                        params->isa_mask, list_isas(mask, wanted),
                        list_isas(info->isa_available, there));
    }
    const mla_cpu_kernel *kernel = mla_cpu_kernel_choose(info->isa_allowed, MLA_KV_NATIVE,
                                                         MLA_DTYPE_BF16);
    info->isa_used = kernel != NULL ? kernel->isa : MLA_ISA_REFERENCE;
    info->backend = MLA_BACKEND_CPU;
    int32_t all_threads = (int32_t)omp_get_max_threads();
    all_threads = all_threads < MLA_MAX_THREADS ? all_threads : MLA_MAX_THREADS;
    info->num_threads = params->num_threads > 0 ? params->num_threads : all_threads;
    mla_cpu_name(info->device_name, sizeof info->device_name);
    ctx->shape_id = (uint64_t)MLA_BACKEND_CPU << 32 | (uint32_t)info->num_threads;
    return MLA_OK;
}

static void cpu_ctx_close(mla_ctx *ctx)
{
    (void)ctx;
}

/* NULL: the reference computes the shape. */
static const mla_cpu_kernel *choose_kernel(const mla_ctx *ctx, const mla_shape *shape)
{
    return mla_cpu_kernel_choose(ctx->info.isa_allowed, shape->problem.kv_format,
                                 shape->problem.dtype);
}

static mla_status cpu_supports(const mla_ctx *ctx, const mla_shape *shape)
{
    if (choose_kernel(ctx, shape) == NULL && !(ctx->info.isa_allowed & MLA_ISA_REFERENCE)) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.dtype = %d, kv_format = %d: none of the instruction sets that the "
                        "context may use (0x%x) computes it",
                        (int)shape->problem.dtype, (int)shape->problem.kv_format,
                        ctx->info.isa_allowed);
    }
    return MLA_OK;
}

static mla_status cpu_get_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes)
{
    if (choose_kernel(ctx, shape) != NULL) {
        mla_cpu_sizes(ctx, shape, sizes);
    } else {
        sizes->plan_bytes = mla_plan_bytes(mla_cpu_cut_rule(ctx, shape).max_parts);
        sizes->workspace_bytes = 0;
    }
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
    mla_cut_rule rule = mla_cpu_cut_rule(ctx, shape);
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
        if (num_pages == 0) {
            continue; /* there may be no table */
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
    (void)stream;
    mla_status status = MLA_OK;
    if (!shape->sparse && ((status = check_lengths(shape, tensors->seqlens)) != MLA_OK ||
                           (status = check_pages(shape, tensors)) != MLA_OK)) {
        return status;
    }
    if (choose_kernel(ctx, shape) != NULL) {
        return mla_cpu_run(ctx, shape, tensors, plan_buffer, workspace);
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
