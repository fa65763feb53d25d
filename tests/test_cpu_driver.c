/* Private: the CPU driver's promises on sizes and plans, and the rounding of its results. */
#include "cmocka_c11.h"
#include "guarded_memory.h"
#include "random_source.h"

#include "cpu/cpu_run.h"
#include "cpu/kernels.h"
#include "formats.h"

#include <math.h>
#include <string.h>

static mla_ctx ctx_of(const mla_cpu_kernel *kernel, int32_t num_threads)
{
    return (mla_ctx){.info = {.isa_allowed = (uint32_t)kernel->isa, .num_threads = num_threads}};
}

static mla_shape dense_shape(int64_t batch, int64_t s_q, int64_t h_q)
{
    mla_problem problem = {.struct_size = sizeof problem,
                           .op = MLA_OP_DENSE_DECODE,
                           .dtype = MLA_DTYPE_BF16,
                           .batch = batch,
                           .s_q = s_q,
                           .h_q = h_q,
                           .h_kv = 1,
                           .d_qk = 576,
                           .d_v = 512,
                           .page_size = 64,
                           .causal = true};
    mla_shape shape;
    assert_int_equal(mla_shape_init(&problem, &shape), MLA_OK);
    return shape;
}

static void workspace_is_at_most_4_mib_a_thread(void **state)
{
    (void)state;
    const int64_t batches[] = {1, 2, 7, 128, 70000, 1 << 28}, tokens[] = {1, 2, 3, 64, 512},
                  heads[] = {1, 16, 65, 128, 129, 256};
    int32_t num_kernels;
    const mla_cpu_kernel *const *kernels = mla_cpu_kernels(&num_kernels);
    for (int32_t k = 0; k < num_kernels; k++) {
        for (int32_t threads = 1; threads <= 200; threads += threads < 10 ? 1 : 37) {
            mla_ctx ctx = ctx_of(kernels[k], threads);
            for (int i = 0; i < 6 * 5 * 6; i++) {
                mla_shape shape = dense_shape(batches[i % 6], tokens[i / 6 % 5], heads[i / 30]);
                mla_sizes sizes = {.struct_size = sizeof sizes};
                mla_cpu_sizes(&ctx, &shape, &sizes);
                assert_true(sizes.workspace_bytes <= (size_t)threads * (4u << 20));
            }
        }
    }
}

/* One request of 300 tokens, another of 70, in pages of 64 laid end to end. */
typedef struct small_batch {
    mla_shape shape;
    mla_tensors tensors;
    mla_lengths lengths;
    int32_t seqlens[2];
    int32_t pages[2][5];
} small_batch;

static void small_batch_make(small_batch *b)
{
    enum { NUM_PAGES = 10, ROWS = 2 * 2 * 5 };
    *b = (small_batch){.shape = dense_shape(2, 2, 5), .seqlens = {300, 70}};
    for (int32_t i = 0; i < NUM_PAGES; i++) {
        b->pages[i / 5][i % 5] = i;
    }
    void *q = guarded_alloc(ROWS * 576 * 2, 64), *kv = guarded_alloc(NUM_PAGES * 64 * 1152, 64);
    memset(q, 0, ROWS * 576 * 2);
    memset(kv, 0, NUM_PAGES * 64 * 1152);
    b->tensors = (mla_tensors){
        .struct_size = sizeof b->tensors,
        .q = q,
        .q_stride = {2 * 5 * 576, 5 * 576, 576},
        .kv = {.data = kv, .num_pages = NUM_PAGES, .stride = {64 * 1152, 1152, 1152}},
        .block_table = b->pages[0],
        .block_table_stride = 5,
        .max_pages = 5,
        .seqlens = b->seqlens,
        .out = guarded_alloc(ROWS * 512 * 2, 64),
        .out_stride = {2 * 5 * 512, 5 * 512, 512},
        .lse = guarded_alloc(ROWS * 4, 64),
        .lse_stride = {2 * 5, 5, 1}};
    b->lengths = (mla_lengths){.struct_size = sizeof b->lengths, .seqlens = b->seqlens};
}

/* Buffers lie between inaccessible pages, so that any stray access ends the test. */
static void no_plan_bytes_reach_out_of_bounds(void **state)
{
    (void)state;
    random_source source = {.state = 1};
    for (int round = 0; round < 300; round++) {
        size_t mark = guarded_mark();
        small_batch b;
        small_batch_make(&b);
        b.shape.problem.num_parts = (int32_t)random_below(&source, 9);
        b.shape.problem.batch_invariant = random_below(&source, 4) == 0;
        mla_ctx ctx = ctx_of(&mla_portable_kernel, 2);
        mla_sizes sizes = {.struct_size = sizeof sizes};
        mla_cpu_sizes(&ctx, &b.shape, &sizes);
        uint8_t *plan = guarded_alloc(sizes.plan_bytes, 16);
        void *workspace = guarded_alloc(sizes.workspace_bytes, 16);
        mla_cut_rule rule = mla_cpu_cut_rule(&ctx, &b.shape);
        mla_plan_cut(&b.shape, &b.lengths, &rule, plan);
        for (size_t at = 4; at < sizes.plan_bytes; at += 4) {
            int32_t word = random_below(&source, 2) ? (int32_t)random_bits(&source)
                                                    : (int32_t)random_below(&source, 9) - 2;
            if (round > 0 && random_below(&source, 4) == 0) {
                memcpy(plan + at, &word, sizeof word);
            }
        }
        mla_status status = mla_cpu_run(&ctx, &b.shape, &b.tensors, plan, workspace);
        assert_true(status == MLA_OK || status == MLA_ERR_PLAN_MISMATCH);
        guarded_release(mark);
    }
}

static void assert_narrowed(mla_dtype dtype, const float *values, const uint16_t *out)
{
    for (int i = 0; i < MLA_D_V; i++) {
        if (isnan(values[i])) {
            assert_true(isnan(mla_elem_to_f32(dtype, out[i])));
        } else {
            assert_int_equal(out[i], mla_elem_from_f32(dtype, values[i]));
        }
    }
}

static void rows_are_rounded_as_formats_say(void **state)
{
    (void)state;
    const uint32_t low_bits[] = {0,      1,      0xfff,  0x1000, 0x1001,
                                 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff};
    int32_t num_kernels;
    const mla_cpu_kernel *const *kernels = mla_cpu_kernels(&num_kernels);
    for (int32_t k = 0; k < num_kernels; k++) {
        if (!kernels[k]->available()) {
            continue;
        }
        for (uint32_t high = 0; high < 0x10000; high += MLA_D_V) {
            for (size_t j = 0; j < sizeof low_bits / sizeof low_bits[0]; j++) {
                float values[MLA_D_V];
                uint16_t out[MLA_D_V];
                for (uint32_t i = 0; i < MLA_D_V; i++) {
                    values[i] = mla_f32_from_bits((high + i) << 16 | low_bits[j]);
                }
                kernels[k]->narrow(MLA_DTYPE_BF16, values, 1.0f, out);
                assert_narrowed(MLA_DTYPE_BF16, values, out);
                kernels[k]->narrow(MLA_DTYPE_F16, values, 1.0f, out);
                assert_narrowed(MLA_DTYPE_F16, values, out);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workspace_is_at_most_4_mib_a_thread),
                                       cmocka_unit_test(no_plan_bytes_reach_out_of_bounds),
                                       cmocka_unit_test(rows_are_rounded_as_formats_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
