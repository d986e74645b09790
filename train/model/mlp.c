#include "train/model/mlp.h"

#include <string.h>

#include "train/tensor/ops.h"

void keel_mlp_plan_up(const keel_context *context, keel_arena *arena, size_t rows, keel_mlp_state *state) {
    state->up = keel_arena_take(arena, rows * context->up_size);
}

void keel_mlp_plan_act(const keel_context *context, keel_arena *arena, size_t rows, keel_mlp_state *state) {
    state->act = keel_arena_take(arena, rows * context->intermediate);
}

static size_t blocks_of(size_t rows) {
    return (rows + KEEL_BLOCK_ROWS - 1) / KEEL_BLOCK_ROWS;
}

// Rows of the block that is BEFORE rows behind the first of ROWS.
static size_t block_rows(size_t rows, size_t before) {
    return rows - before < KEEL_BLOCK_ROWS ? rows - before : KEEL_BLOCK_ROWS;
}

void keel_mlp_activate_begin(const keel_mlp_layer *layer) {
    keel_tap_begin(layer->up_tap);
    keel_tap_begin(layer->act_tap);
}

// Rows [BEGIN, BEGIN + ROWS) of what the function gives.
static void act(const keel_context *context, const keel_mlp_layer *layer, int thread, size_t begin, size_t rows) {
    size_t f = context->intermediate, u = context->up_size;
    const float *x = layer->state.up + begin * u;
    float *y = layer->state.act + begin * f;
    if (context->gpt2) keel_gelu(y, x, rows * f);
    for (size_t r = 0; !context->gpt2 && r < rows; r++) keel_swiglu(y + r * f, x + r * u, x + r * u + f, f);
    keel_round(context->formats.compute, y, rows * f);
    keel_tap_piece(layer->act_tap, thread, y, begin * f, rows * f);
}

void keel_mlp_activate_rows(const keel_context *context, const keel_mlp_layer *layer, size_t first, size_t count) {
    size_t u = context->up_size;
    float *up = layer->state.up;
    const float *bias = keel_linear_bias(context, layer->up);
    const keel_precision compute = context->formats.compute;
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < blocks_of(count); b++) {
            size_t before = b * KEEL_BLOCK_ROWS, begin = first + before, rows = block_rows(count, before);
            float *x = up + begin * u;
            if (bias) keel_add_bias(x, bias, rows, u);
            keel_round(compute, x, rows * u);
            keel_tap_piece(layer->up_tap, thread, x, begin * u, rows * u);
            act(context, layer, thread, begin, rows);
        }
    }
    keel_lap(context, KEEL_PART_ACTIVATION);
}

void keel_mlp_activate_end(const keel_mlp_layer *layer) {
    keel_tap_end(layer->up_tap);
    keel_tap_end(layer->act_tap);
}

void keel_mlp_activate(const keel_context *context, const keel_mlp_layer *layer) {
    keel_mlp_activate_begin(layer);
    keel_mlp_activate_rows(context, layer, 0, context->rows);
    keel_mlp_activate_end(layer);
    keel_lap(context, KEEL_PART_ACTIVATION);
}

void keel_mlp_act(const keel_context *context, const keel_mlp_layer *layer) {
    keel_tap_begin(layer->act_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++)
            act(context, layer, thread, keel_block_begin_row(b), keel_block_rows(context, b));
    }
    keel_tap_end(layer->act_tap);
    keel_lap(context, KEEL_PART_ACTIVATION);
}

void keel_mlp_activate_backward_begin(const keel_mlp_layer *layer) {
    keel_tap_begin(layer->act_grad_tap);
    keel_tap_begin(layer->up_grad_tap);
}

void keel_mlp_activate_backward_rows(const keel_context *context, const keel_mlp_layer *layer, float *dact, float *dup,
                                     size_t first, size_t count) {
    size_t f = context->intermediate, u = context->up_size;
    const float *up = layer->state.up;
    float *partial = keel_context_partial(context, 0);
    bool has_bias = layer->up->bias != KEEL_NO_PARAM;
    const keel_precision compute = context->formats.compute;
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < blocks_of(count); b++) {
            size_t before = b * KEEL_BLOCK_ROWS, begin = first + before, rows = block_rows(count, before);
            const float *x = up + begin * u;
            float *dy = dact + begin * f, *dx = dup + begin * u;
            keel_tap_piece(layer->act_grad_tap, thread, dy, begin * f, rows * f);
            keel_round(compute, dy, rows * f);
            if (context->gpt2) keel_gelu_backward(dx, dy, x, rows * f);
            for (size_t r = 0; !context->gpt2 && r < rows; r++)
                keel_swiglu_backward(dx + r * u, dx + r * u + f, dy + r * f, x + r * u, x + r * u + f, f);
            keel_tap_piece(layer->up_grad_tap, thread, dx, begin * u, rows * u);
            keel_round(compute, dx, rows * u);
            if (has_bias) {
                memset(partial + b * u, 0, u * sizeof(float));
                keel_add_rows(partial + b * u, dx, rows, u);
            }
        }
    }
    keel_lap(context, KEEL_PART_ACTIVATION);
}

void keel_mlp_activate_backward_end(const keel_mlp_layer *layer) {
    keel_tap_end(layer->act_grad_tap);
    keel_tap_end(layer->up_grad_tap);
}

void keel_mlp_activate_backward(const keel_context *context, const keel_mlp_layer *layer, float *dact, float *dup) {
    const float *partial = keel_context_partial(context, 0);
    keel_mlp_activate_backward_begin(layer);
    keel_mlp_activate_backward_rows(context, layer, dact, dup, 0, context->rows);
    keel_mlp_activate_backward_end(layer);
    if (layer->up->bias != KEEL_NO_PARAM)
        keel_context_sum_partials(context, partial, context->blocks, context->up_size, context->grad + layer->up->bias);
    keel_lap(context, KEEL_PART_ACTIVATION);
}
