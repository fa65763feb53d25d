/*
 * Producer of FP8 rows: four warps turn the rows of every block into bf16 tiles, four lanes a row,
 * 16 bytes a lane and tile, eight rows of a warp at a time. Loads are on their way while those
 * before are converted, and a block ahead of that L2 is told what to fetch.
 *
 * Alone, a CTA converts all 64 rows. Of a pair, a cluster of two CTAs that attend 128 heads to the
 * same keys, each converts half of the rows and sends the other what it has; what comes from there
 * completes on this CTA's barriers, by bytes.
 */
#ifndef MLA_CUDA_SPARSE_FP8_CUH
#define MLA_CUDA_SPARSE_FP8_CUH

#include "formats.h"
#include "sparse_attend.cuh"

/* Tiles of half a row, 16 bytes of a lane each, and chunks of RoPE a lane. */
enum { HALF_TILES = 4, ROPE_CHUNKS = 2 };

/* DeepSeek V3.2: 512 values, four float32 scales, and RoPE values in a tile of their own. */
struct rows_656 {
    static constexpr rope_tile rope = ROPE_ALWAYS;
    static constexpr int rope_at = MLA_FP8_656_ROPE_AT, rope_in = 8;
    static constexpr int data_bytes = MLA_FP8_656_BYTES;
    /* Where the scales lie: in the row, so that nothing more has to be kept. */
    static __device__ __forceinline__ const uint8_t *place_scales(const key_row &)
    {
        return nullptr;
    }
    /* Those of tiles 2 * pair and 2 * pair + 1, which share one. */
    static __device__ __forceinline__ uint32_t load_scales(const uint8_t *row, const uint8_t *,
                                                           int32_t pair)
    {
        return load_4((const uint32_t *)(row + MLA_FP8_656_SCALES_AT) + pair);
    }
    static __device__ __forceinline__ float scale(uint32_t of_pair, int32_t)
    {
        return __uint_as_float(of_pair);
    }
    static constexpr bool scales_in_row = true;
    static constexpr bool may_silence = true; /* a scale of 0, NaN too */
};

/* DeepSeek V4: 448 values, RoPE values as the eighth tile, and seven e8m0 scales behind the page's
 * rows. */
struct rows_584 {
    static constexpr rope_tile rope = ROPE_NEVER;
    static constexpr int rope_at = MLA_FP8_584_ROPE_AT, rope_in = 7;
    static constexpr int data_bytes = MLA_FP8_584_DATA_BYTES;
    static __device__ __forceinline__ const uint8_t *place_scales(const key_row &row)
    {
        const int64_t of_page = (int64_t)row.page_size * MLA_FP8_584_DATA_BYTES;
        return row.page + of_page + (int64_t)row.token * MLA_FP8_584_SCALE_BYTES;
    }
    static __device__ __forceinline__ uint32_t load_scales(const uint8_t *, const uint8_t *scales,
                                                           int32_t pair)
    {
        return load_2((const uint16_t *)scales + pair);
    }
    static __device__ __forceinline__ float scale(uint32_t of_pair, int32_t second)
    {
        const uint32_t byte = second ? of_pair >> 8 : of_pair & 0xff;
        /* 2^-127 is subnormal, and 255 is NaN. */
        const uint32_t bits = byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23;
        return __uint_as_float(bits);
    }
    static constexpr bool scales_in_row = false;
    static constexpr bool may_silence = false;
};

template <class Rows, bool in_pairs> struct fp8_keys;

/* Where a warp's rows lie in a buffer. */
template <class Rows, bool paired> struct row_places {
    typedef key_layout<fp8_keys<Rows, paired>> layout;
    /* Of the lane's 16 values in a tile, without the tile; of a CTA alone, in the first group. */
    static __device__ __forceinline__ uint32_t of_lane()
    {
        const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        const uint32_t group = warp * 2 + (paired ? cluster_rank() : 0);
        return group * layout::row_pitch + lane / 4 * 128 + (lane % 4 * 2 ^ lane / 4) * 16;
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

/* The rows of a lane: of a pair's warp eight, of another all 16 of its rows, in groups of eight. */
template <bool paired> struct lane_rows {
    static constexpr int groups = paired ? 1 : 2;
    const uint8_t *from[groups];   /* the lane's 16 bytes of the first tile */
    const uint8_t *scales[groups]; /* of the row, if they lie elsewhere */
};

/*
 * Looks up the rows of the block that was posted, lane i that of key i % 16, tells L2 to fetch
 * those that this CTA converts, and hands them to the lanes that do. Which there are goes to the
 * cursor.
 */
template <class Rows, bool paired>
__device__ __forceinline__ lane_rows<paired> find_rows(const mla_sm90_sparse_args &args)
{
    const int32_t lane = thread_index() % 32; /* what follows from it is not worth registers */
    const key_row row = find_row(args, take_key());
    const uint32_t seen = __ballot_sync(0xffffffffu, row.data != nullptr) & 0xffff;
    if (lane == 0) {
        my_cursor().seen = seen;
    }
    const uint8_t *data = (const uint8_t *)absent_row;
    const uint8_t *scales = data;
    if (row.data != nullptr) {
        data = row.data;
        scales = Rows::place_scales(row);
        if (!paired || lane % 16 / 8 == (int32_t)cluster_rank()) {
#pragma unroll
            for (int32_t line = 0; line * 128 < Rows::data_bytes; line += 2) {
                if ((line + lane / 16) * 128 < Rows::data_bytes) {
                    prefetch_l2(row.data + (line + lane / 16) * 128);
                }
            }
        }
    }
    lane_rows<paired> rows;
#pragma unroll
    for (int32_t group = 0; group < lane_rows<paired>::groups; ++group) {
        const int32_t mine = (paired ? (int32_t)cluster_rank() : group) * 8 + lane / 4;
        rows.from[group] = pointer_of_lane(data, mine) + lane % 4 * 16;
        rows.scales[group] = Rows::scales_in_row ? nullptr : pointer_of_lane(scales, mine);
    }
    return rows;
}

__device__ __forceinline__ void load_half(uint4 (&raw)[HALF_TILES], const uint8_t *from,
                                          int32_t half)
{
#pragma unroll
    for (int32_t tile = 0; tile < HALF_TILES; ++tile) {
        raw[tile] = load_16(from + half * 256 + tile * 64);
    }
}

/* One pair of tiles' scales of a lane's row: its four lanes share the row's scales among them. */
template <class Rows>
__device__ __forceinline__ uint32_t load_scales(const uint8_t *from, const uint8_t *scales)
{
    const int32_t pair = thread_index() % 4;
    return Rows::load_scales(from - pair * 16, scales, pair);
}

/* Zeroes what was stored of pairs of tiles whose scale is 0: some of it may be NaN. */
template <uint32_t tile_pitch>
__device__ __forceinline__ void silence(uint32_t tiles, bool first, bool second)
{
    if (__any_sync(0xffffffffu, first || second)) {
#pragma unroll
        for (int32_t tile = 0; tile < HALF_TILES; ++tile) {
            if (tile < 2 ? first : second) {
                const uint32_t to = tiles + tile * tile_pitch;
                store_shared_16(to, 0, 0, 0, 0);
                store_shared_16(to ^ 16, 0, 0, 0, 0);
            }
        }
    }
}

/* Converts what load_half() loaded of rows `group`. A tile that holds RoPE values is left out. */
template <class Rows, bool paired>
__device__ __forceinline__ void convert_half(uint4 (&raw)[HALF_TILES], uint32_t scales,
                                             uint32_t place, int32_t buffer, int32_t half,
                                             int32_t group)
{
    typedef key_layout<fp8_keys<Rows, paired>> layout;
    const uint32_t tiles = key_tile<fp8_keys<Rows, paired>>(buffer, half * 4) + place +
                           group * layout::row_pitch;
    const uint32_t of_pairs[2] = {__shfl_sync(0xffffffffu, scales, half * 2, 4),
                                  __shfl_sync(0xffffffffu, scales, half * 2 + 1, 4)};
#pragma unroll
    for (int32_t tile = 0; tile < HALF_TILES; ++tile) {
        if (tile == 3 && Rows::rope_in == 7 && half == 1) {
            break;
        }
        const uint32_t to = tiles + tile * layout::tile_pitch;
        const float scale = Rows::scale(of_pairs[tile / 2], tile % 2);
        uint32_t x[4];
        convert_4(raw[tile].x, scale, x[0], x[1]);
        convert_4(raw[tile].y, scale, x[2], x[3]);
        store_shared_16(to, x[0], x[1], x[2], x[3]);
        convert_4(raw[tile].z, scale, x[0], x[1]);
        convert_4(raw[tile].w, scale, x[2], x[3]);
        store_shared_16(to ^ 16, x[0], x[1], x[2], x[3]);
    }
    if (Rows::may_silence) {
        silence<layout::tile_pitch>(tiles, __uint_as_float(of_pairs[0]) == 0,
                                    __uint_as_float(of_pairs[1]) == 0);
    }
}

/* Of each warp: its rows of a half are in place. */
__device__ __forceinline__ void publish_half(int32_t buffer, int32_t half)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(smem_addr(&shared().k_full[buffer][half * 4]));
    }
}

/* And of a pair, whose other CTA gets them too and sends as many. */
template <class Rows> __device__ __forceinline__ void share_half(int32_t buffer, int32_t half)
{
    typedef key_layout<fp8_keys<Rows, true>> layout;
    const uint32_t full = smem_addr(&shared().k_full[buffer][half * 4]);
    const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32 % 4, 0), rank = cluster_rank();
    const uint32_t rows = key_tile<fp8_keys<Rows, true>>(buffer, half * 4) +
                          (warp * 2 + rank) * layout::row_pitch;
    const uint32_t bytes = (half == 1 && Rows::rope_in == 8 ? 5 : 4) * layout::eight_rows;
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        copy_to_cluster(map_to_rank(rows, rank ^ 1), rows, bytes, map_to_rank(full, rank ^ 1));
    }
}

/*
 * A loaded value, waited for here. Registers to be loaded share six scoreboards, so that who waits
 * for one may wait for younger loads as well; a shuffle from the lane itself is an instruction that
 * nothing optimises away.
 */
__device__ __forceinline__ uint32_t settle(uint32_t loaded)
{
    return __shfl_sync(0xffffffffu, loaded, thread_index() % 32);
}

/* Where the lane's first chunk of RoPE goes in a tile: lane l of a row has chunks l and l + 4 of
 * these, not the neighbours 2l and 2l + 1. The other one is 64 bytes away. */
__device__ __forceinline__ uint32_t rope_place(uint32_t tile, uint32_t place)
{
    const uint32_t lane = threadIdx.x % 32;
    return tile + (place & ~127u) + (lane % 4 ^ lane / 4) * 16;
}

/* The RoPE values of a CTA alone, straight into their tile. */
template <class Rows>
__device__ __forceinline__ void copy_rope(const lane_rows<false> &rows, int32_t buffer,
                                          uint32_t place)
{
    typedef fp8_keys<Rows, false> keys;
    const uint32_t to = rope_place(key_tile<keys>(buffer, Rows::rope_in), place);
#pragma unroll
    for (int32_t group = 0; group < 2; ++group) {
        const uint8_t *from = rows.from[group] + Rows::rope_at;
        const uint32_t below = group * key_layout<keys>::row_pitch;
        cp_async_16(to + below, from, kL2EvictFirst);
        cp_async_16((to ^ 64) + below, from + 64, kL2EvictFirst);
    }
    cp_async_arrive(smem_addr(&shared().k_full[buffer][4]));
}

/* Those of a pair, through registers. */
template <class Rows>
__device__ __forceinline__ void load_rope(uint4 (&rope)[ROPE_CHUNKS], const uint8_t *from)
{
    rope[0] = load_16(from + Rows::rope_at);
    rope[1] = load_16(from + Rows::rope_at + 64);
}

template <class Rows>
__device__ __forceinline__ void store_rope(const uint4 (&rope)[ROPE_CHUNKS], int32_t buffer,
                                           uint32_t place)
{
    const uint32_t to = rope_place(key_tile<fp8_keys<Rows, true>>(buffer, Rows::rope_in), place);
    store_shared_16(to, rope[0].x, rope[0].y, rope[0].z, rope[0].w);
    store_shared_16(to ^ 64, rope[1].x, rope[1].y, rope[1].z, rope[1].w);
}

/* Which of the warp's rows there are, once the buffer is free; the arrival on its half publishes
 * it. */
__device__ __forceinline__ void leave_seen(int32_t buffer, uint32_t seen)
{
    if (threadIdx.x % 32 == 0) {
        ((uint16_t *)&shared().seen[buffer])[threadIdx.x / 32 % 4] = (uint16_t)seen;
    }
}

/* All of a CTA alone. */
template <class Rows>
__device__ __forceinline__ void convert_rows(const mla_sm90_sparse_args &args,
                                             const cta_place &place)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t to = row_places<Rows, false>::of_lane();
    uint32_t uses = 0; /* phases of k_empty, a bit for each buffer */

    begin_part(args, place);
    next_block(args);
    post_keys();
    int32_t buffer = my_cursor().more ? 0 : -1;
    lane_rows<false> rows = find_rows<Rows, false>(args);
    uint4 raw[2][HALF_TILES];
    load_half(raw[0], rows.from[0], 0);
    uint32_t scales[2];
    scales[0] = load_scales<Rows>(rows.from[0], rows.scales[0]);
    scales[1] = load_scales<Rows>(rows.from[1], rows.scales[1]);
    next_block(args);
    post_keys();
    while (buffer >= 0) {
        /* The next block's rows, and the entries of the one after on their way to registers. */
        const int32_t next_buffer = my_cursor().more ? block_buffer() : -1;
        const uint32_t seen = my_cursor().seen;
        const lane_rows<false> next = find_rows<Rows, false>(args);
        const uint32_t next_scales[2] = {load_scales<Rows>(next.from[0], next.scales[0]),
                                         load_scales<Rows>(next.from[1], next.scales[1])};
        want_q<Rows::rope != ROPE_NEVER>(args);
        next_block(args);
        post_keys();
        uses ^= 1u << buffer;
#pragma unroll 1
        for (int32_t i = 0; i < 2; ++i) {
            /* The odd block's right half is released and read first. */
            const int32_t half = i ^ buffer;
            load_half(raw[1], rows.from[1], half);
            wait_for_room<Rows::rope != ROPE_NEVER>(args, sm.k_empty[buffer][half],
                                                    uses >> buffer & 1);
            if (i == 0) {
                leave_seen(buffer, seen);
            }
            if (half == 1) {
                copy_rope<Rows>(rows, buffer, to);
            }
            convert_half<Rows, false>(raw[0], scales[0], to, buffer, half, 0);
            if (i == 0) {
                load_half(raw[0], rows.from[0], 1 - half);
            } else {
                load_half(raw[0], next.from[0], next_buffer & 1);
            }
            convert_half<Rows, false>(raw[1], scales[1], to, buffer, half, 1);
            publish_half(buffer, half);
        }
        scales[0] = settle(next_scales[0]);
        scales[1] = settle(next_scales[1]);
        rows = next;
        buffer = next_buffer;
    }
    end_part<Rows::rope != ROPE_NEVER>(args);
}

/* Half of the rows of a pair, for both CTAs. */
template <class Rows>
__device__ __forceinline__ void convert_pair_rows(const mla_sm90_sparse_args &args,
                                                  const cta_place &place)
{
    mla_sm90_dense_smem &sm = shared();
    const uint32_t to = row_places<Rows, true>::of_lane();
    uint32_t uses = 0; /* phases of k_empty, a bit for each buffer */

    begin_part(args, place);
    next_block(args);
    post_keys();
    int32_t buffer = my_cursor().more ? 0 : -1;
    lane_rows<true> row = find_rows<Rows, true>(args);
    uint4 raw[2][HALF_TILES], rope[ROPE_CHUNKS];
    load_half(raw[0], row.from[0], 0);
    load_rope<Rows>(rope, row.from[0]);
    uint32_t scales = load_scales<Rows>(row.from[0], row.scales[0]);
    next_block(args);
    post_keys();
    while (buffer >= 0) {
        const int32_t next_buffer = my_cursor().more ? block_buffer() : -1;
        const uint32_t seen = my_cursor().seen;
        const lane_rows<true> next = find_rows<Rows, true>(args);
        const uint32_t next_scales = load_scales<Rows>(next.from[0], next.scales[0]);
        want_q<Rows::rope != ROPE_NEVER>(args);
        next_block(args);
        post_keys();
        uses ^= 1u << buffer;
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            const int32_t half = i ^ buffer;
            if (i == 0) {
                load_half(raw[1], row.from[0], 1 - half);
            } else {
                load_half(raw[0], next.from[0], next_buffer & 1);
            }
            wait_for_room<Rows::rope != ROPE_NEVER>(args, sm.k_empty[buffer][half],
                                                    uses >> buffer & 1);
            if (i == 0) {
                leave_seen(buffer, seen);
            }
            convert_half<Rows, true>(raw[i], scales, to, buffer, half, 0);
            if (half == 1) {
                store_rope<Rows>(rope, buffer, to);
            }
            share_half<Rows>(buffer, half);
        }
        scales = settle(next_scales);
        load_rope<Rows>(rope, next.from[0]);
        row = next;
        buffer = next_buffer;
    }
    end_part<Rows::rope != ROPE_NEVER>(args);
}

template <class Rows, bool in_pairs> struct fp8_keys {
    static constexpr rope_tile rope = Rows::rope;
    static constexpr bool gathered = true;
    static constexpr bool maxima = false;
    static constexpr bool shares_p = Rows::rope != ROPE_NEVER;
    static constexpr bool paired = in_pairs;
    /* 584-byte rows would spill. */
    static constexpr bool one_code = Rows::rope == ROPE_ALWAYS;
    static constexpr int consumer_regs = 208;
    static constexpr int producer_regs = 3 * 168 - 2 * consumer_regs;

    /* One of each warp after its stores, and of each thread's copies of RoPE values. */
    static __device__ constexpr uint32_t arrivals(int32_t tile)
    {
        return tile == 4 && !paired ? 4 + 128 : 4;
    }

    static __device__ __forceinline__ void produce(const mla_sm90_sparse_args &args,
                                                   const cta_place &place)
    {
        if constexpr (paired) {
            convert_pair_rows<Rows>(args, place);
        } else {
            convert_rows<Rows>(args, place);
        }
    }
};

#endif
