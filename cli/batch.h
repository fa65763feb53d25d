/*
 * A batch of made-up requests: a problem with host tensors, built from a description. Everything
 * that the description does not reference is poison: slots past a length, pages that nobody names,
 * the space between strides, block-table entries past the last page, lanes past topk_length.
 */
#ifndef MLA_CLI_BATCH_H
#define MLA_CLI_BATCH_H

#include "device_memory.h"
#include "mla.h"

typedef enum tensor_id {
    TENSOR_Q,
    TENSOR_KV,
    TENSOR_BLOCK_TABLE,
    TENSOR_SEQLENS,
    TENSOR_INDICES,
    TENSOR_TOPK_LENGTH,
    TENSOR_EXTRA_KV,
    TENSOR_EXTRA_INDICES,
    TENSOR_EXTRA_TOPK_LENGTH,
    TENSOR_ATTN_SINK,
    TENSOR_OUT,
    TENSOR_LSE,
    TENSOR_MAX_LOGITS,
    TENSOR_COUNT,
    TENSOR_FIRST_OUTPUT = TENSOR_OUT,
    TENSOR_OUTPUTS = TENSOR_COUNT - TENSOR_FIRST_OUTPUT
} tensor_id;

const char *tensor_name(tensor_id id);
void tensor_bind(mla_tensors *tensors, tensor_id id, void *data);

/* What fills memory that is not referenced. */
typedef enum poison_kind {
    POISON_NAN, /* the default */
    POISON_PLUS_INF,
    POISON_MINUS_INF,
    POISON_ONES, /* 0xFF bytes */
    POISON_MIXED /* a different one for each element */
} poison_kind;

/* Where -1, INT_MAX and other numbers outside the pool stand among the indices. */
typedef enum hole_rule {
    HOLES_NONE,
    HOLES_SCATTERED,
    HOLES_FIRST_TILE,
    HOLES_MIDDLE_TILE,
    HOLES_LAST_TILE,
    HOLES_ALL
} hole_rule;

typedef enum topk_length_rule {
    TOPK_LENGTH_NONE, /* no such tensor */
    TOPK_LENGTH_RANDOM,
    TOPK_LENGTH_ZERO,
    TOPK_LENGTH_NEGATIVE,
    TOPK_LENGTH_ABOVE /* larger than topk */
} topk_length_rule;

typedef enum sink_rule {
    SINK_NONE, /* no such tensor */
    SINK_FINITE,
    SINK_MIXED /* finite, -INFINITY and +INFINITY by turns */
} sink_rule;

enum { BATCH_MAX_LENGTHS = 4096 };

/* All zero is a valid description but for the counts. */
typedef struct batch_spec {
    mla_op op;
    mla_dtype dtype;         /* default BF16 */
    mla_kv_format kv_format; /* default native */
    int64_t batch, s_q, h_q; /* defaults 1, 1, 16 */
    int64_t h_kv;            /* default 1 */
    int64_t d_qk;            /* default 576; 512 for 584-byte rows */
    int64_t page_size;       /* default 64; 1 for prefill */

    /* dense: lengths[r % num_lengths], or evenly from len_min to len_max when there is no list */
    const int64_t *lengths;
    int64_t num_lengths;
    int64_t len_min, len_max;
    int64_t pool_pages;    /* pages shared by all requests at random; 0: each has its own */
    int64_t spare_pages;   /* pages that nobody names; default 3, -1 for none */
    int64_t table_columns; /* extra columns of the block table */

    /* sparse */
    int64_t topk;       /* default 64 */
    int64_t pool_slots; /* slots to choose from; default 512 */
    int64_t extra_topk, extra_page_size, extra_pool_slots;
    bool in_order; /* request r's indices are slots r * topk ... instead of random ones */
    hole_rule holes;
    topk_length_rule topk_length;

    sink_rule sink;
    double softmax_scale;
    int64_t num_parts;
    bool causal, batch_invariant, lse_empty_pos_inf;

    double q_std;    /* default 1; negative: q is zero */
    double kv_std;   /* default 1 */
    bool odd_scales; /* 656-byte rows: any scales, not the powers of two that writers make */
    bool equal_keys;
    bool
        plain_scales; /* of FP8 rows: one power of two, as mla_pack() writes it for normal values */
    int64_t nan_request; /* request number + 1 whose first key is a real NaN; 0: none */

    int64_t page_gap; /* elements (bytes with FP8 rows) between the pages of a pool */
    int64_t head_gap; /* elements between the heads of q and of out */
    bool lse_by_head; /* lse lies as [batch, h_q, s_q] */
    poison_kind poison;
    bool poison_latent_only, poison_rope_only; /* native rows: the other part is 0 */
    size_t alignment; /* bytes, of all tensors; default that of the element */
} batch_spec;

typedef struct batch {
    batch_spec spec; /* with the defaults filled in */
    mla_problem problem;
    mla_tensors tensors; /* inputs bound to `memory`; outputs are NULL, their strides set */
    guarded_memory memory[TENSOR_FIRST_OUTPUT];
    int64_t keys_read; /* sum over requests and query tokens of the keys that they attend to */
    int64_t kv_bytes;  /* bytes of the rows that the plan requests read, each request for itself */
    int64_t io_bytes;  /* bytes of q and of out */
} batch;

/* Outputs of a batch, filled with a NaN pattern that also stands before, between and after the
 * elements. */
typedef struct batch_outputs {
    guarded_memory memory[TENSOR_OUTPUTS]; /* out, lse, max_logits */
    size_t offset;                         /* of the first element in each */
} batch_outputs;

/* The problem that batch_build() makes of a spec. */
mla_problem batch_problem(const batch_spec *spec);

/* The same spec and seed give the same bytes. Both print the reason and return false on failure. */
bool batch_build(batch *built, const batch_spec *spec, uint64_t seed);
bool batch_outputs_alloc(batch_outputs *outputs, const batch *input);
void batch_free(batch *built);
void batch_outputs_free(batch_outputs *outputs);

/* Fills with the NaN pattern again. */
void batch_outputs_reset(batch_outputs *outputs);

/* Whether no element of out and lse is the NaN pattern any more; no kernel computes that NaN. */
bool batch_outputs_written(const batch_outputs *outputs, const batch *input);

/* Tensors of a batch with its inputs and these outputs, in host memory. */
mla_tensors batch_host_tensors(const batch *input, const batch_outputs *outputs);

/* Keys that query token `token` of request `request` attends to, holes included. */
int64_t batch_row_keys(const batch *input, int64_t request, int64_t token);

/* 2 * h_q * keys * (d_qk + d_v), summed over all query tokens. */
double batch_flops(const batch *input);

#endif
