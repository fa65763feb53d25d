/* The CUDA backend's table: what is there, and the reason why the rest is not. */
#include "cuda_context.h"
#include "cuda_dense.h"
#include "cuda_plan.h"
#include "cuda_rows.h"
#include "cuda_sparse.h"

static mla_status supports(const mla_ctx *ctx, const mla_shape *shape)
{
    (void)ctx;
    return shape->sparse ? mla_cuda_sparse_supports(shape) : mla_cuda_dense_supports(shape);
}

static mla_status run(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                      const void *plan_buffer, void *workspace, void *stream)
{
    return (shape->sparse ? mla_cuda_sparse_run : mla_cuda_dense_run)(
        ctx, shape, tensors, plan_buffer, workspace, stream);
}

const mla_backend_ops mla_cuda_backend = {.backend = MLA_BACKEND_CUDA,
                                          .device_count = mla_cuda_device_count,
                                          .ctx_open = mla_cuda_ctx_open,
                                          .ctx_close = mla_cuda_ctx_close,
                                          .supports = supports,
                                          .get_sizes = mla_cuda_get_sizes,
                                          .plan_build = mla_cuda_plan_build,
                                          .run = run,
                                          .merge = mla_cuda_merge,
                                          .pack = mla_cuda_pack,
                                          .unpack = mla_cuda_unpack};
