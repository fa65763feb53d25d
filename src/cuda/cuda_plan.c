#include "cuda_plan.h"

#include "cuda_context.h"
#include "cuda_query_rows.h"
#include "sm90/dense_args.h"
#include "sm90/plan_args.h"

/*
 * In blocks of 64 keys. Starting and finishing a piece takes about 9,000 clocks, a block 2,800.
 * While that fills the chip, parts of a single block are fine up to 64 of them: one request of
 * 4,096 tokens and 16 heads took 14.3 us on 32 parts, 13.7 on 48, 12.9 on 64. Beyond, parts of
 * one or two blocks save nothing: four such requests take 14.5 us on 64 parts, 14.0 on 96, 14.6 on
 * 128, one of 8,192 tokens 12.0 on 64 and on 128. (H200, December 2026, dense decode.)
 *
 * Sparse decode, whose rows arrive one by one, gains from single blocks up to 32 parts: one query
 * token of 2,048 FP8 keys and 128 heads took 20.0 us in 32 parts, 21.5 in 16 and 22.0 in 64, two
 * took 24.2 us in 32 parts, 30.6 in 16 and 26.1 in 64. (H200, December 2026.)
 */
static const mla_cost_model cost_models[] = {
    [MLA_OP_DENSE_DECODE] = {.request_cost = 3,
                             .block_cost = 1,
                             .min_piece_blocks = 2,
                             .min_part_blocks = 3,
                             .few_parts = 64},
    [MLA_OP_SPARSE_DECODE] = {.request_cost = 3,
                              .block_cost = 1,
                              .min_piece_blocks = 2,
                              .min_part_blocks = 2,
                              .few_parts = 32},
    [MLA_OP_SPARSE_PREFILL] = {.request_cost = 3,
                               .block_cost = 1,
                               .min_piece_blocks = 1,
                               .min_part_blocks = 1,
                               .few_parts = 0},
};

/*
 * Query tokens of a prefill are many and short, so they are not cut. Nor are fewer parts used so
 * that each has as many tokens (even_parts): where nothing is cut there is no ragged end to
 * spare, and every processor left idle costs.
 */
mla_cut_rule mla_cuda_cut_rule(const mla_ctx *ctx, const mla_shape *shape)
{
    const mla_problem *p = &shape->problem;
    const bool prefill = p->op == MLA_OP_SPARSE_PREFILL;
    const int64_t ctas_a_part = mla_cuda_lay_out_rows(shape).row_tiles * p->h_kv;
    int64_t parts = ctx->info.num_sms / ctas_a_part;
    mla_cut_rule rule = {.num_reqs = shape->num_reqs,
                         .whole_requests = prefill || p->batch_invariant,
                         .exact_parts = p->num_parts > 0,
                         .even_parts = !prefill,
                         .cost = cost_models[p->op]};
    if (rule.exact_parts) {
        parts = p->num_parts;
    }
    rule.max_parts = parts > 1 ? (int32_t)parts : 1;
    return rule;
}

bool mla_cuda_may_split(const mla_cut_rule *rule)
{
    return rule->max_parts > 1 && !rule->whole_requests;
}

int64_t mla_cuda_num_partials(const mla_cut_rule *rule, const mla_shape *shape)
{
    return (int64_t)rule->max_parts * 2 * shape->problem.h_kv *
           mla_cuda_lay_out_rows(shape).row_tiles;
}

mla_status mla_cuda_get_sizes(const mla_ctx *ctx, const mla_shape *shape, mla_sizes *sizes)
{
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, shape);
    sizes->plan_bytes = mla_plan_bytes(rule.max_parts);
    sizes->workspace_bytes = mla_cuda_may_split(&rule)
                                 ? (size_t)mla_cuda_num_partials(&rule, shape) *
                                       sizeof(mla_sm90_partial)
                                 : 0;
    return MLA_OK;
}

mla_status mla_cuda_plan_build(const mla_ctx *ctx, const mla_shape *shape,
                               const mla_lengths *lengths, void *plan_buffer, void *stream)
{
    const mla_problem *p = &shape->problem;
    mla_sm90_plan_args args = {.rule = mla_cuda_cut_rule(ctx, shape),
                               .lengths = lengths->seqlens,
                               .most_tokens = INT32_MAX,
                               .reqs_a_length = 1,
                               .plan = plan_buffer};
    if (shape->sparse) {
        args.lengths = lengths->topk_length;
        args.most_tokens = (int32_t)p->topk;
        args.extra_lengths = lengths->extra_topk_length;
        args.most_extra_tokens = (int32_t)p->extra_topk;
        args.reqs_a_length = p->op == MLA_OP_SPARSE_DECODE ? (int32_t)p->s_q : 1;
    }
    const mla_cuda_launch launch = {
        .kernel = MLA_CUDA_PLAN_CUT, .grid = 1, .threads = MLA_SM90_PLAN_THREADS, .args = &args};
    return mla_cuda_enqueue(ctx, &launch, 1, stream);
}
