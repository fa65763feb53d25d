/* The CUDA backend's table: what is there, and the reason why the rest is not. */
#include "cuda_context.h"
#include "cuda_dense.h"
#include "cuda_rows.h"
#include "status.h"

static mla_status supports(const mla_ctx *ctx, const mla_shape *shape)
{
    if (shape->problem.op != MLA_OP_DENSE_DECODE) {
        return mla_fail(MLA_ERR_UNSUPPORTED,
                        "problem.op = %d: the CUDA backend has no sparse kernels yet",
                        (int)shape->problem.op);
    }
    return mla_cuda_dense_supports(ctx, shape);
}

const mla_backend_ops mla_cuda_backend = {.backend = MLA_BACKEND_CUDA,
                                          .device_count = mla_cuda_device_count,
                                          .ctx_open = mla_cuda_ctx_open,
                                          .ctx_close = mla_cuda_ctx_close,
                                          .supports = supports,
                                          .get_sizes = mla_cuda_dense_sizes,
                                          .plan_build = mla_cuda_dense_plan,
                                          .run = mla_cuda_dense_run,
                                          .merge = mla_cuda_merge,
                                          .pack = mla_cuda_pack,
                                          .unpack = mla_cuda_unpack};
