/* MLA_UNROLL unrolls the loop behind it whole: how arrays of vectors come to live in registers.
 * (clang 14 reads "GCC unroll" and leaves some loops rolled: a third of the speed.) */
#ifndef MLA_CPU_UNROLL_H
#define MLA_CPU_UNROLL_H

#if defined(__clang__)
#define MLA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLA_UNROLL _Pragma("GCC unroll 32")
#endif

#endif
