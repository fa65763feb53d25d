/* Private: number formats. Every code is decoded; every boundary between two codes is encoded. */
#include "cmocka_c11.h"
#include "plain_numbers.h"

#include "formats.h"

#include <math.h>

static void every_f16_code_decodes(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float got = mla_f16_to_f32((uint16_t)bits), want = plain_f16((uint16_t)bits);
        assert_true(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
    }
}

static void every_bf16_code_round_trips(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = mla_bf16_to_f32((uint16_t)bits);
        uint16_t back = mla_f32_to_bf16(value);
        if (isnan(value)) {
            assert_true(isnan(mla_bf16_to_f32(back)));
        } else {
            assert_int_equal(back, bits);
        }
    }
}

static void every_f16_code_round_trips(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t back = mla_f32_to_f16(mla_f16_to_f32((uint16_t)bits));
        if (isnan(plain_f16((uint16_t)bits))) {
            assert_true(isnan(mla_f16_to_f32(back)));
        } else {
            assert_int_equal(back, bits);
        }
    }
}

static void every_e4m3_code_round_trips(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 256; bits++) {
        float got = mla_e4m3_to_f32((uint8_t)bits), want = plain_e4m3((uint8_t)bits);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(mla_e4m3_to_f32(mla_f32_to_e4m3(got))));
        } else {
            assert_true(got == want && signbit(got) == signbit(want));
            assert_int_equal(mla_f32_to_e4m3(got), bits);
        }
    }
}

static void every_e8m0_code_decodes(void **state)
{
    (void)state;
    for (int bits = 0; bits < 255; bits++) {
        assert_true((double)mla_e8m0_to_f32((uint8_t)bits) == exp2(bits - 127));
    }
    assert_true(isnan(mla_e8m0_to_f32(255)));
}

/* Around the halfway point of the codes `low` and `low + 1`: below, at (to even) and above. */
static void assert_rounds(float low, float high, uint32_t low_code, uint32_t (*encode)(float))
{
    /* The halfway point of two 16- or 8-bit numbers is a float32. */
    float halfway = low + (high - low) / 2;
    uint32_t even = low_code % 2 == 0 ? low_code : low_code + 1;
    assert_int_equal(encode(halfway), even);
    assert_int_equal(encode(nextafterf(halfway, -INFINITY)), halfway > 0 ? low_code : low_code + 1);
    assert_int_equal(encode(nextafterf(halfway, INFINITY)), halfway > 0 ? low_code + 1 : low_code);
}

static uint32_t encode_bf16(float value)
{
    return mla_f32_to_bf16(value);
}

static uint32_t encode_f16(float value)
{
    return mla_f32_to_f16(value);
}

static uint32_t encode_e4m3(float value)
{
    return mla_f32_to_e4m3(value);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7f7f; code++) {
        float low = plain_bf16((uint16_t)code), high = plain_bf16((uint16_t)(code + 1));
        assert_rounds(low, high, code, encode_bf16);
        assert_rounds(-low, -high, code | 0x8000, encode_bf16);
    }
    assert_int_equal(mla_f32_to_bf16(0x1.fefffep127f),
                     0x7f7f); /* just below half of the last step */
    assert_int_equal(mla_f32_to_bf16(0x1.ffp127f), 0x7f80);
    assert_int_equal(mla_f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(mla_f32_to_bf16(-INFINITY), 0xff80);
}

static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7bff; code++) {
        float low = plain_f16((uint16_t)code), high = plain_f16((uint16_t)(code + 1));
        assert_rounds(low, high, code, encode_f16);
        assert_rounds(-low, -high, code | 0x8000, encode_f16);
    }
    assert_int_equal(mla_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(mla_f32_to_f16(65520.0f), 0x7c00); /* halfway to 2^16: infinity */
    assert_int_equal(mla_f32_to_f16(-1e10f), 0xfc00);
    assert_int_equal(mla_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(mla_f32_to_f16(1e-30f), 0);
    assert_int_equal(mla_f32_to_f16(-1e-30f), 0x8000);
}

static void e4m3_rounds_to_nearest_even_and_saturates(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7e; code++) {
        float low = plain_e4m3((uint8_t)code), high = plain_e4m3((uint8_t)(code + 1));
        assert_rounds(low, high, code, encode_e4m3);
        assert_rounds(-low, -high, code | 0x80, encode_e4m3);
    }
    const float large[] = {448.0f, 448.1f, 464.0f, 465.0f, 1e30f, INFINITY};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(mla_f32_to_e4m3(large[i]), 0x7e);
        assert_int_equal(mla_f32_to_e4m3(-large[i]), 0xfe);
    }
    assert_int_equal(mla_f32_to_e4m3(NAN) & 0x7f, 0x7f);
}

int main(void)
{
    plain_numbers_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_code_decodes),
        cmocka_unit_test(every_bf16_code_round_trips),
        cmocka_unit_test(every_f16_code_round_trips),
        cmocka_unit_test(every_e4m3_code_round_trips),
        cmocka_unit_test(every_e8m0_code_decodes),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_and_saturates),
    };
    return cmocka_run_group_tests_name("formats", tests, NULL, NULL);
}
