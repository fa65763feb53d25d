/* What the sparse kernels of sm_90a are told; host C and device code both include this file. */
#ifndef MLA_CUDA_SPARSE_ARGS_H
#define MLA_CUDA_SPARSE_ARGS_H

#include "dense_args.h"

/* A pool of rows and the list of those that each query token attends to. */
typedef struct mla_sm90_sparse_pool {
    const uint8_t *data;
    int64_t page_stride, token_stride, head_stride; /* bytes */
    int64_t num_slots;                              /* indices from here on are skipped */
    int32_t page_size;
    int32_t topk;           /* entries of a list; 0: there is no such pool */
    const int32_t *indices; /* [batch, s_q, h_kv, topk] */
    int64_t indices_stride[3];
    const int32_t *lengths; /* entries that count, [batch] or in prefill [s_q]; NULL: all */
} mla_sm90_sparse_pool;

/*
 * A request of the plan is one query token, number entry * req_tokens + token, and its keys are the
 * counting entries of pool[0]'s list followed by those of pool[1]'s. `rows` describes queries,
 * outputs and plan as for dense decode of batch * s_q requests of one token each: rows.batch is
 * batch * s_q, rows.s_q 1, rows.causal 0; block_table, seqlens and kv_map are not used, and
 * rows.q_map has the dimensions d_qk, group, h_kv, s_q, batch.
 */
typedef struct mla_sm90_sparse_args {
    mla_sm90_dense_args rows;
    mla_sm90_sparse_pool pool[2];
    int32_t lengths_tokens; /* query tokens that share an entry of the lengths: s_q, prefill 1 */
    float *max_logits;      /* prefill, [s_q, h_q] contiguous; may be NULL */
} mla_sm90_sparse_args;

#endif
