/*
 * The case list of `mla check`, as data. The kinds are those that users of MLA kernels reported:
 * poison, lengths, counts, pages, causal, numbers, sparse. Everything that a case does not
 * reference is poison in all of them (batch.h).
 */
#include "check.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))
#define SWEEP(type, field, ...)                                                                    \
    .sweep = #field, .sweep_offset = offsetof(batch_spec, field), .sweep_type = (type),            \
    .sweep_values = (const double[]){__VA_ARGS__},                                                 \
    .num_sweep_values = COUNT(((const double[]){__VA_ARGS__}))
#define SWEEP_COUNT(field, ...)  SWEEP(SWEEP_INT64, field, __VA_ARGS__)
#define SWEEP_NUMBER(field, ...) SWEEP(SWEEP_DOUBLE, field, __VA_ARGS__)
#define SWEEP_RULE(field, ...)   SWEEP(SWEEP_ENUM, field, __VA_ARGS__)
#define ONCE                     .sweep = NULL
#define DENSE                    .op = MLA_OP_DENSE_DECODE
#define SPARSE                   .op = MLA_OP_SPARSE_DECODE
#define PREFILL                  .op = MLA_OP_SPARSE_PREFILL

/* clang-format off */
const check_case check_cases[] = {
    /* Poison. Dense: slots past the length within the last page, whole pages, table entries. */
    {"poison/kind", {DENSE, .batch = 4, LENGTHS(63, 64, 65, 1)}, VARIANT_ALL, true,
     SWEEP_RULE(poison, 0, 1, 2, 3, 4)},
    {"poison/latent-only", {DENSE, .batch = 3, .poison_latent_only = true, LENGTHS(65, 63, 1)},
     VARIANT_NATIVE, false, SWEEP_RULE(poison, 0, 1)},
    {"poison/rope-only", {DENSE, .batch = 3, .poison_rope_only = true, LENGTHS(65, 63, 1)},
     VARIANT_NATIVE, false, SWEEP_RULE(poison, 0, 1)},
    {"poison/causal", {DENSE, .batch = 3, .s_q = 3, .causal = true, LENGTHS(65, 66, 2)},
     VARIANT_NATIVE, false, SWEEP_RULE(poison, 0, 3)},
    {"poison/page-256", {DENSE, .batch = 3, .page_size = 256, LENGTHS(1, 255, 300)},
     VARIANT_ALL_NATIVE, false, SWEEP_RULE(poison, 0, 4)},
    {"poison/one-request-is-nan", {DENSE, .batch = 4, .h_q = 128, .nan_request = 2,
                                   LENGTHS(200, 70, 64, 3)},
     VARIANT_NATIVE, true, SWEEP_COUNT(num_parts, 0, 1, 5)},
    {"poison/sparse", {SPARSE, .batch = 3, .topk = 130, .topk_length = TOPK_LENGTH_RANDOM,
                       .holes = HOLES_SCATTERED},
     VARIANT_ALL, true, SWEEP_RULE(poison, 0, 1, 3, 4)},
    {"poison/prefill", {PREFILL, .s_q = 5, .topk = 130, .topk_length = TOPK_LENGTH_RANDOM,
                        .holes = HOLES_SCATTERED},
     VARIANT_ALL_NATIVE, false, SWEEP_RULE(poison, 0, 3)},

    /* Lengths. */
    {"lengths/one-request", {DENSE}, VARIANT_ALL, true,
     SWEEP_COUNT(len_max, 0, 1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000)},
    {"lengths/empty-pool", {DENSE, .batch = 3, .spare_pages = -1, LENGTHS(0)}, VARIANT_ALL_NATIVE,
     true, ONCE},
    {"lengths/all-zero", {DENSE, .batch = 3, .s_q = 2, .causal = true, .table_columns = 2,
                          LENGTHS(0)},
     VARIANT_ALL_NATIVE, false, ONCE},
    {"lengths/some-zero", {DENSE, .batch = 6, LENGTHS(0, 5, 0, 130, 1, 0)},
     VARIANT_ALL, true, ONCE},
    {"lengths/zero-positive-infinity",
     {DENSE, .batch = 3, .lse_empty_pos_inf = true, LENGTHS(0, 70, 0)},
     VARIANT_NATIVE, false, ONCE},
    {"lengths/below-s_q", {DENSE, .batch = 6, .s_q = 4, .causal = true,
                           LENGTHS(0, 1, 2, 3, 4, 5)},
     VARIANT_ALL_NATIVE, true, ONCE},
    {"lengths/pad-rows", {DENSE, .batch = 64, .h_q = 8, LENGTHS(300, 700, 1, 0, 0, 1, 0, 0)},
     VARIANT_NATIVE, false, ONCE},
    {"lengths/wide-mix", {DENSE, .batch = 3, .h_q = 2, LENGTHS(1, 100000, 64)}, VARIANT_BF16,
     false, ONCE},
    {"lengths/long", {DENSE, .batch = 2, .h_q = 16, LENGTHS(9000, 4097)},
     VARIANT_ALL_NATIVE | VARIANT_656, false, ONCE},

    /* Counts. */
    {"counts/heads", {DENSE, .batch = 2, LENGTHS(130, 70)}, VARIANT_ALL_NATIVE, false,
     SWEEP_COUNT(h_q, 1, 2, 3, 5, 8, 12, 16, 20, 24, 40, 63, 64, 65, 80, 96, 127, 128, 129, 192,
                 256)},
    {"counts/heads-quick", {DENSE, .batch = 2, LENGTHS(130, 70)}, VARIANT_ALL, true,
     SWEEP_COUNT(h_q, 1, 3, 64, 65, 128)},
    {"counts/two-kv-heads", {DENSE, .h_kv = 2, .batch = 2, LENGTHS(130, 70)}, VARIANT_ALL_NATIVE,
     false, SWEEP_COUNT(h_q, 2, 6, 16, 128, 256)},
    {"counts/three-kv-heads", {DENSE, .h_kv = 3, .batch = 2, LENGTHS(130, 70)}, VARIANT_NATIVE,
     false, SWEEP_COUNT(h_q, 3, 9, 24, 192)},
    {"counts/eight-kv-heads", {DENSE, .h_kv = 8, .batch = 2, LENGTHS(130, 70)}, VARIANT_NATIVE,
     false, SWEEP_COUNT(h_q, 8, 16, 64, 128)},
    {"counts/query-tokens", {DENSE, .batch = 2, .causal = true, LENGTHS(70, 200)}, VARIANT_NATIVE,
     false, SWEEP_COUNT(s_q, 1, 2, 3, 4, 8, 17, 64)},
    {"counts/512-query-tokens", {DENSE, .s_q = 512, .h_q = 2, .causal = true, LENGTHS(600)},
     VARIANT_BF16, false, ONCE},
    {"counts/many-row-tiles", {DENSE, .h_q = 128, LENGTHS(70)}, VARIANT_BF16, false,
     SWEEP_COUNT(s_q, 67, 128)},
    {"counts/batch", {DENSE, .h_q = 4, .len_max = 100}, VARIANT_NATIVE, false,
     SWEEP_COUNT(batch, 1, 2, 37, 131, 132, 133)},
    {"counts/batch-12000", {DENSE, .batch = 12000, .h_q = 2, .page_size = 16, .pool_pages = 64,
                            .len_max = 20},
     VARIANT_BF16, false, ONCE},
    {"counts/batch-70000", {DENSE, .batch = 70000, .h_q = 1, .page_size = 4, .pool_pages = 64,
                            .len_max = 3},
     VARIANT_BF16, false, ONCE},
    {"counts/66000-query-rows", {DENSE, .batch = 33000, .s_q = 2, .h_q = 1, .page_size = 4,
                                 .pool_pages = 64, .len_max = 3, .causal = true},
     VARIANT_BF16, false, ONCE},
    {"counts/parts", {DENSE, .batch = 3, .h_q = 8, LENGTHS(3000, 10, 500)}, VARIANT_BF16, false,
     SWEEP_COUNT(num_parts, 1, 2, 31, 32, 33, 64, 132, 161, 256)},
    {"counts/more-parts-than-tiles", {DENSE, .batch = 2, .num_parts = 256, LENGTHS(70, 0)},
     VARIANT_BF16, true, ONCE},
    {"counts/parts-quick", {DENSE, .batch = 3, .h_q = 8, LENGTHS(700, 10, 129)}, VARIANT_ALL, true,
     SWEEP_COUNT(num_parts, 2, 7)},

    /* Pages. */
    {"pages/size", {DENSE, .batch = 2, LENGTHS(130, 257)}, VARIANT_ALL, false,
     SWEEP_COUNT(page_size, 1, 2, 16, 32, 64, 128, 256)},
    {"pages/odd-size", {DENSE, .batch = 2, LENGTHS(130, 257)}, VARIANT_ALL, false,
     SWEEP_COUNT(page_size, 3, 53, 100)},
    {"pages/layers-between", {DENSE, .batch = 2, .page_gap = 1 << 19, LENGTHS(200, 65)},
     VARIANT_NATIVE, false, ONCE},
    {"pages/offset-past-2^31-bytes",
     {DENSE, .batch = 2, .page_gap = 80 << 20, .page_size = 16, LENGTHS(200, 65)}, VARIANT_BF16,
     false, ONCE},
    {"pages/offset-past-2^32-elements",
     {DENSE, .batch = 2, .page_gap = 320 << 20, .page_size = 16, LENGTHS(200, 65)}, VARIANT_BF16,
     false, ONCE},
    {"pages/wide-table", {DENSE, .batch = 3, .table_columns = 37, LENGTHS(130, 0, 64)},
     VARIANT_BF16, true, ONCE},
    {"pages/strided-heads", {DENSE, .batch = 2, .s_q = 2, .lse_by_head = true, LENGTHS(130, 70)},
     VARIANT_NATIVE, true, SWEEP_COUNT(head_gap, 8, 64, 512)},
    {"pages/sparse-strided", {SPARSE, .batch = 2, .s_q = 2, .lse_by_head = true, .head_gap = 64},
     VARIANT_ALL, false, ONCE},

    /* Causal. */
    {"causal/around-a-page", {DENSE, .batch = 7, .causal = true,
                              LENGTHS(63, 64, 65, 66, 128, 129, 130)},
     VARIANT_ALL, false, SWEEP_COUNT(s_q, 2, 3, 8)},
    {"causal/page-16", {DENSE, .batch = 3, .page_size = 16, .s_q = 4, .causal = true,
                        LENGTHS(17, 33, 50)},
     VARIANT_NATIVE, true, ONCE},
    {"causal/across-splits", {DENSE, .batch = 2, .s_q = 5, .causal = true, LENGTHS(258, 322)},
     VARIANT_NATIVE, false, SWEEP_COUNT(num_parts, 2, 5, 16)},
    {"causal/without", {DENSE, .batch = 3, .s_q = 5, LENGTHS(3, 66, 200)},
     VARIANT_ALL, false, ONCE},

    /* Numbers. */
    {"numbers/q-std", {DENSE, .batch = 2, .h_q = 64, LENGTHS(300, 77)}, VARIANT_ALL, true,
     SWEEP_NUMBER(q_std, 0.1, 1, 10, 100, 1000)},
    {"numbers/kv-std", {DENSE, .batch = 2, .h_q = 64, LENGTHS(300, 77)}, VARIANT_ALL, false,
     SWEEP_NUMBER(kv_std, 0.1, 10)},
    /* Where both are large, float32 sums of S alone move lse of rows of few keys, and out, by more
     * than the tolerances. Such rows are few, so there are many. */
    {"numbers/wide-few-keys", {DENSE, .batch = 160, .h_q = 128, .q_std = 100.0, .kv_std = 100.0,
                               .page_size = 4, LENGTHS(1, 2, 3, 4, 2, 1)},
     VARIANT_ALL, false, .cpu_only = true, ONCE},
    {"numbers/wide", {DENSE, .batch = 16, .h_q = 128, .kv_std = 100.0, LENGTHS(77, 40, 300, 64)},
     VARIANT_ALL, false, .cpu_only = true, SWEEP_NUMBER(q_std, 1, 100)},
    {"numbers/wide-sparse", {SPARSE, .batch = 30, .s_q = 2, .h_q = 128, .topk = 80,
                             .holes = HOLES_SCATTERED, .q_std = 100.0, .kv_std = 100.0,
                             .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_ALL, false, .cpu_only = true, ONCE},
    {"numbers/large-values", {DENSE, .batch = 2, .h_q = 64, .q_std = 0.01, .kv_std = 100.0,
                              LENGTHS(300, 77)},
     VARIANT_ALL, false, ONCE},
    {"numbers/logits-1e4", {DENSE, .batch = 2, .q_std = 100.0, .kv_std = 30.0, LENGTHS(300, 77)},
     VARIANT_NATIVE, false, ONCE},
    {"numbers/equal-keys", {DENSE, .batch = 2, .equal_keys = true, LENGTHS(300, 77)}, VARIANT_ALL,
     false, ONCE},
    {"numbers/zero-q", {DENSE, .batch = 2, .q_std = -1.0, LENGTHS(300, 77)},
     VARIANT_ALL, false, ONCE},
    {"numbers/large-f16", {DENSE, .batch = 2, .q_std = 1e-3, .kv_std = 1.4e4, LENGTHS(300, 77)},
     VARIANT_F16, true, ONCE},
    {"numbers/scale", {DENSE, .batch = 2, LENGTHS(300, 77)}, VARIANT_NATIVE, false,
     SWEEP_NUMBER(softmax_scale, -0.05, 1e-50, 1e-3, 0.1)},
    {"numbers/sparse-q-std", {SPARSE, .batch = 2, .h_q = 64, .topk = 256}, VARIANT_ALL, false,
     SWEEP_NUMBER(q_std, 0.1, 1, 10, 100)},

    /* Sparse decode. */
    {"sparse/holes", {SPARSE, .batch = 2, .s_q = 2, .topk = 200}, VARIANT_ALL, true,
     SWEEP_RULE(holes, 0, 1, 2, 3, 4, 5)},
    {"sparse/topk", {SPARSE, .batch = 2, .pool_slots = 4000}, VARIANT_ALL, false,
     SWEEP_COUNT(topk, 1, 63, 64, 65, 2048)},
    {"sparse/topk-16384", {SPARSE, .batch = 1, .topk = 16384, .pool_slots = 20000},
     VARIANT_BF16 | VARIANT_656, false, ONCE},
    {"sparse/topk-32768", {SPARSE, .h_q = 128, .topk = 32768, .pool_slots = 50000},
     VARIANT_NATIVE | VARIANT_656 | VARIANT_584, false, ONCE},
    /* Values as small as the absolute tolerance is meant for: each key counts thirty times, and so
     * does the error of a weight that is rounded to bf16. */
    {"sparse/topk-above-pool", {SPARSE, .batch = 2, .topk = 300, .pool_slots = 10, .kv_std = 0.1},
     VARIANT_ALL, false, ONCE},
    {"sparse/topk-length", {SPARSE, .batch = 4, .s_q = 2, .topk = 150}, VARIANT_ALL, true,
     SWEEP_RULE(topk_length, 1, 2, 3, 4)},
    {"sparse/page-size", {SPARSE, .batch = 2, .topk = 150}, VARIANT_ALL, false,
     SWEEP_COUNT(page_size, 1, 2, 53, 61, 64, 69, 256, 576)},
    {"sparse/heads", {SPARSE, .batch = 2, .topk = 130, .holes = HOLES_SCATTERED}, VARIANT_ALL,
     false, SWEEP_COUNT(h_q, 1, 3, 16, 63, 64, 65, 127, 128, 129, 256)},
    {"sparse/many-row-tiles", {SPARSE, .h_q = 8512, .topk = 70}, VARIANT_BF16 | VARIANT_656, false,
     ONCE},
    {"sparse/query-tokens", {SPARSE, .batch = 3, .h_q = 24, .topk = 150,
                             .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_ALL, false, SWEEP_COUNT(s_q, 1, 2, 3, 4, 17)},
    {"sparse/two-kv-heads", {SPARSE, .batch = 2, .s_q = 2, .h_kv = 2, .topk = 130},
     VARIANT_ALL_NATIVE, false, SWEEP_COUNT(h_q, 2, 16, 128, 130)},
    {"sparse/scale", {SPARSE, .batch = 2, .topk = 200, .holes = HOLES_SCATTERED}, VARIANT_ALL,
     false, SWEEP_NUMBER(softmax_scale, -0.05, 1e-50, 0.1)},
    {"sparse/zero-q", {SPARSE, .batch = 2, .q_std = -1.0, .topk = 200}, VARIANT_ALL, false, ONCE},
    {"sparse/no-keys-positive-infinity",
     {SPARSE, .batch = 3, .lse_empty_pos_inf = true, .topk_length = TOPK_LENGTH_ZERO}, VARIANT_ALL,
     false, ONCE},
    {"sparse/extra-pool",
     {SPARSE, .batch = 3, .s_q = 2, .topk = 100, .extra_page_size = 2, .extra_pool_slots = 333,
      .holes = HOLES_SCATTERED, .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_ALL, false, SWEEP_COUNT(extra_topk, 1, 64, 300)},
    {"sparse/extra-pool-all", {SPARSE, .batch = 2, .topk = 64, .extra_topk = 65}, VARIANT_ALL,
     true, ONCE},
    {"sparse/sink", {SPARSE, .batch = 2, .topk = 100, .holes = HOLES_SCATTERED}, VARIANT_ALL, true,
     SWEEP_RULE(sink, 1, 2)},
    {"sparse/dense-sink", {DENSE, .batch = 3, LENGTHS(70, 0, 300)}, VARIANT_NATIVE, false,
     SWEEP_RULE(sink, 1, 2)},
    {"sparse/sink-no-keys", {SPARSE, .batch = 2, .sink = SINK_MIXED, .holes = HOLES_ALL},
     VARIANT_ALL, false, ONCE},
    {"sparse/offset-past-2^31", {SPARSE, .batch = 2, .topk = 100, .page_gap = 300 << 20},
     VARIANT_BF16 | VARIANT_656, false, ONCE},
    {"sparse/offset-past-2^32", {SPARSE, .batch = 2, .topk = 100, .page_gap = 600 << 20},
     VARIANT_656 | VARIANT_584, false, ONCE},
    {"sparse/batch", {SPARSE, .h_q = 4, .topk = 70}, VARIANT_656 | VARIANT_584, false,
     SWEEP_COUNT(batch, 1, 37, 133)},
    {"sparse/66000-query-rows", {SPARSE, .batch = 22000, .s_q = 3, .h_q = 1, .topk = 3},
     VARIANT_656, false, ONCE},
    {"sparse/parts", {SPARSE, .batch = 2, .topk = 1000, .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_ALL, false, SWEEP_COUNT(num_parts, 1, 2, 31, 33, 132, 161, 256)},
    {"sparse/parts-sink", {SPARSE, .batch = 2, .s_q = 2, .h_q = 128, .topk = 700,
                           .extra_topk = 100, .sink = SINK_MIXED, .lse_by_head = true,
                           .holes = HOLES_FIRST_TILE},
     VARIANT_ALL, false, SWEEP_COUNT(num_parts, 5, 50)},
    /* Row tiles in pairs; many short requests follow each other in a part, some without keys. */
    {"sparse/pairs", {SPARSE, .batch = 9, .s_q = 2, .h_q = 128, .topk = 70, .extra_topk = 65,
                      .holes = HOLES_SCATTERED, .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_ALL, false, SWEEP_COUNT(num_parts, 1, 3)},
    {"sparse/whole-requests", {SPARSE, .batch = 5, .h_q = 64, .topk = 700, .batch_invariant = true,
                               .topk_length = TOPK_LENGTH_RANDOM},
     VARIANT_BF16 | VARIANT_656, false, ONCE},

    /* Sparse prefill. */
    {"prefill/holes", {PREFILL, .s_q = 5, .topk = 200}, VARIANT_ALL_NATIVE, true,
     SWEEP_RULE(holes, 0, 1, 2, 3, 4, 5)},
    {"prefill/topk", {PREFILL, .s_q = 3, .pool_slots = 2000}, VARIANT_ALL_NATIVE, false,
     SWEEP_COUNT(topk, 1, 63, 64, 65, 512, 2048)},
    {"prefill/topk-32768", {PREFILL, .s_q = 2, .h_q = 128, .topk = 32768, .pool_slots = 50000},
     VARIANT_BF16, false, ONCE},
    {"prefill/tokens", {PREFILL, .topk = 100, .h_q = 8, .holes = HOLES_SCATTERED},
     VARIANT_ALL_NATIVE, false, SWEEP_COUNT(s_q, 1, 7, 64, 200, 1000)},
    {"prefill/heads", {PREFILL, .s_q = 3, .topk = 100}, VARIANT_ALL_NATIVE, false,
     SWEEP_COUNT(h_q, 1, 5, 16, 64, 128, 192)},
    {"prefill/topk-length", {PREFILL, .s_q = 9, .topk = 150}, VARIANT_NATIVE, true,
     SWEEP_RULE(topk_length, 1, 2, 3, 4)},
    {"prefill/sink", {PREFILL, .s_q = 5, .topk = 100}, VARIANT_ALL_NATIVE, false,
     SWEEP_RULE(sink, 1, 2)},
    {"prefill/two-kv-heads", {PREFILL, .s_q = 5, .h_kv = 2, .topk = 100},
     VARIANT_NATIVE, false, ONCE},
    {"prefill/strided", {PREFILL, .s_q = 5, .topk = 100, .head_gap = 64, .page_gap = 64,
                         .lse_by_head = true},
     VARIANT_ALL_NATIVE, false, ONCE},
    {"prefill/q-std", {PREFILL, .s_q = 3, .topk = 200, .h_q = 64}, VARIANT_ALL_NATIVE, false,
     SWEEP_NUMBER(q_std, 0.1, 1, 10, 100)},
};
/* clang-format on */

const int32_t num_check_cases = COUNT(check_cases);

static void set_swept(const check_case *item, int32_t index, batch_spec *spec)
{
    uint8_t *field = (uint8_t *)spec + item->sweep_offset;
    double value = item->sweep_values[index];
    if (item->sweep_type == SWEEP_DOUBLE) {
        memcpy(field, &value, sizeof value);
    } else if (item->sweep_type == SWEEP_ENUM) {
        int number = (int)value;
        memcpy(field, &number, sizeof number);
    } else {
        int64_t number = (int64_t)value;
        memcpy(field, &number, sizeof number);
        /* A swept len_max stands for one length, not for a range from zero. */
        if (item->sweep_offset == offsetof(batch_spec, len_max)) {
            spec->len_min = number;
        }
    }
}

int32_t check_case_count(const check_case *item)
{
    return NUM_VARIANTS * (item->num_sweep_values > 0 ? item->num_sweep_values : 1);
}

bool check_case_spec(const check_case *item, int32_t i, batch_spec *spec, char *name, size_t size)
{
    static const char *const variant_names[] = {"bf16", "f16", "bf16-512", "fp8_656", "fp8_584"};
    const int32_t bit = i % NUM_VARIANTS, swept = i / NUM_VARIANTS;
    if (!(item->variants & (1u << bit))) {
        return false;
    }
    *spec = item->spec;
    spec->dtype = bit == 1 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
    spec->d_qk = bit == 2 || bit == 4 ? 512 : 576;
    spec->kv_format = bit == 3 ? MLA_KV_FP8_656 : bit == 4 ? MLA_KV_FP8_584 : MLA_KV_NATIVE;
    if (item->num_sweep_values > 0) {
        set_swept(item, swept, spec);
        snprintf(name, size, "%s %s=%g %s", item->name, item->sweep, item->sweep_values[swept],
                 variant_names[bit]);
    } else {
        snprintf(name, size, "%s %s", item->name, variant_names[bit]);
    }
    return true;
}
