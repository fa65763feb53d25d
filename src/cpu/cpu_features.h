/* What the processor offers and the operating system has switched on. */
#ifndef MLA_CPU_FEATURES_H
#define MLA_CPU_FEATURES_H

#include <stdbool.h>
#include <stddef.h>

/* All of these are false on processors other than x86-64. */
bool mla_cpu_has_avx2(void);        /* AVX2, FMA, F16C */
bool mla_cpu_has_avx512(void);      /* and AVX-512 F, BW, DQ, VL */
bool mla_cpu_has_avx512_bf16(void); /* and AVX512-BF16 */
/* And AMX-TILE, AMX-BF16. Asks the kernel for the permission to use tiles, for the whole process;
 * false when it is refused. */
bool mla_cpu_has_amx_bf16(void);

bool mla_cpu_is_amd(void);

/* Writes the processor's own name, or "CPU" when it gives none. */
void mla_cpu_name(char *name, size_t size);

#endif
