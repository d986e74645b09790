// Products of small matrices that lie in cache, by the calling thread alone: what attention makes of its tiles.
#ifndef KEEL_TRAIN_TENSOR_TILE_H
#define KEEL_TRAIN_TENSOR_TILE_H

#include <stdbool.h>
#include <stddef.h>

// C [m, n] = A [m, k] B [k, n], added to C if ACCUMULATE. N is a multiple of KEEL_LANES; strides in elements, of rows
// as stored.
void keel_tile_mul(size_t m, size_t n, size_t k, const float *a, size_t a_stride, const float *b, size_t b_stride,
                   bool accumulate, float *c, size_t c_stride);
// The same with A stored as its transpose [k, m].
void keel_tile_mul_transposed(size_t m, size_t n, size_t k, const float *a, size_t a_stride, const float *b,
                              size_t b_stride, bool accumulate, float *c, size_t c_stride);

// B [cols, rows] = transpose of A [rows, cols]; columns of B from ROWS up to PADDED are zeros.
void keel_tile_transpose(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t b_stride,
                         size_t padded);
// B [rows, padded] = A [rows, cols], columns from COLS up to PADDED are zeros.
void keel_tile_copy(size_t rows, size_t cols, const float *a, size_t a_stride, float *b, size_t padded);

#endif
