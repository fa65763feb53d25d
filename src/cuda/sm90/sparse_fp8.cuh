/*
 * Producer of FP8 rows: four warps turn 16 rows each of every block into bf16 tiles. Four lanes take
 * the 64 values of a row in a tile, 16 bytes each, so a warp takes eight rows at a time. A group of
 * loads is on its way while the group before is converted, and a block ahead of that L2 is told what
 * to fetch.
 */
#ifndef MLA_CUDA_SPARSE_FP8_CUH
#define MLA_CUDA_SPARSE_FP8_CUH

#include "formats.h"
#include "sparse_attend.cuh"

/* Chunks of 16 bytes of a lane: half a buffer has 8, of four tiles and two times eight rows. A group
 * of them is loaded at once. */
enum { CHUNKS = 8, GROUP = 4 };

/* DeepSeek V3.2: 512 values, four float32 scales, and RoPE values in a tile of their own. */
struct rows_656 {
    static constexpr rope_tile rope = ROPE_ALWAYS;
    static constexpr int rope_at = MLA_FP8_656_ROPE_AT, rope_in = 8;
    static constexpr int data_bytes = MLA_FP8_656_BYTES;
    /* Of the 256 values of half a row. */
    struct scales {
        float2 of_group;
    };
    static __device__ __forceinline__ scales load(const key_row &row, int32_t half)
    {
        return {__ldg((const float2 *)(row.data + MLA_FP8_656_SCALES_AT) + half)};
    }
    static __device__ __forceinline__ scales none()
    {
        return {make_float2(0, 0)};
    }
    /* That of tile `tile` of the half, from the lane that knows it. */
    static __device__ __forceinline__ float of_tile(const scales &x, int32_t tile, int32_t lane)
    {
        return __shfl_sync(0xffffffffu, tile < 2 ? x.of_group.x : x.of_group.y, lane);
    }
};

/* DeepSeek V4: 448 values, RoPE values as the eighth tile, and seven e8m0 scales behind the page's
 * rows. */
struct rows_584 {
    static constexpr rope_tile rope = ROPE_NEVER;
    static constexpr int rope_at = MLA_FP8_584_ROPE_AT, rope_in = 7;
    static constexpr int data_bytes = MLA_FP8_584_DATA_BYTES;
    struct scales {
        uint32_t of_tile; /* a byte each */
    };
    static __device__ __forceinline__ scales load(const key_row &row, int32_t half)
    {
        const uint8_t *of_page = row.page + (int64_t)row.page_size * MLA_FP8_584_DATA_BYTES;
        return {__ldg((const uint32_t *)(of_page + (int64_t)row.token * MLA_FP8_584_SCALE_BYTES) +
                      half)};
    }
    static __device__ __forceinline__ scales none()
    {
        return {0};
    }
    static __device__ __forceinline__ float of_tile(const scales &x, int32_t tile, int32_t lane)
    {
        const uint32_t byte = __shfl_sync(0xffffffffu, x.of_tile, lane) >> 8 * tile & 0xff;
        /* 2^-127 is subnormal, and 255 is NaN. */
        const uint32_t bits = byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23;
        return __uint_as_float(bits);
    }
};

/* Four e4m3 values times their scale to bf16. */
__device__ __forceinline__ void convert_4(uint32_t values, float scale, uint32_t &lo, uint32_t &hi)
{
    float x0, x1, x2, x3;
    unpack_e4m3((uint16_t)values, x0, x1);
    unpack_e4m3((uint16_t)(values >> 16), x2, x3);
    lo = pack_bf16(x0 * scale, x1 * scale);
    hi = pack_bf16(x2 * scale, x3 * scale);
}

/* 16 values to 32 bytes: two chunks of a row in a tile, which are neighbours but for the swizzle. */
__device__ __forceinline__ void convert_16(const uint4 &values, float scale, uint32_t to,
                                           uint32_t to_next)
{
    uint32_t x[8];
    convert_4(values.x, scale, x[0], x[1]);
    convert_4(values.y, scale, x[2], x[3]);
    store_shared_16(to, x[0], x[1], x[2], x[3]);
    convert_4(values.z, scale, x[4], x[5]);
    convert_4(values.w, scale, x[6], x[7]);
    store_shared_16(to_next, x[4], x[5], x[6], x[7]);
}

/* A warp's 16 rows of a block. Lane `i` knows row i % 16, and the scales of its half i / 16. */
template <class Rows> struct warp_rows {
    const uint8_t *data;
    typename Rows::scales scales;
    uint32_t seen; /* a bit for each row */
};

template <class Rows>
__device__ __forceinline__ warp_rows<Rows> find_rows(const mla_sm90_sparse_args &args,
                                                     const listed_key &key, int32_t kv_head)
{
    const int32_t half = (int32_t)threadIdx.x % 32 / 16;
    const key_row row = find_row(args, key, kv_head);
    warp_rows<Rows> rows = {(const uint8_t *)absent_row, Rows::none(), 0};
    if (row.data != nullptr) {
        rows.data = row.data;
        rows.scales = Rows::load(row, half);
        /* Its lines, every other one by each of the two lanes. */
#pragma unroll
        for (int32_t line = 0; line < (Rows::data_bytes + 127) / 128; line += 2) {
            prefetch_l2(row.data + (line + half) * 128);
        }
    }
    rows.seen = __ballot_sync(0xffffffffu, row.data != nullptr) & 0xffff;
    return rows;
}

/* What a lane reads of its two rows. */
struct lane_rows {
    const uint8_t *from[2];
};

__device__ __forceinline__ lane_rows rows_of_lane(const uint8_t *data)
{
    const int32_t lane = (int32_t)threadIdx.x % 32;
    lane_rows rows;
    rows.from[0] = pointer_of_lane(data, lane / 4) + lane % 4 * 16;
    rows.from[1] = pointer_of_lane(data, lane / 4 + 8) + lane % 4 * 16;
    return rows;
}

/* Chunk c of half a row: of row group c % 2, in tile c / 2 of the half. */
__device__ __forceinline__ uint4 load_chunk(const lane_rows &rows, int32_t half, int32_t c)
{
    return load_16(rows.from[c % 2] + half * 256 + c / 2 * 64);
}

/* The 128 bytes of RoPE of each row, straight into their tile. */
template <class Rows>
__device__ __forceinline__ void copy_rope(const lane_rows &rows, int32_t buffer, uint32_t to)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t tile = smem_addr(sm.k[buffer][Rows::rope_in]);
    /* Lane l of a row has chunks l and l + 4, not the two neighbours that `to` is made for. */
    const int32_t lane = (int32_t)threadIdx.x % 32, row = to & ~127;
    const int32_t chunk = (lane % 4 ^ lane / 4) * 16;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const uint8_t *from = rows.from[i] + Rows::rope_at;
        cp_async_16(tile + row + i * 1024 + chunk, from, kL2EvictFirst);
        cp_async_16(tile + row + i * 1024 + (chunk ^ 64), from + 64, kL2EvictFirst);
    }
    cp_async_arrive(smem_addr(&sm.k_full[buffer][Rows::rope_in]));
}

/*
 * Converts the four tiles of half a buffer, whose first group of chunks is in raw[0]. Ends with the
 * first group of half `next_half` of the rows at `next_data` there, which `rows` become. A tile that
 * holds RoPE values is not converted.
 */
template <class Rows>
__device__ __forceinline__ void
convert_half(uint4 (&raw)[2][GROUP], const warp_rows<Rows> &known, lane_rows &rows, int32_t buffer,
             int32_t half, const uint8_t *next_data, int32_t next_half, uint32_t to)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t tiles = smem_addr(sm.k[buffer][half * 4]) + to, tiles_next = tiles ^ 16;
    const uint32_t full = smem_addr(&sm.k_full[buffer][half * 4]);
    const int32_t first_lane = half * 16 + (int32_t)threadIdx.x % 32 / 4;
#pragma unroll
    for (int32_t group = 0; group < CHUNKS / GROUP; ++group) {
        const bool last = (group + 1) * GROUP == CHUNKS;
        if (last) {
            rows = rows_of_lane(next_data);
        }
#pragma unroll
        for (int32_t i = 0; i < GROUP; ++i) {
            raw[1 - group % 2][i] = last ? load_chunk(rows, next_half, i)
                                         : load_chunk(rows, half, (group + 1) * GROUP + i);
        }
#pragma unroll
        for (int32_t i = 0; i < GROUP; ++i) {
            const int32_t c = group * GROUP + i, tile = c / 2;
            if (tile == 3 && Rows::rope_in == 7 && half == 1) {
                break;
            }
            const int32_t place = tile * MLA_SM90_TILE_BYTES + c % 2 * 1024;
            convert_16(raw[group % 2][i], Rows::of_tile(known.scales, tile, first_lane + c % 2 * 8),
                       tiles + place, tiles_next + place);
            if (c % 2 == 1) {
                /* The readers order these stores before the tensor cores' reads: a fence here would
                 * wait for the loads under way. */
                __syncwarp();
                if (threadIdx.x % 32 == 0) {
                    mbarrier_arrive(full + tile * 8);
                }
            }
        }
    }
}

template <class Rows>
__device__ __forceinline__ void convert_rows(const mla_sm90_sparse_args &args,
                                             const cta_place &place)
{
    mla_sm90_dense_smem &sm = shared();
    const int32_t warp = (int32_t)threadIdx.x / 32 % 4, lane = (int32_t)threadIdx.x % 32;
    const uint32_t to = (warp * 16 + lane / 4) * 128 + (lane % 4 * 2 ^ lane / 4) * 16;
    uint32_t uses = 0; /* phases of k_empty, a bit for each buffer */

    begin_part(args, place);
    next_block(args, place.kv_head);
    bool more = my_cursor().more;
    warp_rows<Rows> rows = find_rows<Rows>(args, load_key(), place.kv_head);
    lane_rows current = rows_of_lane(rows.data);
    int32_t buffer = 0;
    uint4 raw[2][GROUP];
#pragma unroll
    for (int32_t i = 0; i < GROUP; ++i) {
        raw[0][i] = load_chunk(current, 0, i);
    }
    next_block(args, place.kv_head);
    listed_key key = load_key();
    while (more) {
        /* The next block's rows, and the entries of the one after on their way to registers. */
        more = my_cursor().more;
        const int32_t next_buffer = more ? block_buffer() : 0;
        const warp_rows<Rows> next_rows = find_rows<Rows>(args, key, place.kv_head);
        fetch_q<Rows::rope != ROPE_NEVER>(args, place);
        next_block(args, place.kv_head);
        key = load_key();
        uses ^= 1u << buffer;
#pragma unroll 1
        for (int32_t i = 0; i < 2; ++i) {
            /* The odd block's right half is released and read first. */
            const int32_t half = i ^ buffer;
            wait_for(sm.k_empty[buffer][half], uses >> buffer & 1);
            if (half == 1) {
                copy_rope<Rows>(current, buffer, to);
                if (lane == 0) {
                    ((uint16_t *)&sm.seen[buffer])[warp] = (uint16_t)rows.seen;
                }
            }
            convert_half<Rows>(raw, rows, current, buffer, half,
                               i == 0 ? rows.data : next_rows.data, i == 0 ? 1 - half : next_buffer,
                               to);
        }
        rows = next_rows;
        buffer = next_buffer;
    }
}

template <class Rows> struct fp8_keys {
    static constexpr rope_tile rope = Rows::rope;
    static constexpr bool gathered = true;
    static constexpr bool maxima = false;
    static constexpr bool shares_p = Rows::rope != ROPE_NEVER;
    static constexpr int consumer_regs = 208;
    static constexpr int producer_regs = 3 * 168 - 2 * consumer_regs;

    /* One of each warp after its stores, or of each thread's copies. */
    static __device__ constexpr uint32_t arrivals(int32_t tile)
    {
        return tile == Rows::rope_in ? 128 : 4;
    }

    static __device__ __forceinline__ void produce(const mla_sm90_sparse_args &args,
                                                   const cta_place &place)
    {
        convert_rows<Rows>(args, place);
    }
};

#endif
