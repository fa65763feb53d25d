#include "fake_cuda.h"

#include "cuda_driver.h"
#include "sm90/plan_args.h"
#include "sm90/sparse_args.h"

#include <stdio.h>
#include <string.h>

/* Modules and contexts are only compared with NULL, functions are their names. */
static char something;
fake_cuda_record fake_cuda_launched;

static CUresult fake_init(unsigned flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_driver_version(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult fake_error_string(CUresult error, const char **text)
{
    *text = error == CUDA_SUCCESS ? "no error" : "refused by the fake driver";
    return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_device_name(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "fake GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult fake_device_memory(size_t *bytes, CUdevice device)
{
    *bytes = (size_t)1 << (30 + device);
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = FAKE_CUDA_SMS;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult fake_primary_ctx_retain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)(void *)&something;
    return CUDA_SUCCESS;
}

static CUresult fake_primary_ctx_release(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}

static CUresult fake_ctx_push(CUcontext context)
{
    return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult fake_ctx_pop(CUcontext *context)
{
    *context = (CUcontext)(void *)&something;
    return CUDA_SUCCESS;
}

static CUresult fake_module_load(CUmodule *module, const void *image)
{
    *module = (CUmodule)(void *)&something;
    return memcmp(image,
                  "\x7f"
                  "ELF",
                  4) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult fake_module_unload(CUmodule module)
{
    return module != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_module_function(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)(void *)(uintptr_t)name;
    return module != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fake_function_set(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)attribute;
    return function != NULL && value <= 232448 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Refuses what the real driver refuses. */
static CUresult fake_tensor_map_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *data, const cuuint64_t *dims,
                                       const cuuint64_t *strides, const cuuint32_t *box,
                                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill)
{
    (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    fake_cuda_map written = {
        .data = (uint64_t)(uintptr_t)data, .rank = (uint8_t)rank, .type = (uint8_t)type};
    if (rank < 1 || rank > 5 || written.data % 16 != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (cuuint32_t i = 0; i < rank; i++) {
        if (dims[i] < 1 || dims[i] > (cuuint64_t)1 << 32 || box[i] < 1 || box[i] > 256) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= (cuuint64_t)1 << 40)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        written.dims[i] = dims[i];
        written.box[i] = (uint16_t)box[i];
        if (i + 1 < rank) {
            written.strides[i] = strides[i];
        }
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &written, sizeof written);
    return CUDA_SUCCESS;
}

/* The real driver finds the size of a kernel's parameter in its cubin. */
static size_t args_bytes(const char *kernel)
{
    if (strcmp(kernel, "mla_sm90_plan_cut") == 0) {
        return sizeof(mla_sm90_plan_args);
    }
    if (strstr(kernel, "_sparse_") != NULL) {
        return sizeof(mla_sm90_sparse_args);
    }
    const bool rows = strstr(kernel, "_dense_") != NULL || strstr(kernel, "_combine_") != NULL;
    return rows ? sizeof(mla_sm90_dense_args) : 0;
}

static CUresult fake_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    if (extra != NULL || fake_cuda_launched.count == FAKE_CUDA_LAUNCHES) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_cuda_launch *launch = &fake_cuda_launched.launches[fake_cuda_launched.count++];
    const char *name = (const char *)(void *)function;
    snprintf(launch->kernel, sizeof launch->kernel, "%s", name);
    launch->grid = config->gridDimX;
    launch->threads = config->blockDimX;
    launch->smem_bytes = config->sharedMemBytes;
    launch->early = config->numAttrs > 0;
    memcpy(launch->args, params[0], args_bytes(name));
    return CUDA_SUCCESS;
}

static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
#define FAKE_ENTRY(member, name, type, version) {name, (void (*)(void))fake_##member},
    MLA_CUDA_SYMBOLS(FAKE_ENTRY)
#undef FAKE_ENTRY
};

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found)
{
    (void)version, (void)flags;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            memcpy(address, &functions[i].function, sizeof *address);
            *found = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}
