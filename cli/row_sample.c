#include "row_sample.h"
#include "random_values.h"
#include "tool.h"

#include <assert.h>
#include <stdlib.h>

enum { D_V = 512 };

/* Moves a list of indices, and its lengths, to one request, query token and KV head. */
static void move_list(const mla_problem *problem, const int64_t at[3], const int32_t **indices,
                      const int64_t stride[3], const int32_t **lengths)
{
    if (*indices != NULL) {
        *indices += at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
    }
    if (*lengths != NULL) {
        *lengths += problem->op == MLA_OP_SPARSE_PREFILL ? at[1] : at[0];
    }
}

/*
 * One head of one request as a view of the batch's own tensors. Sparse: of one query token. Dense:
 * of all query tokens, since they see different keys.
 */
static void view_of_rows(const batch *input, const row_range *range, batch *view)
{
    const mla_problem *problem = &input->problem;
    int64_t kv_head = range->first_head / (problem->h_q / problem->h_kv);
    const int64_t list_at[3] = {range->first_request, range->first_token, kv_head};
    *view = *input;
    view->spec.batch = view->problem.batch = 1;
    view->spec.s_q = view->problem.s_q = range->num_tokens;
    view->spec.h_q = view->problem.h_q = 1;
    view->spec.h_kv = view->problem.h_kv = 1;
    view->problem.num_parts = 0;

    mla_tensors *tensors = &view->tensors;
    tensors->q = (const uint16_t *)tensors->q + range->first_request * tensors->q_stride[0] +
                 range->first_token * tensors->q_stride[1] +
                 range->first_head * tensors->q_stride[2];
    if (problem->kv_format == MLA_KV_NATIVE && tensors->kv.data != NULL) {
        tensors->kv.data = (const uint16_t *)tensors->kv.data + kv_head * tensors->kv.stride[2];
    }
    if (tensors->block_table != NULL) {
        tensors->block_table += range->first_request * tensors->block_table_stride;
    }
    if (tensors->seqlens != NULL) {
        tensors->seqlens += range->first_request;
    }
    move_list(problem, list_at, &tensors->indices, tensors->indices_stride, &tensors->topk_length);
    move_list(problem, list_at, &tensors->extra_indices, tensors->extra_indices_stride,
              &tensors->extra_topk_length);
    if (tensors->attn_sink != NULL) {
        tensors->attn_sink += range->first_head;
    }
    for (int i = 0; i < 3; i++) {
        tensors->out_stride[i] = D_V * (i == 0 ? range->num_tokens : 1);
        tensors->lse_stride[i] = i == 0 ? range->num_tokens : 1;
    }
}

static mla_status run_view(const engine *reference, batch *view, const batch_outputs *outputs)
{
    job work;
    view->tensors = batch_host_tensors(view, outputs);
    mla_status status = job_open_placed(&work, reference, &view->problem, &view->tensors);
    if (status == MLA_OK) {
        status = job_plan(&work);
    }
    if (status == MLA_OK) {
        status = job_run(&work);
    }
    job_close(&work);
    return status;
}

bool sample_rows(const engine *reference, const batch *input, const mla_tensors *got,
                 int64_t num_samples, uint64_t seed, bool rounded_p, comparison *result)
{
    const mla_problem *problem = &input->problem;
    bool dense = problem->op == MLA_OP_DENSE_DECODE;
    rng random;
    rng_seed(&random, seed);
    *result = (comparison){.passed = true};
    for (int64_t sample = 0; sample < num_samples && result->passed; sample++) {
        row_range range = {.first_request = rng_below(&random, problem->batch),
                           .num_requests = 1,
                           .first_token = dense ? 0 : rng_below(&random, problem->s_q),
                           .num_tokens = dense ? problem->s_q : 1,
                           .first_head = rng_below(&random, problem->h_q),
                           .num_heads = 1};
        batch view;
        batch_outputs outputs;
        view_of_rows(input, &range, &view);
        if (!batch_outputs_alloc(&outputs, &view)) {
            return false;
        }
        mla_status status = run_view(reference, &view, &outputs);
        if (status != MLA_OK) {
            tool_library_error("the reference failed", status);
            batch_outputs_free(&outputs);
            return false;
        }
        comparison one;
        compare_rows(input, got, &view.tensors, &range, rounded_p ? reference->ctx : NULL, &one);
        if (!one.passed || one.worst_share >= result->worst_share) {
            *result = one;
        }
        batch_outputs_free(&outputs);
    }
    return true;
}
