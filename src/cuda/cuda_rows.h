/* Merge, pack and unpack on the GPU. */
#ifndef MLA_CUDA_ROWS_H
#define MLA_CUDA_ROWS_H

#include "backend.h"

mla_status mla_cuda_merge(const mla_ctx *ctx, const mla_merge_args *args, void *stream);
mla_status mla_cuda_pack(const mla_ctx *ctx, const mla_pack_args *args, void *stream);
mla_status mla_cuda_unpack(const mla_ctx *ctx, const mla_pack_args *args, void *stream);

#endif
