// Rounding to bfloat16 and float16 against a slow reference in float64 that knows nothing of bits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/tensor/precision.h"

typedef struct format {
    keel_precision precision;
    int digits;    // after the leading one
    int least;     // exponent of the least normal number
    double most;   // greatest finite value
    uint32_t step; // of a float32's bits from one normal value to the next
} format;

static const format formats[] = {{KEEL_BFLOAT16, 7, -126, 0x1.fep127, 1u << 16},
                                 {KEEL_FLOAT16, 10, -14, 65504, 1u << 13}};

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double reference(const format *f, double x) {
    if (!isfinite(x) || x == 0) return x;
    int exponent;
    (void)frexp(x, &exponent);
    exponent = exponent - 1 < f->least ? f->least : exponent - 1;
    const double step = ldexp(1, exponent - f->digits);
    const double rounded = nearbyint(fabs(x) / step) * step; // to even: the default of nearbyint
    return copysign(rounded > f->most ? (double)INFINITY : rounded, x);
}

// The I-th value of a format of 16 bits, by its definition.
static double value_of(const format *f, uint32_t i) {
    const int fraction = (int)(i & ((1u << f->digits) - 1)), top = (1 << (15 - f->digits)) - 1;
    const int exponent = (int)(i >> f->digits & (uint32_t)top);
    double value = exponent ? ldexp(1 + ldexp(fraction, -f->digits), f->least + exponent - 1)
                            : ldexp(fraction, f->least - f->digits);
    if (exponent == top) value = fraction ? (double)NAN : (double)INFINITY;
    return i >> 15 ? -value : value;
}

static void assert_rounds(const format *f, float x) {
    const float got = keel_round_one(f->precision, x);
    const float expected = (float)reference(f, (double)x);
    if (isnan(x) ? !isnan(got) : bits_of(got) != bits_of(expected))
        fail_msg("%s of %a (%08x) is %a, not %a", keel_precision_name(f->precision), (double)x, bits_of(x), (double)got,
                 (double)expected);
    float whole = x;
    keel_round(f->precision, &whole, 1);
    assert_int_equal(bits_of(whole), bits_of(got));
}

static void test_every_value_stays(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < 65536; i++) {
            const double value = value_of(&formats[k], i);
            const float x = (float)value;
            if (isnan(value)) {
                assert_true(isnan(keel_round_one(formats[k].precision, x)));
                continue;
            }
            assert_true((double)x == value);
            assert_int_equal(bits_of(keel_round_one(formats[k].precision, x)), bits_of(x));
            assert_rounds(&formats[k], x);
        }
}

// Between all neighbours: the middle, and the float32 on each side of it; from the greatest finite value on as well.
static void test_ties(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < 65536; i++) {
            const format *f = &formats[k];
            const double low = value_of(f, i);
            double high = value_of(f, i + 1);
            if (!isfinite(low) || i == 0x7fff || i == 0xffff) continue;
            if (isinf(high)) high = copysign(2 * f->most - fabs(value_of(f, i - 1)), low);
            const float middle = (float)((low + high) / 2);
            assert_true((double)middle == (low + high) / 2 || fabs(high) < 0x1p-126);
            assert_rounds(f, middle);
            assert_rounds(f, nextafterf(middle, INFINITY));
            assert_rounds(f, nextafterf(middle, -INFINITY));
        }
}

static void test_random_floats(void **state) {
    (void)state;
    uint64_t random = 1;
    for (size_t i = 0; i < 2000000; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        for (size_t k = 0; k < 2; k++) assert_rounds(&formats[k], float_of((uint32_t)(random >> 32)));
    }
}

static void test_special_values(void **state) {
    (void)state;
    const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
            const uint32_t got = bits_of(keel_round_one(formats[k].precision, float_of(nans[i])));
            assert_true(isnan(float_of(got)));
            assert_int_equal(got & 0x80400000, (nans[i] & 0x80000000) | 0x400000); // sign kept, quiet
            assert_int_equal(got & (formats[k].step - 1), 0);
        }
        assert_int_equal(bits_of(keel_round_one(formats[k].precision, -0.0f)), 0x80000000);
        assert_rounds(&formats[k], INFINITY);
        assert_rounds(&formats[k], -INFINITY);
        assert_rounds(&formats[k], 3.4028234e38f);
        assert_rounds(&formats[k], 0x1p-149f);
    }
    assert_true(keel_round_one(KEEL_FLOAT16, 65519.996f) == 65504.0f);
    assert_true(isinf(keel_round_one(KEEL_FLOAT16, 65520.0f)));
    assert_true(keel_round_one(KEEL_FLOAT16, 0x1p-25f) == 0.0f);
    assert_true(keel_round_one(KEEL_FLOAT16, nextafterf(0x1p-25f, 1)) == 0x1p-24f);
    assert_int_equal(bits_of(keel_round_one(KEEL_FLOAT32, 0.1f)), bits_of(0.1f));
}

// The arrays' loops are made of vectors: every length and offset gives what one element gives.
static void test_arrays(void **state) {
    (void)state;
    enum { MOST = 131 };
    float in[MOST + 1], out[MOST + 1];
    uint32_t random = 7;
    for (size_t i = 0; i <= MOST; i++) {
        random = random * 1664525u + 1013904223u;
        in[i] = float_of(random ^ random << 13);
    }
    for (size_t k = 0; k < 2; k++)
        for (size_t offset = 0; offset < 2; offset++)
            for (size_t n = 0; n < MOST; n++) {
                memset(out, 0, sizeof out);
                keel_round_copy(formats[k].precision, out, in + offset, n);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(bits_of(out[i]), bits_of(keel_round_one(formats[k].precision, in[i + offset])));
                assert_int_equal(bits_of(out[n]), 0);
            }
    keel_round_copy(KEEL_FLOAT32, out, in, MOST);
    assert_memory_equal(out, in, MOST * sizeof *in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value_stays), cmocka_unit_test(test_ties),   cmocka_unit_test(test_random_floats),
        cmocka_unit_test(test_special_values),    cmocka_unit_test(test_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
