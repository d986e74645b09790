// The robust series against a naive one that sorts.
#include "tests/unit/analyzers/synthetic_run.h"

#include "analyzers/series.h"

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double naive_median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : values[n / 2 - 1] + (values[n / 2] - values[n / 2 - 1]) / 2;
}

static double naive_mad(const double *values, uint32_t n, double median) {
    double deviations[256];
    for (uint32_t i = 0; i < n; i++) deviations[i] = fabs(values[i] - median);
    return naive_median(deviations, n);
}

static void check_window(uint32_t capacity, double (*next)(uint64_t *), double scale) {
    double store[KEEL_WINDOW_STORE(256)], all[4000], last[256];
    keel_window window;
    uint64_t seed = 7 + capacity;
    keel_window_init(&window, capacity);
    for (uint32_t n = 0; n < 4000; n++) {
        all[n] = scale * next(&seed);
        if (!keel_window_push(&window, store, all[n])) continue;
        uint32_t count = n + 1 < capacity ? n + 1 : capacity;
        memcpy(last, all + n + 1 - count, count * sizeof *last);
        double median = naive_median(last, count);
        assert_int_equal(window.count, count);
        assert_true(window.median == median);
        assert_true(fabs(window.mad - naive_mad(last, count, median)) <= 1e-12 * scale);
    }
}

static double coarse(uint64_t *seed) {
    return floor(4 * random_uniform(seed)) - 1;
} // many equal values, and zeros

static void window_equals_naive(void **unused) {
    (void)unused;
    for (uint32_t capacity = 16; capacity <= 256; capacity += 48) {
        check_window(capacity, random_normal, 1);
        check_window(capacity, coarse, 1);
        check_window(capacity, random_normal, 1e-30);
        check_window(capacity, random_normal, 1e30);
    }
}

// The limit of a window holds until it is raised; then it grows to it.
static void a_limited_window_holds_the_latest(void **unused) {
    (void)unused;
    double store[KEEL_WINDOW_STORE(256)], all[1000], last[256];
    keel_window window;
    uint64_t seed = 31;
    keel_window_init(&window, 256);
    for (uint32_t n = 0; n < 1000; n++) {
        window.limit = n < 300 ? 64 : n < 600 ? 100 : 256;
        all[n] = random_normal(&seed);
        if (!keel_window_push(&window, store, all[n])) continue;
        assert_true(window.count <= window.limit);
        memcpy(last, all + n + 1 - window.count, window.count * sizeof *last);
        assert_true(window.median == naive_median(last, window.count));
    }
    assert_int_equal(window.count, 256);
}

static const keel_series_params loss_like = {.floor_relative = 0.002, .outlier = 6, .early_share = 1};

static keel_series_joined feed(keel_series *series, double value, keel_score *score) {
    *score = keel_series_score(series, &loss_like, value);
    return keel_series_add(series, &loss_like, value, score);
}

static void outliers_never_join(void **unused) {
    (void)unused;
    keel_series *plain = malloc(sizeof *plain), *spiky = malloc(sizeof *spiky);
    keel_series_init(plain);
    keel_series_init(spiky);
    uint64_t seed = 3;
    keel_score a, b;
    for (int i = 0; i < 2000; i++) {
        double value = 3 + 0.01 * random_normal(&seed);
        feed(plain, value, &a);
        if (i >= 100 && i % 50 == 0) assert_int_equal(feed(spiky, 9, &b), KEEL_OUTSIDE);
        feed(spiky, value, &b);
        if (i >= 100) assert_true(a.z == b.z && a.expected == b.expected);
    }
    free(plain);
    free(spiky);
}

static void warm_up_is_silent(void **unused) {
    (void)unused;
    keel_series series;
    keel_series_init(&series);
    keel_score score;
    for (int i = 0; i < KEEL_SERIES_WARMUP; i++) {
        feed(&series, i == 40 ? 1e6 : 3 + 0.001 * i, &score);
        assert_false(score.ready);
        assert_true(score.z == 0);
    }
    feed(&series, 30, &score);
    assert_true(score.ready);
    assert_true(score.z > 50);
}

static void a_new_level_is_accepted_once(void **unused) {
    (void)unused;
    keel_series series;
    keel_series_init(&series);
    uint64_t seed = 9;
    keel_score score;
    int changes = 0;
    for (int i = 0; i < 3000; i++) {
        double level = i < 1000 ? 2 : 3;
        if (feed(&series, level + 0.01 * random_normal(&seed), &score) == KEEL_LEVEL_CHANGED) {
            changes++;
            assert_int_equal(i, 1000 + KEEL_SERIES_ACCEPT - 1);
        }
    }
    assert_int_equal(changes, 1);
    assert_true(fabs(series.level.median - 3) <= 0.02);
}

static void a_trend_is_followed(void **unused) {
    (void)unused;
    keel_series series;
    keel_series_init(&series);
    uint64_t seed = 5;
    keel_score score;
    double worst = 0;
    for (int i = 0; i < 2000; i++) {
        feed(&series, 11 - 0.004 * i + 0.02 * random_normal(&seed), &score);
        worst = fmax(worst, fabs(score.z));
    }
    assert_true(worst < 6);
    assert_true(fabs(score.expected - (11 - 0.004 * 1999)) <= 0.05);
}

static void state_is_plain_memory(void **unused) {
    (void)unused;
    keel_series *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    keel_series_init(a);
    uint64_t seed = 21;
    keel_score x, y;
    for (int i = 0; i < 777; i++) feed(a, 1 + 0.1 * random_normal(&seed), &x);
    memcpy(b, a, sizeof *a);
    for (int i = 0; i < 777; i++) {
        double value = (i > 300 ? 5 : 1) + 0.1 * random_normal(&seed);
        assert_int_equal(feed(a, value, &x), feed(b, value, &y));
        assert_memory_equal(&x.z, &y.z, sizeof x.z);
    }
    assert_memory_equal(a, b, sizeof *a);
    free(a);
    free(b);
}

static void the_tail_learns(void **unused) {
    (void)unused;
    keel_tail normal = {0}, heavy = {0};
    uint64_t seed = 77;
    for (int i = 0; i < 100000; i++) {
        keel_tail_add(&normal, random_normal(&seed));
        keel_tail_add(&heavy, random_student5(&seed) / 1.077);
    }
    assert_true(keel_tail_rate(&normal, 8) < 1e-6);
    assert_true(keel_tail_rate(&heavy, 8) > 3e-5); // the true rate is 2e-4
    assert_true(keel_tail_rate(&heavy, 8) < 6e-4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_equals_naive),          cmocka_unit_test(a_limited_window_holds_the_latest),
        cmocka_unit_test(outliers_never_join),          cmocka_unit_test(warm_up_is_silent),
        cmocka_unit_test(a_new_level_is_accepted_once), cmocka_unit_test(a_trend_is_followed),
        cmocka_unit_test(state_is_plain_memory),        cmocka_unit_test(the_tail_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
