/* Shapes too large for sanitizers: batches beyond 16 bits, many rows, a long request. */
#include "isa_scenarios.h"

static void twelve_thousand_requests(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 12000, 1, 2, 4);
}

static void seventy_thousand_requests(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 70000, 1, 1, 3);
}

static void batch_times_query_tokens_past_65535(mla_ctx *ctx)
{
    check_cycling_lengths(ctx, 8193, 8, 1, 11);
}

/* More row tiles than an H200 has multiprocessors. */
static void many_rows_of_one_request(mla_ctx *ctx)
{
    const int64_t tokens[] = {67, 128};
    for (int i = 0; i < 2; i++) {
        const int32_t seqlens[] = {(int32_t)tokens[i] + 1};
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 1, tokens[i], 128, 64);
        problem.causal = true;
        check_case(ctx, &problem, &(case_options){.seed = 6, .seqlens = seqlens});
    }
}

static void one_token_beside_a_hundred_thousand(mla_ctx *ctx)
{
    const int32_t seqlens[] = {1, 100000, 1, 64};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 1, 1, 64);
    check_case(ctx, &problem, &(case_options){.seed = 7, .seqlens = seqlens});
    problem.batch_invariant = true;
    check_case(ctx, &problem, &(case_options){.seed = 7, .seqlens = seqlens});
}

static void the_largest_number_of_parts(mla_ctx *ctx)
{
    const int32_t seqlens[] = {2500, 0, 1, 130, 7000};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 1, 2, 64);
    problem.num_parts = 65536;
    check_case(ctx, &problem, &(case_options){.seed = 8, .seqlens = seqlens});
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(twelve_thousand_requests),
        ISA_SCENARIO(seventy_thousand_requests),
        ISA_SCENARIO(batch_times_query_tokens_past_65535),
        ISA_SCENARIO(many_rows_of_one_request),
        ISA_SCENARIO(the_largest_number_of_parts),
        ISA_SCENARIO(one_token_beside_a_hundred_thousand),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
