/* mla_pack() and mla_unpack(): what is written where, in every format, and what is left alone. */
#include "guarded_memory.h"
#include "isa_scenarios.h"
#include "plain_numbers.h"
#include "random_source.h"

#include <math.h>
#include <string.h>

static mla_ctx *ctx;

static int open_ctx(void **state)
{
    (void)state;
    ctx = open_cpu_ctx(0, 0);
    return 0;
}

static int close_ctx(void **state)
{
    (void)state;
    mla_ctx_destroy(ctx);
    return 0;
}

/* Arguments with rows of random bf16 (or fp16) values and an untouched cache, all 0xFF. */
static mla_pack_args make_args(mla_kv_format kv_format, mla_dtype dtype, int64_t num_tokens,
                               int64_t page_size, int64_t num_pages, uint64_t seed)
{
    random_source source = {.state = seed};
    mla_pack_args args = {.struct_size = sizeof args,
                          .kv_format = kv_format,
                          .dtype = dtype,
                          .num_tokens = num_tokens,
                          .h_kv = kv_format == MLA_KV_NATIVE ? 2 : 1,
                          .d_qk = kv_format == MLA_KV_FP8_584 ? 512 : 576,
                          .page_size = page_size,
                          .num_pages = num_pages};
    int64_t elems = num_tokens * args.h_kv * args.d_qk;
    uint16_t *rows = guarded_alloc((size_t)elems * 2, 2);
    for (int64_t i = 0; i < elems; i++) {
        /* Rows of very different sizes, so that their scales differ. */
        double size = ldexp(1.0, (int)(i / args.d_qk % 20) - 10);
        rows[i] = plain_elem_bits(dtype, size * (double)random_normal(&source));
    }
    int64_t page_bytes = mla_page_bytes(kv_format, dtype, page_size, args.h_kv, args.d_qk);
    args.rows = rows;
    args.cache = guarded_alloc((size_t)(num_pages * page_bytes), 2);
    return args;
}

static mla_pack_args unpack_args(const mla_pack_args *packed)
{
    mla_pack_args args = *packed;
    args.rows = guarded_alloc((size_t)(args.num_tokens * args.h_kv * args.d_qk) * 2, 2);
    return args;
}

static int64_t slot_of(const mla_pack_args *a, int64_t token)
{
    return a->slots != NULL ? a->slots[token] : token;
}

/* The scale that the manual prescribes for a group, from its largest magnitude. */
static double prescribed_scale(double amax)
{
    return exp2(ceil(log2(fmax(amax / 448.0, 1e-4))));
}

/* The stored code is one of those nearest to value / scale. */
static void assert_nearest_code(uint8_t code, double scaled)
{
    double got = plain_e4m3(code), best = INFINITY;
    double wanted = fmin(fmax(scaled, -448.0), 448.0);
    for (int other = 0; other < 256; other++) {
        double distance = fabs((double)plain_e4m3((uint8_t)other) - wanted);
        best = distance < best ? distance : best;
    }
    assert_true(fabs(got - wanted) == best);
}

static void check_fp8_token(const mla_pack_args *a, int64_t token)
{
    bool wide = a->kv_format == MLA_KV_FP8_656;
    int64_t slot = slot_of(a, token), in_page = slot % a->page_size;
    int latent = wide ? 512 : 448, group = wide ? 128 : 64;
    const uint8_t *page = (const uint8_t *)a->cache +
                          slot / a->page_size *
                              mla_page_bytes(a->kv_format, a->dtype, a->page_size, 1, a->d_qk);
    const uint8_t *data = page + in_page * (wide ? 656 : 576);
    const uint8_t *scales = wide ? data + 512 : page + a->page_size * 576 + in_page * 8;
    const uint16_t *row = (const uint16_t *)a->rows + token * a->d_qk;
    for (int begin = 0; begin < latent; begin += group) {
        double amax = 0, scale;
        for (int i = begin; i < begin + group; i++) {
            amax = fmax(amax, fabs((double)plain_bf16(row[i])));
        }
        float stored;
        memcpy(&stored, scales + (wide ? begin / group * 4 : 0), sizeof stored);
        scale = wide ? (double)stored : (double)plain_e8m0(scales[begin / group]);
        assert_true(scale == prescribed_scale(amax));
        for (int i = begin; i < begin + group; i++) {
            assert_nearest_code(data[i], (double)plain_bf16(row[i]) / scale);
        }
    }
    assert_memory_equal(data + (wide ? 528 : 448), row + latent, 128);
    if (!wide) {
        assert_int_equal(scales[7], 0);
    }
}

static void fp8_rows_are_as_the_manual_says(void **state)
{
    (void)state;
    const int64_t page_sizes[] = {1, 5, 64};
    for (int i = 0; i < 6; i++) {
        mla_kv_format format = i % 2 ? MLA_KV_FP8_584 : MLA_KV_FP8_656;
        int64_t page_size = page_sizes[i / 2];
        mla_pack_args args = make_args(format, MLA_DTYPE_BF16, 70, page_size, 70 / page_size + 1,
                                       400 + (uint64_t)i);
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        for (int64_t token = 0; token < 70; token++) {
            check_fp8_token(&args, token);
        }
        guarded_release(0);
    }
}

/* Within half a step of e4m3: 1/16 of the value, or half the smallest step times the scale. */
static void fp8_round_trip(void **state)
{
    (void)state;
    for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
        mla_pack_args args = make_args((mla_kv_format)format, MLA_DTYPE_BF16, 100, 16, 7, 410);
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        mla_pack_args back = unpack_args(&args);
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        int latent = format == MLA_KV_FP8_656 ? 512 : 448;
        for (int64_t i = 0; i < 100 * args.d_qk; i++) {
            double was = plain_bf16(((uint16_t *)args.rows)[i]);
            double is = plain_bf16(((uint16_t *)back.rows)[i]);
            int64_t column = i % args.d_qk;
            double smallest_step = 0x1p-10 *
                                   prescribed_scale(4 * ldexp(1, (int)(i / args.d_qk % 20) - 10));
            double allowed = column < latent ? fabs(was) / 15.9 + smallest_step : 0;
            assert_true(fabs(was - is) <= allowed);
        }
        guarded_release(0);
    }
}

static void native_rows_keep_their_bits(void **state)
{
    (void)state;
    for (int dtype = MLA_DTYPE_BF16; dtype <= MLA_DTYPE_F16; dtype++) {
        mla_pack_args args = make_args(MLA_KV_NATIVE, (mla_dtype)dtype, 65, 16, 5, 420);
        uint16_t *rows = args.rows;
        rows[0] = 0x7fc1; /* NaN, both infinities and a subnormal are bits like others */
        rows[1] = 0x7f80;
        rows[2] = 0xfc00;
        rows[3] = 0x0001;
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        assert_memory_equal(args.cache, rows, 65 * 2 * 576 * 2);
        mla_pack_args back = unpack_args(&args);
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        const uint16_t *got = back.rows;
        for (int64_t i = 1; i < 65 * 2 * 576; i++) {
            assert_int_equal(got[i], rows[i]);
        }
        assert_true(isnan(plain_elem((mla_dtype)dtype, got[0])));
        guarded_release(0);
    }
}

/* Rows go to their slots in any order; negative slots and all other bytes are left alone. */
static void slots_say_where(void **state)
{
    (void)state;
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_pack_args args = make_args((mla_kv_format)format, MLA_DTYPE_BF16, 6, 4, 8, 430);
        const int64_t slots[] = {31, 0, -1, 7, INT64_MIN, 4};
        int64_t *own = guarded_alloc(sizeof slots, 8);
        memcpy(own, slots, sizeof slots);
        args.slots = own;
        int64_t page_bytes = mla_page_bytes(args.kv_format, args.dtype, 4, args.h_kv, args.d_qk);
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        mla_pack_args back = unpack_args(&args);
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        size_t row_bytes = (size_t)(args.h_kv * args.d_qk) * 2;
        uint8_t untouched[2 * 576 * 2];
        memset(untouched, 0xff, sizeof untouched);
        for (int token = 0; token < 6; token++) {
            const uint8_t *row = (const uint8_t *)back.rows + (size_t)token * row_bytes;
            if (slots[token] < 0) {
                assert_memory_equal(row, untouched, row_bytes);
            } else if (format == MLA_KV_NATIVE) {
                assert_memory_equal(row, (uint8_t *)args.rows + (size_t)token * row_bytes,
                                    row_bytes);
            } else {
                check_fp8_token(&args, token);
            }
        }
        for (int64_t page = 2; page < 7; page++) { /* pages without a slot of the list */
            const uint8_t *byte = (const uint8_t *)args.cache + page * page_bytes;
            for (int64_t i = 0; i < page_bytes; i++) {
                assert_int_equal(byte[i], 0xff);
            }
        }
        guarded_release(0);
    }
}

static void special_values(void **state)
{
    (void)state;
    for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
        mla_pack_args args = make_args((mla_kv_format)format, MLA_DTYPE_BF16, 3, 4, 1, 440);
        uint16_t *rows = args.rows;
        int64_t d = args.d_qk;
        memset(rows, 0, (size_t)d * 2); /* row 0: zeros */
        rows[d + 1] = 0x4700;           /* row 1: 32768 and a signalling NaN among numbers */
        rows[d + 3] = 0x7f81;
        for (int i = 0; i < 64; i++) {
            rows[2 * d + i] = 0x7f80; /* row 2: infinities */
        }
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        mla_pack_args back = unpack_args(&args);
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        const uint16_t *got = back.rows;
        for (int i = 0; i < d; i++) {
            assert_int_equal(got[i], 0);
            assert_true(isnan(plain_bf16(got[d + i])) == (i == 3));
        }
        assert_int_equal(got[d + 1], 0x4700);
        assert_true(plain_bf16(got[2 * d]) > 1e38f);
        guarded_release(0);
    }
}

/* Strided rows and caches; what lies between them keeps its bytes. */
static void strided_rows_and_caches(void **state)
{
    (void)state;
    mla_pack_args packed = make_args(MLA_KV_NATIVE, MLA_DTYPE_BF16, 10, 4, 3, 450);
    assert_int_equal(mla_pack(ctx, &packed, NULL), MLA_OK);
    mla_pack_args args = packed;
    const int64_t rows_stride[2] = {1300, 600}, cache_stride[3] = {5000, 1200, 590};
    memcpy(args.rows_stride, rows_stride, sizeof rows_stride);
    memcpy(args.cache_stride, cache_stride, sizeof cache_stride);
    uint16_t *rows = guarded_alloc((9 * 1300 + 600 + 576) * 2, 2);
    size_t cache_elems = 2 * 5000 + 3 * 1200 + 590 + 576;
    uint16_t *cache = guarded_alloc(cache_elems * 2, 2);
    uint16_t *want = guarded_alloc(cache_elems * 2, 2);
    for (int row = 0; row < 20; row++) {
        const uint16_t *from = (uint16_t *)packed.rows + row * 576;
        int token = row / 2, head = row % 2;
        memcpy(rows + token * 1300 + head * 600, from, 576 * 2);
        memcpy(want + token / 4 * 5000 + token % 4 * 1200 + head * 590, from, 576 * 2);
    }
    args.rows = rows;
    args.cache = cache;
    assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
    assert_memory_equal(cache, want, cache_elems * 2);
    guarded_release(0);
}

/* FP8 pages of a layer-interleaved pool, and token strides of 656-byte rows. */
static void strided_fp8_caches(void **state)
{
    (void)state;
    for (int format = MLA_KV_FP8_656; format <= MLA_KV_FP8_584; format++) {
        mla_pack_args near = make_args((mla_kv_format)format, MLA_DTYPE_BF16, 10, 4, 3, 460);
        assert_int_equal(mla_pack(ctx, &near, NULL), MLA_OK);
        mla_pack_args far = near, back = unpack_args(&near), far_back = unpack_args(&near);
        far.cache_stride[0] = 1 << 20;
        far.cache_stride[1] = format == MLA_KV_FP8_656 ? 700 : 0;
        far.cache = guarded_sparse_alloc(3 << 20);
        assert_int_equal(mla_pack(ctx, &far, NULL), MLA_OK);
        memcpy(far_back.cache_stride, far.cache_stride, sizeof far.cache_stride);
        far_back.cache = far.cache;
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        assert_int_equal(mla_unpack(ctx, &far_back, NULL), MLA_OK);
        assert_memory_equal(far_back.rows, back.rows, (size_t)(10 * near.d_qk) * 2);
        guarded_release(0);
    }
}

/* Slots whose byte offset lies beyond 2^31 and 2^32, and a slot number beyond int32. */
static void slots_beyond_32_bits(void **state)
{
    (void)state;
    const int64_t slots[] = {3273603, 3700000, 6547207, 7500000, ((int64_t)1 << 31) + 5};
    for (int format = MLA_KV_NATIVE; format <= MLA_KV_FP8_584; format++) {
        mla_pack_args args = make_args((mla_kv_format)format, MLA_DTYPE_BF16, 5, 64, 1, 470);
        args.h_kv = 1;
        args.num_pages = (((int64_t)1 << 31) + 64) / 64;
        int64_t page_bytes = mla_page_bytes(args.kv_format, args.dtype, 64, 1, args.d_qk);
        args.cache = guarded_sparse_alloc((size_t)(args.num_pages * page_bytes));
        args.slots = slots;
        assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
        for (int64_t token = 0; token < 5; token++) {
            if (format != MLA_KV_NATIVE) {
                check_fp8_token(&args, token);
            } else {
                assert_memory_equal((uint8_t *)args.cache + slots[token] * 576 * 2,
                                    (uint16_t *)args.rows + token * 576, 576 * 2);
            }
        }
        mla_pack_args back = unpack_args(&args);
        assert_int_equal(mla_unpack(ctx, &back, NULL), MLA_OK);
        assert_true(fabsf(plain_bf16(((uint16_t *)back.rows)[0]) -
                          plain_bf16(((uint16_t *)args.rows)[0])) < 1e-3f);
        guarded_release(0);
    }
}

static void nothing_to_do(void **state)
{
    (void)state;
    mla_pack_args args = {.struct_size = sizeof args,
                          .dtype = MLA_DTYPE_BF16,
                          .h_kv = 1,
                          .d_qk = 576,
                          .page_size = 64};
    assert_int_equal(mla_pack(ctx, &args, NULL), MLA_OK);
    assert_int_equal(mla_unpack(ctx, &args, NULL), MLA_OK);
}

static void page_byte_counts(void **state)
{
    (void)state;
    assert_int_equal(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_BF16, 64, 1, 576), 64 * 576 * 2);
    assert_int_equal(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_F16, 2, 8, 512), 2 * 8 * 512 * 2);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_656, MLA_DTYPE_BF16, 64, 1, 576), 64 * 656);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_584, MLA_DTYPE_BF16, 64, 1, 512), 65 * 576);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_584, MLA_DTYPE_BF16, 1, 1, 512), 2 * 576);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_584, MLA_DTYPE_BF16, 72, 1, 512), 73 * 576);
    assert_int_equal(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_F32, 64, 1, 576), 0);
    assert_int_equal(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_BF16, 0, 1, 576), 0);
    assert_int_equal(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_BF16, 64, 1, 575), 0);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_656, MLA_DTYPE_BF16, 64, 2, 576), 0);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_656, MLA_DTYPE_BF16, 64, 1, 512), 0);
    assert_int_equal(mla_page_bytes(MLA_KV_FP8_584, MLA_DTYPE_BF16, 64, 1, 576), 0);
    assert_int_equal(mla_page_bytes((mla_kv_format)3, MLA_DTYPE_BF16, 64, 1, 576), 0);
    /* The largest page that the manual allows does not overflow. */
    assert_true(mla_page_bytes(MLA_KV_NATIVE, MLA_DTYPE_BF16, INT32_MAX, 1 << 20, 576) > 0);
}

int main(void)
{
    plain_numbers_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_rows_are_as_the_manual_says),
        cmocka_unit_test(fp8_round_trip),
        cmocka_unit_test(native_rows_keep_their_bits),
        cmocka_unit_test(slots_say_where),
        cmocka_unit_test(special_values),
        cmocka_unit_test(strided_rows_and_caches),
        cmocka_unit_test(strided_fp8_caches),
        cmocka_unit_test(slots_beyond_32_bits),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(page_byte_counts),
    };
    return cmocka_run_group_tests_name("pack", tests, open_ctx, close_ctx);
}
