#include "plan.h"

#include <assert.h>
#include <string.h>

/* A place in the laid-out requests: before block `block` of request `req`. */
typedef struct cut_pos {
    int64_t req;
    int32_t block;
} cut_pos;

static int64_t clamp_length(const int32_t *lengths, int64_t idx, int64_t most)
{
    if (lengths == NULL) {
        return most;
    }
    int64_t length = lengths[idx];
    return length < 0 ? 0 : length > most ? most : length;
}

int64_t mla_plan_req_tokens(const mla_shape *shape, const mla_lengths *lengths, int64_t req)
{
    const mla_problem *p = &shape->problem;
    if (!shape->sparse) {
        return clamp_length(lengths->seqlens, req, INT32_MAX);
    }
    int64_t idx = p->op == MLA_OP_SPARSE_DECODE ? req / p->s_q : req;
    return clamp_length(lengths->topk_length, idx, p->topk) +
           (p->extra_topk ? clamp_length(lengths->extra_topk_length, idx, p->extra_topk) : 0);
}

static int64_t req_blocks(const mla_shape *shape, const mla_lengths *lengths, int64_t req)
{
    return (mla_plan_req_tokens(shape, lengths, req) + MLA_BLOCK_TOKENS - 1) / MLA_BLOCK_TOKENS;
}

static int64_t req_cost(const mla_cost_model *cost, int64_t blocks)
{
    return cost->request_cost + blocks * cost->block_cost;
}

/*
 * Where a cut at `offset` cost units into a request of `blocks` blocks falls. Cuts near either
 * end move to that end, so that no part starts a request for a sliver of it.
 */
static cut_pos place_cut(const mla_cut_rule *rule, int64_t req, int64_t blocks, int64_t offset)
{
    const mla_cost_model *cost = &rule->cost;
    cut_pos begin = {req, 0}, end = {req + 1, 0};
    if (rule->whole_requests) {
        return 2 * offset < req_cost(cost, blocks) ? begin : end;
    }
    int64_t block = (offset - cost->request_cost + cost->block_cost / 2) / cost->block_cost;
    if (offset <= cost->request_cost || block < cost->min_piece_blocks) {
        return begin;
    }
    if (blocks - block < cost->min_piece_blocks) {
        return end;
    }
    return (cut_pos){req, (int32_t)block};
}

static int32_t choose_parts(const mla_cut_rule *rule, int64_t total_blocks)
{
    if (rule->exact_parts) {
        return rule->max_parts;
    }
    int64_t parts = total_blocks / rule->cost.min_part_blocks;
    /* Requests without keys still take a part's time, so they count like blocks here. */
    parts = parts > rule->num_reqs ? parts : rule->num_reqs;
    return (int32_t)(parts < 1 ? 1 : parts < rule->max_parts ? parts : rule->max_parts);
}

/* Fills num_blocks and num_splits of every part from the cuts alone. */
static void count_parts(const mla_shape *shape, const mla_lengths *lengths, mla_plan_part *parts,
                        int32_t num_parts)
{
    for (int32_t i = 0; i < num_parts; i++) {
        mla_plan_part *part = &parts[i];
        int64_t blocks = part->end_block - part->begin_block;
        for (int64_t req = part->begin_req; req < part->end_req; req++) {
            blocks += req_blocks(shape, lengths, req);
        }
        part->num_blocks = (int32_t)(blocks < INT32_MAX ? blocks : INT32_MAX);
        part->num_splits = 0;
        bool holds_first_piece = part->end_block > 0 &&
                                 (part->begin_req < part->end_req || part->begin_block == 0);
        if (holds_first_piece) {
            int32_t last = i + 1;
            while (parts[last].end_req == part->end_req) {
                last++;
            }
            part->num_splits = last - i + 1;
        }
    }
}

void mla_plan_cut(const mla_shape *shape, const mla_lengths *lengths, const mla_cut_rule *rule,
                  void *buffer)
{
    assert(rule->max_parts >= 1);
    assert(rule->cost.block_cost >= 1 && rule->cost.request_cost >= 1);
    assert(rule->cost.min_piece_blocks >= 1 && rule->cost.min_part_blocks >= 1);
    mla_plan_header *header = buffer;
    mla_plan_part *parts = (mla_plan_part *)(header + 1);

    int64_t total_blocks = 0, total_cost = 0;
    for (int64_t req = 0; req < rule->num_reqs; req++) {
        int64_t blocks = req_blocks(shape, lengths, req);
        total_blocks += blocks;
        total_cost += req_cost(&rule->cost, blocks);
    }
    int32_t num_parts = choose_parts(rule, total_blocks);
    *header = (mla_plan_header){.magic = MLA_PLAN_MAGIC,
                                .num_parts = num_parts,
                                .max_parts = rule->max_parts,
                                .column_parts = 1,
                                .num_reqs = rule->num_reqs,
                                .total_blocks = total_blocks};

    /* Cut i lies at i equal payloads; the first `rest` payloads are one unit larger. One walk over
     * the requests meets the cuts in order. */
    int64_t payload = total_cost / num_parts, rest = total_cost % num_parts;
    cut_pos previous = {0, 0};
    int64_t req = 0, req_begin = 0;
    for (int32_t i = 0; i < num_parts; i++) {
        cut_pos cut = {rule->num_reqs, 0};
        if (i + 1 < num_parts) {
            int64_t place = payload * (i + 1) + (i + 1 < rest ? i + 1 : rest);
            int64_t blocks = req_blocks(shape, lengths, req);
            while (place >= req_begin + req_cost(&rule->cost, blocks) && req + 1 < rule->num_reqs) {
                req_begin += req_cost(&rule->cost, blocks);
                blocks = req_blocks(shape, lengths, ++req);
            }
            cut = place_cut(rule, req, blocks, place - req_begin);
        }
        parts[i] = (mla_plan_part){.begin_req = previous.req,
                                   .begin_block = previous.block,
                                   .end_req = cut.req,
                                   .end_block = cut.block};
        previous = cut;
    }
    mla_plan_part idle = {.begin_req = rule->num_reqs, .end_req = rule->num_reqs};
    for (int32_t i = num_parts; i < rule->max_parts; i++) {
        parts[i] = idle;
    }
    count_parts(shape, lengths, parts, num_parts);
}
