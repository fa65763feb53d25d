/* Tensor copies (TMA), copies of threads, L2 policies and the ordering instructions around them,
 * one a function. */
#ifndef MLA_PTX_TMA_CUH
#define MLA_PTX_TMA_CUH

#include <stdint.h>

namespace mla_ptx
{

/* One thread: brings a tensor map (a kernel parameter) into the descriptor cache. */
__device__ __forceinline__ void tensor_map_prefetch(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Encoding of an L2 policy that lets the copied lines be replaced first. */
static constexpr uint64_t kL2EvictFirst = 0x12f0000000000000ull;
/* And of the one that keeps them longest. */
static constexpr uint64_t kL2EvictLast = 0x14f0000000000000ull;

/* One thread: a box of a 4-D tensor to shared memory; its bytes complete on `barrier`. */
__device__ __forceinline__ void tma_load_4d(uint32_t smem, const void *map, uint32_t barrier,
                                            uint64_t policy, int32_t c0, int32_t c1, int32_t c2,
                                            int32_t c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(smem),
                 "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* One thread: the same from a 5-D tensor. */
__device__ __forceinline__ void tma_load_5d(uint32_t smem, const void *map, uint32_t barrier,
                                            uint64_t policy, int32_t c0, int32_t c1, int32_t c2,
                                            int32_t c3, int32_t c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(smem),
                 "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

/* A thread: 16 bytes, aligned alike, from global to shared memory, past L1. */
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void *global, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(smem),
                 "l"(global), "l"(policy)
                 : "memory");
}

/* A thread: 4 bytes from global to shared memory. */
__device__ __forceinline__ void cp_async_4(uint32_t smem, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(global) : "memory");
}

/* A thread: its cp.asyncs since the last call become a group. */
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* A thread: waits until its groups have landed. */
__device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* A thread: one arrival on the barrier as soon as its cp.asyncs so far have landed. */
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* A thread: 16 bytes that no thread writes while the kernel runs, past L1; L2 fetches the 256 bytes
 * around them. */
__device__ __forceinline__ uint4 load_16(const void *global)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(global));
    return x;
}

/* A thread: the same for 4 and for 2 bytes, issued where they stand. */
__device__ __forceinline__ uint32_t load_4(const void *global)
{
    uint32_t x;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(global));
    return x;
}

__device__ __forceinline__ uint32_t load_2(const void *global)
{
    uint16_t x;
    asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(x) : "l"(global));
    return x;
}

/* A thread: L2 fetches the line of this address. */
__device__ __forceinline__ void prefetch_l2(const void *global)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

/* Each writing thread: orders its shared-memory stores before later accesses of tensor cores and
 * copy engine that a barrier makes follow. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Any thread of every CTA: the dependent launch may start once all CTAs have called it. */
__device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the launches this one depends on have finished and their stores are visible. */
__device__ __forceinline__ void wait_dependencies()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

} // namespace mla_ptx

#endif
