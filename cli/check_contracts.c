/* Checks of what the manual promises beside the numbers: same bits, plans, refusals, formats. */
#include "check.h"
#include "random_values.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512, LAUNCHES = 50 };

static batch_spec split_spec(void)
{
    static const int64_t lengths[] = {700, 3, 65, 1500};
    return (batch_spec){
        .op = MLA_OP_DENSE_DECODE, .batch = 4, .h_q = 40, .lengths = lengths, .num_lengths = 4};
}

static batch_spec sparse_spec(void)
{
    return (batch_spec){.op = MLA_OP_SPARSE_DECODE,
                        .kv_format = MLA_KV_FP8_656,
                        .batch = 3,
                        .s_q = 2,
                        .h_q = 24,
                        .topk = 600,
                        .holes = HOLES_SCATTERED};
}

static void keep_outputs(check_bench *bench)
{
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        if (bench->got.memory[i].bytes > 0) {
            memcpy(bench->want.memory[i].data, bench->got.memory[i].data,
                   bench->got.memory[i].bytes);
        }
    }
}

/* Identical launches give the same bytes. */
static void same_bits(const batch_spec *spec, const engine *reference, const check_lane *lane,
                      uint64_t seed, check_result *result)
{
    check_bench bench;
    bool ok = check_bench_open(&bench, reference, spec, seed, result) &&
              check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    if (ok) {
        keep_outputs(&bench);
    }
    for (int launch = 1; ok && launch < LAUNCHES; launch++) {
        comparison compared = {.passed = true};
        batch_outputs_reset(&bench.got);
        ok = check_bench_rerun(&bench, result) &&
             (outputs_same_bytes(&bench.got, &bench.want, &compared) ||
              check_fail(result, "launch %d: %s", launch, compared.worst));
    }
    check_bench_close(&bench);
}

static void same_bits_dense(const engine *reference, const check_lane *lane, uint64_t seed,
                            check_result *result)
{
    batch_spec spec = split_spec();
    same_bits(&spec, reference, lane, seed, result);
}

static void same_bits_sparse(const engine *reference, const check_lane *lane, uint64_t seed,
                             check_result *result)
{
    batch_spec spec = sparse_spec();
    same_bits(&spec, reference, lane, seed, result);
}

/* With batch_invariant, a request alone gives the bits that it gives among others. */
static void batch_invariant(const engine *reference, const check_lane *lane, uint64_t seed,
                            check_result *result)
{
    check_bench bench;
    batch_spec spec = split_spec();
    spec.batch_invariant = true;
    bool ok = check_bench_open(&bench, reference, &spec, seed, result) &&
              check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    mla_tensors together = batch_host_tensors(&bench.input, &bench.got);
    for (int64_t r = 0; ok && r < spec.batch; r++) {
        batch one = bench.input;
        batch_outputs outputs;
        job work = {.runner = NULL};
        const mla_tensors *tensors = &bench.input.tensors;
        one.problem.batch = one.spec.batch = 1;
        ok = batch_outputs_alloc(&outputs, &one) &&
             check_status(result, "mla_get_sizes", job_open(&work, &lane->runner, &one, &outputs));
        if (ok) {
            work.tensors.q = (const uint16_t *)work.tensors.q + r * tensors->q_stride[0];
            work.tensors.block_table += r * tensors->block_table_stride;
            work.tensors.seqlens += r;
            work.lengths.seqlens += r;
            ok = check_status(result, "mla_plan_build", job_plan(&work)) &&
                 check_status(result, "mla_run", job_run(&work)) &&
                 check_device(result, job_fetch(&work));
        }
        mla_tensors alone = batch_host_tensors(&one, &outputs);
        size_t out_elems = (size_t)spec.h_q * D_V;
        if (ok && memcmp(alone.out, (const uint16_t *)together.out + (size_t)r * out_elems,
                         out_elems * 2) != 0) {
            ok = check_fail(result, "request %lld alone has other bits than in its batch",
                            (long long)r);
        }
        job_close(&work);
        batch_outputs_free(&outputs);
    }
    check_bench_close(&bench);
}

/* One plan buffer, rebuilt with other lengths and used several times; a workspace full of NaN. */
static void plan_rebuilt(const engine *reference, const check_lane *lane, uint64_t seed,
                         check_result *result)
{
    static const int64_t steps[][4] = {
        {700, 3, 65, 1500}, {2000, 64, 0, 1}, {0, 0, 0, 0}, {1, 1500, 700, 3}};
    check_bench first;
    batch_spec spec = split_spec();
    bool ok = check_bench_open(&first, reference, &spec, seed, result) &&
              check_bench_place(&first, lane, result);
    for (size_t step = 0; ok && step < sizeof steps / sizeof steps[0]; step++) {
        check_bench bench;
        spec.lengths = steps[step];
        ok = check_bench_open(&bench, reference, &spec, seed + step, result) &&
             check_bench_place(&bench, lane, result);
        if (ok) {
            /* The first job's plan and workspace serve this one, whatever they hold. */
            mla_plan own = bench.work.plan;
            void *own_workspace = bench.work.workspace;
            size_t bytes = bench.work.sizes.workspace_bytes;
            uint8_t *ones = tool_alloc(bytes, 1);
            memset(ones, 0xff, bytes);
            bench.work.plan = first.work.plan;
            bench.work.workspace = first.work.workspace;
            ok = check_device(result, memory_upload(&lane->runner.memory, bench.work.workspace,
                                                    ones, bytes)) &&
                 check_bench_run(&bench, result) && check_bench_compare(&bench, result) &&
                 check_bench_rerun(&bench, result) && check_bench_compare(&bench, result);
            free(ones);
            bench.work.plan = own;
            bench.work.workspace = own_workspace;
        }
        check_bench_close(&bench);
    }
    check_bench_close(&first);
}

/* A launch that is full of real NaN leaves nothing behind for the next one. */
static void nothing_left_behind(const engine *reference, const check_lane *lane, uint64_t seed,
                                check_result *result)
{
    check_bench bad, good;
    batch_spec spec = split_spec();
    bool ok = check_bench_open(&good, reference, &spec, seed, result) &&
              check_bench_place(&good, lane, result);
    spec.kv_std = (double)NAN;
    if (ok && check_bench_open(&bad, reference, &spec, seed, result)) {
        ok = check_bench_place(&bad, lane, result);
        for (int round = 0; ok && round < 3; round++) {
            batch_outputs_reset(&good.got);
            ok = check_bench_run(&bad, result) && check_bench_run(&good, result) &&
                 check_bench_compare(&good, result);
        }
        check_bench_close(&bad);
    }
    check_bench_close(&good);
}

static bool refused(const char *what, mla_status status, mla_status wanted, check_result *result)
{
    if (status == wanted && mla_last_error()[0] != '\0') {
        return true;
    }
    return check_fail(result, "%s: %s, not %s with a text", what, mla_status_name(status),
                      mla_status_name(wanted));
}

/* A plan for another problem, buffers that are too small: refused, and nothing is written. */
static void plan_misused(const engine *reference, const check_lane *lane, uint64_t seed,
                         check_result *result)
{
    check_bench bench;
    batch_spec spec = split_spec();
    bool ok = check_bench_open(&bench, reference, &spec, seed, result) &&
              check_bench_place(&bench, lane, result);
    if (ok) {
        job *work = &bench.work;
        mla_problem problem = work->problem;
        mla_tensors tensors = work->tensors;
        keep_outputs(&bench);
        ok = refused("a plan that was never built", job_run(work), MLA_ERR_PLAN_MISMATCH, result) &&
             check_status(result, "mla_plan_build", job_plan(work));
        work->problem.batch = 3;
        ok = ok && refused("another batch", job_run(work), MLA_ERR_PLAN_MISMATCH, result);
        work->problem = problem;
        work->problem.h_q = 20;
        work->tensors.q_stride[1] = work->tensors.out_stride[1] = 0;
        ok = ok && refused("another h_q", job_run(work), MLA_ERR_PLAN_MISMATCH, result);
        work->problem = problem;
        /* Not every instruction set serves f16; then that is the reason to refuse. */
        work->problem.dtype = MLA_DTYPE_F16;
        mla_status other = mla_supports(lane->runner.ctx, &work->problem);
        ok = ok && refused("another dtype", job_run(work),
                           other == MLA_OK ? MLA_ERR_PLAN_MISMATCH : other, result);
        work->problem = problem;
        work->tensors = tensors;
        work->plan.buffer_bytes = work->sizes.plan_bytes - 1;
        ok = ok && refused("a small plan buffer", job_plan(work), MLA_ERR_BUFFER_TOO_SMALL, result);
        work->plan.buffer_bytes = work->sizes.plan_bytes;
    }
    if (ok && bench.work.sizes.workspace_bytes > 0) {
        job *work = &bench.work;
        ok = refused("a small workspace",
                     mla_run(lane->runner.ctx, &work->problem, &work->tensors, &work->plan,
                             work->workspace, work->sizes.workspace_bytes - 1, NULL),
                     MLA_ERR_BUFFER_TOO_SMALL, result);
    }
    comparison compared = {.passed = true};
    if (ok && !(job_fetch(&bench.work) && outputs_same_bytes(&bench.got, &bench.want, &compared))) {
        check_fail(result, "a refused call wrote: %s", compared.worst);
    }
    check_bench_close(&bench);
}

/* Problems that contradict the manual. */
static void impossible_problems(const engine *reference, const check_lane *lane, uint64_t seed,
                                check_result *result)
{
    (void)reference;
    (void)seed;
    const mla_problem good = {.struct_size = sizeof good,
                              .op = MLA_OP_DENSE_DECODE,
                              .dtype = MLA_DTYPE_BF16,
                              .batch = 2,
                              .s_q = 1,
                              .h_q = 16,
                              .h_kv = 1,
                              .d_qk = 576,
                              .d_v = 512,
                              .page_size = 64};
    const struct {
        const char *what;
        size_t offset;
        int64_t value;
    } bad[] = {
        {"batch 0", offsetof(mla_problem, batch), 0},
        {"batch -1", offsetof(mla_problem, batch), -1},
        {"batch 2^31", offsetof(mla_problem, batch), INT64_C(1) << 31},
        {"s_q 0", offsetof(mla_problem, s_q), 0},
        {"h_q 0", offsetof(mla_problem, h_q), 0},
        {"h_kv 0", offsetof(mla_problem, h_kv), 0},
        {"h_kv 3 of h_q 16", offsetof(mla_problem, h_kv), 3},
        {"d_qk 128", offsetof(mla_problem, d_qk), 128},
        {"d_v 576", offsetof(mla_problem, d_v), 576},
        {"page_size 0", offsetof(mla_problem, page_size), 0},
        {"topk of a dense problem", offsetof(mla_problem, topk), 64},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mla_problem problem = good;
        memcpy((uint8_t *)&problem + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        if (!refused(bad[i].what, mla_supports(lane->runner.ctx, &problem),
                     MLA_ERR_INVALID_ARGUMENT, result)) {
            return;
        }
    }
    static const double scales[] = {(double)NAN, (double)INFINITY};
    for (size_t i = 0; i < 2; i++) {
        mla_problem problem = good;
        problem.softmax_scale = scales[i];
        if (!refused("a softmax_scale that is not finite", mla_supports(lane->runner.ctx, &problem),
                     MLA_ERR_INVALID_ARGUMENT, result)) {
            return;
        }
    }
}

/* The workspace follows from the shape and the device, and stays small for any batch. */
static void workspace_bound(const engine *reference, const check_lane *lane, uint64_t seed,
                            check_result *result)
{
    (void)reference;
    (void)seed;
    if (lane->runner.info.backend != MLA_BACKEND_CPU) {
        check_skip(result, "the manual bounds it on the CPU only");
        return;
    }
    mla_problem problem = {.struct_size = sizeof problem,
                           .op = MLA_OP_DENSE_DECODE,
                           .dtype = MLA_DTYPE_BF16,
                           .batch = INT32_MAX,
                           .s_q = 4,
                           .h_q = 128,
                           .h_kv = 1,
                           .d_qk = 576,
                           .d_v = 512,
                           .page_size = 64};
    mla_sizes sizes = {.struct_size = sizeof sizes};
    size_t allowed = (size_t)lane->runner.info.num_threads * (4u << 20);
    if (check_status(result, "mla_get_sizes", mla_get_sizes(lane->runner.ctx, &problem, &sizes)) &&
        sizes.workspace_bytes > allowed) {
        check_fail(result, "a batch of 2^31 - 1 wants a workspace of %zu bytes, more than %zu",
                   sizes.workspace_bytes, allowed);
    }
}

typedef struct caller {
    check_bench *bench;
    int failures;
} caller;

static void *call_again(void *argument)
{
    caller *self = argument;
    for (int i = 0; i < 20; i++) {
        self->failures += job_plan(&self->bench->work) != MLA_OK ||
                          job_run(&self->bench->work) != MLA_OK;
    }
    return NULL;
}

/* Two threads use one context at once, each with its own plan, workspace and outputs. */
static void two_callers(const engine *reference, const check_lane *lane, uint64_t seed,
                        check_result *result)
{
    check_bench benches[2];
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        batch_spec spec = i == 0 ? split_spec() : sparse_spec();
        spec.kv_format = MLA_KV_NATIVE;
        ok = check_bench_open(&benches[i], reference, &spec, seed, result) &&
             check_bench_place(&benches[i], lane, result) && ok;
    }
    /* On a GPU one stream would only queue one behind the other. */
    if (ok && lane->runner.info.backend == MLA_BACKEND_CPU) {
        caller callers[2] = {{&benches[0], 0}, {&benches[1], 0}};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            ok = ok && pthread_create(&threads[i], NULL, call_again, &callers[i]) == 0;
        }
        for (int i = 0; ok && i < 2; i++) {
            pthread_join(threads[i], NULL);
            ok = (callers[i].failures == 0 || check_fail(result, "a call failed")) &&
                 check_bench_compare(&benches[i], result);
        }
    } else if (ok) {
        check_skip(result, "on a GPU one stream queues the calls");
    }
    for (int i = 0; i < 2; i++) {
        check_bench_close(&benches[i]);
    }
}

const check_special check_contracts[] = {
    {"bits/same-every-launch", true, false, same_bits_dense},
    {"bits/same-every-launch-sparse", false, false, same_bits_sparse},
    {"bits/batch-invariant", true, false, batch_invariant},
    {"plan/rebuilt-and-reused", true, false, plan_rebuilt},
    {"plan/misused", true, true, plan_misused},
    {"plan/workspace-bound", true, true, workspace_bound},
    {"poison/nothing-left-behind", true, false, nothing_left_behind},
    {"arguments/impossible-problems", true, true, impossible_problems},
    {"threads/two-callers", false, false, two_callers},
    {"formats/pack-unpack", true, true, check_pack_unpack},
};
const int32_t num_check_contracts = (int32_t)(sizeof check_contracts / sizeof check_contracts[0]);
