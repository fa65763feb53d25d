/* Every field of mla_tensors spoiled, and lengths and pages outside their ranges. */
#include "bad_arguments.h"
#include "spoiled_call.h"

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
    {TENSORS(kv.stride[0]), -1, INVALID, "kv.stride[0] = -1"},
    {TENSORS(kv.stride[0]), INT64_MAX, INVALID, "kv.stride[0] = 9223372036854775807"},
    {TENSORS(kv.stride[1]), -7, INVALID, "kv.stride[1] = -7"},
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
    {TENSORS(kv.stride[2]), -1, INVALID, "kv.stride[2] = -1"},
    {TENSORS(kv.stride[0]), 64 * 576, INVALID, "kv.stride[1] = 0"},
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
    {TENSORS(extra_kv.stride[0]), 655, INVALID, "extra_kv.stride[0] = 655"},
    {TENSORS(kv.stride[1]), 655, INVALID, "kv.stride[1] = 655"},
    {TENSORS(kv.stride[1]), (int64_t)1 << 58, INVALID, "kv.stride[1] = 288230376151711744"},
    {TENSORS(kv.stride[1]), INT64_MAX, INVALID, "kv.stride[1] = 9223372036854775807"},
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

void tensors_of_dense_decode(void **state)
{
    (void)state;
    valid_call call;
    dense_call(&call);
    check_tensors(&call, ANY_TENSORS, COUNT(ANY_TENSORS));
    dense_call(&call);
    check_tensors(&call, DENSE_TENSORS, COUNT(DENSE_TENSORS));
    guarded_release(0);
}

void tensors_of_sparse_decode(void **state)
{
    (void)state;
    valid_call call;
    sparse_call(&call);
    check_tensors(&call, ANY_TENSORS, COUNT(ANY_TENSORS));
    sparse_call(&call);
    check_tensors(&call, SPARSE_TENSORS, COUNT(SPARSE_TENSORS));
    guarded_release(0);
}

void tensors_of_sparse_prefill(void **state)
{
    (void)state;
    valid_call call;
    prefill_call(&call);
    check_tensors(&call, PREFILL_TENSORS, COUNT(PREFILL_TENSORS));
    guarded_release(0);
}

/* A sink that is misaligned, in an operation that has one. */
void misaligned_sink(void **state)
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
void lengths_and_pages(void **state)
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
