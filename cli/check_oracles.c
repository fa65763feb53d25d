/*
 * Checks whose answer is known without the reference, or that tie two operations together: the
 * reference is put to them as well.
 */
#include "check.h"
#include "random_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512 };

/* Slot of a token of a dense request. */
static int64_t slot_of(const batch *input, int64_t request, int64_t token)
{
    const mla_tensors *tensors = &input->tensors;
    int64_t page_size = input->problem.page_size;
    int32_t page = tensors->block_table[request * tensors->block_table_stride + token / page_size];
    return page * page_size + token % page_size;
}

static const uint16_t *native_row(const batch *input, int64_t slot)
{
    const mla_pool *pool = &input->tensors.kv;
    int64_t page_size = input->problem.page_size;
    return (const uint16_t *)pool->data + slot / page_size * pool->stride[0] +
           slot % page_size * pool->stride[1];
}

static uint16_t bf16_bits(double value)
{
    return (uint16_t)small_float_encode(&small_bf16, value);
}

/* With q = 0 all keys weigh the same: out is the mean of the values, lse = ln(keys). */
static void mean_of_values(const engine *reference, const check_lane *lane, uint64_t seed,
                           check_result *result)
{
    check_bench bench;
    batch_spec spec = {
        .op = MLA_OP_DENSE_DECODE, .batch = 3, .h_q = 5, .q_std = -1.0, LENGTHS(1, 100, 333)};
    if (!check_bench_open(&bench, reference, &spec, seed, result)) {
        check_bench_close(&bench);
        return;
    }
    batch_outputs_reset(&bench.want);
    mla_tensors want = batch_host_tensors(&bench.input, &bench.want);
    for (int64_t r = 0; r < spec.batch; r++) {
        int64_t keys = spec.lengths[r];
        for (int64_t column = 0; column < D_V; column++) {
            double sum = 0.0;
            for (int64_t token = 0; token < keys; token++) {
                sum += elem_to_float(
                    MLA_DTYPE_BF16,
                    native_row(&bench.input, slot_of(&bench.input, r, token))[column]);
            }
            for (int64_t h = 0; h < spec.h_q; h++) {
                uint16_t *out = (uint16_t *)want.out + (r * spec.h_q + h) * D_V;
                out[column] = bf16_bits(sum / (double)keys);
                want.lse[r * spec.h_q + h] = (float)log((double)keys);
            }
        }
    }
    if (check_bench_place(&bench, lane, result) && check_bench_run(&bench, result)) {
        check_bench_compare(&bench, result);
    }
    check_bench_close(&bench);
}

/* Runs `work` on its own outputs and compares all rows with those of `range` of `whole`. */
static bool matches_rows(const batch *whole, const batch_outputs *whole_outputs, const batch *part,
                         const batch_outputs *part_outputs, const row_range *range,
                         check_result *result)
{
    comparison compared;
    mla_tensors got = batch_host_tensors(whole, whole_outputs);
    mla_tensors want = batch_host_tensors(part, part_outputs);
    compare_rows(whole, &got, &want, range, NULL, &compared);
    return check_take(result, &compared);
}

/* Query token t of a causal call equals a call with that token alone and the shorter length. */
static void causal_equals_shorter(const engine *reference, const check_lane *lane, uint64_t seed,
                                  check_result *result)
{
    check_bench bench;
    batch_spec spec = {.op = MLA_OP_DENSE_DECODE,
                       .batch = 5,
                       .s_q = 4,
                       .h_q = 16,
                       .causal = true,
                       LENGTHS(64, 65, 67, 130, 400)};
    bool ok = check_bench_open(&bench, reference, &spec, seed, result) &&
              check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    for (int64_t t = 0; ok && t < spec.s_q; t++) {
        batch single = bench.input;
        batch_outputs outputs;
        guarded_memory *seqlens = &single.memory[TENSOR_SEQLENS];
        single.spec.s_q = single.problem.s_q = 1;
        ok = batch_outputs_alloc(&outputs, &single) &&
             guarded_alloc(seqlens, (size_t)spec.batch * sizeof(int32_t), 1);
        for (int64_t r = 0; ok && r < spec.batch; r++) {
            int32_t length = (int32_t)batch_row_keys(&bench.input, r, t);
            memcpy(seqlens->data + (size_t)r * sizeof length, &length, sizeof length);
        }
        single.tensors.out_stride[0] = spec.h_q * D_V;
        single.tensors.lse_stride[0] = spec.h_q;
        job work;
        mla_status status = job_open(&work, &lane->runner, &single, &outputs);
        if (status == MLA_OK) {
            work.tensors.q = (const uint16_t *)work.tensors.q + t * single.tensors.q_stride[1];
            status = job_plan(&work);
        }
        status = status == MLA_OK ? job_run(&work) : status;
        row_range range = {0, spec.batch, t, 1, 0, spec.h_q};
        ok = check_status(result, "mla_run", status) && check_device(result, job_fetch(&work)) &&
             matches_rows(&bench.input, &bench.got, &single, &outputs, &range, result);
        job_close(&work);
        guarded_free(seqlens);
        batch_outputs_free(&outputs);
    }
    check_bench_close(&bench);
}

/* Requests that are the same in everything give the same bits when they are not split. */
static void equal_requests(const engine *reference, const check_lane *lane, uint64_t seed,
                           check_result *result)
{
    check_bench bench;
    batch_spec spec = {.op = MLA_OP_DENSE_DECODE,
                       .batch = 37,
                       .h_q = 20,
                       .pool_pages = 1,
                       .page_size = 256,
                       .batch_invariant = true,
                       LENGTHS(200)};
    bool ok = check_bench_open(&bench, reference, &spec, seed, result);
    if (ok) {
        uint8_t *q = bench.input.memory[TENSOR_Q].data;
        size_t request_bytes = (size_t)bench.input.tensors.q_stride[0] * 2;
        for (int64_t r = 1; r < spec.batch; r++) {
            memcpy(q + (size_t)r * request_bytes, q, request_bytes);
        }
        ok = check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    }
    if (ok) {
        mla_tensors got = batch_host_tensors(&bench.input, &bench.got);
        size_t out_elems = (size_t)spec.h_q * D_V;
        for (size_t r = 1; ok && r < (size_t)spec.batch; r++) {
            const uint16_t *out = got.out;
            ok = memcmp(out, out + r * out_elems, out_elems * 2) == 0 &&
                 memcmp(got.lse, got.lse + r * (size_t)spec.h_q, (size_t)spec.h_q * 4) == 0;
            if (!ok) {
                check_fail(result, "request %zu differs from request 0, its equal", r);
            }
        }
    }
    check_bench_close(&bench);
}

/* A sparse call that names all tokens of a request in order equals the dense call. */
static void sparse_equals_dense(const engine *reference, const check_lane *lane, uint64_t seed,
                                check_result *result)
{
    check_bench bench;
    batch_spec spec = {.op = MLA_OP_DENSE_DECODE, .batch = 2, .h_q = 24, LENGTHS(300)};
    bool ok = check_bench_open(&bench, reference, &spec, seed, result) &&
              check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    int64_t topk = spec.lengths[0];
    batch sparse;
    batch_outputs outputs = {.offset = 0};
    batch_spec sparse_spec = {.op = MLA_OP_SPARSE_DECODE,
                              .batch = 2,
                              .h_q = 24,
                              .topk = topk,
                              .pool_slots = (bench.input.tensors.kv.num_pages - 3) * 64,
                              .in_order = true};
    ok = ok && batch_build(&sparse, &sparse_spec, seed);
    if (!ok) {
        check_bench_close(&bench);
        return;
    }
    /* The same queries and pool; the slots that the block table leads to as indices. */
    memcpy(sparse.memory[TENSOR_Q].data, bench.input.memory[TENSOR_Q].data,
           sparse.memory[TENSOR_Q].bytes);
    memcpy(sparse.memory[TENSOR_KV].data, bench.input.memory[TENSOR_KV].data,
           sparse.memory[TENSOR_KV].bytes);
    int32_t *indices = (int32_t *)(void *)sparse.memory[TENSOR_INDICES].data;
    for (int64_t i = 0; i < spec.batch * topk; i++) {
        indices[i] = (int32_t)slot_of(&bench.input, i / topk, i % topk);
    }
    row_range all = {0, spec.batch, 0, 1, 0, spec.h_q};
    if (batch_outputs_alloc(&outputs, &sparse) &&
        check_status(result, "mla_run", job_once(&lane->runner, &sparse, &outputs))) {
        matches_rows(&bench.input, &bench.got, &sparse, &outputs, &all, result);
    }
    batch_outputs_free(&outputs);
    batch_free(&sparse);
    check_bench_close(&bench);
}

/* Overwrites a native pool with the rows of an FP8 one of the same slots, rounded to bf16. */
static bool unpack_pool(const engine *reference, const mla_pool *from, int64_t page_size,
                        guarded_memory *to)
{
    const mla_pack_args args = {.struct_size = sizeof args,
                                .kv_format = MLA_KV_FP8_656,
                                .dtype = MLA_DTYPE_BF16,
                                .num_tokens = from->num_pages * page_size,
                                .h_kv = 1,
                                .d_qk = 576,
                                .page_size = page_size,
                                .num_pages = from->num_pages,
                                .rows = to->data,
                                .cache = (void *)(uintptr_t)from->data,
                                .cache_stride = {from->stride[0], from->stride[1]}};
    return mla_unpack(reference->ctx, &args, NULL) == MLA_OK;
}

/* What the reference makes of the rows of an FP8 batch once they are rounded to bf16. */
static bool compute_rounded(const engine *reference, const batch *input, uint64_t seed,
                            batch_outputs *want)
{
    batch_spec spec = input->spec;
    batch native; /* the same seed gives the same queries and indices */
    spec.kv_format = MLA_KV_NATIVE;
    if (!batch_build(&native, &spec, seed)) {
        return false;
    }
    const bool ok = unpack_pool(reference, &input->tensors.kv, spec.page_size,
                                &native.memory[TENSOR_KV]) &&
                    unpack_pool(reference, &input->tensors.extra_kv, spec.extra_page_size,
                                &native.memory[TENSOR_EXTRA_KV]) &&
                    job_once(reference, &native, want) == MLA_OK;
    batch_free(&native);
    return ok;
}

/*
 * Scales that are no powers of two count as the float32 numbers they are. Matrix units take keys of
 * 16 bits, so a GPU rounds their products to bf16, and its answer is that of the rounded rows.
 */
static void odd_scales(const engine *reference, const check_lane *lane, uint64_t seed,
                       check_result *result)
{
    check_bench bench;
    const batch_spec spec = {.op = MLA_OP_SPARSE_DECODE,
                             .kv_format = MLA_KV_FP8_656,
                             .batch = 3,
                             .s_q = 2,
                             .h_q = 64,
                             .topk = 200,
                             .extra_topk = 70,
                             .extra_page_size = 3,
                             .holes = HOLES_SCATTERED,
                             .topk_length = TOPK_LENGTH_RANDOM,
                             .odd_scales = true};
    bool ok = check_bench_open(&bench, reference, &spec, seed, result);
    if (ok && lane->runner.info.backend == MLA_BACKEND_CUDA) {
        ok = compute_rounded(reference, &bench.input, seed, &bench.want) ||
             check_fail(result, "the reference failed on rounded rows");
    }
    if (ok && check_bench_place(&bench, lane, result) && check_bench_run(&bench, result)) {
        check_bench_compare(&bench, result);
    }
    check_bench_close(&bench);
}

/* Random partial results in host memory for the merge check. */
typedef struct merge_case {
    int64_t rows;
    int64_t num_parts;
    float *outs;      /* [num_parts, rows, D_V] */
    float *lses;      /* [num_parts, rows] */
    double *want_out; /* [rows, D_V] */
    double *want_lse; /* [rows] */
} merge_case;

static void merge_expected(merge_case *merge, uint64_t seed)
{
    rng random;
    rng_seed(&random, seed);
    int64_t elems = merge->num_parts * merge->rows * D_V;
    for (int64_t i = 0; i < elems; i++) {
        merge->outs[i] = (float)rng_normal(&random);
    }
    for (int64_t row = 0; row < merge->rows; row++) {
        double sum = 0.0;
        for (int64_t p = 0; p < merge->num_parts; p++) {
            /* A third of the parts own nothing, in either convention: their out is not read. */
            int64_t kind = rng_below(&random, 6);
            float lse = kind == 0   ? -INFINITY
                        : kind == 1 ? INFINITY
                                    : (float)(3.0 * rng_normal(&random));
            merge->lses[p * merge->rows + row] = lse;
            float *out = merge->outs + (p * merge->rows + row) * D_V;
            double weight = isinf(lse) ? 0.0 : exp((double)lse);
            sum += weight;
            for (int64_t c = 0; c < D_V; c++) {
                merge->want_out[row * D_V + c] += weight == 0.0 ? 0.0 : weight * (double)out[c];
                out[c] = isinf(lse) ? NAN : out[c];
            }
        }
        merge->want_lse[row] = log(sum);
        for (int64_t c = 0; c < D_V; c++) {
            merge->want_out[row * D_V + c] /= sum == 0.0 ? 1.0 : sum;
        }
    }
}

static bool merge_matches(const merge_case *merge, const float *out, const float *lse,
                          check_result *result)
{
    for (int64_t row = 0; row < merge->rows; row++) {
        double want_lse = merge->want_lse[row];
        bool lse_ok = isinf(want_lse)
                          ? (double)lse[row] == want_lse
                          : fabs((double)lse[row] - want_lse) <= 1e-6 + 1e-6 * fabs(want_lse);
        if (!lse_ok) {
            return check_fail(result, "merge of %lld: lse[%lld] = %.9g, not %.9g",
                              (long long)merge->num_parts, (long long)row, (double)lse[row],
                              want_lse);
        }
        for (int64_t c = 0; c < D_V; c++) {
            double want = merge->want_out[row * D_V + c], got = (double)out[row * D_V + c];
            if (!(fabs(got - want) <= 2e-6 + 2e-6 * fabs(want))) {
                return check_fail(result, "merge of %lld: out[%lld, %lld] = %.9g, not %.9g",
                                  (long long)merge->num_parts, (long long)row, (long long)c, got,
                                  want);
            }
        }
    }
    return true;
}

static bool merge_once(const check_lane *lane, merge_case *merge, check_result *result)
{
    const memory_space *memory = &lane->runner.memory;
    size_t out_bytes = (size_t)(merge->rows * D_V) * sizeof(float);
    size_t lse_bytes = (size_t)merge->rows * sizeof(float);
    size_t parts = (size_t)merge->num_parts;
    uint8_t *outs = memory_alloc(memory, out_bytes * parts);
    uint8_t *lses = memory_alloc(memory, lse_bytes * parts);
    uint8_t *out = memory_alloc(memory, out_bytes);
    uint8_t *lse = memory_alloc(memory, lse_bytes);
    float *host_out = tool_alloc(1, out_bytes), *host_lse = tool_alloc(1, lse_bytes);
    const void *part_outs[256];
    const float *part_lses[256];
    for (size_t p = 0; p < parts; p++) {
        part_outs[p] = outs + p * out_bytes;
        part_lses[p] = (const float *)(const void *)(lses + p * lse_bytes);
    }
    mla_merge_args args = {.struct_size = sizeof args,
                           .num_parts = merge->num_parts,
                           .batch = merge->rows / 6,
                           .s_q = 2,
                           .h_q = 3,
                           .d_v = D_V,
                           .part_dtype = MLA_DTYPE_F32,
                           .part_outs = part_outs,
                           .part_lses = part_lses,
                           .out_dtype = MLA_DTYPE_F32,
                           .out = out,
                           .lse = (float *)(void *)lse};
    bool placed = memory_upload(memory, outs, merge->outs, out_bytes * parts) &&
                  memory_upload(memory, lses, merge->lses, lse_bytes * parts);
    bool ok = check_device(result, placed) &&
              check_status(result, "mla_merge", mla_merge(lane->runner.ctx, &args, NULL)) &&
              check_device(result, memory_wait(memory) &&
                                       memory_download(memory, host_out, out, out_bytes) &&
                                       memory_download(memory, host_lse, lse, lse_bytes)) &&
              merge_matches(merge, host_out, host_lse, result);
    memory_free(memory, outs);
    memory_free(memory, lses);
    memory_free(memory, out);
    memory_free(memory, lse);
    free(host_out);
    free(host_lse);
    return ok;
}

static void merge_parts(const engine *reference, const check_lane *lane, uint64_t seed,
                        check_result *result)
{
    static const int64_t counts[] = {1, 2, 3, 8, 256};
    (void)reference;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        merge_case merge = {.rows = 30, .num_parts = counts[i]};
        size_t rows = (size_t)merge.rows, parts = (size_t)merge.num_parts;
        merge.outs = tool_alloc(parts * rows * D_V, sizeof(float));
        merge.lses = tool_alloc(parts * rows, sizeof(float));
        merge.want_out = tool_alloc(rows * D_V, sizeof(double));
        merge.want_lse = tool_alloc(rows, sizeof(double));
        merge_expected(&merge, seed + i);
        bool ok = merge_once(lane, &merge, result);
        free(merge.outs);
        free(merge.lses);
        free(merge.want_out);
        free(merge.want_lse);
        if (!ok) {
            return;
        }
    }
}

enum { MERGE_PARTS = 3 };

/* Places one request's keys from `first_page` on, `tokens` of them, as a call of its own. */
static bool place_key_range(const check_bench *bench, const check_lane *lane, int64_t first_page,
                            int32_t tokens, batch *part, batch_outputs *outputs, job *work,
                            check_result *result)
{
    *part = bench->input;
    guarded_memory *seqlens = &part->memory[TENSOR_SEQLENS];
    if (!guarded_alloc(seqlens, sizeof tokens, 1) || !batch_outputs_alloc(outputs, part)) {
        return check_fail(result, "out of memory");
    }
    memcpy(seqlens->data, &tokens, sizeof tokens);
    tensor_bind(&part->tensors, TENSOR_SEQLENS, seqlens->data);
    if (!check_status(result, "mla_get_sizes", job_open(work, &lane->runner, part, outputs))) {
        return false;
    }
    work->tensors.block_table += first_page;
    work->tensors.max_pages -= first_page;
    return check_status(result, "mla_plan_build", job_plan(work)) &&
           check_status(result, "mla_run", job_run(work));
}

/* Three calls over a third of the keys each, merged, equal one call over all of them. */
static void merge_equals_unsplit(const engine *reference, const check_lane *lane, uint64_t seed,
                                 check_result *result)
{
    static const int32_t tokens[MERGE_PARTS] = {128, 256, 100};
    check_bench bench;
    batch_spec spec = {.op = MLA_OP_DENSE_DECODE, .s_q = 2, .h_q = 20, LENGTHS(128 + 256 + 100)};
    batch parts[MERGE_PARTS];
    batch_outputs outputs[MERGE_PARTS];
    job works[MERGE_PARTS];
    const void *part_outs[MERGE_PARTS];
    const float *part_lses[MERGE_PARTS];
    memset(outputs, 0, sizeof outputs);
    memset(works, 0, sizeof works);
    bool ok = check_bench_open(&bench, reference, &spec, seed, result) &&
              check_bench_place(&bench, lane, result) && check_bench_run(&bench, result);
    int64_t page = 0;
    int opened = 0;
    for (; ok && opened < MERGE_PARTS; opened++) {
        ok = place_key_range(&bench, lane, page, tokens[opened], &parts[opened], &outputs[opened],
                             &works[opened], result);
        part_outs[opened] = works[opened].tensors.out;
        part_lses[opened] = works[opened].tensors.lse;
        page += tokens[opened] / 64;
    }
    if (ok) {
        mla_merge_args args = {.struct_size = sizeof args,
                               .num_parts = MERGE_PARTS,
                               .batch = 1,
                               .s_q = spec.s_q,
                               .h_q = spec.h_q,
                               .d_v = D_V,
                               .part_dtype = MLA_DTYPE_BF16,
                               .part_outs = part_outs,
                               .part_lses = part_lses,
                               .out_dtype = MLA_DTYPE_BF16,
                               .out = bench.work.tensors.out,
                               .lse = bench.work.tensors.lse};
        ok = check_status(result, "mla_merge", mla_merge(lane->runner.ctx, &args, NULL)) &&
             check_device(result, job_fetch(&bench.work)) && check_bench_compare(&bench, result);
    }
    for (int i = 0; i < opened; i++) {
        job_close(&works[i]);
        batch_outputs_free(&outputs[i]);
        guarded_free(&parts[i].memory[TENSOR_SEQLENS]);
    }
    check_bench_close(&bench);
}

const check_special check_oracles[] = {
    {"oracle/q-zero-gives-the-mean", true, true, mean_of_values},
    {"oracle/causal-row-equals-shorter-call", true, true, causal_equals_shorter},
    {"oracle/equal-requests-equal-bits", true, true, equal_requests},
    {"oracle/sparse-of-all-tokens-equals-dense", true, true, sparse_equals_dense},
    {"oracle/odd-fp8-scales", true, true, odd_scales},
    {"oracle/merge", true, true, merge_parts},
    {"oracle/merge-equals-unsplit", true, true, merge_equals_unsplit},
};
const int32_t num_check_oracles = (int32_t)(sizeof check_oracles / sizeof check_oracles[0]);
