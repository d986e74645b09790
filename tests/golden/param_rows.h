// Rows of a whole parameter and what a rank holds of them, one by one.
#ifndef KEEL_TESTS_PARAM_ROWS_H
#define KEEL_TESTS_PARAM_ROWS_H

#include <string.h>

#include "train/model/param.h"

// The rows that PIECE and [ROW, ROW + ROWS) of the whole have in common: *SKIP is the first of them within the piece.
static inline size_t param_common_rows(const keel_piece *piece, size_t row, size_t rows, size_t *skip) {
    const size_t begin = piece->row > row ? piece->row : row;
    const size_t end = piece->row + piece->rows < row + rows ? piece->row + piece->rows : row + rows;
    *skip = begin - piece->row;
    return begin < end ? end - begin : 0;
}

// Between rows [ROW, ROW + ROWS) of the whole parameter, WHOLE [ROWS, cols], and what this rank holds of them in FLAT,
// a buffer of the weights' layout. What it does not hold is left alone.
static inline void param_rows_take(const keel_param *param, float *flat, const float *whole, size_t row, size_t rows) {
    const size_t cols = keel_param_cols(param);
    for (size_t i = 0; i < param->piece_count; i++) {
        const keel_piece *p = &param->pieces[i];
        size_t skip;
        const size_t n = param_common_rows(p, row, rows, &skip);
        for (size_t r = skip; r < skip + n; r++)
            memcpy(flat + param->offset + p->local_offset + r * p->local_stride,
                   whole + (p->row + r - row) * cols + p->col, p->cols * sizeof *whole);
    }
}

static inline void param_rows_give(const keel_param *param, const float *flat, float *whole, size_t row, size_t rows) {
    const size_t cols = keel_param_cols(param);
    for (size_t i = 0; i < param->piece_count; i++) {
        const keel_piece *p = &param->pieces[i];
        size_t skip;
        const size_t n = param_common_rows(p, row, rows, &skip);
        for (size_t r = skip; r < skip + n; r++)
            memcpy(whole + (p->row + r - row) * cols + p->col,
                   flat + param->offset + p->local_offset + r * p->local_stride, p->cols * sizeof *whole);
    }
}

#endif
