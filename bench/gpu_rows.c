/*
 * Checks merge, pack and unpack of the CUDA backend against the CPU backend. Packed bytes and
 * unpacked rows must be equal; merged rows agree to the rounding of exp and of the sums.
 */
#include "gpu_driver.h"

#include "formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tally counts;

static void report(bool good, const char *what, int a, int b)
{
    tally_count(&counts, good);
    if (!good) {
        printf("BAD  %s %d %d\n", what, a, b);
    }
}

/* ---- Merge ---- */

enum { MERGE_BATCH = 3, MERGE_S_Q = 2, MERGE_H_Q = 5, D_V = 512 };
enum { MERGE_ROWS = MERGE_BATCH * MERGE_S_Q * MERGE_H_Q, MERGE_VALUES = MERGE_ROWS * D_V };

static size_t elem_bytes(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_F32 ? 4 : 2;
}

static float value_at(mla_dtype dtype, const void *values, size_t i)
{
    return dtype == MLA_DTYPE_F32 ? ((const float *)values)[i]
                                  : mla_elem_to_f32(dtype, ((const uint16_t *)values)[i]);
}

static void fill_part(mla_dtype dtype, void *values, float *lses, int part)
{
    for (int i = 0; i < MERGE_VALUES; i++) {
        const float value = random_normal();
        if (dtype == MLA_DTYPE_F32) {
            ((float *)values)[i] = value;
        } else {
            ((uint16_t *)values)[i] = mla_elem_from_f32(dtype, value);
        }
    }
    for (int i = 0; i < MERGE_ROWS; i++) {
        /* Row 0 has no keys anywhere; others lack them in some parts, in either convention. */
        const bool empty = i == 0 || random_bits() % 4 == 0;
        lses[i] = empty ? (part % 2 ? INFINITY : -INFINITY) : 20 * random_normal();
        if (empty) {
            memset((char *)values + (size_t)i * D_V * elem_bytes(dtype), 0xff,
                   D_V * elem_bytes(dtype));
        }
    }
}

static bool merged_alike(mla_dtype dtype, const void *got, const float *got_lse, const void *want,
                         const float *want_lse)
{
    const float relative = dtype == MLA_DTYPE_F32 ? 2e-6f : dtype == MLA_DTYPE_F16 ? 1e-3f : 8e-3f;
    for (size_t i = 0; i < MERGE_VALUES; i++) {
        const float x = value_at(dtype, got, i), y = value_at(dtype, want, i);
        if (!(fabsf(x - y) <= 2e-6f + relative * fabsf(y))) {
            return false;
        }
    }
    for (size_t i = 0; i < MERGE_ROWS; i++) {
        if (got_lse[i] != want_lse[i] && !(fabsf(got_lse[i] - want_lse[i]) <= 1e-5f)) {
            return false;
        }
    }
    return true;
}

static void check_merge(const mla_ctx *gpu, const mla_ctx *cpu, int parts, mla_dtype in,
                        mla_dtype out)
{
    const void *outs[256], *d_outs[256];
    const float *lses[256], *d_lses[256];
    for (int i = 0; i < parts; i++) {
        void *values = malloc(MERGE_VALUES * elem_bytes(in));
        float *lse = malloc(MERGE_ROWS * 4);
        fill_part(in, values, lse, i);
        outs[i] = values;
        lses[i] = lse;
        d_outs[i] = device_copy(values, MERGE_VALUES * elem_bytes(in));
        d_lses[i] = device_copy(lse, MERGE_ROWS * 4);
    }
    void *want = malloc(MERGE_VALUES * 4), *got = malloc(MERGE_VALUES * 4);
    float *want_lse = malloc(MERGE_ROWS * 4), *got_lse = malloc(MERGE_ROWS * 4);
    void *d_out = device_alloc(MERGE_VALUES * 4), *d_lse = device_alloc(MERGE_ROWS * 4);
    mla_merge_args args = {.struct_size = sizeof args,
                           .num_parts = parts,
                           .batch = MERGE_BATCH,
                           .s_q = MERGE_S_Q,
                           .h_q = MERGE_H_Q,
                           .d_v = D_V,
                           .part_dtype = in,
                           .part_outs = outs,
                           .part_lses = lses,
                           .out_dtype = out,
                           .out = want,
                           .lse = want_lse,
                           .lse_empty_pos_inf = parts % 2};
    check_mla(mla_merge(cpu, &args, NULL), "CPU merge");
    args.part_outs = d_outs;
    args.part_lses = d_lses;
    args.out = d_out;
    args.lse = d_lse;
    check_mla(mla_merge(gpu, &args, NULL), "CUDA merge");
    device_read(got, d_out, MERGE_VALUES * elem_bytes(out), "merge");
    device_read(got_lse, d_lse, MERGE_ROWS * 4, "merge");
    report(merged_alike(out, got, got_lse, want, want_lse), "merge", parts, (int)out);
    for (int i = 0; i < parts; i++) {
        free((void *)(uintptr_t)outs[i]), free((void *)(uintptr_t)lses[i]);
        cudaFree((void *)(uintptr_t)d_outs[i]), cudaFree((void *)(uintptr_t)d_lses[i]);
    }
    free(want), free(got), free(want_lse), free(got_lse), cudaFree(d_out), cudaFree(d_lse);
}

/* ---- Pack and unpack ---- */

enum { PACK_TOKENS = 777, PACK_PAGE = 48, PACK_PAGES = 20, PACK_SLOTS = PACK_PAGE * PACK_PAGES };

/* Values over many magnitudes, a row of zeros, and some infinities and NaN. */
static uint16_t pack_value(int64_t token)
{
    if (token % 50 == 7) {
        return 0;
    }
    if (random_bits() % 997 == 0) {
        return random_bits() % 2 ? 0x7f80 : 0x7fc0;
    }
    return mla_f32_to_bf16(ldexpf(random_normal(), (int)(token % 40) - 25));
}

static void check_pack(const mla_ctx *gpu, const mla_ctx *cpu, mla_kv_format format, int64_t h_kv,
                       int64_t d_qk)
{
    const size_t row_values = (size_t)(PACK_TOKENS * h_kv * d_qk);
    const int64_t page_bytes = mla_page_bytes(format, MLA_DTYPE_BF16, PACK_PAGE, h_kv, d_qk);
    const size_t cache_bytes = (size_t)(page_bytes * PACK_PAGES);
    uint16_t *rows = malloc(row_values * 2), *unpacked = malloc(row_values * 2);
    uint16_t *got_rows = malloc(row_values * 2);
    uint8_t *cache = malloc(cache_bytes), *got = malloc(cache_bytes);
    int64_t *slots = malloc(PACK_TOKENS * sizeof *slots);
    for (size_t i = 0; i < row_values; i++) {
        rows[i] = pack_value((int64_t)i / (h_kv * d_qk));
    }
    for (int64_t i = 0; i < PACK_TOKENS; i++) {
        slots[i] = i % 31 == 5 ? -1 : (i * 577) % PACK_SLOTS; /* 577 and 960 share no factor */
    }
    memset(cache, 0xa5, cache_bytes);
    memset(unpacked, 0x5a, row_values * 2);
    mla_pack_args args = {.struct_size = sizeof args,
                          .kv_format = format,
                          .dtype = MLA_DTYPE_BF16,
                          .num_tokens = PACK_TOKENS,
                          .h_kv = h_kv,
                          .d_qk = d_qk,
                          .page_size = PACK_PAGE,
                          .num_pages = PACK_PAGES,
                          .rows = rows,
                          .cache = cache,
                          .slots = slots};
    void *d_rows = device_copy(rows, row_values * 2), *d_cache = device_copy(cache, cache_bytes);
    void *d_unpacked = device_copy(unpacked, row_values * 2);
    int64_t *d_slots = device_copy(slots, PACK_TOKENS * sizeof *slots);
    mla_pack_args d_args = args;
    d_args.rows = d_rows;
    d_args.cache = d_cache;
    d_args.slots = d_slots;
    check_mla(mla_pack(cpu, &args, NULL), "CPU pack");
    check_mla(mla_pack(gpu, &d_args, NULL), "CUDA pack");
    device_read(got, d_cache, cache_bytes, "pack");
    report(memcmp(got, cache, cache_bytes) == 0, "pack", (int)format, (int)h_kv);
    args.rows = unpacked;
    d_args.rows = d_unpacked;
    check_mla(mla_unpack(cpu, &args, NULL), "CPU unpack");
    check_mla(mla_unpack(gpu, &d_args, NULL), "CUDA unpack");
    device_read(got_rows, d_unpacked, row_values * 2, "unpack");
    bool good = true;
    for (size_t i = 0; i < row_values; i++) {
        const float x = mla_bf16_to_f32(got_rows[i]), y = mla_bf16_to_f32(unpacked[i]);
        good = good && (got_rows[i] == unpacked[i] || (isnan(x) && isnan(y)));
    }
    report(good, "unpack", (int)format, (int)h_kv);
    free(rows), free(unpacked), free(got_rows), free(cache), free(got), free(slots);
    cudaFree(d_rows), cudaFree(d_cache), cudaFree(d_unpacked), cudaFree(d_slots);
}

int main(void)
{
    static const int parts[] = {1, 2, 3, 8, 33, 256};
    mla_ctx *gpu, *cpu;
    open_contexts(&gpu, &cpu);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        for (int in = MLA_DTYPE_BF16; in <= MLA_DTYPE_F32; in++) {
            for (int out = MLA_DTYPE_BF16; out <= MLA_DTYPE_F32; out++) {
                check_merge(gpu, cpu, parts[i], (mla_dtype)in, (mla_dtype)out);
            }
        }
    }
    check_pack(gpu, cpu, MLA_KV_NATIVE, 1, 576);
    check_pack(gpu, cpu, MLA_KV_NATIVE, 3, 512);
    check_pack(gpu, cpu, MLA_KV_FP8_656, 1, 576);
    check_pack(gpu, cpu, MLA_KV_FP8_584, 1, 512);
    const int failed = tally_print(&counts, "rows");
    mla_ctx_destroy(gpu);
    mla_ctx_destroy(cpu);
    return failed;
}
