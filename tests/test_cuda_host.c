/*
 * Private: what the CUDA backend's host side tells its kernels and what it refuses, without a GPU:
 * the driver is that of fake_cuda.c. Device pointers are numbers here; nothing follows them.
 */
#include "cmocka_c11.h"
#include "fake_cuda.h"

#include "cuda_plan.h"
#include "sm90/plan_args.h"
#include "sm90/sparse_args.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static mla_ctx *ctx;
static fake_cuda_record *launched;

static void *device_pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

enum { Q_AT = 0x10000, KV_AT = 0x20000, EXTRA_AT = 0x30000, OUT_AT = 0x40000, LSE_AT = 0x50000 };
enum { INDICES_AT = 0x60000, MORE_AT = 0x70000, LENGTHS_AT = 0x80000, WORKSPACE_AT = 0x90000 };
enum { PLAN_AT = 0xa0000, MAX_AT = 0xb0000, SINK_AT = 0xc0000 };

/* A call that every test changes to its liking. */
typedef struct host_call {
    mla_problem problem;
    mla_tensors tensors;
    mla_lengths lengths;
} host_call;

static host_call sparse_call(mla_op op, mla_kv_format kv_format)
{
    const bool prefill = op == MLA_OP_SPARSE_PREFILL;
    host_call call = {.problem = {.struct_size = sizeof call.problem,
                                  .op = op,
                                  .dtype = MLA_DTYPE_BF16,
                                  .kv_format = kv_format,
                                  .batch = prefill ? 1 : 5,
                                  .s_q = 3,
                                  .h_q = 128,
                                  .h_kv = 1,
                                  .d_qk = kv_format == MLA_KV_FP8_584 ? 512 : 576,
                                  .d_v = 512,
                                  .page_size = prefill ? 1 : 64,
                                  .topk = 2048},
                      .tensors = {.struct_size = sizeof call.tensors,
                                  .q = device_pointer(Q_AT),
                                  .kv = {.data = device_pointer(KV_AT), .num_pages = 100},
                                  .indices = device_pointer(INDICES_AT),
                                  .out = device_pointer(OUT_AT),
                                  .lse = device_pointer(LSE_AT)},
                      .lengths = {.struct_size = sizeof call.lengths}};
    return call;
}

static void add_extra_pool(host_call *call)
{
    call->problem.extra_topk = 100;
    call->problem.extra_page_size = 2;
    call->tensors.extra_kv = (mla_pool){.data = device_pointer(EXTRA_AT), .num_pages = 7};
    call->tensors.extra_indices = device_pointer(MORE_AT);
}

/* All of a call: the plan's launch, then those of the run. */
static mla_status enqueue(const host_call *call, mla_sizes *sizes)
{
    launched->count = 0;
    sizes->struct_size = sizeof *sizes;
    mla_status status = mla_get_sizes(ctx, &call->problem, sizes);
    if (status != MLA_OK) {
        return status;
    }
    mla_plan plan = {.struct_size = sizeof plan,
                     .buffer = device_pointer(PLAN_AT),
                     .buffer_bytes = sizes->plan_bytes};
    status = mla_plan_build(ctx, &call->problem, &call->lengths, &plan, NULL);
    if (status != MLA_OK) {
        return status;
    }
    return mla_run(ctx, &call->problem, &call->tensors, &plan, device_pointer(WORKSPACE_AT),
                   sizes->workspace_bytes, NULL);
}

static const mla_sm90_sparse_args *sparse_args(void)
{
    return (const mla_sm90_sparse_args *)(const void *)launched->launches[1].args;
}

static void decode_is_told_its_rows(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    call.problem.h_q = 130;
    call.problem.h_kv = 2;
    call.tensors.attn_sink = device_pointer(SINK_AT);
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(launched->count, 3);
    /* 65 heads are two row tiles, times two KV heads: 33 parts. */
    const fake_cuda_launch *decode = &launched->launches[1], *merge = &launched->launches[2];
    assert_string_equal(decode->kernel, "mla_sm90_sparse_decode_bf16");
    assert_int_equal(decode->grid, 33 * 2 * 2);
    assert_int_equal(decode->threads, MLA_SM90_THREADS);
    assert_false(decode->early);
    const mla_sm90_dense_args *rows = &sparse_args()->rows;
    assert_int_equal(rows->batch, 15);
    assert_int_equal(rows->s_q, 1);
    assert_int_equal(rows->req_tokens, 3);
    assert_int_equal(rows->group, 65);
    assert_int_equal(rows->group_pad, 65);
    assert_int_equal(rows->row_tiles, 2);
    assert_int_equal(rows->h_kv, 2);
    assert_int_equal(rows->causal, 0);
    assert_int_equal(rows->out_stride[1], 130 * 512);
    assert_int_equal(rows->lse_stride[0], 3 * 130);
    assert_ptr_equal(rows->attn_sink, device_pointer(SINK_AT));
    const size_t partials = 33 * 2 * 2 * 2;
    assert_ptr_equal(rows->partials, device_pointer(WORKSPACE_AT));
    /* 64 rows of 512 fp16 values, and an lse and a scale for each row of each of eight tiles. */
    assert_int_equal(sizes.workspace_bytes, partials * 64 * (512 * 2 + 8 * 8));
    assert_int_equal(rows->max_parts, 33);
    assert_true(rows->row_tiles_inverse == (uint64_t)1 << 63);
    assert_string_equal(merge->kernel, "mla_sm90_combine_bf16");
    assert_true(merge->early);
    assert_memory_equal(merge->args, rows, sizeof *rows);
}

/* Dense decode of several tokens: 20 heads are padded to a tile of each token. */
static void dense_decode_is_told_its_rows(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    call.problem.op = MLA_OP_DENSE_DECODE;
    call.problem.batch = 128;
    call.problem.h_q = 20;
    call.problem.topk = 0;
    call.problem.causal = true;
    call.lengths.seqlens = device_pointer(LENGTHS_AT);
    call.tensors.seqlens = device_pointer(LENGTHS_AT);
    call.tensors.indices = NULL;
    call.tensors.block_table = device_pointer(INDICES_AT);
    call.tensors.max_pages = 40;
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(launched->count, 3);
    const mla_sm90_plan_args *plan = (const void *)launched->launches[0].args;
    assert_int_equal(plan->rule.num_reqs, 128);
    assert_ptr_equal(plan->lengths, device_pointer(LENGTHS_AT));
    assert_int_equal(plan->most_tokens, INT32_MAX);
    assert_int_equal(plan->reqs_a_length, 1);
    assert_string_equal(launched->launches[1].kernel, "mla_sm90_dense_bf16");
    assert_int_equal(launched->launches[1].grid, 44 * 3);
    const mla_sm90_dense_args *rows = (const void *)launched->launches[1].args;
    assert_int_equal(rows->batch, 128);
    assert_int_equal(rows->s_q, 3);
    assert_int_equal(rows->req_tokens, 1);
    assert_int_equal(rows->group_pad, 64);
    assert_int_equal(rows->row_tiles, 3);
    assert_int_equal(rows->max_tokens, 40 * 64);
    assert_int_equal(rows->causal, 1);
    fake_cuda_map map;
    memcpy(&map, &rows->kv_map, sizeof map);
    const uint64_t dims[4] = {576, 64, 100, 1};
    assert_int_equal(map.data, KV_AT);
    assert_memory_equal(map.dims, dims, sizeof dims);
}

/* Two CTAs of a cluster share the conversion of FP8 rows where row tiles come in pairs. */
static void row_tiles_convert_in_pairs(void **state)
{
    (void)state;
    static const struct {
        int64_t h_q;
        const char *of_656, *of_584;
    } expected[] = {
        {64, "mla_sm90_sparse_decode_fp8_656", "mla_sm90_sparse_decode_fp8_584"},
        {65, "mla_sm90_sparse_decode_fp8_656_pair", "mla_sm90_sparse_decode_fp8_584_pair"},
        {128, "mla_sm90_sparse_decode_fp8_656_pair", "mla_sm90_sparse_decode_fp8_584_pair"},
        {129, "mla_sm90_sparse_decode_fp8_656", "mla_sm90_sparse_decode_fp8_584"},
        {256, "mla_sm90_sparse_decode_fp8_656_pair", "mla_sm90_sparse_decode_fp8_584_pair"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        for (int v4 = 0; v4 < 2; v4++) {
            host_call call = sparse_call(MLA_OP_SPARSE_DECODE,
                                         v4 ? MLA_KV_FP8_584 : MLA_KV_FP8_656);
            call.problem.h_q = expected[i].h_q;
            mla_sizes sizes;
            assert_int_equal(enqueue(&call, &sizes), MLA_OK);
            const fake_cuda_launch *decode = &launched->launches[1];
            assert_string_equal(decode->kernel, v4 ? expected[i].of_584 : expected[i].of_656);
            assert_true(sparse_args()->rows.row_tiles % 2 == 1 || decode->grid % 2 == 0);
        }
    }
}

static void the_map_of_q_has_a_dimension_for_tokens(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    call.problem.h_q = 20;
    call.problem.h_kv = 2;
    call.tensors.q_stride[0] = 4096 * 20;
    call.tensors.q_stride[1] = 1024 * 20;
    call.tensors.q_stride[2] = 640;
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    fake_cuda_map map;
    memcpy(&map, &sparse_args()->rows.q_map, sizeof map);
    const uint64_t dims[5] = {576, 10, 2, 3, 5};
    const uint64_t strides[4] = {1280, 12800, 40960, 163840};
    const uint16_t box[5] = {64, 64, 1, 1, 1};
    assert_int_equal(map.data, Q_AT);
    assert_int_equal(map.rank, 5);
    assert_memory_equal(map.dims, dims, sizeof dims);
    assert_memory_equal(map.strides, strides, sizeof strides);
    assert_memory_equal(map.box, box, sizeof box);
}

static void pools_are_told_in_bytes(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656);
    add_extra_pool(&call);
    call.tensors.kv.stride[0] = 1 << 20;
    call.tensors.kv.stride[1] = 672;
    call.tensors.topk_length = device_pointer(LENGTHS_AT);
    call.tensors.indices_stride[0] = 9000;
    call.tensors.indices_stride[1] = 2100;
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_string_equal(launched->launches[1].kernel, "mla_sm90_sparse_decode_fp8_656_pair");
    const mla_sm90_sparse_pool *pool = sparse_args()->pool;
    assert_ptr_equal(pool[0].data, device_pointer(KV_AT));
    assert_int_equal(pool[0].page_stride, 1 << 20);
    assert_int_equal(pool[0].token_stride, 672);
    assert_int_equal(pool[0].num_slots, 6400);
    assert_int_equal(pool[0].page_size, 64);
    assert_int_equal(pool[0].topk, 2048);
    assert_ptr_equal(pool[0].indices, device_pointer(INDICES_AT));
    assert_int_equal(pool[0].indices_stride[0], 9000);
    assert_int_equal(pool[0].indices_stride[1], 2100);
    assert_ptr_equal(pool[0].lengths, device_pointer(LENGTHS_AT));
    assert_int_equal(pool[1].page_stride, 2 * 656);
    assert_int_equal(pool[1].num_slots, 14);
    assert_int_equal(pool[1].topk, 100);
    assert_null(pool[1].lengths);
    assert_int_equal(sparse_args()->lengths_tokens, 3);
    call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_584);
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_string_equal(launched->launches[1].kernel, "mla_sm90_sparse_decode_fp8_584_pair");
    assert_int_equal(sparse_args()->pool[0].token_stride, 576);
    assert_int_equal(sparse_args()->pool[0].page_stride, 65 * 576);
    assert_int_equal(sparse_args()->pool[1].topk, 0);
}

static void prefill_is_never_split(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_PREFILL, MLA_KV_NATIVE);
    call.problem.dtype = MLA_DTYPE_F16;
    call.problem.s_q = 4096;
    call.tensors.max_logits = device_pointer(MAX_AT);
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(sizes.workspace_bytes, 0);
    assert_int_equal(launched->count, 2);
    assert_string_equal(launched->launches[1].kernel, "mla_sm90_sparse_prefill_f16");
    assert_int_equal(launched->launches[1].grid, FAKE_CUDA_SMS);
    assert_int_equal(sparse_args()->rows.batch, 4096);
    assert_int_equal(sparse_args()->rows.req_tokens, 4096);
    assert_int_equal(sparse_args()->lengths_tokens, 1);
    assert_int_equal(sparse_args()->pool[0].page_stride, 1152);
    assert_ptr_equal(sparse_args()->max_logits, device_pointer(MAX_AT));
}

/* 66 parts of 62 or 63 tokens; 64 parts of 64 would leave four processors idle. */
static void prefill_occupies_all_processors(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_PREFILL, MLA_KV_NATIVE);
    call.problem.s_q = 4096;
    mla_shape shape;
    assert_int_equal(mla_shape_init(&call.problem, &shape), MLA_OK);
    const mla_cut_rule rule = mla_cuda_cut_rule(ctx, &shape);
    void *plan = malloc(mla_plan_bytes(rule.max_parts));
    assert_non_null(plan);
    mla_plan_cut(&shape, &call.lengths, &rule, plan);
    const mla_plan_header *header = plan;
    const mla_plan_part *parts = (const mla_plan_part *)(header + 1);
    assert_int_equal(header->num_parts, 66);
    for (int32_t i = 0; i < header->num_parts; i++) {
        assert_int_equal(parts[i].end_block, 0);
        assert_in_range(parts[i].end_req - parts[i].begin_req, 62, 63);
    }
    free(plan);
}

static void plans_are_told_both_lists(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    add_extra_pool(&call);
    call.lengths.extra_topk_length = device_pointer(LENGTHS_AT);
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    const mla_sm90_plan_args *plan = (const void *)launched->launches[0].args;
    assert_int_equal(plan->rule.num_reqs, 15);
    assert_int_equal(plan->rule.max_parts, 66);
    assert_false(plan->rule.exact_parts);
    assert_null(plan->lengths);
    assert_int_equal(plan->most_tokens, 2048);
    assert_ptr_equal(plan->extra_lengths, device_pointer(LENGTHS_AT));
    assert_int_equal(plan->most_extra_tokens, 100);
    assert_int_equal(plan->reqs_a_length, 3);
    assert_ptr_equal(plan->plan, device_pointer(PLAN_AT));
    call.problem.num_parts = 7;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(plan->rule.max_parts, 7);
    assert_true(plan->rule.exact_parts);
    call.problem.num_parts = 0;
    call.problem.batch_invariant = true;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_true(plan->rule.whole_requests);
    assert_int_equal(sizes.workspace_bytes, 0);
    /* More row tiles than processors: one part. */
    call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    call.problem.h_q = 64 * 133;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(plan->rule.max_parts, 1);
    assert_int_equal(launched->launches[1].grid, 133);
    assert_int_equal(launched->count, 2);
}

static void a_scale_of_zero_is_none_for_the_kernel(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_NATIVE);
    call.problem.softmax_scale = 1e-50;
    call.problem.lse_empty_pos_inf = true;
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_true(sparse_args()->rows.scale_log2 > 0 && sparse_args()->rows.scale_log2 < 1e-36f);
    assert_true(sparse_args()->rows.lse_empty == INFINITY);
    call.problem.softmax_scale = 0.5;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_true(fabsf(sparse_args()->rows.scale_log2 - 0.72134752f) < 1e-7f);
}

/* A pool without a page has no address either. */
static void an_empty_pool_is_allowed(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656);
    call.tensors.kv = (mla_pool){.data = NULL};
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(sparse_args()->pool[0].num_slots, 0);
}

static void assert_refused(const host_call *call, mla_status status, const char *text)
{
    mla_sizes sizes;
    assert_int_equal(enqueue(call, &sizes), status);
    assert_string_equal(mla_last_error(), text);
    /* The plan may have been built; nothing else was launched. */
    assert_true(launched->count <= 1);
}

static void problems_are_refused_by_name(void **state)
{
    (void)state;
    const mla_op decode = MLA_OP_SPARSE_DECODE, prefill = MLA_OP_SPARSE_PREFILL;
    host_call call = sparse_call(decode, MLA_KV_NATIVE);
    call.problem.batch = 1 << 20;
    call.problem.s_q = 1 << 11;
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "problem.batch * s_q = 1048576 * 2048: CUDA counts query tokens in 32 bits");
    call = sparse_call(prefill, MLA_KV_FP8_656);
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "problem.kv_format = 1: sparse prefill on CUDA reads native rows only");
    call = sparse_call(decode, MLA_KV_FP8_584);
    call.problem.dtype = MLA_DTYPE_F16;
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "problem.dtype = 2: CUDA reads FP8 rows for BF16 queries only");
    call = sparse_call(decode, MLA_KV_NATIVE);
    add_extra_pool(&call);
    call.problem.topk = INT32_MAX - 150;
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "problem.topk + extra_topk = 2147483497 + 100: CUDA counts them in 32 bits");
    call = sparse_call(decode, MLA_KV_NATIVE);
    call.problem.num_parts = 65536;
    call.problem.h_q = 64 * 512;
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "problem.num_parts = 65536: with these rows, too many thread blocks");
}

static void tensors_are_refused_by_name(void **state)
{
    (void)state;
    const mla_op decode = MLA_OP_SPARSE_DECODE;
    host_call call = sparse_call(decode, MLA_KV_NATIVE);
    call.tensors.q = device_pointer(Q_AT + 8);
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.q = 0x10008: CUDA needs 16-byte alignment");
    call = sparse_call(decode, MLA_KV_NATIVE);
    call.tensors.q_stride[0] = (int64_t)1 << 39;
    call.tensors.q_stride[1] = 128 * 576;
    call.tensors.q_stride[2] = 576;
    assert_refused(&call, MLA_ERR_UNSUPPORTED,
                   "tensors.q stride 0: 1099511627776 bytes, CUDA's tensor maps end at 2^40");
    call = sparse_call(decode, MLA_KV_NATIVE);
    call.tensors.out_stride[0] = 3 * 128 * 513;
    call.tensors.out_stride[1] = 128 * 513;
    call.tensors.out_stride[2] = 513;
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.out stride 2: 1026 bytes are no multiple of 16");
    call = sparse_call(decode, MLA_KV_NATIVE);
    call.tensors.kv.data = device_pointer(KV_AT + 2);
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.kv = 0x20002: CUDA needs 16-byte alignment");
    call = sparse_call(decode, MLA_KV_NATIVE);
    call.tensors.kv.stride[0] = 64 * 580;
    call.tensors.kv.stride[1] = 580;
    call.tensors.kv.stride[2] = 576;
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.kv stride 1: 1160 bytes are no multiple of 16");
    call = sparse_call(decode, MLA_KV_FP8_656);
    call.tensors.kv.stride[0] = 64 * 656 + 8;
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.kv stride 0: 41992 bytes are no multiple of 16");
    call = sparse_call(decode, MLA_KV_FP8_584);
    call.tensors.kv.stride[0] = 64 * 584 + 8;
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.kv stride 0: 37384 bytes are no multiple of 16");
    call = sparse_call(decode, MLA_KV_FP8_584);
    add_extra_pool(&call);
    call.tensors.extra_kv.data = device_pointer(EXTRA_AT + 4);
    assert_refused(&call, MLA_ERR_INVALID_ARGUMENT,
                   "tensors.extra_kv = 0x30004: CUDA needs 16-byte alignment");
}

/* Pages, rows and layers may lie as far apart as 64 bits reach: no tensor map is made of a pool. */
static void pools_may_be_strided_far(void **state)
{
    (void)state;
    host_call call = sparse_call(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656);
    call.tensors.kv.stride[0] = (int64_t)1 << 41;
    mla_sizes sizes;
    assert_int_equal(enqueue(&call, &sizes), MLA_OK);
    assert_int_equal(sparse_args()->pool[0].page_stride, (int64_t)1 << 41);
}

static int open_fake(void **state)
{
    (void)state;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    launched = library != NULL ? dlsym(library, "fake_cuda_launched") : NULL;
    if (launched == NULL) {
        print_error("the fake libcuda.so.1 is not the one that is found\n");
        return -1;
    }
    const mla_ctx_params params = {.struct_size = sizeof params, .backend = MLA_BACKEND_CUDA};
    if (mla_ctx_create(&params, &ctx) != MLA_OK) {
        print_error("%s\n", mla_last_error());
        return -1;
    }
    return 0;
}

static int close_fake(void **state)
{
    (void)state;
    mla_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_is_told_its_rows),
        cmocka_unit_test(dense_decode_is_told_its_rows),
        cmocka_unit_test(row_tiles_convert_in_pairs),
        cmocka_unit_test(the_map_of_q_has_a_dimension_for_tokens),
        cmocka_unit_test(pools_are_told_in_bytes),
        cmocka_unit_test(prefill_is_never_split),
        cmocka_unit_test(prefill_occupies_all_processors),
        cmocka_unit_test(plans_are_told_both_lists),
        cmocka_unit_test(a_scale_of_zero_is_none_for_the_kernel),
        cmocka_unit_test(an_empty_pool_is_allowed),
        cmocka_unit_test(problems_are_refused_by_name),
        cmocka_unit_test(tensors_are_refused_by_name),
        cmocka_unit_test(pools_may_be_strided_far),
    };
    return cmocka_run_group_tests_name("cuda_host", tests, open_fake, close_fake);
}
