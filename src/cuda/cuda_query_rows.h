/*
 * What dense decode and the sparse operations have in common on the host: how query rows are laid
 * out in tiles, what is told to the kernels about queries and outputs, and the launches.
 */
#ifndef MLA_CUDA_QUERY_ROWS_H
#define MLA_CUDA_QUERY_ROWS_H

#include "backend.h"
#include "cuda_context.h"
#include "sm90/dense_args.h"

enum { MLA_CUDA_ALIGNMENT = 16 }; /* bytes, of what the copy engine and 16-byte accesses reach */

/* How 64 query rows of a CTA are taken from q; see mla_sm90_dense_args. */
typedef struct mla_cuda_row_layout {
    int64_t row_tiles; /* of a plan request and KV head */
    int64_t dim_rows;  /* tensor map: rows of the second dimension */
    int32_t box_rows, box_tokens;
    int32_t group_pad;
    int32_t rows_a_token; /* rows after which the fourth dimension advances */
} mla_cuda_row_layout;

mla_cuda_row_layout mla_cuda_lay_out_rows(const mla_shape *shape);

/* Refuses what the kernels' 32-bit counts of requests, rows and thread blocks do not reach. */
mla_status mla_cuda_check_counts(const mla_shape *shape);

/* Refuses q and out that the copy engine and 16-byte stores cannot reach. */
mla_status mla_cuda_check_rows(const mla_shape *shape, const mla_tensors *tensors);

/*
 * Refuse data or a stride that is no multiple of 16 bytes (strides count units of `elem_bytes`),
 * and a stride beyond the reach of tensor maps. Strides of dimensions of one entry are not looked
 * at. `name` is that of the member of mla_tensors.
 */
mla_status mla_cuda_check_alignment(const void *data, const int64_t *stride, const int64_t *dims,
                                    int64_t elem_bytes, const char *name);
mla_status mla_cuda_check_reach(const int64_t *stride, const int64_t *dims, int64_t elem_bytes,
                                const char *name);

/* A stride that a tensor map accepts: that of a dimension of one entry is never used. */
static inline cuuint64_t mla_cuda_map_stride(int64_t bytes, int64_t dim)
{
    return dim > 1 ? (cuuint64_t)bytes : MLA_CUDA_ALIGNMENT;
}

/* Encodes a tensor map of the problem's dtype with swizzled rows of 128 bytes. */
mla_status mla_cuda_encode_map(const mla_ctx *ctx, const mla_shape *shape, CUtensorMap *map,
                               cuuint32_t rank, const void *data, const cuuint64_t *dims,
                               const cuuint64_t *strides, const cuuint32_t *box);

/* Fills all that concerns queries, outputs, plan and partial results; the keys are the caller's. */
mla_status mla_cuda_fill_rows(const mla_ctx *ctx, const mla_shape *shape,
                              const mla_tensors *tensors, const void *plan_buffer, void *workspace,
                              mla_sm90_dense_args *rows);

/* Launches `kernel` with `args`, and the merge behind it where requests may be split. */
mla_status mla_cuda_enqueue_rows(const mla_ctx *ctx, const mla_shape *shape, mla_cuda_kernel kernel,
                                 const void *args, const mla_sm90_dense_args *rows, void *stream);

#endif
