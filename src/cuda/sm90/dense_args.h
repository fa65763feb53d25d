/*
 * What the dense decode kernels of sm_90a are told, and their plan of shared memory. Host C and
 * device code both include this file, so every size and every index means the same on both sides.
 */
#ifndef MLA_CUDA_DENSE_ARGS_H
#define MLA_CUDA_DENSE_ARGS_H

#include "plan.h"

#include <cuda.h>

enum {
    MLA_SM90_TILE_ROWS = 64,    /* query rows of a CTA */
    MLA_SM90_TILE_COLS = 64,    /* columns of a tile: one 128-byte swizzle atom */
    MLA_SM90_TILE_BYTES = 8192, /* 64 rows x 64 columns x 2 bytes */
    MLA_SM90_K_TILES = 9,       /* 576 columns; tiles 0-3 are V left, 4-7 V right, 8 is RoPE */
    MLA_SM90_Q_TILES = 8,       /* Q's ninth tile lives in registers */
    MLA_SM90_D_V = 512,
    MLA_SM90_THREADS = 384,
    MLA_SM90_COMBINE_THREADS = 512,
    MLA_SM90_COMBINE_UNITS = 128, /* most warps' jobs into which a tile is divided for merging */
    MLA_SM90_COMBINE_MANY = 96,   /* 16-row groups with splits: their jobs occupy the chip */
    MLA_SM90_MIN_PAGE = 8,        /* a swizzle atom is 8 rows, so a box has at least as many */
};

/* Shared memory of the dense kernel. Tiles first: each must start at a multiple of 1,024 bytes. */
typedef struct mla_sm90_dense_smem {
    uint8_t q[MLA_SM90_Q_TILES][MLA_SM90_TILE_BYTES];
    uint8_t k[2][MLA_SM90_K_TILES][MLA_SM90_TILE_BYTES]; /* the even and the odd block */
    uint8_t p[2][MLA_SM90_TILE_BYTES];                   /* their softmax numerators */
    uint64_t k_full[2][MLA_SM90_K_TILES];                /* copy engine -> consumers, a tile */
    uint64_t k_empty[2][2]; /* consumers -> producer, columns 0-255 and the rest */
    uint64_t q_full, q_empty;
    uint64_t q_first;                        /* copy engine -> producer: the part's first Q */
    float row_factor[2][MLA_SM90_TILE_ROWS]; /* by which a warpgroup lowered its accumulators */
    float row_ref[2][MLA_SM90_TILE_ROWS];    /* and the softmax reference since then */
    float row_sum[2][MLA_SM90_TILE_ROWS];    /* each warpgroup's share of the denominator */
    float row_top[MLA_SM90_TILE_ROWS];       /* the right warpgroup's largest products */
    uint64_t seen[2];                        /* gathered keys: which of a block there are */
    int32_t raised[2][4];                    /* whether the factors of a warp's rows are not 1 */
} mla_sm90_dense_smem;

#define MLA_SM90_SMEM_LIMIT 232448

/*
 * A piece's share of a split request: 64 rows of 512 values, which `scale` normalises. They are
 * fp16, of rows that a power of two brought into its range where they were not in it, half of the
 * columns at a time; half the bytes of FP32, and these bytes bound the splits of small batches. The
 * order is that in which accumulators are held, so that every access is 512 bytes a warp: 4 warps
 * of 16 rows, 16 chunks of 32 columns, the upper and the lower 8 rows, 32 lanes; a lane has row
 * lane / 4, and of each of the chunk's four column groups of 8 the two columns lane % 4 * 2 and the
 * next.
 */
typedef struct mla_sm90_partial {
    uint16_t values[4][MLA_SM90_D_V / 32][2][32][8];
    struct mla_sm90_partial_row {
        float lse;   /* to base 2; -inf: there are no values */
        float scale; /* what the values are to be multiplied by */
    } rows[MLA_SM90_D_V / MLA_SM90_TILE_COLS][MLA_SM90_TILE_ROWS];
} mla_sm90_partial;

/*
 * Query rows of one request and KV head are numbered token * group_pad + head; a row exists when
 * its token is below s_q and its head below group. group_pad is group when a tile of 64 rows is
 * one box of the tensor map, else group rounded up to 64, so that no tile spans two tokens.
 *
 * Partial `i` (mla_plan_partial_idx) of tile `t` of KV head `k` is number
 * (i * h_kv + k) * row_tiles + t.
 *
 * Of a count n that the kernels divide by, n_inverse is ceil(2^64 / n), 0 for 1.
 */
typedef struct mla_sm90_dense_args {
    CUtensorMap q_map;  /* d_qk, q_box_rows dimension, h_kv, token dimension, batch */
    CUtensorMap kv_map; /* d_qk, page_size, num_pages, h_kv */
    const mla_plan_header *plan;
    const uint16_t *q;
    const int32_t *seqlens;
    const int32_t *block_table;
    uint16_t *out;
    float *lse;                 /* may be NULL */
    const float *attn_sink;     /* [h_q], may be NULL */
    mla_sm90_partial *partials; /* NULL where no request may be split */
    /* What the kernels need before their first copy lies together: each line of the parameters is
     * fetched when it is first asked for. */
    int64_t block_table_stride;
    uint64_t row_tiles_inverse, h_kv_inverse, group_pad_inverse, page_blocks_inverse;
    int32_t batch, s_q, h_kv;
    int32_t row_tiles;
    int32_t page_blocks; /* blocks of 64 keys in a page, 0 where pages are smaller */
    int32_t max_tokens;  /* that the block table has room for */
    int32_t group, group_pad;
    int32_t causal;
    int32_t d_qk;
    int32_t q_dim_rows; /* rows of the tensor map's second dimension; the rest is its fourth */
    int32_t req_tokens; /* requests of the plan in one entry of the batch: s_q when sparse, where
                         * the kernels' own s_q is 1, else 1 */
    uint64_t q_dim_rows_inverse, req_tokens_inverse;
    int64_t q_stride[3];
    int64_t out_stride[3];
    int64_t lse_stride[3];
    float scale_log2; /* softmax_scale * log2(e), not 0 */
    float lse_empty;
    int32_t max_parts; /* records in the plan */
    int32_t page_size;
    int32_t block_pages; /* pages in a block, where they are smaller */
} mla_sm90_dense_args;

#endif
