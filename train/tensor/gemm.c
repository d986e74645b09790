#include "train/tensor/gemm.h"

#include <cblas.h>

void keel_gemm(size_t m, size_t n, size_t k, keel_operand a, keel_operand b, bool accumulate, float *c, size_t stride) {
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                (blasint)m, (blasint)n, (blasint)k, 1.0f, a.data, (blasint)a.stride, b.data, (blasint)b.stride,
                accumulate ? 1.0f : 0.0f, c, (blasint)stride);
}
