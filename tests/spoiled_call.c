#include "spoiled_call.h"

#include <string.h>

mla_ctx *ctx;
int32_t somewhere[64];

void spoil(void *arguments, const spoiled_field *field)
{
    char *at = (char *)arguments + field->offset;
    int64_t value = field->value;
    if (field->kind == ADD) {
        int64_t was = 0;
        memcpy(&was, at, field->bytes);
        value += was;
    } else if (field->kind == POINT_TO) {
        value = (int64_t)(intptr_t)somewhere;
    }
    memcpy(at, &value, field->bytes);
}

void assert_refused(mla_status got, mla_status want, const char *text)
{
    if (got != want || strstr(mla_last_error(), text) == NULL) {
        fail_msg("%s, '%s': should be %s, '... %s ...'", mla_status_name(got), mla_last_error(),
                 mla_status_name(want), text);
    }
}

static void finish_call(valid_call *call)
{
    const mla_problem *p = &call->c.problem;
    attention_result result = attention_result_alloc(p);
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_int_equal(mla_get_sizes(ctx, p, &sizes), MLA_OK);
    call->plan = attention_case_plan(ctx, &call->c);
    call->tensors = call->c.tensors;
    call->tensors.out = result.out;
    call->tensors.lse = result.lse;
    call->tensors.max_logits = result.max_logits;
    call->workspace = guarded_alloc(sizes.workspace_bytes, 16);
    call->workspace_bytes = sizes.workspace_bytes;
    call->rows = (size_t)(p->batch * p->s_q * p->h_q);
}

void dense_call(valid_call *call)
{
    const int32_t seqlens[] = {100, 70};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, 3, 4, 64);
    problem.h_kv = 2;
    problem.num_parts = 3;
    attention_case_make(&call->c, &problem, &(case_options){.seed = 700, .seqlens = seqlens});
    finish_call(call);
}

void sparse_call(valid_call *call)
{
    const int32_t lengths[] = {50, 70};
    mla_problem problem = sparse_problem(MLA_KV_FP8_656, 2, 3, 4, 64, 70);
    problem.extra_page_size = 2;
    problem.extra_topk = 10;
    attention_case_make(&call->c, &problem,
                        &(case_options){.seed = 701,
                                        .pool_pages = 2,
                                        .extra_pool_pages = 9,
                                        .topk_length = lengths,
                                        .extra_topk_length = lengths});
    finish_call(call);
}

void prefill_call(valid_call *call)
{
    mla_problem problem = prefill_problem(MLA_DTYPE_F16, 3, 4, 70);
    attention_case_make(&call->c, &problem, &(case_options){.seed = 702, .pool_pages = 100});
    finish_call(call);
}

mla_status run_call(const valid_call *call, const mla_problem *problem, const mla_tensors *tensors,
                    const mla_plan *plan)
{
    return mla_run(ctx, problem, tensors, plan, call->workspace, call->workspace_bytes, NULL);
}

void assert_outputs_untouched(const valid_call *call)
{
    const uint8_t *out = call->tensors.out, *lse = (const uint8_t *)call->tensors.lse;
    for (size_t i = 0; i < call->rows * 512 * 2; i++) {
        assert_int_equal(out[i], 0xff);
    }
    for (size_t i = 0; i < call->rows * sizeof(float); i++) {
        assert_int_equal(lse[i], 0xff);
    }
}

void assert_call_runs(const valid_call *call)
{
    assert_int_equal(run_call(call, &call->c.problem, &call->tensors, &call->plan), MLA_OK);
}
