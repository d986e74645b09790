#include "train/model/norm.h"

#include <string.h>

#include "train/tensor/ops.h"
#include "train/tensor/rounded_ops.h"

void keel_join_plan_norm(const keel_context *context, keel_arena *arena, keel_join_state *state) {
    state->normed = keel_arena_take(arena, context->rows * context->hidden);
    state->mean = keel_arena_take(arena, context->rows);
    state->rstd = keel_arena_take(arena, context->rows);
}

void keel_join_plan(const keel_context *context, keel_arena *arena, keel_join *join) {
    if (!join->norm) return;
    if (!join->from_below) join->state.stream = keel_arena_take(arena, context->rows * context->hidden);
    keel_join_plan_norm(context, arena, &join->state);
}

void keel_join_norm(const keel_context *context, const keel_join *join, int thread, size_t begin, size_t rows) {
    size_t c = context->hidden, at = begin * c;
    const keel_join_state *s = &join->state;
    const float *weight = context->weights + join->norm->weight;
    const float *bias = join->norm->bias == KEEL_NO_PARAM ? NULL : context->weights + join->norm->bias;
    if (context->formats.norm != KEEL_FLOAT32)
        keel_norm_rounded(context->formats.norm, s->normed + at, s->stream + at, weight, bias, context->norm_eps,
                          s->mean + begin, s->rstd + begin, rows, c);
    else if (!bias)
        keel_rms_norm(s->normed + at, s->stream + at, weight, context->norm_eps, s->rstd + begin, rows, c);
    else
        keel_layer_norm(s->normed + at, s->stream + at, weight, bias, context->norm_eps, s->mean + begin,
                        s->rstd + begin, rows, c);
    keel_round(join->taken_as, s->normed + at, rows * c);
    keel_tap_piece(join->norm_tap, thread, s->normed + at, at, rows * c);
}

void keel_join_enter(const keel_context *context, const keel_join *join) {
    keel_tap_begin(join->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++)
            keel_join_norm(context, join, thread, keel_block_begin_row(b), keel_block_rows(context, b));
    }
    keel_tap_end(join->norm_tap);
    keel_lap(context, KEEL_PART_NORM);
}

void keel_join_forward(const keel_context *context, const keel_join *join, float *branch, const float *stream_in) {
    size_t c = context->hidden;
    const float *bias = keel_linear_bias(context, join->branch);
    const keel_precision compute = context->formats.compute;
    keel_tap_begin(join->branch_tap);
    keel_tap_begin(join->stream_tap);
    keel_tap_begin(join->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * c, n = rows * c;
            if (bias) keel_add_bias(branch + at, bias, rows, c);
            keel_round(compute, branch + at, n);
            keel_tap_piece(join->branch_tap, thread, branch + at, at, n);
            keel_add_to(join->state.stream + at, stream_in + at, branch + at, n);
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
    size_t c = context->hidden, begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * c;
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

void keel_join_backward(const keel_context *context, const keel_join *join, float *dnormed, float *dstream,
                        bool first) {
    size_t c = context->hidden;
    const keel_norm *norm = join->norm;
    const keel_formats *formats = &context->formats;
    bool has_bias = join->branch && join->branch->bias != KEEL_NO_PARAM;
    float *dbranch = keel_context_partial(context, 2);
    keel_tap_begin(join->norm_grad_tap);
    keel_tap_begin(join->stream_grad_tap);
    keel_tap_begin(join->branch_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * c, n = rows * c;
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
    if (norm) keel_context_sum_partials(context, keel_context_partial(context, 0), c, context->grad + norm->weight);
    if (norm && norm->bias != KEEL_NO_PARAM)
        keel_context_sum_partials(context, keel_context_partial(context, 1), c, context->grad + norm->bias);
    if (has_bias) keel_context_sum_partials(context, dbranch, c, context->grad + join->branch->bias);
    keel_lap(context, KEEL_PART_NORM);
}
