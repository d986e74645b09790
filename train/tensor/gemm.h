// The one place where matrices are multiplied: float32 by BLAS. Over arrays of bfloat16 or float16 values it is what
// tensor cores compute (train/tensor/precision.h).
#ifndef KEEL_TRAIN_TENSOR_GEMM_H
#define KEEL_TRAIN_TENSOR_GEMM_H

#include <stdbool.h>
#include <stddef.h>

typedef struct keel_operand {
    const float *data; // row-major
    size_t stride;     // elements from row to row as stored
    bool transposed;
} keel_operand;

// C [m, n] = op(A) [m, k] op(B) [k, n], added to C if ACCUMULATE. Row-major; STRIDE of C in elements. With the threads
// of OpenMP; called inside a parallel region, with the calling thread alone. The same bits for the same number of
// threads.
void keel_gemm(size_t m, size_t n, size_t k, keel_operand a, keel_operand b, bool accumulate, float *c, size_t stride);

#endif
