#include "train/tensor/tile.h"

#include "train/tensor/vector.h"

// As many sums as fit in the registers beside a row of B and one element of A.
enum { ROWS = 6, VECS = KEEL_LANES == 16 ? 4 : 2 };

// M rows and V vectors of C; the constants are unrolled.
KEEL_INLINE void multiply(const size_t m, const size_t v, size_t k, const float *a, size_t row_step, size_t k_step,
                          const float *b, size_t b_stride, bool accumulate, float *c, size_t c_stride) {
    keel_vec sum[ROWS][VECS];
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < v; j++)
            sum[i][j] = accumulate ? keel_vec_load(c + i * c_stride + j * KEEL_LANES) : (keel_vec){0};
    for (size_t p = 0; p < k; p++, a += k_step, b += b_stride) {
        keel_vec row[VECS];
        for (size_t j = 0; j < v; j++) row[j] = keel_vec_load(b + j * KEEL_LANES);
        for (size_t i = 0; i < m; i++) {
            keel_vec x = keel_vec_set(a[i * row_step]);
            for (size_t j = 0; j < v; j++) sum[i][j] += x * row[j];
        }
    }
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < v; j++) keel_vec_store(c + i * c_stride + j * KEEL_LANES, sum[i][j]);
}

KEEL_INLINE void multiply_rows(size_t m, const size_t v, size_t k, const float *a, size_t row_step, size_t k_step,
                               const float *b, size_t b_stride, bool accumulate, float *c, size_t c_stride) {
    for (; m >= ROWS; m -= ROWS, a += ROWS * row_step, c += ROWS * c_stride)
        multiply(ROWS, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
    switch (m) {
    case 5:
        multiply(5, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
        break;
    case 4:
        multiply(4, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
        break;
    case 3:
        multiply(3, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
        break;
    case 2:
        multiply(2, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
        break;
    case 1:
        multiply(1, v, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
        break;
    default:
        break;
    }
}

KEEL_INLINE void multiply_all(size_t m, size_t n, size_t k, const float *a, size_t row_step, size_t k_step,
                              const float *b, size_t b_stride, bool accumulate, float *c, size_t c_stride) {
    const size_t width = (size_t)VECS * KEEL_LANES;
    for (; n >= width; n -= width, b += width, c += width)
        multiply_rows(m, VECS, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
    for (; n; n -= KEEL_LANES, b += KEEL_LANES, c += KEEL_LANES)
        multiply_rows(m, 1, k, a, row_step, k_step, b, b_stride, accumulate, c, c_stride);
}

void keel_tile_mul(size_t m, size_t n, size_t k, const float *a, size_t a_stride, const float *b, size_t b_stride,
                   bool accumulate, float *c, size_t c_stride) {
    multiply_all(m, n, k, a, a_stride, 1, b, b_stride, accumulate, c, c_stride);
}

void keel_tile_mul_transposed(size_t m, size_t n, size_t k, const float *a, size_t a_stride, const float *b,
                              size_t b_stride, bool accumulate, float *c, size_t c_stride) {
    multiply_all(m, n, k, a, 1, a_stride, b, b_stride, accumulate, c, c_stride);
}

void keel_tile_transpose(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t b_stride,
                         size_t padded) {
    // Squares that keep both sides in L1.
    enum { SQUARE = 16 };
    for (size_t i0 = 0; i0 < rows; i0 += SQUARE)
        for (size_t j0 = 0; j0 < cols; j0 += SQUARE) {
            size_t i1 = i0 + SQUARE < rows ? i0 + SQUARE : rows, j1 = j0 + SQUARE < cols ? j0 + SQUARE : cols;
            for (size_t j = j0; j < j1; j++)
                for (size_t i = i0; i < i1; i++) b[j * b_stride + i] = a[i * a_stride + j];
        }
    for (size_t j = 0; j < cols; j++) memset(b + j * b_stride + rows, 0, (padded - rows) * sizeof(float));
}

void keel_tile_copy(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t padded) {
    for (size_t i = 0; i < rows; i++) {
        memcpy(b + i * padded, a + i * a_stride, cols * sizeof(float));
        memset(b + i * padded + cols, 0, (padded - cols) * sizeof(float));
    }
}
