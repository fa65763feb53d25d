/* Warp-level instructions: matrix stores, register reallocation, special functions, packing. */
#ifndef MLA_PTX_WARP_CUH
#define MLA_PTX_WARP_CUH

#include <stdint.h>

namespace mla_ptx
{

/* A warp: four 8x8 matrices of 16-bit values; lane l has the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2,
                                            uint32_t r3)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
        "r"(r0), "r"(r1), "r"(r2), "r"(r3)
        : "memory");
}

/* A warpgroup: raises or lowers the registers of its threads to `registers`. */
template <int registers> __device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> __device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* A thread: no instruction at all; what the compiler knows of these values ends here. */
__device__ __forceinline__ void hide_values(int32_t &a, int32_t &b, int32_t &c, int32_t &d)
{
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
}

/* threadIdx.x, read where it is needed instead of held in a register. */
__device__ __forceinline__ int32_t thread_index()
{
    uint32_t index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return (int32_t)index;
}

/* A thread: a load from global memory, issued where it stands; what follows need not wait. */
__device__ __forceinline__ int32_t load_now(const int32_t *from)
{
    int32_t a;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(a) : "l"(from));
    return a;
}

/* 2^x, 2 ulp; 2^-inf = 0, subnormal results flush to 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2 x, absolute error 2^-22; -inf for 0. */
__device__ __forceinline__ float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, 1 ulp. */
__device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats to packed 16-bit values, round to nearest even; `lo` lies in bits 0-15. */
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
}

__device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
    return packed;
}

/* The larger of a and |b|, of both packed values; a NaN loses. */
__device__ __forceinline__ uint32_t max_abs_f16x2(uint32_t a, uint32_t b)
{
    uint32_t larger;
    asm("{\n.reg .b32 size;\nabs.f16x2 size, %2;\nmax.f16x2 %0, %1, size;\n}\n"
        : "=r"(larger)
        : "r"(a), "r"(b));
    return larger;
}

/* Two e4m3 values to two floats, exactly; `lo` is that of bits 0-7. */
__device__ __forceinline__ void unpack_e4m3(uint16_t pair, float &lo, float &hi)
{
    asm("{\n"
        ".reg .b32 halves;\n"
        ".reg .b16 h0, h1;\n"
        "cvt.rn.f16x2.e4m3x2 halves, %2;\n"
        "mov.b32 {h0, h1}, halves;\n"
        "cvt.f32.f16 %0, h0;\n"
        "cvt.f32.f16 %1, h1;\n"
        "}\n"
        : "=f"(lo), "=f"(hi)
        : "h"(pair));
}

/* 16 bytes to shared memory. */
__device__ __forceinline__ void store_shared_16(uint32_t smem, uint32_t r0, uint32_t r1,
                                                uint32_t r2, uint32_t r3)
{
    asm volatile("st.shared::cta.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

__device__ __forceinline__ float2 unpack_f16(uint32_t pair)
{
    float2 two;
    asm("{\n"
        ".reg .f16 lo, hi;\n"
        "mov.b32 {lo, hi}, %2;\n"
        "cvt.f32.f16 %0, lo;\n"
        "cvt.f32.f16 %1, hi;\n"
        "}\n"
        : "=f"(two.x), "=f"(two.y)
        : "r"(pair));
    return two;
}

/* Products of packed pairs. */
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

} // namespace mla_ptx

#endif
