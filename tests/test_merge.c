/* mla_merge(): both lse conventions, parts that own nothing, every dtype, and merged = unsplit. */
#include "isa_scenarios.h"

#include "plain_numbers.h"
#include "random_source.h"

#include <math.h>
#include <string.h>

enum { D_V = 512, MAX_PARTS = 256 };

/* Inputs of one merge in guarded memory; values in the part dtype. */
typedef struct merge_case {
    mla_merge_args args;
    const void *outs[MAX_PARTS];
    const float *lses[MAX_PARTS];
    int64_t rows;
} merge_case;

static double load_elem(mla_dtype dtype, const void *data, int64_t idx)
{
    return dtype == MLA_DTYPE_F32 ? (double)((const float *)data)[idx]
                                  : (double)plain_elem(dtype, ((const uint16_t *)data)[idx]);
}

static size_t elem_bytes(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_F32 ? 4 : 2;
}

/* Parts whose lse is infinite, of either sign, have NaN values. */
static void make_merge_case(merge_case *m, int64_t num_parts, mla_dtype part_dtype,
                            mla_dtype out_dtype, int empty_percent, uint64_t seed)
{
    random_source source = {.state = seed};
    *m = (merge_case){.args = {.struct_size = sizeof m->args,
                               .num_parts = num_parts,
                               .batch = 3,
                               .s_q = 2,
                               .h_q = 5,
                               .d_v = D_V,
                               .part_dtype = part_dtype,
                               .out_dtype = out_dtype}};
    m->rows = 30;
    size_t bytes = elem_bytes(part_dtype);
    for (int64_t part = 0; part < num_parts; part++) {
        uint8_t *out = guarded_alloc((size_t)(m->rows * D_V) * bytes, bytes);
        float *lse = guarded_alloc((size_t)m->rows * sizeof *lse, sizeof *lse);
        for (int64_t row = 0; row < m->rows; row++) {
            bool empty = random_below(&source, 100) < empty_percent;
            lse[row] = 5.0f * random_normal(&source);
            if (empty) {
                lse[row] = row % 2 ? INFINITY : -INFINITY;
                continue;
            }
            for (int64_t i = row * D_V; i < (row + 1) * D_V; i++) {
                float value = random_normal(&source);
                uint16_t bits = plain_elem_bits(
                    part_dtype == MLA_DTYPE_F16 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, (double)value);
                memcpy(out + (size_t)i * bytes,
                       part_dtype == MLA_DTYPE_F32 ? (const void *)&value : &bits, bytes);
            }
        }
        m->outs[part] = out;
        m->lses[part] = lse;
    }
    m->args.part_outs = m->outs;
    m->args.part_lses = m->lses;
    m->args.out = guarded_alloc((size_t)(m->rows * D_V) * elem_bytes(out_dtype),
                                elem_bytes(out_dtype));
    m->args.lse = guarded_alloc((size_t)m->rows * sizeof(float), sizeof(float));
}

/* exp(lse) summed in double straight from the formula. */
static void assert_merge_right(const merge_case *m)
{
    const mla_merge_args *a = &m->args;
    double rounding = a->out_dtype == MLA_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t row = 0; row < m->rows; row++) {
        double sum = 0, merged[D_V] = {0};
        for (int64_t part = 0; part < a->num_parts; part++) {
            double weight = isinf(m->lses[part][row]) ? 0 : exp((double)m->lses[part][row]);
            for (int i = 0; i < D_V && weight > 0; i++) {
                merged[i] += weight * load_elem(a->part_dtype, m->outs[part], row * D_V + i);
            }
            sum += weight;
        }
        double lse = sum > 0 ? log(sum) : a->lse_empty_pos_inf ? INFINITY : -INFINITY;
        assert_true(a->lse[row] == (float)lse || fabs(a->lse[row] - lse) < 4e-6);
        for (int i = 0; i < D_V; i++) {
            double want = sum > 0 ? merged[i] / sum : 0;
            double got = load_elem(a->out_dtype, a->out, row * D_V + i);
            if (!(fabs(got - want) <= fabs(want) * rounding + 3e-6)) {
                fail_msg("row %lld, column %d: merged %.9g, should be %.9g", (long long)row, i, got,
                         want);
            }
        }
    }
}

static mla_ctx *merge_ctx(void)
{
    return open_cpu_ctx(0, 0);
}

static void numbers_of_parts_and_dtypes(void **state)
{
    (void)state;
    const int64_t parts[] = {1, 2, 3, 8, 31, 32, 33, 256};
    mla_ctx *ctx = merge_ctx();
    for (int i = 0; i < 8 * 9; i++) {
        size_t mark = guarded_mark();
        merge_case m;
        make_merge_case(&m, parts[i / 9], (mla_dtype)(1 + i % 3), (mla_dtype)(1 + i / 3 % 3), 0,
                        (uint64_t)i);
        assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
        assert_merge_right(&m);
        guarded_release(mark);
    }
    mla_ctx_destroy(ctx);
}

/* A part without keys has an infinite lse of either sign and its values, NaN here, are not read. */
static void parts_that_own_nothing(void **state)
{
    (void)state;
    const int empty_percent[] = {30, 90, 100};
    mla_ctx *ctx = merge_ctx();
    for (int i = 0; i < 12; i++) {
        size_t mark = guarded_mark();
        merge_case m;
        make_merge_case(&m, i < 6 ? 2 : 8, (mla_dtype)(1 + i % 2), MLA_DTYPE_BF16,
                        empty_percent[i / 2 % 3], 300 + (uint64_t)i);
        m.args.lse_empty_pos_inf = i % 2 != 0;
        assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
        assert_merge_right(&m);
        guarded_release(mark);
    }
    mla_ctx_destroy(ctx);
}

/* lse far apart and huge: no overflow on the way. */
static void extreme_lse(void **state)
{
    (void)state;
    mla_ctx *ctx = merge_ctx();
    merge_case m;
    make_merge_case(&m, 2, MLA_DTYPE_F32, MLA_DTYPE_F32, 0, 320);
    const float pairs[][2] = {{1e4f, 1e4f}, {-1e4f, -1e4f}, {1e4f, -1e4f}, {3e38f, -3e38f}};
    for (int64_t row = 0; row < m.rows; row++) {
        ((float *)(uintptr_t)m.lses[0])[row] = pairs[row % 4][0];
        ((float *)(uintptr_t)m.lses[1])[row] = pairs[row % 4][1];
    }
    assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
    for (int64_t row = 0; row < m.rows; row++) {
        bool equal = row % 4 < 2;
        float want_lse = equal ? pairs[row % 4][0] + logf(2) : pairs[row % 4][0];
        assert_true(fabsf(m.args.lse[row] - want_lse) <= 1e-3f);
        for (int64_t i = row * D_V; i < (row + 1) * D_V; i++) {
            float first = ((const float *)m.outs[0])[i], second = ((const float *)m.outs[1])[i];
            float want = equal ? (first + second) / 2 : first;
            assert_true(fabsf(((const float *)m.args.out)[i] - want) <= 1e-6f);
        }
    }
    guarded_release(0);
    mla_ctx_destroy(ctx);
}

/* The output may be one of the parts, and lse may be left out. */
static void in_place_and_without_lse(void **state)
{
    (void)state;
    mla_ctx *ctx = merge_ctx();
    merge_case m;
    make_merge_case(&m, 3, MLA_DTYPE_BF16, MLA_DTYPE_BF16, 20, 330);
    assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
    for (int part = 0; part < 3; part++) {
        size_t bytes = (size_t)(m.rows * D_V) * 2;
        void *copy = guarded_alloc(bytes, 2);
        memcpy(copy, m.outs[part], bytes);
        merge_case in_place = m;
        in_place.args.part_outs = in_place.outs;
        in_place.outs[part] = copy;
        in_place.args.out = copy;
        in_place.args.lse = NULL;
        assert_int_equal(mla_merge(ctx, &in_place.args, NULL), MLA_OK);
        assert_memory_equal(copy, m.args.out, bytes);
    }
    guarded_release(0);
    mla_ctx_destroy(ctx);
}

/* Copies [3, 2, 5, width] elements into a layout with odd gaps. */
static void spread_rows(const void *packed, void *strided, const int64_t *stride, int64_t width,
                        size_t bytes)
{
    for (int64_t row = 0; row < 30; row++) {
        int64_t at = row / 10 * stride[0] + row / 5 % 2 * stride[1] + row % 5 * stride[2];
        memcpy((char *)strided + (size_t)at * bytes,
               (const char *)packed + (size_t)(row * width) * bytes, (size_t)width * bytes);
    }
}

static void strided_parts_and_outputs(void **state)
{
    (void)state;
    mla_ctx *ctx = merge_ctx();
    merge_case m;
    make_merge_case(&m, 2, MLA_DTYPE_F16, MLA_DTYPE_F32, 20, 340);
    assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
    const int64_t out_stride[3] = {10 * 519 + 7, 5 * 519 + 1, 519};
    const int64_t lse_stride[3] = {29, 13, 2};
    int64_t out_span = 2 * out_stride[0] + out_stride[1] + 4 * 519 + D_V,
            lse_span = 2 * 29 + 13 + 9;
    merge_case s = m;
    s.args.part_outs = s.outs;
    s.args.part_lses = s.lses;
    for (int part = 0; part < 2; part++) {
        void *out = guarded_alloc((size_t)out_span * 2, 2);
        void *lse = guarded_alloc((size_t)lse_span * 4, 4);
        spread_rows(m.outs[part], out, out_stride, D_V, 2);
        spread_rows(m.lses[part], lse, lse_stride, 1, 4);
        s.outs[part] = out;
        s.lses[part] = lse;
    }
    s.args.out = guarded_alloc((size_t)out_span * 4, 4);
    s.args.lse = guarded_alloc((size_t)lse_span * 4, 4);
    void *want_out = guarded_alloc((size_t)out_span * 4, 4);
    void *want_lse = guarded_alloc((size_t)lse_span * 4, 4);
    spread_rows(m.args.out, want_out, out_stride, D_V, 4);
    spread_rows(m.args.lse, want_lse, lse_stride, 1, 4);
    memcpy(s.args.part_out_stride, out_stride, sizeof out_stride);
    memcpy(s.args.out_stride, out_stride, sizeof out_stride);
    memcpy(s.args.part_lse_stride, lse_stride, sizeof lse_stride);
    memcpy(s.args.lse_stride, lse_stride, sizeof lse_stride);
    assert_int_equal(mla_merge(ctx, &s.args, NULL), MLA_OK);
    assert_memory_equal(s.args.out, want_out, (size_t)out_span * 4); /* gaps included */
    assert_memory_equal(s.args.lse, want_lse, (size_t)lse_span * 4);
    guarded_release(0);
    mla_ctx_destroy(ctx);
}

/*
 * The parts are rounded to 16 bits before they are merged. That is worth up to half a step of each
 * part's value times its weight, beside the tolerance of the unsplit answer.
 */
static void assert_merged_close(const mla_problem *p, const merge_case *m,
                                const attention_result *unsplit)
{
    double half_step = p->dtype == MLA_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < m->rows * D_V; i++) {
        int64_t row = i / D_V;
        double rounding = 0, want = plain_elem(p->dtype, unsplit->out[i]);
        for (int64_t part = 0; part < m->args.num_parts; part++) {
            if (!isinf(m->lses[part][row])) {
                double weight = exp((double)m->lses[part][row] - (double)unsplit->lse[row]);
                rounding += half_step * weight * fabs(load_elem(p->dtype, m->outs[part], i));
            }
        }
        double got = load_elem(p->dtype, m->args.out, i);
        double allowed = 8e-4 + 2.01 / 128 * fabs(want) + rounding;
        if (!(fabs(got - want) <= allowed)) {
            fail_msg("row %lld, column %lld: merged %.9g, unsplit %.9g, allowed %.3g",
                     (long long)row, (long long)(i % D_V), got, want, allowed);
        }
    }
    for (int64_t row = 0; row < m->rows; row++) {
        float got = m->args.lse[row], want = unsplit->lse[row];
        assert_true(got == want || fabsf(got - want) <= 1e-6f + 8.01f / 65536 * fabsf(want));
    }
}

/* The keys of each request dealt to `ranks` ranks by pages; a short request leaves ranks empty. */
static merge_case merge_ranks(mla_ctx *ctx, const attention_case *whole, int64_t ranks)
{
    const mla_problem *p = &whole->problem;
    merge_case m = {.args = {.struct_size = sizeof m.args,
                             .num_parts = ranks,
                             .batch = p->batch,
                             .s_q = p->s_q,
                             .h_q = p->h_q,
                             .d_v = D_V,
                             .part_dtype = p->dtype,
                             .out_dtype = p->dtype},
                    .rows = p->batch * p->s_q * p->h_q};
    attention_result merged = attention_result_alloc(p);
    for (int64_t rank = 0; rank < ranks; rank++) {
        attention_case part = *whole;
        int64_t max_pages = whole->tensors.max_pages;
        part.problem.lse_empty_pos_inf = rank % 2 != 0; /* ranks need not agree */
        part.seqlens = guarded_alloc((size_t)p->batch * 4, 4);
        part.block_table = guarded_alloc((size_t)(p->batch * max_pages) * 4, 4);
        for (int64_t req = 0; req < p->batch; req++) {
            int32_t length = 0;
            for (int64_t page = rank, n = 0; page * p->page_size < whole->seqlens[req];
                 page += ranks, n++) {
                int64_t left = whole->seqlens[req] - page * p->page_size;
                length += (int32_t)(left < p->page_size ? left : p->page_size);
                part.block_table[req * max_pages + n] = whole->block_table[req * max_pages + page];
            }
            part.seqlens[req] = length;
        }
        part.tensors.seqlens = part.lengths.seqlens = part.seqlens;
        part.tensors.block_table = part.block_table;
        attention_result result = attention_case_run(ctx, &part);
        m.outs[rank] = result.out;
        m.lses[rank] = result.lse;
    }
    m.args.part_outs = m.outs;
    m.args.part_lses = m.lses;
    m.args.out = merged.out;
    m.args.lse = merged.lse;
    assert_int_equal(mla_merge(ctx, &m.args, NULL), MLA_OK);
    return m;
}

static void merged_equals_unsplit(mla_ctx *ctx)
{
    const int32_t seqlens[] = {700, 0, 40, 129};
    const int64_t ranks[] = {1, 2, 3, 8};
    for (int i = 0; i < 8; i++) {
        mla_problem problem = dense_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 4, 2, 5, 16);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 350 + (uint64_t)i, .seqlens = seqlens});
        attention_result unsplit = assert_case_right(ctx, &c);
        merge_case merged = merge_ranks(ctx, &c, ranks[i / 2]);
        assert_merged_close(&problem, &merged, &unsplit);
        guarded_release(mark);
    }
}

int main(void)
{
    plain_numbers_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_parts_and_dtypes),
        cmocka_unit_test(parts_that_own_nothing),
        cmocka_unit_test(extreme_lse),
        cmocka_unit_test(in_place_and_without_lse),
        cmocka_unit_test(strided_parts_and_outputs),
    };
    const isa_scenario scenarios[] = {ISA_SCENARIO(merged_equals_unsplit)};
    int failed = cmocka_run_group_tests_name("merge", tests, NULL, NULL);
    return failed + RUN_ISA_SCENARIOS(scenarios);
}
