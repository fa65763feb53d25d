/*
 * NVIDIA's driver library, found at run time: a table of the functions this backend calls. libmla
 * links against no CUDA library, so it loads on machines without one.
 */
#ifndef MLA_CUDA_DRIVER_H
#define MLA_CUDA_DRIVER_H

#include "mla.h"

#include <cuda.h>
#include <cudaTypedefs.h>

/* Member of the table, the driver's name, its type, and the CUDA version whose form is meant. */
#define MLA_CUDA_SYMBOLS(X)                                                                        \
    X(init, "cuInit", PFN_cuInit_v2000, 2000)                                                      \
    X(driver_version, "cuDriverGetVersion", PFN_cuDriverGetVersion_v2020, 2020)                    \
    X(error_string, "cuGetErrorString", PFN_cuGetErrorString_v6000, 6000)                          \
    X(device_count, "cuDeviceGetCount", PFN_cuDeviceGetCount_v2000, 2000)                          \
    X(device_get, "cuDeviceGet", PFN_cuDeviceGet_v2000, 2000)                                      \
    X(device_name, "cuDeviceGetName", PFN_cuDeviceGetName_v2000, 2000)                             \
    X(device_memory, "cuDeviceTotalMem", PFN_cuDeviceTotalMem_v3020, 3020)                         \
    X(device_attribute, "cuDeviceGetAttribute", PFN_cuDeviceGetAttribute_v2000, 2000)              \
    X(primary_ctx_retain, "cuDevicePrimaryCtxRetain", PFN_cuDevicePrimaryCtxRetain_v7000, 7000)    \
    X(primary_ctx_release, "cuDevicePrimaryCtxRelease", PFN_cuDevicePrimaryCtxRelease_v11000,      \
      11000)                                                                                       \
    X(ctx_push, "cuCtxPushCurrent", PFN_cuCtxPushCurrent_v4000, 4000)                              \
    X(ctx_pop, "cuCtxPopCurrent", PFN_cuCtxPopCurrent_v4000, 4000)                                 \
    X(module_load, "cuModuleLoadData", PFN_cuModuleLoadData_v2000, 2000)                           \
    X(module_unload, "cuModuleUnload", PFN_cuModuleUnload_v2000, 2000)                             \
    X(module_function, "cuModuleGetFunction", PFN_cuModuleGetFunction_v2000, 2000)                 \
    X(function_set, "cuFuncSetAttribute", PFN_cuFuncSetAttribute_v9000, 9000)                      \
    X(tensor_map_encode, "cuTensorMapEncodeTiled", PFN_cuTensorMapEncodeTiled_v12000, 12000)       \
    X(launch, "cuLaunchKernelEx", PFN_cuLaunchKernelEx_v11060, 11060)

typedef struct mla_cuda_driver {
#define MLA_CUDA_MEMBER(member, name, type, version) type member;
    MLA_CUDA_SYMBOLS(MLA_CUDA_MEMBER)
#undef MLA_CUDA_MEMBER
} mla_cuda_driver;

/* The table, loaded and initialised once in a process. Errors: UNSUPPORTED with the reason. */
mla_status mla_cuda_driver_get(const mla_cuda_driver **driver);

/* MLA_OK, or MLA_ERR_DEVICE with what the driver says about `result` of the call `what`. */
mla_status mla_cuda_check(const mla_cuda_driver *driver, CUresult result, const char *what);

#endif
