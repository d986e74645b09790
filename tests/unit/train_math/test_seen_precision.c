// What is told of a tensor's precision is what rounding each of its values in software gives: underflow at every loss
// scale, and float32 that holds only values of 16 bits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/train_math/watcher.h"
#include "train/tensor/precision.h"

typedef struct bench {
    watcher watcher;
    keel_probe *probe;
    keel_taps *taps;
    keel_tap *tap;
} bench;

static void open_bench(bench *b, keel_quantity quantity) {
    *b = (bench){.watcher = {.on = true}};
    const keel_backend backend = {.context = &b->watcher,
                                  .start = watcher_start,
                                  .frame_begin = watcher_frame_begin,
                                  .frame_end = watcher_frame_end};
    const keel_site_info info = {.name = "tensor", .quantity = quantity, .dtype = KEEL_F32, .replica_count = 1};
    assert_int_equal(keel_probe_open(0, &b->probe), KEEL_OK);
    keel_probe_set_backend(b->probe, &backend);
    assert_int_equal(keel_taps_open(b->probe, 0, NULL, 0, &b->taps), KEEL_OK);
    assert_int_equal(keel_taps_add(b->taps, &info, &b->tap), KEEL_OK);
    assert_int_equal(keel_probe_start(b->probe), KEEL_OK);
}

static void close_bench(bench *b) {
    keel_taps_close(b->taps);
    keel_probe_close(b->probe);
    free(b->watcher.memory);
}

static uint64_t random_bits(void) {
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 20;
}

// Magnitudes from 2^-56 to 2^24, so that every scale finds values on both sides of each border, and the borders.
static void make_tensor(float *x, size_t n) {
    static const float borders[] = {0x1p-25f, 0x1p-24f, 0x1.8p-24f, 0x1p-14f, 0x1.ffcp-15f, 65504, 65520, 65536};
    for (size_t i = 0; i < n; i++) {
        float value = ldexpf(1 + (float)(random_bits() % 8192) / 8192, (int)(random_bits() % 80) - 56);
        if (i % 5 == 0) value = ldexpf(borders[random_bits() % 8], -(int)(random_bits() % 25));
        if (i % 15 == 0) value = nextafterf(value, random_bits() % 2 ? INFINITY : 0);
        if (i % 97 == 0) value = 0;
        x[i] = i % 2 ? value : -value;
    }
}

// SCALED: the tap is given the scaled tensor, as the trainer does, not the site the tensor and its scale.
static void check_underflow(bool scaled) {
    enum { N = 20011 };
    static float tensor[N], given[N];
    bench b;
    open_bench(&b, KEEL_ACTIVATION_GRAD);
    make_tensor(tensor, N);
    for (int power = 0; power <= 24; power++) {
        const float scale = ldexpf(1, power);
        uint64_t nonzero = 0, flushed = 0, subnormal = 0, overflow = 0;
        for (size_t i = 0; i < N; i++) {
            const float rounded = fabsf(keel_round_one(KEEL_FLOAT16, tensor[i] * scale));
            nonzero += tensor[i] != 0;
            flushed += tensor[i] != 0 && rounded == 0;
            subnormal += rounded > 0 && rounded < 0x1p-14f;
            overflow += isinf(rounded) != 0;
            given[i] = scaled ? tensor[i] * scale : tensor[i];
        }
        if (scaled)
            keel_taps_set_loss_scale(b.taps, (double)scale);
        else
            keel_site_set_scale(b.tap->site, (double)scale);
        keel_step_begin(b.probe, (uint64_t)power + 1);
        keel_tap_at(b.tap, given, N);
        keel_step_end(b.probe, &(keel_step){.step = (uint64_t)power + 1});
        const keel_stats *seen = keel_frame_stats(b.watcher.frame);
        assert_int_equal(seen->n, N);
        assert_int_equal(seen->fp16_flush, flushed);
        assert_int_equal(seen->fp16_subnormal, subnormal);
        assert_int_equal(seen->fp16_overflow, overflow);
        assert_true(flushed > N / 50 && subnormal > N / 20 && overflow > N / 100);
        assert_true(keel_stats_view(seen, KEEL_OP_underflow) == (double)flushed / (double)nonzero);
        assert_true(seen->max < 0x1p25); // the tensor's own, whatever the scale
    }
    close_bench(&b);
}

static void test_underflow_at_the_sites_scale(void **state) {
    (void)state;
    check_underflow(false);
}

static void test_underflow_of_the_scaled_loss(void **state) {
    (void)state;
    check_underflow(true);
}

static const keel_stats *see(bench *b, float *x, size_t n) {
    keel_step_begin(b->probe, 1);
    keel_tap_at(b->tap, x, n);
    keel_step_end(b->probe, &(keel_step){.step = 1});
    return keel_frame_stats(b->watcher.frame);
}

static void test_fake_float32(void **state) {
    (void)state;
    enum { N = 1000000 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    bench b;
    open_bench(&b, KEEL_WEIGHT);
    for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
        for (size_t i = 0; i < N; i++)
            x[i] = ((float)(random_bits() % 200001) / 100000 - 1) * ldexpf(1, -(int)(random_bits() % 20));
        const keel_op op = precision == KEEL_BFLOAT16 ? KEEL_OP_not_bf16 : KEEL_OP_not_fp16;
        assert_true(keel_stats_view(see(&b, x, N), op) >= 65536); // saturates
        keel_round((keel_precision)precision, x, N);
        assert_true(keel_stats_view(see(&b, x, N), op) == 0);
        x[random_bits() % N] = 0.1f;
        assert_true(keel_stats_view(see(&b, x, N), op) == 1);
    }
    close_bench(&b);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_underflow_at_the_sites_scale),
                                       cmocka_unit_test(test_underflow_of_the_scaled_loss),
                                       cmocka_unit_test(test_fake_float32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
