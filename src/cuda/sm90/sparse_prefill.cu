/*
 * Sparse prefill on sm_90a: each query token of a long prompt attends to its own list of 16-bit
 * rows. The consumers are those of dense decode (dense_seesaw.cuh), 64 heads to a CTA; a producer
 * warpgroup gathers the rows. Beside out and lse it gives the largest product of each row. Limits:
 * the tensor cores, and L2, from which every row comes once for each query and 64 heads. See
 * docs/kernels/sm90-sparse.md.
 */
#include "sparse_gather.cuh"

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_prefill_bf16(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<false, gathered_keys<true>>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_sparse_prefill_f16(const __grid_constant__ mla_sm90_sparse_args args)
{
    attend_sparse<true, gathered_keys<true>>(args);
}
