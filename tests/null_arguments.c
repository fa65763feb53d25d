/* NULL for each pointer argument of each function, and an mla_sizes that is too short. */
#include "bad_arguments.h"
#include "spoiled_call.h"

void null_arguments(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    const mla_problem *problem = &call.c.problem;
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_refused(mla_supports(NULL, problem), INVALID, "ctx = NULL");
    assert_refused(mla_supports(ctx, NULL), INVALID, "problem = NULL");
    assert_refused(mla_get_sizes(NULL, problem, &sizes), INVALID, "ctx = NULL");
    assert_refused(mla_get_sizes(ctx, NULL, &sizes), INVALID, "problem = NULL");
    assert_refused(mla_get_sizes(ctx, problem, NULL), INVALID, "sizes = NULL");
    sizes.struct_size = 2;
    assert_refused(mla_get_sizes(ctx, problem, &sizes), INVALID, "sizes->struct_size = 2");
    assert_refused(mla_plan_build(NULL, problem, &call.c.lengths, &call.plan, NULL), INVALID,
                   "ctx = NULL");
    assert_refused(mla_plan_build(ctx, NULL, &call.c.lengths, &call.plan, NULL), INVALID,
                   "problem = NULL");
    assert_refused(mla_plan_build(ctx, problem, NULL, &call.plan, NULL), INVALID, "lengths = NULL");
    assert_refused(mla_plan_build(ctx, problem, &call.c.lengths, NULL, NULL), INVALID,
                   "plan = NULL");
    assert_refused(mla_plan_attach(NULL, problem, &call.plan), INVALID, "ctx = NULL");
    assert_refused(mla_plan_attach(ctx, NULL, &call.plan), INVALID, "problem = NULL");
    assert_refused(mla_plan_attach(ctx, problem, NULL), INVALID, "plan = NULL");
    assert_refused(mla_run(NULL, problem, &call.tensors, &call.plan, call.workspace,
                           call.workspace_bytes, NULL),
                   INVALID, "ctx = NULL");
    assert_refused(run_call(&call, NULL, &call.tensors, &call.plan), INVALID, "problem = NULL");
    assert_refused(run_call(&call, problem, NULL, &call.plan), INVALID, "tensors = NULL");
    assert_refused(run_call(&call, problem, &call.tensors, NULL), INVALID, "plan = NULL");
    assert_refused(mla_merge(NULL, NULL, NULL), INVALID, "ctx = NULL");
    assert_refused(mla_merge(ctx, NULL, NULL), INVALID, "args = NULL");
    assert_refused(mla_pack(NULL, NULL, NULL), INVALID, "ctx = NULL");
    assert_refused(mla_pack(ctx, NULL, NULL), INVALID, "args = NULL");
    assert_refused(mla_unpack(NULL, NULL, NULL), INVALID, "ctx = NULL");
    assert_refused(mla_unpack(ctx, NULL, NULL), INVALID, "args = NULL");
    assert_refused(mla_plan_get_part(NULL, 0, NULL, NULL), INVALID, "plan = NULL");
    assert_outputs_untouched(&call);
    assert_call_runs(&call);
    guarded_release(0);
}
