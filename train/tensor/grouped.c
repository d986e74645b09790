#include "train/tensor/grouped.h"

#include <omp.h>
#include <string.h>

#include "train/tensor/gemm.h"

// Rows of a product that one thread computes: enough for BLAS to be fast, and few enough to share groups out evenly.
enum { PIECE = 256 };

static size_t pieces_of(size_t rows) {
    return (rows + PIECE - 1) / PIECE;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

void keel_grouped_rows(const keel_group *groups, size_t count, size_t n, size_t k, const float *x, const float *w,
                       bool transposed, float *y) {
    const size_t stride = transposed ? k : n;
    if (count == 1) {
        if (groups->rows)
            keel_gemm(groups->rows, n, k, (keel_operand){x + groups->first * k, k, false},
                      (keel_operand){w, stride, transposed}, false, y + groups->first * n, n);
        return;
    }
#pragma omp parallel
    {
        const size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        size_t turn = 0;
        for (size_t g = 0; g < count; g++)
            for (size_t p = 0; p < pieces_of(groups[g].rows); p++) {
                if (turn++ % threads != thread) continue;
                const size_t first = groups[g].first + p * PIECE;
                keel_gemm(least(PIECE, groups[g].rows - p * PIECE), n, k, (keel_operand){x + first * k, k, false},
                          (keel_operand){w + g * n * k, stride, transposed}, false, y + first * n, n);
            }
    }
}

void keel_grouped_weights(const keel_group *groups, size_t count, size_t n, size_t k, const float *dy, const float *x,
                          float *dw) {
    if (count == 1 && groups->rows) {
        keel_gemm(n, k, groups->rows, (keel_operand){dy + groups->first * n, n, true},
                  (keel_operand){x + groups->first * k, k, false}, false, dw, k);
        return;
    }
#pragma omp parallel
    {
        const size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        size_t turn = 0;
        for (size_t g = 0; g < count; g++)
            for (size_t p = 0; p < pieces_of(n); p++) {
                if (turn++ % threads != thread) continue;
                const size_t begin = p * PIECE, rows = least(PIECE, n - begin), first = groups[g].first;
                float *out = dw + (g * n + begin) * k;
                if (!groups[g].rows)
                    memset(out, 0, rows * k * sizeof *out);
                else
                    keel_gemm(rows, k, groups[g].rows, (keel_operand){dy + first * n + begin, n, true},
                              (keel_operand){x + first * k, k, false}, false, out, k);
            }
    }
}
