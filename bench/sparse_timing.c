/*
 * Times sparse operations of the CUDA backend. Each query token has indices of its own; in decode
 * each request has tokens of its own, so that no two read the same row.
 */
#include "formats.h"
#include "gpu_driver.h"
#include "gpu_sparse.h"
#include "gpu_stopwatch.h"
#include "plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 64, D_V = 512, PATTERN_PAGES = 256, MOST_SETS = 40 };

typedef struct sparse_shape {
    mla_op op;
    mla_kv_format kv_format;
    int64_t b, s_q, h_q, s_kv, topk;
} sparse_shape;

#define DECODE  MLA_OP_SPARSE_DECODE
#define PREFILL MLA_OP_SPARSE_PREFILL

static const sparse_shape large_shapes[] = {
    {DECODE, MLA_KV_FP8_656, 128, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 128, 2, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 128, 1, 64, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 64, 1, 128, 32768, 32768},
    {DECODE, MLA_KV_FP8_584, 128, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_NATIVE, 128, 1, 128, 32768, 2048},
    {PREFILL, MLA_KV_NATIVE, 1, 4096, 128, 8192, 2048},
    {PREFILL, MLA_KV_NATIVE, 1, 4096, 128, 65536, 2048},
    {PREFILL, MLA_KV_NATIVE, 1, 4096, 64, 32768, 2048},
};

static const sparse_shape small_shapes[] = {
    {DECODE, MLA_KV_FP8_656, 1, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 2, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 4, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 8, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 16, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 32, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 1, 1, 16, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 4, 1, 16, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 16, 1, 16, 32768, 2048},
    {DECODE, MLA_KV_FP8_656, 1, 1, 128, 65536, 32768},
    {DECODE, MLA_KV_FP8_584, 2, 1, 128, 32768, 2048},
    {DECODE, MLA_KV_NATIVE, 2, 1, 128, 32768, 2048},
};

/*
 * One shape over several copies of the pool and sets of indices in turn, so that no run finds its
 * rows in L2 because the last ones left them there.
 */
typedef struct sparse_bench {
    const mla_ctx *ctx;
    mla_problem problem;
    mla_tensors tensors;
    buffers buffers;
    int64_t copies, copy_bytes, sets, set_elems;
    uint8_t *kv;
    int32_t *indices;
    double flops, bytes;
    cudaStream_t stream;
} sparse_bench;

static void run_sparse(void *state, int idx)
{
    sparse_bench *d = state;
    d->tensors.kv.data = d->kv + idx % d->copies * d->copy_bytes;
    d->tensors.indices = d->indices + idx % d->sets * d->set_elems;
    check_mla(mla_run(d->ctx, &d->problem, &d->tensors, &d->buffers.plan, d->buffers.workspace,
                      d->buffers.sizes.workspace_bytes, d->stream),
              "mla_run");
}

/* Pages of random rows in the shape's format, repeated to `bytes`. */
static uint8_t *device_pool(const mla_ctx *cpu, const mla_problem *problem, size_t bytes)
{
    const int64_t tokens = PAGE * PATTERN_PAGES, pages = tokens / problem->page_size;
    const size_t elems = (size_t)(tokens * problem->d_qk);
    const size_t pattern_bytes = (size_t)(pages * mla_page_bytes(problem->kv_format, problem->dtype,
                                                                 problem->page_size, 1,
                                                                 problem->d_qk));
    uint16_t *rows = malloc(elems * 2);
    uint8_t *pattern = calloc(1, pattern_bytes);
    for (size_t i = 0; i < elems; i++) {
        rows[i] = mla_f32_to_bf16(random_normal() * 0.1f);
    }
    const mla_pack_args args = {.struct_size = sizeof args,
                                .kv_format = problem->kv_format,
                                .dtype = problem->dtype,
                                .num_tokens = tokens,
                                .h_kv = 1,
                                .d_qk = problem->d_qk,
                                .page_size = problem->page_size,
                                .num_pages = pages,
                                .rows = rows,
                                .cache = pattern};
    check_mla(mla_pack(cpu, &args, NULL), "mla_pack");
    uint8_t *data = device_repeat(pattern, pattern_bytes, bytes);
    free(rows), free(pattern);
    return data;
}

/* For each query token, `topk` different slots of its request, in random order. */
static int32_t *device_indices(const sparse_shape *s, int64_t sets)
{
    const int64_t queries = s->b * s->s_q;
    int32_t *indices = malloc((size_t)(sets * queries * s->topk) * 4);
    int32_t *order = random_order(s->s_kv);
    for (int64_t i = 0; i < sets * queries; i++) {
        const int32_t first = (int32_t)(i % queries / s->s_q * s->s_kv);
        for (int64_t j = 0; j < s->topk; j++) {
            /* One step of a shuffle that goes on from whatever order there is. */
            const int64_t other = j + (int64_t)(random_bits() % (uint32_t)(s->s_kv - j));
            const int32_t slot = order[other];
            order[other] = order[j];
            order[j] = slot;
            indices[i * s->topk + j] = first + slot;
        }
    }
    int32_t *device = device_copy(indices, (size_t)(sets * queries * s->topk) * 4);
    free(order), free(indices);
    return device;
}

static mla_problem shape_problem(const sparse_shape *s, int32_t num_parts)
{
    mla_problem problem = dense_decode_problem(s->b, s->s_q, s->h_q);
    problem.op = s->op;
    problem.kv_format = s->kv_format;
    problem.d_qk = s->kv_format == MLA_KV_FP8_584 ? 512 : 576;
    problem.page_size = s->op == PREFILL ? 1 : PAGE;
    problem.topk = s->topk;
    problem.num_parts = num_parts;
    return problem;
}

static void make_sparse(const mla_ctx *ctx, const mla_ctx *cpu, const sparse_shape *s,
                        int32_t num_parts, sparse_bench *d)
{
    *d = (sparse_bench){.ctx = ctx, .problem = shape_problem(s, num_parts)};
    const mla_problem *p = &d->problem;
    const int64_t queries = s->b * s->s_q, rows = queries * s->h_q, keys = queries * s->topk;
    const int64_t page_bytes = mla_page_bytes(p->kv_format, p->dtype, p->page_size, 1, p->d_qk);
    const int64_t num_pages = s->b * s->s_kv / p->page_size;
    const double row_bytes = (double)page_bytes / (double)p->page_size;
    assert(s->topk <= s->s_kv);
    d->copy_bytes = num_pages * page_bytes;
    d->copies = 1 + (int64_t)200e6 / d->copy_bytes;
    d->sets = 1 + (int64_t)(100e6 / ((double)keys * row_bytes));
    d->sets = d->sets < MOST_SETS ? d->sets : MOST_SETS;
    d->set_elems = keys;
    d->kv = device_pool(cpu, p, (size_t)(d->copies * d->copy_bytes));
    d->indices = device_indices(s, d->sets);
    d->tensors = (mla_tensors){.struct_size = sizeof d->tensors,
                               .q = device_normals((size_t)(rows * p->d_qk), 0.1f),
                               .kv = {.data = d->kv, .num_pages = num_pages},
                               .indices = d->indices,
                               .out = device_alloc((size_t)rows * D_V * 2),
                               .lse = device_alloc((size_t)rows * 4)};
    if (s->op == PREFILL) {
        d->tensors.max_logits = device_alloc((size_t)rows * 4);
    }
    d->flops = 2.0 * (double)(s->h_q * keys) * (double)(p->d_qk + D_V);
    d->bytes = (double)keys * (row_bytes + 4) + (double)rows * (double)(p->d_qk + D_V) * 2;
    make_buffers(ctx, p, true, &d->buffers);
    run_once(ctx, p, &d->tensors, &d->buffers, NULL);
    check_cuda(cudaDeviceSynchronize(), "first run");
}

static void free_sparse(sparse_bench *d)
{
    cudaFree(d->kv), cudaFree(d->indices), cudaFree((void *)(uintptr_t)d->tensors.q);
    cudaFree(d->tensors.out), cudaFree(d->tensors.lse), cudaFree(d->tensors.max_logits);
    free_buffers(&d->buffers, true);
}

static void name_shape(const sparse_shape *s, char *name, size_t size)
{
    static const char *const formats[] = {"bf16", "656", "584"};
    if (s->op == PREFILL) {
        snprintf(name, size, "prefill s_q%lld h_q%lld kv%lld k%lld", (long long)s->s_q,
                 (long long)s->h_q, (long long)s->s_kv, (long long)s->topk);
    } else {
        snprintf(name, size, "%s b%lld s_q%lld h_q%lld k%lld", formats[s->kv_format],
                 (long long)s->b, (long long)s->s_q, (long long)s->h_q, (long long)s->topk);
    }
}

/* Whether the filter has a shape with this name. */
static bool wanted_shape(const sparse_shape *s, const char *filter, char *name, size_t size)
{
    name_shape(s, name, size);
    return filter == NULL || strstr(name, filter) != NULL;
}

void bench_sparse_large(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter,
                        int32_t num_parts)
{
    const yardstick beside = open_yardstick();
    print_beside_head();
    for (size_t i = 0; i < sizeof large_shapes / sizeof large_shapes[0]; i++) {
        sparse_bench d;
        char name[64];
        if (wanted_shape(&large_shapes[i], filter, name, sizeof name)) {
            random_seed(7);
            make_sparse(gpu, cpu, &large_shapes[i], num_parts, &d);
            time_beside_gemm(name, &(workload){run_sparse, &d}, d.flops, d.bytes, &beside);
            free_sparse(&d);
        }
    }
}

void bench_sparse_small(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter,
                        int32_t num_parts)
{
    print_graph_head();
    for (size_t i = 0; i < sizeof small_shapes / sizeof small_shapes[0]; i++) {
        sparse_bench d;
        char name[64];
        if (wanted_shape(&small_shapes[i], filter, name, sizeof name)) {
            random_seed(7);
            make_sparse(gpu, cpu, &small_shapes[i], num_parts, &d);
            check_cuda(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "stream");
            const double cold = time_graph(&(workload){run_sparse, &d}, d.stream);
            d.copies = d.sets = 1; /* the rows of the last call again, from L2 */
            const double warm = time_graph(&(workload){run_sparse, &d}, d.stream);
            mla_plan_header header;
            device_read(&header, d.buffers.plan.buffer, sizeof header, "plan");
            printf("%-28s %8.1f us, %8.1f with rows in L2   %d parts\n", name, cold * 1e6,
                   warm * 1e6, header.num_parts);
            fflush(stdout);
            cudaStreamDestroy(d.stream);
            free_sparse(&d);
        }
    }
}
