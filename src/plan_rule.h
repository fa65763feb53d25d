/*
 * The arithmetic of a schedule's cuts: pure functions that plan.c and the plan kernel of the GPU
 * both compile, so that host and device cut bit for bit alike.
 */
#ifndef MLA_SRC_PLAN_RULE_H
#define MLA_SRC_PLAN_RULE_H

#include "plan.h"

/* A place in the laid-out requests: before block `block` of request `req`. */
typedef struct mla_cut_pos {
    int64_t req;
    int32_t block;
} mla_cut_pos;

/* What a batch adds up to. */
typedef struct mla_cut_totals {
    int64_t blocks;
    int64_t min_blocks, max_blocks; /* of a request */
} mla_cut_totals;

/* Parts in use, and where the cuts lie; see mla_cut_place(). */
typedef struct mla_cut_choice {
    int32_t num_parts;
    bool even; /* all requests are equally long and divide evenly: mla_cut_evenly() says where */
    int64_t payload, rest;
} mla_cut_choice;

MLA_HOST_DEVICE static inline int64_t mla_cut_req_cost(const mla_cost_model *cost, int64_t blocks)
{
    return cost->request_cost + blocks * cost->block_cost;
}

/* A length as the caller gave it, within [0, most]. */
MLA_HOST_DEVICE static inline int64_t mla_cut_clamp(int64_t length, int64_t most)
{
    return length < 0 ? 0 : length > most ? most : length;
}

/* Entry `idx` of the caller's lengths within [0, most]; `most` where the caller gave none. */
MLA_HOST_DEVICE static inline int64_t mla_cut_length(const int32_t *lengths, int64_t idx,
                                                     int64_t most)
{
    return lengths == NULL ? most : mla_cut_clamp(lengths[idx], most);
}

/* Blocks that cost `amount`. A division of 64 bits takes long on a GPU, and the tables have 1. */
MLA_HOST_DEVICE static inline int64_t mla_cut_blocks(const mla_cost_model *cost, int64_t amount)
{
    return cost->block_cost == 1 ? amount : amount / cost->block_cost;
}

/*
 * Where a cut at `offset` cost units into a request of `blocks` blocks falls. Cuts near either
 * end move to that end, so that no part starts a request for a sliver of it.
 */
MLA_HOST_DEVICE static inline mla_cut_pos mla_cut_at(const mla_cut_rule *rule, int64_t req,
                                                     int64_t blocks, int64_t offset)
{
    const mla_cost_model *cost = &rule->cost;
    mla_cut_pos begin = {req, 0}, end = {req + 1, 0};
    if (rule->whole_requests) {
        return 2 * offset < mla_cut_req_cost(cost, blocks) ? begin : end;
    }
    int64_t block = mla_cut_blocks(cost, offset - cost->request_cost + cost->block_cost / 2);
    if (offset <= cost->request_cost || block < cost->min_piece_blocks) {
        return begin;
    }
    if (blocks - block < cost->min_piece_blocks) {
        return end;
    }
    mla_cut_pos inside = {req, (int32_t)block};
    return inside;
}

/* Parts that the batch is worth: none much smaller than min_part_blocks, but few_parts at least. */
MLA_HOST_DEVICE static inline int64_t mla_cut_wanted_parts(const mla_cut_rule *rule, int64_t blocks,
                                                           int64_t max_parts)
{
    int64_t parts = blocks / rule->cost.min_part_blocks;
    int64_t few = blocks < rule->cost.few_parts ? blocks : rule->cost.few_parts;
    parts = parts > few ? parts : few;
    /* Requests without keys still take a part's time, so they count like blocks here. */
    parts = parts > rule->num_reqs ? parts : rule->num_reqs;
    return parts < max_parts ? parts : max_parts;
}

/*
 * A few parts fewer, where that spares ragged ends: as many as give every part the same number of
 * blocks at most; and when all requests are equally long, a number that divides the requests or is
 * a multiple of them, if one lies within a sixteenth.
 */
MLA_HOST_DEVICE static inline int64_t mla_cut_even_parts(const mla_cut_rule *rule, int64_t parts,
                                                         const mla_cut_totals *totals)
{
    if (totals->min_blocks == totals->max_blocks) {
        for (int64_t fewer = parts; 16 * fewer >= 15 * parts && fewer > 1; fewer--) {
            if (rule->num_reqs % fewer == 0 || fewer % rule->num_reqs == 0) {
                parts = fewer;
                break;
            }
        }
    }
    if (totals->blocks > 0 && rule->num_reqs < parts) {
        int64_t each = (totals->blocks + parts - 1) / parts;
        int64_t fewer = (totals->blocks + each - 1) / each;
        parts = fewer > rule->num_reqs ? fewer : rule->num_reqs;
    }
    return parts;
}

MLA_HOST_DEVICE static inline mla_cut_choice mla_cut_choose(const mla_cut_rule *rule,
                                                            const mla_cut_totals *totals)
{
    mla_cut_choice choice = {rule->max_parts, false, 0, 0};
    if (!rule->exact_parts) {
        int64_t parts = mla_cut_wanted_parts(rule, totals->blocks, rule->max_parts);
        if (rule->even_parts) {
            parts = mla_cut_even_parts(rule, parts, totals);
        }
        choice.num_parts = (int32_t)(parts > 1 ? parts : 1);
    }
    choice.even = rule->even_parts && totals->min_blocks == totals->max_blocks &&
                  (rule->num_reqs % choice.num_parts == 0 ||
                   (!rule->whole_requests && choice.num_parts % rule->num_reqs == 0));
    int64_t cost = rule->num_reqs * rule->cost.request_cost +
                   totals->blocks * rule->cost.block_cost;
    cost -= rule->cost.request_cost;
    choice.payload = cost / choice.num_parts;
    choice.rest = cost % choice.num_parts;
    return choice;
}

/*
 * Where cut i, 1 ... num_parts - 1, lies in the laid-out costs. Every part pays for starting its
 * first piece, also in the middle of a request, so what is shared out evenly is the rest.
 */
MLA_HOST_DEVICE static inline int64_t mla_cut_place(const mla_cut_rule *rule,
                                                    const mla_cut_choice *choice, int64_t i)
{
    return rule->cost.request_cost + choice->payload * i + choice->rest * i / choice->num_parts;
}

/* Where it lies when the choice is even: requests of `blocks` blocks, each cut alike. */
MLA_HOST_DEVICE static inline mla_cut_pos
mla_cut_evenly(const mla_cut_rule *rule, const mla_cut_choice *choice, int64_t blocks, int64_t i)
{
    int64_t requests = i * rule->num_reqs, rest = requests % choice->num_parts;
    mla_cut_pos cut = {requests / choice->num_parts, (int32_t)(blocks * rest / choice->num_parts)};
    return cut;
}

/* Whether a part ends with the first piece of a request that other parts finish. */
MLA_HOST_DEVICE static inline bool mla_cut_splits(const mla_plan_part *part)
{
    return part->end_block > 0 && (part->begin_req < part->end_req || part->begin_block == 0);
}

#endif
