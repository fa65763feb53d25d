/*
 * Checks and times dense decode of the CUDA backend on the GPU at hand.
 *
 *   gpu_dense check [filter]   compares with the CPU backend, case by case
 *   gpu_dense plan             compares the device's schedules with the host's, byte by byte
 *   gpu_dense bench [filter [parts]]   times large batches, interleaved with cuBLAS bf16 8192^3
 *   gpu_dense small [filter [parts]]   times small ones by CUDA graphs
 *
 * Every slot, page and table entry that a case does not reference holds NaN or a wild number, and
 * outputs start as NaN.
 */
#include "gpu_driver.h"

#include "backend.h"
#include "cuda_dense.h"
#include "formats.h"
#include "mla.h"
#include "plan.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* ---- Cases ---- */

typedef enum lengths_kind {
    EQUAL,  /* all `s_k` */
    VARIED, /* uniform 0 ... 2 s_k */
    EDGES   /* around multiples of 64, with empty ones */
} lengths_kind;

typedef struct test_case {
    const char *name;
    int64_t b, s_q, h_q, h_kv, s_k, page_size;
    lengths_kind lengths;
    float std; /* of q; the cache has 0.1, for which the absolute tolerance is meant */
    int32_t num_parts;
    bool f16, causal, batch_invariant, strided, d512;
    double scale; /* 0: the default */
} test_case;

static const test_case cases[] = {
    {"smallest", 1, 1, 64, 1, 64, 64, EQUAL, 1, 1},
    {"two blocks", 1, 1, 64, 1, 128, 64, EQUAL, 1, 1},
    {"three blocks", 1, 1, 64, 1, 192, 64, EQUAL, 1, 1},
    {"long", 1, 1, 64, 1, 4096, 64, EQUAL, 1, 1},
    {"tail 1", 1, 1, 64, 1, 65, 64, EQUAL, 1, 1},
    {"tail 63", 1, 1, 64, 1, 127, 64, EQUAL, 1, 1},
    {"one token", 1, 1, 64, 1, 1, 64, EQUAL, 1, 1},
    {"empty", 3, 1, 128, 1, 0, 64, EQUAL, 1},
    {"split in 2", 1, 1, 64, 1, 4096, 64, EQUAL, 1, 2},
    {"split", 1, 1, 128, 1, 4096, 64, EQUAL, 1},
    {"split long", 1, 1, 128, 1, 32768, 64, EQUAL, 0.1f},
    {"more parts than blocks", 2, 1, 128, 1, 1000, 64, EQUAL, 1, 256},
    {"parts 3", 5, 1, 16, 1, 700, 64, VARIED, 1, 3},
    {"parts 31", 7, 1, 16, 1, 3000, 64, VARIED, 1, 31},
    {"parts 132", 7, 1, 16, 1, 3000, 64, VARIED, 1, 132},
    {"batch", 37, 1, 128, 1, 600, 64, VARIED, 1},
    {"batch f16", 37, 1, 128, 1, 600, 64, VARIED, 1, .f16 = true},
    {"edges", 64, 1, 128, 1, 200, 64, EDGES, 1},
    {"edges f16", 64, 1, 16, 1, 200, 64, EDGES, 1, .f16 = true},
    {"batch 131", 131, 1, 16, 1, 300, 64, VARIED, 1},
    {"batch 12000", 12000, 1, 1, 1, 20, 64, VARIED, 1},
    {"whole requests", 20, 1, 128, 1, 900, 64, VARIED, 1, .batch_invariant = true},
    {"page 8", 9, 1, 16, 1, 300, 8, EDGES, 1},
    {"page 16", 9, 1, 128, 1, 700, 16, VARIED, 1},
    {"page 32", 9, 1, 128, 1, 700, 32, EDGES, 1},
    {"page 128", 9, 1, 128, 1, 700, 128, VARIED, 1},
    {"page 256", 9, 1, 128, 1, 700, 256, EDGES, 1},
    {"page 192", 9, 1, 128, 1, 700, 192, VARIED, 1},
    {"strided", 9, 2, 48, 1, 500, 64, VARIED, 1, .strided = true},
    {"strided causal kv2", 5, 3, 32, 2, 500, 64, EDGES, 1, .strided = true, .causal = true},
    {"heads 1", 5, 1, 1, 1, 500, 64, VARIED, 1},
    {"heads 3", 5, 1, 3, 1, 500, 64, EDGES, 1},
    {"heads 20 causal", 5, 3, 20, 1, 500, 64, VARIED, 1, .causal = true},
    {"heads 40", 5, 2, 40, 1, 500, 64, VARIED, 1},
    {"heads 63", 5, 1, 63, 1, 500, 64, VARIED, 1},
    {"heads 65", 5, 1, 65, 1, 500, 64, VARIED, 1},
    {"heads 96", 5, 2, 96, 1, 500, 64, VARIED, 1},
    {"heads 129", 5, 1, 129, 1, 500, 64, VARIED, 1},
    {"heads 256", 3, 2, 256, 1, 500, 64, VARIED, 1},
    {"kv heads 2", 5, 1, 128, 2, 500, 64, VARIED, 1},
    {"kv heads 3", 5, 2, 15, 3, 500, 64, VARIED, 1, .causal = true},
    {"kv heads 8", 5, 4, 128, 8, 300, 64, VARIED, 1, .causal = true},
    {"causal 2", 9, 2, 128, 1, 500, 64, VARIED, 1, .causal = true},
    {"causal 4 edges", 30, 4, 16, 1, 130, 64, EDGES, 1, .causal = true},
    {"causal 17", 3, 17, 16, 1, 90, 64, EDGES, 1, .causal = true},
    {"causal 128 short", 2, 128, 8, 1, 70, 64, EQUAL, 1, .causal = true},
    {"causal 67 wide", 2, 67, 128, 1, 100, 64, EDGES, 1, .causal = true},
    {"causal f16 split", 2, 4, 16, 1, 9000, 64, VARIED, 1, .causal = true, .f16 = true},
    {"std 0.1", 5, 1, 128, 1, 2000, 64, VARIED, 0.1f},
    {"std 10", 5, 1, 128, 1, 2000, 64, VARIED, 10},
    {"std 100", 5, 1, 128, 1, 2000, 64, VARIED, 100},
    {"std 100 f16", 5, 1, 128, 1, 2000, 64, VARIED, 100, .f16 = true},
    {"std 10 f16", 5, 1, 128, 1, 2000, 64, VARIED, 10, .f16 = true},
    {"scale 0", 5, 1, 128, 1, 300, 64, EDGES, 1, .scale = 1e-50},
    {"scale negative", 5, 1, 128, 1, 300, 64, EDGES, 1, .scale = -0.1, .causal = true},
    {"d_qk 512", 5, 1, 128, 1, 700, 64, VARIED, 1, .d512 = true},
    {"std 1000", 5, 1, 128, 1, 2000, 64, VARIED, 1000},
    {"std 1000 f16", 5, 1, 128, 1, 2000, 64, VARIED, 1000, .f16 = true},
    {"columns 1024", 1, 1, 128, 1, 1024, 64, EQUAL, 10},
    {"columns 1000", 1, 1, 128, 1, 1000, 64, EQUAL, 10},
    {"columns 4096", 1, 1, 128, 1, 4096, 64, EQUAL, 1},
    {"columns 2", 2, 1, 128, 1, 700, 64, VARIED, 10},
    {"columns 3 causal", 3, 2, 16, 1, 2000, 64, VARIED, 10, .causal = true},
    {"columns 8 f16", 8, 1, 16, 1, 300, 64, EDGES, 10, .f16 = true},
    {"columns one", 1, 1, 16, 1, 60, 64, EQUAL, 10},
    {"columns empty", 2, 1, 16, 1, 0, 64, EQUAL, 10},
    {"columns page 16", 4, 1, 16, 1, 300, 16, EDGES, 10},
    {"columns strided", 3, 2, 48, 1, 500, 64, VARIED, 10, .strided = true},
    {"columns kv heads", 2, 2, 64, 4, 500, 64, VARIED, 10, .causal = true},
    {"large", 8, 1, 128, 1, 4096, 64, EQUAL, 1},
};

enum { NUM_CASES = sizeof cases / sizeof cases[0] };

/* A case's tensors, on the host and on the device. */
typedef struct case_data {
    mla_problem problem;
    int32_t *seqlens, *block_table;
    uint16_t *q, *kv;
    int64_t num_pages, max_pages, kv_page_stride, q_head_stride, out_head_stride;
    size_t q_elems, kv_elems, out_elems, lse_elems;
    int32_t *d_seqlens, *d_block_table;
    uint16_t *d_q, *d_kv, *d_out;
    float *d_lse;
} case_data;

static int32_t case_length(const test_case *c, int64_t i)
{
    static const int32_t edges[] = {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256};
    switch (c->lengths) {
    case EQUAL:
        return (int32_t)c->s_k;
    case VARIED:
        return (int32_t)(random_bits() % (uint32_t)(2 * c->s_k + 1));
    default:
        return edges[i % (int64_t)(sizeof edges / sizeof edges[0])];
    }
}

static mla_problem case_problem(const test_case *c)
{
    return (mla_problem){.struct_size = sizeof(mla_problem),
                         .op = MLA_OP_DENSE_DECODE,
                         .dtype = c->f16 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16,
                         .batch = c->b,
                         .s_q = c->s_q,
                         .h_q = c->h_q,
                         .h_kv = c->h_kv,
                         .d_qk = c->d512 ? 512 : 576,
                         .d_v = 512,
                         .page_size = c->page_size,
                         .softmax_scale = c->scale,
                         .num_parts = c->num_parts,
                         .causal = c->causal,
                         .batch_invariant = c->batch_invariant};
}

/* One page of a table: random rows for tokens below the length, NaN for the others. */
static void fill_page(const test_case *c, case_data *d, int64_t page, int64_t tokens)
{
    const int64_t d_qk = d->problem.d_qk;
    for (int64_t i = 0; i < tokens * c->h_kv * d_qk; i++) {
        d->kv[page * d->kv_page_stride + i] = mla_elem_from_f32(d->problem.dtype,
                                                                random_normal() * 0.1f);
    }
}

static void make_case(const test_case *c, case_data *d)
{
    const int64_t page_size = c->page_size;
    *d = (case_data){.problem = case_problem(c)};
    const int64_t d_qk = d->problem.d_qk;
    d->seqlens = malloc((size_t)c->b * sizeof *d->seqlens);
    int64_t longest = 0, pages = 0;
    for (int64_t i = 0; i < c->b; i++) {
        d->seqlens[i] = case_length(c, i);
        longest = d->seqlens[i] > longest ? d->seqlens[i] : longest;
        pages += (d->seqlens[i] + page_size - 1) / page_size;
    }
    d->max_pages = (longest + page_size - 1) / page_size + 2;
    d->num_pages = pages + 3;
    d->kv_page_stride = page_size * c->h_kv * d_qk + (c->strided ? 4096 : 0);
    d->kv_elems = (size_t)(d->num_pages * d->kv_page_stride);
    d->kv = malloc(d->kv_elems * 2);
    memset(d->kv, 0xff, d->kv_elems * 2);
    d->block_table = malloc((size_t)(c->b * d->max_pages) * 4);
    int32_t *order = malloc((size_t)d->num_pages * sizeof *order);
    for (int64_t i = 0; i < d->num_pages; i++) {
        const int64_t j = (int64_t)(random_bits() % (uint32_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    int64_t next = 0;
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t j = 0; j < d->max_pages; j++) {
            int32_t *entry = &d->block_table[i * d->max_pages + j];
            const int64_t left = d->seqlens[i] - j * page_size;
            if (left > 0) {
                *entry = order[next++];
                fill_page(c, d, *entry, left < page_size ? left : page_size);
            } else {
                static const int32_t wild[] = {-1, INT32_MAX, (int32_t)0xdeadbeef, 0};
                *entry = wild[random_bits() % 4];
            }
        }
    }
    free(order);
    d->q_head_stride = d_qk + (c->strided ? 64 : 0);
    d->out_head_stride = 512 + (c->strided ? 64 : 0);
    const int64_t rows = c->b * c->s_q * c->h_q;
    d->q_elems = (size_t)(rows * d->q_head_stride);
    d->q = malloc(d->q_elems * 2);
    for (size_t i = 0; i < d->q_elems; i++) {
        d->q[i] = mla_elem_from_f32(d->problem.dtype, random_normal() * c->std);
    }
    d->out_elems = (size_t)(rows * d->out_head_stride);
    d->lse_elems = (size_t)rows;
    d->d_seqlens = device_copy(d->seqlens, (size_t)c->b * 4);
    d->d_block_table = device_copy(d->block_table, (size_t)(c->b * d->max_pages) * 4);
    d->d_q = device_copy(d->q, d->q_elems * 2);
    d->d_kv = device_copy(d->kv, d->kv_elems * 2);
    d->d_out = device_alloc(d->out_elems * 2);
    d->d_lse = device_alloc(d->lse_elems * 4);
}

static void free_case(case_data *d)
{
    free(d->seqlens), free(d->block_table), free(d->q), free(d->kv);
    cudaFree(d->d_seqlens), cudaFree(d->d_block_table), cudaFree(d->d_q), cudaFree(d->d_kv);
    cudaFree(d->d_out), cudaFree(d->d_lse);
}

static mla_tensors case_tensors(const test_case *c, const case_data *d, bool device, uint16_t *out,
                                float *lse)
{
    mla_tensors t = {.struct_size = sizeof t,
                     .q = device ? d->d_q : d->q,
                     .kv = {.data = device ? d->d_kv : d->kv, .num_pages = d->num_pages},
                     .block_table = device ? d->d_block_table : d->block_table,
                     .max_pages = d->max_pages,
                     .seqlens = device ? d->d_seqlens : d->seqlens,
                     .out = out,
                     .lse = lse};
    if (c->strided) {
        const int64_t d_qk = d->problem.d_qk;
        t.kv.stride[0] = d->kv_page_stride;
        t.kv.stride[1] = c->h_kv * d_qk;
        t.kv.stride[2] = d_qk;
        t.q_stride[2] = d->q_head_stride;
        t.q_stride[1] = c->h_q * d->q_head_stride;
        t.q_stride[0] = c->s_q * t.q_stride[1];
        t.out_stride[2] = d->out_head_stride;
        t.out_stride[1] = c->h_q * d->out_head_stride;
        t.out_stride[0] = c->s_q * t.out_stride[1];
    }
    return t;
}

/* Plan and workspace of a problem on one context. */
typedef struct buffers {
    mla_plan plan;
    void *workspace;
    mla_sizes sizes;
} buffers;

static void make_buffers(const mla_ctx *ctx, const mla_problem *problem, bool device, buffers *b)
{
    *b = (buffers){.plan.struct_size = sizeof b->plan, .sizes.struct_size = sizeof b->sizes};
    check_mla(mla_get_sizes(ctx, problem, &b->sizes), "mla_get_sizes");
    b->plan.buffer_bytes = b->sizes.plan_bytes;
    b->plan.buffer = device ? device_alloc(b->sizes.plan_bytes)
                            : aligned_alloc(64, (b->sizes.plan_bytes + 63) / 64 * 64);
    if (device) {
        b->workspace = device_alloc(b->sizes.workspace_bytes);
        check_cuda(cudaMemset(b->workspace, 0xff, b->sizes.workspace_bytes), "cudaMemset");
    } else {
        b->workspace = aligned_alloc(64, (b->sizes.workspace_bytes + 127) / 64 * 64);
    }
}

static void free_buffers(buffers *b, bool device)
{
    if (device) {
        cudaFree(b->plan.buffer), cudaFree(b->workspace);
    } else {
        free(b->plan.buffer), free(b->workspace);
    }
}

static void run_once(const mla_ctx *ctx, const mla_problem *problem, const mla_tensors *t,
                     buffers *b, void *stream)
{
    const mla_lengths lengths = {.struct_size = sizeof lengths, .seqlens = t->seqlens};
    check_mla(mla_plan_build(ctx, problem, &lengths, &b->plan, stream), "mla_plan_build");
    check_mla(mla_run(ctx, problem, t, &b->plan, b->workspace, b->sizes.workspace_bytes, stream),
              "mla_run");
}

/* ---- Comparison ---- */

typedef struct difference {
    double out_relative, lse_worst, cosine;
    int64_t wrong; /* elements outside the tolerance */
} difference;

static difference compare(const test_case *c, const case_data *d, const uint16_t *got,
                          const float *got_lse, const uint16_t *want, const float *want_lse)
{
    const mla_dtype dtype = d->problem.dtype;
    double error = 0, norm = 0, dot = 0, norm_got = 0;
    difference diff = {0, 0, 0, 0};
    for (int64_t row = 0; row < c->b * c->s_q * c->h_q; row++) {
        for (int64_t i = 0; i < 512; i++) {
            const double x = mla_elem_to_f32(dtype, got[row * d->out_head_stride + i]);
            const double y = mla_elem_to_f32(dtype, want[row * d->out_head_stride + i]);
            error += (x - y) * (x - y);
            norm += y * y;
            norm_got += x * x;
            dot += x * y;
            diff.wrong += !(fabs(x - y) <= 8e-4 + 2.01 / 128 * fabs(y));
        }
        const double x = got_lse[row], y = want_lse[row];
        if (x == y) {
            continue; /* infinities too */
        }
        const double lse_error = fabs(x - y) / (1e-6 + 8.01 / 65536 * fabs(y));
        diff.wrong += !(lse_error <= 1);
        diff.lse_worst = lse_error > diff.lse_worst ? lse_error : diff.lse_worst;
    }
    diff.out_relative = norm > 0 ? sqrt(error / norm) : sqrt(error);
    diff.cosine = norm > 0 ? 1 - 2 * dot / (norm + norm_got) : 0;
    diff.wrong += !(diff.out_relative <= 4e-3) + !(diff.cosine <= 5e-6);
    return diff;
}

/* Runs a case `repeats` times on the GPU; false when two runs differ in a byte. */
static bool run_case(const mla_ctx *gpu, const test_case *c, case_data *d, uint16_t *out,
                     float *lse, int repeats)
{
    const mla_tensors t = case_tensors(c, d, true, d->d_out, d->d_lse);
    uint16_t *again = malloc(d->out_elems * 2);
    bool equal = true;
    buffers b;
    make_buffers(gpu, &d->problem, true, &b);
    for (int i = 0; i < repeats; i++) {
        check_cuda(cudaMemset(d->d_out, 0xff, d->out_elems * 2), "cudaMemset");
        check_cuda(cudaMemset(d->d_lse, 0xff, d->lse_elems * 4), "cudaMemset");
        run_once(gpu, &d->problem, &t, &b, NULL);
        check_cuda(cudaDeviceSynchronize(), c->name);
        check_cuda(
            cudaMemcpy(i == 0 ? out : again, d->d_out, d->out_elems * 2, cudaMemcpyDeviceToHost),
            "cudaMemcpy");
        equal = equal && (i == 0 || memcmp(out, again, d->out_elems * 2) == 0);
    }
    check_cuda(cudaMemcpy(lse, d->d_lse, d->lse_elems * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    free_buffers(&b, true);
    free(again);
    return equal;
}

static bool check_case(const mla_ctx *gpu, const mla_ctx *cpu, const test_case *c)
{
    case_data d;
    buffers b;
    make_case(c, &d);
    uint16_t *out = malloc(d.out_elems * 2), *want = malloc(d.out_elems * 2);
    float *lse = malloc(d.lse_elems * 4), *want_lse = malloc(d.lse_elems * 4);
    const bool equal = run_case(gpu, c, &d, out, lse, 3);
    const mla_tensors t = case_tensors(c, &d, false, want, want_lse);
    mla_problem problem = d.problem;
    problem.num_parts = 0;
    make_buffers(cpu, &problem, false, &b);
    run_once(cpu, &problem, &t, &b, NULL);
    const difference diff = compare(c, &d, out, lse, want, want_lse);
    const bool good = diff.wrong == 0 && equal;
    printf("%-4s %-24s out %.2e  cos %.1e  lse %.2f of the tolerance%s\n", good ? "ok" : "BAD",
           c->name, diff.out_relative, diff.cosine, diff.lse_worst,
           equal ? "" : "  two runs differ");
    if (diff.wrong > 0) {
        printf("     %lld values outside the tolerance\n", (long long)diff.wrong);
    }
    fflush(stdout);
    free_buffers(&b, false);
    free(out), free(want), free(lse), free(want_lse);
    free_case(&d);
    return good;
}

/* A captured plan and run, replayed after the lengths changed in place. */
static bool check_graph(const mla_ctx *gpu, const mla_ctx *cpu)
{
    const test_case c = {"graph replay", 37, 1, 128, 1, 600, 64, VARIED, 1};
    case_data d;
    buffers b, cpu_b;
    make_case(&c, &d);
    uint16_t *out = malloc(d.out_elems * 2), *want = malloc(d.out_elems * 2);
    float *lse = malloc(d.lse_elems * 4), *want_lse = malloc(d.lse_elems * 4);
    const mla_tensors t = case_tensors(&c, &d, true, d.d_out, d.d_lse);
    const mla_tensors cpu_t = case_tensors(&c, &d, false, want, want_lse);
    make_buffers(gpu, &d.problem, true, &b);
    make_buffers(cpu, &d.problem, false, &cpu_b);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    run_once(gpu, &d.problem, &t, &b, stream);
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    bool good = true;
    for (int round = 0; round < 4; round++) {
        for (int64_t i = 0; i < c.b; i++) {
            /* Shorter lengths only: longer ones would meet the poison. */
            d.seqlens[i] = round == 2 ? 0 : d.seqlens[i] - (round > 0 ? d.seqlens[i] / 3 : 0);
        }
        check_cuda(cudaMemcpy(d.d_seqlens, d.seqlens, (size_t)c.b * 4, cudaMemcpyHostToDevice),
                   "cudaMemcpy");
        check_cuda(cudaMemset(d.d_out, 0xff, d.out_elems * 2), "cudaMemset");
        check_cuda(cudaDeviceSynchronize(), "sync");
        check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        check_cuda(cudaStreamSynchronize(stream), "graph");
        check_cuda(cudaMemcpy(out, d.d_out, d.out_elems * 2, cudaMemcpyDeviceToHost), "copy");
        check_cuda(cudaMemcpy(lse, d.d_lse, d.lse_elems * 4, cudaMemcpyDeviceToHost), "copy");
        run_once(cpu, &d.problem, &cpu_t, &cpu_b, NULL);
        good = good && compare(&c, &d, out, lse, want, want_lse).wrong == 0;
    }
    printf("%-4s %s\n", good ? "ok" : "BAD", c.name);
    return good;
}

static int check_all(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter)
{
    int passed = 0, failed = 0, skipped = 0;
    for (int i = 0; i < NUM_CASES; i++) {
        if (filter != NULL && strstr(cases[i].name, filter) == NULL) {
            skipped++;
            continue;
        }
        random_state = 0x9e3779b97f4a7c15ull + (uint64_t)i;
        check_case(gpu, cpu, &cases[i]) ? passed++ : failed++;
    }
    if (filter == NULL) {
        check_graph(gpu, cpu) ? passed++ : failed++;
    }
    printf("dense: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}

/* ---- Plans ---- */

static bool check_plan(const mla_ctx *gpu, const mla_problem *problem, int64_t longest, bool equal)
{
    mla_shape shape;
    buffers b;
    check_mla(mla_shape_init(problem, &shape), "mla_shape_init");
    make_buffers(gpu, problem, true, &b);
    int32_t *seqlens = malloc((size_t)problem->batch * 4);
    for (int64_t i = 0; i < problem->batch; i++) {
        seqlens[i] = equal ? (int32_t)longest : (int32_t)(random_bits() % (uint32_t)(longest + 1));
    }
    int32_t *d_seqlens = device_copy(seqlens, (size_t)problem->batch * 4);
    mla_lengths lengths = {.struct_size = sizeof lengths, .seqlens = d_seqlens};
    void *got = malloc(b.sizes.plan_bytes), *want = calloc(1, b.sizes.plan_bytes);
    check_mla(mla_plan_build(gpu, problem, &lengths, &b.plan, NULL), "mla_plan_build");
    check_cuda(cudaMemcpy(got, b.plan.buffer, b.sizes.plan_bytes, cudaMemcpyDeviceToHost), "plan");
    const mla_cut_rule rule = mla_cuda_cut_rule(gpu, &shape);
    lengths.seqlens = seqlens;
    mla_plan_cut(&shape, &lengths, &rule, want);
    const bool good = memcmp(got, want, b.sizes.plan_bytes) == 0;
    if (!good) {
        printf("BAD  plan b %lld h_q %lld longest %lld parts %d\n", (long long)problem->batch,
               (long long)problem->h_q, (long long)longest, problem->num_parts);
    }
    cudaFree(d_seqlens), free(seqlens), free(got), free(want);
    free_buffers(&b, true);
    return good;
}

static int check_plans(const mla_ctx *gpu)
{
    static const int64_t batches[] = {1, 2, 3, 37, 128, 131, 132, 133, 1023, 1024, 1025, 70000};
    static const int64_t longest[] = {0, 1, 100, 4096, 100000};
    static const int32_t parts[] = {0, 1, 2, 31, 132, 256, 5000};
    int passed = 0, failed = 0;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        for (size_t j = 0; j < 5 * 2; j++) {
            for (size_t k = 0; k < 7 * 2; k++) {
                mla_problem problem = {.struct_size = sizeof problem,
                                       .op = MLA_OP_DENSE_DECODE,
                                       .dtype = MLA_DTYPE_BF16,
                                       .batch = batches[i],
                                       .s_q = 1,
                                       .h_q = k % 2 ? 128 : 16,
                                       .h_kv = 1,
                                       .d_qk = 576,
                                       .d_v = 512,
                                       .page_size = 64,
                                       .num_parts = parts[k / 2],
                                       .batch_invariant = j == 3};
                check_plan(gpu, &problem, longest[j / 2], j % 2) ? passed++ : failed++;
            }
        }
    }
    printf("plan: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}

/* ---- Timing ---- */

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

/* cuBLAS, bf16 8192^3, by its C interface; absent when the library is. */
typedef struct cublas {
    void *handle;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    void *a, *b, *c;
} cublas;

enum { GEMM_SIZE = 8192 };
static const double gemm_flops = 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE;

typedef struct nvml {
    void *device;
    int (*clock)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
} nvml;

static void load_symbol(void *library, const char *name, void *pointer)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    memcpy(pointer, &address, sizeof address);
}

static uint16_t *device_normals(size_t elems, float std)
{
    enum { PATTERN = 1 << 22 };
    uint16_t *host = malloc((size_t)PATTERN * 2), *data = device_alloc(elems * 2);
    for (size_t i = 0; i < PATTERN; i++) {
        host[i] = mla_f32_to_bf16(random_normal() * std);
    }
    for (size_t i = 0; i < elems; i += PATTERN) {
        const size_t count = elems - i < PATTERN ? elems - i : PATTERN;
        check_cuda(cudaMemcpy(data + i, host, count * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    free(host);
    return data;
}

static cublas open_cublas(void)
{
    cublas blas = {0};
    int (*create)(void **);
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    load_symbol(library, "cublasCreate_v2", &create);
    load_symbol(library, "cublasGemmEx", &blas.gemm);
    if (create == NULL || blas.gemm == NULL || create(&blas.handle) != 0) {
        printf("no cuBLAS: %s\n", dlerror());
        return (cublas){0};
    }
    blas.a = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    blas.b = device_normals((size_t)GEMM_SIZE * GEMM_SIZE, 1);
    blas.c = device_alloc((size_t)GEMM_SIZE * GEMM_SIZE * 2);
    return blas;
}

static void run_gemm(const cublas *blas)
{
    enum { TRANSPOSE = 1, PLAIN = 0, BF16 = 14, FP32_COMPUTE = 68, DEFAULT_ALGO = -1 };
    const float one = 1, zero = 0;
    const int n = GEMM_SIZE;
    if (blas->gemm(blas->handle, TRANSPOSE, PLAIN, n, n, n, &one, blas->a, BF16, n, blas->b, BF16,
                   n, &zero, blas->c, BF16, n, FP32_COMPUTE, DEFAULT_ALGO) != 0) {
        printf("cublasGemmEx failed\n");
        exit(2);
    }
}

static nvml open_nvml(void)
{
    nvml ml = {0};
    int (*init)(void), (*by_index)(unsigned, void **);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    load_symbol(library, "nvmlInit_v2", &init);
    load_symbol(library, "nvmlDeviceGetHandleByIndex_v2", &by_index);
    load_symbol(library, "nvmlDeviceGetClockInfo", &ml.clock);
    load_symbol(library, "nvmlDeviceGetPowerUsage", &ml.power);
    if (init == NULL || by_index == NULL || init() != 0 || by_index(0, &ml.device) != 0) {
        ml.device = NULL;
    }
    return ml;
}

/* What is timed: one launch sequence, and how many of them a measurement repeats. */
typedef struct workload {
    void (*run)(void *state, int idx);
    void *state;
} workload;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct timing {
    double seconds;   /* a run, mean over the measured runs */
    unsigned mhz, mw; /* while they ran */
} timing;

/* Back to back for about `warm` seconds, then `measure` seconds timed by events. */
static timing time_back_to_back(const workload *w, double warm, double measure, const nvml *ml)
{
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    timing result = {0};
    double t0 = now();
    int runs = 0;
    do {
        w->run(w->state, runs++);
        if (runs % 4 == 0) {
            check_cuda(cudaDeviceSynchronize(), "warm-up");
        }
    } while (now() - t0 < warm);
    check_cuda(cudaDeviceSynchronize(), "warm-up");
    t0 = now();
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "one run");
    int count = (int)(measure / (now() - t0)) + 1;
    cudaEventRecord(begin, NULL);
    for (int i = 0; i < count; i++) {
        w->run(w->state, i);
        if (i == count * 3 / 4 && ml->device != NULL) {
            ml->clock(ml->device, 1, &result.mhz);
            ml->power(ml->device, &result.mw);
        }
    }
    cudaEventRecord(end, NULL);
    check_cuda(cudaEventSynchronize(end), "timed runs");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    result.seconds = ms * 1e-3 / count;
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return result;
}

/* On a chip that idled: the median of single runs. */
static double time_burst(const workload *w)
{
    enum { RUNS = 7 };
    float ms[RUNS];
    struct timespec idle = {0, 400000000};
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    w->run(w->state, 0);
    check_cuda(cudaDeviceSynchronize(), "burst");
    nanosleep(&idle, NULL);
    w->run(w->state, 0);
    for (int i = 0; i < RUNS; i++) {
        cudaEventRecord(begin, NULL);
        w->run(w->state, i + 1);
        cudaEventRecord(end, NULL);
        check_cuda(cudaEventSynchronize(end), "burst");
        cudaEventElapsedTime(&ms[i], begin, end);
    }
    for (int i = 1; i < RUNS; i++) {
        for (int j = i; j > 0 && ms[j] < ms[j - 1]; j--) {
            const float swap = ms[j];
            ms[j] = ms[j - 1];
            ms[j - 1] = swap;
        }
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return ms[RUNS / 2] * 1e-3;
}

static int32_t fixed_parts; /* of every plan that is timed; 0: the library's choice */

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

static void run_gemm_bench(void *state, int idx)
{
    (void)idx;
    run_gemm(state);
}

static void make_decode(const mla_ctx *ctx, const bench_shape *s, decode_bench *d)
{
    *d = (decode_bench){.ctx = ctx,
                        .problem = {.struct_size = sizeof d->problem,
                                    .op = MLA_OP_DENSE_DECODE,
                                    .dtype = MLA_DTYPE_BF16,
                                    .batch = s->b,
                                    .s_q = s->s_q,
                                    .h_q = s->h_q,
                                    .h_kv = 1,
                                    .d_qk = 576,
                                    .d_v = 512,
                                    .page_size = 64,
                                    .num_parts = fixed_parts,
                                    .causal = s->causal}};
    int32_t *seqlens = malloc((size_t)s->b * 4);
    int64_t tokens = 0, longest = 0;
    for (int64_t i = 0; i < s->b; i++) {
        const double length = (double)s->s_k * (1 + 0.5 * (double)random_normal());
        seqlens[i] = s->varied ? (int32_t)(length < 64 ? 64 : length) : (int32_t)s->s_k;
        tokens += seqlens[i];
        longest = seqlens[i] > longest ? seqlens[i] : longest;
    }
    const int64_t max_pages = (longest + 63) / 64, num_pages = tokens / 64 + s->b;
    int32_t *table = malloc((size_t)(s->b * max_pages) * 4), *order = malloc((size_t)num_pages * 4);
    for (int64_t i = 0; i < num_pages; i++) {
        const int64_t j = (int64_t)(random_bits() % (uint32_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
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

static void bench_large(const mla_ctx *gpu, const char *filter)
{
    const cublas blas = open_cublas();
    const nvml ml = open_nvml();
    const workload gemm = {run_gemm_bench, (void *)(uintptr_t)&blas};
    printf("burst: median of 7 runs after 0.4 s idle; sustained: after 0.5 s back to back; ratios "
           "to cuBLAS bf16 8192^3 before and after\n");
    printf("%-34s %9s %7s %6s | %9s %7s %6s %6s %5s %6s\n", "shape", "burst us", "TFLOP/s", "ratio",
           "sust. us", "TFLOP/s", "GB/s", "ratio", "MHz", "W");
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
        random_state = 7;
        make_decode(gpu, s, &d);
        const workload decode = {run_decode, &d};
        double gemm_rate[2] = {0}, burst_gemm = 0;
        if (blas.handle != NULL) {
            burst_gemm = gemm_flops / time_burst(&gemm);
        }
        const double burst = time_burst(&decode);
        if (blas.handle != NULL) {
            gemm_rate[0] = gemm_flops / time_back_to_back(&gemm, 0.4, 0.2, &ml).seconds;
        }
        const timing t = time_back_to_back(&decode, 0.5, 0.3, &ml);
        if (blas.handle != NULL) {
            gemm_rate[1] = gemm_flops / time_back_to_back(&gemm, 0.4, 0.2, &ml).seconds;
        }
        const double gemm_mean = (gemm_rate[0] + gemm_rate[1]) / 2;
        printf("%-34s %9.1f %7.1f %6.3f | %9.1f %7.1f %6.0f %6.3f %5u %6.0f  cuBLAS %.0f %.0f\n",
               name, burst * 1e6, d.flops / burst * 1e-12,
               burst_gemm > 0 ? d.flops / burst / burst_gemm : 0, t.seconds * 1e6,
               d.flops / t.seconds * 1e-12, d.bytes / t.seconds * 1e-9,
               gemm_mean > 0 ? d.flops / t.seconds / gemm_mean : 0, t.mhz, t.mw * 1e-3,
               burst_gemm * 1e-12, gemm_mean * 1e-12);
        fflush(stdout);
        free_decode(&d);
    }
}

/* Latency: a graph of 20 calls over rotating caches, replayed; microseconds a call. */
static void bench_small(const mla_ctx *gpu, const char *filter)
{
    enum { CALLS = 20, REPLAYS = 15 };
    printf("small batches: us a call, median of %d replays of a CUDA graph of %d calls\n", REPLAYS,
           CALLS);
    for (size_t i = 0; i < sizeof small_shapes / sizeof small_shapes[0]; i++) {
        const bench_shape *s = &small_shapes[i];
        decode_bench d;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaEvent_t begin, end;
        float ms[REPLAYS];
        char name[64];
        snprintf(name, sizeof name, "b%lld h_q%lld s_k%lld", (long long)s->b, (long long)s->h_q,
                 (long long)s->s_k);
        if (filter != NULL && strstr(name, filter) == NULL) {
            continue;
        }
        random_state = 7;
        make_decode(gpu, s, &d);
        check_cuda(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "stream");
        cudaEventCreate(&begin), cudaEventCreate(&end);
        check_cuda(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeGlobal), "capture");
        for (int call = 0; call < CALLS; call++) {
            run_decode(&d, call);
        }
        check_cuda(cudaStreamEndCapture(d.stream, &graph), "capture");
        check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
        for (int replay = 0; replay < REPLAYS; replay++) {
            cudaEventRecord(begin, d.stream);
            check_cuda(cudaGraphLaunch(exec, d.stream), "cudaGraphLaunch");
            cudaEventRecord(end, d.stream);
            check_cuda(cudaEventSynchronize(end), "graph");
            cudaEventElapsedTime(&ms[replay], begin, end);
            for (int j = replay; j > 0 && ms[j] < ms[j - 1]; j--) {
                const float swap = ms[j];
                ms[j] = ms[j - 1];
                ms[j - 1] = swap;
            }
        }
        mla_plan_header header;
        check_cuda(
            cudaMemcpy(&header, d.buffers.plan.buffer, sizeof header, cudaMemcpyDeviceToHost),
            "plan");
        printf("%-22s %8.1f us   %d parts x %d columns\n", name, ms[REPLAYS / 2] * 1e3 / CALLS,
               header.num_parts, header.column_parts);
        fflush(stdout);
        cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(d.stream);
        cudaEventDestroy(begin), cudaEventDestroy(end);
        free_decode(&d);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check", *filter = argc > 2 ? argv[2] : NULL;
    mla_ctx *gpu, *cpu;
    fixed_parts = argc > 3 ? atoi(argv[3]) : 0;
    open_contexts(&gpu, &cpu);
    int failed = 0;
    if (strcmp(mode, "check") == 0) {
        failed = check_all(gpu, cpu, filter);
    } else if (strcmp(mode, "plan") == 0) {
        failed = check_plans(gpu);
    } else if (strcmp(mode, "bench") == 0) {
        bench_large(gpu, filter);
    } else if (strcmp(mode, "small") == 0) {
        bench_small(gpu, filter);
    } else {
        printf("usage: gpu_dense check|plan|bench|small [filter [parts]]\n");
        failed = 1;
    }
    mla_ctx_destroy(gpu);
    mla_ctx_destroy(cpu);
    return failed;
}
