/* What the sparse kernels share: maxima of rows, the order of Q's copies, and the kernel's frame. */
#ifndef MLA_CUDA_SPARSE_ATTEND_CUH
#define MLA_CUDA_SPARSE_ATTEND_CUH

#include "dense_producer.cuh"
#include "dense_seesaw.cuh"
#include "sparse_lists.cuh"

/* ------------------------------------------------------------------------------------------------
 * Largest products
 * ---------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float better_top(float scale, float a, float b)
{
    return scale < 0 ? fminf(a, b) : fmaxf(a, b);
}

/* A lane's largest products become those of its rows. The right warpgroup leaves its own for the
 * left one; the barrier of the row sums publishes them. */
__device__ __forceinline__ void leave_tops(const mla_sm90_sparse_args &args, row_state &rows,
                                           int32_t side)
{
    const float scale = args.rows.scale_log2;
    mla_sm90_dense_smem &sm = shared();
    const int32_t row = (int32_t)threadIdx.x % 128 / 32 * 16 + (int32_t)threadIdx.x % 32 / 4;
#pragma unroll
    for (int32_t lanes = 1; lanes <= 2; lanes *= 2) {
        rows.top0 = better_top(scale, rows.top0, __shfl_xor_sync(0xffffffffu, rows.top0, lanes));
        rows.top1 = better_top(scale, rows.top1, __shfl_xor_sync(0xffffffffu, rows.top1, lanes));
    }
    if (side == RIGHT && threadIdx.x % 4 == 0) {
        sm.row_top[row] = rows.top0;
        sm.row_top[row + 8] = rows.top1;
    }
}

__device__ __forceinline__ void store_top(const mla_sm90_sparse_args &args, const cta_place &place,
                                          const mla_piece &piece, int32_t row, float top)
{
    const mla_tile_row at = tile_row(args.rows, place.first_row + row);
    if (at.exists && args.max_logits != nullptr) {
        const int64_t heads = (int64_t)args.rows.group * args.rows.h_kv;
        args.max_logits[piece.req * heads + place.kv_head * args.rows.group + at.head] = top;
    }
}

/* Both warpgroups' largest products, scaled. Requests are never split where these are wanted. */
__device__ __forceinline__ void store_tops(const mla_sm90_sparse_args &args, cta_place place,
                                           const mla_piece &piece, const row_state &rows,
                                           int32_t side)
{
    const mla_sm90_dense_smem &sm = shared();
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    if (side == RIGHT || thread % 4 != 0) {
        return;
    }
    const int32_t row = thread / 32 * 16 + thread % 32 / 4;
    const float scale = args.rows.scale_log2, natural = scale * 0.69314718055994531f;
    store_top(args, place, piece, row, better_top(scale, rows.top0, sm.row_top[row]) * natural);
    store_top(args, place, piece, row + 8,
              better_top(scale, rows.top1, sm.row_top[row + 8]) * natural);
}

__device__ __forceinline__ void store_no_tops(const mla_sm90_sparse_args &args, cta_place place,
                                              const mla_piece &piece, int32_t side)
{
    int32_t thread = (int32_t)threadIdx.x % WARPGROUP;
    forget_origin(place, thread);
    if (side == LEFT && thread < MLA_SM90_TILE_ROWS) {
        store_top(args, place, piece, thread, -INFINITY);
    }
}

/* ------------------------------------------------------------------------------------------------
 * The kernel's frame
 * ---------------------------------------------------------------------------------------------- */

/*
 * Q is fetched by the last producer warp, as soon as the consumers have read the one before. The
 * warp must not wait for that: it would stop filling the K buffers, which lead by two blocks. So it
 * keeps in mind whose Q is wanted and looks again whenever it has the time.
 */
__device__ __forceinline__ bool wants_q()
{
    return my_cursor().wanted >= 0; /* never in the other warps */
}

/* Whether a phase is complete, for the warp as a whole: its lanes go on together. */
__device__ __forceinline__ bool warp_sees(const uint64_t &barrier, uint32_t parity)
{
    return __any_sync(0xffffffffu, mbarrier_test_wait(smem_addr(&barrier), parity));
}

/* Fetches the wanted Q if there is room for it, or in any case once there is. */
template <bool shares_p>
__device__ __forceinline__ void fetch_q(const mla_sm90_sparse_args &args, bool in_any_case)
{
    block_cursor &at = my_cursor();
    const int32_t lane = thread_index() % 32, req = at.wanted;
    const uint32_t pieces = at.pieces + 1;
    if (in_any_case) {
        wait_for(shared().q_empty, pieces & 1);
    } else if (!warp_sees(shared().q_empty, pieces & 1)) {
        return;
    }
    cta_place place;
    place.kv_head = at.kv_head;
    place.first_row = at.first_row;
    copy_q<shares_p>(args.rows, place, req, lane);
    __syncwarp();
    if (lane == 0) {
        at.pieces = pieces;
        at.wanted = -1;
    }
    __syncwarp();
}

/* At each block: Q is wanted if a request begins with the block before the cursor's. */
template <bool shares_p> __device__ __forceinline__ void want_q(const mla_sm90_sparse_args &args)
{
    block_cursor &at = my_cursor();
    if (at.opened >= 0 && thread_index() / 32 % 4 == 3) {
        if (wants_q()) {
            fetch_q<shares_p>(args, true);
        }
        __syncwarp();
        if (thread_index() % 32 == 0) {
            at.wanted = at.opened;
        }
        __syncwarp();
    }
}

/* A producer warp's wait for a free half of a K buffer. */
template <bool shares_p>
__device__ __forceinline__ void wait_for_room(const mla_sm90_sparse_args &args,
                                              const uint64_t &barrier, uint32_t parity)
{
    while (wants_q()) {
        fetch_q<shares_p>(args, false);
        if (warp_sees(barrier, parity)) {
            break;
        }
    }
    wait_for(barrier, parity);
}

/* The end of a producer warp's part: entries may still be on their way, of a block past the last. */
template <bool shares_p> __device__ __forceinline__ void end_part(const mla_sm90_sparse_args &args)
{
    cp_async_wait();
    if (wants_q()) {
        fetch_q<shares_p>(args, true);
    }
}

template <bool f16, class Keys>
__device__ __forceinline__ void attend_sparse(const mla_sm90_sparse_args &args)
{
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&args.rows.q_map);
    }
    init_barriers<Keys>();
    /* All of this overlapped the launch before; nothing of it read the caller's memory. */
    wait_dependencies();
    const cta_place place = find_place(args.rows);
    const int32_t role = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / WARPGROUP, 0);
    if (role != PRODUCER) {
        setmaxnreg_inc<Keys::consumer_regs>();
        if (Keys::one_code) { /* both sides run the same code, but for the seesaw itself */
            consume<f16, Keys>(args, place, role);
        } else if (role == LEFT) {
            consume<f16, Keys>(args, place, LEFT);
        } else {
            consume<f16, Keys>(args, place, RIGHT);
        }
    } else {
        setmaxnreg_dec<Keys::producer_regs>();
        Keys::produce(args, place);
        launch_dependents();
    }
    if constexpr (Keys::paired) {
        cluster_sync(); /* no CTA leaves while the other may still reach into its memory */
    }
}

#endif
