/* Numbers of every size: spread of the inputs, huge logits, FP8 scales, softmax scales, sinks. */
#include "isa_scenarios.h"

#include "plain_numbers.h"
#include "random_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const int32_t SEQLENS[] = {300, 1, 64, 0};

static void spreads_of_queries_and_keys(mla_ctx *ctx)
{
    const double spreads[][2] = {{0.1, 0.1}, {1, 0.1}, {10, 0.1}, {100, 0.1}, {1000, 0.1},
                                 {0.1, 1},   {1, 1},   {10, 1},   {100, 1},   {1000, 1},
                                 {0.1, 100}, {1, 100}, {10, 100}, {100, 100}};
    for (int i = 0; i < COUNT(spreads); i++) {
        for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
            mla_problem problem = dense_problem((mla_dtype)dtype, 4, 1, 6, 64);
            check_case(ctx, &problem,
                       &(case_options){.seed = 61,
                                       .seqlens = SEQLENS,
                                       .q_std = spreads[i][0],
                                       .kv_std = spreads[i][1]});
        }
    }
}

/* float32 keeps too little of sums of 576 products of numbers in the hundreds: of lse where a row
 * sees few keys and their logits happen to cancel, and of the weights of keys that compete. Both
 * are rare, about one row in 2000, so there are many rows. */
static void few_keys_among_wide_inputs(mla_ctx *ctx)
{
    enum { BATCH = 160, MOST_KEYS = 64 };
    int32_t shortest[BATCH], all_lengths[MOST_KEYS];
    for (int i = 0; i < BATCH; i++) {
        shortest[i] = 1 + i % 4;
    }
    for (int i = 0; i < MOST_KEYS; i++) {
        all_lengths[i] = 1 + i;
    }
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        case_options options = {.seed = 64, .seqlens = shortest, .q_std = 100, .kv_std = 100};
        mla_problem problem = dense_problem((mla_dtype)dtype, BATCH, 1, 128, 4);
        check_case(ctx, &problem, &options);
        options.q_std = 1;
        check_case(ctx, &problem, &options);
        options = (case_options){.seed = 65, .seqlens = all_lengths, .q_std = 100, .kv_std = 100};
        problem = dense_problem((mla_dtype)dtype, MOST_KEYS, 1, 128, 16);
        check_case(ctx, &problem, &options);
        problem = dense_problem((mla_dtype)dtype, MOST_KEYS, 40, 3, 16);
        problem.causal = true;
        problem.num_parts = 5;
        check_case(ctx, &problem, &options);
    }
}

/* The same of lists that are all holes but for a few keys, in parts, in two pools. */
static void few_keys_among_holes(mla_ctx *ctx)
{
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = sparse_problem((mla_kv_format)format, 60, 2, 128, 64, 200);
        problem.extra_page_size = 16;
        problem.extra_topk = 20;
        problem.num_parts = 7;
        case_options options = {.seed = 66,
                                .pool_pages = 5,
                                .extra_pool_pages = 8,
                                .hole_percent = 99,
                                .q_std = 100,
                                .kv_std = 100};
        check_case(ctx, &problem, &options);
    }
    mla_problem problem = prefill_problem(MLA_DTYPE_BF16, 120, 128, 3);
    check_case(ctx, &problem,
               &(case_options){.seed = 67, .pool_pages = 300, .q_std = 100, .kv_std = 100});
}

/* RoPE values of FP8 rows are bf16, be the queries fp16: 10,000 as bf16, read as fp16, is 6.1, and
 * the logits of such keys seem to need no more than float32. Latents are small: RoPE alone shows
 * it. */
static void wide_rope_under_fp16_queries(mla_ctx *ctx)
{
    enum { PAGE = 64, PAGES = 5, ROPE = 64 };
    random_source source = {68};
    for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = sparse_problem((mla_kv_format)format, 60, 2, 128, PAGE, 200);
        problem.dtype = MLA_DTYPE_F16;
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(
            &c, &problem,
            &(case_options){
                .seed = 68, .pool_pages = PAGES, .hole_percent = 99, .q_std = 1, .kv_std = 0.01});
        for (int64_t slot = 0; slot < PAGE * PAGES; slot++) {
            case_row row = attention_case_row(&c, &c.tensors.kv, PAGE, slot, 0);
            uint8_t *rope = row.data + (format == MLA_KV_FP8_656 ? 528 : 448);
            for (int i = 0; i < ROPE; i++) {
                uint16_t bits = plain_elem_bits(MLA_DTYPE_BF16, 1e4 * random_normal(&source));
                memcpy(rope + 2 * i, &bits, sizeof bits);
            }
        }
        assert_case_right(ctx, &c);
        guarded_release(mark);
    }
}

/* float32 does not tell logits of a hundred million apart, be there few keys or many, or parts. */
static void logits_of_a_hundred_million(mla_ctx *ctx)
{
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        for (int parts = 0; parts <= 5; parts += 5) {
            mla_problem problem = dense_problem((mla_dtype)dtype, 4, 1, 17, 64);
            problem.num_parts = parts;
            case_options options = {.seed = 69, .seqlens = SEQLENS, .q_std = 1e4, .kv_std = 1e4};
            check_case(ctx, &problem, &options);
            problem.softmax_scale = -0.001;
            check_case(ctx, &problem, &options);
        }
    }
}

/* Wide values under nearly even weights: every rounding of a weight counts a hundredfold. */
static void wide_values_under_even_weights(mla_ctx *ctx)
{
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = dense_problem((mla_dtype)dtype, 4, 1, 6, 64);
        problem.softmax_scale = 1.0 / 2400.0;
        check_case(ctx, &problem,
                   &(case_options){.seed = 61, .seqlens = SEQLENS, .q_std = 0.1, .kv_std = 100});
    }
}

static void spreads_of_fp8_rows(mla_ctx *ctx)
{
    const double q_std[] = {0.1, 1, 10, 100, 1000};
    for (int i = 0; i < COUNT(q_std); i++) {
        for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
            mla_problem problem = sparse_problem((mla_kv_format)format, 3, 1, 48, 64, 200);
            check_case(ctx, &problem,
                       &(case_options){
                           .seed = 62, .pool_pages = 5, .q_std = q_std[i], .hole_percent = 10});
        }
    }
}

/* Writes `value` into elements [begin, end) of a token's row. */
static void set_elems(const attention_case *c, int64_t slot, int64_t begin, int64_t end,
                      double value)
{
    case_row row = attention_case_row(c, &c->tensors.kv, c->problem.page_size, slot, 0);
    uint16_t bits = plain_elem_bits(c->problem.dtype, value);
    for (int64_t i = begin; i < end; i++) {
        memcpy(row.data + 2 * i, &bits, sizeof bits);
    }
}

static void set_q(const attention_case *c, double value)
{
    const mla_problem *p = &c->problem;
    for (int64_t i = 0; i < p->batch * p->s_q * p->h_q * p->d_qk; i++) {
        c->q[i] = plain_elem_bits(p->dtype, value);
    }
}

/* All logits are +1e4 or -1e4; the exponentials of their differences are 1 and 0. */
static void logits_of_ten_thousand(mla_ctx *ctx)
{
    const int32_t seqlens[] = {200, 64, 65};
    for (int i = 0; i < 6; i++) {
        mla_dtype dtype = i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
        mla_problem problem = dense_problem(dtype, 3, 1, 5, 64);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 63 + (uint64_t)i, .seqlens = seqlens});
        set_q(&c, 10);
        for (int64_t req = 0; req < 3; req++) {
            for (int64_t token = 0; token < seqlens[req]; token++) {
                /* mode 0: all high; 1: all low; 2: one in five high */
                bool high = i / 2 == 0 || (i / 2 == 2 && token % 5 == 3);
                set_elems(&c, dense_slot(&c, req, token), 0, 576, high ? 41.75 : -41.75);
            }
        }
        attention_result result = assert_case_right(ctx, &c);
        double want = i / 2 == 1 ? -41.75 : 41.75;
        assert_float_equal(plain_elem(dtype, result.out[0]), want, 0.2);
        guarded_release(mark);
    }
}

static void all_keys_equal(mla_ctx *ctx)
{
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = dense_problem((mla_dtype)dtype, 4, 1, 5, 64);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 70, .seqlens = SEQLENS});
        case_row first = attention_case_row(&c, &c.tensors.kv, 64, dense_slot(&c, 0, 0), 0);
        for (int64_t token = 1; token < SEQLENS[0]; token++) {
            case_row row = attention_case_row(&c, &c.tensors.kv, 64, dense_slot(&c, 0, token), 0);
            memcpy(row.data, first.data, 576 * 2);
        }
        attention_result result = assert_case_right(ctx, &c);
        for (int64_t i = 0; i < 5 * 512; i++) { /* the mean of equal values is the value */
            uint16_t bits;
            memcpy(&bits, first.data + 2 * (i % 512), sizeof bits);
            double got = plain_elem(problem.dtype, result.out[i]);
            double want = plain_elem(problem.dtype, bits);
            assert_true(fabs(got - want) <= fabs(want) / 128 + 1e-7);
        }
        guarded_release(mark);
    }
}

/* One key: out is its value, to the bit, and lse its logit. */
static void one_key_gives_its_value(mla_ctx *ctx)
{
    const int32_t seqlens[] = {1, 1, 1, 1};
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = dense_problem((mla_dtype)dtype, 4, 1, 130, 2);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 71, .seqlens = seqlens});
        attention_result result = assert_case_right(ctx, &c);
        for (int64_t row = 0; row < 4 * 130; row++) {
            int64_t slot = dense_slot(&c, row / 130, 0);
            case_row key = attention_case_row(&c, &c.tensors.kv, 2, slot, 0);
            assert_memory_equal(result.out + row * 512, key.data, 512 * 2);
        }
        guarded_release(mark);
    }
}

/* One logit so large that all other weights vanish: out is that key's value, to the bit. */
static void one_huge_logit_takes_all(mla_ctx *ctx)
{
    const int64_t places[] = {0, 63, 64, 150, 299};
    for (int i = 0; i < 2 * COUNT(places); i++) {
        mla_problem problem = dense_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 4, 1, 3, 64);
        problem.num_parts = 1 + i / 3;
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 72 + (uint64_t)i, .seqlens = SEQLENS});
        set_q(&c, 16);
        int64_t slot = dense_slot(&c, 0, places[i / 2]);
        set_elems(&c, slot, 512, 576, 1000); /* S rises by 64 * 16 * 1000 / 24 = 42,667 */
        attention_result result = assert_case_right(ctx, &c);
        for (int row = 0; row < 3; row++) {
            assert_memory_equal(result.out + row * 512,
                                attention_case_row(&c, &c.tensors.kv, 64, slot, 0).data, 512 * 2);
            assert_true(result.lse[row] > 4e4f);
        }
        guarded_release(mark);
    }
}

/* Latents up to 5.9e4: out is as large, sums of them are beyond fp16. */
static void fp16_latents_near_the_largest(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_F16, 4, 1, 6, 64);
    check_case(ctx, &problem,
               &(case_options){.seed = 90, .seqlens = SEQLENS, .q_std = 1e-4, .kv_std = 1.7e4});
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem,
                        &(case_options){.seed = 91, .seqlens = SEQLENS, .q_std = 1e-3});
    for (int64_t token = 0; token < SEQLENS[0]; token++) {
        set_elems(&c, dense_slot(&c, 0, token), 0, 512, 6e4);
    }
    attention_result result = assert_case_right(ctx, &c);
    for (int64_t i = 0; i < 6 * 512; i++) {
        assert_true(fabs((double)plain_f16(result.out[i]) - 6e4) <= 32);
    }
}

/* Subnormal and zero inputs are numbers like others. (Ten steps of fp16 wide: the mean of narrower
 * ones is often half a step, and how a split request's parts round it depends on their number.) */
static void tiny_values(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_F16, 4, 1, 6, 64);
    check_case(ctx, &problem,
               &(case_options){.seed = 92, .seqlens = SEQLENS, .q_std = 1e-6, .kv_std = 1e-5});
    problem = dense_problem(MLA_DTYPE_BF16, 4, 1, 6, 64);
    check_case(ctx, &problem,
               &(case_options){.seed = 93, .seqlens = SEQLENS, .q_std = 1e30, .kv_std = 1e-30});
}

/* ------------------------------------------------------------------------------------------
 * FP8 scales
 * ---------------------------------------------------------------------------------------- */

static void set_scales_656(attention_case *c, const float *scales, int count)
{
    for (int64_t slot = 0; slot < c->tensors.kv.num_pages * 64; slot++) {
        case_row row = attention_case_row(c, &c->tensors.kv, 64, slot, 0);
        for (int group = 0; group < 4; group++) {
            float scale = scales[(slot + group) % count];
            memcpy(row.scales + 4 * group, &scale, sizeof scale);
            if (scale == 0.0f) { /* NaN codes under a scale of 0 are 0 */
                memset(row.data + 128 * group, slot % 2 ? 0x7f : 0xff, 128);
            } else if (slot % 7 == 0) {
                memset(row.data + 128 * group, 0, 128);
            }
        }
    }
}

static void float32_scales_as_they_are(mla_ctx *ctx)
{
    const float plain[] = {0.0123f, 1.0f / 3.0f, 1.0f, 0.7f, 1e-4f};
    const float wild[] = {0.0f, 1.0f, -0.5f, 1e-30f, 1e-42f, 0.0f, 3.0f};
    for (int i = 0; i < 2; i++) {
        mla_problem problem = sparse_problem(MLA_KV_FP8_656, 2, 1, 7, 64, 150);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 94 + (uint64_t)i, .pool_pages = 4});
        set_scales_656(&c, i == 0 ? plain : wild, i == 0 ? COUNT(plain) : COUNT(wild));
        assert_case_right(ctx, &c);
        guarded_release(mark);
    }
}

/* Infinite and NaN scales, beside keys whose scales are none that bf16 numbers hold. */
static void scales_without_numbers(mla_ctx *ctx)
{
    const float scales[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < COUNT(scales); i++) {
        mla_problem problem = sparse_problem(MLA_KV_FP8_656, 1, 1, 40, 64, 150);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 98, .pool_pages = 4});
        set_scales_656(&c, (const float[]){0.0123f}, 1);
        case_row row = attention_case_row(&c, &c.tensors.kv, 64, c.indices[7], 0);
        memcpy(row.scales + 4, &scales[i], sizeof scales[i]);
        assert_case_right(ctx, &c);
        guarded_release(mark);
    }
}

/* A key whose logit is -INFINITY weighs nothing, be it the first or the only one. */
static void logits_of_minus_infinity(mla_ctx *ctx)
{
    const int32_t seqlens[] = {300};
    const uint16_t minus_infinity = 0xff80, one = 0x3f80;
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 1, 1, 40, 64);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 99, .seqlens = seqlens});
    for (int head = 0; head < 40; head++) {
        c.q[head * 576 + 570] = one;
    }
    for (int64_t token = 0; token < 200; token++) {
        case_row row = attention_case_row(&c, &c.tensors.kv, 64, dense_slot(&c, 0, token), 0);
        memcpy(row.data + 2 * 570, &minus_infinity, sizeof minus_infinity);
    }
    assert_case_right(ctx, &c);
    c.seqlens[0] = 200;
    attention_result result = attention_case_run(ctx, &c);
    for (int head = 0; head < 40; head++) {
        assert_true(result.lse[head] == -INFINITY);
        assert_int_equal(result.out[head * 512] & 0x7fff, 0);
    }
}

/* A narrowed scale shows where nothing else rounds: one key, e4m3 values 1, q = 0. */
static void scales_are_not_narrowed(mla_ctx *ctx)
{
    mla_problem problem = sparse_problem(MLA_KV_FP8_656, 1, 1, 1, 64, 2);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    /* 1.00390625 * 1.0078125 rounds to bf16 1.015625, but 1 * 1.0078125 (a bf16 scale) does not. */
    const float scale = 1.00390625f * 1.0078125f;
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 96, .pool_pages = 1});
    attention_case_zero_q(&c);
    c.indices[0] = 5;
    c.indices[1] = -1;
    case_row row = attention_case_row(&c, &c.tensors.kv, 64, 5, 0);
    for (int code = 0; code < 512; code++) {
        row.data[code] = (uint8_t)(code % 0x7f);
    }
    for (int group = 0; group < 4; group++) {
        memcpy(row.scales + 4 * group, &scale, sizeof scale);
    }
    attention_result result = assert_case_right(ctx, &c);
    for (int i = 0; i < 512; i++) {
        double want = (double)plain_e4m3((uint8_t)(i % 0x7f)) * (double)scale;
        uint16_t bits = plain_elem_bits(MLA_DTYPE_BF16, want);
        assert_true(abs((int)result.out[i] - (int)bits) <= 1);
    }
}

static void e8m0_scales_from_smallest_to_large(mla_ctx *ctx)
{
    mla_problem problem = sparse_problem(MLA_KV_FP8_584, 2, 1, 7, 64, 150);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    const uint8_t scales[] = {0, 1, 60, 120, 127, 128, 126};
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 97, .pool_pages = 4});
    for (int64_t slot = 0; slot < 256; slot++) {
        case_row row = attention_case_row(&c, &c.tensors.kv, 64, slot, 0);
        for (int group = 0; group < 7; group++) {
            row.scales[group] = scales[(slot + group) % 7];
        }
        row.scales[7] = 0xff; /* the pad byte means nothing */
    }
    assert_case_right(ctx, &c);
}

/* ------------------------------------------------------------------------------------------
 * Softmax scale and sink
 * ---------------------------------------------------------------------------------------- */

static void softmax_scales(mla_ctx *ctx)
{
    const double scales[] = {0, 1.0 / 24.0, -0.05, 1e-50, -1e-50, 1e-3, 2.0, -2.0};
    for (int i = 0; i < COUNT(scales); i++) {
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 2, 5, 64);
        problem.softmax_scale = scales[i];
        problem.causal = i % 2 != 0;
        check_case(ctx, &problem, &(case_options){.seed = 98, .seqlens = SEQLENS});
    }
    const int64_t dims[] = {576, 512};
    for (int i = 0; i < 2; i++) { /* the default is 1 / sqrt(d_qk) */
        mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 1, 5, 64);
        problem.d_qk = dims[i];
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 99, .seqlens = SEQLENS});
        attention_result by_default = attention_case_run(ctx, &c);
        c.problem.softmax_scale = pow((double)dims[i], -0.5);
        attention_result given = attention_case_run(ctx, &c);
        assert_results_identical(&problem, &by_default, &given);
    }
}

static void a_scale_that_rounds_to_zero_gives_the_mean(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 1, 5, 64);
    problem.softmax_scale = 1e-50;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 100, .seqlens = SEQLENS});
    attention_result result = assert_case_right(ctx, &c);
    assert_float_equal(result.lse[0], log(300), 2e-6);
}

static void check_sinks(mla_ctx *ctx, const mla_problem *problem, const case_options *options)
{
    if (!isa_serves(ctx, problem)) {
        return;
    }
    size_t mark = guarded_mark();
    attention_case c;
    attention_case_make(&c, problem, options);
    attention_result without = attention_case_run(ctx, &c);
    float *sink = guarded_alloc((size_t)problem->h_q * sizeof *sink, sizeof *sink);
    const float sinks[] = {-INFINITY, INFINITY, 0.0f, 3.5f, -2.0f, 80.0f, -1e30f, 1e30f};
    for (int64_t head = 0; head < problem->h_q; head++) {
        sink[head] = sinks[head % COUNT(sinks)];
    }
    c.tensors.attn_sink = sink;
    attention_result with = assert_case_right(ctx, &c);
    int64_t rows = problem->batch * problem->s_q * problem->h_q;
    assert_memory_equal(with.lse, without.lse, (size_t)rows * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        const uint16_t *out = with.out + row * 512;
        float of_row = sink[row % problem->h_q];
        if (of_row <= -1e30f) { /* no sink */
            assert_memory_equal(out, without.out + row * 512, 512 * 2);
        }
        for (int i = 0; i < 512 && of_row >= 1e30f; i++) {
            assert_int_equal(out[i] & 0x7fff, 0);
        }
    }
    guarded_release(mark);
}

static void attention_sinks(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 4, 2, 17, 64);
    problem.num_parts = 3;
    check_sinks(ctx, &problem, &(case_options){.seed = 101, .seqlens = SEQLENS});
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        problem = sparse_problem((mla_kv_format)format, 3, 1, 17, 64, 70);
        check_sinks(ctx, &problem,
                    &(case_options){.seed = 102, .pool_pages = 3, .hole_percent = 20});
    }
    problem = prefill_problem(MLA_DTYPE_F16, 9, 16, 70);
    check_sinks(ctx, &problem, &(case_options){.seed = 103, .pool_pages = 300});
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(spreads_of_queries_and_keys),
        ISA_SCENARIO(few_keys_among_wide_inputs),
        ISA_SCENARIO(few_keys_among_holes),
        ISA_SCENARIO(wide_rope_under_fp16_queries),
        ISA_SCENARIO(logits_of_a_hundred_million),
        ISA_SCENARIO(wide_values_under_even_weights),
        ISA_SCENARIO(spreads_of_fp8_rows),
        ISA_SCENARIO(logits_of_ten_thousand),
        ISA_SCENARIO(all_keys_equal),
        ISA_SCENARIO(one_key_gives_its_value),
        ISA_SCENARIO(one_huge_logit_takes_all),
        ISA_SCENARIO(fp16_latents_near_the_largest),
        ISA_SCENARIO(tiny_values),
        ISA_SCENARIO(float32_scales_as_they_are),
        ISA_SCENARIO(scales_are_not_narrowed),
        ISA_SCENARIO(scales_without_numbers),
        ISA_SCENARIO(logits_of_minus_infinity),
        ISA_SCENARIO(e8m0_scales_from_smallest_to_large),
        ISA_SCENARIO(softmax_scales),
        ISA_SCENARIO(a_scale_that_rounds_to_zero_gives_the_mean),
        ISA_SCENARIO(attention_sinks),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
