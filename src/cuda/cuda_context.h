/* A CUDA context of this library: the device, its primary context, and the loaded kernels. */
#ifndef MLA_CUDA_CONTEXT_H
#define MLA_CUDA_CONTEXT_H

#include "backend.h"
#include "cuda_driver.h"

/*
 * The one list of kernels: constant, cubin, name, dynamic shared memory. It feeds the host's table
 * of functions; tests and the register budget read it too. Sparse kernels keep more behind the
 * dense plan of shared memory, of device types only, so they get all there is.
 */
#define MLA_CUDA_KERNELS(X)                                                                        \
    X(PLAN_CUT, plan_cut, "mla_sm90_plan_cut", 0)                                                  \
    X(DENSE_BF16, dense_decode, "mla_sm90_dense_bf16", sizeof(mla_sm90_dense_smem))                \
    X(DENSE_F16, dense_decode, "mla_sm90_dense_f16", sizeof(mla_sm90_dense_smem))                  \
    X(SPARSE_DECODE_FP8_656, sparse_decode, "mla_sm90_sparse_decode_fp8_656", MLA_SM90_SMEM_LIMIT) \
    X(SPARSE_DECODE_FP8_584, sparse_decode, "mla_sm90_sparse_decode_fp8_584", MLA_SM90_SMEM_LIMIT) \
    X(SPARSE_PAIR_FP8_656, sparse_decode, "mla_sm90_sparse_decode_fp8_656_pair",                   \
      MLA_SM90_SMEM_LIMIT)                                                                         \
    X(SPARSE_PAIR_FP8_584, sparse_decode, "mla_sm90_sparse_decode_fp8_584_pair",                   \
      MLA_SM90_SMEM_LIMIT)                                                                         \
    X(SPARSE_DECODE_BF16, sparse_decode, "mla_sm90_sparse_decode_bf16", MLA_SM90_SMEM_LIMIT)       \
    X(SPARSE_DECODE_F16, sparse_decode, "mla_sm90_sparse_decode_f16", MLA_SM90_SMEM_LIMIT)         \
    X(SPARSE_PREFILL_BF16, sparse_prefill, "mla_sm90_sparse_prefill_bf16", MLA_SM90_SMEM_LIMIT)    \
    X(SPARSE_PREFILL_F16, sparse_prefill, "mla_sm90_sparse_prefill_f16", MLA_SM90_SMEM_LIMIT)      \
    X(COMBINE_BF16, combine, "mla_sm90_combine_bf16", 0)                                           \
    X(COMBINE_F16, combine, "mla_sm90_combine_f16", 0)                                             \
    X(MERGE, merge_parts, "mla_sm90_merge", 0)                                                     \
    X(PACK, pack_rows, "mla_sm90_pack", 0)                                                         \
    X(UNPACK, pack_rows, "mla_sm90_unpack", 0)

/* The cubins, in the order of their numbers. */
#define MLA_CUDA_CUBINS(X)                                                                         \
    X(plan_cut)                                                                                    \
    X(dense_decode)                                                                                \
    X(sparse_decode)                                                                               \
    X(sparse_prefill)                                                                              \
    X(combine)                                                                                     \
    X(merge_parts)                                                                                 \
    X(pack_rows)

typedef enum mla_cuda_kernel {
#define MLA_CUDA_KERNEL(constant, cubin, name, smem_bytes) MLA_CUDA_##constant,
    MLA_CUDA_KERNELS(MLA_CUDA_KERNEL)
#undef MLA_CUDA_KERNEL
        MLA_CUDA_NUM_KERNELS
} mla_cuda_kernel;

typedef enum mla_cuda_cubin {
#define MLA_CUDA_CUBIN(cubin) MLA_CUDA_CUBIN_##cubin,
    MLA_CUDA_CUBINS(MLA_CUDA_CUBIN)
#undef MLA_CUDA_CUBIN
        MLA_CUDA_NUM_CUBINS
} mla_cuda_cubin;

typedef struct mla_cuda_state {
    const mla_cuda_driver *driver;
    CUdevice device;
    CUcontext primary;
    CUmodule modules[MLA_CUDA_NUM_CUBINS];
    CUfunction kernels[MLA_CUDA_NUM_KERNELS];
} mla_cuda_state;

mla_status mla_cuda_device_count(int32_t *count);
mla_status mla_cuda_ctx_open(const mla_ctx_params *params, mla_ctx *ctx);
void mla_cuda_ctx_close(mla_ctx *ctx);

/* One launch on `stream`. Nothing is allocated and nothing is waited for. */
typedef struct mla_cuda_launch {
    mla_cuda_kernel kernel;
    int64_t grid;
    int32_t threads;
    const void *args; /* the kernel's one parameter */
    bool early;       /* may start before the launch before it has ended, and waits on the device */
} mla_cuda_launch;

/* Enqueues launches in order; the calling thread's current context is as before afterwards. */
mla_status mla_cuda_enqueue(const mla_ctx *ctx, const mla_cuda_launch *launches, int32_t count,
                            void *stream);

#endif
