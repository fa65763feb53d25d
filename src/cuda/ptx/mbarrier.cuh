/* mbarrier and named-barrier instructions of sm_90, one a function. Addresses are shared-window. */
#ifndef MLA_PTX_MBARRIER_CUH
#define MLA_PTX_MBARRIER_CUH

#include <stdint.h>

namespace mla_ptx
{

/* One thread. `arrivals` arrivals complete a phase; a copy's bytes are counted beside them. */
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* The thread that initialised: makes the barriers visible to the copy engine. */
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One thread, one arrival. */
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One thread, one arrival; the phase also waits for `bytes` bytes of copies. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/*
 * Whether the phase of this parity is complete; sleeps a while in hardware before it says no. It
 * serves for arrivals from other CTAs of the cluster too: acquiring at the cluster's scope would
 * drop L1's lines at each wait (CCTL.IVALL), and shared memory is in no cache.
 */
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* mbarrier_try_wait() that never sleeps. */
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/*
 * One thread, one arrival on a barrier of any CTA of the cluster. It orders nothing beyond the CTA:
 * a release at the cluster's scope waits for all of the thread's memory accesses (MEMBAR.ALL.GPU).
 */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* All threads of `threads` / 32 warps between sync and arrive; the number is a constant, since a
 * register here would reserve all sixteen barriers. */
template <int barrier_idx, int threads> __device__ __forceinline__ void bar_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(barrier_idx), "n"(threads) : "memory");
}

template <int barrier_idx, int threads> __device__ __forceinline__ void bar_arrive()
{
    asm volatile("bar.arrive %0, %1;" ::"n"(barrier_idx), "n"(threads) : "memory");
}

} // namespace mla_ptx

#endif
