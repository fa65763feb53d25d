/* Lengths: none, one, around tiles and pages, pad rows, wide mixes; both conventions for no key. */
#include "isa_scenarios.h"

#include <math.h>

static const mla_dtype DTYPES[] = {MLA_DTYPE_BF16, MLA_DTYPE_F16};

static void check_lengths(mla_ctx *ctx, const int32_t *seqlens, int64_t batch, int64_t s_q,
                          bool causal, int64_t page_size)
{
    for (int i = 0; i < 2; i++) {
        mla_problem problem = dense_problem(DTYPES[i], batch, s_q, 3, page_size);
        problem.causal = causal;
        check_case(ctx, &problem, &(case_options){.seed = 11, .seqlens = seqlens});
    }
}

static void lengths_around_tiles_and_pages(mla_ctx *ctx)
{
    const int32_t seqlens[] = {0,   1,   2,   15,  16,  17,  31,  33,  63,  64,
                               65,  95,  97,  127, 128, 129, 191, 192, 193, 255,
                               256, 257, 320, 511, 512, 513, 640, 641};
    const int64_t batch = sizeof seqlens / sizeof seqlens[0];
    check_lengths(ctx, seqlens, batch, 1, false, 64);
    check_lengths(ctx, seqlens, batch, 1, false, 16);
    check_lengths(ctx, seqlens, batch, 2, true, 128);
}

static void lengths_below_the_query_tokens(mla_ctx *ctx)
{
    const int32_t seqlens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 70};
    check_lengths(ctx, seqlens, 12, 7, true, 64);
    check_lengths(ctx, seqlens, 12, 7, false, 64);
    check_lengths(ctx, seqlens, 12, 65, true, 16);
}

static void some_requests_without_keys(mla_ctx *ctx)
{
    const int32_t seqlens[] = {0, 200, 0, 0, 1, 63, 0};
    check_lengths(ctx, seqlens, 7, 1, false, 64);
    check_lengths(ctx, seqlens, 7, 3, true, 32);
}

/* All lengths 0: the pool may be empty and the block table have no columns. */
static void check_no_keys(mla_ctx *ctx, bool lse_empty_pos_inf, int64_t spare_columns)
{
    const int32_t seqlens[] = {0, 0, 0};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 2, 5, 64);
    problem.causal = true;
    problem.lse_empty_pos_inf = lse_empty_pos_inf;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem,
                        &(case_options){.seqlens = seqlens, .spare_columns = spare_columns});
    assert_int_equal(c.tensors.kv.num_pages, 0);
    attention_result result = attention_case_run(ctx, &c);
    for (int row = 0; row < 3 * 2 * 5; row++) {
        assert_true(result.lse[row] == (lse_empty_pos_inf ? INFINITY : -INFINITY));
        for (int i = 0; i < 512; i++) {
            assert_int_equal(result.out[row * 512 + i], 0);
        }
    }
}

static void no_request_has_keys(mla_ctx *ctx)
{
    check_no_keys(ctx, false, 0);
    check_no_keys(ctx, true, 0);
    check_no_keys(ctx, false, 3);
}

static void empty_rows_in_flashmlas_convention(mla_ctx *ctx)
{
    const int32_t seqlens[] = {0, 2, 130};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 4, 2, 64);
    problem.causal = true;
    problem.lse_empty_pos_inf = true;
    check_case(ctx, &problem, &(case_options){.seed = 5, .seqlens = seqlens});
}

/* An engine that captured a graph for 48 requests fills the unused ones with length 0 or 1. */
static void pad_rows_in_a_larger_batch(mla_ctx *ctx)
{
    int32_t seqlens[48];
    for (int i = 0; i < 48; i++) {
        seqlens[i] = i < 5 ? 300 + 17 * i : i % 2;
    }
    check_lengths(ctx, seqlens, 48, 1, false, 64);
    check_lengths(ctx, seqlens, 48, 2, true, 64);
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(lengths_around_tiles_and_pages),
        ISA_SCENARIO(lengths_below_the_query_tokens),
        ISA_SCENARIO(some_requests_without_keys),
        ISA_SCENARIO(no_request_has_keys),
        ISA_SCENARIO(empty_rows_in_flashmlas_convention),
        ISA_SCENARIO(pad_rows_in_a_larger_batch),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
