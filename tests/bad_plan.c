/* Spoiled lengths, plan buffers and workspaces, and plans of something else. */
#include "bad_arguments.h"
#include "isa_scenarios.h"
#include "spoiled_call.h"

#include <string.h>

#define LENGTHS(field) FIELD(mla_lengths, field)

static const spoiled_field DENSE_LENGTHS[] = {
    {LENGTHS(struct_size), SET, 7, INVALID, "lengths->struct_size = 7"},
    {LENGTHS(seqlens), SET, 0, INVALID, "seqlens = NULL"},
    {LENGTHS(seqlens), ADD, 1, INVALID, "seqlens"},
    {LENGTHS(topk_length), POINT_TO, 0, INVALID, "topk_length"},
    {LENGTHS(extra_topk_length), POINT_TO, 0, INVALID, "extra_topk_length"},
};

static const spoiled_field SPARSE_LENGTHS[] = {
    {LENGTHS(seqlens), POINT_TO, 0, INVALID, "seqlens"},
    {LENGTHS(topk_length), ADD, 2, INVALID, "topk_length"},
    {LENGTHS(extra_topk_length), ADD, 2, INVALID, "extra_topk_length"},
};

static void check_lengths(const valid_call *call, const spoiled_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mla_lengths lengths = call->c.lengths;
        mla_plan plan = call->plan;
        spoil(&lengths, &fields[i]);
        assert_refused(mla_plan_build(ctx, &call->c.problem, &lengths, &plan, NULL),
                       fields[i].status, fields[i].text);
        assert_memory_equal(&plan, &call->plan, sizeof plan);
    }
}

void lengths_of_plans(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    check_lengths(&call, DENSE_LENGTHS, COUNT(DENSE_LENGTHS));
    sparse_call(&call);
    check_lengths(&call, SPARSE_LENGTHS, COUNT(SPARSE_LENGTHS));
    prefill_call(&call);
    mla_lengths lengths = {.struct_size = sizeof lengths, .extra_topk_length = somewhere};
    assert_refused(mla_plan_build(ctx, &call.c.problem, &lengths, &call.plan, NULL), INVALID,
                   "extra_topk_length");
    guarded_release(0);
}

void plan_buffers(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    const spoiled_field fields[] = {
        {FIELD(mla_plan, struct_size), SET, 0, INVALID, "plan->struct_size = 0"},
        {FIELD(mla_plan, buffer), SET, 0, INVALID, "plan->buffer = NULL"},
        {FIELD(mla_plan, buffer), ADD, 8, INVALID, "aligned to 16"},
        {FIELD(mla_plan, buffer_bytes), ADD, -1, MLA_ERR_BUFFER_TOO_SMALL, "plan->buffer has"},
        {FIELD(mla_plan, buffer_bytes), SET, 0, MLA_ERR_BUFFER_TOO_SMALL, "has 0 bytes"},
    };
    for (size_t i = 0; i < COUNT(fields); i++) {
        mla_plan plan = call.plan, kept;
        spoil(&plan, &fields[i]);
        kept = plan;
        assert_refused(mla_plan_build(ctx, &call.c.problem, &call.c.lengths, &plan, NULL),
                       fields[i].status, fields[i].text);
        assert_refused(mla_plan_attach(ctx, &call.c.problem, &plan), fields[i].status,
                       fields[i].text);
        assert_refused(run_call(&call, &call.c.problem, &call.tensors, &plan), fields[i].status,
                       fields[i].text);
        assert_memory_equal(&plan, &kept, sizeof plan);
        assert_outputs_untouched(&call);
    }
    assert_call_runs(&call);
    guarded_release(0);
}

void workspaces(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    const mla_problem *problem = &call.c.problem;
    size_t bytes = call.workspace_bytes;
    assert_refused(mla_run(ctx, problem, &call.tensors, &call.plan, NULL, bytes, NULL), INVALID,
                   "workspace = NULL");
    assert_refused(
        mla_run(ctx, problem, &call.tensors, &call.plan, (char *)call.workspace + 8, bytes, NULL),
        INVALID, "aligned to 16");
    assert_refused(
        mla_run(ctx, problem, &call.tensors, &call.plan, call.workspace, bytes - 1, NULL),
        MLA_ERR_BUFFER_TOO_SMALL, "workspace has");
    assert_refused(mla_run(ctx, problem, &call.tensors, &call.plan, call.workspace, 0, NULL),
                   MLA_ERR_BUFFER_TOO_SMALL, "workspace has 0 bytes");
    assert_outputs_untouched(&call);
    assert_call_runs(&call);
    guarded_release(0);
}

#define OTHER(field, value)                                                                        \
    {                                                                                              \
        FIELD(mla_problem, field), SET, value, MLA_ERR_PLAN_MISMATCH, #field                       \
    }

/* A plan of a problem that differs in one field, both valid. */
void plans_of_another_problem(void **state)
{
    (void)state;
    const spoiled_field dense[] = {
        OTHER(dtype, MLA_DTYPE_F16),
        OTHER(batch, 1),
        OTHER(s_q, 2),
        OTHER(h_q, 8),
        OTHER(h_kv, 1),
        OTHER(d_qk, 512),
        OTHER(page_size, 128),
        OTHER(num_parts, 2),
        OTHER(causal, 1),
        OTHER(batch_invariant, 1),
    };
    const spoiled_field sparse[] = {
        OTHER(topk, 69),
        OTHER(extra_topk, 9),
        OTHER(extra_page_size, 3),
        OTHER(kv_format, MLA_KV_NATIVE),
    };
    valid_call calls[2];
    dense_call(&calls[0]);
    sparse_call(&calls[1]);
    for (size_t i = 0; i < COUNT(dense) + COUNT(sparse); i++) {
        const valid_call *call = &calls[i < COUNT(dense) ? 0 : 1];
        const spoiled_field *field = i < COUNT(dense) ? &dense[i] : &sparse[i - COUNT(dense)];
        mla_problem problem = call->c.problem;
        spoil(&problem, field);
        assert_int_equal(mla_supports(ctx, &problem), MLA_OK);
        assert_refused(run_call(call, &problem, &call->tensors, &call->plan), field->status,
                       field->text);
        assert_outputs_untouched(call);
    }
    assert_refused(run_call(&calls[0], &calls[0].c.problem, &calls[0].tensors, &calls[1].plan),
                   MLA_ERR_PLAN_MISMATCH, "op");
    assert_call_runs(&calls[0]);
    assert_call_runs(&calls[1]);
    guarded_release(0);
}

void plans_that_are_none(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    const mla_problem *problem = &call.c.problem;
    mla_plan unbuilt = {.struct_size = sizeof unbuilt,
                        .buffer = call.plan.buffer,
                        .buffer_bytes = call.plan.buffer_bytes};
    assert_refused(run_call(&call, problem, &call.tensors, &unbuilt), MLA_ERR_PLAN_MISMATCH,
                   "not built");
    mla_ctx *other = open_cpu_ctx(0, 5);
    assert_refused(mla_run(other, problem, &call.tensors, &call.plan, call.workspace,
                           call.workspace_bytes, NULL),
                   MLA_ERR_PLAN_MISMATCH, "context");
    mla_ctx_destroy(other);
    assert_outputs_untouched(&call);
    mla_plan_part part;
    int64_t num_parts = -9;
    assert_refused(mla_plan_get_part(&call.plan, -1, &part, &num_parts), INVALID, "part_idx = -1");
    assert_refused(mla_plan_get_part(&call.plan, 3, &part, &num_parts), INVALID, "part_idx = 3");
    assert_refused(mla_plan_get_part(&call.plan, INT64_MAX, &part, &num_parts), INVALID,
                   "part_idx = 9223372036854775807");
    assert_int_equal(num_parts, -9);
    memset(call.plan.buffer, 0, call.plan.buffer_bytes);
    for (int byte = 0; byte < 2; byte++) {
        memset(call.plan.buffer, byte, call.plan.buffer_bytes);
        assert_int_equal(mla_plan_attach(ctx, problem, &call.plan), MLA_OK);
        assert_refused(run_call(&call, problem, &call.tensors, &call.plan), MLA_ERR_PLAN_MISMATCH,
                       "holds no plan");
        assert_outputs_untouched(&call);
    }
    assert_refused(mla_plan_get_part(&call.plan, 0, &part, &num_parts), MLA_ERR_PLAN_MISMATCH,
                   "holds no plan");
    unbuilt.buffer = NULL;
    assert_refused(mla_plan_get_part(&unbuilt, 0, &part, NULL), MLA_ERR_PLAN_MISMATCH, "no plan");
    guarded_release(0);
}
