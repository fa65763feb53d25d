/*
 * The CPU kernels as data: one table entry per instruction set, the same contract for all.
 *
 * A kernel attends one tile of query rows to one range of one request's keys. The driver
 * (cpu_run.c) cuts the work into such jobs, hands each a thread's scratch, and merges split
 * requests.
 */
#ifndef MLA_CPU_KERNELS_H
#define MLA_CPU_KERNELS_H

#include "key_rows.h"

enum {
    MLA_D_V = 512,
    MLA_D_QK_MAX = 576,
    MLA_CPU_TILE_ROWS = 128 /* most query rows of a job */
};

typedef struct mla_cpu_job {
    const mla_key_rows *keys;
    int64_t key_begin, key_end; /* range of the key list, key_begin < key_end */
    int32_t rows;               /* query rows, 1 ... MLA_CPU_TILE_ROWS */
    const uint16_t *const
        *q_rows;             /* [rows]: d_qk contiguous values of keys->dtype, any alignment */
    const int64_t *row_keys; /* [rows]: row r sees key list entries below row_keys[r]; NULL: all
                                (always NULL when sparse) */
    float scale;             /* of S, before the softmax */
    void *scratch;           /* scratch_bytes of the table entry, 64-byte aligned */
    float *out; /* [rows, MLA_D_V], out_stride floats apart: softmax(S) . V over the range,
                   normalised; 0 for a row that sees no key. 64-byte aligned */
    int64_t out_stride;
    /* [rows]: natural log; -INFINITY for a row that sees no key. In double precision, for an lse of
     * ten thousand would not merge well with others in float32. */
    double *lse;
    float *row_max; /* [rows]: maximum of S (scaled); -INFINITY for a row that sees no key */
} mla_cpu_job;

typedef struct mla_cpu_kernel {
    mla_isa isa;
    /* Whether processor and operating system offer it; the first call may ask the system for
     * permission. */
    bool (*available)(void);
    /* Whether it computes this format with this dtype within the tolerances of the manual. */
    bool (*serves)(mla_kv_format kv_format, mla_dtype dtype);
    size_t scratch_bytes;
    void (*attend)(const mla_cpu_job *job);
    /* Rounds values[MLA_D_V] * factor to bf16 or fp16, to nearest even; NaN stays NaN. */
    void (*narrow)(mla_dtype dtype, const float *values, float factor, uint16_t *out);
    /* The largest of row[rows][count] values of bf16 or fp16, without its sign. A NaN is larger
     * than any number. */
    uint16_t (*largest)(int32_t rows, const uint16_t *const *row, int64_t count);
} mla_cpu_kernel;

/* Kernels in order of preference on this processor, best first; *count entries. MLA_ISA_REFERENCE
 * is not among them: the reference is a whole operation of its own (reference.h). */
const mla_cpu_kernel *const *mla_cpu_kernels(int32_t *count);

/* OR of the mla_isa bits that the processor and the operating system offer, MLA_ISA_REFERENCE
 * included. */
uint32_t mla_cpu_isa_available(void);

/* The preferred kernel among those of `isa_allowed`, a subset of mla_cpu_isa_available(), that
 * serves the format; NULL when only the reference is left. */
const mla_cpu_kernel *mla_cpu_kernel_choose(uint32_t isa_allowed, mla_kv_format kv_format,
                                            mla_dtype dtype);

extern const mla_cpu_kernel mla_portable_kernel;
#if defined(__x86_64__)
extern const mla_cpu_kernel mla_avx2_kernel;
extern const mla_cpu_kernel mla_avx512_kernel;
extern const mla_cpu_kernel mla_avx512_bf16_kernel;
extern const mla_cpu_kernel mla_amx_bf16_kernel;
#endif

#endif
