/* A problem that has been checked, with the quantities that every backend derives from it. */
#ifndef MLA_SRC_SHAPE_H
#define MLA_SRC_SHAPE_H

#include "mla.h"

/* Most query rows: batch * s_q * h_q. */
#define MLA_MAX_ROWS ((int64_t)1 << 47)

typedef struct mla_shape {
    mla_problem problem;   /* as the caller gave it */
    bool sparse;           /* keys come from indices, not from a block table */
    int64_t num_reqs;      /* plan requests: batch, or batch * s_q when sparse */
    int64_t group;         /* query heads of one KV head: h_q / h_kv */
    int64_t rows;          /* query rows that share the keys of one plan request and KV head */
    int64_t kv_elem_bytes; /* bytes of the unit that kv strides count in: 2, or 1 with FP8 rows */
    int64_t kv_row_bytes;  /* bytes of one token's row (584-byte format: its 576 data bytes) */
    int64_t page_bytes;    /* bytes of a contiguous page */
    int64_t extra_page_bytes;
    float scale; /* softmax_scale, default applied */
} mla_shape;

/* Checks a problem against the manual (not against a backend) and fills *shape. */
mla_status mla_shape_init(const mla_problem *problem, mla_shape *shape);

/* Query row `row` of plan request `req`: row = token * group + head in the group (token is 0 when
 * sparse). */
typedef struct mla_row_pos {
    int64_t batch_idx, token_idx, head_idx;
} mla_row_pos;

static inline mla_row_pos mla_shape_row(const mla_shape *shape, int64_t req, int64_t kv_head,
                                        int64_t row)
{
    mla_row_pos pos;
    if (shape->sparse) {
        pos.batch_idx = req / shape->problem.s_q;
        pos.token_idx = req % shape->problem.s_q;
        pos.head_idx = kv_head * shape->group + row;
    } else {
        pos.batch_idx = req;
        pos.token_idx = row / shape->group;
        pos.head_idx = kv_head * shape->group + row % shape->group;
    }
    return pos;
}

#endif
