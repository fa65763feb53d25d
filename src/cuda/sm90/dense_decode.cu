/*
 * Dense decode on sm_90a: a CTA attends 64 query rows of a request to blocks of 64 keys and keeps
 * all 512 output columns, half in each of two consumer warpgroups (the seesaw).
 *
 *   left   S0 = Q K0^T, P0;  O_L += P0 V0_L, then P1 V1_L
 *   right  S1 = Q K1^T, P1;  O_R += P0 V0_R, then P1 V1_R
 *   producer  four warps, one for each half of the two K buffers, one lane a tile
 *
 * While one warpgroup computes exponentials the other's products run. The softmax has no row
 * maximum in its common path: p = exp2(s - ref) against a reference that is only raised, and the
 * accumulators with it, when a sum leaves the range of the 16-bit format. After normalisation the
 * reference cancels. Limits: the tensor cores at the clock that power allows (128 heads), HBM
 * (64 heads and fewer). The schedule is drawn in docs/kernels/sm90-dense-decode.md.
 */
#include "dense_producer.cuh"
#include "dense_seesaw.cuh"

/* ------------------------------------------------------------------------------------------------
 * Kernels
 * ---------------------------------------------------------------------------------------------- */

template <bool f16> __device__ __forceinline__ void dense_decode(const mla_sm90_dense_args &args)
{
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&args.q_map);
        tensor_map_prefetch(&args.kv_map);
    }
    set_up_barriers<paged_keys>(); /* each role waits for it where it needs them */
    wait_dependencies();
    const cta_place place = find_place(args);
    if (place.part.begin_req >= args.batch) {
        return; /* an idle part would only fetch instructions, beside those that wait for them */
    }
    const int32_t role = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / WARPGROUP, 0);
    if (role != PRODUCER) {
        setmaxnreg_inc<CONSUMER_REGS>();
        bar_sync<BAR_INIT, MLA_SM90_THREADS>();
        consume<f16, paged_keys>(args, place, role);
    } else {
        setmaxnreg_dec<PRODUCER_REGS>();
        produce(args, place);
        launch_dependents();
    }
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<true>(args);
}
