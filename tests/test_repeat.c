/* The same bits twice: repeated launches, threads at once, batch mates that do not matter. */
#include "isa_scenarios.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const int32_t SEQLENS[] = {400, 65, 0, 130, 700, 1};

static void check_fifty(mla_ctx *ctx, const mla_problem *problem, const case_options *options)
{
    if (!isa_serves(ctx, problem)) {
        return;
    }
    size_t mark = guarded_mark();
    attention_case c;
    attention_case_make(&c, problem, options);
    attention_result first = assert_case_right(ctx, &c);
    int runs = scenario_isa() == MLA_ISA_REFERENCE ? 5 : 50; /* the reference is slow */
    for (int i = 1; i < runs; i++) {
        size_t run_mark = guarded_mark();
        attention_result again = attention_case_run(ctx, &c);
        assert_results_identical(problem, &again, &first);
        guarded_release(run_mark);
    }
    guarded_release(mark);
}

static void fifty_runs_give_the_same_bits(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 6, 1, 5, 64);
    check_fifty(ctx, &problem, &(case_options){.seed = 600, .seqlens = SEQLENS});
    problem = dense_problem(MLA_DTYPE_F16, 6, 1, 5, 64);
    problem.num_parts = 13;
    check_fifty(ctx, &problem, &(case_options){.seed = 601, .seqlens = SEQLENS});
    problem = sparse_problem(MLA_KV_FP8_656, 3, 1, 9, 64, 300);
    check_fifty(ctx, &problem, &(case_options){.seed = 602, .pool_pages = 6, .hole_percent = 10});
    problem = sparse_problem(MLA_KV_FP8_584, 3, 1, 9, 64, 300);
    check_fifty(ctx, &problem, &(case_options){.seed = 603, .pool_pages = 6, .hole_percent = 10});
    problem = prefill_problem(MLA_DTYPE_BF16, 20, 4, 100);
    check_fifty(ctx, &problem, &(case_options){.seed = 604, .pool_pages = 200});
}

/* The number of threads decides who computes, never what, as long as the parts are the same. */
static void threads_do_not_change_bits(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 6, 2, 5, 64);
    problem.num_parts = 7;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 605, .seqlens = SEQLENS});
    attention_result want = assert_case_right(ctx, &c);
    const int32_t threads[] = {1, 2, 3, 8};
    for (int i = 0; i < COUNT(threads); i++) {
        mla_ctx *own = open_cpu_ctx(scenario_isa(), threads[i]);
        attention_result result = attention_case_run(own, &c);
        assert_results_identical(&problem, &result, &want);
        mla_ctx_destroy(own);
    }
}

/* Request `req` of a dense case as a batch of one. */
static attention_result run_alone(const mla_ctx *ctx, const attention_case *c, int64_t req)
{
    const mla_problem *p = &c->problem;
    attention_case alone = *c;
    alone.problem.batch = 1;
    alone.q = c->q + req * p->s_q * p->h_q * p->d_qk;
    alone.tensors.q = alone.q;
    alone.seqlens = c->seqlens + req;
    alone.tensors.seqlens = alone.lengths.seqlens = alone.seqlens;
    alone.block_table = c->block_table + req * c->tensors.max_pages;
    alone.tensors.block_table = alone.block_table;
    return attention_case_run(ctx, &alone);
}

static void batch_invariant_requests_have_no_mates(mla_ctx *ctx)
{
    const int64_t heads[] = {1, 16, 65, 128};
    for (int i = 0; i < 2 * COUNT(heads); i++) {
        mla_problem problem = dense_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 6, 1 + i % 2,
                                            heads[i / 2], 64);
        problem.batch_invariant = true;
        problem.causal = true;
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 610 + (uint64_t)i, .seqlens = SEQLENS});
        attention_result batch = assert_case_right(ctx, &c);
        for (int64_t req = 0; req < 6; req++) {
            attention_result alone = run_alone(ctx, &c, req);
            assert_request_identical(&problem, &batch, req, &alone, 0);
        }
        guarded_release(mark);
    }
}

static void batch_invariant_sparse_requests(mla_ctx *ctx)
{
    mla_problem problem = sparse_problem(MLA_KV_FP8_656, 5, 1, 9, 64, 200);
    problem.batch_invariant = true;
    problem.num_parts = 3;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem,
                        &(case_options){.seed = 620, .pool_pages = 5, .hole_percent = 10});
    attention_result batch = assert_case_right(ctx, &c);
    for (int64_t req = 0; req < 5; req++) {
        attention_case alone = c;
        alone.problem.batch = 1;
        alone.problem.num_parts = 0;
        alone.q = c.q + req * 9 * 576;
        alone.tensors.q = alone.q;
        alone.tensors.indices = c.indices + req * 200;
        attention_result result = attention_case_run(ctx, &alone);
        assert_request_identical(&problem, &batch, req, &result, 0);
    }
}

/* ------------------------------------------------------------------------------------------
 * Two callers at once
 * ---------------------------------------------------------------------------------------- */

/* One caller's buffers, and where its answers differed. Threads report by value: cmocka's
 * assertions belong to the main thread. */
typedef struct caller {
    const mla_ctx *ctx;
    const attention_case *c;
    mla_tensors tensors;
    mla_plan plan;
    void *workspace;
    size_t workspace_bytes;
    const attention_result *want;
    int failures;
} caller;

static void prepare_caller(caller *who, const mla_ctx *ctx, const attention_case *c,
                           const attention_result *want)
{
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_int_equal(mla_get_sizes(ctx, &c->problem, &sizes), MLA_OK);
    attention_result result = attention_result_alloc(&c->problem);
    *who = (caller){.ctx = ctx,
                    .c = c,
                    .tensors = c->tensors,
                    .plan = attention_case_plan(ctx, c),
                    .workspace = guarded_alloc(sizes.workspace_bytes, 16),
                    .workspace_bytes = sizes.workspace_bytes,
                    .want = want};
    who->tensors.out = result.out;
    who->tensors.lse = result.lse;
}

static void *call_many_times(void *argument)
{
    caller *who = argument;
    const mla_problem *p = &who->c->problem;
    size_t rows = (size_t)(p->batch * p->s_q * p->h_q);
    for (int i = 0; i < 20; i++) {
        memset(who->tensors.out, 0xff, rows * 512 * 2);
        bool right = mla_plan_build(who->ctx, p, &who->c->lengths, &who->plan, NULL) == MLA_OK &&
                     mla_run(who->ctx, p, &who->tensors, &who->plan, who->workspace,
                             who->workspace_bytes, NULL) == MLA_OK &&
                     memcmp(who->tensors.out, who->want->out, rows * 512 * 2) == 0 &&
                     memcmp(who->tensors.lse, who->want->lse, rows * sizeof(float)) == 0;
        who->failures += !right;
    }
    return NULL;
}

/* Two threads run two cases over and over, on one context or on one each. */
static void check_two_callers(mla_ctx *ctx, bool shared)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 6, 1, 20, 64);
    problem.num_parts = 5;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    mla_ctx *other = shared ? ctx : open_cpu_ctx(scenario_isa(), 0);
    attention_case cases[2];
    attention_result want[2];
    caller callers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        attention_case_make(&cases[i], &problem,
                            &(case_options){.seed = 630 + (uint64_t)i, .seqlens = SEQLENS});
        want[i] = assert_case_right(ctx, &cases[i]);
        prepare_caller(&callers[i], i == 0 ? ctx : other, &cases[i], &want[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call_many_times, &callers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(callers[0].failures, 0);
    assert_int_equal(callers[1].failures, 0);
    if (!shared) {
        mla_ctx_destroy(other);
    }
}

static void two_threads_on_one_context(mla_ctx *ctx)
{
    check_two_callers(ctx, true);
}

static void two_threads_on_two_contexts(mla_ctx *ctx)
{
    check_two_callers(ctx, false);
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(fifty_runs_give_the_same_bits),
        ISA_SCENARIO(threads_do_not_change_bits),
        ISA_SCENARIO(batch_invariant_requests_have_no_mates),
        ISA_SCENARIO(batch_invariant_sparse_requests),
        ISA_SCENARIO(two_threads_on_one_context),
        ISA_SCENARIO(two_threads_on_two_contexts),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
