/* Causal attention and several query tokens: each row is an s_q = 1 call at a shorter length. */
#include "isa_scenarios.h"

#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* The answer of the rows of one token, taken out of a result. */
static attention_result token_rows(const mla_problem *p, const attention_result *result,
                                   int64_t token)
{
    mla_problem one = *p;
    one.s_q = 1;
    attention_result rows = attention_result_alloc(&one);
    for (int64_t req = 0; req < p->batch; req++) {
        int64_t from = (req * p->s_q + token) * p->h_q;
        memcpy(rows.out + req * p->h_q * 512, result->out + from * 512, (size_t)p->h_q * 512 * 2);
        memcpy(rows.lse + req * p->h_q, result->lse + from, (size_t)p->h_q * sizeof(float));
    }
    return rows;
}

/* Token `token` of the case as a case of its own, over the same cache. */
static attention_result run_one_token(const mla_ctx *ctx, const attention_case *c, int64_t token)
{
    const mla_problem *p = &c->problem;
    attention_case one = *c;
    one.problem.s_q = 1;
    one.seqlens = guarded_alloc((size_t)p->batch * sizeof(int32_t), sizeof(int32_t));
    one.q = guarded_alloc((size_t)(p->batch * p->h_q * p->d_qk) * 2, 2);
    for (int64_t req = 0; req < p->batch; req++) {
        int64_t length = p->causal ? c->seqlens[req] - (p->s_q - 1 - token) : c->seqlens[req];
        one.seqlens[req] = length < 0 ? 0 : (int32_t)length;
        memcpy(one.q + req * p->h_q * p->d_qk, c->q + (req * p->s_q + token) * p->h_q * p->d_qk,
               (size_t)(p->h_q * p->d_qk) * 2);
    }
    one.tensors.q = one.q;
    one.tensors.seqlens = one.seqlens;
    one.lengths.seqlens = one.seqlens;
    return attention_case_run(ctx, &one);
}

static void check_rows(mla_ctx *ctx, const mla_problem *problem, const int32_t *seqlens)
{
    if (!isa_serves(ctx, problem)) {
        return;
    }
    size_t mark = guarded_mark();
    attention_case c;
    attention_case_make(&c, problem, &(case_options){.seed = 51, .seqlens = seqlens});
    attention_result all = assert_case_right(ctx, &c);
    mla_problem one = *problem;
    one.s_q = 1;
    for (int64_t token = 0; token < problem->s_q; token++) {
        attention_result got = token_rows(problem, &all, token);
        attention_result want = run_one_token(ctx, &c, token);
        assert_results_close(&one, &got, &want);
    }
    guarded_release(mark);
}

/* The diagonal lies inside a page, across two pages, across two blocks, and below the start. */
static void a_row_equals_a_shorter_single_call(mla_ctx *ctx)
{
    const int32_t seqlens[] = {1, 3, 5, 16, 18, 64, 66, 128, 130, 200};
    const int64_t tokens[] = {2, 4, 17};
    for (int i = 0; i < COUNT(tokens); i++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, COUNT(seqlens), tokens[i], 3, 16);
        problem.causal = true;
        check_rows(ctx, &problem, seqlens);
        problem.dtype = MLA_DTYPE_F16;
        check_rows(ctx, &problem, seqlens);
        problem.causal = false;
        check_rows(ctx, &problem, seqlens);
    }
}

static void the_diagonal_straddles_a_split(mla_ctx *ctx)
{
    for (int32_t parts = 2; parts <= 12; parts += 5) {
        const int32_t seqlens[] = {320, 645, 66};
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 70, 2, 64);
        problem.causal = true;
        problem.num_parts = parts;
        check_case(ctx, &problem, &(case_options){.seed = 52, .seqlens = seqlens});
    }
}

static void tiles_of_several_tokens_and_heads(mla_ctx *ctx)
{
    const int32_t seqlens[] = {130, 64, 9};
    const int64_t heads[] = {16, 40, 65, 128};
    for (int i = 0; i < COUNT(heads); i++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 5, heads[i], 64);
        problem.causal = true;
        check_case(ctx, &problem, &(case_options){.seed = 53, .seqlens = seqlens});
    }
}

/* Gives every request the query and the pages of request 0. */
static void make_requests_identical(attention_case *c)
{
    const mla_problem *p = &c->problem;
    size_t q_bytes = (size_t)(p->s_q * p->h_q * p->d_qk) * 2;
    for (int64_t req = 1; req < p->batch; req++) {
        memcpy((char *)c->q + (size_t)req * q_bytes, c->q, q_bytes);
        memcpy(c->block_table + req * c->tensors.max_pages, c->block_table,
               (size_t)c->tensors.max_pages * sizeof(int32_t));
    }
}

static void identical_requests_give_identical_rows(mla_ctx *ctx)
{
    for (int64_t batch = 2; batch <= 40; batch += 19) {
        int32_t seqlens[40];
        for (int i = 0; i < 40; i++) {
            seqlens[i] = 200;
        }
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, batch, 3, 5, 64);
        problem.causal = true;
        problem.batch_invariant = true;
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 54, .seqlens = seqlens});
        make_requests_identical(&c);
        attention_result result = attention_case_run(ctx, &c);
        for (int64_t req = 1; req < batch; req++) {
            assert_request_identical(&problem, &result, req, &result, 0);
        }
        /* Without the option, splits may differ between them: equal within the tolerance. */
        c.problem.batch_invariant = false;
        attention_result split = attention_case_run(ctx, &c);
        assert_results_close(&problem, &split, &result);
        guarded_release(mark);
    }
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(a_row_equals_a_shorter_single_call),
        ISA_SCENARIO(the_diagonal_straddles_a_split),
        ISA_SCENARIO(tiles_of_several_tokens_and_heads),
        ISA_SCENARIO(identical_requests_give_identical_rows),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
