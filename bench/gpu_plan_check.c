/* Compares schedules cut on the device with those of the host, byte by byte. */
#include "backend.h"
#include "cuda_plan.h"
#include "gpu_dense.h"
#include "gpu_driver.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    device_read(got, b.plan.buffer, b.sizes.plan_bytes, "plan");
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

int check_plans(const mla_ctx *gpu)
{
    static const int64_t batches[] = {1, 2, 3, 37, 128, 131, 132, 133, 1023, 1024, 1025, 70000};
    static const int64_t longest[] = {0, 1, 100, 4096, 100000};
    static const int32_t parts[] = {0, 1, 2, 31, 132, 256, 5000};
    tally t = {0};
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        for (size_t j = 0; j < 5 * 2; j++) {
            for (size_t k = 0; k < 7 * 2; k++) {
                mla_problem problem = dense_decode_problem(batches[i], 1, k % 2 ? 128 : 16);
                problem.num_parts = parts[k / 2];
                problem.batch_invariant = j == 3;
                tally_count(&t, check_plan(gpu, &problem, longest[j / 2], j % 2));
            }
        }
    }
    return tally_print(&t, "plan");
}
