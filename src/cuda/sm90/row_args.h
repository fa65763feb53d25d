/* What the merge and pack kernels are told; included by host C and device code. */
#ifndef MLA_CUDA_ROW_ARGS_H
#define MLA_CUDA_ROW_ARGS_H

#include "mla.h"

enum {
    MLA_SM90_ROW_THREADS = 128, /* four warps, each with a row of its own */
    MLA_SM90_MERGE_PARTS = 256,
};

/* mla_merge_args with the pointer arrays by value. */
typedef struct mla_sm90_merge_args {
    const void *part_outs[MLA_SM90_MERGE_PARTS];
    const float *part_lses[MLA_SM90_MERGE_PARTS];
    void *out;
    float *lse; /* may be NULL */
    int64_t part_out_stride[3], part_lse_stride[3], out_stride[3], lse_stride[3];
    int64_t num_rows, s_q, h_q;
    int32_t num_parts;
    mla_dtype part_dtype, out_dtype;
    float lse_empty;
} mla_sm90_merge_args;

/* mla_pack_args; cache strides are in bytes. */
typedef struct mla_sm90_pack_args {
    uint16_t *rows;
    uint8_t *cache;
    const int64_t *slots; /* may be NULL */
    int64_t rows_stride[2], cache_stride[3];
    int64_t num_rows, num_slots, h_kv, d_qk, page_size;
    mla_kv_format kv_format;
} mla_sm90_pack_args;

#endif
