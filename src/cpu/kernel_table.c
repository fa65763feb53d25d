/*
 * The order in which kernels are preferred.
 *
 * AMX is first wherever it is: a tile product does 16 times the work of an FMA. Between FP32 and
 * bf16 products on AVX-512 the vendor decides. Intel's vdpbf16ps issues every other cycle, on one
 * port: 86 GFLOP/s a core beside 175 of FP32 FMA (Xeon, family 6 model 207, one thread, November
 * 2026). AMD's Zen 4 and later issue it like an FMA, with twice the products.
 */
#include "cpu_features.h"
#include "kernels.h"

#include <stddef.h>

#if defined(__x86_64__)

static const mla_cpu_kernel *const intel_order[] = {&mla_amx_bf16_kernel, &mla_avx512_kernel,
                                                    &mla_avx512_bf16_kernel, &mla_avx2_kernel,
                                                    &mla_portable_kernel};

static const mla_cpu_kernel *const amd_order[] = {&mla_amx_bf16_kernel, &mla_avx512_bf16_kernel,
                                                  &mla_avx512_kernel, &mla_avx2_kernel,
                                                  &mla_portable_kernel};

_Static_assert(sizeof intel_order == sizeof amd_order, "the same kernels in another order");

const mla_cpu_kernel *const *mla_cpu_kernels(int32_t *count)
{
    *count = (int32_t)(sizeof intel_order / sizeof intel_order[0]);
    return mla_cpu_is_amd() ? amd_order : intel_order;
}

#else

const mla_cpu_kernel *const *mla_cpu_kernels(int32_t *count)
{
    static const mla_cpu_kernel *const order[] = {&mla_portable_kernel};
    *count = 1;
    return order;
}

#endif

uint32_t mla_cpu_isa_available(void)
{
    int32_t count;
    const mla_cpu_kernel *const *kernels = mla_cpu_kernels(&count);
    uint32_t isa_mask = MLA_ISA_REFERENCE;
    for (int32_t i = 0; i < count; i++) {
        isa_mask |= kernels[i]->available() ? (uint32_t)kernels[i]->isa : 0u;
    }
    return isa_mask;
}

const mla_cpu_kernel *mla_cpu_kernel_choose(uint32_t isa_allowed, mla_kv_format kv_format,
                                            mla_dtype dtype)
{
    int32_t count;
    const mla_cpu_kernel *const *kernels = mla_cpu_kernels(&count);
    for (int32_t i = 0; i < count; i++) {
        if ((isa_allowed & (uint32_t)kernels[i]->isa) && kernels[i]->serves(kv_format, dtype)) {
            return kernels[i];
        }
    }
    return NULL;
}
