// Products of groups of rows, each with a matrix of its own: what a layer's experts compute.
#ifndef KEEL_TRAIN_TENSOR_GROUPED_H
#define KEEL_TRAIN_TENSOR_GROUPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct keel_group { // rows [first, first + rows) of the arrays; 0 rows are fine
    uint32_t first, rows;
} keel_group;

// Y [.., n] = X [.., k] op(W_g) for the rows of every group g; W_g is the g-th of [count, n, k] if TRANSPOSED, else of
// [count, k, n]. All groups' pieces of rows are shared out over the threads of OpenMP; one group is a keel_gemm.
void keel_grouped_rows(const keel_group *groups, size_t count, size_t n, size_t k, const float *x, const float *w,
                       bool transposed, float *y);
// DW_g [n, k] = (rows of DY [.., n])^T (rows of X [.., k]), of [count, n, k]; zeros for a group without rows.
void keel_grouped_weights(const keel_group *groups, size_t count, size_t n, size_t k, const float *dy, const float *x,
                          float *dw);

#endif
