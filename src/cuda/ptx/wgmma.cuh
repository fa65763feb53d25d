/*
 * wgmma of sm_90a: 64 query rows times n columns, k = 16, 16-bit inputs, FP32 accumulators.
 *
 * All four warps of a warpgroup execute each function. An accumulator array holds, for lane l of
 * warp w and column group g of 8: rows 16w + l/4 (elements 4g, 4g + 1) and that + 8 (4g + 2,
 * 4g + 3), columns 8g + 2(l % 4) and the next. A from registers: one row pair of k 0-7, then of
 * k 8-15, in the same lane pattern.
 *
 * `accumulate` 0 overwrites the accumulators, else the product is added.
 */
#ifndef MLA_PTX_WGMMA_CUH
#define MLA_PTX_WGMMA_CUH

#include <stdint.h>

namespace mla_ptx
{

/* Before the first wgmma that reads registers written by other instructions. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of the wgmmas issued so far. */
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `pending` groups are unfinished. */
template <int pending> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Keeps the compiler from moving uses of accumulators across this point; no instruction. */
template <int n> __device__ __forceinline__ void wgmma_pin(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

/*
 * Shared-memory descriptor of an operand in 128-byte swizzle. The offsets, in bytes, lead from one
 * 64-column atom to the next (MN-major operands only) and from 8 rows to the next 8.
 */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t smem, uint32_t leading,
                                                     uint32_t stride)
{
    /* In a cluster the address also says whose memory it is. */
    return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

#define MLA_ACC8(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define MLA_ACC32(d, i)  MLA_ACC8(d, i), MLA_ACC8(d, i + 8), MLA_ACC8(d, i + 16), MLA_ACC8(d, i + 24)
#define MLA_ACC64(d, i)  MLA_ACC32(d, i), MLA_ACC32(d, i + 32)
#define MLA_ACC128(d, i) MLA_ACC64(d, i), MLA_ACC64(d, i + 64)

#define MLA_REGS32                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MLA_REGS64                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MLA_REGS128                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

/* S (64 keys): A and B from shared memory, both K-major. */
template <bool f16>
__device__ __forceinline__ void wgmma_qk_ss(float (&d)[32], uint64_t desc_a, uint64_t desc_b,
                                            int32_t accumulate)
{
    if constexpr (f16) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" MLA_REGS32 "}, "
                     "%32, %33, p, 1, 1, 0, 0;\n}\n"
                     : MLA_ACC32(d, 0)
                     : "l"(desc_a), "l"(desc_b), "r"(accumulate));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MLA_REGS32 "}, "
                     "%32, %33, p, 1, 1, 0, 0;\n}\n"
                     : MLA_ACC32(d, 0)
                     : "l"(desc_a), "l"(desc_b), "r"(accumulate));
    }
}

/* S (64 keys): A from registers. */
template <bool f16>
__device__ __forceinline__ void wgmma_qk_rs(float (&d)[32], const uint32_t *a, uint64_t desc_b,
                                            int32_t accumulate)
{
    if constexpr (f16) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" MLA_REGS32 "}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
                     : MLA_ACC32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MLA_REGS32 "}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
                     : MLA_ACC32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    }
}

/* O (256 columns): A from shared memory, K-major; B is V, MN-major. */
template <bool f16>
__device__ __forceinline__ void wgmma_pv256_ss(float (&d)[128], uint64_t desc_a, uint64_t desc_b,
                                               int32_t accumulate)
{
    if constexpr (f16) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" MLA_REGS128 "}, "
                     "%128, %129, p, 1, 1, 0, 1;\n}\n"
                     : MLA_ACC128(d, 0)
                     : "l"(desc_a), "l"(desc_b), "r"(accumulate));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MLA_REGS128 "}, "
                     "%128, %129, p, 1, 1, 0, 1;\n}\n"
                     : MLA_ACC128(d, 0)
                     : "l"(desc_a), "l"(desc_b), "r"(accumulate));
    }
}

/* O (256 columns): A from registers; B is V, MN-major. */
template <bool f16>
__device__ __forceinline__ void wgmma_pv256_rs(float (&d)[128], const uint32_t *a, uint64_t desc_b,
                                               int32_t accumulate)
{
    if constexpr (f16) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" MLA_REGS128 "}, "
                     "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}\n"
                     : MLA_ACC128(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MLA_REGS128 "}, "
                     "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}\n"
                     : MLA_ACC128(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    }
}

/* O (128 columns): A from registers; B is V, MN-major. */
template <bool f16>
__device__ __forceinline__ void wgmma_pv128_rs(float (&d)[64], const uint32_t *a, uint64_t desc_b,
                                               int32_t accumulate)
{
    if constexpr (f16) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MLA_REGS64 "}, "
                     "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                     : MLA_ACC64(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    } else {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MLA_REGS64 "}, "
                     "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                     : MLA_ACC64(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate));
    }
}

#undef MLA_ACC8
#undef MLA_ACC32
#undef MLA_ACC64
#undef MLA_ACC128
#undef MLA_REGS32
#undef MLA_REGS64
#undef MLA_REGS128

} // namespace mla_ptx

#endif
