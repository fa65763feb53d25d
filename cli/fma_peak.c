#include "fma_peak.h"
#include "tool.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/*
 * Twelve independent chains: two units with a latency of four cycles need eight, bf16 products six
 * each. The names are pasted because compilers keep named variables in registers, not arrays.
 */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

enum { CHAINS = 12, ROUNDS = 4096 };

/* Where results go, so that no compiler drops the loops. */
static volatile float sink;

typedef struct fma_loop {
    void (*run)(void);     /* ROUNDS times CHAINS instructions */
    double flops_per_step; /* of one instruction */
} fma_loop;

typedef float vec4 __attribute__((vector_size(16)));

static void loop_portable(void)
{
    const vec4 factor = {0.999f, 0.999f, 0.999f, 0.999f}, term = {1e-3f, 2e-3f, 3e-3f, 4e-3f};
#define DECLARE(i) vec4 acc##i = {i, 1, 2, 3};
#define STEP(i)    acc##i = acc##i * factor + term;
#define ADD(i)     +acc##i[0]
    TWELVE(DECLARE)
    for (int round = 0; round < ROUNDS; round++) {
        TWELVE(STEP)
    }
    sink = 0 TWELVE(ADD);
#undef DECLARE
#undef STEP
#undef ADD
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) static void loop_avx2(void)
{
    const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-3f);
#define DECLARE(i) __m256 acc##i = _mm256_set1_ps((float)i);
#define STEP(i)    acc##i = _mm256_fmadd_ps(acc##i, factor, term);
#define ADD(i)     +_mm256_cvtss_f32(acc##i)
    TWELVE(DECLARE)
    for (int round = 0; round < ROUNDS; round++) {
        TWELVE(STEP)
    }
    sink = 0 TWELVE(ADD);
#undef DECLARE
#undef STEP
#undef ADD
}

__attribute__((target("avx512f"))) static void loop_avx512(void)
{
    const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1e-3f);
#define DECLARE(i) __m512 acc##i = _mm512_set1_ps((float)i);
#define STEP(i)    acc##i = _mm512_fmadd_ps(acc##i, factor, term);
#define ADD(i)     +_mm512_cvtss_f32(acc##i)
    TWELVE(DECLARE)
    for (int round = 0; round < ROUNDS; round++) {
        TWELVE(STEP)
    }
    sink = 0 TWELVE(ADD);
#undef DECLARE
#undef STEP
#undef ADD
}

__attribute__((target("avx512f,avx512bf16"))) static void loop_avx512_bf16(void)
{
    /* The bits of bf16 0.01 and -0.01 by turns, so that sums neither grow nor vanish. */
    __m512bh a, b;
    const __m512i a_bits = _mm512_set1_epi32(0x3c243c24),
                  b_bits = _mm512_set1_epi32((int)0xbc243c24);
    memcpy(&a, &a_bits, sizeof a);
    memcpy(&b, &b_bits, sizeof b);
#define DECLARE(i) __m512 acc##i = _mm512_set1_ps((float)i);
#define STEP(i)    acc##i = _mm512_dpbf16_ps(acc##i, a, b);
#define ADD(i)     +_mm512_cvtss_f32(acc##i)
    TWELVE(DECLARE)
    for (int round = 0; round < ROUNDS; round++) {
        TWELVE(STEP)
    }
    sink = 0 TWELVE(ADD);
#undef DECLARE
#undef STEP
#undef ADD
}

/* Layout of the operand of ldtilecfg. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

__attribute__((target("amx-tile,amx-bf16"))) static void loop_amx(void)
{
    tile_config config = {.palette = 1};
    uint16_t values[16 * 32];
    float result[16 * 16];
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    for (int i = 0; i < 16 * 32; i++) {
        values[i] = (uint16_t)((i % 2 == 0 ? 0x3c00 : 0xbc00) + i % 128);
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, values, 64);
    _tile_loadd(5, values, 64);
    _tile_loadd(6, values, 64);
    _tile_loadd(7, values, 64);
    /* Four results by three: as many instructions as the other loops count. */
    for (int round = 0; round < ROUNDS * CHAINS / 4; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, result, 64);
    _tile_release();
    sink = result[0];
}

#endif

static fma_loop loop_of(mla_isa isa)
{
#if defined(__x86_64__)
    switch (isa) {
    case MLA_ISA_AVX2:
        return (fma_loop){loop_avx2, 16.0};
    case MLA_ISA_AVX512:
        return (fma_loop){loop_avx512, 32.0};
    case MLA_ISA_AVX512_BF16:
        return (fma_loop){loop_avx512_bf16, 64.0};
    case MLA_ISA_AMX_BF16:
        return (fma_loop){loop_amx, 2.0 * 16 * 16 * 32};
    default:
        break;
    }
#endif
    (void)isa;
    return (fma_loop){loop_portable, 8.0};
}

mla_isa fma_peak_fp32_isa(mla_isa isa)
{
    return isa == MLA_ISA_AVX512_BF16 || isa == MLA_ISA_AMX_BF16 ? MLA_ISA_AVX512 : isa;
}

double fma_peak_measure(mla_isa isa, int32_t num_threads, double seconds)
{
    assert(num_threads >= 1 && seconds > 0.0);
    fma_loop loop = loop_of(isa);
    double total = 0.0;
#pragma omp parallel num_threads(num_threads) reduction(+ : total)
    {
#pragma omp barrier
        double start = tool_now(), elapsed = 0.0;
        int64_t loops = 0;
        while (elapsed < seconds) {
            loop.run();
            loops++;
            elapsed = tool_now() - start;
        }
        total += loop.flops_per_step * CHAINS * ROUNDS * (double)loops / elapsed;
    }
    return total * 1e-9;
}

double clock_measure(double seconds)
{
    double best = 0.0;
#if defined(__x86_64__)
    uint64_t value = 1, term = 3;
    double start = tool_now(), now = start;
    while (now - start < seconds) {
        double slice = now;
        for (int i = 0; i < 20000; i++) {
            /* Register to register: recent cores fold additions of constants into renaming. */
            __asm__ volatile("add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
                             "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
                             "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
                             "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0"
                             : "+r"(value)
                             : "r"(term)
                             : "cc");
        }
        now = tool_now();
        /* The best slice: in the others the thread may have been set aside for a while. */
        double rate = 320000.0 / (now - slice) * 1e-9;
        best = rate > best ? rate : best;
    }
#else
    (void)seconds;
#endif
    return best;
}

double memory_read_measure(const void *memory, size_t bytes, int32_t num_threads)
{
    const uint64_t *words = memory;
    int64_t lines = (int64_t)(bytes / 64);
    uint64_t sum = 0;
    double start = tool_now();
#pragma omp parallel for num_threads(num_threads) reduction(+ : sum) schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        const uint64_t *word = words + line * 8;
        sum += (word[0] ^ word[1]) + (word[2] ^ word[3]) + (word[4] ^ word[5]) +
               (word[6] ^ word[7]);
    }
    double elapsed = tool_now() - start;
    sink = (float)sum;
    return (double)(lines * 64) / elapsed * 1e-9;
}

size_t last_level_cache_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : (size_t)32 << 20;
}
