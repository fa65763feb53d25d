/*
 * Sparse decode on sm_90a: each query token attends to its own list of rows of one or two pools,
 * in 16 bits or FP8. The consumers are those of dense decode (dense_seesaw.cuh), 64 heads to a CTA;
 * a producer warpgroup copies 16-bit rows (sparse_gather.cuh) or converts FP8 ones
 * (sparse_fp8.cuh). Limits: the tensor cores, then the conversion. See
 * docs/kernels/sm90-sparse.md.
 */
#include "sparse_fp8.cuh"
#include "sparse_gather.cuh"

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_fp8_656(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, fp8_keys<rows_656, false>>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_fp8_584(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, fp8_keys<rows_584, false>>(args);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_fp8_656_pair(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, fp8_keys<rows_656, true>>(args);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_fp8_584_pair(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, fp8_keys<rows_584, true>>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_bf16(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, gathered_keys<false>>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_decode_f16(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<true, gathered_keys<false>>(args);
}
