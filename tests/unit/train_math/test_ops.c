// Operations on rows and tiles against plain float64, their backward forms by central differences; all lengths around
// the vectors'.
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/tensor/gemm.h"
#include "train/tensor/ops.h"
#include "train/tensor/tile.h"

enum { LENGTH_MAX = 100, ROWS = 3 };
static const size_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100};
#define LENGTH_COUNT (sizeof lengths / sizeof *lengths)

static uint32_t random_state = 1;

// In [-range, range).
static float any(float range) {
    random_state = random_state * 1664525u + 1013904223u;
    return range * ((float)(random_state >> 8) / 8388608.0f - 1.0f);
}

static void fill(float *x, size_t n, float range) {
    for (size_t i = 0; i < n; i++) x[i] = any(range);
}

static void assert_close(const char *what, size_t n, double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) fail_msg("%s, n %zu: %.9g, expected %.9g", what, n, value, expected);
}

// ---- exp ----

static void test_exp_accuracy(void **state) {
    (void)state;
    double worst = 0;
    enum { BATCH = 96 };
    float x[BATCH], y[BATCH];
    size_t filled = 0;
    // Every 997th float of both signs whose exponential is a normal number.
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 997) {
        uint32_t b = (uint32_t)bits;
        float value;
        memcpy(&value, &b, sizeof value);
        if (!(value > -87.3f && value < 88.3f)) continue;
        x[filled++] = value;
        if (filled < BATCH) continue;
        memcpy(y, x, sizeof y);
        keel_row_exp(y, BATCH, 1, 0);
        for (size_t i = 0; i < BATCH; i++) {
            double e = exp((double)x[i]);
            double error = fabs((double)y[i] - e) / e;
            worst = error > worst ? error : worst;
        }
        filled = 0;
    }
    if (worst > 1.5e-7) fail_msg("relative error %.3g", worst);
}

static void test_exp_special(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH_COUNT; k++) {
        size_t n = lengths[k];
        float x[LENGTH_MAX];
        fill(x, n, 3);
        x[n / 2] = -INFINITY;
        assert_true(isfinite(keel_row_exp(x, n, 1, 0)));
        assert_true(x[n / 2] == 0.0f);
        fill(x, n, 3);
        x[n - 1] = NAN;
        assert_true(isnan(keel_row_exp(x, n, 1, 0)));
        assert_true(isnan(x[n - 1]));
        fill(x, n, 3);
        x[0] = 200;
        assert_true(isinf(keel_row_exp(x, n, 1, 0)));
        x[0] = -INFINITY;
        if (n > 1) assert_true(isfinite(keel_row_max(x, n)));
        x[0] = INFINITY;
        assert_true(keel_row_max(x, n) == INFINITY);
    }
    assert_true(keel_row_max(NULL, 0) == -INFINITY);
}

static void test_row_exp_sum(void **state) {
    (void)state;
    enum { N = 5000 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    fill(x, N, 8);
    double expected = 0;
    float greatest = keel_row_max(x, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(x[i] <= greatest);
        expected += exp((double)x[i] * 0.5 - (double)greatest);
    }
    assert_close("sum of exponentials", N, keel_row_exp(x, N, 0.5f, greatest), expected, 3e-7 * expected);
    free(x);
}

// ---- activations ----

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double silu(double x) {
    return x / (1 + exp(-x));
}
static double slope(double (*f)(double), double x) {
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

static void test_gelu(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH_COUNT; k++) {
        size_t n = lengths[k];
        float x[LENGTH_MAX], dy[LENGTH_MAX], y[LENGTH_MAX + 1], dx[LENGTH_MAX + 1];
        fill(x, n, 6);
        fill(dy, n, 2);
        y[n] = dx[n] = 77;
        keel_gelu(y, x, n);
        keel_gelu_backward(dx, dy, x, n);
        for (size_t i = 0; i < n; i++) {
            double e = gelu((double)x[i]);
            assert_close("gelu", n, (double)y[i], e, 1e-6 * fabs((double)x[i]));
            assert_close("gelu backward", n, (double)dx[i], (double)dy[i] * slope(gelu, (double)x[i]), 3e-6);
        }
        assert_true(y[n] == 77 && dx[n] == 77);
        keel_gelu_backward(dy, dy, x, n);
        assert_memory_equal(dy, dx, n * sizeof *dx);
    }
    // Far out, where one minus tanh has lost all digits, and where it overflows.
    const float far[4] = {-5.5f, -30, 30, -1000};
    float y[4], dx[4];
    const float ones[4] = {1, 1, 1, 1};
    keel_gelu(y, far, 4);
    assert_close("gelu(-5.5)", 1, (double)y[0], -5.5 / (1 + exp(2 * sqrt(2 / M_PI) * (5.5 + 0.044715 * 166.375))),
                 1e-12);
    assert_true(y[1] == 0 && y[2] == 30 && y[3] == 0);
    keel_gelu_backward(dx, ones, far, 4);
    assert_true(dx[1] == 0 && dx[2] == 1 && dx[3] == 0);
}

static void test_swiglu(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH_COUNT; k++) {
        size_t n = lengths[k];
        float gate[LENGTH_MAX], up[LENGTH_MAX], dy[LENGTH_MAX], y[LENGTH_MAX], dgate[LENGTH_MAX], dup[LENGTH_MAX];
        fill(gate, n, 6);
        fill(up, n, 2);
        fill(dy, n, 2);
        keel_swiglu(y, gate, up, n);
        keel_swiglu_backward(dgate, dup, dy, gate, up, n);
        for (size_t i = 0; i < n; i++) {
            double g = (double)gate[i], u = (double)up[i], d = (double)dy[i];
            assert_close("swiglu", n, (double)y[i], silu(g) * u, 3e-6);
            assert_close("swiglu by gate", n, (double)dgate[i], d * u * slope(silu, g), 6e-6);
            assert_close("swiglu by up", n, (double)dup[i], d * silu(g), 3e-6);
        }
    }
}

// ---- norms ----

static void plain_norm(const double *x, const float *weight, const float *bias, size_t n, double *y) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < n && bias; i++) mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(square + 1e-5) * (double)weight[i] + (bias ? (double)bias[i] : 0);
}

static double weighted(const double *x, const float *weight, const float *bias, const float *dy, size_t n) {
    double y[LENGTH_MAX], sum = 0;
    plain_norm(x, weight, bias, n, y);
    for (size_t i = 0; i < n; i++) sum += y[i] * (double)dy[i];
    return sum;
}

static void check_norm(size_t n, bool layer) {
    float x[ROWS * LENGTH_MAX], weight[LENGTH_MAX], bias[LENGTH_MAX], y[ROWS * LENGTH_MAX], dy[ROWS * LENGTH_MAX];
    float dx[ROWS * LENGTH_MAX], dweight[LENGTH_MAX], dbias[LENGTH_MAX], mean[ROWS], rstd[ROWS];
    fill(x, ROWS * n, 2);
    fill(weight, n, 2);
    fill(bias, n, 2);
    fill(dy, ROWS * n, 1);
    for (size_t i = 0; i < ROWS * n; i++) dx[i] = 1; // backward adds
    for (size_t i = 0; i < n; i++) dweight[i] = dbias[i] = 2;
    if (layer) {
        keel_layer_norm(y, x, weight, bias, 1e-5f, mean, rstd, ROWS, n);
        keel_layer_norm_backward(dx, dweight, dbias, dy, x, weight, mean, rstd, ROWS, n);
    } else {
        keel_rms_norm(y, x, weight, 1e-5f, rstd, ROWS, n);
        keel_rms_norm_backward(dx, dweight, dy, x, weight, rstd, ROWS, n);
    }
    double by_weight[LENGTH_MAX] = {0}, by_bias[LENGTH_MAX] = {0}, steepest = 0;
    for (size_t r = 0; r < ROWS; r++) {
        double row[LENGTH_MAX], e[LENGTH_MAX];
        for (size_t i = 0; i < n; i++) row[i] = (double)x[r * n + i];
        plain_norm(row, weight, layer ? bias : NULL, n, e);
        steepest = fmax(steepest, (double)rstd[r]);
        for (size_t i = 0; i < n; i++) {
            assert_close("norm", n, (double)y[r * n + i], e[i], 3e-6 * (1 + steepest * 0.1));
            double at = row[i], h = 1e-6;
            row[i] = at + h;
            double above = weighted(row, weight, layer ? bias : NULL, dy + r * n, n);
            row[i] = at - h;
            double below = weighted(row, weight, layer ? bias : NULL, dy + r * n, n);
            row[i] = at;
            assert_close("norm by x", n, (double)dx[r * n + i] - 1, (above - below) / (2 * h),
                         2e-6 * (1 + steepest) * 4);
            double hat = (e[i] - (layer ? (double)bias[i] : 0)) / (double)weight[i];
            by_weight[i] += hat * (double)dy[r * n + i];
            by_bias[i] += (double)dy[r * n + i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        assert_close("norm by weight", n, (double)dweight[i] - 2, by_weight[i], 1e-5);
        if (layer) assert_close("norm by bias", n, (double)dbias[i] - 2, by_bias[i], 2e-6);
    }
}

static void test_norms(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH_COUNT; k++) {
        // The mean of one element is the element: nothing is left to scale.
        if (lengths[k] > 1) check_norm(lengths[k], true);
        check_norm(lengths[k], false);
    }
}

// ---- positions, sums ----

static void test_rope(void **state) {
    (void)state;
    for (size_t d = 2; d <= 66; d += 2) {
        float x[3 * 66], y[3 * 66], cosine[33], sine[33];
        for (size_t i = 0; i < d / 2; i++) {
            double angle = (double)any(3);
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
        }
        fill(x, 3 * d, 2);
        memcpy(y, x, sizeof y);
        keel_rope(y, 3, d, cosine, sine);
        for (size_t h = 0; h < 3; h++)
            for (size_t i = 0; i < d / 2; i++) {
                double a = (double)x[h * d + i], b = (double)x[h * d + i + d / 2];
                double c = (double)cosine[i], s = (double)sine[i];
                assert_close("rope", d, (double)y[h * d + i], a * c - b * s, 1e-6);
                assert_close("rope", d, (double)y[h * d + i + d / 2], b * c + a * s, 1e-6);
            }
        keel_rope_back(y, 3, d, cosine, sine);
        for (size_t i = 0; i < 3 * d; i++) assert_close("rope back", d, (double)y[i], (double)x[i], 2e-6);
    }
}

static void test_sums(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH_COUNT; k++) {
        size_t n = lengths[k];
        float x[ROWS * LENGTH_MAX], y[ROWS * LENGTH_MAX], bias[LENGTH_MAX], sum[LENGTH_MAX];
        fill(x, ROWS * n, 2);
        fill(bias, n, 2);
        memcpy(y, x, ROWS * n * sizeof *y);
        memcpy(sum, bias, n * sizeof *sum);
        keel_add_bias(y, bias, ROWS, n);
        keel_add_rows(sum, x, ROWS, n);
        for (size_t i = 0; i < n; i++) {
            assert_true(y[n + i] == x[n + i] + bias[i]);
            assert_true(sum[i] == bias[i] + x[i] + x[n + i] + x[2 * n + i]);
        }
        keel_add_to(y, x, sum, n);
        keel_add(x, sum, n);
        assert_memory_equal(x, y, n * sizeof *x);
        keel_scale(x, -2, n);
        for (size_t i = 0; i < n; i++) assert_true(x[i] == -2 * y[i]);
    }
}

// ---- tiles ----

static void check_tile(size_t m, size_t n, size_t k) {
    enum { M = 20, N = 80, K = 37, PAD = 3 };
    static float a[M * (K + PAD)], at[K * (M + PAD)], b[K * (N + PAD)], c[M * (N + PAD)], ct[M * (N + PAD)];
    fill(b, sizeof b / sizeof *b, 1);
    for (size_t i = 0; i < m; i++)
        for (size_t p = 0; p < k; p++) a[i * (K + PAD) + p] = at[p * (M + PAD) + i] = any(1);
    for (int add = 0; add < 2; add++) {
        for (size_t i = 0; i < M * (N + PAD); i++) c[i] = ct[i] = 5;
        keel_tile_mul(m, n, k, a, K + PAD, b, N + PAD, add, c, N + PAD);
        keel_tile_mul_transposed(m, n, k, at, M + PAD, b, N + PAD, add, ct, N + PAD);
        for (size_t i = 0; i < M; i++)
            for (size_t j = 0; j < N + PAD; j++) {
                double e = i < m && j < n && !add ? 0 : 5;
                for (size_t p = 0; p < k && i < m && j < n; p++)
                    e += (double)a[i * (K + PAD) + p] * (double)b[p * (N + PAD) + j];
                assert_close("tile", m, (double)c[i * (N + PAD) + j], e, 5e-6);
                assert_close("transposed tile", m, (double)ct[i * (N + PAD) + j], e, 5e-6);
            }
    }
}

static void test_tiles(void **state) {
    (void)state;
    for (size_t m = 1; m <= 20; m++)
        for (size_t n = 16; n <= 80; n += 16) check_tile(m, n, m % 2 ? 37 : 1 + m);
}

static void test_tile_copies(void **state) {
    (void)state;
    enum { R = 19, C = 37, STRIDE = 40, PADDED = 48 };
    float a[R * STRIDE], t[C * PADDED], copy[R * PADDED];
    fill(a, R * STRIDE, 1);
    fill(t, C * PADDED, 1);
    fill(copy, R * PADDED, 1);
    keel_tile_transpose(R, C, a, STRIDE, t, PADDED, 32);
    keel_tile_copy(R, C, a, STRIDE, copy, PADDED);
    for (size_t i = 0; i < 32; i++)
        for (size_t j = 0; j < C; j++) assert_true(t[j * PADDED + i] == (i < R ? a[i * STRIDE + j] : 0));
    for (size_t i = 0; i < R; i++)
        for (size_t j = 0; j < PADDED; j++) assert_true(copy[i * PADDED + j] == (j < C ? a[i * STRIDE + j] : 0));
}

// ---- products by BLAS ----

static void check_product(size_t m, size_t n, size_t k, bool at, bool bt, bool add) {
    enum { PAD = 5 };
    size_t a_stride = (at ? m : k) + PAD, b_stride = (bt ? k : n) + PAD, c_stride = n + PAD;
    float *a = malloc((at ? k : m) * a_stride * sizeof *a), *b = malloc((bt ? n : k) * b_stride * sizeof *b);
    float *c = malloc(m * c_stride * sizeof *c);
    assert_true(a && b && c);
    fill(a, (at ? k : m) * a_stride, 1);
    fill(b, (bt ? n : k) * b_stride, 1);
    for (size_t i = 0; i < m * c_stride; i++) c[i] = 5;
    keel_gemm(m, n, k, (keel_operand){a, a_stride, at}, (keel_operand){b, b_stride, bt}, add, c, c_stride);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < c_stride; j++) {
            double e = j < n && !add ? 0 : 5;
            for (size_t p = 0; p < k && j < n; p++)
                e += (double)a[at ? p * a_stride + i : i * a_stride + p] *
                     (double)b[bt ? j * b_stride + p : p * b_stride + j];
            assert_close("product", m, (double)c[i * c_stride + j], e, 1e-5);
        }
    free(a);
    free(b);
    free(c);
}

static void test_products(void **state) {
    (void)state;
    const size_t sizes[][3] = {{1, 1, 1}, {17, 33, 9}, {64, 64, 64}, {900, 31, 20}, {403, 100, 7}, {130, 1, 3}};
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int form = 0; form < 8; form++)
                check_product(sizes[s][0], sizes[s][1], sizes[s][2], form & 1, form & 2, form & 4);
    }
    omp_set_num_threads(omp_get_num_procs());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_accuracy), cmocka_unit_test(test_exp_special), cmocka_unit_test(test_row_exp_sum),
        cmocka_unit_test(test_gelu),         cmocka_unit_test(test_swiglu),      cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),         cmocka_unit_test(test_sums),        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_tile_copies),  cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
