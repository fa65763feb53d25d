/* Writing rows into a cache and reading them back, in any format. */
#ifndef MLA_CPU_PACK_H
#define MLA_CPU_PACK_H

#include "mla.h"

/* mla_pack() and mla_unpack() on resolved arguments whose slots lie in the cache. */
void mla_cpu_pack(const mla_pack_args *args, int32_t num_threads);
void mla_cpu_unpack(const mla_pack_args *args, int32_t num_threads);

#endif
