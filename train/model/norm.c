#include "train/model/norm.h"

#include <string.h>

#include "train/model/crossing.h"
#include "train/tensor/ops.h"
#include "train/tensor/rounded_ops.h"

void keel_join_plan_norm(const keel_context *context, keel_arena *arena, keel_join_state *state) {
    state->normed = keel_arena_take(arena, context->rows * context->hidden);
    state->mean = keel_arena_take(arena, context->own_rows);
    state->rstd = keel_arena_take(arena, context->own_rows);
}

void keel_join_plan(const keel_context *context, keel_arena *arena, keel_join *join) {
    if (!join->norm) return;
    if (!join->from_below) join->state.stream = keel_arena_take(arena, context->own_rows * context->hidden);
    keel_join_plan_norm(context, arena, &join->state);
}

void keel_join_norm(const keel_context *context, const keel_join *join, int thread, size_t begin, size_t rows) {
    size_t c = context->hidden, at = begin * c;
    const keel_join_state *s = &join->state;
    float *normed = keel_context_own(context, s->normed) + at;
    const float *weight = context->weights + join->norm->weight;
    const float *bias = join->norm->bias == KEEL_NO_PARAM ? NULL : context->weights + join->norm->bias;
    if (context->formats.norm != KEEL_FLOAT32)
        keel_norm_rounded(context->formats.norm, normed, s->stream + at, weight, bias, context->norm_eps,
                          s->mean + begin, s->rstd + begin, rows, c);
    else if (!bias)
        keel_rms_norm(normed, s->stream + at, weight, context->norm_eps, s->rstd + begin, rows, c);
    else
        keel_layer_norm(normed, s->stream + at, weight, bias, context->norm_eps, s->mean + begin, s->rstd + begin, rows,
                        c);
    keel_round(join->taken_as, normed, rows * c);
    keel_tap_piece(join->norm_tap, thread, normed, at, rows * c);
}

void keel_join_enter(const keel_context *context, const keel_join *join) {
    keel_tap_begin(join->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->own_blocks; b++)
            keel_join_norm(context, join, thread, keel_block_begin_row(b), keel_own_block_rows(context, b));
    }
    keel_tap_end(join->norm_tap);
    keel_lap(context, KEEL_PART_NORM);
}

void keel_join_forward(const keel_context *context, const keel_join *join, float *branch, const float *stream_in) {
    size_t c = context->hidden;
    const float *bias = keel_linear_bias(context, join->branch);
    const keel_precision compute = context->formats.compute;
    float *own = keel_context_own(context, branch);
    keel_tap_begin(join->branch_tap);
    keel_tap_begin(join->stream_tap);
    keel_tap_begin(join->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->own_blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_own_block_rows(context, b), at = begin * c,
                   n = rows * c;
            if (bias) keel_add_bias(own + at, bias, rows, c);
            keel_round(compute, own + at, n);
            keel_tap_piece(join->branch_tap, thread, own + at, at, n);
            keel_add_to(join->state.stream + at, stream_in + at, own + at, n);
            keel_round(compute, join->state.stream + at, n);
            keel_tap_piece(join->stream_tap, thread, join->state.stream + at, at, n);
            if (join->norm) keel_join_norm(context, join, thread, begin, rows);
        }
    }
    keel_tap_end(join->branch_tap);
    keel_tap_end(join->stream_tap);
    keel_tap_end(join->norm_tap);
    keel_lap(context, KEEL_PART_NORM);
}

// The part of block B: DSTREAM += the gradient by the norm's input, and the block's share of its parameters' gradients.
static void norm_backward(const keel_context *context, const keel_join *join, size_t b, const float *dnormed,
                          float *dstream) {
    size_t c = context->hidden, begin = keel_block_begin_row(b), rows = keel_own_block_rows(context, b), at = begin * c;
    const keel_norm *norm = join->norm;
    const keel_join_state *s = &join->state;
    const keel_precision precision = context->formats.norm;
    const float *weight = context->weights + norm->weight;
    float *dweight = keel_context_partial(context, 0) + b * c;
    float *dbias = norm->bias == KEEL_NO_PARAM ? NULL : keel_context_partial(context, 1) + b * c;
    memset(dweight, 0, c * sizeof(float));
    if (dbias) memset(dbias, 0, c * sizeof(float));
    if (precision != KEEL_FLOAT32)
        keel_norm_rounded_backward(precision, dstream + at, dweight, dbias, dnormed + at, s->stream + at, weight,
                                   s->mean + begin, s->rstd + begin, rows, c);
    else if (!dbias)
        keel_rms_norm_backward(dstream + at, dweight, dnormed + at, s->stream + at, weight, s->rstd + begin, rows, c);
    else
        keel_layer_norm_backward(dstream + at, dweight, dbias, dnormed + at, s->stream + at, weight, s->mean + begin,
                                 s->rstd + begin, rows, c);
}

// Of the rank's rows: the sums of the blocks' shares become the gradients, or this rank's part of them.
static void sum_vectors(const keel_context *context, const keel_join *join) {
    const size_t c = context->hidden, none = KEEL_NO_PARAM;
    const size_t places[KEEL_JOIN_VECTORS] = {join->norm ? join->norm->weight : none,
                                              join->norm ? join->norm->bias : none,
                                              join->branch ? join->branch->bias : none};
    for (size_t k = 0; k < KEEL_JOIN_VECTORS; k++) {
        float *vector = join->vectors ? context->vectors + k * c : context->grad + places[k];
        if (places[k] != none)
            keel_context_sum_partials(context, keel_context_partial(context, k), context->own_blocks, c, vector);
    }
    keel_cross(context, join->vectors, context->vectors);
    for (size_t k = 0; join->vectors && k < KEEL_JOIN_VECTORS; k++)
        if (places[k] != none) memcpy(context->grad + places[k], context->vectors + k * c, c * sizeof(float));
}

void keel_join_backward(const keel_context *context, const keel_join *join, float *dnormed, float *dstream,
                        bool first) {
    size_t c = context->hidden;
    const keel_norm *norm = join->norm;
    const keel_formats *formats = &context->formats;
    bool has_bias = join->branch && join->branch->bias != KEEL_NO_PARAM;
    float *dbranch = keel_context_partial(context, 2);
    if (norm) dnormed = keel_context_own(context, dnormed);
    keel_tap_begin(join->norm_grad_tap);
    keel_tap_begin(join->stream_grad_tap);
    keel_tap_begin(join->branch_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->own_blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_own_block_rows(context, b), at = begin * c,
                   n = rows * c;
            if (first) memset(dstream + at, 0, n * sizeof(float));
            if (norm) {
                keel_tap_piece(join->norm_grad_tap, thread, dnormed + at, at, n);
                keel_round(join->taken_as, dnormed + at, n);
                norm_backward(context, join, b, dnormed, dstream);
            }
            keel_tap_piece(join->stream_grad_tap, thread, dstream + at, at, n);
            keel_tap_piece(join->branch_grad_tap, thread, dstream + at, at, n);
            if (!join->from_below) keel_round(formats->compute, dstream + at, n);
            if (has_bias) {
                memset(dbranch + b * c, 0, c * sizeof(float));
                keel_add_rows(dbranch + b * c, dstream + at, rows, c);
            }
        }
    }
    keel_tap_end(join->norm_grad_tap);
    keel_tap_end(join->stream_grad_tap);
    keel_tap_end(join->branch_grad_tap);
    sum_vectors(context, join);
    keel_lap(context, KEEL_PART_NORM);
}
