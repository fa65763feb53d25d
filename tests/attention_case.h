/*
 * One attention problem with random inputs in guarded memory, its runs, and the comparison of
 * answers. Everything that the problem does not reference holds 0xFF bytes (NaN in every format)
 * and wild page numbers, so every test is a poison test too.
 */
#ifndef MLA_TESTS_ATTENTION_CASE_H
#define MLA_TESTS_ATTENTION_CASE_H

#include <mla.h>

/* How rows of q, out and lse lie. */
typedef enum case_layout {
    CASE_CONTIGUOUS, /* all strides 0 */
    CASE_GAPS,       /* odd gaps after heads, tokens and requests */
    CASE_HEAD_MAJOR  /* [h_q, batch, s_q, d] */
} case_layout;

/* What attention_case_make() needs beside the problem. Zero is the default everywhere. */
typedef struct case_options {
    uint64_t seed;
    double q_std, kv_std; /* default 1 */
    case_layout layout;
    const int32_t *seqlens;     /* dense: [batch] */
    int64_t pool_pages;         /* sparse: pages of the pool */
    int64_t extra_pool_pages;   /* with extra_topk */
    const int32_t *topk_length; /* sparse, may be NULL; as in mla_lengths */
    const int32_t *extra_topk_length;
    int hole_percent;        /* sparse: share of indices that are -1 or outside the pool */
    int64_t spare_columns;   /* dense: entries of a block-table row past the longest request */
    int64_t table_gap;       /* dense: elements between block-table rows */
    int64_t page_gap_elems;  /* added to the page stride; FP8 rows: bytes */
    int64_t token_gap_elems; /* added to the token stride; not for 584-byte rows */
    int64_t indices_gap;     /* sparse: elements between rows of indices */
} case_options;

typedef struct attention_case {
    mla_problem problem;
    mla_lengths lengths;
    mla_tensors tensors; /* out, lse and max_logits are NULL: each run has its own */
    case_layout layout;
    int32_t *block_table; /* the same memory as in tensors, for tests that spoil it */
    int32_t *seqlens;
    int32_t *indices;
    int32_t *extra_indices;
    uint16_t *q;
    uint8_t *pool; /* kv.data */
    uint8_t *extra_pool;
} attention_case;

/* Answers, contiguous: [batch, s_q, h_q, ...]. */
typedef struct attention_result {
    uint16_t *out;
    float *lse;
    float *max_logits; /* NULL but in sparse prefill */
} attention_result;

/* Problems with the usual dimensions; fields may be changed before a case is made of them. */
mla_problem dense_problem(mla_dtype dtype, int64_t batch, int64_t s_q, int64_t h_q,
                          int64_t page_size);
mla_problem sparse_problem(mla_kv_format kv_format, int64_t batch, int64_t s_q, int64_t h_q,
                           int64_t page_size, int64_t topk);
mla_problem prefill_problem(mla_dtype dtype, int64_t s_q, int64_t h_q, int64_t topk);

/* Fills *made; its memory goes with guarded_release(). */
void attention_case_make(attention_case *made, const mla_problem *problem,
                         const case_options *options);

/* Sets all elements of q to zero, which makes out the mean of V and lse = ln(number of keys). */
void attention_case_zero_q(attention_case *c);

/* The bytes of slot `slot` in a pool of the case, and where its FP8 scales lie. */
typedef struct case_row {
    uint8_t *data;
    uint8_t *scales; /* NULL for native rows */
} case_row;

case_row attention_case_row(const attention_case *c, const mla_pool *pool, int64_t page_size,
                            int64_t slot, int64_t kv_head);

/* The slot of token `token` of request `req` of a dense problem. */
int64_t dense_slot(const attention_case *c, int64_t req, int64_t token);

/*
 * Builds a plan and runs it with exact buffers, all pre-filled with 0xFF; fails the test when a
 * call fails or a byte between output rows changes.
 */
attention_result attention_case_run(const mla_ctx *ctx, const attention_case *c);

/* The same with a plan of the caller's, built before, and a workspace of exact size. */
attention_result attention_case_run_plan(const mla_ctx *ctx, const attention_case *c,
                                         const mla_plan *plan);

/* A plan for the case in a guarded buffer of exact size, built. */
mla_plan attention_case_plan(const mla_ctx *ctx, const attention_case *c);

/* A result of the case's size, all NaN. */
attention_result attention_result_alloc(const mla_problem *problem);

/* Fails the test, naming the worst element, unless `got` is within the manual's tolerances. */
void assert_results_close(const mla_problem *problem, const attention_result *got,
                          const attention_result *want);

void assert_results_identical(const mla_problem *problem, const attention_result *got,
                              const attention_result *want);

/* Request `got_req` of one result has the bits of request `want_req` of another. */
void assert_request_identical(const mla_problem *problem, const attention_result *got,
                              int64_t got_req, const attention_result *want, int64_t want_req);

#endif
