/* Compares dense decode of the CUDA backend with the CPU backend. Outputs start as NaN. */
#include "dense_cases.h"
#include "formats.h"
#include "gpu_dense.h"
#include "gpu_driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
            if (isnan(x) && isnan(y)) {
                continue;
            }
            error += (x - y) * (x - y);
            norm += y * y;
            norm_got += x * x;
            dot += x * y;
            diff.wrong += !(fabs(x - y) <= 8e-4 + 2.01 / 128 * fabs(y));
        }
        const double x = got_lse[row], y = want_lse[row];
        if (x == y || (isnan(x) && isnan(y))) {
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
        device_read(i == 0 ? out : again, d->d_out, d->out_elems * 2, "cudaMemcpy");
        equal = equal && (i == 0 || memcmp(out, again, d->out_elems * 2) == 0);
    }
    device_read(lse, d->d_lse, d->lse_elems * 4, "cudaMemcpy");
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
    const test_case c = {.name = "graph replay",
                         .b = 37,
                         .s_q = 1,
                         .h_q = 128,
                         .h_kv = 1,
                         .s_k = 600,
                         .page_size = 64,
                         .lengths = VARIED,
                         .std = 1};
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
        device_read(out, d.d_out, d.out_elems * 2, "copy");
        device_read(lse, d.d_lse, d.lse_elems * 4, "copy");
        run_once(cpu, &d.problem, &cpu_t, &cpu_b, NULL);
        good = good && compare(&c, &d, out, lse, want, want_lse).wrong == 0;
    }
    printf("%-4s %s\n", good ? "ok" : "BAD", c.name);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    free_buffers(&b, true), free_buffers(&cpu_b, false);
    free(out), free(want), free(lse), free(want_lse);
    free_case(&d);
    return good;
}

int check_dense(const mla_ctx *gpu, const mla_ctx *cpu, const char *filter)
{
    tally t = {0};
    for (int i = 0; i < num_dense_cases; i++) {
        if (filter != NULL && strstr(dense_cases[i].name, filter) == NULL) {
            t.skipped++;
            continue;
        }
        random_seed(0x9e3779b97f4a7c15ull + (uint64_t)i);
        tally_count(&t, check_case(gpu, cpu, &dense_cases[i]));
    }
    if (filter == NULL) {
        tally_count(&t, check_graph(gpu, cpu));
    }
    return tally_print(&t, "dense");
}
