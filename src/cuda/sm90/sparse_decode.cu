#include "sparse_gather.cuh"

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
