/*
 * Every argument spoiled, one at a time, in a call that is valid otherwise: the status, the name of
 * the argument and the value seen in the message, and outputs that keep their bytes.
 */
#include "attention_case.h"
#include "cmocka_c11.h"
#include "guarded_memory.h"
#include "isa_scenarios.h"
#include "plain_numbers.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* How a field is spoiled. */
typedef enum spoil_kind {
    SET,     /* to the value */
    ADD,     /* the value is added, e.g. 1 to a pointer */
    POINT_TO /* a pointer that should be NULL gets a valid address */
} spoil_kind;

typedef struct spoiled_field {
    size_t offset, bytes;
    spoil_kind kind;
    int64_t value;
    mla_status status;
    const char *text; /* what the message must contain */
} spoiled_field;

#define FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define INVALID            MLA_ERR_INVALID_ARGUMENT
#define UNSUPPORTED        MLA_ERR_UNSUPPORTED

static int32_t somewhere[64];

/* Spoils one field of a struct that begins with its struct_size. */
static void spoil(void *arguments, const spoiled_field *field)
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

static void assert_refused(mla_status got, mla_status want, const char *text)
{
    if (got != want || strstr(mla_last_error(), text) == NULL) {
        fail_msg("%s, '%s': should be %s, '... %s ...'", mla_status_name(got), mla_last_error(),
                 mla_status_name(want), text);
    }
}

/* ------------------------------------------------------------------------------------------
 * A valid call of each operation
 * ---------------------------------------------------------------------------------------- */

typedef struct valid_call {
    attention_case c;
    mla_plan plan;
    mla_tensors tensors;
    void *workspace;
    size_t workspace_bytes;
    size_t rows;
} valid_call;

static mla_ctx *ctx;

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

static void dense_call(valid_call *call)
{
    const int32_t seqlens[] = {100, 70};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, 3, 4, 64);
    problem.h_kv = 2;
    problem.num_parts = 3;
    attention_case_make(&call->c, &problem, &(case_options){.seed = 700, .seqlens = seqlens});
    finish_call(call);
}

/* Sparse decode over 656-byte rows with a second pool. */
static void sparse_call(valid_call *call)
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

static void prefill_call(valid_call *call)
{
    mla_problem problem = prefill_problem(MLA_DTYPE_F16, 3, 4, 70);
    attention_case_make(&call->c, &problem, &(case_options){.seed = 702, .pool_pages = 100});
    finish_call(call);
}

static mla_status run_call(const valid_call *call, const mla_problem *problem,
                           const mla_tensors *tensors, const mla_plan *plan)
{
    return mla_run(ctx, problem, tensors, plan, call->workspace, call->workspace_bytes, NULL);
}

static void assert_outputs_untouched(const valid_call *call)
{
    const uint8_t *out = call->tensors.out, *lse = (const uint8_t *)call->tensors.lse;
    for (size_t i = 0; i < call->rows * 512 * 2; i++) {
        assert_int_equal(out[i], 0xff);
    }
    for (size_t i = 0; i < call->rows * sizeof(float); i++) {
        assert_int_equal(lse[i], 0xff);
    }
}

/* The call was valid but for what was spoiled. */
static void assert_call_runs(const valid_call *call)
{
    assert_int_equal(run_call(call, &call->c.problem, &call->tensors, &call->plan), MLA_OK);
}

/* ------------------------------------------------------------------------------------------
 * mla_problem
 * ---------------------------------------------------------------------------------------- */

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

static void problems(void **state)
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
static void problems_too_large(void **state)
{
    (void)state;
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, INT32_MAX, INT32_MAX, 1, 64);
    assert_refused(mla_supports(ctx, &problem), INVALID, "batch * s_q * h_q");
    problem = dense_problem(MLA_DTYPE_BF16, INT32_MAX, 1, 1 << 20, 64);
    assert_refused(mla_supports(ctx, &problem), INVALID, "batch * s_q * h_q");
}

static void older_and_newer_problem_structs(void **state)
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

/* ------------------------------------------------------------------------------------------
 * mla_tensors
 * ---------------------------------------------------------------------------------------- */

#define TENSORS(field)       FIELD(mla_tensors, field), SET
#define TENSORS_NULL(field)  FIELD(mla_tensors, field), SET, 0, INVALID, #field " = NULL"
#define TENSORS_BYTE(field)  FIELD(mla_tensors, field), ADD, 1, INVALID, #field
#define TENSORS_EXTRA(field) FIELD(mla_tensors, field), POINT_TO, 0, INVALID, #field

static const spoiled_field ANY_TENSORS[] = {
    {TENSORS(struct_size), 0, INVALID, "tensors->struct_size = 0"},
    {TENSORS(struct_size), 5000, INVALID, "tensors->struct_size = 5000"},
    {TENSORS_NULL(q)},
    {TENSORS_NULL(out)},
    {TENSORS_BYTE(q)},
    {TENSORS_BYTE(out)},
    {TENSORS_BYTE(lse)},
    {TENSORS(q_stride[0]), -1, INVALID, "q_stride[0] = -1"},
    {TENSORS(q_stride[1]), -576, INVALID, "q_stride[1] = -576"},
    {TENSORS(q_stride[2]), INT64_MIN, INVALID, "q_stride[2] = -9223372036854775808"},
    {TENSORS(q_stride[0]), INT64_MAX, INVALID, "q_stride[0] = 9223372036854775807"},
    {TENSORS(out_stride[1]), -1, INVALID, "out_stride"},
    {TENSORS(out_stride[2]), INT64_MAX, INVALID, "out_stride"},
    {TENSORS(lse_stride[2]), -1, INVALID, "lse_stride"},
    {TENSORS(kv.data), 0, INVALID, "kv.data = NULL"},
    {TENSORS(kv.num_pages), -1, INVALID, "kv.num_pages = -1"},
    {TENSORS(kv.num_pages), INT64_MAX, INVALID, "kv.num_pages = 9223372036854775807"},
    {TENSORS(kv.stride[0]), -1, INVALID, "kv_stride[0] = -1"},
    {TENSORS(kv.stride[0]), INT64_MAX, INVALID, "kv_stride[0] = 9223372036854775807"},
    {TENSORS(kv.stride[1]), -7, INVALID, "kv_stride[1] = -7"},
};

static const spoiled_field DENSE_TENSORS[] = {
    {TENSORS_NULL(block_table)},
    {TENSORS_NULL(seqlens)},
    {TENSORS_BYTE(block_table)},
    {TENSORS_BYTE(seqlens)},
    {FIELD(mla_tensors, kv.data), ADD, 1, INVALID, "tensors.kv.data = 0x"},
    {TENSORS(max_pages), -1, INVALID, "max_pages = -1"},
    {TENSORS(max_pages), INT64_MAX, INVALID, "max_pages = 9223372036854775807"},
    {TENSORS(max_pages), 1, INVALID, "seqlens[0] = 100"},
    {TENSORS(max_pages), 0, INVALID, "seqlens[0] = 100"},
    {TENSORS(block_table_stride), -1, INVALID, "block_table_stride"},
    {TENSORS(block_table_stride), INT64_MAX, INVALID, "block_table_stride"},
    {TENSORS(kv.num_pages), 1, INVALID, "block_table["},
    {TENSORS(kv.stride[2]), -1, INVALID, "kv_stride[2] = -1"},
    {TENSORS_EXTRA(indices)},
    {TENSORS_EXTRA(topk_length)},
    {TENSORS_EXTRA(extra_kv.data)},
    {TENSORS(extra_kv.num_pages), 1, INVALID, "extra_kv.num_pages = 1"},
    {TENSORS_EXTRA(extra_indices)},
    {TENSORS_EXTRA(extra_topk_length)},
    {TENSORS_EXTRA(max_logits)},
};

static const spoiled_field SPARSE_TENSORS[] = {
    {TENSORS_NULL(indices)},
    {TENSORS_NULL(extra_indices)},
    {TENSORS_BYTE(indices)},
    {TENSORS_BYTE(topk_length)},
    {TENSORS_BYTE(extra_indices)},
    {TENSORS_BYTE(extra_topk_length)},
    {TENSORS(indices_stride[0]), -1, INVALID, "indices_stride[0] = -1"},
    {TENSORS(indices_stride[1]), INT64_MAX, INVALID, "indices_stride[1] = 9223372036854775807"},
    {TENSORS(extra_indices_stride[1]), -1, INVALID, "extra_indices_stride[1] = -1"},
    {TENSORS(extra_kv.data), 0, INVALID, "extra_kv.data = NULL"},
    {TENSORS(extra_kv.num_pages), -1, INVALID, "extra_kv.num_pages = -1"},
    {TENSORS(extra_kv.stride[0]), 655, INVALID, "extra_kv_stride[0] = 655"},
    {TENSORS(kv.stride[1]), 655, INVALID, "kv_stride[1] = 655"},
    {TENSORS(kv.stride[1]), (int64_t)1 << 58, INVALID, "kv_stride[1] = 288230376151711744"},
    {TENSORS(kv.stride[1]), INT64_MAX, INVALID, "kv_stride[1] = 9223372036854775807"},
    {TENSORS_EXTRA(block_table)},
    {TENSORS_EXTRA(seqlens)},
    {TENSORS(max_pages), 4, INVALID, "max_pages = 4"},
    {TENSORS_EXTRA(max_logits)},
};

static const spoiled_field PREFILL_TENSORS[] = {
    {TENSORS_NULL(indices)},
    {TENSORS_BYTE(max_logits)},
    {FIELD(mla_tensors, kv.data), ADD, 1, INVALID, "tensors.kv.data = 0x"},
    {TENSORS_EXTRA(extra_kv.data)},
    {TENSORS_EXTRA(extra_indices)},
    {TENSORS_EXTRA(extra_topk_length)},
    {TENSORS_EXTRA(block_table)},
    {TENSORS_EXTRA(seqlens)},
};

static void check_tensors(const valid_call *call, const spoiled_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mla_tensors tensors = call->tensors;
        spoil(&tensors, &fields[i]);
        assert_refused(run_call(call, &call->c.problem, &tensors, &call->plan), fields[i].status,
                       fields[i].text);
        assert_outputs_untouched(call);
    }
    assert_call_runs(call);
}

static void tensors_of_dense_decode(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    check_tensors(&call, ANY_TENSORS, COUNT(ANY_TENSORS));
    dense_call(&call);
    check_tensors(&call, DENSE_TENSORS, COUNT(DENSE_TENSORS));
    guarded_release(0);
}

static void tensors_of_sparse_decode(void **state)
{
    (void)state;
    valid_call call;
    sparse_call(&call);
    check_tensors(&call, ANY_TENSORS, COUNT(ANY_TENSORS));
    sparse_call(&call);
    check_tensors(&call, SPARSE_TENSORS, COUNT(SPARSE_TENSORS));
    guarded_release(0);
}

static void tensors_of_sparse_prefill(void **state)
{
    (void)state;
    valid_call call;
    prefill_call(&call);
    check_tensors(&call, PREFILL_TENSORS, COUNT(PREFILL_TENSORS));
    guarded_release(0);
}

/* A sink that is misaligned, in an operation that has one. */
static void misaligned_sink(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    mla_tensors tensors = call.tensors;
    tensors.attn_sink = (const float *)(const void *)((const char *)somewhere + 2);
    assert_refused(run_call(&call, &call.c.problem, &tensors, &call.plan), INVALID, "attn_sink");
    assert_outputs_untouched(&call);
    guarded_release(0);
}

/* Lengths and pages that host memory allows to check. */
static void lengths_and_pages(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    call.c.seqlens[1] = -1;
    assert_refused(run_call(&call, &call.c.problem, &call.tensors, &call.plan), INVALID,
                   "seqlens[1] = -1");
    assert_refused(mla_plan_build(ctx, &call.c.problem, &call.c.lengths, &call.plan, NULL), INVALID,
                   "seqlens[1] = -1");
    call.c.seqlens[1] = 129;
    assert_refused(run_call(&call, &call.c.problem, &call.tensors, &call.plan), INVALID,
                   "seqlens[1] = 129");
    call.c.seqlens[1] = INT32_MAX;
    assert_refused(run_call(&call, &call.c.problem, &call.tensors, &call.plan), INVALID,
                   "seqlens[1] = 2147483647");
    call.c.seqlens[1] = 70;
    const int32_t pages[] = {-1, 6, INT32_MAX, INT32_MIN};
    const char *texts[] = {"[1][1] = -1", "[1][1] = 6", "[1][1] = 2147483647",
                           "[1][1] = -2147483648"};
    int32_t kept = call.c.block_table[3];
    for (size_t i = 0; i < COUNT(pages); i++) {
        call.c.block_table[3] = pages[i];
        assert_refused(run_call(&call, &call.c.problem, &call.tensors, &call.plan), INVALID,
                       texts[i]);
        assert_outputs_untouched(&call);
    }
    call.c.block_table[3] = kept;
    assert_call_runs(&call);
    guarded_release(0);
}

/* ------------------------------------------------------------------------------------------
 * Contexts, lengths, plans, buffers
 * ---------------------------------------------------------------------------------------- */

static void null_arguments(void **state)
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

static void lengths_of_plans(void **state)
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

static void plan_buffers(void **state)
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

static void workspaces(void **state)
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
static void plans_of_another_problem(void **state)
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

static void plans_that_are_none(void **state)
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

/* ------------------------------------------------------------------------------------------
 * mla_merge_args and mla_pack_args
 * ---------------------------------------------------------------------------------------- */

#define MERGE(field) FIELD(mla_merge_args, field)

static const spoiled_field MERGES[] = {
    {MERGE(struct_size), SET, 0, INVALID, "args->struct_size = 0"},
    {MERGE(num_parts), SET, 0, INVALID, "num_parts = 0"},
    {MERGE(num_parts), SET, 257, INVALID, "num_parts = 257"},
    {MERGE(batch), SET, 0, INVALID, "batch = 0"},
    {MERGE(batch), SET, (int64_t)1 << 40, INVALID, "batch = 1099511627776"},
    {MERGE(s_q), SET, -1, INVALID, "s_q = -1"},
    {MERGE(h_q), SET, 0, INVALID, "h_q = 0"},
    {MERGE(d_v), SET, 511, INVALID, "d_v = 511"},
    {MERGE(part_dtype), SET, 0, INVALID, "part_dtype = 0"},
    {MERGE(out_dtype), SET, 4, INVALID, "out_dtype = 4"},
    {MERGE(part_outs), SET, 0, INVALID, "part_outs = NULL"},
    {MERGE(part_lses), SET, 0, INVALID, "part_lses = NULL"},
    {MERGE(out), SET, 0, INVALID, "out = NULL"},
    {MERGE(out), ADD, 1, INVALID, "out"},
    {MERGE(lse), ADD, 2, INVALID, "lse"},
    {MERGE(part_out_stride[0]), SET, -1, INVALID, "part_out_stride[0] = -1"},
    {MERGE(part_lse_stride[1]), SET, -1, INVALID, "part_lse_stride[1] = -1"},
    {MERGE(out_stride[2]), SET, 511, INVALID, "out_stride"},
    {MERGE(out_stride[2]), SET, INT64_MAX, INVALID, "out_stride"},
    {MERGE(lse_stride[0]), SET, -1, INVALID, "lse_stride[0] = -1"},
};

static void merges(void **state)
{
    (void)state;
    mla_problem shape = dense_problem(MLA_DTYPE_BF16, 2, 2, 3, 64);
    attention_result parts[2] = {attention_result_alloc(&shape), attention_result_alloc(&shape)};
    attention_result merged = attention_result_alloc(&shape);
    const void *outs[] = {parts[0].out, parts[1].out};
    const float *lses[] = {parts[0].lse, parts[1].lse};
    const mla_merge_args valid = {.struct_size = sizeof valid,
                                  .num_parts = 2,
                                  .batch = 2,
                                  .s_q = 2,
                                  .h_q = 3,
                                  .d_v = 512,
                                  .part_dtype = MLA_DTYPE_BF16,
                                  .part_outs = outs,
                                  .part_lses = lses,
                                  .out_dtype = MLA_DTYPE_BF16,
                                  .out = merged.out,
                                  .lse = merged.lse};
    for (size_t i = 0; i < COUNT(MERGES); i++) {
        mla_merge_args args = valid;
        spoil(&args, &MERGES[i]);
        assert_refused(mla_merge(ctx, &args, NULL), MERGES[i].status, MERGES[i].text);
    }
    mla_merge_args large = valid;
    large.batch = large.s_q = INT32_MAX;
    large.h_q = 1 << 20;
    assert_refused(mla_merge(ctx, &large, NULL), INVALID, "more than 2^47 rows");
    outs[1] = NULL;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_outs[1] = NULL");
    outs[1] = (const char *)parts[1].out + 1;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_outs[1]");
    outs[1] = parts[1].out;
    lses[0] = NULL;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_lses[0] = NULL");
    lses[0] = (const float *)(const void *)((const char *)parts[0].lse + 1);
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_lses[0]");
    lses[0] = parts[0].lse;
    for (int i = 0; i < 12 * 512; i++) {
        assert_int_equal(merged.out[i], 0xffff);
    }
    assert_int_equal(mla_merge(ctx, &valid, NULL), MLA_OK);
    guarded_release(0);
}

#define PACK(field) FIELD(mla_pack_args, field)

static const spoiled_field PACKS[] = {
    {PACK(struct_size), SET, 1, INVALID, "args->struct_size = 1"},
    {PACK(kv_format), SET, 3, INVALID, "kv_format"},
    {PACK(kv_format), SET, MLA_KV_FP8_584, INVALID, "kv_format"},
    {PACK(dtype), SET, 0, INVALID, "dtype"},
    {PACK(dtype), SET, MLA_DTYPE_F16, INVALID, "dtype = 2"},
    {PACK(num_tokens), SET, -1, INVALID, "num_tokens = -1"},
    {PACK(num_tokens), SET, 9, INVALID, "slots[8] = 8"},
    {PACK(num_tokens), SET, INT64_MAX, INVALID, "num_tokens = 9223372036854775807"},
    {PACK(h_kv), SET, 0, INVALID, "h_kv 0"},
    {PACK(h_kv), SET, 2, INVALID, "h_kv 2"},
    {PACK(d_qk), SET, 575, INVALID, "d_qk 575"},
    {PACK(page_size), SET, 0, INVALID, "page_size 0"},
    {PACK(page_size), SET, -4, INVALID, "page_size -4"},
    {PACK(num_pages), SET, -1, INVALID, "num_pages = -1"},
    {PACK(num_pages), SET, 1, INVALID, "slots[4] = 4"},
    {PACK(num_pages), SET, INT64_MAX, INVALID, "num_pages = 9223372036854775807"},
    {PACK(rows), SET, 0, INVALID, "rows = NULL"},
    {PACK(rows), ADD, 1, INVALID, "rows"},
    {PACK(cache), SET, 0, INVALID, "cache = NULL"},
    {PACK(slots), ADD, 4, INVALID, "slots"},
    {PACK(rows_stride[0]), SET, -1, INVALID, "rows_stride[0] = -1"},
    {PACK(rows_stride[0]), SET, INT64_MAX, INVALID, "rows_stride[0] = 9223372036854775807"},
    {PACK(cache_stride[0]), SET, -656, INVALID, "cache_stride[0] = -656"},
    {PACK(cache_stride[0]), SET, 655, INVALID, "cache_stride[0] = 655"},
    {PACK(cache_stride[1]), SET, 576, INVALID, "cache_stride[1] = 576"},
    {PACK(cache_stride[1]), SET, (int64_t)1 << 62, INVALID, "cache_stride[1] = 46116"},
};

static void packs(void **state)
{
    (void)state;
    const int64_t slots[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    int64_t *own_slots = guarded_alloc(sizeof slots, 8);
    memcpy(own_slots, slots, sizeof slots);
    uint8_t *cache = guarded_alloc(8 * 656, 16);
    uint16_t *rows = guarded_alloc(8 * 576 * 2, 2);
    const mla_pack_args valid = {.struct_size = sizeof valid,
                                 .kv_format = MLA_KV_FP8_656,
                                 .dtype = MLA_DTYPE_BF16,
                                 .num_tokens = 8,
                                 .h_kv = 1,
                                 .d_qk = 576,
                                 .page_size = 4,
                                 .num_pages = 2,
                                 .rows = rows,
                                 .cache = cache,
                                 .slots = own_slots};
    for (size_t i = 0; i < COUNT(PACKS); i++) {
        mla_pack_args args = valid;
        spoil(&args, &PACKS[i]);
        assert_refused(mla_pack(ctx, &args, NULL), PACKS[i].status, PACKS[i].text);
        assert_refused(mla_unpack(ctx, &args, NULL), PACKS[i].status, PACKS[i].text);
    }
    mla_pack_args large = valid;
    large.kv_format = MLA_KV_NATIVE;
    large.num_tokens = (int64_t)1 << 40;
    large.h_kv = 1 << 20;
    assert_refused(mla_pack(ctx, &large, NULL), INVALID, "exceed the address space");
    own_slots[7] = INT64_MAX;
    assert_refused(mla_pack(ctx, &valid, NULL), INVALID, "slots[7] = 9223372036854775807");
    assert_refused(mla_unpack(ctx, &valid, NULL), INVALID, "slots[7] = 9223372036854775807");
    own_slots[7] = 7;
    for (int i = 0; i < 8 * 656; i++) {
        assert_int_equal(cache[i], 0xff);
    }
    for (int i = 0; i < 8 * 576; i++) {
        assert_int_equal(rows[i], 0xffff);
    }
    mla_pack_args native = valid;
    native.kv_format = MLA_KV_NATIVE;
    native.cache = cache + 1;
    native.num_pages = 1;
    native.num_tokens = 4;
    assert_refused(mla_pack(ctx, &native, NULL), INVALID, "cache");
    assert_int_equal(mla_pack(ctx, &valid, NULL), MLA_OK);
    guarded_release(0);
}

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
