/*
 * mla.h - Multi-head Latent Attention kernels behind one C ABI.
 *
 * Copyright (c) 2026 the libmla authors. MIT licence, see LICENSE.
 *
 * C11, and usable from C++. This header is the whole public interface and its manual. It includes
 * no CUDA header: device pointers and streams are `void *`.
 *
 *
 * WHAT IT COMPUTES
 *
 * Multi-head Latent Attention keeps one row of d_qk values per token in the KV cache: 512 latent
 * values and 64 RoPE values. Every query head of a KV head reads that row as its key (all d_qk
 * values) and as its value (the first d_v = 512 of them). With q one query row and K, V the rows it
 * may see:
 *
 *     S   = q . K^T * softmax_scale
 *     out = softmax(S) . V
 *     lse = ln(sum(exp(S)))                   natural logarithm, float32
 *
 * Operations (mla_op):
 *   dense decode     every token of a paged cache, found through a block table
 *   sparse decode    chosen tokens of a pool, found through indices; FP8 or 16-bit rows
 *   sparse prefill   the same for one long prompt: each of its tokens has its own indices
 * Beside them: mla_merge() joins partial results over disjoint sets of keys, mla_pack() writes rows
 * into a cache in any format, mla_unpack() reads them back.
 *
 *
 * HOW TO CALL IT
 *
 *     mla_ctx *ctx;                                    once per device
 *     mla_ctx_create(NULL, &ctx);
 *
 *     mla_problem problem = { .struct_size = sizeof problem, .op = MLA_OP_DENSE_DECODE, ... };
 *     mla_sizes sizes = { .struct_size = sizeof sizes };
 *     mla_get_sizes(ctx, &problem, &sizes);            once per shape; never depends on lengths
 *     ... the caller allocates plan_bytes and workspace_bytes, where the tensors live ...
 *
 *     mla_plan plan = { .struct_size = sizeof plan, .buffer = ..., .buffer_bytes = ... };
 *     mla_plan_build(ctx, &problem, &lengths, &plan, stream);              once per step
 *     mla_run(ctx, &problem, &tensors, &plan, workspace, bytes, stream);   once per layer
 *
 * mla_problem says what is computed and holds no pointer; mla_tensors says where the data is. A
 * plan depends on the problem and the lengths alone, so one plan serves all layers of a step.
 *
 * A step of decoding, in this order: add the new tokens to seqlens and give them slots (a page more
 * in the block table where the last one is full); build the plan; then for each layer write the new
 * tokens' rows into that layer's cache (mla_pack()), and only after it mla_run(): a token attends
 * to itself, so its row is read. On CUDA both go to one stream.
 *
 *
 * RULES THAT HOLD EVERYWHERE
 *
 *  1. Argument structs begin with `struct_size`, which the caller sets to sizeof of the struct.
 *     Fields left out of an initialiser are zero, and zero is the default where one is named here.
 *  2. Every function that can fail returns mla_status. On failure nothing was written to any output
 *     and nothing was launched; mla_last_error() of this thread names the argument and the value
 *     seen. (MLA_ERR_DEVICE is the exception: the device failed while work was under way.)
 *  3. No call allocates memory, except mla_ctx_create(). (OpenMP's runtime starts its threads when
 *     a CPU context first computes.)
 *  4. Strides are int64_t, in elements (bytes for FP8 rows). The last dimension is contiguous. A
 *     stride array that is all zero stands for the contiguous layout of the shape given beside it.
 *  5. What is not referenced does not exist: rows past a length, pages that no block table names,
 *     block-table entries past the last page, indices past topk_length, indices outside the pool.
 *     They may hold anything, NaN included, and never change a result.
 *  6. A query row that sees no key has out = 0 and lse = -INFINITY (+INFINITY with
 *     lse_empty_pos_inf).
 *  7. The same inputs on the same context give the same bits.
 *  8. A context may be used by several threads at once, each with its own plan, workspace, outputs.
 *     After a fork() the child must not use CPU contexts of several threads if the parent has: GNU
 *     OpenMP would wait for ever.
 *  9. CPU contexts take host pointers, compute before they return and ignore `stream`. CUDA ones
 *     take device pointers, only enqueue work on `stream` (a CUstream; NULL is the legacy default
 *     stream) and can be captured in a CUDA graph. What lies in device memory (lengths, tables,
 *     indices) they cannot refuse: an impossible value there gives a wrong answer, never a fault.
 *
 * 10. Sums of products are float32 ones; the CPU takes double precision where rounding would show
 *     in a row's results. Beyond float32's range results may be infinite or NaN: where |q . k|, or
 *     256 times the sum of |V| over a row's keys, reaches 2^127. On CUDA softmax weights are
 *     rounded to dtype before they meet V: an element of out may be off by 2^-8 (fp16 2^-11) of
 *     the sum over its keys of weight * |V|, and hardly ever is by more than 2.5 times that share
 *     of the root of the sum of squares.
 *
 * Formats of FP8 rows: mla_kv_format. Alignment: on the CPU that of the element; on CUDA 16 bytes
 * for base pointers and for strides of q, kv and out.
 */
#ifndef MLA_H
#define MLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define MLA_API __attribute__((visibility("default")))
#else
#define MLA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. mla_version() gives that of the library that was loaded. */
#define MLA_VERSION_MAJOR 0
#define MLA_VERSION_MINOR 1
#define MLA_VERSION_PATCH 0

/* ----------------------------------------------------------------------------------------------
 * Status
 * -------------------------------------------------------------------------------------------- */

/* What every fallible function returns. MLA_OK is 0; values are stable across versions. */
typedef enum mla_status {
    MLA_OK = 0,
    /* An argument contradicts this manual; the call can never succeed. */
    MLA_ERR_INVALID_ARGUMENT = 1,
    /* A valid request that this backend, device or build does not offer. */
    MLA_ERR_UNSUPPORTED = 2,
    /* The plan or workspace buffer is smaller than mla_get_sizes() says. */
    MLA_ERR_BUFFER_TOO_SMALL = 3,
    /* The plan was never built, or was built for another problem or context. */
    MLA_ERR_PLAN_MISMATCH = 4,
    /* mla_ctx_create() could not allocate. */
    MLA_ERR_OUT_OF_MEMORY = 5,
    /* The device or its driver reported a failure. */
    MLA_ERR_DEVICE = 6
} mla_status;

/* The name of a status, e.g. "MLA_ERR_UNSUPPORTED"; "unknown status" for others. Never NULL. */
MLA_API const char *mla_status_name(mla_status status);

/*
 * The text of the last failure on the calling thread, e.g. "problem.h_q = 0: must be at least 1".
 * Empty before the first failure. Valid until the next failing call on the same thread; successful
 * calls leave it as it is.
 */
MLA_API const char *mla_last_error(void);

/* Version of the loaded library as major * 10000 + minor * 100 + patch. */
MLA_API int32_t mla_version(void);

/* ----------------------------------------------------------------------------------------------
 * Context
 * -------------------------------------------------------------------------------------------- */

/* Where work runs. */
typedef enum mla_backend {
    MLA_BACKEND_AUTO = 0, /* CUDA when a usable GPU is found, else the CPU */
    MLA_BACKEND_CPU = 1,
    MLA_BACKEND_CUDA = 2
} mla_backend;

/*
 * Instruction sets of the CPU backend, one bit each. A context uses the best one that its mask
 * allows, that the processor and the operating system offer and that serves the problem at hand.
 */
typedef enum mla_isa {
    MLA_ISA_REFERENCE = 1u << 0,   /* scalar C, double accumulation: the specification, slow */
    MLA_ISA_PORTABLE = 1u << 1,    /* C without intrinsics, for any processor */
    MLA_ISA_AVX2 = 1u << 2,        /* AVX2, FMA and F16C */
    MLA_ISA_AVX512 = 1u << 3,      /* AVX-512 F, BW, DQ, VL */
    MLA_ISA_AVX512_BF16 = 1u << 4, /* AVX512-BF16, VBMI: bf16 products, FP32 accumulation */
    MLA_ISA_AMX_BF16 = 1u << 5     /* AMX tiles: bf16 products, FP32 accumulation */
} mla_isa;

/* The name of one instruction set, e.g. "avx512_bf16"; "unknown" for other values. Never NULL. */
MLA_API const char *mla_isa_name(mla_isa isa);

typedef struct mla_ctx mla_ctx;

/* How to make a context. All zero (or a NULL pointer to it) gives the default. */
typedef struct mla_ctx_params {
    size_t struct_size;
    /* Default: MLA_BACKEND_AUTO. */
    mla_backend backend;
    /* CUDA device ordinal, default 0. The CPU has device 0 only. */
    int32_t device;
    /* CPU threads, at most 4096. Default 0: OpenMP's own choice (OMP_NUM_THREADS, else all
     * cores). */
    int32_t num_threads;
    /* CPU: OR of the mla_isa bits that may be used. Default 0: all. The environment variable
     * MLA_CPU_ISA, a comma-separated list of mla_isa_name()s, restricts it further. The
     * reference is used only when the mask leaves nothing else. */
    uint32_t isa_mask;
} mla_ctx_params;

/*
 * Makes a context. `params` may be NULL. A CUDA context retains the device's primary context,
 * shares it with any other user of the runtime API or PyTorch, and leaves the thread's current
 * context as it was.
 *
 * Errors: INVALID_ARGUMENT (ctx NULL, unknown backend or ISA bit, number out of range), UNSUPPORTED
 * (no such device, no driver, GPU not of compute capability 9.0, no ISA left), OUT_OF_MEMORY,
 * DEVICE. On failure *ctx is set to NULL.
 */
MLA_API mla_status mla_ctx_create(const mla_ctx_params *params, mla_ctx **ctx);

/* Destroys a context; NULL is allowed. No call may be using it. Enqueued GPU work may still run. */
MLA_API void mla_ctx_destroy(mla_ctx *ctx);

/* What a context runs on. Strings are NUL-terminated. */
typedef struct mla_info {
    size_t struct_size;
    mla_backend backend;    /* CPU or CUDA, never AUTO */
    int32_t device;         /* as in mla_ctx_params */
    char device_name[128];  /* the processor's or GPU's own name */
    int32_t num_threads;    /* CPU: threads in use */
    uint32_t isa_available; /* CPU: what processor, system and build offer, before any mask */
    uint32_t isa_allowed;   /* CPU: what this context may use */
    mla_isa isa_used;       /* CPU: what bf16 problems use */
    int32_t num_sms;        /* CUDA: multiprocessors */
    int32_t driver_version; /* CUDA: as cuDriverGetVersion() gives it, e.g. 13000 */
    int64_t memory_bytes;   /* CUDA: total device memory */
} mla_info;

/* Fills *info. Errors: INVALID_ARGUMENT. */
MLA_API mla_status mla_ctx_get_info(const mla_ctx *ctx, mla_info *info);

/*
 * The number of devices of a backend: 1 for the CPU; the GPUs that CUDA's driver shows, supported
 * or not. Errors: INVALID_ARGUMENT; UNSUPPORTED with the reason, *count = 0, when the backend was
 * not built in or its driver is missing.
 */
MLA_API mla_status mla_device_count(mla_backend backend, int32_t *count);

/* ----------------------------------------------------------------------------------------------
 * The problem: what is computed
 * -------------------------------------------------------------------------------------------- */

typedef enum mla_op {
    MLA_OP_DENSE_DECODE = 1,
    MLA_OP_SPARSE_DECODE = 2,
    MLA_OP_SPARSE_PREFILL = 3
} mla_op;

typedef enum mla_dtype {
    MLA_DTYPE_BF16 = 1,
    MLA_DTYPE_F16 = 2,
    MLA_DTYPE_F32 = 3 /* mla_merge() only */
} mla_dtype;

/*
 * How a token's row lies in the cache.
 *
 * MLA_KV_NATIVE: d_qk values of the problem's dtype.
 *
 * MLA_KV_FP8_656 (DeepSeek V3.2; d_qk 576, h_kv 1), 656 bytes a token:
 *     bytes   0 - 511   512 float8 e4m3fn latent values
 *     bytes 512 - 527   four float32 scales, one for each 128 latent values; value = e4m3 * scale
 *     bytes 528 - 655   64 bf16 RoPE values
 *   Readers apply any float32 scale as it is, and a scale of 0 gives 0. mla_pack() writes the scale
 *   2^ceil(log2(max(amax / 448, 1e-4))). CUDA kernels round value * scale to bf16, which changes
 *   nothing where the scale is a power of two.
 *
 * MLA_KV_FP8_584 (DeepSeek V4, "MODEL1"; d_qk 512, h_kv 1), 584 bytes a token. A page of n tokens:
 *     n rows of 576 bytes: 448 float8 e4m3fn values, 64 bf16 RoPE values
 *     n rows of 8 bytes: seven e8m0 scales (2^(byte - 127)), one for each 64 e4m3 values, one pad
 *     padding to a multiple of 576 bytes: 576 * ceil(584 * n / 576) bytes in all
 *   V is all 512 values. An e8m0 byte of 255 is NaN.
 */
typedef enum mla_kv_format {
    MLA_KV_NATIVE = 0,
    MLA_KV_FP8_656 = 1,
    MLA_KV_FP8_584 = 2
} mla_kv_format;

/*
 * What is computed. All counts are numbers of things, not bytes. Query heads share KV heads in
 * order: query head i reads KV head i / (h_q / h_kv).
 */
typedef struct mla_problem {
    size_t struct_size;
    mla_op op;
    /* Of q and out, and of the cache when kv_format is MLA_KV_NATIVE: BF16 or F16. */
    mla_dtype dtype;
    /* Default: MLA_KV_NATIVE. */
    mla_kv_format kv_format;
    /* Requests, 1 to 2^31 - 1. Sparse prefill: 1. */
    int64_t batch;
    /* Query tokens of each request, >= 1. */
    int64_t s_q;
    /* Query heads, >= 1. */
    int64_t h_q;
    /* KV heads; divides h_q, at most 2^20. 1 with FP8 rows. */
    int64_t h_kv;
    /* Values of a key: 576 or 512. */
    int64_t d_qk;
    /* Values of a value row, the first ones of the key: 512. */
    int64_t d_v;
    /* Tokens of a page, >= 1, a power of two or not. CUDA's dense decode takes 8, 16, 32 and
     * multiples of 64, everything else takes any. */
    int64_t page_size;
    /* Sparse: indices of each query token, >= 1. Dense: 0. */
    int64_t topk;
    /* Sparse decode with a second pool: its page size and its indices of each query token. Else
     * 0. */
    int64_t extra_page_size;
    int64_t extra_topk;
    /* Default 0: 1 / sqrt(d_qk). Between -2^127 and 2^127. To weigh all keys alike, pass any value
     * below 1e-45, which float32 rounds to zero. A model with absorbed weights keeps the scale it
     * was trained with, which goes by the width of its heads before absorption: 1 / sqrt(d_nope +
     * d_rope), for DeepSeek V3 1 / sqrt(128 + 64) and not 1 / sqrt(576), times mscale^2 where YaRN
     * stretches the context. */
    double softmax_scale;
    /* Pieces that the KV is cut into, at most 65536. Default 0: chosen for the device. */
    int32_t num_parts;
    /* Dense: query token t of s_q sees keys 0 ... seqlen - s_q + t. */
    bool causal;
    /* A request's bits do not depend on its batch mates: requests are never split. */
    bool batch_invariant;
    /* lse of a row without keys is +INFINITY, FlashMLA's convention, instead of -INFINITY. */
    bool lse_empty_pos_inf;
} mla_problem;

/*
 * MLA_OK when mla_run() can compute the problem on this context; else INVALID_ARGUMENT for a
 * problem that contradicts this manual, UNSUPPORTED for one that this backend does not offer, with
 * the reason in mla_last_error().
 */
MLA_API mla_status mla_supports(const mla_ctx *ctx, const mla_problem *problem);

/* Bytes that the caller must provide. They depend on problem and context, never on lengths. */
typedef struct mla_sizes {
    size_t struct_size;
    size_t plan_bytes;
    size_t workspace_bytes; /* may be 0 */
} mla_sizes;

/*
 * Fills *sizes. Both buffers are 16-byte aligned and live where the tensors live. A workspace
 * serves one mla_run() at a time; it needs no initialisation and keeps nothing between calls.
 *
 * Errors: as mla_supports().
 */
MLA_API mla_status mla_get_sizes(const mla_ctx *ctx, const mla_problem *problem, mla_sizes *sizes);

/* ----------------------------------------------------------------------------------------------
 * The plan: how the work is cut
 * -------------------------------------------------------------------------------------------- */

/* Keys are counted in blocks of this many tokens of one request; the last block may be shorter. */
enum { MLA_BLOCK_TOKENS = 64 };

/*
 * The lengths that a plan is built from, int32, where the tensors live. Each pointer is NULL when
 * the operation does not use it.
 */
typedef struct mla_lengths {
    size_t struct_size;
    /* Dense decode, [batch]: tokens of each request, those of its s_q queries included, >= 0. */
    const int32_t *seqlens;
    /* Sparse, [batch] in decode and [s_q] in prefill: how many of the topk indices count,
     * clamped to 0 ... topk. NULL: all of them. */
    const int32_t *topk_length;
    /* Sparse decode, [batch]: the same for the second pool. */
    const int32_t *extra_topk_length;
} mla_lengths;

/*
 * A plan. The caller sets the first three fields; mla_plan_build() fills the others and the buffer.
 * The struct lives on the host, the buffer where the tensors live. The buffer holds no pointers, so
 * its bytes may be copied: between devices of one kind, or to the host to be looked at.
 */
typedef struct mla_plan {
    size_t struct_size;
    void *buffer;        /* 16-byte aligned */
    size_t buffer_bytes; /* at least mla_sizes.plan_bytes */
    mla_problem problem; /* what the plan was built for; problem.struct_size is 0 before */
    uint64_t context_id; /* kind of context it was built on (GPU, or number of threads); 0 before */
} mla_plan;

/*
 * Builds the schedule of a batch. May be called again on the same plan with other lengths. Under
 * CUDA it is enqueued on `stream` and may be part of a captured graph: a replay then rebuilds the
 * plan from the lengths that are in memory at that time.
 *
 * Errors: INVALID_ARGUMENT (on the CPU also a negative length), UNSUPPORTED, BUFFER_TOO_SMALL,
 * DEVICE.
 */
MLA_API mla_status mla_plan_build(const mla_ctx *ctx, const mla_problem *problem,
                                  const mla_lengths *lengths, mla_plan *plan, void *stream);

/*
 * Declares that plan->buffer holds, or will hold when the stream gets there, a copy of the buffer
 * of a plan built for `problem` on a context of the same kind. Fills the host fields, touches no
 * buffer.
 *
 * Errors: as mla_plan_build().
 */
MLA_API mla_status mla_plan_attach(const mla_ctx *ctx, const mla_problem *problem, mla_plan *plan);

/*
 * One part of a schedule: from block begin_block of plan request begin_req up to, not including,
 * block end_block of end_req. Plan requests are the requests in dense decode, and the query
 * tokens (request * s_q + token) in sparse operations, where each has its own keys. An idle part
 * begins where it ends.
 */
typedef struct mla_plan_part {
    int64_t begin_req;
    int64_t end_req;
    int32_t begin_block;
    int32_t end_block;
    /* When this part holds the first piece of a request that later parts continue: the number of
     * consecutive parts, from this one, that the request spans, idle ones among them. Else 0. */
    int32_t num_splits;
    int32_t num_blocks;
} mla_plan_part;

/*
 * Reads part `part_idx` of a plan whose buffer is host memory (of a CUDA plan: of a copy). `part`
 * and `num_parts` may be NULL; *num_parts becomes the number of parts.
 *
 * Errors: INVALID_ARGUMENT (part_idx out of range), PLAN_MISMATCH (the buffer holds no plan).
 */
MLA_API mla_status mla_plan_get_part(const mla_plan *plan, int64_t part_idx, mla_plan_part *part,
                                     int64_t *num_parts);

/* ----------------------------------------------------------------------------------------------
 * The tensors: where the data is, and the run
 * -------------------------------------------------------------------------------------------- */

/*
 * A pool of pages of KV rows, [num_pages, page_size, h_kv, d_qk], in the problem's kv_format.
 * Slot s is row s % page_size of page s / page_size. The kv tensor of sparse prefill, [s_kv,
 * h_kv, d_qk], is a pool of s_kv pages of size 1.
 */
typedef struct mla_pool {
    /* May be NULL when num_pages is 0. */
    const void *data;
    int64_t num_pages;
    /* Page, token, head. Native rows: all three or none; a head stride of 0 beside others means
     * heads that share their rows. FP8 rows, in bytes: the head stride is ignored; the token
     * stride is 0 (contiguous) or, with 656-byte rows, at least 656; a page stride of 0 is the
     * contiguous one. mla_page_bytes() gives the bytes of a page. */
    int64_t stride[3];
} mla_pool;

/*
 * Where the data is. Shapes name the slowest dimension first. Pointers are not NULL unless said so;
 * those that the operation does not use are NULL. Outputs may not overlap inputs.
 */
typedef struct mla_tensors {
    size_t struct_size;

    /* Queries, problem.dtype, [batch, s_q, h_q, d_qk]; strides of batch, token, head. */
    const void *q;
    int64_t q_stride[3];
    mla_pool kv;

    /* Dense decode. Page numbers, [batch, max_pages]; a row's stride of 0 is max_pages. May be NULL
     * when max_pages is 0. */
    const int32_t *block_table;
    int64_t block_table_stride;
    int64_t max_pages;
    /* [batch], as in mla_lengths; none may exceed max_pages * page_size. */
    const int32_t *seqlens;

    /* Sparse. Slots of the keys: decode [batch, s_q, h_kv, topk], prefill [s_q, h_kv, topk];
     * strides of batch, token, KV head. A value below 0 or beyond the pool is skipped, wherever
     * it stands. */
    const int32_t *indices;
    int64_t indices_stride[3];
    /* As in mla_lengths; may be NULL. */
    const int32_t *topk_length;

    /* Sparse decode with extra_topk > 0: a second pool in the same format and its own indices,
     * [batch, s_q, h_kv, extra_topk]. A query attends to the union of both lists. */
    mla_pool extra_kv;
    const int32_t *extra_indices;
    int64_t extra_indices_stride[3];
    const int32_t *extra_topk_length;

    /* [h_q], may be NULL. Scales out by 1 / (1 + exp(sink - lse)) and leaves lse as it is;
     * -INFINITY is no sink, +INFINITY gives 0. */
    const float *attn_sink;

    /* Result, problem.dtype, [batch, s_q, h_q, d_v]; strides of batch, token, head. */
    void *out;
    int64_t out_stride[3];
    /* [batch, s_q, h_q], may be NULL; strides of batch, token, head. */
    float *lse;
    int64_t lse_stride[3];
    /* Sparse prefill, may be NULL: the row maximum of S, [s_q, h_q], contiguous; -INFINITY for
     * a row without keys. */
    float *max_logits;
} mla_tensors;

/*
 * Computes the problem. The plan must have been built (or attached) for an equal problem,
 * softmax_scale and lse_empty_pos_inf aside, on a context of the same kind. Lengths are those the
 * plan was built from; other lengths may give a wrong answer, never a fault.
 *
 * Errors: INVALID_ARGUMENT (on the CPU also: a length that is negative or beyond the block table, a
 * referenced page outside the pool), UNSUPPORTED, BUFFER_TOO_SMALL, PLAN_MISMATCH, DEVICE.
 */
MLA_API mla_status mla_run(const mla_ctx *ctx, const mla_problem *problem,
                           const mla_tensors *tensors, const mla_plan *plan, void *workspace,
                           size_t workspace_bytes, void *stream);

/* ----------------------------------------------------------------------------------------------
 * Merge, pack, unpack
 * -------------------------------------------------------------------------------------------- */

/*
 * Results of attention over num_parts disjoint sets of keys, e.g. one of each rank of context
 * parallelism, and where the joined result goes. Strides are those of batch, token, head.
 */
typedef struct mla_merge_args {
    size_t struct_size;
    int64_t num_parts; /* 1 to 256 */
    int64_t batch, s_q, h_q, d_v;
    mla_dtype part_dtype; /* BF16, F16 or F32 */
    /* Host arrays of num_parts pointers, to [batch, s_q, h_q, d_v] and [batch, s_q, h_q]. All parts
     * share the strides. */
    const void *const *part_outs;
    const float *const *part_lses;
    int64_t part_out_stride[3];
    int64_t part_lse_stride[3];
    mla_dtype out_dtype; /* BF16, F16 or F32 */
    /* [batch, s_q, h_q, d_v]. May be one of part_outs when dtype and strides agree. */
    void *out;
    int64_t out_stride[3];
    /* [batch, s_q, h_q], may be NULL. May be one of part_lses when the strides agree. */
    float *lse;
    int64_t lse_stride[3];
    bool lse_empty_pos_inf; /* as in mla_problem, for the joined rows */
} mla_merge_args;

/*
 * lse = ln(sum_i exp(lse_i)), out = sum_i exp(lse_i - lse) * out_i. An lse_i of -INFINITY or
 * +INFINITY marks a part without keys, whose out is not read.
 *
 * Errors: INVALID_ARGUMENT, UNSUPPORTED, DEVICE.
 */
MLA_API mla_status mla_merge(const mla_ctx *ctx, const mla_merge_args *args, void *stream);

/* Rows, and the cache slots they go to or come from. */
typedef struct mla_pack_args {
    size_t struct_size;
    mla_kv_format kv_format;
    /* Of the rows, and of the cache when it is native: BF16 or F16. FP8 caches take BF16 rows. */
    mla_dtype dtype;
    int64_t num_tokens; /* >= 0 */
    int64_t h_kv;       /* 1 with FP8 rows */
    int64_t d_qk;       /* 576 or 512, as the format demands */
    int64_t page_size;
    int64_t num_pages;
    /* [num_tokens, h_kv, d_qk]; strides of token, head. mla_pack() only reads it. */
    void *rows;
    int64_t rows_stride[2];
    /* [num_pages, page_size, h_kv, d_qk] in kv_format; strides as in mla_pool. mla_unpack() only
     * reads it. */
    void *cache;
    int64_t cache_stride[3];
    /* [num_tokens]: each row's slot; a negative slot skips the row. NULL: row i has slot i.
     * mla_pack() needs them distinct. */
    const int64_t *slots;
} mla_pack_args;

/*
 * mla_pack() writes rows into a cache; e4m3 values beyond 448 * scale saturate, NaN stays NaN.
 * mla_unpack() reads them back, rounded to dtype; a skipped row is left as it was.
 *
 * Errors: INVALID_ARGUMENT (on the CPU also a slot beyond the cache), UNSUPPORTED, DEVICE.
 */
MLA_API mla_status mla_pack(const mla_ctx *ctx, const mla_pack_args *args, void *stream);
MLA_API mla_status mla_unpack(const mla_ctx *ctx, const mla_pack_args *args, void *stream);

/* Bytes of one contiguous page in a format, its padding included; 0 for impossible arguments. */
MLA_API int64_t mla_page_bytes(mla_kv_format kv_format, mla_dtype dtype, int64_t page_size,
                               int64_t h_kv, int64_t d_qk);

#ifdef __cplusplus
}
#endif
#endif /* MLA_H */
