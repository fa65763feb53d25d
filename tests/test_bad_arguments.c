/*
 * Every argument spoiled, one at a time, in a call that is valid otherwise: the status, the name of
 * the argument and the value seen in the message, and outputs that keep their bytes.
 */
#include "bad_arguments.h"
#include "isa_scenarios.h"
#include "plain_numbers.h"
#include "spoiled_call.h"

static int open_ctx(void **state)
{
    (void)state;
    ctx = open_cpu_ctx(0, 2);
    return 0;
}

static int close_ctx(void **state)
{
    (void)state;
    mla_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    plain_numbers_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems),
        cmocka_unit_test(problems_too_large),
        cmocka_unit_test(older_and_newer_problem_structs),
        cmocka_unit_test(tensors_of_dense_decode),
        cmocka_unit_test(tensors_of_sparse_decode),
        cmocka_unit_test(tensors_of_sparse_prefill),
        cmocka_unit_test(misaligned_sink),
        cmocka_unit_test(lengths_and_pages),
        cmocka_unit_test(null_arguments),
        cmocka_unit_test(lengths_of_plans),
        cmocka_unit_test(plan_buffers),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(plans_of_another_problem),
        cmocka_unit_test(plans_that_are_none),
        cmocka_unit_test(merges),
        cmocka_unit_test(packs),
    };
    return cmocka_run_group_tests_name("bad_arguments", tests, open_ctx, close_ctx);
}
