/* The tests of test_bad_arguments.c, by the file that holds them. */
#ifndef MLA_TESTS_BAD_ARGUMENTS_H
#define MLA_TESTS_BAD_ARGUMENTS_H

/* bad_problem.c */
void problems(void **state);
void problems_too_large(void **state);
void older_and_newer_problem_structs(void **state);

/* bad_tensors.c */
void tensors_of_dense_decode(void **state);
void tensors_of_sparse_decode(void **state);
void tensors_of_sparse_prefill(void **state);
void misaligned_sink(void **state);
void lengths_and_pages(void **state);

/* null_arguments.c */
void null_arguments(void **state);

/* bad_plan.c */
void lengths_of_plans(void **state);
void plan_buffers(void **state);
void workspaces(void **state);
void plans_of_another_problem(void **state);
void plans_that_are_none(void **state);

/* bad_merge_pack.c */
void merges(void **state);
void packs(void **state);

#endif
