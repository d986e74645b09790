// Conversions of the 16-bit formats: every value, and every rounding between neighbours, ties included.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "probe/dtype.h"

typedef struct format {
    uint16_t (*from)(float);
    float (*to)(uint16_t);
    int fraction_bits;
    int least_exponent; // of the normals
    uint16_t infinity;
} format;

static const format formats[] = {
    {keel_f16_from_f32, keel_f16_to_f32, 10, -14, 0x7c00},
    {keel_bf16_from_f32, keel_bf16_to_f32, 7, -126, 0x7f80},
};

// The value of positive BITS by the definition of the format.
static double value_of(const format *f, uint16_t bits) {
    const int fraction = bits & ((1 << f->fraction_bits) - 1);
    const int exponent = bits >> f->fraction_bits;
    const int scale = f->least_exponent - f->fraction_bits;
    if (exponent == 0) return ldexp(fraction, scale);
    return ldexp(fraction + (1 << f->fraction_bits), scale + exponent - 1);
}

static void test_all_values(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const format *f = &formats[i];
        for (uint32_t bits = 0; bits < 0x8000; bits++) {
            const uint16_t positive = (uint16_t)bits, negative = (uint16_t)(bits | 0x8000);
            const float up = f->to(positive), down = f->to(negative);
            assert_true(signbit(down) && !signbit(up));
            if (bits > f->infinity) {
                assert_true(isnan(up) && isnan(down));
                assert_true(isnan(f->to(f->from(up))));
                continue;
            }
            if (bits == f->infinity)
                assert_true(isinf(up) && up > 0 && isinf(down) && down < 0);
            else
                assert_true((double)up == value_of(f, positive) && down == -up);
            assert_int_equal(f->from(up), positive);
            assert_int_equal(f->from(down), negative);
        }
    }
}

// Between each value and the next: the middle is a tie and goes to the even one, a float to either side of it to the
// nearer.
static void test_rounding(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const format *f = &formats[i];
        for (uint32_t bits = 0; bits < f->infinity; bits++) {
            const double below = value_of(f, (uint16_t)bits), above = value_of(f, (uint16_t)(bits + 1));
            const double middle = (below + above) / 2; // beyond the last value: where infinity begins
            if (middle > (double)FLT_MAX) continue;
            const float tie = (float)middle;
            if ((double)tie != middle) continue; // under half of the least float
            const uint16_t even = (uint16_t)(bits % 2 == 0 ? bits : bits + 1);
            assert_int_equal(f->from(tie), even);
            assert_int_equal(f->from(-tie), even | 0x8000);
            assert_int_equal(f->from(nextafterf(tie, 0)), bits);
            assert_int_equal(f->from(nextafterf(tie, INFINITY)), bits + 1);
        }
    }
}

static void test_extremes(void **state) {
    (void)state;
    assert_int_equal(keel_f16_from_f32(65504), 0x7bff);
    assert_int_equal(keel_f16_from_f32(nextafterf(65520, 0)), 0x7bff);
    assert_int_equal(keel_f16_from_f32(65520), 0x7c00);
    assert_int_equal(keel_f16_from_f32(FLT_MAX), 0x7c00);
    assert_int_equal(keel_f16_from_f32(0x1p-25f), 0);
    assert_int_equal(keel_f16_from_f32(0x1.000002p-25f), 1);
    assert_int_equal(keel_f16_from_f32(0x1p-149f), 0);
    assert_int_equal(keel_bf16_from_f32(FLT_MAX), 0x7f80);
    assert_int_equal(keel_bf16_from_f32(0x1.fefffep127f), 0x7f7f);
    assert_int_equal(keel_bf16_from_f32(0x1.ffp127f), 0x7f80);
    // A NaN whose payload is in the low bits alone must not become an infinity.
    const uint32_t bits = 0x7f800001;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    assert_int_equal(keel_bf16_from_f32(nan), 0x7fc0);
    assert_int_equal(keel_f16_from_f32(nan), 0x7e00);
}

static void test_names(void **state) {
    (void)state;
    const char *const names[] = {"float32", "float64", "float16", "bfloat16"};
    const size_t sizes[] = {4, 8, 2, 2};
    for (int i = 0; i < KEEL_DTYPE_COUNT; i++) {
        assert_string_equal(keel_dtype_name((keel_dtype)i), names[i]);
        assert_int_equal(keel_dtype_size((keel_dtype)i), sizes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_values),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
