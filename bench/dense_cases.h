/* Cases of dense decode that the CUDA backend is checked on. */
#ifndef MLA_BENCH_DENSE_CASES_H
#define MLA_BENCH_DENSE_CASES_H

#include "mla.h"

typedef enum lengths_kind {
    EQUAL,  /* all `s_k` */
    VARIED, /* uniform 0 ... 2 s_k */
    EDGES   /* around multiples of 64, with empty ones */
} lengths_kind;

typedef struct test_case {
    const char *name;
    int64_t b, s_q, h_q, h_kv, s_k, page_size;
    lengths_kind lengths;
    float std; /* of q; the cache has 0.1, for which the absolute tolerance is meant */
    int32_t num_parts;
    bool f16, causal, batch_invariant, strided, d512;
    bool last_nan; /* the last key of every third request is NaN: later tokens see it */
    float size;    /* not 0: the cache holds numbers around this one */
    double scale;  /* 0: the default */
} test_case;

extern const test_case dense_cases[];
extern const int num_dense_cases;

/* A case's tensors, on the host and on the device. */
typedef struct case_data {
    mla_problem problem;
    int32_t *seqlens, *block_table;
    uint16_t *q, *kv;
    int64_t num_pages, max_pages, kv_page_stride, q_head_stride, out_head_stride;
    size_t q_elems, kv_elems, out_elems, lse_elems;
    int32_t *d_seqlens, *d_block_table;
    uint16_t *d_q, *d_kv, *d_out;
    float *d_lse;
} case_data;

void make_case(const test_case *c, case_data *d);
void free_case(case_data *d);

/* The case's tensors on the device or the host, with outputs of the caller's. */
mla_tensors case_tensors(const test_case *c, const case_data *d, bool device, uint16_t *out,
                         float *lse);

#endif
