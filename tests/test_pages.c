/* Page sizes, page and token strides, large offsets, and non-contiguous tensors. */
#include "isa_scenarios.h"

#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const int32_t SEQLENS[] = {1, 0, 64, 130, 257};

static void set_format(mla_problem *problem, int format)
{
    problem->kv_format = (mla_kv_format)format;
    problem->d_qk = format == MLA_KV_FP8_584 ? 512 : 576;
}

static void page_sizes(mla_ctx *ctx)
{
    const int64_t sizes[] = {1, 2, 3, 16, 32, 61, 64, 128, 256, 1000};
    for (int i = 0; i < COUNT(sizes); i++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 1, 4, sizes[i]);
        check_case(ctx, &problem, &(case_options){.seed = 31, .seqlens = SEQLENS});
        problem.dtype = MLA_DTYPE_F16;
        check_case(ctx, &problem, &(case_options){.seed = 31, .seqlens = SEQLENS});
    }
}

static void page_sizes_of_fp8_rows(mla_ctx *ctx)
{
    const int64_t sizes[] = {1, 2, 53, 64, 256};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
            mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 2, 4, sizes[i]);
            set_format(&problem, format);
            problem.causal = true;
            check_case(ctx, &problem, &(case_options){.seed = 32, .seqlens = SEQLENS});
        }
    }
}

/* Pages of one layer in a pool that interleaves layers lie about 1 MB apart. */
static void pages_of_an_interleaved_pool(mla_ctx *ctx)
{
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 1, 4, 64);
        set_format(&problem, format);
        check_case(ctx, &problem,
                   &(case_options){.seed = 33, .seqlens = SEQLENS, .page_gap_elems = 1 << 19});
    }
}

static void tokens_with_gaps(mla_ctx *ctx)
{
    const int32_t seqlens[] = {100, 7};
    mla_problem problem = dense_problem(MLA_DTYPE_F16, 2, 1, 6, 16);
    problem.h_kv = 2;
    check_case(ctx, &problem,
               &(case_options){
                   .seed = 34, .seqlens = seqlens, .token_gap_elems = 13, .page_gap_elems = 5});
    problem = dense_problem(MLA_DTYPE_BF16, 2, 1, 6, 16);
    check_case(ctx, &problem,
               &(case_options){.seed = 35, .seqlens = seqlens, .token_gap_elems = 13});
}

static void wide_and_strided_block_tables(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 5, 1, 4, 16);
    check_case(ctx, &problem,
               &(case_options){.seed = 36, .seqlens = SEQLENS, .spare_columns = 100});
    check_case(
        ctx, &problem,
        &(case_options){.seed = 36, .seqlens = SEQLENS, .spare_columns = 1, .table_gap = 37});
}

static void strided_queries_and_outputs(mla_ctx *ctx)
{
    const int32_t seqlens[] = {100, 0, 65};
    for (int layout = CASE_CONTIGUOUS; layout <= CASE_HEAD_MAJOR; layout++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 3, 10, 64);
        const case_options options = {
            .seed = 37, .seqlens = seqlens, .layout = (case_layout)layout};
        check_case(ctx, &problem, &options);
        problem.h_kv = 2;
        problem.causal = true;
        problem.dtype = MLA_DTYPE_F16;
        check_case(ctx, &problem, &options);
        problem = sparse_problem(MLA_KV_FP8_656, 3, 2, 10, 64, 70);
        check_case(
            ctx, &problem,
            &(case_options){
                .seed = 38, .pool_pages = 3, .indices_gap = 11, .layout = (case_layout)layout});
        problem = prefill_problem(MLA_DTYPE_BF16, 5, 10, 70);
        check_case(
            ctx, &problem,
            &(case_options){
                .seed = 39, .pool_pages = 200, .indices_gap = 3, .layout = (case_layout)layout});
    }
}

/* A pool of zero pages far apart, of which a few hold the rows of a small case. */
static void move_pool_far(attention_case *c, const attention_case *near, int64_t num_pages,
                          const int64_t *far_pages, int count)
{
    const mla_problem *p = &near->problem;
    int64_t page_bytes = mla_page_bytes(p->kv_format, p->dtype, p->page_size, p->h_kv, p->d_qk);
    *c = *near;
    c->pool = guarded_sparse_alloc((size_t)(num_pages * page_bytes));
    c->tensors.kv = (mla_pool){.data = c->pool, .num_pages = num_pages};
    for (int i = 0; i < count; i++) {
        const uint8_t *from = near->pool + i * page_bytes;
        int64_t used = p->kv_format == MLA_KV_FP8_584 ? p->page_size * 584 : page_bytes;
        memcpy(c->pool + far_pages[i] * page_bytes, from, (size_t)used);
    }
}

/* Page numbers whose byte and element offsets lie on both sides of 2^31 and 2^32. */
static void page_offsets_beyond_32_bits(mla_ctx *ctx)
{
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 1, 1, 4, 64);
        set_format(&problem, format);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        const int32_t seqlens[] = {64 * 10};
        attention_case near, far;
        attention_case_make(&near, &problem, &(case_options){.seed = 40, .seqlens = seqlens});
        attention_result want = assert_case_right(ctx, &near);
        int64_t page_bytes = mla_page_bytes(problem.kv_format, problem.dtype, 64, 1, problem.d_qk);
        int64_t far_pages[12], num_pages = ((int64_t)1 << 44) / page_bytes;
        for (int i = 0; i < 12; i++) { /* at 2^31, 2^32, 2^33, ... bytes, on either side */
            far_pages[i] = ((int64_t)1 << (31 + i / 2)) / page_bytes + i % 2;
        }
        far_pages[11] = num_pages - 1;
        move_pool_far(&far, &near, num_pages, far_pages, 12);
        for (int i = 0; i < 10; i++) {
            near.block_table[i] = (int32_t)far_pages[near.block_table[i]];
        }
        attention_result got = attention_case_run(ctx, &far);
        assert_results_identical(&problem, &got, &want);
        guarded_release(mark);
    }
}

/* Slots of a sparse pool: slot * row bytes past 2^31 and 2^32, up to the last int32 slot. */
static void slot_offsets_beyond_32_bits(mla_ctx *ctx)
{
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = sparse_problem((mla_kv_format)format, 1, 1, 4, 1, 12);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case near, far;
        attention_case_make(&near, &problem, &(case_options){.seed = 41, .pool_pages = 12});
        attention_result want = assert_case_right(ctx, &near);
        int64_t page_bytes = mla_page_bytes(problem.kv_format, problem.dtype, 1, 1, problem.d_qk);
        int64_t far_slots[12], num_slots = INT32_MAX;
        for (int i = 0; i < 12; i++) {
            far_slots[i] = ((int64_t)1 << (31 + i / 2)) / page_bytes + i % 2;
        }
        far_slots[11] = num_slots - 1;
        move_pool_far(&far, &near, num_slots, far_slots, 12);
        for (int i = 0; i < 12; i++) {
            near.indices[i] = (int32_t)far_slots[near.indices[i]];
        }
        attention_result got = attention_case_run(ctx, &far);
        assert_results_identical(&problem, &got, &want);
        guarded_release(mark);
    }
}

/* Rows of q and out more than 2^32 bytes apart. */
static void query_strides_beyond_32_bits(mla_ctx *ctx)
{
    const int32_t seqlens[] = {70, 3};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, 1, 4, 64);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 42, .seqlens = seqlens});
    attention_result want = assert_case_right(ctx, &c);
    const int64_t stride = ((int64_t)1 << 32) + 77;
    uint16_t *q = guarded_sparse_alloc((size_t)(stride + 4 * 576) * 2);
    uint16_t *out = guarded_sparse_alloc((size_t)(stride + 4 * 512) * 2);
    memcpy(q, c.q, 4 * 576 * 2);
    memcpy(q + stride, c.q + 4 * 576, 4 * 576 * 2);
    mla_plan plan = attention_case_plan(ctx, &c);
    mla_sizes sizes = {.struct_size = sizeof sizes};
    assert_int_equal(mla_get_sizes(ctx, &problem, &sizes), MLA_OK);
    void *workspace = guarded_alloc(sizes.workspace_bytes, 16);
    mla_tensors t = c.tensors;
    t.q = q;
    t.out = out;
    const int64_t q_stride[3] = {stride, 4 * 576, 576}, out_stride[3] = {stride, 4 * 512, 512};
    memcpy(t.q_stride, q_stride, sizeof q_stride);
    memcpy(t.out_stride, out_stride, sizeof out_stride);
    assert_int_equal(mla_run(ctx, &problem, &t, &plan, workspace, sizes.workspace_bytes, NULL),
                     MLA_OK);
    assert_memory_equal(out, want.out, 4 * 512 * 2);
    assert_memory_equal(out + stride, want.out + 4 * 512, 4 * 512 * 2);
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(page_sizes),
        ISA_SCENARIO(page_sizes_of_fp8_rows),
        ISA_SCENARIO(pages_of_an_interleaved_pool),
        ISA_SCENARIO(tokens_with_gaps),
        ISA_SCENARIO(wide_and_strided_block_tables),
        ISA_SCENARIO(strided_queries_and_outputs),
        ISA_SCENARIO(page_offsets_beyond_32_bits),
        ISA_SCENARIO(slot_offsets_beyond_32_bits),
        ISA_SCENARIO(query_strides_beyond_32_bits),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
