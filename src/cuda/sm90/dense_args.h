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
    MLA_SM90_COLUMN_PARTS = 4, /* CTAs that share the columns of a piece in small batches */
    MLA_SM90_COMBINE_THREADS = 512,
    MLA_SM90_COMBINE_UNITS = 64, /* most pieces into which a tile is divided for merging */
    MLA_SM90_COMBINE_MANY = 128, /* units of 32 columns that occupy the chip */
    MLA_SM90_MIN_PAGE = 8,       /* a swizzle atom is 8 rows, so a box has at least as many */
};

/* Shared memory of the dense kernel. Tiles first: each must start at a multiple of 1,024 bytes. */
typedef struct mla_sm90_dense_smem {
    uint8_t q[MLA_SM90_Q_TILES][MLA_SM90_TILE_BYTES];
    uint8_t k[2][MLA_SM90_K_TILES][MLA_SM90_TILE_BYTES]; /* the even and the odd block */
    uint8_t p[2][MLA_SM90_TILE_BYTES];                   /* their softmax numerators */
    uint64_t k_full[2][MLA_SM90_K_TILES];                /* copy engine -> consumers, a tile */
    uint64_t k_empty[2][2]; /* consumers -> producer, columns 0-255 and the rest */
    uint64_t q_full, q_empty;
    float row_factor[2][MLA_SM90_TILE_ROWS]; /* by which a warpgroup lowered its accumulators */
    float row_ref[2][MLA_SM90_TILE_ROWS];    /* and the softmax reference since then */
    float row_sum[2][MLA_SM90_TILE_ROWS];    /* each warpgroup's share of the denominator */
    float row_top[MLA_SM90_TILE_ROWS];       /* the right warpgroup's largest products */
    uint64_t seen[2];                        /* gathered keys: which of a block there are */
    int32_t raised[2][4];                    /* whether the factors of a warp's rows are not 1 */
} mla_sm90_dense_smem;

#define MLA_SM90_SMEM_LIMIT 232448

/*
 * Query rows of one request and KV head are numbered token * group_pad + head; a row exists when
 * its token is below s_q and its head below group. group_pad is group when a tile of 64 rows is
 * one box of the tensor map, else group rounded up to 64, so that no tile spans two tokens.
 *
 * Partial results: partial `i` (mla_plan_partial_idx) of tile `t` of KV head `k` is number
 * (i * h_kv + k) * row_tiles + t. Its 64 x 512 floats lie in the order in which the accumulators
 * are held: 4 warps, 64 column groups of 8, 32 lanes, 4 floats; so every access is 512 bytes a
 * warp. They are normalised, and their 64 lse are to base 2.
 */
typedef struct mla_sm90_dense_args {
    CUtensorMap q_map;  /* d_qk, q_box_rows dimension, h_kv, token dimension, batch */
    CUtensorMap kv_map; /* d_qk, page_size, num_pages, h_kv */
    const mla_plan_header *plan;
    const uint16_t *q;
    const int32_t *seqlens;
    const int32_t *block_table;
    uint16_t *out;
    float *lse;             /* may be NULL */
    const float *attn_sink; /* [h_q], may be NULL */
    float *partial_out;
    float *partial_lse;
    int64_t q_stride[3];
    int64_t out_stride[3];
    int64_t lse_stride[3];
    int64_t block_table_stride;
    float scale_log2; /* softmax_scale * log2(e), not 0 */
    float lse_empty;
    int32_t batch, s_q, h_kv;
    int32_t group, group_pad;
    uint64_t
        group_pad_inverse; /* ceil(2^64 / group_pad), 0 for 1: divides rows without a division */
    int32_t q_dim_rows;    /* rows of the tensor map's second dimension; the rest is its fourth */
    int32_t row_tiles;
    int32_t d_qk;
    int32_t page_size;
    int32_t max_tokens; /* that the block table has room for */
    int32_t causal;
    int32_t req_tokens; /* requests of the plan in one entry of the batch: s_q when sparse, where
                         * the kernels' own s_q is 1, else 1 */
} mla_sm90_dense_args;

#endif
