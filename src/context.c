#include "arg_struct.h"
#include "backend.h"
#include "status.h"

#include <assert.h>
#include <stdlib.h>

static const mla_backend_ops *find_backend(mla_backend backend)
{
    switch (backend) {
    case MLA_BACKEND_CPU:
        return &mla_cpu_backend;
#if MLA_WITH_CUDA
    case MLA_BACKEND_CUDA:
        return &mla_cuda_backend;
#endif
    default:
        return NULL;
    }
}

static mla_status check_backend(mla_backend backend, const char *name)
{
    if ((int)backend >= MLA_BACKEND_AUTO && backend <= MLA_BACKEND_CUDA) {
        return MLA_OK;
    }
    return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = %d: not an mla_backend", name, (int)backend);
}

static mla_status check_params(const mla_ctx_params *params)
{
    const uint32_t all_isas = 2 * MLA_ISA_AMX_BF16 - 1;
    mla_status status = check_backend(params->backend, "params.backend");
    if (status != MLA_OK) {
        return status;
    }
    if (params->device < 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "params.device = %d: must not be negative",
                        params->device);
    }
    if (params->num_threads < 0 || params->num_threads > MLA_MAX_THREADS) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "params.num_threads = %d: must be 0 to %d",
                        params->num_threads, MLA_MAX_THREADS);
    }
    if ((params->isa_mask & ~all_isas) != 0) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "params.isa_mask = 0x%x: knows only bits 0x%x",
                        params->isa_mask, all_isas);
    }
    return MLA_OK;
}

static mla_status open_backend(mla_backend backend, const mla_ctx_params *params, mla_ctx *ctx)
{
    ctx->ops = find_backend(backend);
    if (ctx->ops == NULL) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "params.backend = MLA_BACKEND_CUDA: libmla was built without CUDA");
    }
    return ctx->ops->ctx_open(params, ctx);
}

mla_status mla_ctx_create(const mla_ctx_params *params, mla_ctx **ctx)
{
    if (ctx == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "ctx = NULL");
    }
    *ctx = NULL;
    mla_ctx_params given = {.struct_size = sizeof given};
    mla_status status = MLA_OK;
    if (params != NULL) {
        status = mla_arg_struct_read(params, sizeof given, &given, "params");
    }
    if (status != MLA_OK || (status = check_params(&given)) != MLA_OK) {
        return status;
    }
    mla_ctx *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return mla_fail(MLA_ERR_OUT_OF_MEMORY, "ctx: no memory for %zu bytes", sizeof *made);
    }
    if (given.backend == MLA_BACKEND_AUTO) {
        /* A device number other than 0 can only mean a GPU. */
        status = open_backend(MLA_BACKEND_CUDA, &given, made);
        if (status != MLA_OK && given.device == 0) {
            status = open_backend(MLA_BACKEND_CPU, &given, made);
        }
    } else {
        status = open_backend(given.backend, &given, made);
    }
    if (status != MLA_OK) {
        free(made);
        return status;
    }
    assert(made->shape_id != 0);
    *ctx = made;
    return MLA_OK;
}

void mla_ctx_destroy(mla_ctx *ctx)
{
    if (ctx != NULL) {
        ctx->ops->ctx_close(ctx);
        free(ctx);
    }
}

mla_status mla_ctx_get_info(const mla_ctx *ctx, mla_info *info)
{
    if (ctx == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "ctx = NULL");
    }
    return mla_arg_struct_write(info, &ctx->info, sizeof ctx->info, "info");
}

mla_status mla_device_count(mla_backend backend, int32_t *count)
{
    if (count == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "count = NULL");
    }
    *count = 0;
    mla_status status = check_backend(backend, "backend");
    if (status != MLA_OK) {
        return status;
    }
    if (backend == MLA_BACKEND_AUTO) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "backend = MLA_BACKEND_AUTO: name one");
    }
    const mla_backend_ops *ops = find_backend(backend);
    if (ops == NULL) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "backend = MLA_BACKEND_CUDA: libmla was built without CUDA");
    }
    return ops->device_count(count);
}

int32_t mla_version(void)
{
    return MLA_VERSION_MAJOR * 10000 + MLA_VERSION_MINOR * 100 + MLA_VERSION_PATCH;
}

const char *mla_isa_name(mla_isa isa)
{
    switch (isa) {
    case MLA_ISA_REFERENCE:
        return "reference";
    case MLA_ISA_PORTABLE:
        return "portable";
    case MLA_ISA_AVX2:
        return "avx2";
    case MLA_ISA_AVX512:
        return "avx512";
    case MLA_ISA_AVX512_BF16:
        return "avx512_bf16";
    case MLA_ISA_AMX_BF16:
        return "amx_bf16";
    }
    return "unknown";
}
