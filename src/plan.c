#include "plan.h"

#include "plan_rule.h"

#include <assert.h>
#include <string.h>

int64_t mla_plan_req_tokens(const mla_shape *shape, const mla_lengths *lengths, int64_t req)
{
    const mla_problem *p = &shape->problem;
    if (!shape->sparse) {
        return mla_cut_length(lengths->seqlens, req, INT32_MAX);
    }
    int64_t idx = p->op == MLA_OP_SPARSE_DECODE ? req / p->s_q : req;
    return mla_cut_length(lengths->topk_length, idx, p->topk) +
           (p->extra_topk ? mla_cut_length(lengths->extra_topk_length, idx, p->extra_topk) : 0);
}

static int64_t req_blocks(const mla_shape *shape, const mla_lengths *lengths, int64_t req)
{
    return (mla_plan_req_tokens(shape, lengths, req) + MLA_BLOCK_TOKENS - 1) / MLA_BLOCK_TOKENS;
}

/* Fills num_blocks and num_splits of every part from the cuts alone; returns how many requests are
 * split. */
static int64_t count_parts(const mla_shape *shape, const mla_lengths *lengths, mla_plan_part *parts,
                           int32_t num_parts)
{
    int64_t num_split_reqs = 0;
    for (int32_t i = 0; i < num_parts; i++) {
        mla_plan_part *part = &parts[i];
        int64_t blocks = part->end_block - part->begin_block;
        for (int64_t req = part->begin_req; req < part->end_req; req++) {
            blocks += req_blocks(shape, lengths, req);
        }
        part->num_blocks = (int32_t)(blocks < INT32_MAX ? blocks : INT32_MAX);
        part->num_splits = 0;
        if (mla_cut_splits(part)) {
            int32_t last = i + 1;
            while (parts[last].end_req == part->end_req) {
                last++;
            }
            part->num_splits = last - i + 1;
            num_split_reqs++;
        }
    }
    return num_split_reqs;
}

static mla_cut_totals add_up(const mla_shape *shape, const mla_lengths *lengths, int64_t num_reqs)
{
    mla_cut_totals totals = {.min_blocks = INT64_MAX};
    for (int64_t req = 0; req < num_reqs; req++) {
        int64_t blocks = req_blocks(shape, lengths, req);
        totals.blocks += blocks;
        totals.min_blocks = blocks < totals.min_blocks ? blocks : totals.min_blocks;
        totals.max_blocks = blocks > totals.max_blocks ? blocks : totals.max_blocks;
    }
    return totals;
}

void mla_plan_cut(const mla_shape *shape, const mla_lengths *lengths, const mla_cut_rule *rule,
                  void *buffer)
{
    assert(rule->max_parts >= 1 && rule->num_reqs >= 1);
    assert(rule->cost.block_cost >= 1 && rule->cost.request_cost >= 1);
    assert(rule->cost.min_piece_blocks >= 1 && rule->cost.min_part_blocks >= 1);
    mla_plan_header *header = buffer;
    mla_plan_part *parts = (mla_plan_part *)(header + 1);
    mla_cut_totals totals = add_up(shape, lengths, rule->num_reqs);
    mla_cut_choice choice = mla_cut_choose(rule, &totals);

    /* One walk over the requests meets the cuts in order. */
    mla_cut_pos previous = {0, 0};
    int64_t req = 0, req_begin = 0;
    for (int32_t i = 1; i <= choice.num_parts; i++) {
        mla_cut_pos cut = {rule->num_reqs, 0};
        if (i < choice.num_parts && choice.even) {
            cut = mla_cut_evenly(rule, &choice, totals.max_blocks, i);
        } else if (i < choice.num_parts) {
            int64_t place = mla_cut_place(rule, &choice, i);
            int64_t blocks = req_blocks(shape, lengths, req);
            while (place >= req_begin + mla_cut_req_cost(&rule->cost, blocks) &&
                   req + 1 < rule->num_reqs) {
                req_begin += mla_cut_req_cost(&rule->cost, blocks);
                blocks = req_blocks(shape, lengths, ++req);
            }
            cut = mla_cut_at(rule, req, blocks, place - req_begin);
        }
        parts[i - 1] = (mla_plan_part){.begin_req = previous.req,
                                       .begin_block = previous.block,
                                       .end_req = cut.req,
                                       .end_block = cut.block};
        previous = cut;
    }
    mla_plan_part idle = {.begin_req = rule->num_reqs, .end_req = rule->num_reqs};
    for (int32_t i = choice.num_parts; i < rule->max_parts; i++) {
        parts[i] = idle;
    }
    *header = (mla_plan_header){
        .magic = MLA_PLAN_MAGIC,
        .num_parts = choice.num_parts,
        .max_parts = rule->max_parts,
        .num_reqs = rule->num_reqs,
        .total_blocks = totals.blocks,
        .num_split_reqs = count_parts(shape, lengths, parts, choice.num_parts)};
}
