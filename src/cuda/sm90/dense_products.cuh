/* The matrix products of dense decode, on tiles in shared memory and operands in registers. */
#ifndef MLA_CUDA_DENSE_PRODUCTS_CUH
#define MLA_CUDA_DENSE_PRODUCTS_CUH

#include "dense_cta.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

__device__ __forceinline__ uint64_t k_major(const void *tile)
{
    return wgmma_descriptor(smem_addr(tile), 16, 1024);
}

/*
 * How K's tiles lie in a buffer: as the copy engine leaves them, 64 rows of a tile after another,
 * or, where two CTAs send each other rows, eight rows of all tiles after another, which are one
 * copy.
 */
template <class Keys> struct key_layout {
    static constexpr uint32_t eight_rows = 8 * 128;
    static constexpr uint32_t tile_pitch = Keys::paired ? eight_rows : MLA_SM90_TILE_BYTES;
    static constexpr uint32_t row_pitch = Keys::paired ? MLA_SM90_K_TILES * eight_rows : eight_rows;
    /* Of 16 keys, in units of a descriptor. */
    static constexpr uint32_t step = row_pitch * 2 / 16;
};

template <class Keys> __device__ __forceinline__ uint32_t key_tile(int32_t buffer, int32_t tile)
{
    return smem_addr(shared().k[buffer]) + tile * key_layout<Keys>::tile_pitch;
}

template <class Keys>
__device__ __forceinline__ uint64_t v_major(int32_t buffer, int32_t first_tile)
{
    return wgmma_descriptor(key_tile<Keys>(buffer, first_tile), key_layout<Keys>::tile_pitch,
                            key_layout<Keys>::row_pitch);
}

/*
 * S (+)= Q K^T over one tile of 64 columns, as soon as that tile has landed. Of gathered keys tiles
 * 0 to 3 have one barrier and the others another, and their writers leave it to the readers to
 * order their stores before the tensor cores' reads, unless a copy engine had to read them first.
 */
template <bool f16, int tile, class Keys>
__device__ __forceinline__ void qk_tile(float (&s)[32], const uint32_t (&q8)[16], int buffer,
                                        uint32_t parity, bool first)
{
    mla_sm90_dense_smem &sm = shared();
    if constexpr (!Keys::gathered) {
        wait_for(sm.k_full[buffer][tile], parity);
    } else if constexpr (tile == 0 || tile == 4) {
        wait_for(sm.k_full[buffer][tile], parity);
        if constexpr (!Keys::paired) {
            fence_proxy_async();
        }
    }
    const uint64_t k = wgmma_descriptor(key_tile<Keys>(buffer, tile), 16,
                                        key_layout<Keys>::row_pitch);
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        /* The next 16 columns lie 32 bytes on, 2 in units of the descriptor. */
        if constexpr (tile < MLA_SM90_Q_TILES) {
            wgmma_qk_ss<f16>(s, k_major(sm.q[tile]) + 2 * i, k + 2 * i, !(first && i == 0));
        } else if constexpr (Keys::shares_p) {
            wgmma_qk_ss<f16>(s, k_major(sm.p[RIGHT]) + 2 * i, k + 2 * i, 1);
        } else {
            wgmma_qk_rs<f16>(s, q8 + 4 * i, k + 2 * i, 1);
        }
    }
}

/* O (+)= P V over 16 keys. */
template <bool f16, class Keys, int n>
__device__ __forceinline__ void pv_rs(float (&o)[n], const uint32_t *p, uint64_t v, int32_t step,
                                      int32_t accumulate)
{
    if constexpr (n == 128) {
        wgmma_pv256_rs<f16>(o, p + 4 * step, v + key_layout<Keys>::step * step, accumulate);
    } else {
        wgmma_pv128_rs<f16>(o, p + 4 * step, v + key_layout<Keys>::step * step, accumulate);
    }
}

template <bool f16, class Keys>
__device__ __forceinline__ void pv_ss(float (&o)[128], const void *p_tile, uint64_t v,
                                      int32_t accumulate)
{
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        wgmma_pv256_ss<f16>(o, k_major(p_tile) + 2 * i, v + key_layout<Keys>::step * i,
                            i > 0 ? 1 : accumulate);
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

/* Replaces infinities and NaN in a pair of values by 0. */
template <bool f16> __device__ __forceinline__ uint32_t finite_pair(uint32_t pair)
{
    const uint32_t exponents = f16 ? 0x7c007c00 : 0x7f807f80;
    const uint32_t not_finite = __vcmpeq2(pair & exponents, exponents);
    return pair & ~not_finite;
}

/*
 * Zeroes what a numerator of 0 would not silence in `tiles` tiles of V: rows `valid` on, which lie
 * past the request's end, and infinities and NaN in rows `all_see` on, which some query rows do not
 * see. Those that do see such a key learn of it from its product with Q. The warpgroup's barrier
 * publishes it to its products.
 */
template <bool f16, int side, int tiles>
__device__ __forceinline__ void clean_v_rows(int32_t buffer, int32_t first_tile, int32_t all_see,
                                             int32_t valid)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t first = max(all_see, 0) * 8 + (int32_t)threadIdx.x % WARPGROUP;
#pragma unroll 1
    for (int32_t tile = first_tile; tile < first_tile + tiles; ++tile) {
        uint4 *chunks = (uint4 *)sm.k[buffer][tile];
#pragma unroll 1
        for (int32_t i = first; i < MLA_BLOCK_TOKENS * 8; i += WARPGROUP) {
            uint4 chunk = make_uint4(0, 0, 0, 0);
            if (i < valid * 8) {
                chunk = chunks[i];
                chunk = make_uint4(finite_pair<f16>(chunk.x), finite_pair<f16>(chunk.y),
                                   finite_pair<f16>(chunk.z), finite_pair<f16>(chunk.w));
            }
            chunks[i] = chunk;
        }
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

/* The same of a half of K's buffers; a pair of CTAs fills its buffers together, so both must know. */
template <bool paired> __device__ __forceinline__ void release_keys(uint64_t &barrier)
{
    if constexpr (paired) {
        if (threadIdx.x % 32 < 2) {
            mbarrier_arrive_cluster(map_to_rank(smem_addr(&barrier), threadIdx.x % 32));
        }
    } else {
        release(barrier);
    }
}

/* The first of the two rows of a lane's accumulators; the other is 8 below. */
__device__ __forceinline__ int32_t tile_lane_row(const cta_place &place)
{
    return place.first_row + (int32_t)threadIdx.x % WARPGROUP / 32 * 16 +
           (int32_t)threadIdx.x % 32 / 4;
}

/* Q's ninth tile as A operand: four registers for each 16 columns. Zeros past the last request. */
__device__ __forceinline__ void load_q8(const mla_sm90_dense_args &args, const cta_place &place,
                                        int32_t req, int32_t row, uint32_t (&q8)[16])
{
    const int32_t column = MLA_SM90_Q_TILES * MLA_SM90_TILE_COLS + (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int32_t below = 0; below < 2; ++below) {
        const mla_tile_row at = tile_row(args, row + 8 * below);
        const bool load = at.exists && req < args.batch &&
                          args.d_qk > MLA_SM90_Q_TILES * MLA_SM90_TILE_COLS;
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

#endif
