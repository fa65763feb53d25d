/* What the processor's arithmetic units can do at most, by loops that live in registers. */
#ifndef MLA_CLI_FMA_PEAK_H
#define MLA_CLI_FMA_PEAK_H

#include "mla.h"

/*
 * GFLOP/s of `num_threads` threads that do nothing but multiply-adds of the instruction set `isa`
 * for about `seconds`. MLA_ISA_AVX512_BF16 and MLA_ISA_AMX_BF16 multiply bf16 pairs and sum in
 * FP32; the others are FP32 throughout. The processor must offer `isa`.
 */
double fma_peak_measure(mla_isa isa, int32_t num_threads, double seconds);

/* The instruction set whose loop gives the FP32 peak of a context that uses `isa`. */
mla_isa fma_peak_fp32_isa(mla_isa isa);

/* GHz of one core, by a chain of dependent additions; 0 when the processor offers no way to tell.
 */
double clock_measure(double seconds);

/* GB/s that `num_threads` threads read from `memory`, which should exceed the caches. */
double memory_read_measure(const void *memory, size_t bytes, int32_t num_threads);

/* Bytes of the last-level cache; a guess of 32 MiB when the system does not tell. */
size_t last_level_cache_bytes(void);

#endif
