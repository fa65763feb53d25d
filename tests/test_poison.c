/*
 * What is not referenced may hold anything: the answer keeps its bits. What is referenced and NaN
 * stays in the rows that see it.
 */
#include "isa_scenarios.h"

#include <math.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* The parts of a row that a poison covers. */
typedef enum row_span { LATENT = 1, ROPE = 2, WHOLE_ROW = 3 } row_span;

typedef struct poison_kind {
    uint16_t elem[2]; /* one bf16 and one fp16 element */
    uint8_t e4m3, e8m0;
    float scale;
} poison_kind;

static const poison_kind POISONS[] = {
    {{0x7fc1, 0x7e01}, 0x7f, 255, NAN},       /* NaN */
    {{0x7f80, 0x7c00}, 0x7e, 254, INFINITY},  /* +Inf */
    {{0xff80, 0xfc00}, 0xfe, 254, -INFINITY}, /* -Inf */
    {{0xffff, 0xffff}, 0xff, 255, -NAN},      /* bytes of 0xFF */
};

static void poison_row(const mla_problem *p, case_row row, const poison_kind *poison, row_span span)
{
    int64_t latent = p->kv_format == MLA_KV_FP8_584 ? 448 : 512;
    int64_t latent_bytes = p->kv_format == MLA_KV_NATIVE ? latent * 2 : latent;
    uint16_t elem = poison->elem[p->kv_format == MLA_KV_NATIVE && p->dtype == MLA_DTYPE_F16];
    uint8_t *rope = row.data + (p->kv_format == MLA_KV_FP8_656 ? 528 : latent_bytes);
    for (int64_t i = 0; (span & ROPE) != 0 && i < p->d_qk - latent; i++) {
        memcpy(rope + 2 * i, &elem, sizeof elem);
    }
    if ((span & LATENT) == 0) {
        return;
    }
    if (p->kv_format == MLA_KV_NATIVE) {
        for (int64_t i = 0; i < latent; i++) {
            memcpy(row.data + 2 * i, &elem, sizeof elem);
        }
        return;
    }
    memset(row.data, poison->e4m3, (size_t)latent);
    for (int i = 0; i < 4 && p->kv_format == MLA_KV_FP8_656; i++) {
        memcpy(row.scales + 4 * i, &poison->scale, sizeof poison->scale);
    }
    if (p->kv_format == MLA_KV_FP8_584) {
        memset(row.scales, poison->e8m0, 8);
    }
}

/* Poisons the slots after each request's last token up to the end of its last page. */
static void poison_tails(const attention_case *c, const poison_kind *poison, row_span span)
{
    const mla_problem *p = &c->problem;
    for (int64_t req = 0; req < p->batch; req++) {
        int64_t first = c->seqlens[req];
        for (int64_t i = first; first > 0 && i % p->page_size != 0; i++) {
            for (int64_t head = 0; head < p->h_kv; head++) {
                case_row row = attention_case_row(c, &c->tensors.kv, p->page_size,
                                                  dense_slot(c, req, i), head);
                poison_row(p, row, poison, span);
            }
        }
    }
}

/* Runs with every poison in every span after the last tokens; all answers have the same bits. */
static void check_tails(mla_ctx *ctx, const mla_problem *problem)
{
    const int32_t seqlens[] = {1, 63, 64, 65, 127, 129, 192, 200};
    if (!isa_serves(ctx, problem)) {
        return;
    }
    size_t mark = guarded_mark();
    attention_case c;
    attention_case_make(&c, problem, &(case_options){.seed = 21, .seqlens = seqlens});
    poison_tails(&c, &(poison_kind){.e8m0 = 127}, WHOLE_ROW);
    attention_result clean = assert_case_right(ctx, &c);
    for (int i = 0; i < COUNT(POISONS); i++) {
        for (int span = LATENT; span <= WHOLE_ROW; span++) {
            poison_tails(&c, &POISONS[i], (row_span)span);
            attention_result result = attention_case_run(ctx, &c);
            assert_results_identical(problem, &result, &clean);
        }
    }
    guarded_release(mark);
}

static void slots_past_the_length(mla_ctx *ctx)
{
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = dense_problem((mla_dtype)dtype, 8, 1, 5, 64);
        check_tails(ctx, &problem);
        problem.s_q = 3;
        problem.causal = true;
        problem.page_size = 256;
        check_tails(ctx, &problem);
    }
    mla_problem heads = dense_problem(MLA_DTYPE_BF16, 8, 1, 6, 64);
    heads.h_kv = 3;
    check_tails(ctx, &heads);
}

static void slots_past_the_length_fp8(mla_ctx *ctx)
{
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 8, 1, 5, 64);
    problem.kv_format = MLA_KV_FP8_656;
    check_tails(ctx, &problem);
    problem.kv_format = MLA_KV_FP8_584;
    problem.d_qk = 512;
    check_tails(ctx, &problem);
}

/* Every entry past a request's last page and every page that no request names is wild already;
 * here they change, and so do the pages of the other request. */
static void pages_and_table_entries_of_nobody(mla_ctx *ctx)
{
    const int32_t seqlens[] = {130, 64, 0};
    const int32_t wild[] = {-1, INT32_MAX, INT32_MIN, (int32_t)0xdeadbeef, 1 << 20};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 3, 1, 4, 64);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem,
                        &(case_options){.seed = 22, .seqlens = seqlens, .spare_columns = 6});
    attention_result clean = assert_case_right(ctx, &c);
    for (int i = 0; i < COUNT(wild); i++) {
        for (int64_t req = 0; req < 3; req++) {
            int64_t pages = (seqlens[req] + 63) / 64;
            for (int64_t j = pages; j < c.tensors.max_pages; j++) {
                c.block_table[req * c.tensors.max_pages + j] = wild[i];
            }
        }
        attention_result result = attention_case_run(ctx, &c);
        assert_results_identical(&problem, &result, &clean);
    }
}

/* Makes one element of one token's row NaN, with a finite rest. */
static void spoil_elem(const attention_case *c, int64_t slot, int64_t head, int64_t elem)
{
    case_row row = attention_case_row(c, &c->tensors.kv, c->problem.page_size, slot, head);
    uint16_t nan_bits = c->problem.dtype == MLA_DTYPE_BF16 ? 0x7fc1 : 0x7e01;
    memcpy(row.data + 2 * elem, &nan_bits, sizeof nan_bits);
}

/* All values of a row that sees the NaN are NaN: its logit spoils the sum. */
static void assert_row_nan(const attention_result *result, mla_dtype dtype, int64_t row)
{
    uint16_t infinity = dtype == MLA_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    assert_true(isnan(result->lse[row]));
    for (int i = 0; i < 512; i++) {
        assert_true((result->out[row * 512 + i] & 0x7fff) > infinity);
    }
}

static void a_real_nan_stays_in_its_request(mla_ctx *ctx)
{
    const int32_t seqlens[] = {100, 300, 64};
    const int64_t elems[] = {0, 511, 512, 575};
    for (int i = 0; i < 2 * COUNT(elems); i++) {
        mla_problem problem = dense_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, 3, 1, 70, 64);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 23, .seqlens = seqlens});
        attention_result clean = attention_case_run(ctx, &c);
        spoil_elem(&c, dense_slot(&c, 1, 170), 0, elems[i / 2]);
        attention_result result = attention_case_run(ctx, &c);
        assert_request_identical(&problem, &result, 0, &clean, 0);
        assert_request_identical(&problem, &result, 2, &clean, 2);
        for (int64_t head = 0; head < 70; head++) {
            assert_row_nan(&result, problem.dtype, 70 + head);
        }
        guarded_release(mark);
    }
}

/* Of 4 causal tokens the last two see the spoiled key; of 2 KV heads one has it. */
static void a_real_nan_stays_in_the_rows_that_see_it(mla_ctx *ctx)
{
    const int32_t seqlens[] = {66, 70};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, 4, 6, 64);
    problem.h_kv = 2;
    problem.causal = true;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 24, .seqlens = seqlens});
    attention_result clean = attention_case_run(ctx, &c);
    spoil_elem(&c, dense_slot(&c, 0, 64), 1, 5);
    attention_result result = attention_case_run(ctx, &c);
    assert_request_identical(&problem, &result, 1, &clean, 1);
    for (int64_t row = 0; row < 24; row++) {
        if (row / 6 >= 2 && row % 6 >= 3) {
            assert_row_nan(&result, problem.dtype, row);
        } else { /* an earlier token, or the other KV head: not a bit has changed */
            assert_memory_equal(&result.lse[row], &clean.lse[row], sizeof(float));
            assert_memory_equal(result.out + row * 512, clean.out + row * 512, 512 * 2);
        }
    }
}

/* A part that is NaN is merged with later ones that hold holes only. */
static void a_real_nan_outlives_empty_parts(mla_ctx *ctx)
{
    mla_problem problem = sparse_problem(MLA_KV_NATIVE, 1, 1, 3, 64, 256);
    problem.num_parts = 4;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 27, .pool_pages = 4});
    for (int i = 64; i < 256; i++) {
        c.indices[i] = -1;
    }
    spoil_elem(&c, c.indices[5], 0, 570);
    attention_result result = attention_case_run(ctx, &c);
    for (int64_t row = 0; row < 3; row++) {
        assert_row_nan(&result, problem.dtype, row);
    }
}

/* A NaN query row is its own affair. */
static void a_nan_query_stays_in_its_row(mla_ctx *ctx)
{
    const int32_t seqlens[] = {150};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 1, 1, 67, 64);
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case c;
    attention_case_make(&c, &problem, &(case_options){.seed = 25, .seqlens = seqlens});
    attention_result clean = attention_case_run(ctx, &c);
    c.q[33 * 576 + 100] = 0x7fc0;
    attention_result result = attention_case_run(ctx, &c);
    for (int64_t row = 0; row < 67; row++) {
        if (row == 33) {
            assert_row_nan(&result, problem.dtype, row);
        } else {
            assert_memory_equal(result.out + row * 512, clean.out + row * 512, 512 * 2);
        }
    }
}

/* Scratch, workspace and plan keep nothing of a launch that was all NaN. */
static void a_clean_launch_after_a_poisoned_one(mla_ctx *ctx)
{
    const int32_t seqlens[] = {700, 65};
    mla_problem problem = dense_problem(MLA_DTYPE_BF16, 2, 1, 20, 64);
    problem.num_parts = 4;
    if (!isa_serves(ctx, &problem)) {
        return;
    }
    attention_case clean, poisoned;
    attention_case_make(&clean, &problem, &(case_options){.seed = 26, .seqlens = seqlens});
    attention_case_make(&poisoned, &problem, &(case_options){.seed = 27, .seqlens = seqlens});
    attention_result before = assert_case_right(ctx, &clean);
    for (int64_t token = 0; token < seqlens[0]; token++) {
        spoil_elem(&poisoned, dense_slot(&poisoned, 0, token), 0, token % 576);
    }
    (void)attention_case_run(ctx, &poisoned);
    attention_result after = attention_case_run(ctx, &clean);
    assert_results_identical(&problem, &after, &before);
}

/* With q = 0 all weights are equal: out is the mean of V and lse = ln(len), whatever the pool. */
static void zero_queries_give_the_mean(mla_ctx *ctx)
{
    const int32_t seqlens[] = {1, 63, 64, 65, 500};
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = dense_problem((mla_dtype)dtype, 5, 1, 3, 16);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 28, .seqlens = seqlens});
        attention_case_zero_q(&c);
        attention_result result = assert_case_right(ctx, &c);
        for (int64_t row = 0; row < 15; row++) {
            assert_float_equal(result.lse[row], log(seqlens[row / 3]), 2e-6);
        }
        guarded_release(mark);
    }
}

/* Lanes past topk_length hold wild indices and the indices of poisoned slots. */
static void sparse_lanes_past_the_length(mla_ctx *ctx)
{
    const int32_t topk_length[] = {0, 1, 63, 64, 65, 128};
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_problem problem = sparse_problem((mla_kv_format)format, 6, 1, 9, 64, 128);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(
            &c, &problem, &(case_options){.seed = 29, .pool_pages = 4, .topk_length = topk_length});
        for (int64_t i = 0; i < 6 * 128; i++) { /* slots from 200 on are the poisoned ones */
            c.indices[i] = i % 128 < topk_length[i / 128] ? c.indices[i] % 200 : 200 + i % 56;
        }
        attention_result clean = assert_case_right(ctx, &c);
        for (int64_t slot = 200; slot < 256; slot++) {
            case_row row = attention_case_row(&c, &c.tensors.kv, 64, slot, 0);
            poison_row(&problem, row, &POISONS[slot % COUNT(POISONS)], WHOLE_ROW);
        }
        attention_result poisoned = attention_case_run(ctx, &c);
        assert_results_identical(&problem, &poisoned, &clean);
        for (int64_t i = 0; i < 6 * 128; i++) {
            if (i % 128 >= topk_length[i / 128]) {
                c.indices[i] = i % 3 == 0 ? INT32_MAX : i % 3 == 1 ? INT32_MIN : -1;
            }
        }
        attention_result wild = attention_case_run(ctx, &c);
        assert_results_identical(&problem, &wild, &clean);
        guarded_release(mark);
    }
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(slots_past_the_length),
        ISA_SCENARIO(slots_past_the_length_fp8),
        ISA_SCENARIO(pages_and_table_entries_of_nobody),
        ISA_SCENARIO(a_real_nan_stays_in_its_request),
        ISA_SCENARIO(a_real_nan_stays_in_the_rows_that_see_it),
        ISA_SCENARIO(a_real_nan_outlives_empty_parts),
        ISA_SCENARIO(a_nan_query_stays_in_its_row),
        ISA_SCENARIO(a_clean_launch_after_a_poisoned_one),
        ISA_SCENARIO(zero_queries_give_the_mean),
        ISA_SCENARIO(sparse_lanes_past_the_length),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
