/* Every field of mla_merge_args and mla_pack_args spoiled. */
#include "bad_arguments.h"
#include "spoiled_call.h"

#include <string.h>

#define MERGE(field) FIELD(mla_merge_args, field)

static const spoiled_field MERGES[] = {
    {MERGE(struct_size), SET, 0, INVALID, "args->struct_size = 0"},
    {MERGE(num_parts), SET, 0, INVALID, "num_parts = 0"},
    {MERGE(num_parts), SET, 257, INVALID, "num_parts = 257"},
    {MERGE(batch), SET, 0, INVALID, "batch = 0"},
    {MERGE(batch), SET, (int64_t)1 << 40, INVALID, "batch = 1099511627776"},
    {MERGE(s_q), SET, -1, INVALID, "s_q = -1"},
    {MERGE(h_q), SET, 0, INVALID, "h_q = 0"},
    {MERGE(d_v), SET, 511, INVALID, "d_v = 511"},
    {MERGE(part_dtype), SET, 0, INVALID, "part_dtype = 0"},
    {MERGE(out_dtype), SET, 4, INVALID, "out_dtype = 4"},
    {MERGE(part_outs), SET, 0, INVALID, "part_outs = NULL"},
    {MERGE(part_lses), SET, 0, INVALID, "part_lses = NULL"},
    {MERGE(out), SET, 0, INVALID, "out = NULL"},
    {MERGE(out), ADD, 1, INVALID, "out"},
    {MERGE(lse), ADD, 2, INVALID, "lse"},
    {MERGE(part_out_stride[0]), SET, -1, INVALID, "part_out_stride[0] = -1"},
    {MERGE(part_lse_stride[1]), SET, -1, INVALID, "part_lse_stride[1] = -1"},
    {MERGE(out_stride[2]), SET, 511, INVALID, "out_stride"},
    {MERGE(out_stride[2]), SET, INT64_MAX, INVALID, "out_stride"},
    {MERGE(lse_stride[0]), SET, -1, INVALID, "lse_stride[0] = -1"},
};

void merges(void **state)
{
    (void)state;
    mla_problem shape = dense_problem(MLA_DTYPE_BF16, 2, 2, 3, 64);
    attention_result parts[2] = {attention_result_alloc(&shape), attention_result_alloc(&shape)};
    attention_result merged = attention_result_alloc(&shape);
    const void *outs[] = {parts[0].out, parts[1].out};
    const float *lses[] = {parts[0].lse, parts[1].lse};
    const mla_merge_args valid = {.struct_size = sizeof valid,
                                  .num_parts = 2,
                                  .batch = 2,
                                  .s_q = 2,
                                  .h_q = 3,
                                  .d_v = 512,
                                  .part_dtype = MLA_DTYPE_BF16,
                                  .part_outs = outs,
                                  .part_lses = lses,
                                  .out_dtype = MLA_DTYPE_BF16,
                                  .out = merged.out,
                                  .lse = merged.lse};
    for (size_t i = 0; i < COUNT(MERGES); i++) {
        mla_merge_args args = valid;
        spoil(&args, &MERGES[i]);
        assert_refused(mla_merge(ctx, &args, NULL), MERGES[i].status, MERGES[i].text);
    }
    mla_merge_args large = valid;
    large.batch = large.s_q = INT32_MAX;
    large.h_q = 1 << 20;
    assert_refused(mla_merge(ctx, &large, NULL), INVALID, "more than 2^47 rows");
    outs[1] = NULL;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_outs[1] = NULL");
    outs[1] = (const char *)parts[1].out + 1;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_outs[1]");
    outs[1] = parts[1].out;
    lses[0] = NULL;
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_lses[0] = NULL");
    lses[0] = (const float *)(const void *)((const char *)parts[0].lse + 1);
    assert_refused(mla_merge(ctx, &valid, NULL), INVALID, "part_lses[0]");
    lses[0] = parts[0].lse;
    for (int i = 0; i < 12 * 512; i++) {
        assert_int_equal(merged.out[i], 0xffff);
    }
    assert_int_equal(mla_merge(ctx, &valid, NULL), MLA_OK);
    guarded_release(0);
}

#define PACK(field) FIELD(mla_pack_args, field)

static const spoiled_field PACKS[] = {
    {PACK(struct_size), SET, 1, INVALID, "args->struct_size = 1"},
    {PACK(kv_format), SET, 3, INVALID, "kv_format"},
    {PACK(kv_format), SET, MLA_KV_FP8_584, INVALID, "kv_format"},
    {PACK(dtype), SET, 0, INVALID, "dtype"},
    {PACK(dtype), SET, MLA_DTYPE_F16, INVALID, "dtype = 2"},
    {PACK(num_tokens), SET, -1, INVALID, "num_tokens = -1"},
    {PACK(num_tokens), SET, 9, INVALID, "slots[8] = 8"},
    {PACK(num_tokens), SET, INT64_MAX, INVALID, "num_tokens = 9223372036854775807"},
    {PACK(h_kv), SET, 0, INVALID, "h_kv 0"},
    {PACK(h_kv), SET, 2, INVALID, "h_kv 2"},
    {PACK(d_qk), SET, 575, INVALID, "d_qk 575"},
    {PACK(page_size), SET, 0, INVALID, "page_size 0"},
    {PACK(page_size), SET, -4, INVALID, "page_size -4"},
    {PACK(num_pages), SET, -1, INVALID, "num_pages = -1"},
    {PACK(num_pages), SET, 1, INVALID, "slots[4] = 4"},
    {PACK(num_pages), SET, INT64_MAX, INVALID, "num_pages = 9223372036854775807"},
    {PACK(rows), SET, 0, INVALID, "rows = NULL"},
    {PACK(rows), ADD, 1, INVALID, "rows"},
    {PACK(cache), SET, 0, INVALID, "cache = NULL"},
    {PACK(slots), ADD, 4, INVALID, "slots"},
    {PACK(rows_stride[0]), SET, -1, INVALID, "rows_stride[0] = -1"},
    {PACK(rows_stride[0]), SET, INT64_MAX, INVALID, "rows_stride[0] = 9223372036854775807"},
    {PACK(cache_stride[0]), SET, -656, INVALID, "cache_stride[0] = -656"},
    {PACK(cache_stride[0]), SET, 655, INVALID, "cache_stride[0] = 655"},
    {PACK(cache_stride[1]), SET, 576, INVALID, "cache_stride[1] = 576"},
    {PACK(cache_stride[1]), SET, (int64_t)1 << 62, INVALID, "cache_stride[1] = 46116"},
};

void packs(void **state)
{
    (void)state;
    const int64_t slots[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    int64_t *own_slots = guarded_alloc(sizeof slots, 8);
    memcpy(own_slots, slots, sizeof slots);
    uint8_t *cache = guarded_alloc(8 * 656, 16);
    uint16_t *rows = guarded_alloc(8 * 576 * 2, 2);
    const mla_pack_args valid = {.struct_size = sizeof valid,
                                 .kv_format = MLA_KV_FP8_656,
                                 .dtype = MLA_DTYPE_BF16,
                                 .num_tokens = 8,
                                 .h_kv = 1,
                                 .d_qk = 576,
                                 .page_size = 4,
                                 .num_pages = 2,
                                 .rows = rows,
                                 .cache = cache,
                                 .slots = own_slots};
    for (size_t i = 0; i < COUNT(PACKS); i++) {
        mla_pack_args args = valid;
        spoil(&args, &PACKS[i]);
        assert_refused(mla_pack(ctx, &args, NULL), PACKS[i].status, PACKS[i].text);
        assert_refused(mla_unpack(ctx, &args, NULL), PACKS[i].status, PACKS[i].text);
    }
    mla_pack_args large = valid;
    large.kv_format = MLA_KV_NATIVE;
    large.num_tokens = (int64_t)1 << 40;
    large.h_kv = 1 << 20;
    assert_refused(mla_pack(ctx, &large, NULL), INVALID, "exceed the address space");
    own_slots[7] = INT64_MAX;
    assert_refused(mla_pack(ctx, &valid, NULL), INVALID, "slots[7] = 9223372036854775807");
    assert_refused(mla_unpack(ctx, &valid, NULL), INVALID, "slots[7] = 9223372036854775807");
    own_slots[7] = 7;
    for (int i = 0; i < 8 * 656; i++) {
        assert_int_equal(cache[i], 0xff);
    }
    for (int i = 0; i < 8 * 576; i++) {
        assert_int_equal(rows[i], 0xffff);
    }
    mla_pack_args native = valid;
    native.kv_format = MLA_KV_NATIVE;
    native.cache = cache + 1;
    native.num_pages = 1;
    native.num_tokens = 4;
    assert_refused(mla_pack(ctx, &native, NULL), INVALID, "cache");
    assert_int_equal(mla_pack(ctx, &valid, NULL), MLA_OK);
    guarded_release(0);
}
