/* Private: mla_plan_cut() on thousands of random batches, as properties of its result. */
#include "cmocka_c11.h"
#include "random_source.h"

#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_REQS = 300 };

typedef struct random_cut {
    mla_shape shape;
    mla_lengths lengths;
    mla_cut_rule rule;
    int32_t seqlens[MOST_REQS];
    mla_plan_header *plan;
    const mla_plan_part *parts;
} random_cut;

static int64_t blocks_of(const random_cut *cut, int64_t req)
{
    return ((int64_t)cut->seqlens[req] + 63) / 64;
}

static int64_t cost_of(const random_cut *cut, int64_t blocks)
{
    return cut->rule.cost.request_cost + blocks * cut->rule.cost.block_cost;
}

/* Lengths of one of several kinds: all short, mixed, many zeros, one giant. */
static void draw_lengths(random_cut *cut, random_source *source)
{
    int64_t kind = random_below(source, 5);
    for (int64_t i = 0; i < cut->rule.num_reqs; i++) {
        int64_t most = kind == 0 ? 130 : kind == 1 ? 5000 : kind == 2 ? 64 : 1000;
        int64_t length = random_below(source, most + 1);
        if (kind == 2 && random_below(source, 3) != 0) {
            length = 0;
        }
        if (kind == 3 && i == cut->rule.num_reqs / 2) {
            length = 1000000 + random_below(source, 1000000);
        }
        cut->seqlens[i] = kind == 4 ? 4096 : (int32_t)length;
    }
}

static void make_random_cut(random_cut *cut, uint64_t seed)
{
    random_source source = {.state = seed};
    int32_t fixed_parts = (int32_t)(random_below(&source, 2) * (1 + random_below(&source, 200)));
    memset(cut, 0, sizeof *cut);
    cut->rule = (mla_cut_rule){
        .num_reqs = 1 + random_below(&source, seed % 3 == 0 ? 5 : MOST_REQS),
        .max_parts = fixed_parts > 0 ? fixed_parts : (int32_t)(1 + random_below(&source, 132)),
        .whole_requests = random_below(&source, 4) == 0,
        .exact_parts = fixed_parts > 0,
        .cost = {.request_cost = (int32_t)(1 + random_below(&source, 6)),
                 .block_cost = (int32_t)(1 + random_below(&source, 5)),
                 .min_piece_blocks = (int32_t)(1 + random_below(&source, 4)),
                 .min_part_blocks = (int32_t)(1 + random_below(&source, 8))}};
    draw_lengths(cut, &source);
    const mla_problem problem = {.struct_size = sizeof problem,
                                 .op = MLA_OP_DENSE_DECODE,
                                 .dtype = MLA_DTYPE_BF16,
                                 .batch = cut->rule.num_reqs,
                                 .s_q = 1,
                                 .h_q = 1,
                                 .h_kv = 1,
                                 .d_qk = 576,
                                 .d_v = 512,
                                 .page_size = 64};
    assert_int_equal(mla_shape_init(&problem, &cut->shape), MLA_OK);
    cut->lengths = (mla_lengths){.struct_size = sizeof cut->lengths, .seqlens = cut->seqlens};
    cut->plan = malloc(mla_plan_bytes(cut->rule.max_parts));
    assert_non_null(cut->plan);
    memset(cut->plan, 0xff, mla_plan_bytes(cut->rule.max_parts));
    mla_plan_cut(&cut->shape, &cut->lengths, &cut->rule, cut->plan);
    cut->parts = (const mla_plan_part *)(cut->plan + 1);
}

/* Position (req, block) with the end of a request written as the start of the next. */
static int64_t position(const random_cut *cut, int64_t req, int64_t block)
{
    int64_t at = 0;
    for (int64_t i = 0; i < req; i++) {
        at += blocks_of(cut, i) + 1; /* a request without blocks has a place too */
    }
    return at + block;
}

/* Parts follow each other without a gap from the first request to the end, and cuts lie inside
 * their request: so each block of each request is in exactly one part. */
static void assert_covers_all_once(const random_cut *cut)
{
    int64_t req = 0, block = 0;
    for (int32_t i = 0; i < cut->plan->num_parts; i++) {
        const mla_plan_part *part = &cut->parts[i];
        assert_int_equal(part->begin_req, req);
        assert_int_equal(part->begin_block, block);
        assert_true(part->end_req >= req && part->end_req <= cut->rule.num_reqs);
        assert_true(part->end_block >= 0);
        assert_true(part->end_block == 0 || part->end_block < blocks_of(cut, part->end_req));
        assert_true(position(cut, part->end_req, part->end_block) >= position(cut, req, block));
        req = part->end_req;
        block = part->end_block;
    }
    assert_int_equal(req, cut->rule.num_reqs);
    assert_int_equal(block, 0);
}

/* The part that starts the request and those that begin inside it. When there are more parts than
 * blocks, some of the latter are idle; they count, for their partials are merged like others. */
static int32_t splits_of(const random_cut *cut, int64_t req)
{
    int32_t splits = 1;
    for (int32_t i = 0; i < cut->plan->num_parts; i++) {
        splits += cut->parts[i].begin_req == req && cut->parts[i].begin_block > 0;
    }
    return splits;
}

static void assert_counts_right(const random_cut *cut)
{
    int64_t total = 0;
    for (int32_t i = 0; i < cut->plan->num_parts; i++) {
        const mla_plan_part *part = &cut->parts[i];
        int64_t blocks = part->end_block - part->begin_block;
        for (int64_t req = part->begin_req; req < part->end_req; req++) {
            blocks += blocks_of(cut, req);
        }
        assert_int_equal(part->num_blocks, blocks);
        total += blocks;
        bool first_piece_ends = part->end_block > 0 &&
                                (part->begin_req != part->end_req || part->begin_block == 0);
        int32_t want = first_piece_ends ? splits_of(cut, part->end_req) : 0;
        assert_int_equal(part->num_splits, want);
        assert_true(want == 0 || want >= 2);
    }
    assert_int_equal(cut->plan->total_blocks, total);
    assert_int_equal(cut->plan->num_reqs, cut->rule.num_reqs);
}

/*
 * A cut lies at most min_piece_blocks blocks and one request's fixed cost away from its place, so a
 * part costs at most the payload and two such distances. A continued request is charged for each
 * piece that a kernel has to start.
 */
static void assert_balanced(const random_cut *cut)
{
    int64_t total = 0, largest = 0, largest_req = 0;
    for (int64_t req = 0; req < cut->rule.num_reqs; req++) {
        int64_t cost = cost_of(cut, blocks_of(cut, req));
        total += cost;
        largest_req = cost > largest_req ? cost : largest_req;
    }
    for (int32_t i = 0; i < cut->plan->num_parts; i++) {
        const mla_plan_part *part = &cut->parts[i];
        int64_t started = part->end_req - part->begin_req + (part->end_block > 0) -
                          (part->begin_block > 0);
        int64_t cost = started * cut->rule.cost.request_cost +
                       (int64_t)part->num_blocks * cut->rule.cost.block_cost;
        largest = cost > largest ? cost : largest;
    }
    int64_t payload = (total + cut->plan->num_parts - 1) / cut->plan->num_parts;
    int64_t move = cost_of(cut, cut->rule.cost.min_piece_blocks);
    int64_t slack = cut->rule.whole_requests ? largest_req : 2 * move;
    if (largest > payload + slack) {
        fail_msg("a part costs %lld: the payload is %lld, the slack %lld", (long long)largest,
                 (long long)payload, (long long)slack);
    }
}

static void assert_options_kept(const random_cut *cut)
{
    assert_int_equal(cut->plan->magic, MLA_PLAN_MAGIC);
    assert_int_equal(cut->plan->max_parts, cut->rule.max_parts);
    assert_true(cut->plan->num_parts >= 1 && cut->plan->num_parts <= cut->rule.max_parts);
    if (cut->rule.exact_parts) {
        assert_int_equal(cut->plan->num_parts, cut->rule.max_parts);
    }
    for (int32_t i = 0; i < cut->plan->num_parts && cut->rule.whole_requests; i++) {
        assert_int_equal(cut->parts[i].end_block, 0);
    }
    for (int32_t i = cut->plan->num_parts; i < cut->rule.max_parts; i++) { /* idle records */
        assert_int_equal(cut->parts[i].begin_req, cut->parts[i].end_req);
        assert_int_equal(cut->parts[i].begin_block, cut->parts[i].end_block);
        assert_int_equal(cut->parts[i].num_blocks, 0);
    }
}

/* The same inputs give the same bytes, whatever the buffer held before. */
static void assert_pure(const random_cut *cut)
{
    size_t bytes = mla_plan_bytes(cut->rule.max_parts);
    void *again = calloc(1, bytes);
    assert_non_null(again);
    mla_plan_cut(&cut->shape, &cut->lengths, &cut->rule, again);
    assert_memory_equal(again, cut->plan, bytes);
    free(again);
}

static void random_batches(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        static random_cut cut;
        make_random_cut(&cut, seed);
        assert_options_kept(&cut);
        assert_covers_all_once(&cut);
        assert_counts_right(&cut);
        assert_balanced(&cut);
        assert_pure(&cut);
        free(cut.plan);
    }
}

static void lengths_of_each_operation(void **state)
{
    (void)state;
    mla_shape shape;
    mla_problem problem = {.struct_size = sizeof problem,
                           .op = MLA_OP_SPARSE_DECODE,
                           .dtype = MLA_DTYPE_BF16,
                           .batch = 3,
                           .s_q = 2,
                           .h_q = 1,
                           .h_kv = 1,
                           .d_qk = 576,
                           .d_v = 512,
                           .page_size = 64,
                           .topk = 100,
                           .extra_page_size = 2,
                           .extra_topk = 10};
    const int32_t topk_length[] = {-4, 70, 5000}, extra[] = {3, -1, 11};
    mla_lengths lengths = {.struct_size = sizeof lengths};
    assert_int_equal(mla_shape_init(&problem, &shape), MLA_OK);
    assert_int_equal(mla_plan_req_tokens(&shape, &lengths, 5), 110);
    lengths.topk_length = topk_length;
    lengths.extra_topk_length = extra;
    const int64_t want[] = {3, 3, 70, 70, 110, 110};
    for (int64_t req = 0; req < 6; req++) {
        assert_int_equal(mla_plan_req_tokens(&shape, &lengths, req), want[req]);
    }
    problem = (mla_problem){.struct_size = sizeof problem,
                            .op = MLA_OP_SPARSE_PREFILL,
                            .dtype = MLA_DTYPE_BF16,
                            .batch = 1,
                            .s_q = 3,
                            .h_q = 1,
                            .h_kv = 1,
                            .d_qk = 576,
                            .d_v = 512,
                            .page_size = 1,
                            .topk = 100};
    lengths.extra_topk_length = NULL;
    assert_int_equal(mla_shape_init(&problem, &shape), MLA_OK);
    assert_int_equal(mla_plan_req_tokens(&shape, &lengths, 0), 0);
    assert_int_equal(mla_plan_req_tokens(&shape, &lengths, 1), 70);
    assert_int_equal(mla_plan_req_tokens(&shape, &lengths, 2), 100);
}

/* The largest batches and lengths do not overflow the sums. */
static void largest_lengths(void **state)
{
    (void)state;
    static random_cut cut;
    make_random_cut(&cut, 0);
    free(cut.plan);
    cut.rule.num_reqs = MOST_REQS;
    cut.shape.problem.batch = MOST_REQS;
    cut.shape.num_reqs = MOST_REQS;
    cut.rule.max_parts = 132;
    cut.rule.exact_parts = true;
    cut.rule.whole_requests = false;
    for (int i = 0; i < MOST_REQS; i++) {
        cut.seqlens[i] = INT32_MAX;
    }
    cut.plan = malloc(mla_plan_bytes(132));
    assert_non_null(cut.plan);
    mla_plan_cut(&cut.shape, &cut.lengths, &cut.rule, cut.plan);
    cut.parts = (const mla_plan_part *)(cut.plan + 1);
    assert_options_kept(&cut);
    assert_covers_all_once(&cut);
    assert_counts_right(&cut);
    assert_balanced(&cut);
    free(cut.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches),
        cmocka_unit_test(lengths_of_each_operation),
        cmocka_unit_test(largest_lengths),
    };
    return cmocka_run_group_tests_name("plan_cut", tests, NULL, NULL);
}
