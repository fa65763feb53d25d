/* Plans in use: across layers, rebuilt in place, copied, stale, and looked at. */
#include "isa_scenarios.h"

#include "random_source.h"

#include <string.h>

enum { BATCH = 6 };

static const int32_t SEQLENS[BATCH] = {500, 64, 0, 129, 1, 300};

static mla_problem split_problem(void)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, BATCH, 2, 5, 16);
    problem.causal = true;
    problem.num_parts = 9;
    return problem;
}

/* One plan serves many layers: other tensors, scale and empty-row convention. */
static void one_plan_serves_all_layers(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case layers[3];
    for (int i = 0; i < 3; i++) {
        attention_case_make(&layers[i], &problem,
                            &(case_options){.seed = 500 + (uint64_t)i, .seqlens = SEQLENS});
    }
    mla_plan plan = attention_case_plan(ctx, &layers[0]);
    for (int i = 0; i < 3; i++) {
        layers[i].problem.softmax_scale = 0.02 * (i + 1);
        layers[i].problem.lse_empty_pos_inf = i == 1;
        attention_result own = assert_case_right(ctx, &layers[i]);
        attention_result shared = attention_case_run_plan(ctx, &layers[i], &plan);
        assert_results_identical(&problem, &shared, &own);
    }
}

/*
 * Replaces the lengths of a case. They may only shrink below those that it was made with; the
 * entries of the block table that fall out of use become wild.
 */
static void set_lengths(attention_case *c, const int32_t *seqlens, const int32_t *whole_table)
{
    int64_t max_pages = c->tensors.max_pages, page_size = c->problem.page_size;
    memcpy(c->seqlens, seqlens, BATCH * sizeof *seqlens);
    for (int64_t i = 0; i < BATCH * max_pages; i++) {
        bool used = i % max_pages * page_size < seqlens[i / max_pages];
        c->block_table[i] = used ? whole_table[i] : i % 2 ? INT32_MAX : -1;
    }
}

/* A copy of the case's block table, to be given to set_lengths(). */
static const int32_t *copy_table(const attention_case *c)
{
    size_t bytes = BATCH * (size_t)c->tensors.max_pages * sizeof(int32_t);
    int32_t *copy = guarded_alloc(bytes, sizeof *copy);
    memcpy(copy, c->block_table, bytes);
    return copy;
}

static const int32_t OTHER_LENGTHS[][BATCH] = {
    {1, 1, 0, 1, 1, 1},        /* shorter */
    {0, 0, 0, 0, 0, 0},        /* none */
    {500, 64, 0, 129, 1, 300}, /* longer again */
    {0, 64, 0, 0, 0, 0},       /* others than before */
    {30, 64, 0, 129, 1, 299},  /* one shrinks, one is a token shorter */
    {129, 1, 0, 64, 1, 300},   /* permuted */
};

static void a_plan_is_rebuilt_in_place(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 510, .seqlens = SEQLENS});
    mla_plan plan = attention_case_plan(ctx, &c);
    const int32_t *table = copy_table(&c);
    for (size_t i = 0; i < sizeof OTHER_LENGTHS / sizeof OTHER_LENGTHS[0]; i++) {
        set_lengths(&c, OTHER_LENGTHS[i], table);
        assert_int_equal(mla_plan_build(ctx, &problem, &c.lengths, &plan, NULL), MLA_OK);
        attention_result rebuilt = attention_case_run_plan(ctx, &c, &plan);
        attention_result fresh = assert_case_right(ctx, &c);
        assert_results_identical(&problem, &rebuilt, &fresh);
    }
}

/* A plan of other lengths may give a wrong answer; it writes only the outputs and returns. */
static void check_stale_lengths(mla_ctx *ctx, const mla_problem *problem)
{
    if (!isa_serves(ctx, problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, problem, &(case_options){.seed = 520, .seqlens = SEQLENS});
    const int32_t *table = copy_table(&c);
    size_t count = sizeof OTHER_LENGTHS / sizeof OTHER_LENGTHS[0];
    for (size_t i = 0; i < count * count; i++) {
        size_t mark = guarded_mark();
        set_lengths(&c, OTHER_LENGTHS[i / count], table);
        mla_plan plan = attention_case_plan(ctx, &c);
        set_lengths(&c, OTHER_LENGTHS[i % count], table);
        (void)attention_case_run_plan(ctx, &c, &plan);
        guarded_release(mark);
    }
}

static void stale_lengths_never_fault(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    check_stale_lengths(ctx, &problem);
    problem.causal = false;
    check_stale_lengths(ctx, &problem);
}

static void stale_sparse_lengths_never_fault(mla_ctx *ctx)
{
    const int32_t lengths[] = {0, 200, 64}, others[] = {200, 0, 65};
    mla_problem problem = sparse_problem(MLA_KV_FP8_656, 3, 2, 5, 64, 200);
    problem.num_parts = 5;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem,
                        &(case_options){.seed = 521, .pool_pages = 3, .topk_length = lengths});
    mla_plan plan = attention_case_plan(ctx, &c);
    memcpy((int32_t *)(uintptr_t)c.tensors.topk_length, others, sizeof others);
    (void)attention_case_run_plan(ctx, &c, &plan);
}

/* Records that no plan has, as a torn copy of the buffer would hold them. */
static void mangled_plans_never_fault(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 522, .seqlens = SEQLENS});
    random_source source = {.state = 523};
    for (int i = 0; i < 40; i++) {
        size_t mark = guarded_mark();
        mla_plan plan = attention_case_plan(ctx, &c);
        size_t words = plan.buffer_bytes / sizeof(int32_t);
        for (int j = 0; j < 3; j++) {
            const int32_t wild[] = {-1, INT32_MAX, INT32_MIN, 0, 3, 100};
            /* The header, 16 words, says what the buffer is; the records follow. */
            size_t word = 16 + (size_t)random_below(&source, (int64_t)words - 16);
            ((int32_t *)plan.buffer)[word] = wild[random_below(&source, 6)];
        }
        (void)attention_case_run_plan(ctx, &c, &plan);
        guarded_release(mark);
    }
}

static void a_copied_plan_is_attached(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 530, .seqlens = SEQLENS});
    mla_plan plan = attention_case_plan(ctx, &c);
    mla_plan copy = {.struct_size = sizeof copy,
                     .buffer = guarded_alloc(plan.buffer_bytes, 16),
                     .buffer_bytes = plan.buffer_bytes};
    mla_ctx *other = open_cpu_ctx(scenario_isa(), 0);
    assert_int_equal(mla_plan_attach(other, &problem, &copy), MLA_OK);
    memcpy(copy.buffer, plan.buffer, plan.buffer_bytes);
    attention_result original = attention_case_run_plan(ctx, &c, &plan);
    attention_result attached = attention_case_run_plan(other, &c, &copy);
    assert_results_identical(&problem, &attached, &original);
    mla_ctx_destroy(other);
}

/* A buffer that a context of more threads filled: one thread cuts no request, and has no room for
 * partial results. */
static void a_plan_for_other_threads_is_refused(mla_ctx *ctx)
{
    const int32_t seqlens[] = {2000, 40, 700};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 1, 5, 64);
    if (scenario_isa() == MLA_ISA_REFERENCE || !isa_serves(ctx, &problem)) {
        return; /* the reference needs no plan */
    }
    mla_ctx *one = open_cpu_ctx(scenario_isa(), 1), *four = open_cpu_ctx(scenario_isa(), 4);
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 532, .seqlens = seqlens});
    mla_plan of_one = attention_case_plan(one, &c), of_four = attention_case_plan(four, &c);
    size_t bytes = of_one.buffer_bytes > of_four.buffer_bytes ? of_one.buffer_bytes
                                                              : of_four.buffer_bytes;
    mla_plan copy = {
        .struct_size = sizeof copy, .buffer = guarded_alloc(bytes, 16), .buffer_bytes = bytes};
    memcpy(copy.buffer, of_four.buffer, of_four.buffer_bytes);
    assert_int_equal(mla_plan_attach(one, &problem, &copy), MLA_OK);
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_int_equal(mla_get_sizes(one, &problem, &sizes), MLA_OK);
    void *workspace = guarded_alloc(sizes.workspace_bytes, 64);
    mla_tensors tensors = c.tensors;
    tensors.out = guarded_alloc(sizeof(uint16_t) * 3 * 5 * 512, 16);
    assert_int_equal(
        mla_run(one, &problem, &tensors, &copy, workspace, sizes.workspace_bytes, NULL),
        MLA_ERR_PLAN_MISMATCH);
    assert_non_null(strstr(mla_last_error(), "a context of 1 threads does not build"));
    mla_ctx_destroy(four);
    mla_ctx_destroy(one);
}

static void parts_can_be_read(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 531, .seqlens = SEQLENS});
    mla_plan plan = attention_case_plan(ctx, &c);
    mla_plan_part part = {0}, previous = {0};
    int64_t num_parts = 0, blocks = 0;
    assert_int_equal(mla_plan_get_part(&plan, 0, NULL, &num_parts), MLA_OK);
    assert_int_equal(num_parts, 9);
    for (int64_t i = 0; i < num_parts; i++) {
        assert_int_equal(mla_plan_get_part(&plan, i, &part, NULL), MLA_OK);
        assert_int_equal(part.begin_req, previous.end_req);
        assert_int_equal(part.begin_block, previous.end_block);
        blocks += part.num_blocks;
        previous = part;
    }
    assert_int_equal(part.end_req, BATCH);
    assert_int_equal(blocks, 8 + 1 + 0 + 3 + 1 + 5);
}

/* Sizes depend on the shape alone and the workspace does not grow with the batch. */
static void sizes_do_not_grow_with_the_batch(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 1, 1, 128, 64);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    mla_ctx *two = open_cpu_ctx(scenario_isa(), 2);
    mla_sizes small = {.struct_size = sizeof small}, large = {.struct_size = sizeof large};
    problem.batch = 1000;
    assert_int_equal(mla_get_sizes(two, &problem, &small), MLA_OK);
    problem.batch = INT32_MAX;
    assert_int_equal(mla_get_sizes(two, &problem, &large), MLA_OK);
    assert_int_equal(large.workspace_bytes, small.workspace_bytes);
    assert_int_equal(large.plan_bytes, small.plan_bytes);
    assert_true(large.workspace_bytes <= (size_t)2 * 4 << 20); /* 4 MiB a thread */
    mla_ctx_destroy(two);
}

/* Buffers larger than asked for are as good. */
static void larger_buffers_are_accepted(mla_ctx *ctx)
{
    mla_problem problem = split_problem();
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 532, .seqlens = SEQLENS});
    attention_result exact = attention_case_run(ctx, &c);
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_int_equal(mla_get_sizes(ctx, &problem, &sizes), MLA_OK);
    mla_plan plan = {.struct_size = sizeof plan,
                     .buffer = guarded_alloc(sizes.plan_bytes + 4096, 16),
                     .buffer_bytes = sizes.plan_bytes + 4096};
    assert_int_equal(mla_plan_build(ctx, &problem, &c.lengths, &plan, NULL), MLA_OK);
    attention_result result = attention_case_run_plan(ctx, &c, &plan);
    assert_results_identical(&problem, &result, &exact);
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(one_plan_serves_all_layers),
        ISA_SCENARIO(a_plan_is_rebuilt_in_place),
        ISA_SCENARIO(stale_lengths_never_fault),
        ISA_SCENARIO(stale_sparse_lengths_never_fault),
        ISA_SCENARIO(mangled_plans_never_fault),
        ISA_SCENARIO(a_copied_plan_is_attached),
        ISA_SCENARIO(a_plan_for_other_threads_is_refused),
        ISA_SCENARIO(parts_can_be_read),
        ISA_SCENARIO(sizes_do_not_grow_with_the_batch),
        ISA_SCENARIO(larger_buffers_are_accepted),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
