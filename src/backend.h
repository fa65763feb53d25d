/* What a backend offers to the API layer. Arguments that arrive here have been checked against the
 * manual. */
#ifndef MLA_SRC_BACKEND_H
#define MLA_SRC_BACKEND_H

#include "mla.h"
#include "shape.h"

/* OpenMP ends the process when it cannot start as many threads as it is told to. */
enum { MLA_MAX_THREADS = 4096 };

typedef struct mla_backend_ops {
    mla_backend backend;
    mla_status (*device_count)(int32_t *count);
    /* Fills ctx->info, ctx->shape_id and ctx->state. On failure leaves nothing allocated. */
    mla_status (*ctx_open)(const mla_ctx_params *params, mla_ctx *ctx);
    void (*ctx_close)(mla_ctx *ctx);
    mla_status (*supports)(const mla_ctx *ctx, const mla_shape *shape);
    mla_status (*get_sizes)(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes);
    mla_status (*plan_build)(const mla_ctx *ctx, const mla_shape *shape, const mla_lengths *lengths,
                             void *plan_buffer, void *stream);
    /* Strides of `tensors` are resolved: none is a stand-in for the contiguous layout any more. */
    mla_status (*run)(const mla_ctx *ctx, const mla_shape *shape, const mla_tensors *tensors,
                      const void *plan_buffer, void *workspace, void *stream);
    mla_status (*merge)(const mla_ctx *ctx, const mla_merge_args *args, void *stream);
    mla_status (*pack)(const mla_ctx *ctx, const mla_pack_args *args, void *stream);
    mla_status (*unpack)(const mla_ctx *ctx, const mla_pack_args *args, void *stream);
} mla_backend_ops;

struct mla_ctx {
    const mla_backend_ops *ops;
    mla_info info;
    uint64_t shape_id; /* equal for contexts that cut plans alike; never 0 */
    void *state;       /* the backend's own */
};

extern const mla_backend_ops mla_cpu_backend;
#if MLA_WITH_CUDA
extern const mla_backend_ops mla_cuda_backend;
#endif

#endif
