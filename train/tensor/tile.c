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

enum { SQUARE = 16 };

#if defined(__AVX512F__)
// A square of 16 x 16 in registers: in step s, lanes and rows whose numbers differ in bit s change places.
static void transpose_square(const float *a, size_t a_stride, float *b, size_t b_stride) {
    __m512 row[SQUARE];
    for (size_t i = 0; i < SQUARE; i++) row[i] = _mm512_loadu_ps(a + i * a_stride);
    for (int step = 1; step < SQUARE; step *= 2) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i bit = _mm512_set1_epi32(step), second = _mm512_set1_epi32(SQUARE);
        const __mmask16 odd = _mm512_test_epi32_mask(lane, bit);
        const __m512i low = _mm512_mask_add_epi32(lane, odd, _mm512_sub_epi32(lane, bit), second);
        const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(lane, bit), odd, lane, second);
        for (int i = 0; i < SQUARE; i++) {
            if (i & step) continue;
            __m512 first = row[i], other = row[i + step];
            row[i] = _mm512_permutex2var_ps(first, low, other);
            row[i + step] = _mm512_permutex2var_ps(first, high, other);
        }
    }
    for (size_t i = 0; i < SQUARE; i++) _mm512_storeu_ps(b + i * b_stride, row[i]);
}
#else
static void transpose_square(const float *a, size_t a_stride, float *b, size_t b_stride) {
    for (size_t j = 0; j < SQUARE; j++)
        for (size_t i = 0; i < SQUARE; i++) b[j * b_stride + i] = a[i * a_stride + j];
}
#endif

void keel_tile_transpose(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t b_stride,
                         size_t padded) {
    for (size_t i = 0; i < rows; i += SQUARE)
        for (size_t j = 0; j < cols; j += SQUARE) {
            const float *from = a + i * a_stride + j;
            float *to = b + j * b_stride + i;
            if (rows - i >= SQUARE && cols - j >= SQUARE) {
                transpose_square(from, a_stride, to, b_stride);
                continue;
            }
            for (size_t c = 0; c < SQUARE && j + c < cols; c++)
                for (size_t r = 0; r < SQUARE && i + r < rows; r++) to[c * b_stride + r] = from[r * a_stride + c];
        }
    for (size_t j = 0; j < cols && padded > rows; j++)
        memset(b + j * b_stride + rows, 0, (padded - rows) * sizeof(float));
}

void keel_tile_copy(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t padded) {
    for (size_t i = 0; i < rows; i++) {
        memcpy(b + i * padded, a + i * a_stride, cols * sizeof(float));
        memset(b + i * padded + cols, 0, (padded - cols) * sizeof(float));
    }
}
