/* Counts of heads, KV heads, query tokens, requests and parts. */
#include "isa_scenarios.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void query_head_counts(mla_ctx *ctx)
{
    const int64_t heads[] = {1,  2,  3,  5,  8,  12,  16,  20,  24,  40,
                             63, 64, 65, 80, 96, 127, 128, 129, 192, 256};
    const int32_t seqlens[] = {70, 129};
    for (int i = 0; i < COUNT(heads); i++) {
        mla_problem problem = dense_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 2, 1, heads[i],
                                            64);
        problem.d_qk = i % 3 ? 576 : 512;
        check_case(ctx, &problem, &(case_options){.seed = (uint64_t)i, .seqlens = seqlens});
        problem.dtype = i % 2 ? MLA_DTYPE_BF16 : MLA_DTYPE_F16;
        check_case(ctx, &problem, &(case_options){.seed = (uint64_t)i, .seqlens = seqlens});
    }
}

static void kv_head_counts(mla_ctx *ctx)
{
    const int64_t kv_heads[] = {1, 2, 3, 8}, group[] = {1, 2, 16, 65};
    const int32_t seqlens[] = {300, 0, 65};
    for (int i = 0; i < COUNT(kv_heads); i++) {
        for (int j = 0; j < COUNT(group); j++) {
            mla_problem problem = dense_problem(j % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 3, 2,
                                                kv_heads[i] * group[j], 16);
            problem.h_kv = kv_heads[i];
            problem.causal = i % 2 != 0;
            problem.num_parts = 3 * (j % 2);
            check_case(ctx, &problem, &(case_options){.seed = 3, .seqlens = seqlens});
        }
    }
}

static void query_token_counts(mla_ctx *ctx)
{
    const int64_t tokens[] = {1, 2, 3, 4, 8, 17, 64, 512};
    for (int i = 0; i < COUNT(tokens); i++) {
        for (int causal = 0; causal < 2; causal++) {
            const int32_t seqlens[] = {(int32_t)tokens[i] + 40, 30};
            mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, tokens[i],
                                                tokens[i] > 100 ? 1 : 3, 64);
            problem.causal = causal;
            check_case(ctx, &problem, &(case_options){.seed = 4, .seqlens = seqlens});
        }
    }
}

static void batch_sizes(mla_ctx *ctx)
{
    const int64_t batches[] = {1, 2, 37, 131, 132, 133};
    for (int i = 0; i < COUNT(batches); i++) {
        check_cycling_lengths(ctx, batches[i], 1, 2, 70);
        check_cycling_lengths(ctx, batches[i], 3, 1, 20);
    }
}

static void part_counts(mla_ctx *ctx)
{
    const int32_t parts[] = {1, 2, 3, 31, 32, 33, 64, 132, 161, 256, 1000};
    const int32_t seqlens[] = {2500, 0, 1, 130, 7000};
    for (int i = 0; i < COUNT(parts); i++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 1, 2, 64);
        problem.num_parts = parts[i];
        check_case(ctx, &problem, &(case_options){.seed = 8, .seqlens = seqlens});
        problem.dtype = MLA_DTYPE_F16;
        problem.batch_invariant = true;
        check_case(ctx, &problem, &(case_options){.seed = 8, .seqlens = seqlens});
    }
}

/* One block and many parts; rows of several tiles so that partials of all tiles are merged. */
static void more_parts_than_blocks(mla_ctx *ctx)
{
    const int32_t seqlens[] = {1, 64, 65, 300};
    for (int64_t heads = 1; heads <= 300; heads += 149) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 2, heads, 64);
        problem.num_parts = 161;
        problem.causal = true;
        check_case(ctx, &problem, &(case_options){.seed = 9, .seqlens = seqlens});
    }
}

static void thread_counts(mla_ctx *ctx)
{
    const int32_t threads[] = {1, 2, 3, 7, 16};
    const int32_t seqlens[] = {900, 0, 65};
    (void)ctx;
    for (int i = 0; i < COUNT(threads); i++) {
        mla_ctx *own = open_cpu_ctx(scenario_isa(), threads[i]);
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 1, 20, 64);
        check_case(own, &problem, &(case_options){.seed = 10, .seqlens = seqlens});
        mla_ctx_destroy(own);
    }
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(query_head_counts),  ISA_SCENARIO(kv_head_counts),
        ISA_SCENARIO(query_token_counts), ISA_SCENARIO(batch_sizes),
        ISA_SCENARIO(part_counts),        ISA_SCENARIO(more_parts_than_blocks),
        ISA_SCENARIO(thread_counts),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
