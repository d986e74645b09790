// The merge: any split of a tensor gives the statistics of the whole, in any order; ranks and replicas; the checksum.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "probe/stats.h"

static uint64_t random_state = 3;

static uint64_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random_state ^ random_state >> 29;
}

static double uniform(void) {
    return (double)(random_bits() >> 11) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

static const keel_stats_params all = {.fields = KEEL_FIELDS_ALL, .eps = 1e-8, .scale = 1};

static keel_stats observe(const keel_stats_params *params, keel_dtype dtype, const void *data, size_t n) {
    keel_stats s;
    keel_stats_clear(&s);
    keel_stats_observe(&s, params, dtype, data, n);
    return s;
}

static void assert_close(double a, double b, double tolerance) {
    if (fabs(a - b) <= tolerance) return;
    print_error("%.17g and %.17g differ by more than %g\n", a, b, tolerance);
    fail();
}

// All but the sums to the bit.
static void assert_equal_counts(const keel_stats *a, const keel_stats *b) {
    keel_stats x = *a, y = *b;
    x.sum = y.sum = x.sum_sq = y.sum_sq = x.m2 = y.m2 = 0;
    x.log_norm_sum = y.log_norm_sum = x.log_norm_sum_sq = y.log_norm_sum_sq = 0;
    assert_memory_equal(&x, &y, sizeof x);
}

static void assert_equal_records(const keel_stats *a, const keel_stats *b, double tolerance) {
    assert_equal_counts(a, b);
    assert_close(a->sum, b->sum, tolerance * sqrt((double)a->n * a->sum_sq)); // at least the sum of magnitudes
    assert_close(a->sum_sq, b->sum_sq, tolerance * a->sum_sq);
    assert_close(a->m2, b->m2, 1e3 * tolerance * a->m2 + 1e-15 * a->sum_sq);
}

enum { N = 20000 };

static void test_any_split(void **state) {
    (void)state;
    static float x[N];
    static double y[N];
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(random_bits() % 20 == 0 ? 0 : 1e-4 * normal());
        // Doubles of every magnitude, so that parts have exponents of their own.
        y[i] = pow(10, 600 * (double)i / N - 300) * (0.5 + uniform());
    }
    x[77] = NAN;
    x[N - 1] = INFINITY;
    x[12345] = 1e-44f;
    x[5000] = 80000;
    const keel_stats whole = observe(&all, KEEL_F32, x, N), whole_double = observe(&all, KEEL_F64, y, N);
    assert_int_equal(whole_double.exponent, 700);
    for (int trial = 0; trial < 100; trial++) {
        keel_stats merged, merged_double;
        keel_stats_clear(&merged);
        keel_stats_clear(&merged_double);
        for (size_t at = 0; at < N;) {
            size_t part = 1 + random_bits() % (trial % 2 ? 50 : 7000);
            if (part > N - at) part = N - at;
            const keel_stats p = observe(&all, KEEL_F32, x + at, part), q = observe(&all, KEEL_F64, y + at, part);
            keel_stats_merge(&merged, &p);
            keel_stats_merge(&merged_double, &q);
            at += part;
        }
        assert_equal_records(&whole, &merged, 1e-7);
        assert_equal_records(&whole_double, &merged_double, 1e-12);
    }
}

// Halves of a tensor far apart: one huge, one tiny, one of zeros; the exponent is that of the whole whatever comes
// first.
static void test_exponents(void **state) {
    (void)state;
    double x[300];
    for (size_t i = 0; i < 300; i++) x[i] = i < 100 ? 1e-300 * (double)(i + 1) : i < 200 ? 0 : 1e300 * (double)(i + 1);
    const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t kept = 1; kept <= 3; kept++) { // the first of these parts in each order
        for (size_t o = 0; o < 6; o++) {
            keel_stats merged;
            keel_stats_clear(&merged);
            double chosen[300];
            size_t n = 0;
            for (size_t k = 0; k < kept; k++) {
                const keel_stats part = observe(&all, KEEL_F64, x + 100 * orders[o][k], 100);
                keel_stats_merge(&merged, &part);
                memcpy(chosen + n, x + 100 * orders[o][k], 100 * sizeof *x);
                n += 100;
            }
            const keel_stats whole = observe(&all, KEEL_F64, chosen, n);
            assert_equal_records(&whole, &merged, 1e-12);
        }
    }
}

static void test_associative(void **state) {
    (void)state;
    static float x[N];
    for (size_t i = 0; i < N; i++) x[i] = (float)(3 + normal());
    for (int trial = 0; trial < 200; trial++) {
        keel_stats part[3];
        for (size_t k = 0; k < 3; k++) {
            part[k] = observe(&all, KEEL_F32, x + random_bits() % 1000, random_bits() % 5000);
            const uint32_t rank = (uint32_t)(random_bits() % 3); // equal ranks and equal norms included
            keel_stats_seal_rank(&part[k], rank, 0, 1);
            if (trial % 5 == 0) part[k].norm_low = part[k].norm_high = 1;
        }
        keel_stats left = part[0], right = part[1];
        keel_stats_merge(&left, &part[1]);
        keel_stats_merge(&left, &part[2]);
        keel_stats_merge(&right, &part[2]);
        keel_stats other = part[0];
        keel_stats_merge(&other, &right);
        assert_equal_records(&left, &other, 1e-14);
        keel_stats swapped = part[2];
        keel_stats_merge(&swapped, &part[1]);
        keel_stats_merge(&swapped, &part[0]);
        assert_equal_records(&left, &swapped, 1e-14);
    }
}

// A million small records, as a tensor that is observed block by block: no drift.
static void test_many_merges(void **state) {
    (void)state;
    const double x[] = {0.1, 0.7, -0.3};
    const keel_stats part = observe(&all, KEEL_F64, x, 3);
    keel_stats merged;
    keel_stats_clear(&merged);
    for (int i = 0; i < 1000000; i++) keel_stats_merge(&merged, &part);
    assert_close(merged.sum, 1e6 * part.sum, 1e-10 * 1e6 * 1.1);
    assert_close(merged.sum_sq, 1e6 * part.sum_sq, 1e-10 * 1e6 * part.sum_sq);
    assert_close(merged.m2, 1e6 * part.m2, 1e-9 * 1e6 * part.m2);
}

static void test_identity_and_fields(void **state) {
    (void)state;
    const float x[] = {1, 2, NAN};
    keel_stats empty, s = observe(&all, KEEL_F32, x, 3);
    const keel_stats before = s;
    keel_stats_clear(&empty);
    keel_stats_merge(&s, &empty);
    assert_memory_equal(&s, &before, sizeof s);
    keel_stats_merge(&empty, &s);
    assert_memory_equal(&empty, &before, sizeof s);

    // Observing nothing marks the groups; what both sides have is what the whole has.
    const keel_stats_params flags = {.fields = KEEL_FIELDS_FLAGS};
    const keel_stats nothing = observe(&all, KEEL_F32, NULL, 0), flagged = observe(&flags, KEEL_F32, x, 3);
    assert_int_equal(nothing.n, 0);
    assert_int_equal(nothing.fields, KEEL_FIELDS_ALL | KEEL_FIELDS_FLAGS);
    assert_true(isnan(keel_stats_view(&nothing, KEEL_OP_norm)));
    assert_int_equal(flagged.fields, KEEL_FIELDS_FLAGS);
    assert_int_equal(flagged.nans, 1);
    keel_stats_merge(&s, &flagged);
    assert_int_equal(s.fields, KEEL_FIELDS_FLAGS);
    assert_int_equal(s.nans, 2);
}

static void test_seal(void **state) {
    (void)state;
    const float x[] = {3, 4}, y[] = {6, 8}, bad[] = {3, INFINITY, 4}, zero[] = {0, 0};
    keel_stats a = observe(&all, KEEL_F32, x, 2), b = observe(&all, KEEL_F32, y, 2),
               c = observe(&all, KEEL_F32, bad, 3);
    keel_stats d = observe(&all, KEEL_F32, zero, 2), e, unobserved;
    e = observe(&all, KEEL_F32, NULL, 0); // observed, but nothing was there
    keel_stats_clear(&unobserved);
    keel_stats_seal_rank(&a, 4, 0, 1);
    keel_stats_seal_rank(&b, 2, 0, 1);
    keel_stats_seal_rank(&c, 7, 0, 1);
    keel_stats_seal_rank(&d, 1, 0, 1);
    keel_stats_seal_rank(&e, 0, 0, 1);
    keel_stats_seal_rank(&unobserved, 9, 0, 1);
    keel_stats_merge(&a, &b);
    keel_stats_merge(&a, &c);
    keel_stats_merge(&a, &unobserved);
    assert_int_equal(a.rank_parts, 3);
    assert_true(a.norm_low == 5 && a.norm_high == 10);
    assert_int_equal(a.rank_low, 4); // ranks 4 and 7 have the same norm
    assert_int_equal(a.rank_high, 2);
    assert_int_equal(a.rank_nonfinite, 7);
    assert_int_equal(a.log_norm_ranks, 3);
    assert_close(keel_stats_view(&a, KEEL_OP_log_norm_mean), (2 * log(5) + log(10)) / 3, 1e-15);
    assert_close(keel_stats_view(&a, KEEL_OP_log_norm_std), log(2) * sqrt(2) / 3, 1e-12);
    keel_stats_merge(&a, &d);
    keel_stats_merge(&a, &e);
    assert_int_equal(a.rank_parts, 5);
    assert_int_equal(a.log_norm_ranks, 3); // a norm of 0 has no logarithm
    assert_true(a.norm_low == 0);
    assert_int_equal(a.rank_low, 1); // rank 0 held nothing, hence no norm
}

static void test_replicas(void **state) {
    (void)state;
    enum { LENGTH = 1000 };
    float x[LENGTH];
    for (size_t i = 0; i < LENGTH; i++) x[i] = (float)normal();
    const keel_stats alone = observe(&all, KEEL_F32, x, LENGTH);
    for (uint32_t count = 2; count <= 9; count++) {
        for (uint32_t differing = 0; differing <= count; differing++) { // count: none
            keel_stats merged;
            keel_stats_clear(&merged);
            for (uint32_t r = 0; r < count; r++) {
                const float kept = x[500];
                if (r == differing) x[500] = nextafterf(x[500], 9);
                keel_stats s = observe(&all, KEEL_F32, x, LENGTH);
                x[500] = kept;
                keel_stats_seal_rank(&s, 10 + r, r, count);
                keel_stats_merge(&merged, &s);
            }
            assert_int_equal(merged.n, LENGTH); // counted once
            assert_int_equal(merged.rank_parts, count);
            const uint64_t residual = keel_stats_view_count(&merged, KEEL_OP_replica_residual);
            if (differing == count) {
                assert_int_equal(residual, 0);
                assert_true(merged.sum == alone.sum && merged.checksum == alone.checksum);
            } else {
                assert_int_not_equal(residual, 0);
            }
        }
    }
}

static void test_a_nan_of_a_copy_is_seen_where_the_first_was_not_looked_at(void **state) {
    (void)state;
    const float x[] = {NAN, 1};
    const keel_stats_params params = {.fields = KEEL_FIELDS_BASE, .eps = 1e-8, .scale = 1};
    keel_stats first, copy;
    keel_stats_clear(&first);
    keel_stats_clear(&copy);
    keel_stats_observe(&copy, &params, KEEL_F32, x, 2);
    copy.micro_nonfinite = 4;
    keel_stats_seal_rank(&first, 0, 0, 2);
    keel_stats_seal_rank(&copy, 1, 1, 2);
    keel_stats_merge(&first, &copy);
    assert_int_equal(keel_stats_view_count(&first, KEEL_OP_rank_nonfinite), 1);
    assert_int_equal(keel_stats_view_count(&first, KEEL_OP_micro_nonfinite), 4);
    assert_int_equal(keel_stats_view_count(&first, KEEL_OP_nans), KEEL_NOT_COLLECTED);
}

static void test_micro_nonfinite(void **state) {
    (void)state;
    keel_stats a, b;
    keel_stats_clear(&a);
    keel_stats_clear(&b);
    a.fields = b.fields = KEEL_FIELDS_FLAGS;
    assert_int_equal(keel_stats_view_count(&a, KEEL_OP_micro_nonfinite), KEEL_NOT_COLLECTED);
    a.micro_nonfinite = 3;
    b.micro_nonfinite = 1;
    keel_stats_merge(&a, &b);
    assert_int_equal(keel_stats_view_count(&a, KEEL_OP_micro_nonfinite), 1);
}

// ---- checksum ----

static uint64_t checksum(keel_dtype dtype, const void *data, size_t n) {
    const keel_stats_params params = {.fields = KEEL_FIELDS_CHECKSUM};
    return observe(&params, dtype, data, n).checksum;
}

static void test_checksum_order(void **state) {
    (void)state;
    enum { LENGTH = 777 };
    float x[LENGTH];
    for (size_t i = 0; i < LENGTH; i++) x[i] = (float)normal();
    const uint64_t before = checksum(KEEL_F32, x, LENGTH);
    for (size_t i = LENGTH - 1; i > 0; i--) {
        const size_t j = random_bits() % (i + 1);
        const float swap = x[i];
        x[i] = x[j];
        x[j] = swap;
    }
    assert_int_equal(checksum(KEEL_F32, x, LENGTH), before);
    assert_int_equal(checksum(KEEL_F32, x, 300) + checksum(KEEL_F32, x + 300, LENGTH - 300), before);
}

// Differences that a weak sum would miss: one or two flipped bits, steps that cancel, a value moved between elements.
static void test_checksum_differences(void **state) {
    (void)state;
    enum { LENGTH = 64 };
    const keel_dtype dtypes[] = {KEEL_F32, KEEL_F64, KEEL_F16, KEEL_BF16};
    for (size_t d = 0; d < 4; d++) {
        const size_t size = keel_dtype_size(dtypes[d]), bits = 8 * size;
        unsigned char memory[LENGTH * 8] = {0};
        for (size_t i = 0; i < LENGTH * size; i++) memory[i] = (unsigned char)random_bits();
        const uint64_t before = checksum(dtypes[d], memory, LENGTH);
        for (size_t i = 0; i < 4 * bits; i++) {
            memory[i / 8] ^= (unsigned char)(1u << i % 8);
            assert_int_not_equal(checksum(dtypes[d], memory, LENGTH), before);
            for (size_t j = i + 1; j < 4 * bits; j++) {
                memory[j / 8] ^= (unsigned char)(1u << j % 8);
                // Two flips may turn two elements into each other, which is no difference of the set.
                if (i / bits == j / bits) assert_int_not_equal(checksum(dtypes[d], memory, LENGTH), before);
                memory[j / 8] ^= (unsigned char)(1u << j % 8);
            }
            memory[i / 8] ^= (unsigned char)(1u << i % 8);
        }
    }
    uint32_t x[2];
    for (int i = 0; i < 100000; i++) {
        const uint32_t a = (uint32_t)random_bits(), b = (uint32_t)random_bits();
        const uint32_t step = i % 2 ? 1 : 1u << random_bits() % 32;
        x[0] = a;
        x[1] = b;
        const uint64_t before = checksum(KEEL_F32, x, 2);
        x[0] = a + step;
        x[1] = b - step;
        if (x[0] != b) assert_int_not_equal(checksum(KEEL_F32, x, 2), before);
    }
    // 0 and its neighbours, signs, and all small patterns of 16 bits are told apart.
    uint64_t seen[65536];
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t half = (uint16_t)i;
        seen[i] = checksum(KEEL_F16, &half, 1);
    }
    for (uint32_t i = 0; i + 1 < 65536; i++) {
        assert_int_not_equal(seen[i], 0);
        assert_int_not_equal(seen[i], seen[i + 1]);
        assert_int_not_equal(seen[i], seen[i ^ 0x8000]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split),
        cmocka_unit_test(test_exponents),
        cmocka_unit_test(test_associative),
        cmocka_unit_test(test_many_merges),
        cmocka_unit_test(test_identity_and_fields),
        cmocka_unit_test(test_seal),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_a_nan_of_a_copy_is_seen_where_the_first_was_not_looked_at),
        cmocka_unit_test(test_micro_nonfinite),
        cmocka_unit_test(test_checksum_order),
        cmocka_unit_test(test_checksum_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
