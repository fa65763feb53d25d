/* Sparse decode and sparse prefill: holes, wild indices, lengths, page sizes, a second pool. */
#include "isa_scenarios.h"

#include <math.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { NUM_FORMATS = 4 };

/* A sparse decode problem in format 0 ... 3: bf16, 656 bytes, 584 bytes, fp16. */
static mla_problem format_problem(int format, int64_t batch, int64_t s_q, int64_t h_q,
                                  int64_t page_size, int64_t topk)
{
    mla_kv_format kv_format = format < 3 ? (mla_kv_format)format : MLA_KV_NATIVE;
    mla_problem problem = sparse_problem(kv_format, batch, s_q, h_q, page_size, topk);
    problem.dtype = format < 3 ? MLA_DTYPE_BF16 : MLA_DTYPE_F16;
    return problem;
}

/* Where a list of indices has holes. */
typedef enum hole_kind {
    SCATTERED,
    FIRST_TILE,
    A_TILE,
    LAST_ENTRY,
    LAST_TILE,
    ALL,
    ALL_BUT_ONE,
    NUM_HOLE_KINDS
} hole_kind;

static bool is_hole(hole_kind kind, int64_t lane, int64_t topk)
{
    switch (kind) {
    case SCATTERED:
        return lane * 7 % 5 < 2;
    case FIRST_TILE:
        return lane < 64;
    case A_TILE:
        return lane >= 64 && lane < 128;
    case LAST_ENTRY:
        return lane == topk - 1;
    case LAST_TILE:
        return lane >= topk - 64;
    case ALL:
        return true;
    default:
        return lane != 100;
    }
}

static void holes_wherever_they_stand(mla_ctx *ctx)
{
    for (int i = 0; i < NUM_FORMATS * NUM_HOLE_KINDS; i++) {
        mla_problem problem = format_problem(i % NUM_FORMATS, 2, 2, 9, 64, 256);
        problem.num_parts = i % 3;
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem,
                            &(case_options){.seed = 110 + (uint64_t)i, .pool_pages = 4});
        const int32_t wild[] = {-1, 256, INT32_MAX, INT32_MIN, 257, -2};
        for (int64_t lane = 0; lane < 4 * 256; lane++) {
            if (is_hole((hole_kind)(i / NUM_FORMATS), lane % 256, 256)) {
                c.indices[lane] = wild[lane % COUNT(wild)];
            }
        }
        attention_result result = assert_case_right(ctx, &c);
        if (i / NUM_FORMATS == ALL) {
            assert_true(result.lse[0] == -INFINITY);
            assert_int_equal(result.out[0], 0);
        }
        guarded_release(mark);
    }
}

static void duplicates_count_twice(mla_ctx *ctx)
{
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem problem = format_problem(format, 1, 1, 5, 64, 66);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 140, .pool_pages = 2});
        for (int i = 0; i < 66; i++) {
            c.indices[i] = i < 60 ? 17 : i;
        }
        attention_case_zero_q(&c);
        attention_result result = assert_case_right(ctx, &c);
        assert_float_equal(result.lse[0], log(66), 2e-6);
        guarded_release(mark);
    }
}

static void topk_counts(mla_ctx *ctx)
{
    const int64_t topk[] = {1, 2, 63, 64, 65, 128, 2048, 16384};
    for (int i = 0; i < COUNT(topk) * NUM_FORMATS; i++) {
        int64_t count = topk[i / NUM_FORMATS];
        mla_problem problem = format_problem(i % NUM_FORMATS, 1, 1, count > 3000 ? 1 : 3, 64,
                                             count);
        check_case(
            ctx, &problem,
            &(case_options){.seed = 141, .pool_pages = count > 3000 ? 300 : 40, .hole_percent = 5});
    }
}

/* More indices than the context has tokens: engines fill the rest with -1. */
static void topk_above_the_context(mla_ctx *ctx)
{
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem problem = format_problem(format, 2, 1, 5, 64, 2048);
        if (!isa_serves(ctx, &problem)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &problem, &(case_options){.seed = 142, .pool_pages = 2});
        for (int64_t lane = 0; lane < 2 * 2048; lane++) {
            c.indices[lane] = lane % 2048 < 100 ? (int32_t)(lane % 2048) : -1;
        }
        assert_case_right(ctx, &c);
        guarded_release(mark);
    }
}

static void topk_lengths(mla_ctx *ctx)
{
    const int32_t lengths[] = {0, -1, INT32_MIN, 1, 64, 65, 130, 131, INT32_MAX};
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem problem = format_problem(format, COUNT(lengths), 2, 3, 64, 130);
        check_case(ctx, &problem,
                   &(case_options){.seed = 143, .pool_pages = 4, .topk_length = lengths});
        problem.num_parts = 7;
        problem.lse_empty_pos_inf = true;
        check_case(ctx, &problem,
                   &(case_options){
                       .seed = 143, .pool_pages = 4, .topk_length = lengths, .hole_percent = 30});
    }
}

static void page_sizes(mla_ctx *ctx)
{
    const int64_t sizes[] = {1, 2, 53, 61, 64, 69, 256, 576};
    for (int i = 0; i < COUNT(sizes) * NUM_FORMATS; i++) {
        int64_t size = sizes[i / NUM_FORMATS];
        mla_problem problem = format_problem(i % NUM_FORMATS, 2, 1, 3, size, 100);
        check_case(ctx, &problem,
                   &(case_options){.seed = 144, .pool_pages = 300 / size + 1, .hole_percent = 3});
    }
}

static void pools_with_strides(mla_ctx *ctx)
{
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem problem = format_problem(format, 2, 2, 3, 16, 100);
        const int64_t token_gap = format == MLA_KV_FP8_584 ? 0 : 24;
        check_case(ctx, &problem,
                   &(case_options){
                       .seed = 145, .pool_pages = 9, .page_gap_elems = 4096, .indices_gap = 28});
        check_case(
            ctx, &problem,
            &(case_options){
                .seed = 146, .pool_pages = 9, .token_gap_elems = token_gap, .page_gap_elems = 96});
    }
}

static void counts_of_heads_tokens_and_requests(mla_ctx *ctx)
{
    const int64_t counts[][3] = {{1, 1, 128}, {1, 1, 64},  {3, 4, 16}, {2, 1, 129},
                                 {5, 2, 1},   {37, 1, 20}, {1, 17, 8}};
    for (int i = 0; i < COUNT(counts) * NUM_FORMATS; i++) {
        const int64_t *n = counts[i / NUM_FORMATS];
        mla_problem problem = format_problem(i % NUM_FORMATS, n[0], n[1], n[2], 64, 80);
        check_case(ctx, &problem,
                   &(case_options){.seed = 147, .pool_pages = 4, .hole_percent = 10});
    }
    mla_problem heads = format_problem(0, 2, 2, 12, 64, 80);
    heads.h_kv = 3;
    check_case(ctx, &heads, &(case_options){.seed = 148, .pool_pages = 4, .hole_percent = 10});
    heads.d_qk = 512;
    check_case(ctx, &heads, &(case_options){.seed = 148, .pool_pages = 4, .hole_percent = 10});
}

static void part_counts(mla_ctx *ctx)
{
    const int32_t parts[] = {1, 2, 31, 32, 33, 161};
    for (int i = 0; i < COUNT(parts) * NUM_FORMATS; i++) {
        mla_problem problem = format_problem(i % NUM_FORMATS, 2, 1, 5, 64, 1000);
        problem.num_parts = parts[i / NUM_FORMATS];
        check_case(ctx, &problem,
                   &(case_options){.seed = 149, .pool_pages = 10, .hole_percent = 10});
    }
}

/* Sparse attention to all tokens of a short context is dense attention. */
static void all_tokens_equal_dense(mla_ctx *ctx)
{
    const int32_t seqlens[] = {100};
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem sparse = format_problem(format, 1, 1, 7, 64, 128), dense = sparse;
        dense.op = MLA_OP_DENSE_DECODE;
        dense.topk = 0;
        if (!isa_serves(ctx, &sparse) || !isa_serves(ctx, &dense)) {
            continue;
        }
        size_t mark = guarded_mark();
        attention_case c;
        attention_case_make(&c, &dense, &(case_options){.seed = 150, .seqlens = seqlens});
        attention_result want = attention_case_run(ctx, &c);
        attention_case chosen = c;
        chosen.problem = sparse;
        chosen.lengths.seqlens = NULL;
        chosen.tensors.seqlens = NULL;
        chosen.tensors.block_table = NULL;
        chosen.tensors.max_pages = 0;
        chosen.indices = guarded_alloc(128 * sizeof(int32_t), sizeof(int32_t));
        for (int i = 0; i < 128; i++) {
            chosen.indices[i] = i < 100 ? (int32_t)dense_slot(&c, 0, i) : -1;
        }
        chosen.tensors.indices = chosen.indices;
        attention_result got = attention_case_run(ctx, &chosen);
        assert_results_close(&sparse, &got, &want);
        guarded_release(mark);
    }
}

/* ------------------------------------------------------------------------------------------
 * A second pool
 * ---------------------------------------------------------------------------------------- */

static void a_second_pool(mla_ctx *ctx)
{
    const int32_t lengths[] = {70, 0, -5, 500}, extra_lengths[] = {0, 33, 500, -1};
    const int64_t extra_page_size[] = {2, 64, 256}, extra_topk[] = {1, 65, 200};
    for (int i = 0; i < 9 * NUM_FORMATS; i++) {
        mla_problem problem = format_problem(i % NUM_FORMATS, 4, 1 + i % 2, 5, 64, 80);
        problem.extra_page_size = extra_page_size[i / NUM_FORMATS % 3];
        problem.extra_topk = extra_topk[i / NUM_FORMATS / 3];
        problem.num_parts = i % 5;
        const case_options options = {.seed = 160 + (uint64_t)i,
                                      .pool_pages = 3,
                                      .extra_pool_pages = 400 / problem.extra_page_size,
                                      .hole_percent = 10,
                                      .topk_length = i % 3 ? lengths : NULL,
                                      .extra_topk_length = i % 3 != 1 ? extra_lengths : NULL};
        check_case(ctx, &problem, &options);
    }
}

/* Pools without a page: every index is outside. */
static void empty_pools(mla_ctx *ctx)
{
    for (int format = 0; format < NUM_FORMATS; format++) {
        mla_problem problem = format_problem(format, 2, 1, 5, 64, 80);
        check_case(ctx, &problem, &(case_options){.seed = 200});
        problem.extra_page_size = 2;
        problem.extra_topk = 3;
        check_case(ctx, &problem, &(case_options){.seed = 201, .pool_pages = 2});
        check_case(ctx, &problem, &(case_options){.seed = 202, .extra_pool_pages = 2});
    }
}

/* ------------------------------------------------------------------------------------------
 * Prefill
 * ---------------------------------------------------------------------------------------- */

static void prefill_counts(mla_ctx *ctx)
{
    const int64_t counts[][3] = {{1, 128, 64}, {65, 3, 100}, {7, 64, 65},
                                 {300, 1, 20}, {5, 16, 700}, {2, 130, 1}};
    for (int i = 0; i < 4 * COUNT(counts); i++) {
        const int64_t *n = counts[i / 4];
        mla_problem problem = prefill_problem(i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16, n[0], n[1],
                                              n[2]);
        problem.d_qk = i % 4 < 2 ? 576 : 512;
        check_case(ctx, &problem,
                   &(case_options){.seed = 210, .pool_pages = 350, .hole_percent = 10});
    }
    mla_problem heads = prefill_problem(MLA_DTYPE_BF16, 6, 10, 70);
    heads.h_kv = 2;
    check_case(ctx, &heads, &(case_options){.seed = 211, .pool_pages = 90, .hole_percent = 10});
}

/* Token t of a prompt sees its first t keys; token 0 none. */
static void prefill_lengths(mla_ctx *ctx)
{
    int32_t lengths[140];
    for (int i = 0; i < 140; i++) {
        lengths[i] = i == 70 ? -3 : i == 71 ? 1000000 : i;
    }
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_problem problem = prefill_problem((mla_dtype)dtype, 140, 2, 130);
        for (int parts = 0; parts < 40; parts += 13) {
            problem.num_parts = parts;
            problem.lse_empty_pos_inf = parts == 13;
            check_case(ctx, &problem,
                       &(case_options){.seed = 212, .pool_pages = 140, .topk_length = lengths});
        }
    }
}

int main(void)
{
    const isa_scenario scenarios[] = {
        ISA_SCENARIO(holes_wherever_they_stand),
        ISA_SCENARIO(duplicates_count_twice),
        ISA_SCENARIO(topk_counts),
        ISA_SCENARIO(topk_above_the_context),
        ISA_SCENARIO(topk_lengths),
        ISA_SCENARIO(page_sizes),
        ISA_SCENARIO(pools_with_strides),
        ISA_SCENARIO(counts_of_heads_tokens_and_requests),
        ISA_SCENARIO(part_counts),
        ISA_SCENARIO(all_tokens_equal_dense),
        ISA_SCENARIO(a_second_pool),
        ISA_SCENARIO(empty_pools),
        ISA_SCENARIO(prefill_counts),
        ISA_SCENARIO(prefill_lengths),
    };
    return RUN_ISA_SCENARIOS(scenarios);
}
