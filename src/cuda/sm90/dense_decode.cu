/*
 * Dense decode on sm_90a: a CTA attends 64 query rows of a request to blocks of 64 keys and keeps
 * all 512 output columns, half in each of two consumer warpgroups (the seesaw).
 *
 *   left   S0 = Q K0^T, P0;  O_L += P0 V0_L, then P1 V1_L
 *   right  S1 = Q K1^T, P1;  O_R += P0 V0_R, then P1 V1_R
 *   producer  four warps, one for each half of the two K buffers, one lane a tile
 *
 * While one warpgroup computes exponentials the other's products run. The softmax has no row
 * maximum in its common path: p = exp2(s - ref) against a reference that is only raised, and the
 * accumulators with it, when a sum leaves the range of the 16-bit format. After normalisation the
 * reference cancels. Limits: the tensor cores at the clock that power allows (128 heads), HBM
 * (64 heads and fewer). The schedule is drawn in docs/kernels/sm90-dense-decode.md.
 */
#include "dense_args.h"
#include "pieces.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"
#include "rows.cuh"

#ifdef MLA_HUNT_HANGS
#include <stdio.h>
#endif

using namespace mla_ptx;

enum { LEFT = 0, RIGHT = 1, PRODUCER = 2 };

/* Named barriers; 0 is __syncthreads(). Count: both consumer warpgroups, or one. */
enum {
    BAR_P0_READY = 1,   /* left -> right: P0, factors and reference of the left are in place */
    BAR_QK1_ISSUED = 2, /* right -> left: S1's products are queued, and P0 was read */
    BAR_P1_READY = 3,   /* right -> left: P1, factors and reference of the right are in place */
    BAR_ROW_SUMS = 4,   /* both: row sums, or halves of O that change sides, are in place */
    BAR_LEFT = 5,       /* within the left warpgroup: V's unused rows are zero */
    BAR_RIGHT = 6,
};

/* Columns of O that a CTA keeps where four of them share a piece. */
enum { CTA_COLUMNS = MLA_SM90_D_V / MLA_SM90_COLUMN_PARTS };
enum { CONSUMERS = 256, WARPGROUP = 128, CONSUMER_REGS = 232, PRODUCER_REGS = 40 };
/* setmaxnreg shares out what the launch allocated, 168 registers for each of 384 threads. */
static_assert(2 * CONSUMER_REGS + PRODUCER_REGS <= 3 * 168, "setmaxnreg would never return");
static_assert(sizeof(mla_sm90_dense_smem) <= MLA_SM90_SMEM_LIMIT, "shared memory");
static_assert(offsetof(mla_sm90_dense_smem, k) % 1024 == 0, "swizzle atoms are 1,024 bytes");
static_assert(offsetof(mla_sm90_dense_smem, p) % 1024 == 0, "swizzle atoms are 1,024 bytes");

extern __shared__ __align__(1024) uint8_t smem_bytes[];

__device__ __forceinline__ mla_sm90_dense_smem &shared()
{
    return *(mla_sm90_dense_smem *)smem_bytes;
}

__device__ __forceinline__ uint32_t smem_addr(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The CTA's place in the grid: row tiles of a part are neighbours, so that they run in step and
 * L2 merges their reads of the same keys; next come the parts of its columns. */
struct cta_place {
    int32_t part_idx, kv_head;
    int32_t first_row;                 /* of the row tile */
    int32_t column_part, column_parts; /* 0 and 1 in the seesaw */
    mla_plan_part part;
};

template <bool may_share_columns>
__device__ __forceinline__ cta_place find_place(const mla_sm90_dense_args &args)
{
    const mla_plan_part *parts = (const mla_plan_part *)(args.plan + 1);
    cta_place place;
    const int32_t unit = (int32_t)blockIdx.x / args.row_tiles;
    place.kv_head = unit % args.h_kv;
    place.part_idx = unit / args.h_kv;
    place.first_row = (int32_t)blockIdx.x % args.row_tiles * MLA_SM90_TILE_ROWS;
    place.column_part = 0;
    place.column_parts = 1;
    place.part = parts[place.part_idx];
    if constexpr (may_share_columns) {
        /* Both records are read at once, so that none waits for the header. */
        const mla_plan_part shared_part = parts[place.part_idx / MLA_SM90_COLUMN_PARTS];
        if (args.plan->column_parts == MLA_SM90_COLUMN_PARTS) {
            place.part = shared_part;
            place.column_parts = MLA_SM90_COLUMN_PARTS;
            place.column_part = place.part_idx % MLA_SM90_COLUMN_PARTS;
            place.part_idx /= MLA_SM90_COLUMN_PARTS;
        }
    }
    return place;
}

#ifdef MLA_HUNT_HANGS
/* A wait that gives up after a while and says so; the kernel then ends, with wrong results. */
__device__ __noinline__ void report_stuck(int32_t barrier_idx, uint32_t parity)
{
    if (threadIdx.x % 32 == 0) {
        printf("block %d warp %d gave up on barrier %d, parity %u\n", (int)blockIdx.x,
               (int)threadIdx.x / 32, barrier_idx, parity);
    }
}

__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    for (int32_t i = 0; !mbarrier_try_wait(smem_addr(&barrier), parity); ++i) {
        if (i == 100000) {
            report_stuck((int32_t)(&barrier - shared().k_full[0]), parity);
            return;
        }
    }
}
#else
__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(smem_addr(&barrier), parity)) {
    }
}
#endif

/* ------------------------------------------------------------------------------------------------
 * Producer
 * ---------------------------------------------------------------------------------------------- */

/* Copies one block's tile `tile` of K; a page smaller than the block takes several boxes. Pages
 * past the request's last token are not looked up: the table's entry may be anything. */
__device__ __forceinline__ void copy_k_tile(const mla_sm90_dense_args &args, const int32_t *pages,
                                            int32_t block, int32_t tokens, int32_t buffer,
                                            int32_t tile, int32_t kv_head)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t full = smem_addr(&sm.k_full[buffer][tile]);
    const uint32_t to = smem_addr(sm.k[buffer][tile]);
    const int32_t first = block * MLA_BLOCK_TOKENS, column = tile * MLA_SM90_TILE_COLS;
    if (args.page_size >= MLA_BLOCK_TOKENS) {
        const int32_t page = first / args.page_size;
        mbarrier_arrive_expect_tx(full, MLA_SM90_TILE_BYTES);
        tma_load_4d(to, &args.kv_map, full, kL2EvictFirst, column, first - page * args.page_size,
                    pages[page], kv_head);
        return;
    }
    const int32_t page_bytes = args.page_size * MLA_SM90_TILE_COLS * 2;
    const int32_t first_page = first / args.page_size;
    const int32_t num_pages = ceil_div(min(MLA_BLOCK_TOKENS, tokens - first), args.page_size);
    mbarrier_arrive_expect_tx(full, num_pages * page_bytes);
    for (int32_t i = 0; i < num_pages; ++i) {
        tma_load_4d(to + i * page_bytes, &args.kv_map, full, kL2EvictFirst, column, 0,
                    pages[first_page + i], kv_head);
    }
}

/* Q's first eight tiles, once the consumers have issued and finished their last use of the old. */
__device__ __forceinline__ void copy_q(const mla_sm90_dense_args &args, const cta_place &place,
                                       int32_t req, int32_t lane)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t full = smem_addr(&sm.q_full);
    if (lane == 0) {
        mbarrier_arrive_expect_tx(full, sizeof sm.q);
    }
    __syncwarp();
    if (lane < MLA_SM90_Q_TILES) {
        tma_load_5d(smem_addr(sm.q[lane]), &args.q_map, full, kL2EvictLast,
                    lane * MLA_SM90_TILE_COLS, place.first_row % args.q_dim_rows, place.kv_head,
                    place.first_row / args.q_dim_rows, req);
    }
}

/* Warp 2 * buffer + half fills that half of that buffer; the last warp also fetches Q. */
__device__ __forceinline__ void produce(const mla_sm90_dense_args &args, const cta_place &place)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x / 32 % 4, lane = (int32_t)threadIdx.x % 32;
    const int32_t buffer = warp / 2, half = warp % 2;
    const int32_t tile = half * 4 + lane;
    const bool copies = lane < (half == 0 ? 4 : 5);
    uint32_t uses = 0, pieces = 0;

    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    mla_piece piece;
    while (walk_next(args, walk, piece)) {
        if (piece.begin >= piece.end) {
            continue;
        }
        if (warp == 3) {
            wait_for(sm.q_empty, ++pieces & 1);
            copy_q(args, place, piece.req, lane);
        }
        const int32_t *pages = args.block_table + piece.req * args.block_table_stride;
        for (int32_t block = piece.begin + buffer; block < piece.end; block += 2) {
            wait_for(sm.k_empty[buffer][half], ++uses & 1);
            if (copies) {
                copy_k_tile(args, pages, block, piece.tokens, buffer, tile, place.kv_head);
            }
            __syncwarp();
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * Consumers
 * ---------------------------------------------------------------------------------------------- */

/* A lane's two rows (its accumulators' and 8 below) of the softmax. */
struct row_state {
    float ref0, ref1; /* reference, base 2; -inf before the first key */
    float sum0, sum1; /* this lane's columns of this warpgroup's blocks, against the reference */
    int32_t raised;   /* whether the reference rose in this block; the same in all of a warp */
};

__device__ __forceinline__ uint64_t k_major(const void *tile)
{
    return wgmma_descriptor(smem_addr(tile), 16, 1024);
}

__device__ __forceinline__ uint64_t v_major(const void *tile)
{
    return wgmma_descriptor(smem_addr(tile), MLA_SM90_TILE_BYTES, 1024);
}

/* S (+)= Q K^T over one tile of 64 columns, as soon as that tile has landed. */
template <bool f16, int tile>
__device__ __forceinline__ void qk_tile(float (&s)[32], const uint32_t (&q8)[16], int buffer,
                                        uint32_t parity, bool first)
{
    mla_sm90_dense_smem &sm = shared();
    wait_for(sm.k_full[buffer][tile], parity);
    const uint64_t k = k_major(sm.k[buffer][tile]);
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        /* The next 16 columns lie 32 bytes on, 2 in units of the descriptor. */
        if constexpr (tile < MLA_SM90_Q_TILES) {
            wgmma_qk_ss<f16>(s, k_major(sm.q[tile]) + 2 * i, k + 2 * i, !(first && i == 0));
        } else {
            wgmma_qk_rs<f16>(s, q8 + 4 * i, k + 2 * i, 1);
        }
    }
}

/* O (+)= P V over 16 keys: the next 16 rows of V lie 2,048 bytes on. */
template <bool f16, int n>
__device__ __forceinline__ void pv_rs(float (&o)[n], const uint32_t *p, uint64_t v, int32_t step,
                                      int32_t accumulate)
{
    if constexpr (n == 128) {
        wgmma_pv256_rs<f16>(o, p + 4 * step, v + 128 * step, accumulate);
    } else {
        wgmma_pv128_rs<f16>(o, p + 4 * step, v + 128 * step, accumulate);
    }
}

template <bool f16>
__device__ __forceinline__ void pv_ss(float (&o)[128], const void *p_tile, uint64_t v,
                                      int32_t accumulate)
{
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        wgmma_pv256_ss<f16>(o, k_major(p_tile) + 2 * i, v + 128 * i, i > 0 ? 1 : accumulate);
    }
}

template <int n>
__device__ __forceinline__ void scale_rows(float (&o)[n], float factor0, float factor1)
{
#pragma unroll
    for (int32_t i = 0; i < n; i += 4) {
        o[i] *= factor0;
        o[i + 1] *= factor0;
        o[i + 2] *= factor1;
        o[i + 3] *= factor1;
    }
}

/* Hides keys that a row does not see. `hidden` is the infinity that scaling turns into -inf. */
__device__ __forceinline__ void mask_block(const mla_sm90_dense_args &args, float (&s)[32],
                                           int32_t block, int32_t tokens, int32_t row)
{
    const float hidden = args.scale_log2 < 0 ? INFINITY : -INFINITY;
    const int32_t column = block * MLA_BLOCK_TOKENS + (int32_t)threadIdx.x % 4 * 2;
    const int32_t limit0 = token_limit(args, tokens, row_token(args, row)) - column;
    const int32_t limit1 = token_limit(args, tokens, row_token(args, row + 8)) - column;
#pragma unroll
    for (int32_t i = 0; i < 32; i += 4) {
        s[i] = 2 * i < limit0 ? s[i] : hidden;
        s[i + 1] = 2 * i + 1 < limit0 ? s[i + 1] : hidden;
        s[i + 2] = 2 * i < limit1 ? s[i + 2] : hidden;
        s[i + 3] = 2 * i + 1 < limit1 ? s[i + 3] : hidden;
    }
}

/* p = exp2(s * scale - ref) over 32 keys, and the lane's sums. A reference of -inf makes them
 * infinite or NaN: the row has none yet. */
__device__ __forceinline__ void exponentials(const float *s, float (&p)[16], float scale,
                                             float ref0, float ref1, float &sum0, float &sum1)
{
    sum0 = 0;
    sum1 = 0;
#pragma unroll
    for (int32_t i = 0; i < 16; i += 4) {
        p[i] = exp2_approx(fmaf(s[i], scale, -ref0));
        p[i + 1] = exp2_approx(fmaf(s[i + 1], scale, -ref0));
        p[i + 2] = exp2_approx(fmaf(s[i + 2], scale, -ref1));
        p[i + 3] = exp2_approx(fmaf(s[i + 3], scale, -ref1));
        sum0 += p[i] + p[i + 1];
        sum1 += p[i + 2] + p[i + 3];
    }
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Factor that takes values from the old reference to the new one; both may still be -inf. */
__device__ __forceinline__ float reference_factor(float from, float to)
{
    return from == to ? 1.0f : exp2_approx(from - to);
}

/*
 * Raises the references to the true maximum of the block and leaves the factors for the other
 * warpgroup. The second half gets here only where the first half's sums fitted, so the maximum lies
 * in it. A row whose keys are all hidden stays at -inf: its next key comes here again.
 */
template <int half>
__device__ __forceinline__ void raise_references(const float (&s)[32], float scale, row_state &rows,
                                                 int32_t side, float &factor0, float &factor1)
{
    mla_sm90_dense_smem &sm = shared();
    float top0 = -INFINITY, top1 = -INFINITY;
#pragma unroll
    for (int32_t i = 16 * half; i < 32; i += 4) {
        top0 = fmaxf(top0, fmaxf(s[i] * scale, s[i + 1] * scale));
        top1 = fmaxf(top1, fmaxf(s[i + 2] * scale, s[i + 3] * scale));
    }
    const float ref0 = fmaxf(rows.ref0, quad_max(top0));
    const float ref1 = fmaxf(rows.ref1, quad_max(top1));
    factor0 = reference_factor(rows.ref0, ref0);
    factor1 = reference_factor(rows.ref1, ref1);
    rows.ref0 = ref0;
    rows.ref1 = ref1;
    rows.sum0 *= factor0;
    rows.sum1 *= factor1;
    if (threadIdx.x % 4 == 0) {
        const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
        sm.row_factor[side][row] = rows.raised ? sm.row_factor[side][row] * factor0 : factor0;
        sm.row_factor[side][row + 8] = rows.raised ? sm.row_factor[side][row + 8] * factor1
                                                   : factor1;
        sm.row_ref[side][row] = ref0;
        sm.row_ref[side][row + 8] = ref1;
    }
    rows.raised = 1;
}

/* The state before the first block. Against a reference of +inf the numerators are 0: rows that do
 * not exist put zeros into the products, which saves the energy of multiplying. */
__device__ __forceinline__ row_state first_state(const mla_sm90_dense_args &args,
                                                 const cta_place &place)
{
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    row_state rows = {INFINITY, INFINITY, 0, 0, 0};
    if (tile_row(args, row).exists) {
        rows.ref0 = -INFINITY;
    }
    if (tile_row(args, row + 8).exists) {
        rows.ref1 = -INFINITY;
    }
    return rows;
}

/* Largest sum of a lane that leaves every numerator finite and precise in the 16-bit format. */
template <bool f16> __device__ __forceinline__ float sum_limit()
{
    return f16 ? 0x1p12f : 0x1p64f;
}

/*
 * Numerators of 32 keys (half 0 or 1 of the block) from S, packed as A operand. In the rare case
 * that a sum is too large, infinite or NaN, the references are raised, and everything that was
 * computed against the old ones is rescaled: accumulators, sums, the first half's numerators.
 */
template <bool f16, int half, int n>
__device__ __forceinline__ void softmax_half(const float (&s)[32], float (&o)[n], uint32_t (&p)[16],
                                             float scale, row_state &rows, int32_t side)
{
    float numerators[16], sum0, sum1;
    exponentials(s + 16 * half, numerators, scale, rows.ref0, rows.ref1, sum0, sum1);
    const bool fits = sum0 < sum_limit<f16>() && sum1 < sum_limit<f16>();
    if (!__all_sync(0xffffffffu, fits)) {
        float factor0, factor1;
        wgmma_wait<0>();
        wgmma_pin(o);
        raise_references<half>(s, scale, rows, side, factor0, factor1);
        scale_rows(o, factor0, factor1);
        if constexpr (half == 1) {
            const uint32_t pair0 = pack_pair<f16>(factor0, factor0);
            const uint32_t pair1 = pack_pair<f16>(factor1, factor1);
#pragma unroll
            for (int32_t i = 0; i < 8; i += 2) {
                p[i] = f16 ? mul_f16x2(p[i], pair0) : mul_bf16x2(p[i], pair0);
                p[i + 1] = f16 ? mul_f16x2(p[i + 1], pair1) : mul_bf16x2(p[i + 1], pair1);
            }
        }
        /* A row whose reference is still -inf has only hidden keys here: against 0 they give 0. */
        exponentials(s + 16 * half, numerators, scale, rows.ref0 == -INFINITY ? 0 : rows.ref0,
                     rows.ref1 == -INFINITY ? 0 : rows.ref1, sum0, sum1);
    }
    rows.sum0 += sum0;
    rows.sum1 += sum1;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
        p[8 * half + i] = pack_pair<f16>(numerators[2 * i], numerators[2 * i + 1]);
    }
}

/* Takes over what the other warpgroup's block did to the references. */
__device__ __forceinline__ void follow_references(float (&o)[128], row_state &rows, int32_t from)
{
    const mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x % 128 / 32;
    if (sm.raised[from][warp]) {
        const int32_t row = warp * 16 + (int32_t)threadIdx.x % 32 / 4;
        const float factor0 = sm.row_factor[from][row], factor1 = sm.row_factor[from][row + 8];
        scale_rows(o, factor0, factor1);
        rows.sum0 *= factor0;
        rows.sum1 *= factor1;
        rows.ref0 = sm.row_ref[from][row];
        rows.ref1 = sm.row_ref[from][row + 8];
    }
}

/*
 * Leaves P in shared memory for the other warpgroup's products: 16-byte chunk c of row r lies at
 * chunk c XOR r % 8. The caller's named barrier, after the fence, publishes it.
 */
__device__ __forceinline__ void store_p(const uint32_t (&p)[16], int32_t side, int32_t raised)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x % 128 / 32;
    const uint32_t row = smem_addr(sm.p[side]) + (warp * 16 + lane % 16) * 128;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        const int32_t chunk = (2 * i + lane / 16) ^ (lane % 8);
        stmatrix_x4(row + chunk * 16, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
    }
    if (lane == 0) {
        sm.raised[side][warp] = raised;
    }
    fence_proxy_async();
}

/* Zeroes rows `valid` on of `tiles` tiles of V: they lie past the request's end, may hold NaN, and a
 * numerator of 0 would not silence that. The warpgroup's barrier publishes it to its products. */
template <int side, int tiles>
__device__ __forceinline__ void zero_v_rows(int32_t buffer, int32_t first_tile, int32_t valid)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t chunks = (MLA_BLOCK_TOKENS - valid) * 8;
    for (int32_t i = (int32_t)threadIdx.x % WARPGROUP; i < tiles * chunks; i += WARPGROUP) {
        uint4 *tile = (uint4 *)sm.k[buffer][first_tile + i / chunks];
        tile[valid * 8 + i % chunks] = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async();
    bar_sync<side == LEFT ? BAR_LEFT : BAR_RIGHT, WARPGROUP>();
}

/* One arrival of each warp: its products that read the buffer are done. */
__device__ __forceinline__ void release(uint64_t &barrier)
{
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(smem_addr(&barrier));
    }
}

/* Q's ninth tile as A operand: four registers for each 16 columns. */
__device__ __forceinline__ void load_q8(const mla_sm90_dense_args &args, const cta_place &place,
                                        int32_t req, int32_t row, uint32_t (&q8)[16])
{
    const int32_t column = MLA_SM90_Q_TILES * MLA_SM90_TILE_COLS + (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int32_t below = 0; below < 2; ++below) {
        const mla_tile_row at = tile_row(args, row + 8 * below);
        const bool load = at.exists && args.d_qk > MLA_SM90_Q_TILES * MLA_SM90_TILE_COLS;
        const uint16_t *q = args.q + column;
        if (load) {
            q += row_offset(args, args.q_stride, req, place.kv_head, at);
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            q8[4 * i + below] = load ? *(const uint32_t *)(q + 16 * i) : 0;
            q8[4 * i + 2 + below] = load ? *(const uint32_t *)(q + 16 * i + 8) : 0;
        }
    }
}

/* Where a piece's result goes: to the outputs, or to a partial when other parts hold the rest. */
__device__ __forceinline__ int64_t partial_number(const mla_sm90_dense_args &args,
                                                  const cta_place &place, const mla_piece &piece)
{
    const int64_t partial = (int64_t)place.part_idx * 2 + piece.partial;
    return (partial * args.h_kv + place.kv_head) * args.row_tiles +
           place.first_row / MLA_SM90_TILE_ROWS;
}

__device__ __forceinline__ void store_lse(const mla_sm90_dense_args &args, const cta_place &place,
                                          const mla_piece &piece, int32_t row, float ref, float sum)
{
    const float lse_log2 = ref + log2f(sum);
    if (piece.split) {
        args.partial_lse[partial_number(args, place, piece) * MLA_SM90_TILE_ROWS + row] = lse_log2;
        return;
    }
    const mla_tile_row at = tile_row(args, place.first_row + row);
    if (at.exists && args.lse != nullptr) {
        args.lse[row_offset(args, args.lse_stride, piece.req, place.kv_head, at)] =
            sum == 0 ? args.lse_empty : lse_log2 * 0.69314718055994531f;
    }
}

/* Stores `n` accumulators, of columns first_column on, times a factor for each of a lane's rows. */
template <bool f16, int n>
__device__ __forceinline__ void
store_columns_of(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
                 const float *o, int32_t row, int32_t first_column, float factor0, float factor1)
{
    const mla_tile_row at0 = tile_row(args, place.first_row + row);
    const mla_tile_row at1 = tile_row(args, place.first_row + row + 8);
    if (piece.split) {
        if (__any_sync(0xffffffffu, at0.exists || at1.exists)) {
            float4 *to =
                (float4 *)args.partial_out +
                ((partial_number(args, place, piece) * 4 + row / 16) * 64 + first_column / 8) * 32 +
                (int32_t)threadIdx.x % 32;
#pragma unroll
            for (int32_t i = 0; i < n / 4; ++i) {
                to[i * 32] = make_float4(o[4 * i] * factor0, o[4 * i + 1] * factor0,
                                         o[4 * i + 2] * factor1, o[4 * i + 3] * factor1);
            }
        }
        return;
    }
    uint16_t *out0 = nullptr, *out1 = nullptr;
    if (at0.exists) {
        out0 = args.out + row_offset(args, args.out_stride, piece.req, place.kv_head, at0) +
               first_column;
    }
    if (at1.exists) {
        out1 = args.out + row_offset(args, args.out_stride, piece.req, place.kv_head, at1) +
               first_column;
    }
#pragma unroll
    for (int32_t i = 0; i < n / 16; ++i) {
        store_columns<f16>(o + 16 * i, out0 ? out0 + 32 * i : nullptr,
                           out1 ? out1 + 32 * i : nullptr, factor0, factor1);
    }
}

/* Hides from the compiler where these come from. Offsets of rows, computed once for all pieces,
 * would cost registers that the main loop lacks (24 bytes were spilled). */
__device__ __forceinline__ void forget_origin(cta_place &place, int32_t &thread)
{
    asm volatile(""
                 : "+r"(place.first_row), "+r"(place.kv_head), "+r"(place.part_idx), "+r"(thread));
}

/* Normalises and stores this warpgroup's 256 columns; the left one also stores the lse. */
template <bool f16, int side>
__device__ __forceinline__ void store_piece(const mla_sm90_dense_args &args, cta_place place,
                                            const mla_piece &piece, const float (&o)[128],
                                            const row_state &rows)
{
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    const int32_t row = thread / 32 * 16 + thread % 32 / 4;
    if (side == LEFT && thread % 4 == 0) {
        store_lse(args, place, piece, row, rows.ref0, rows.sum0);
        store_lse(args, place, piece, row + 8, rows.ref1, rows.sum1);
    }
    store_columns_of<f16, 128>(args, place, piece, o, row, side * 256,
                               rows.sum0 == 0 ? 0 : 1 / rows.sum0,
                               rows.sum1 == 0 ? 0 : 1 / rows.sum1);
}

/* A piece without keys: zeros, or a partial whose lse alone says that it is not to be read. Where
 * several CTAs share the columns, the first of them does it. */
template <int side>
__device__ __forceinline__ void store_empty_piece(const mla_sm90_dense_args &args, cta_place place,
                                                  const mla_piece &piece)
{
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    if (place.column_part > 0) {
        return;
    }
    if (side == LEFT && thread < MLA_SM90_TILE_ROWS) {
        store_lse(args, place, piece, thread, -INFINITY, 0);
    }
    if (piece.split) {
        return;
    }
    for (int32_t i = thread; i < MLA_SM90_TILE_ROWS * 32; i += WARPGROUP) {
        const mla_tile_row at = tile_row(args, place.first_row + i / 32);
        if (at.exists) {
            uint16_t *out = args.out +
                            row_offset(args, args.out_stride, piece.req, place.kv_head, at);
            *(uint4 *)(out + side * 256 + i % 32 * 8) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* A lane's sums become those of the whole rows, over this warpgroup's blocks. */
__device__ __forceinline__ void add_quad(row_state &rows)
{
#pragma unroll
    for (int32_t lanes = 1; lanes <= 2; lanes *= 2) {
        rows.sum0 += __shfl_xor_sync(0xffffffffu, rows.sum0, lanes);
        rows.sum1 += __shfl_xor_sync(0xffffffffu, rows.sum1, lanes);
    }
}

/* Both warpgroups' shares of the denominators; each lane ends with its rows' whole sums. */
__device__ __forceinline__ void join_row_sums(row_state &rows, int32_t side)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
    add_quad(rows);
    if (threadIdx.x % 4 == 0) {
        sm.row_sum[side][row] = rows.sum0;
        sm.row_sum[side][row + 8] = rows.sum1;
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
    /* Both sides add in the same order, so that both divide by the same bits. */
    rows.sum0 = sm.row_sum[LEFT][row] + sm.row_sum[RIGHT][row];
    rows.sum1 = sm.row_sum[LEFT][row + 8] + sm.row_sum[RIGHT][row + 8];
}

/* Phases of the K and Q barriers that a consumer has used up. */
struct phases {
    uint32_t k[2], q;
};

/* The left warpgroup's part of one piece of at least one block. */
template <bool f16>
__device__ __forceinline__ void attend_left(const mla_sm90_dense_args &args, const cta_place &place,
                                            const mla_piece &piece, int32_t all_see, phases &at,
                                            float (&o)[128], row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const uint64_t v0 = v_major(sm.k[0][0]), v1 = v_major(sm.k[1][0]);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t q8[16], p[16];

    load_q8(args, place, piece.req, row, q8);
    wait_for(sm.q_full, at.q++ & 1);
    int32_t block = piece.begin, accumulate = 0;
    for (;;) {
        /* S0. Its first tiles land first: the left half is released before the right one. */
        const uint32_t parity = at.k[0]++ & 1;
        wgmma_fence();
        qk_tile<f16, 0>(s, q8, 0, parity, true);
        qk_tile<f16, 1>(s, q8, 0, parity, false);
        qk_tile<f16, 2>(s, q8, 0, parity, false);
        qk_tile<f16, 3>(s, q8, 0, parity, false);
        qk_tile<f16, 4>(s, q8, 0, parity, false);
        qk_tile<f16, 5>(s, q8, 0, parity, false);
        qk_tile<f16, 6>(s, q8, 0, parity, false);
        qk_tile<f16, 7>(s, q8, 0, parity, false);
        qk_tile<f16, 8>(s, q8, 0, parity, false);
        wgmma_commit();
        if (accumulate) {
            /* P1 V1_L of the previous pair, queued behind S0: it runs during the softmax. */
            bar_sync<BAR_P1_READY, CONSUMERS>();
            follow_references(o, rows, RIGHT);
            wgmma_fence();
            pv_ss<f16>(o, sm.p[1], v1, 1);
            wgmma_commit();
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            if ((block + 1) * MLA_BLOCK_TOKENS > piece.tokens) {
                zero_v_rows<LEFT, 4>(0, 0, piece.tokens - block * MLA_BLOCK_TOKENS);
            }
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, scale, rows, LEFT);
        if (accumulate) {
            /* P1 V1_L of the previous pair ran behind S0 and is done about now. Left until P0 V0_L
             * is done too, its keys' successors come 700 clocks too late for S1. */
            wgmma_wait<0>();
            release(sm.k_empty[1][0]);
        }
        wgmma_fence();
        pv_rs<f16>(o, p, v0, 0, accumulate);
        pv_rs<f16>(o, p, v0, 1, 1);
        wgmma_commit();
        softmax_half<f16, 1>(s, o, p, scale, rows, LEFT);
        wgmma_fence();
        pv_rs<f16>(o, p, v0, 2, 1);
        pv_rs<f16>(o, p, v0, 3, 1);
        wgmma_commit();
        store_p(p, LEFT, rows.raised);
        bar_arrive<BAR_P0_READY, CONSUMERS>();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[0][0]);
        accumulate = 1;
        block += 2;
        if (block > piece.end) {
            return;
        }
        bar_sync<BAR_QK1_ISSUED, CONSUMERS>();
        if (block == piece.end) {
            break;
        }
    }
    bar_sync<BAR_P1_READY, CONSUMERS>();
    follow_references(o, rows, RIGHT);
    if (block * MLA_BLOCK_TOKENS > piece.tokens) {
        zero_v_rows<LEFT, 4>(1, 0, piece.tokens - (block - 1) * MLA_BLOCK_TOKENS);
    }
    wgmma_fence();
    pv_ss<f16>(o, sm.p[1], v1, 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    release(sm.k_empty[1][0]);
}

/* The right warpgroup's part of one piece of at least one block. */
template <bool f16>
__device__ __forceinline__ void
attend_right(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
             int32_t all_see, phases &at, float (&o)[128], row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const uint64_t v0 = v_major(sm.k[0][4]), v1 = v_major(sm.k[1][4]);
    const float scale = args.scale_log2;
    float s[32];
    uint32_t q8[16], p[16];

    load_q8(args, place, piece.req, row, q8);
    const uint32_t q_parity = at.q++ & 1;
    if (piece.begin + 1 == piece.end) {
        release(sm.q_empty); /* no odd block: this side never reads Q from shared memory */
    }
    int32_t accumulate = 0;
    for (int32_t block = piece.begin + 1;; block += 2) {
        bar_sync<BAR_P0_READY, CONSUMERS>();
        follow_references(o, rows, LEFT);
        if (block * MLA_BLOCK_TOKENS > piece.tokens) {
            zero_v_rows<RIGHT, 4>(0, 4, piece.tokens - (block - 1) * MLA_BLOCK_TOKENS);
        }
        wgmma_fence();
        pv_ss<f16>(o, sm.p[0], v0, accumulate);
        wgmma_commit();
        accumulate = 1;
        if (block >= piece.end) {
            break;
        }
        /* S1. Its right half was released first, by this warpgroup, so it is there first. */
        const uint32_t parity = at.k[1]++ & 1;
        wait_for(sm.q_full, q_parity);
        qk_tile<f16, 4>(s, q8, 1, parity, true);
        wgmma_commit();
        /* P0 V0_R is done while four products of S1 keep the tensor cores busy; after all twenty of
         * this half it would be noticed 750 clocks later, and the next S0 would wait for its keys. */
        wgmma_wait<1>();
        wgmma_pin(o);
        release(sm.k_empty[0][1]);
        qk_tile<f16, 5>(s, q8, 1, parity, false);
        qk_tile<f16, 6>(s, q8, 1, parity, false);
        qk_tile<f16, 7>(s, q8, 1, parity, false);
        qk_tile<f16, 8>(s, q8, 1, parity, false);
        qk_tile<f16, 0>(s, q8, 1, parity, false);
        qk_tile<f16, 1>(s, q8, 1, parity, false);
        qk_tile<f16, 2>(s, q8, 1, parity, false);
        qk_tile<f16, 3>(s, q8, 1, parity, false);
        wgmma_commit();
        bar_arrive<BAR_QK1_ISSUED, CONSUMERS>();
        wgmma_wait<0>();
        wgmma_pin(s);
        if (block + 2 >= piece.end) {
            release(sm.q_empty);
        }
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            if ((block + 1) * MLA_BLOCK_TOKENS > piece.tokens) {
                zero_v_rows<RIGHT, 4>(1, 4, piece.tokens - block * MLA_BLOCK_TOKENS);
            }
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, scale, rows, RIGHT);
        softmax_half<f16, 1>(s, o, p, scale, rows, RIGHT);
        store_p(p, RIGHT, rows.raised);
        bar_arrive<BAR_P1_READY, CONSUMERS>();
        wgmma_fence();
        pv_rs<f16>(o, p, v1, 0, 1);
        pv_rs<f16>(o, p, v1, 1, 1);
        pv_rs<f16>(o, p, v1, 2, 1);
        pv_rs<f16>(o, p, v1, 3, 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[1][1]);
        if (block + 1 >= piece.end) {
            return;
        }
    }
    wgmma_wait<0>();
    wgmma_pin(o);
    release(sm.k_empty[0][1]);
}

/*
 * Few keys, several CTAs to a piece: each repeats the products with K and keeps a
 * quarter of O's columns.
 * The warpgroups take the even and the odd blocks on their own; with one or two blocks to a piece
 * the seesaw would have nothing to alternate.
 */
template <bool f16, int side>
__device__ __forceinline__ void
attend_columns(const mla_sm90_dense_args &args, const cta_place &place, const mla_piece &piece,
               int32_t all_see, phases &at, float (&o)[CTA_COLUMNS / 2], row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = place.first_row + (int32_t)threadIdx.x % 128 / 32 * 16 +
                        (int32_t)threadIdx.x % 32 / 4;
    const int32_t first_tile = place.column_part * (CTA_COLUMNS / MLA_SM90_TILE_COLS);
    const uint64_t v = v_major(sm.k[side][first_tile]);
    float s[32];
    uint32_t q8[16], p[16];

    load_q8(args, place, piece.req, row, q8);
    wait_for(sm.q_full, at.q++ & 1);
    int32_t accumulate = 0;
    for (int32_t block = piece.begin + side; block < piece.end; block += 2) {
        const uint32_t parity = at.k[side]++ & 1;
        qk_tile<f16, 0>(s, q8, side, parity, true);
        qk_tile<f16, 1>(s, q8, side, parity, false);
        qk_tile<f16, 2>(s, q8, side, parity, false);
        qk_tile<f16, 3>(s, q8, side, parity, false);
        qk_tile<f16, 4>(s, q8, side, parity, false);
        qk_tile<f16, 5>(s, q8, side, parity, false);
        qk_tile<f16, 6>(s, q8, side, parity, false);
        qk_tile<f16, 7>(s, q8, side, parity, false);
        qk_tile<f16, 8>(s, q8, side, parity, false);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
        if ((block + 1) * MLA_BLOCK_TOKENS > all_see) {
            mask_block(args, s, block, piece.tokens, row);
            if ((block + 1) * MLA_BLOCK_TOKENS > piece.tokens) {
                zero_v_rows<side, CTA_COLUMNS / MLA_SM90_TILE_COLS>(
                    side, first_tile, piece.tokens - block * MLA_BLOCK_TOKENS);
            }
        }
        rows.raised = 0;
        softmax_half<f16, 0>(s, o, p, args.scale_log2, rows, side);
        softmax_half<f16, 1>(s, o, p, args.scale_log2, rows, side);
        wgmma_fence();
        pv_rs<f16>(o, p, v, 0, accumulate);
        pv_rs<f16>(o, p, v, 1, 1);
        pv_rs<f16>(o, p, v, 2, 1);
        pv_rs<f16>(o, p, v, 3, 1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(sm.k_empty[side][0]);
        release(sm.k_empty[side][1]);
        accumulate = 1;
    }
}

/* Factors that take this warpgroup's accumulators to their share of the normalised sum of both.
 * The lanes' sums become those of both, against the higher reference. */
template <int side>
__device__ __forceinline__ void weigh_sides(row_state &rows, float &factor0, float &factor1)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
    if (threadIdx.x % 4 == 0) {
        sm.row_ref[side][row] = rows.ref0;
        sm.row_ref[side][row + 8] = rows.ref1;
        sm.row_sum[side][row] = rows.sum0;
        sm.row_sum[side][row + 8] = rows.sum1;
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
    float *refs[2] = {&rows.ref0, &rows.ref1}, *sums[2] = {&rows.sum0, &rows.sum1};
    float *factors[2] = {&factor0, &factor1};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const float left = sm.row_ref[LEFT][row + 8 * i], right = sm.row_ref[RIGHT][row + 8 * i];
        const float top = fmaxf(left, right);
        const float to_left = reference_factor(left, top), to_right = reference_factor(right, top);
        const float sum = sm.row_sum[LEFT][row + 8 * i] * to_left +
                          sm.row_sum[RIGHT][row + 8 * i] * to_right;
        *refs[i] = top;
        *sums[i] = sum;
        *factors[i] = sum == 0 ? 0 : (side == LEFT ? to_left : to_right) / sum;
    }
}

/*
 * Joins both warpgroups' sums and stores: the left one the lower half of the CTA's columns, the
 * right one the upper. The halves change sides through the space of Q, which is done with.
 */
template <bool f16, int side>
__device__ __forceinline__ void store_joined(const mla_sm90_dense_args &args, cta_place place,
                                             const mla_piece &piece, float (&o)[CTA_COLUMNS / 2],
                                             row_state &rows)
{
    mla_sm90_dense_smem &sm = shared();
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    const int32_t row = thread / 32 * 16 + thread % 32 / 4;
    const int32_t first_column = place.column_part * CTA_COLUMNS;
    constexpr int32_t n = CTA_COLUMNS / 2; /* accumulators of a lane, of all the columns */
    const bool alone = piece.end - piece.begin == 1;
    add_quad(rows);
    float factor0 = 1, factor1 = 1;
    if (alone) {
        if (side == RIGHT) {
            return;
        }
        factor0 = rows.sum0 == 0 ? 0 : 1 / rows.sum0;
        factor1 = rows.sum1 == 0 ? 0 : 1 / rows.sum1;
    } else {
        weigh_sides<side>(rows, factor0, factor1);
    }
    if (side == LEFT && place.column_part == 0 && thread % 4 == 0) {
        store_lse(args, place, piece, row, rows.ref0, rows.sum0);
        store_lse(args, place, piece, row + 8, rows.ref1, rows.sum1);
    }
    scale_rows(o, factor0, factor1);
    if (alone) {
        store_columns_of<f16, n>(args, place, piece, o, row, first_column, 1, 1);
        return;
    }
    constexpr int32_t keep = side == LEFT ? 0 : n / 2, give = n / 2 - keep;
    float(*exchange)[n / 2][WARPGROUP] = (float(*)[n / 2][WARPGROUP]) sm.q;
    static_assert(2 * sizeof exchange[0] <= sizeof sm.q, "the halves fit into the space of Q");
#pragma unroll
    for (int32_t i = 0; i < n / 2; ++i) {
        exchange[side][i][thread] = o[give + i];
    }
    bar_sync<BAR_ROW_SUMS, CONSUMERS>();
#pragma unroll
    for (int32_t i = 0; i < n / 2; ++i) {
        o[keep + i] += exchange[1 - side][i][thread];
    }
    store_columns_of<f16, n / 2>(args, place, piece, o + keep, row,
                                 first_column + (side == LEFT ? 0 : CTA_COLUMNS / 2), 1, 1);
    fence_proxy_async(); /* before the copy engine writes Q where these halves were read */
}

template <bool f16, int side>
__device__ __forceinline__ void consume_columns(const mla_sm90_dense_args &args,
                                                const cta_place &place)
{
    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    phases at = {{0, 0}, 0};
    mla_piece piece;
    while (walk_next(args, walk, piece)) {
        if (piece.begin >= piece.end) {
            store_empty_piece<side>(args, place, piece);
            continue;
        }
        float o[CTA_COLUMNS / 2];
        row_state rows = first_state(args, place);
        const int32_t all_see = token_limit(args, piece.tokens, row_token(args, place.first_row));
        attend_columns<f16, side>(args, place, piece, all_see, at, o, rows);
        store_joined<f16, side>(args, place, piece, o, rows);
        __syncwarp();
        release(shared().q_empty);
    }
}

template <bool f16, int side>
__device__ __forceinline__ void consume(const mla_sm90_dense_args &args, const cta_place &place)
{
    mla_part_walk walk = walk_begin(args, place.part, place.first_row);
    const int32_t first_token = row_token(args, place.first_row);
    phases at = {{0, 0}, 0};
    mla_piece piece;
    while (walk_next(args, walk, piece)) {
        if (piece.begin >= piece.end) {
            store_empty_piece<side>(args, place, piece);
            continue;
        }
        float o[128];
        row_state rows = first_state(args, place);
        const int32_t all_see = token_limit(args, piece.tokens, first_token);
        if constexpr (side == LEFT) {
            attend_left<f16>(args, place, piece, all_see, at, o, rows);
        } else {
            attend_right<f16>(args, place, piece, all_see, at, o, rows);
        }
        join_row_sums(rows, side);
        store_piece<f16, side>(args, place, piece, o, rows);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Kernels
 * ---------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void init_barriers()
{
    mla_sm90_dense_smem &sm = shared();
    if (threadIdx.x == 0) {
        for (int32_t buffer = 0; buffer < 2; ++buffer) {
            for (int32_t tile = 0; tile < MLA_SM90_K_TILES; ++tile) {
                mbarrier_init(smem_addr(&sm.k_full[buffer][tile]), 1);
            }
            mbarrier_init(smem_addr(&sm.k_empty[buffer][0]), 4);
            mbarrier_init(smem_addr(&sm.k_empty[buffer][1]), 4);
        }
        mbarrier_init(smem_addr(&sm.q_full), 1);
        mbarrier_init(smem_addr(&sm.q_empty), 8);
        fence_mbarrier_init();
    }
    __syncthreads();
}

template <bool f16, int side, bool may_share_columns>
__device__ __forceinline__ void consume_any(const mla_sm90_dense_args &args, cta_place place)
{
    int32_t thread = 0;
    forget_origin(place, thread);
    if (!may_share_columns || place.column_parts == 1) {
        place.column_part = 0;
        consume<f16, side>(args, place);
    } else if constexpr (may_share_columns) {
        /* For itself: what the variants share would be computed before and held throughout. */
        forget_origin(place, thread);
        consume_columns<f16, side>(args, place);
    }
}

template <bool f16, bool may_share_columns>
__device__ __forceinline__ void dense_decode(const mla_sm90_dense_args &args)
{
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&args.q_map);
        tensor_map_prefetch(&args.kv_map);
    }
    init_barriers();
    /* Everything up to here overlapped the launch before; nothing of it read the caller's memory. */
    wait_dependencies();
    const cta_place place = find_place<may_share_columns>(args);
    const int32_t role = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / WARPGROUP, 0);
    if (role == LEFT) {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume_any<f16, LEFT, may_share_columns>(args, place);
    } else if (role == RIGHT) {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume_any<f16, RIGHT, may_share_columns>(args, place);
    } else {
        setmaxnreg_dec<PRODUCER_REGS>();
        produce(args, place);
        launch_dependents();
    }
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_bf16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<false, false>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_f16(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<true, false>(args);
}

/* For batches so small that plans may divide the columns among CTAs. */
extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_bf16_small(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<false, true>(args);
}

extern "C" __global__ void __launch_bounds__(MLA_SM90_THREADS, 1)
    mla_sm90_dense_f16_small(const __grid_constant__ mla_sm90_dense_args args)
{
    dense_decode<true, true>(args);
}
