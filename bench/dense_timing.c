/* Times dense decode of the CUDA backend. */
#include "gpu_dense.h"
#include "gpu_driver.h"
#include "gpu_stopwatch.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_shape {
    int64_t b, s_q, h_q, s_k;
    bool causal, varied;
} bench_shape;

static const bench_shape large_shapes[] = {
    {132, 1, 128, 4096, false, false},  {132, 1, 128, 16384, false, false},
    {128, 1, 128, 4096, false, false},  {128, 1, 128, 8192, false, false},
    {128, 1, 128, 16384, false, false}, {128, 2, 128, 8192, true, false},
    {128, 1, 64, 16384, false, false},  {128, 1, 32, 16384, false, false},
    {128, 1, 16, 16384, false, false},  {128, 4, 16, 8192, true, false},
    {128, 1, 128, 8192, false, true},
};

static const bench_shape small_shapes[] = {
    {1, 1, 128, 1024, false, false},  {1, 1, 128, 4096, false, false},
    {1, 1, 128, 32768, false, false}, {1, 1, 128, 131072, false, false},
    {4, 1, 128, 4096, false, false},  {8, 1, 128, 8192, false, false},
    {16, 1, 128, 2048, false, false}, {32, 1, 128, 4096, false, false},
    {1, 1, 16, 1024, false, false},   {1, 1, 16, 4096, false, false},
    {1, 1, 16, 32768, false, false},  {1, 1, 16, 131072, false, false},
    {4, 1, 16, 4096, false, false},   {8, 1, 16, 8192, false, false},
    {16, 1, 16, 2048, false, false},  {32, 1, 16, 4096, false, false},
};

/* Dense decode over `copies` disjoint caches in turn, so that no run finds its cache in L2. */
typedef struct decode_bench {
    const mla_ctx *ctx;
    mla_problem problem;
    mla_tensors tensors;
    buffers buffers;
    int64_t copies, copy_elems;
    uint16_t *kv;
    double flops, bytes;
    cudaStream_t stream;
} decode_bench;

static void run_decode(void *state, int idx)
{
    decode_bench *d = state;
    d->tensors.kv.data = d->kv + idx % d->copies * d->copy_elems;
    check_mla(mla_run(d->ctx, &d->problem, &d->tensors, &d->buffers.plan, d->buffers.workspace,
                      d->buffers.sizes.workspace_bytes, d->stream),
              "mla_run");
}

static void make_decode(const mla_ctx *ctx, const bench_shape *s, int32_t num_parts,
                        decode_bench *d)
{
    *d = (decode_bench){.ctx = ctx, .problem = dense_decode_problem(s->b, s->s_q, s->h_q)};
    d->problem.num_parts = num_parts;
    d->problem.causal = s->causal;
    int32_t *seqlens = malloc((size_t)s->b * 4);
    int64_t tokens = 0, longest = 0;
    for (int64_t i = 0; i < s->b; i++) {
        const double length = (double)s->s_k * (1 + 0.5 * (double)random_normal());
        seqlens[i] = s->varied ? (int32_t)(length < 64 ? 64 : length) : (int32_t)s->s_k;
        tokens += seqlens[i];
        longest = seqlens[i] > longest ? seqlens[i] : longest;
    }
    const int64_t max_pages = (longest + 63) / 64, num_pages = tokens / 64 + s->b;
    int32_t *table = malloc((size_t)(s->b * max_pages) * 4), *order = random_order(num_pages);
    int64_t next = 0;
    for (int64_t i = 0; i < s->b * max_pages; i++) {
        table[i] = i % max_pages * 64 < seqlens[i / max_pages] ? order[next++] : -1;
    }
    const int64_t rows = s->b * s->s_q * s->h_q;
    d->copy_elems = num_pages * 64 * 576;
    d->copies = 1 + (int64_t)200e6 / (d->copy_elems * 2);
    d->kv = device_normals((size_t)(d->copies * d->copy_elems), 0.1f);
    d->tensors = (mla_tensors){.struct_size = sizeof d->tensors,
                               .q = device_normals((size_t)rows * 576, 0.1f),
                               .kv = {.data = d->kv, .num_pages = num_pages},
                               .block_table = device_copy(table, (size_t)(s->b * max_pages) * 4),
                               .max_pages = max_pages,
                               .seqlens = device_copy(seqlens, (size_t)s->b * 4),
                               .out = device_alloc((size_t)rows * 512 * 2),
                               .lse = device_alloc((size_t)rows * 4)};
    d->flops = 2.0 * (double)(s->h_q * s->s_q * tokens) * (576 + 512);
    d->bytes = (double)tokens * 1152 + (double)rows * (576 + 512) * 2;
    make_buffers(ctx, &d->problem, true, &d->buffers);
    run_once(ctx, &d->problem, &d->tensors, &d->buffers, NULL);
    check_cuda(cudaDeviceSynchronize(), "first run");
    free(seqlens), free(table), free(order);
}

static void free_decode(decode_bench *d)
{
    cudaFree(d->kv), cudaFree((void *)(uintptr_t)d->tensors.q);
    cudaFree((void *)(uintptr_t)d->tensors.block_table);
    cudaFree((void *)(uintptr_t)d->tensors.seqlens);
    cudaFree(d->tensors.out), cudaFree(d->tensors.lse);
    free_buffers(&d->buffers, true);
}

void bench_large(const mla_ctx *gpu, const char *filter, int32_t num_parts)
{
    const yardstick beside = open_yardstick();
    print_beside_head();
    for (size_t i = 0; i < sizeof large_shapes / sizeof large_shapes[0]; i++) {
        const bench_shape *s = &large_shapes[i];
        char name[64];
        snprintf(name, sizeof name, "b%lld s_q%lld h_q%lld s_k%lld%s%s", (long long)s->b,
                 (long long)s->s_q, (long long)s->h_q, (long long)s->s_k,
                 s->causal ? " causal" : "", s->varied ? " varied" : "");
        if (filter != NULL && strstr(name, filter) == NULL) {
            continue;
        }
        decode_bench d;
        random_seed(7);
        make_decode(gpu, s, num_parts, &d);
        time_beside_gemm(name, &(workload){run_decode, &d}, d.flops, d.bytes, &beside);
        free_decode(&d);
    }
}

/* A schedule that is built again and again. */
typedef struct plan_bench {
    const mla_ctx *ctx;
    mla_problem problem;
    mla_lengths lengths;
    buffers buffers;
    cudaStream_t stream;
} plan_bench;

static void run_plan(void *state, int idx)
{
    plan_bench *p = state;
    (void)idx;
    check_mla(mla_plan_build(p->ctx, &p->problem, &p->lengths, &p->buffers.plan, p->stream),
              "mla_plan_build");
}

void time_plans(const mla_ctx *gpu)
{
    static const int64_t batches[] = {1, 16, 128, 1024};
    print_graph_head();
    for (size_t i = 0; i < 2 * sizeof batches / sizeof batches[0]; i++) {
        const int64_t batch = batches[i / 2];
        const bool varied = i % 2 != 0;
        int32_t *seqlens = malloc((size_t)batch * 4);
        random_seed(7);
        for (int64_t j = 0; j < batch; j++) {
            seqlens[j] = varied ? (int32_t)(random_bits() % 8192) : 4096;
        }
        plan_bench p = {.ctx = gpu, .problem = dense_decode_problem(batch, 1, 128)};
        int32_t *device = device_copy(seqlens, (size_t)batch * 4);
        p.lengths = (mla_lengths){.struct_size = sizeof p.lengths, .seqlens = device};
        make_buffers(gpu, &p.problem, true, &p.buffers);
        check_cuda(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking), "stream");
        const double seconds = time_graph(&(workload){run_plan, &p}, p.stream);
        printf("plan b%-6lld %-7s %8.2f us\n", (long long)batch, varied ? "varied" : "equal",
               seconds * 1e6);
        fflush(stdout);
        cudaStreamDestroy(p.stream);
        free_buffers(&p.buffers, true);
        cudaFree(device), free(seqlens);
    }
}

void bench_small(const mla_ctx *gpu, const char *filter, int32_t num_parts)
{
    print_graph_head();
    for (size_t i = 0; i < sizeof small_shapes / sizeof small_shapes[0]; i++) {
        const bench_shape *s = &small_shapes[i];
        decode_bench d;
        char name[64];
        snprintf(name, sizeof name, "b%lld h_q%lld s_k%lld", (long long)s->b, (long long)s->h_q,
                 (long long)s->s_k);
        if (filter != NULL && strstr(name, filter) == NULL) {
            continue;
        }
        random_seed(7);
        make_decode(gpu, s, num_parts, &d);
        check_cuda(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "stream");
        const double seconds = time_graph(&(workload){run_decode, &d}, d.stream);
        mla_plan_header header;
        device_read(&header, d.buffers.plan.buffer, sizeof header, "plan");
        printf("%-22s %8.1f us   %d parts x %d columns\n", name, seconds * 1e6, header.num_parts,
               header.column_parts);
        fflush(stdout);
        cudaStreamDestroy(d.stream);
        free_decode(&d);
    }
}
