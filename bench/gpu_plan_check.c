/* Compares schedules cut on the device with those of the host, byte by byte. */
#include "backend.h"
#include "cuda_plan.h"
#include "gpu_dense.h"
#include "gpu_driver.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Random lengths on the host and the device. */
typedef struct lengths_pair {
    int32_t *host, *device;
} lengths_pair;

static lengths_pair make_lengths(int64_t count, int64_t most, bool equal)
{
    lengths_pair lengths = {.host = malloc((size_t)count * 4)};
    for (int64_t i = 0; i < count; i++) {
        lengths.host[i] = equal ? (int32_t)most : (int32_t)(random_bits() % (uint32_t)(most + 1));
        /* What is clamped away. */
        lengths.host[i] -= !equal && i % 50 == 7 ? INT32_MAX : 0;
    }
    lengths.device = device_copy(lengths.host, (size_t)count * 4);
    return lengths;
}

static void free_lengths(lengths_pair *lengths)
{
    cudaFree(lengths->device);
    free(lengths->host);
}

/* One schedule of either kind; the lengths of both are those of each memory. */
static bool check_plan(const mla_ctx *gpu, const mla_problem *problem, const mla_lengths *host,
                       const mla_lengths *device)
{
    mla_shape shape;
    buffers b;
    check_mla(mla_shape_init(problem, &shape), "mla_shape_init");
    make_buffers(gpu, problem, true, &b);
    void *got = malloc(b.sizes.plan_bytes), *want = calloc(1, b.sizes.plan_bytes);
    check_mla(mla_plan_build(gpu, problem, device, &b.plan, NULL), "mla_plan_build");
    device_read(got, b.plan.buffer, b.sizes.plan_bytes, "plan");
    const mla_cut_rule rule = mla_cuda_cut_rule(gpu, &shape);
    mla_plan_cut(&shape, host, &rule, want);
    const bool good = memcmp(got, want, b.sizes.plan_bytes) == 0;
    if (!good) {
        printf("BAD  plan op %d b %lld s_q %lld h_q %lld topk %lld + %lld parts %d\n",
               (int)problem->op, (long long)problem->batch, (long long)problem->s_q,
               (long long)problem->h_q, (long long)problem->topk, (long long)problem->extra_topk,
               problem->num_parts);
    }
    free(got), free(want);
    free_buffers(&b, true);
    return good;
}

static void check_dense_plans(const mla_ctx *gpu, tally *t)
{
    static const int64_t batches[] = {1, 2, 3, 37, 128, 131, 132, 133, 1023, 1024, 1025, 70000};
    static const int64_t longest[] = {0, 1, 100, 4096, 100000};
    static const int32_t parts[] = {0, 1, 2, 31, 132, 256, 5000};
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        for (size_t j = 0; j < 5 * 2; j++) {
            lengths_pair seqlens = make_lengths(batches[i], longest[j / 2], j % 2);
            const mla_lengths host = {.struct_size = sizeof host, .seqlens = seqlens.host};
            const mla_lengths device = {.struct_size = sizeof device, .seqlens = seqlens.device};
            for (size_t k = 0; k < 7 * 2; k++) {
                mla_problem problem = dense_decode_problem(batches[i], 1, k % 2 ? 128 : 16);
                problem.num_parts = parts[k / 2];
                problem.batch_invariant = j == 3;
                tally_count(t, check_plan(gpu, &problem, &host, &device));
            }
            free_lengths(&seqlens);
        }
    }
}

/* All four combinations of given and absent lists of lengths, with entries outside [0, topk]. */
static void check_sparse_plan(const mla_ctx *gpu, const mla_problem *problem, tally *t)
{
    const bool prefill = problem->op == MLA_OP_SPARSE_PREFILL;
    const int64_t count = prefill ? problem->s_q : problem->batch;
    lengths_pair lengths = make_lengths(count, problem->topk + problem->topk / 3, false);
    lengths_pair extra = make_lengths(count, problem->extra_topk + 3, false);
    for (int given = 0; given < (problem->extra_topk > 0 ? 4 : 2); given++) {
        mla_lengths host = {.struct_size = sizeof host}, device = {.struct_size = sizeof device};
        if (given & 1) {
            host.topk_length = lengths.host;
            device.topk_length = lengths.device;
        }
        if (given & 2) {
            host.extra_topk_length = extra.host;
            device.extra_topk_length = extra.device;
        }
        tally_count(t, check_plan(gpu, problem, &host, &device));
    }
    free_lengths(&lengths);
    free_lengths(&extra);
}

static void check_sparse_plans(const mla_ctx *gpu, tally *t)
{
    static const int64_t batches[] = {1, 2, 37, 128, 133, 5000}, tokens[] = {1, 2, 3, 7};
    static const int64_t topk[] = {1, 64, 2048, 32768};
    static const int32_t parts[] = {0, 1, 31, 256};
    for (size_t i = 0; i < 6 * 4; i++) {
        for (size_t j = 0; j < 4 * 4; j++) {
            mla_problem problem = dense_decode_problem(batches[i / 4], tokens[i % 4],
                                                       i % 2 ? 128 : 40);
            problem.op = MLA_OP_SPARSE_DECODE;
            problem.topk = topk[j / 4];
            problem.num_parts = parts[j % 4];
            problem.batch_invariant = i % 5 == 3;
            check_sparse_plan(gpu, &problem, t);
            problem.extra_topk = 100;
            problem.extra_page_size = 2;
            check_sparse_plan(gpu, &problem, t);
        }
    }
    for (size_t i = 0; i < 6 * 4; i++) {
        mla_problem problem = dense_decode_problem(1, batches[i / 4], 128);
        problem.op = MLA_OP_SPARSE_PREFILL;
        problem.page_size = 1;
        problem.topk = 2048;
        problem.num_parts = parts[i % 4];
        check_sparse_plan(gpu, &problem, t);
    }
}

int check_plans(const mla_ctx *gpu)
{
    tally t = {0};
    check_dense_plans(gpu, &t);
    check_sparse_plans(gpu, &t);
    return tally_print(&t, "plan");
}
