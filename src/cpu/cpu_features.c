#include "cpu_features.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct cpuid_regs {
    uint32_t eax, ebx, ecx, edx;
} cpuid_regs;

/* All zero for a leaf that the processor does not have. */
static cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf)
{
    cpuid_regs r = {0};
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) {
        return (cpuid_regs){0};
    }
    return r;
}

static bool has_bit(uint32_t reg, int bit)
{
    return reg >> bit & 1u;
}

/* XCR0: the register states that the operating system saves for a thread. 0 without OSXSAVE. */
static uint64_t saved_states(void)
{
    if (!has_bit(cpuid(1, 0).ecx, 27)) {
        return 0;
    }
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* State components of XCR0, as the processor manuals number them. */
enum {
    STATE_AVX = 1 << 1 | 1 << 2,                         /* SSE and upper halves of ymm */
    STATE_AVX512 = STATE_AVX | 1 << 5 | 1 << 6 | 1 << 7, /* mask registers, zmm */
    STATE_AMX = 1 << 17 | 1 << 18                        /* tile configuration, tile data */
};

static bool saves(uint64_t states)
{
    return (saved_states() & states) == states;
}

bool mla_cpu_has_avx2(void)
{
    cpuid_regs leaf1 = cpuid(1, 0);
    bool fma = has_bit(leaf1.ecx, 12), avx = has_bit(leaf1.ecx, 28), f16c = has_bit(leaf1.ecx, 29);
    bool avx2 = has_bit(cpuid(7, 0).ebx, 5);
    return fma && avx && f16c && avx2 && saves(STATE_AVX);
}

bool mla_cpu_has_avx512(void)
{
    uint32_t ebx = cpuid(7, 0).ebx;
    bool f = has_bit(ebx, 16), dq = has_bit(ebx, 17), bw = has_bit(ebx, 30), vl = has_bit(ebx, 31);
    return mla_cpu_has_avx2() && f && dq && bw && vl && saves(STATE_AVX512);
}

bool mla_cpu_has_avx512_bf16(void)
{
    bool vbmi = has_bit(cpuid(7, 0).ecx, 1); /* not on the first processors with bf16 */
    return mla_cpu_has_avx512() && vbmi && cpuid(7, 0).eax >= 1 && has_bit(cpuid(7, 1).eax, 5);
}

/* Linux keeps tile data switched off until a process asks for it. */
static bool request_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

bool mla_cpu_has_amx_bf16(void)
{
    uint32_t edx = cpuid(7, 0).edx;
    bool amx_bf16 = has_bit(edx, 22), amx_tile = has_bit(edx, 24);
    return mla_cpu_has_avx512_bf16() && amx_bf16 && amx_tile && saves(STATE_AMX) && request_tiles();
}

/* Asked in every run, and CPUID leaves a virtual machine for tens of microseconds: the first
 * answer is kept. Threads that ask at the same time store the same. */
bool mla_cpu_is_amd(void)
{
    enum { UNKNOWN, OTHER, AMD };
    static atomic_int kept = UNKNOWN;
    int answer = atomic_load_explicit(&kept, memory_order_relaxed);
    if (answer == UNKNOWN) {
        cpuid_regs r = cpuid(0, 0);
        char vendor[12];
        memcpy(vendor, &r.ebx, 4);
        memcpy(vendor + 4, &r.edx, 4);
        memcpy(vendor + 8, &r.ecx, 4);
        answer = memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0 ? AMD : OTHER;
        atomic_store_explicit(&kept, answer, memory_order_relaxed);
    }
    return answer == AMD;
}

void mla_cpu_name(char *name, size_t size)
{
    char brand[3 * sizeof(cpuid_regs) + 1] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        cpuid_regs r = cpuid(0x80000002u + i, 0);
        memcpy(brand + i * sizeof r, &r, sizeof r);
    }
    const char *begin = brand + strspn(brand, " ");
    snprintf(name, size, "%s", *begin != '\0' ? begin : "CPU");
}

#else

bool mla_cpu_has_avx2(void)
{
    return false;
}

bool mla_cpu_has_avx512(void)
{
    return false;
}

bool mla_cpu_has_avx512_bf16(void)
{
    return false;
}

bool mla_cpu_has_amx_bf16(void)
{
    return false;
}

bool mla_cpu_is_amd(void)
{
    return false;
}

void mla_cpu_name(char *name, size_t size)
{
    snprintf(name, size, "CPU");
}

#endif
