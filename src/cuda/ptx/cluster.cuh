/* Instructions between the CTAs of a cluster, one a function. */
#ifndef MLA_PTX_CLUSTER_CUH
#define MLA_PTX_CLUSTER_CUH

#include <stdint.h>

namespace mla_ptx
{

/* This CTA's number in its cluster. */
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where an address of this CTA's shared memory lies in that of CTA `rank`. */
__device__ __forceinline__ uint32_t map_to_rank(uint32_t smem, uint32_t rank)
{
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(smem), "r"(rank));
    return mapped;
}

/* One thread: a multiple of 16 bytes to the shared memory of a CTA of the cluster, which complete
 * on `barrier` there. What threads stored must be ordered for the copy engine first. */
__device__ __forceinline__ void copy_to_cluster(uint32_t mapped, uint32_t smem, uint32_t bytes,
                                                uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], "
        "%2, [%3];" ::"r"(mapped),
        "r"(smem), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Every thread of the cluster: what they did before is seen by all after. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

} // namespace mla_ptx

#endif
