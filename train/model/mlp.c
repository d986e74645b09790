#include "train/model/mlp.h"

#include <string.h>

#include "train/tensor/ops.h"

void keel_mlp_plan_state(const keel_context *context, keel_arena *arena, keel_mlp_state *state) {
    state->up = keel_arena_take(arena, context->rows * context->up_size);
    state->act = keel_arena_take(arena, context->rows * context->intermediate);
}

void keel_mlp_activate(const keel_context *context, const keel_mlp_layer *layer) {
    size_t f = context->intermediate, u = context->up_size;
    float *up = layer->state.up, *act = layer->state.act;
    const float *bias = keel_linear_bias(context, layer->up);
    const keel_precision compute = context->formats.compute;
    keel_tap_begin(layer->up_tap);
    keel_tap_begin(layer->act_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b);
            float *x = up + begin * u, *y = act + begin * f;
            if (bias) keel_add_bias(x, bias, rows, u);
            keel_round(compute, x, rows * u);
            keel_tap_piece(layer->up_tap, thread, x, begin * u, rows * u);
            if (context->gpt2) keel_gelu(y, x, rows * f);
            for (size_t r = 0; !context->gpt2 && r < rows; r++) keel_swiglu(y + r * f, x + r * u, x + r * u + f, f);
            keel_round(compute, y, rows * f);
            keel_tap_piece(layer->act_tap, thread, y, begin * f, rows * f);
        }
    }
    keel_tap_end(layer->up_tap);
    keel_tap_end(layer->act_tap);
    keel_lap(context, KEEL_PART_ACTIVATION);
}

void keel_mlp_activate_backward(const keel_context *context, const keel_mlp_layer *layer, float *dact, float *dup) {
    size_t f = context->intermediate, u = context->up_size;
    const float *up = layer->state.up;
    float *partial = keel_context_partial(context, 0);
    bool has_bias = layer->up->bias != KEEL_NO_PARAM;
    const keel_precision compute = context->formats.compute;
    keel_tap_begin(layer->act_grad_tap);
    keel_tap_begin(layer->up_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b);
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
    keel_tap_end(layer->act_grad_tap);
    keel_tap_end(layer->up_grad_tap);
    if (has_bias) keel_context_sum_partials(context, partial, u, context->grad + layer->up->bias);
    keel_lap(context, KEEL_PART_ACTIVATION);
}
