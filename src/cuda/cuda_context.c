#include "cuda_context.h"

#include "sm90/dense_args.h"
#include "status.h"

#include <assert.h>
#include <stdlib.h>

/* The cubins' bytes, see cubin_embed.c.in. */
#define MLA_CUDA_EXTERN(cubin) extern const unsigned char mla_cubin_##cubin[];
MLA_CUDA_CUBINS(MLA_CUDA_EXTERN)
#undef MLA_CUDA_EXTERN

static const unsigned char *const cubin_bytes[MLA_CUDA_NUM_CUBINS] = {
#define MLA_CUDA_BYTES(cubin) [MLA_CUDA_CUBIN_##cubin] = mla_cubin_##cubin,
    MLA_CUDA_CUBINS(MLA_CUDA_BYTES)
#undef MLA_CUDA_BYTES
};

static const struct kernel_entry {
    mla_cuda_cubin cubin;
    const char *name;
    size_t smem_bytes;
} kernel_entries[MLA_CUDA_NUM_KERNELS] = {
#define MLA_CUDA_ENTRY(constant, cubin, name, smem_bytes)                                          \
    [MLA_CUDA_##constant] = {MLA_CUDA_CUBIN_##cubin, name, smem_bytes},
    MLA_CUDA_KERNELS(MLA_CUDA_ENTRY)
#undef MLA_CUDA_ENTRY
};

mla_status mla_cuda_device_count(int32_t *count)
{
    const mla_cuda_driver *driver;
    mla_status status = mla_cuda_driver_get(&driver);
    if (status != MLA_OK) {
        return status;
    }
    int devices = 0;
    status = mla_cuda_check(driver, driver->device_count(&devices), "cuDeviceGetCount");
    *count = devices;
    return status;
}

/* Finds the device and fills what mla_info says about it. */
static mla_status open_device(const mla_ctx_params *params, mla_cuda_state *state, mla_info *info)
{
    const mla_cuda_driver *driver = state->driver;
    int32_t count;
    mla_status status = mla_cuda_device_count(&count);
    if (status != MLA_OK) {
        return status;
    }
    if (params->device >= count) {
        return mla_fail(MLA_ERR_UNSUPPORTED, "params.device = %d: the driver shows %d devices",
                        params->device, count);
    }
    int major = 0, minor = 0, num_sms = 0, version = 0;
    size_t memory = 0;
    const CUresult results[] = {
        driver->device_get(&state->device, params->device),
        driver->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                 state->device),
        driver->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                 state->device),
        driver->device_attribute(&num_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, state->device),
        driver->device_name(info->device_name, sizeof info->device_name, state->device),
        driver->device_memory(&memory, state->device),
        driver->driver_version(&version)};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        if ((status = mla_cuda_check(driver, results[i], "cuDeviceGet...")) != MLA_OK) {
            return status;
        }
    }
    if (major != 9 || minor != 0) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "params.device = %d: %s has compute capability %d.%d, the kernels need 9.0",
                        params->device, info->device_name, major, minor);
    }
    info->backend = MLA_BACKEND_CUDA;
    info->device = params->device;
    info->num_sms = num_sms;
    info->driver_version = version;
    info->memory_bytes = (int64_t)memory;
    return MLA_OK;
}

/* Loads all kernels; the primary context is current. */
static mla_status load_kernels(mla_cuda_state *state)
{
    const mla_cuda_driver *driver = state->driver;
    for (int i = 0; i < MLA_CUDA_NUM_CUBINS; i++) {
        mla_status status = mla_cuda_check(
            driver, driver->module_load(&state->modules[i], cubin_bytes[i]), "cuModuleLoadData");
        if (status != MLA_OK) {
            return status;
        }
    }
    for (int i = 0; i < MLA_CUDA_NUM_KERNELS; i++) {
        const struct kernel_entry *entry = &kernel_entries[i];
        CUresult result = driver->module_function(&state->kernels[i], state->modules[entry->cubin],
                                                  entry->name);
        if (result == CUDA_SUCCESS) {
            /* Also for kernels that need none: it makes the driver load the function now, not in
             * the middle of a capture. */
            result = driver->function_set(state->kernels[i],
                                          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          (int)entry->smem_bytes);
        }
        mla_status status = mla_cuda_check(driver, result, entry->name);
        if (status != MLA_OK) {
            return status;
        }
    }
    return MLA_OK;
}

static void unload_kernels(mla_cuda_state *state)
{
    for (int i = 0; i < MLA_CUDA_NUM_CUBINS; i++) {
        if (state->modules[i] != NULL) {
            state->driver->module_unload(state->modules[i]);
        }
    }
}

/* Retains the primary context and loads the kernels into it; undoes both on failure. */
static mla_status open_primary(mla_cuda_state *state)
{
    const mla_cuda_driver *driver = state->driver;
    mla_status status = mla_cuda_check(driver,
                                       driver->primary_ctx_retain(&state->primary, state->device),
                                       "cuDevicePrimaryCtxRetain");
    if (status != MLA_OK) {
        return status;
    }
    status = mla_cuda_check(driver, driver->ctx_push(state->primary), "cuCtxPushCurrent");
    if (status == MLA_OK) {
        CUcontext popped;
        status = load_kernels(state);
        if (status != MLA_OK) {
            unload_kernels(state);
        }
        driver->ctx_pop(&popped);
    }
    if (status != MLA_OK) {
        driver->primary_ctx_release(state->device);
    }
    return status;
}

mla_status mla_cuda_ctx_open(const mla_ctx_params *params, mla_ctx *ctx)
{
    const mla_cuda_driver *driver;
    mla_status status = mla_cuda_driver_get(&driver);
    if (status != MLA_OK) {
        return status;
    }
    mla_cuda_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return mla_fail(MLA_ERR_OUT_OF_MEMORY, "ctx: no memory for %zu bytes", sizeof *state);
    }
    state->driver = driver;
    status = open_device(params, state, &ctx->info);
    if (status == MLA_OK) {
        status = open_primary(state);
    }
    if (status != MLA_OK) {
        free(state);
        return status;
    }
    ctx->shape_id = (uint64_t)MLA_BACKEND_CUDA << 32 | (uint32_t)ctx->info.num_sms;
    ctx->state = state;
    return MLA_OK;
}

void mla_cuda_ctx_close(mla_ctx *ctx)
{
    mla_cuda_state *state = ctx->state;
    CUcontext popped;
    if (state->driver->ctx_push(state->primary) == CUDA_SUCCESS) {
        unload_kernels(state);
        state->driver->ctx_pop(&popped);
    }
    state->driver->primary_ctx_release(state->device);
    free(state);
}

static CUresult launch_one(const mla_cuda_state *state, const mla_cuda_launch *launch,
                           CUstream stream)
{
    assert(launch->grid >= 1 && launch->grid <= INT32_MAX);
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.gridDimX = (unsigned)launch->grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = (unsigned)launch->threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = (unsigned)kernel_entries[launch->kernel].smem_bytes,
                             .hStream = stream,
                             .attrs = &attribute,
                             .numAttrs = launch->early ? 1 : 0};
    /* The driver copies the parameter before it returns. */
    void *params[] = {(void *)(uintptr_t)launch->args};
    return state->driver->launch(&config, state->kernels[launch->kernel], params, NULL);
}

mla_status mla_cuda_enqueue(const mla_ctx *ctx, const mla_cuda_launch *launches, int32_t count,
                            void *stream)
{
    const mla_cuda_state *state = ctx->state;
    const mla_cuda_driver *driver = state->driver;
    mla_status status = mla_cuda_check(driver, driver->ctx_push(state->primary),
                                       "cuCtxPushCurrent");
    if (status != MLA_OK) {
        return status;
    }
    for (int32_t i = 0; i < count && status == MLA_OK; i++) {
        status = mla_cuda_check(driver, launch_one(state, &launches[i], (CUstream)stream),
                                kernel_entries[launches[i].kernel].name);
    }
    CUcontext popped;
    driver->ctx_pop(&popped);
    return status;
}
