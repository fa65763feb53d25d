/* What all warps of a dense decode CTA share: roles, barriers, shared memory, place in the grid. */
#ifndef MLA_CUDA_DENSE_CTA_CUH
#define MLA_CUDA_DENSE_CTA_CUH

#include "pieces.cuh"
#include "ptx/mbarrier.cuh"

#ifdef MLA_HUNT_HANGS
#include <stdio.h>
#endif

using namespace mla_ptx;

enum { LEFT = 0, RIGHT = 1, PRODUCER = 2 };

/* Named barriers; 0 is __syncthreads(). Count: both consumer warpgroups, or one. */
enum {
    BAR_P0_READY = 1,   /* left -> right: P0, factors and reference of the left are in place */
    BAR_QK1_ISSUED = 2, /* right -> left: S1's products are queued, and P0 was read */
    BAR_P1_READY = 3,   /* right -> left: P1, factors and reference of the right are in place */
    BAR_ROW_SUMS = 4,   /* both: row sums are in place */
    BAR_LEFT = 5,       /* within the left: V's unused rows are zero, or the right's P was read */
    BAR_RIGHT = 6,
    BAR_INIT = 7, /* thread 0 -> all: the mbarriers are initialised */
};

enum { CONSUMERS = 256, WARPGROUP = 128, CONSUMER_REGS = 232, PRODUCER_REGS = 40 };
/* setmaxnreg shares out what the launch allocated, 168 registers for each of 384 threads. */
static_assert(2 * CONSUMER_REGS + PRODUCER_REGS <= 3 * 168, "setmaxnreg would never return");
static_assert(sizeof(mla_sm90_dense_smem) <= MLA_SM90_SMEM_LIMIT, "shared memory");
static_assert(offsetof(mla_sm90_dense_smem, k) % 1024 == 0, "swizzle atoms are 1,024 bytes");
static_assert(offsetof(mla_sm90_dense_smem, p) % 1024 == 0, "swizzle atoms are 1,024 bytes");

extern __shared__ __align__(1024) uint8_t smem_bytes[];

__device__ __forceinline__ mla_sm90_dense_smem &shared()
{
    return *(mla_sm90_dense_smem *)smem_bytes;
}

__device__ __forceinline__ uint32_t smem_addr(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The CTA's place in the grid: row tiles of a part are neighbours, so that they run in step and
 * L2 merges their reads of the same keys. */
struct cta_place {
    int32_t part_idx, kv_head;
    int32_t first_row; /* of the row tile */
    mla_plan_part part;
};

__device__ __forceinline__ cta_place find_place(const mla_sm90_dense_args &args)
{
    cta_place place;
    const int32_t unit = divide((int32_t)blockIdx.x, args.row_tiles_inverse);
    place.part_idx = divide(unit, args.h_kv_inverse);
    place.kv_head = unit - place.part_idx * args.h_kv;
    place.first_row = ((int32_t)blockIdx.x - unit * args.row_tiles) * MLA_SM90_TILE_ROWS;
    place.part = ((const mla_plan_part *)(args.plan + 1))[place.part_idx];
    return place;
}

#ifdef MLA_HUNT_HANGS
/* A wait that gives up after a while and says so; the kernel then ends, with wrong results. */
__device__ __noinline__ void report_stuck(int32_t barrier_idx, uint32_t parity)
{
    if (threadIdx.x % 32 == 0) {
        printf("block %d warp %d gave up on barrier %d, parity %u\n", (int)blockIdx.x,
               (int)threadIdx.x / 32, barrier_idx, parity);
    }
}

__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    for (int32_t i = 0; !mbarrier_try_wait(smem_addr(&barrier), parity); ++i) {
        if (i == 100000) {
            report_stuck((int32_t)(&barrier - shared().k_full[0]), parity);
            return;
        }
    }
}
#else
__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(smem_addr(&barrier), parity)) {
    }
}
#endif

#endif
