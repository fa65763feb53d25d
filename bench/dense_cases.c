/*
 * The table of cases, and their tensors. Every slot, page and table entry that a case does not
 * reference holds NaN or a wild number.
 */
#include "dense_cases.h"

#include "formats.h"
#include "gpu_driver.h"

#include <stdlib.h>
#include <string.h>

const test_case dense_cases[] = {
    {"smallest", 1, 1, 64, 1, 64, 64, EQUAL, 1, 1},
    {"two blocks", 1, 1, 64, 1, 128, 64, EQUAL, 1, 1},
    {"three blocks", 1, 1, 64, 1, 192, 64, EQUAL, 1, 1},
    {"long", 1, 1, 64, 1, 4096, 64, EQUAL, 1, 1},
    {"tail 1", 1, 1, 64, 1, 65, 64, EQUAL, 1, 1},
    {"tail 63", 1, 1, 64, 1, 127, 64, EQUAL, 1, 1},
    {"one token", 1, 1, 64, 1, 1, 64, EQUAL, 1, 1},
    {"empty", 3, 1, 128, 1, 0, 64, EQUAL, 1},
    {"split in 2", 1, 1, 64, 1, 4096, 64, EQUAL, 1, 2},
    {"split", 1, 1, 128, 1, 4096, 64, EQUAL, 1},
    {"split long", 1, 1, 128, 1, 32768, 64, EQUAL, 0.1f},
    {"more parts than blocks", 2, 1, 128, 1, 1000, 64, EQUAL, 1, 256},
    {"parts 3", 5, 1, 16, 1, 700, 64, VARIED, 1, 3},
    {"parts 31", 7, 1, 16, 1, 3000, 64, VARIED, 1, 31},
    {"parts 132", 7, 1, 16, 1, 3000, 64, VARIED, 1, 132},
    {"batch", 37, 1, 128, 1, 600, 64, VARIED, 1},
    {"batch f16", 37, 1, 128, 1, 600, 64, VARIED, 1, .f16 = true},
    {"edges", 64, 1, 128, 1, 200, 64, EDGES, 1},
    {"edges f16", 64, 1, 16, 1, 200, 64, EDGES, 1, .f16 = true},
    {"batch 131", 131, 1, 16, 1, 300, 64, VARIED, 1},
    {"batch 12000", 12000, 1, 1, 1, 20, 64, VARIED, 1},
    {"whole requests", 20, 1, 128, 1, 900, 64, VARIED, 1, .batch_invariant = true},
    {"page 8", 9, 1, 16, 1, 300, 8, EDGES, 1},
    {"page 16", 9, 1, 128, 1, 700, 16, VARIED, 1},
    {"page 32", 9, 1, 128, 1, 700, 32, EDGES, 1},
    {"page 128", 9, 1, 128, 1, 700, 128, VARIED, 1},
    {"page 256", 9, 1, 128, 1, 700, 256, EDGES, 1},
    {"page 192", 9, 1, 128, 1, 700, 192, VARIED, 1},
    {"strided", 9, 2, 48, 1, 500, 64, VARIED, 1, .strided = true},
    {"strided causal kv2", 5, 3, 32, 2, 500, 64, EDGES, 1, .strided = true, .causal = true},
    {"heads 1", 5, 1, 1, 1, 500, 64, VARIED, 1},
    {"heads 3", 5, 1, 3, 1, 500, 64, EDGES, 1},
    {"heads 20 causal", 5, 3, 20, 1, 500, 64, VARIED, 1, .causal = true},
    {"heads 40", 5, 2, 40, 1, 500, 64, VARIED, 1},
    {"heads 63", 5, 1, 63, 1, 500, 64, VARIED, 1},
    {"heads 65", 5, 1, 65, 1, 500, 64, VARIED, 1},
    {"heads 96", 5, 2, 96, 1, 500, 64, VARIED, 1},
    {"heads 129", 5, 1, 129, 1, 500, 64, VARIED, 1},
    {"heads 256", 3, 2, 256, 1, 500, 64, VARIED, 1},
    {"kv heads 2", 5, 1, 128, 2, 500, 64, VARIED, 1},
    {"kv heads 3", 5, 2, 15, 3, 500, 64, VARIED, 1, .causal = true},
    {"kv heads 8", 5, 4, 128, 8, 300, 64, VARIED, 1, .causal = true},
    {"causal 2", 9, 2, 128, 1, 500, 64, VARIED, 1, .causal = true},
    {"causal 4 edges", 30, 4, 16, 1, 130, 64, EDGES, 1, .causal = true},
    {"causal 17", 3, 17, 16, 1, 90, 64, EDGES, 1, .causal = true},
    {"causal 128 short", 2, 128, 8, 1, 70, 64, EQUAL, 1, .causal = true},
    {"causal 67 wide", 2, 67, 128, 1, 100, 64, EDGES, 1, .causal = true},
    {"causal f16 split", 2, 4, 16, 1, 9000, 64, VARIED, 1, .causal = true, .f16 = true},
    {"std 0.1", 5, 1, 128, 1, 2000, 64, VARIED, 0.1f},
    {"std 10", 5, 1, 128, 1, 2000, 64, VARIED, 10},
    {"std 100", 5, 1, 128, 1, 2000, 64, VARIED, 100},
    {"std 100 f16", 5, 1, 128, 1, 2000, 64, VARIED, 100, .f16 = true},
    {"std 10 f16", 5, 1, 128, 1, 2000, 64, VARIED, 10, .f16 = true},
    {"scale 0", 5, 1, 128, 1, 300, 64, EDGES, 1, .scale = 1e-50},
    {"scale negative", 5, 1, 128, 1, 300, 64, EDGES, 1, .scale = -0.1, .causal = true},
    {"d_qk 512", 5, 1, 128, 1, 700, 64, VARIED, 1, .d512 = true},
    {"std 1000", 5, 1, 128, 1, 2000, 64, VARIED, 1000},
    {"std 1000 f16", 5, 1, 128, 1, 2000, 64, VARIED, 1000, .f16 = true},
    {"few 1024", 1, 1, 128, 1, 1024, 64, EQUAL, 10},
    {"few 1000", 1, 1, 128, 1, 1000, 64, EQUAL, 10},
    {"few 4096", 1, 1, 128, 1, 4096, 64, EQUAL, 1},
    {"few 2", 2, 1, 128, 1, 700, 64, VARIED, 10},
    {"few 3 causal", 3, 2, 16, 1, 2000, 64, VARIED, 10, .causal = true},
    {"few 8 f16", 8, 1, 16, 1, 300, 64, EDGES, 10, .f16 = true},
    {"few one", 1, 1, 16, 1, 60, 64, EQUAL, 10},
    {"few empty", 2, 1, 16, 1, 0, 64, EQUAL, 10},
    {"few page 16", 4, 1, 16, 1, 300, 16, EDGES, 10},
    {"few strided", 3, 2, 48, 1, 500, 64, VARIED, 10, .strided = true},
    {"few kv heads", 2, 2, 64, 4, 500, 64, VARIED, 10, .causal = true},
    {"huge values split", 2, 1, 128, 1, 3000, 64, VARIED, 0, .size = 3e8f},
    {"huge values split f16", 2, 1, 128, 1, 3000, 64, VARIED, 0, .size = 4e4f, .f16 = true},
    {"tiny values split", 2, 1, 128, 1, 3000, 64, VARIED, 0, .size = 1e-8f},
    {"tiniest values split", 3, 1, 16, 1, 3000, 64, VARIED, 0, .size = 1e-30f},
    {"huge values few", 1, 1, 16, 1, 1000, 64, EQUAL, 0, .size = 3e8f},
    {"merge 2 shares", 5, 1, 16, 1, 3000, 64, VARIED, 1, 40},
    {"merge wide", 40, 1, 128, 1, 900, 64, VARIED, 1, 132},
    {"merge 256 narrow", 1, 1, 128, 1, 40000, 64, EQUAL, 1, 256},
    {"merge 3 row groups", 3, 3, 16, 1, 3000, 64, VARIED, 1, 90, .causal = true},
    {"causal 2 NaN", 9, 2, 128, 1, 500, 64, VARIED, 1, .causal = true, .last_nan = true},
    {"causal 4 NaN edges", 30, 4, 16, 1, 130, 64, EDGES, 1, .causal = true, .last_nan = true},
    {"causal 70 NaN", 7, 70, 1, 1, 300, 64, VARIED, 1, .causal = true, .last_nan = true},
    {"causal 2 NaN split", 1, 2, 16, 1, 3001, 64, EQUAL, 1, .causal = true, .last_nan = true},
    {"causal 4 NaN f16", 7, 4, 16, 1, 900, 64, VARIED, 1, 7, .f16 = true, .causal = true,
     .last_nan = true},
    {"large", 8, 1, 128, 1, 4096, 64, EQUAL, 1},
};

const int num_dense_cases = sizeof dense_cases / sizeof dense_cases[0];

static int32_t case_length(const test_case *c, int64_t i)
{
    static const int32_t edges[] = {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256};
    switch (c->lengths) {
    case EQUAL:
        return (int32_t)c->s_k;
    case VARIED:
        return (int32_t)(random_bits() % (uint32_t)(2 * c->s_k + 1));
    default:
        return edges[i % (int64_t)(sizeof edges / sizeof edges[0])];
    }
}

static mla_problem case_problem(const test_case *c)
{
    mla_problem problem = dense_decode_problem(c->b, c->s_q, c->h_q);
    problem.dtype = c->f16 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
    problem.h_kv = c->h_kv;
    problem.d_qk = c->d512 ? 512 : 576;
    problem.page_size = c->page_size;
    problem.softmax_scale = c->scale;
    problem.num_parts = c->num_parts;
    problem.causal = c->causal;
    problem.batch_invariant = c->batch_invariant;
    return problem;
}

/* One page of a table: random rows for tokens below the length, NaN for the others. */
static void fill_page(const test_case *c, case_data *d, int64_t page, int64_t tokens)
{
    const int64_t d_qk = d->problem.d_qk;
    const bool around = c->size != 0;
    for (int64_t i = 0; i < tokens * c->h_kv * d_qk; i++) {
        const float value = random_normal() * 0.1f;
        d->kv[page * d->kv_page_stride + i] = mla_elem_from_f32(
            d->problem.dtype, around ? (1 + value) * c->size : value);
    }
}

void make_case(const test_case *c, case_data *d)
{
    const int64_t page_size = c->page_size;
    *d = (case_data){.problem = case_problem(c)};
    const int64_t d_qk = d->problem.d_qk;
    d->seqlens = malloc((size_t)c->b * sizeof *d->seqlens);
    int64_t longest = 0, pages = 0;
    for (int64_t i = 0; i < c->b; i++) {
        d->seqlens[i] = case_length(c, i);
        longest = d->seqlens[i] > longest ? d->seqlens[i] : longest;
        pages += (d->seqlens[i] + page_size - 1) / page_size;
    }
    d->max_pages = (longest + page_size - 1) / page_size + 2;
    d->num_pages = pages + 3;
    d->kv_page_stride = page_size * c->h_kv * d_qk + (c->strided ? 4096 : 0);
    d->kv_elems = (size_t)(d->num_pages * d->kv_page_stride);
    d->kv = malloc(d->kv_elems * 2);
    memset(d->kv, 0xff, d->kv_elems * 2);
    d->block_table = malloc((size_t)(c->b * d->max_pages) * 4);
    int32_t *order = random_order(d->num_pages);
    int64_t next = 0;
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t j = 0; j < d->max_pages; j++) {
            int32_t *entry = &d->block_table[i * d->max_pages + j];
            const int64_t left = d->seqlens[i] - j * page_size;
            if (left > 0) {
                *entry = order[next++];
                fill_page(c, d, *entry, left < page_size ? left : page_size);
                if (c->last_nan && i % 3 == 0 && left <= page_size) {
                    const int64_t key = (left - 1) * c->h_kv * d_qk;
                    for (int64_t k = i % 2 ? 0 : 130; k < (i % 2 ? c->h_kv * d_qk : 131); k++) {
                        d->kv[*entry * d->kv_page_stride + key + k] = 0x7fc1;
                    }
                }
            } else {
                static const int32_t wild[] = {-1, INT32_MAX, (int32_t)0xdeadbeef, 0};
                *entry = wild[random_bits() % 4];
            }
        }
    }
    free(order);
    d->q_head_stride = d_qk + (c->strided ? 64 : 0);
    d->out_head_stride = 512 + (c->strided ? 64 : 0);
    const int64_t rows = c->b * c->s_q * c->h_q;
    d->q_elems = (size_t)(rows * d->q_head_stride);
    d->q = malloc(d->q_elems * 2);
    for (size_t i = 0; i < d->q_elems; i++) {
        d->q[i] = mla_elem_from_f32(d->problem.dtype, random_normal() * c->std);
    }
    d->out_elems = (size_t)(rows * d->out_head_stride);
    d->lse_elems = (size_t)rows;
    d->d_seqlens = device_copy(d->seqlens, (size_t)c->b * 4);
    d->d_block_table = device_copy(d->block_table, (size_t)(c->b * d->max_pages) * 4);
    d->d_q = device_copy(d->q, d->q_elems * 2);
    d->d_kv = device_copy(d->kv, d->kv_elems * 2);
    d->d_out = device_alloc(d->out_elems * 2);
    d->d_lse = device_alloc(d->lse_elems * 4);
}

void free_case(case_data *d)
{
    free(d->seqlens), free(d->block_table), free(d->q), free(d->kv);
    cudaFree(d->d_seqlens), cudaFree(d->d_block_table), cudaFree(d->d_q), cudaFree(d->d_kv);
    cudaFree(d->d_out), cudaFree(d->d_lse);
}

mla_tensors case_tensors(const test_case *c, const case_data *d, bool device, uint16_t *out,
                         float *lse)
{
    mla_tensors t = {.struct_size = sizeof t,
                     .q = device ? d->d_q : d->q,
                     .kv = {.data = device ? d->d_kv : d->kv, .num_pages = d->num_pages},
                     .block_table = device ? d->d_block_table : d->block_table,
                     .max_pages = d->max_pages,
                     .seqlens = device ? d->d_seqlens : d->seqlens,
                     .out = out,
                     .lse = lse};
    if (c->strided) {
        const int64_t d_qk = d->problem.d_qk;
        t.kv.stride[0] = d->kv_page_stride;
        t.kv.stride[1] = c->h_kv * d_qk;
        t.kv.stride[2] = d_qk;
        t.q_stride[2] = d->q_head_stride;
        t.q_stride[1] = c->h_q * d->q_head_stride;
        t.q_stride[0] = c->s_q * t.q_stride[1];
        t.out_stride[2] = d->out_head_stride;
        t.out_stride[1] = c->h_q * d->out_head_stride;
        t.out_stride[0] = c->s_q * t.out_stride[1];
    }
    return t;
}
