/* Every field of mla_problem spoiled, in each function that takes a problem. */
#include "bad_arguments.h"
#include "spoiled_call.h"

#include <math.h>

#define PROBLEM(field) FIELD(mla_problem, field), SET

static const spoiled_field ANY_PROBLEM[] = {
    {PROBLEM(struct_size), 0, INVALID, "problem->struct_size = 0"},
    {PROBLEM(struct_size), 4, INVALID, "problem->struct_size = 4"},
    {PROBLEM(struct_size), 1 << 20, INVALID, "problem->struct_size = 1048576"},
    {PROBLEM(op), 0, INVALID, "op = 0"},
    {PROBLEM(op), 4, INVALID, "op = 4"},
    {PROBLEM(op), -1, INVALID, "op = -1"},
    {PROBLEM(dtype), 0, INVALID, "dtype = 0"},
    {PROBLEM(dtype), MLA_DTYPE_F32, INVALID, "dtype = 3"},
    {PROBLEM(kv_format), 3, INVALID, "kv_format = 3"},
    {PROBLEM(kv_format), -1, INVALID, "kv_format = -1"},
    {PROBLEM(batch), 0, INVALID, "batch = 0"},
    {PROBLEM(batch), -5, INVALID, "batch = -5"},
    {PROBLEM(batch), (int64_t)1 << 31, INVALID, "batch = 2147483648"},
    {PROBLEM(s_q), 0, INVALID, "s_q = 0"},
    {PROBLEM(s_q), -1, INVALID, "s_q = -1"},
    {PROBLEM(s_q), INT64_MAX, INVALID, "s_q = 9223372036854775807"},
    {PROBLEM(h_q), 0, INVALID, "h_q = 0"},
    {PROBLEM(h_q), -128, INVALID, "h_q = -128"},
    {PROBLEM(h_q), INT64_MAX, INVALID, "h_q = 9223372036854775807"},
    {PROBLEM(h_kv), 0, INVALID, "h_kv = 0"},
    {PROBLEM(h_kv), 3, INVALID, "h_kv = 3"},
    {PROBLEM(d_qk), 0, INVALID, "d_qk = 0"},
    {PROBLEM(d_qk), 575, INVALID, "d_qk = 575"},
    {PROBLEM(d_v), 0, INVALID, "d_v = 0"},
    {PROBLEM(d_v), 576, INVALID, "d_v = 576"},
    {PROBLEM(page_size), 0, INVALID, "page_size = 0"},
    {PROBLEM(page_size), -64, INVALID, "page_size = -64"},
    {PROBLEM(page_size), INT64_MAX, INVALID, "page_size = 9223372036854775807"},
    {PROBLEM(num_parts), -1, INVALID, "num_parts = -1"},
    {PROBLEM(num_parts), 65537, INVALID, "num_parts = 65537"},
};

static const spoiled_field DENSE_PROBLEM[] = {
    {PROBLEM(topk), 64, INVALID, "topk = 64"},
    {PROBLEM(extra_topk), 64, INVALID, "extra_topk = 64"},
    {PROBLEM(extra_page_size), 64, INVALID, "extra_page_size = 64"},
    {PROBLEM(kv_format), MLA_KV_FP8_656, INVALID, "h_kv = 2"},
};

static const spoiled_field SPARSE_PROBLEM[] = {
    {PROBLEM(topk), 0, INVALID, "topk = 0"},
    {PROBLEM(topk), -1, INVALID, "topk = -1"},
    {PROBLEM(topk), INT64_MAX, INVALID, "topk = 9223372036854775807"},
    {PROBLEM(causal), 1, INVALID, "causal"},
    {PROBLEM(h_kv), 2, INVALID, "h_kv = 2"},
    {PROBLEM(d_qk), 512, INVALID, "d_qk = 512"},
    {PROBLEM(kv_format), MLA_KV_FP8_584, INVALID, "d_qk = 576"},
    {PROBLEM(extra_topk), 0, INVALID, "extra_page_size = 2"},
    {PROBLEM(extra_topk), -3, INVALID, "extra_topk = -3"},
    {PROBLEM(extra_page_size), 0, INVALID, "extra_page_size = 0"},
    {PROBLEM(extra_page_size), -2, INVALID, "extra_page_size = -2"},
};

static const spoiled_field PREFILL_PROBLEM[] = {
    {PROBLEM(batch), 2, INVALID, "batch = 2"},
    {PROBLEM(topk), 0, INVALID, "topk = 0"},
    {PROBLEM(extra_topk), 5, INVALID, "extra_topk = 5"},
    {PROBLEM(extra_page_size), 5, INVALID, "extra_page_size = 5"},
    {PROBLEM(causal), 1, INVALID, "causal"},
};

/* Each entry point that takes a problem refuses it for the same reason. */
static void check_problem(const valid_call *call, const mla_problem *problem, mla_status status,
                          const char *text)
{
    mla_sizes sizes = {.struct_size = sizeof sizes, .plan_bytes = 77};
    mla_plan plan = call->plan;
    assert_refused(mla_supports(ctx, problem), status, text);
    assert_refused(mla_get_sizes(ctx, problem, &sizes), status, text);
    assert_int_equal(sizes.plan_bytes, 77);
    assert_refused(mla_plan_build(ctx, problem, &call->c.lengths, &plan, NULL), status, text);
    assert_refused(mla_plan_attach(ctx, problem, &plan), status, text);
    assert_memory_equal(&plan, &call->plan, sizeof plan);
    assert_refused(run_call(call, problem, &call->tensors, &call->plan), status, text);
    assert_outputs_untouched(call);
}

static void check_problems(const valid_call *call, const spoiled_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mla_problem problem = call->c.problem;
        spoil(&problem, &fields[i]);
        check_problem(call, &problem, fields[i].status, fields[i].text);
    }
    const double scales[] = {NAN, INFINITY, -INFINITY, 1e39, -1e300, 1.8e38};
    for (size_t i = 0; i < COUNT(scales); i++) {
        mla_problem problem = call->c.problem;
        problem.softmax_scale = scales[i];
        check_problem(call, &problem, INVALID, "softmax_scale = ");
    }
    assert_call_runs(call);
}

void problems(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    check_problems(&call, ANY_PROBLEM, COUNT(ANY_PROBLEM));
    dense_call(&call);
    check_problems(&call, DENSE_PROBLEM, COUNT(DENSE_PROBLEM));
    sparse_call(&call);
    check_problems(&call, SPARSE_PROBLEM, COUNT(SPARSE_PROBLEM));
    prefill_call(&call);
    check_problems(&call, PREFILL_PROBLEM, COUNT(PREFILL_PROBLEM));
    guarded_release(0);
}

/* Counts that are fine alone and not together. */
void problems_too_large(void **state)
{
    (void)state;
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, INT32_MAX, INT32_MAX, 1, 64);
    assert_refused(mla_supports(ctx, &problem), INVALID, "batch * s_q * h_q");
    problem = dense_problem(MLA_DTYPE_BF16, INT32_MAX, 1, 1 << 20, 64);
    assert_refused(mla_supports(ctx, &problem), INVALID, "batch * s_q * h_q");
}

void older_and_newer_problem_structs(void **state)
{
    (void)state;
    struct newer {
        mla_problem problem;
        int64_t unknown[2];
    } newer = {.problem = dense_problem(MLA_DTYPE_BF16, 1, 1, 1, 64)};
    newer.problem.struct_size = sizeof newer;
    assert_int_equal(mla_supports(ctx, &newer.problem), MLA_OK);
    newer.unknown[1] = 1;
    assert_refused(mla_supports(ctx, &newer.problem), UNSUPPORTED, "problem->struct_size");
    mla_problem older = dense_problem(MLA_DTYPE_BF16, 1, 1, 1, 64);
    older.struct_size = offsetof(mla_problem, softmax_scale);
    older.softmax_scale = NAN; /* lies beyond the older struct */
    older.num_parts = -1;
    assert_int_equal(mla_supports(ctx, &older), MLA_OK);
}
