/* Private: what all-zero strides stand for, and which others are refused. */
#include "cmocka_c11.h"

#include "tensors.h"

#include <string.h>

static uint16_t anything[64];

static mla_shape shape_of(mla_problem problem)
{
    mla_shape shape;
    problem.struct_size = sizeof problem;
    assert_int_equal(mla_shape_init(&problem, &shape), MLA_OK);
    return shape;
}

static mla_problem small_problem(mla_op op, mla_kv_format kv_format)
{
    return (mla_problem){.op = op,
                         .dtype = MLA_DTYPE_BF16,
                         .kv_format = kv_format,
                         .batch = op == MLA_OP_SPARSE_PREFILL ? 1 : 3,
                         .s_q = 2,
                         .h_q = 12,
                         .h_kv = kv_format == MLA_KV_NATIVE ? 4 : 1,
                         .d_qk = kv_format == MLA_KV_FP8_584 ? 512 : 576,
                         .d_v = 512,
                         .page_size = 16,
                         .topk = op == MLA_OP_DENSE_DECODE ? 0 : 70};
}

static mla_tensors small_tensors(const mla_shape *shape)
{
    mla_tensors tensors = {.struct_size = sizeof tensors,
                           .q = anything,
                           .out = anything,
                           .kv = {.data = anything, .num_pages = 5}};
    if (shape->sparse) {
        tensors.indices = (const int32_t *)(const void *)anything;
    } else {
        tensors.seqlens = (const int32_t *)(const void *)anything;
        tensors.block_table = (const int32_t *)(const void *)anything;
        tensors.max_pages = 9;
    }
    return tensors;
}

static mla_tensors resolve(const mla_shape *shape, const mla_tensors *tensors)
{
    mla_tensors resolved;
    assert_int_equal(mla_tensors_resolve(shape, tensors, &resolved), MLA_OK);
    return resolved;
}

static void assert_strides(const int64_t *got, int64_t first, int64_t second, int64_t third)
{
    assert_int_equal(got[0], first);
    assert_int_equal(got[1], second);
    assert_int_equal(got[2], third);
}

static void contiguous_layouts(void **state)
{
    (void)state;
    mla_shape dense = shape_of(small_problem(MLA_OP_DENSE_DECODE, MLA_KV_NATIVE));
    mla_tensors tensors = small_tensors(&dense);
    mla_tensors t = resolve(&dense, &tensors);
    assert_strides(t.q_stride, 2 * 12 * 576, 12 * 576, 576);
    assert_strides(t.out_stride, 2 * 12 * 512, 12 * 512, 512);
    assert_strides(t.lse_stride, 24, 12, 1);
    assert_strides(t.kv.stride, 16 * 4 * 576 * 2, 4 * 576 * 2, 576 * 2); /* bytes */
    assert_int_equal(t.block_table_stride, 9);

    mla_shape sparse = shape_of(small_problem(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656));
    tensors = small_tensors(&sparse);
    t = resolve(&sparse, &tensors);
    assert_strides(t.kv.stride, 16 * 656, 656, 0);
    assert_strides(t.indices_stride, 2 * 70, 70, 70);

    sparse = shape_of(small_problem(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_584));
    tensors = small_tensors(&sparse);
    t = resolve(&sparse, &tensors);
    assert_strides(t.kv.stride, 17 * 576, 576, 0); /* 16 * 584 rounded up */

    mla_problem prefill = small_problem(MLA_OP_SPARSE_PREFILL, MLA_KV_NATIVE);
    prefill.page_size = 1;
    mla_shape shape = shape_of(prefill);
    tensors = small_tensors(&shape);
    t = resolve(&shape, &tensors);
    assert_strides(t.kv.stride, 4 * 576 * 2, 4 * 576 * 2, 576 * 2);
    assert_strides(t.indices_stride, 2 * 4 * 70, 4 * 70, 70);
}

static void given_strides_are_kept(void **state)
{
    (void)state;
    mla_shape dense = shape_of(small_problem(MLA_OP_DENSE_DECODE, MLA_KV_NATIVE));
    mla_tensors tensors = small_tensors(&dense);
    const int64_t q[3] = {576, 3 * 576, 6 * 576}, out[3] = {1 << 20, 520, 1 << 15};
    const int64_t kv[3] = {1 << 24, 600, 1 << 20};
    memcpy(tensors.q_stride, q, sizeof q);
    memcpy(tensors.out_stride, out, sizeof out);
    memcpy(tensors.kv.stride, kv, sizeof kv);
    tensors.block_table_stride = 100;
    mla_tensors t = resolve(&dense, &tensors);
    assert_strides(t.q_stride, q[0], q[1], q[2]);
    assert_strides(t.out_stride, out[0], out[1], out[2]);
    assert_strides(t.kv.stride, 2 * kv[0], 2 * kv[1], 2 * kv[2]);
    assert_int_equal(t.block_table_stride, 100);

    mla_shape sparse = shape_of(small_problem(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656));
    tensors = small_tensors(&sparse);
    tensors.kv.stride[1] = 700; /* the page follows from the token */
    t = resolve(&sparse, &tensors);
    assert_strides(t.kv.stride, 16 * 700, 700, 0);
}

/* One query row read by all requests is fine; one output row written by all is not. */
static void broadcast_inputs_only(void **state)
{
    (void)state;
    mla_shape dense = shape_of(small_problem(MLA_OP_DENSE_DECODE, MLA_KV_NATIVE));
    mla_tensors tensors = small_tensors(&dense), resolved;
    tensors.q_stride[1] = 12 * 576;
    tensors.q_stride[2] = 576;
    assert_int_equal(mla_tensors_resolve(&dense, &tensors, &resolved), MLA_OK);
    assert_int_equal(resolved.q_stride[0], 0);
    tensors.out_stride[1] = 12 * 512;
    tensors.out_stride[2] = 512;
    assert_int_equal(mla_tensors_resolve(&dense, &tensors, &resolved), MLA_ERR_INVALID_ARGUMENT);
}

/* Of FP8 rows too; the page's stride follows from the token's. */
static void fp8_offsets_never_overflow(void **state)
{
    (void)state;
    mla_problem problem = small_problem(MLA_OP_SPARSE_DECODE, MLA_KV_FP8_656);
    mla_shape shape = shape_of(problem);
    for (int bit = 10; bit < 63; bit++) {
        mla_tensors tensors = small_tensors(&shape), t;
        tensors.kv.num_pages = 1;
        tensors.kv.stride[1] = (int64_t)1 << bit;
        mla_status status = mla_tensors_resolve(&shape, &tensors, &t);
        assert_int_equal(status, bit <= 55 ? MLA_OK : MLA_ERR_INVALID_ARGUMENT);
    }
}

/* Whatever is resolved, an element's byte offset fits int64_t. */
static void offsets_never_overflow(void **state)
{
    (void)state;
    const int64_t strides[] = {INT64_MAX, INT64_MAX / 2, (int64_t)1 << 60, (int64_t)1 << 58};
    mla_problem problem = small_problem(MLA_OP_DENSE_DECODE, MLA_KV_NATIVE);
    for (int i = 0; i < 12; i++) {
        problem.batch = i % 2 ? 1 : 3;
        mla_shape shape = shape_of(problem);
        mla_tensors tensors = small_tensors(&shape), t;
        tensors.kv.num_pages = i % 3 ? 1 : 5;
        tensors.q_stride[i % 3] = tensors.out_stride[i % 3] = strides[i % 4];
        tensors.kv.stride[i % 3] = strides[i % 4];
        for (int j = 0; j < 3; j++) {
            if (j != i % 3) {
                tensors.q_stride[j] = tensors.out_stride[j] = tensors.kv.stride[j] = 1 << 20;
            }
        }
        if (mla_tensors_resolve(&shape, &tensors, &t) != MLA_OK) {
            continue;
        }
        int64_t offset, sum = 0;
        const int64_t dims[3] = {t.kv.num_pages, problem.page_size, problem.h_kv};
        for (int j = 0; j < 3; j++) {
            assert_false(__builtin_mul_overflow(t.kv.stride[j], dims[j], &offset));
            assert_false(__builtin_add_overflow(sum, offset, &sum));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_layouts),         cmocka_unit_test(given_strides_are_kept),
        cmocka_unit_test(broadcast_inputs_only),      cmocka_unit_test(offsets_never_overflow),
        cmocka_unit_test(fp8_offsets_never_overflow),
    };
    return cmocka_run_group_tests_name("strides", tests, NULL, NULL);
}
