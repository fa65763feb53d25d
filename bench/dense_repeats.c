/* That the same inputs give the same bits: over launches, streams, contexts and batch mates. */
#include "dense_cases.h"
#include "gpu_dense.h"
#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES = 50 };

static const test_case repeated[] = {
    {"split over columns", 1, 1, 128, 1, 1024, 64, EQUAL, 1},
    {"split of 16 heads", 5, 1, 16, 1, 3000, 64, VARIED, 1},
    {"batch of 37", 37, 1, 128, 1, 600, 64, VARIED, 1},
    {"causal fp16", 9, 4, 16, 1, 3000, 64, VARIED, 1, .causal = true, .f16 = true},
};

enum { NUM_REPEATED = sizeof repeated / sizeof repeated[0] };

/* One case on one stream of one context, with buffers of its own. */
typedef struct lane {
    const mla_ctx *ctx;
    cudaStream_t stream;
    case_data data;
    mla_tensors tensors;
    buffers buffers;
    uint16_t *out, *again;
    float *lse, *lse_again;
} lane;

static lane open_lane(const mla_ctx *ctx, const test_case *c)
{
    lane l = {.ctx = ctx};
    make_case(c, &l.data);
    l.tensors = case_tensors(c, &l.data, true, l.data.d_out, l.data.d_lse);
    make_buffers(ctx, &l.data.problem, true, &l.buffers);
    check_cuda(cudaStreamCreateWithFlags(&l.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    l.out = malloc(l.data.out_elems * 2), l.again = malloc(l.data.out_elems * 2);
    l.lse = malloc(l.data.lse_elems * 4), l.lse_again = malloc(l.data.lse_elems * 4);
    return l;
}

static void close_lane(lane *l)
{
    free(l->out), free(l->again), free(l->lse), free(l->lse_again);
    cudaStreamDestroy(l->stream);
    free_buffers(&l->buffers, true);
    free_case(&l->data);
}

static void start(lane *l)
{
    check_cuda(cudaMemsetAsync(l->data.d_out, 0xff, l->data.out_elems * 2, l->stream), "memset");
    check_cuda(cudaMemsetAsync(l->data.d_lse, 0xff, l->data.lse_elems * 4, l->stream), "memset");
    run_once(l->ctx, &l->data.problem, &l->tensors, &l->buffers, l->stream);
}

/* Waits for the lane; whether its results have the bytes of the first time. */
static bool finish(lane *l, bool first)
{
    check_cuda(cudaStreamSynchronize(l->stream), "lane");
    device_read(first ? l->out : l->again, l->data.d_out, l->data.out_elems * 2, "out");
    device_read(first ? l->lse : l->lse_again, l->data.d_lse, l->data.lse_elems * 4, "lse");
    return first || (memcmp(l->out, l->again, l->data.out_elems * 2) == 0 &&
                     memcmp(l->lse, l->lse_again, l->data.lse_elems * 4) == 0);
}

static bool report(bool good, const char *what, const char *name)
{
    printf("%-4s %s: %s\n", good ? "ok" : "BAD", what, name);
    fflush(stdout);
    return good;
}

/* One after the other, then on streams of two contexts at once, back to back. */
static void check_launches(const mla_ctx *gpu, const mla_ctx *second, tally *t)
{
    lane lanes[NUM_REPEATED];
    for (int i = 0; i < NUM_REPEATED; i++) {
        random_seed(77 + (uint64_t)i);
        lanes[i] = open_lane(i % 2 ? second : gpu, &repeated[i]);
        bool good = true;
        for (int launch = 0; launch < LAUNCHES; launch++) {
            start(&lanes[i]);
            good = finish(&lanes[i], launch == 0) && good;
        }
        tally_count(t, report(good, "50 launches", repeated[i].name));
    }
    bool good = true;
    for (int launch = 0; launch < LAUNCHES; launch++) {
        for (int i = 0; i < NUM_REPEATED; i++) {
            start(&lanes[i]);
        }
        if (launch % 10 == 9) {
            for (int i = 0; i < NUM_REPEATED; i++) {
                good = finish(&lanes[i], false) && good;
            }
        }
    }
    tally_count(t, report(good, "at once", "4 streams of 2 contexts"));
    for (int i = 0; i < NUM_REPEATED; i++) {
        close_lane(&lanes[i]);
    }
}

/* With batch_invariant each request alone has the bits that it has in the batch. */
static void check_batch_mates(const mla_ctx *gpu, tally *t)
{
    const test_case c = {"batch_invariant",      12, 1, 128, 1, 900, 64, VARIED, 1,
                         .batch_invariant = true};
    random_seed(78);
    lane l = open_lane(gpu, &c);
    start(&l);
    bool good = finish(&l, true);
    const int64_t row = c.h_q * l.data.out_head_stride;
    mla_problem alone = l.data.problem;
    alone.batch = 1;
    buffers b;
    make_buffers(gpu, &alone, true, &b);
    for (int64_t i = 0; i < c.b; i++) {
        mla_tensors one = l.tensors;
        one.q = l.data.d_q + i * c.h_q * l.data.q_head_stride;
        one.block_table = l.data.d_block_table + i * l.data.max_pages;
        one.seqlens = l.data.d_seqlens + i;
        check_cuda(cudaMemset(l.data.d_out, 0xff, l.data.out_elems * 2), "memset");
        run_once(gpu, &alone, &one, &b, NULL);
        device_read(l.again, l.data.d_out, (size_t)row * 2, "out");
        device_read(l.lse_again, l.data.d_lse, (size_t)c.h_q * 4, "lse");
        good = good && memcmp(l.again, l.out + i * row, (size_t)row * 2) == 0 &&
               memcmp(l.lse_again, l.lse + i * c.h_q, (size_t)c.h_q * 4) == 0;
    }
    tally_count(t, report(good, "batch mates", c.name));
    free_buffers(&b, true);
    close_lane(&l);
}

int check_repeats(const mla_ctx *gpu)
{
    const mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CUDA};
    mla_ctx *second;
    tally t = {0};
    check_mla(mla_ctx_create(&params, &second), "second context");
    check_launches(gpu, second, &t);
    check_batch_mates(gpu, &t);
    mla_ctx_destroy(second);
    return tally_print(&t, "repeats");
}
