#include "train/tensor/gemm.h"

#include <cblas.h>
#include <omp.h>

static void multiply(size_t m, size_t n, size_t k, keel_operand a, keel_operand b, bool accumulate, float *c,
                     size_t stride) {
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                (blasint)m, (blasint)n, (blasint)k, 1.0f, a.data, (blasint)a.stride, b.data, (blasint)b.stride,
                accumulate ? 1.0f : 0.0f, c, (blasint)stride);
}

void keel_gemm(size_t m, size_t n, size_t k, keel_operand a, keel_operand b, bool accumulate, float *c, size_t stride) {
    // OpenBLAS shares a tall product out by its few columns, and is an eighth slower than with a piece of the rows for
    // each thread. Pieces begin at multiples of what its kernels take at a time.
    enum { TALL = 4, UNIT = 64 };
    size_t threads = omp_in_parallel() ? 1 : (size_t)omp_get_max_threads();
    if (threads == 1 || m < TALL * n || m < threads * UNIT) {
        multiply(m, n, k, a, b, accumulate, c, stride);
        return;
    }
    size_t units = (m + UNIT - 1) / UNIT;
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (size_t i = 0; i < threads; i++) {
        size_t begin = units * i / threads * UNIT, end = units * (i + 1) / threads * UNIT;
        if (end > m) end = m;
        keel_operand part = a;
        part.data += a.transposed ? begin : begin * a.stride;
        if (end > begin) multiply(end - begin, n, k, part, b, accumulate, c + begin * stride, stride);
    }
}
