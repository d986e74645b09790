#include "train/model/position.h"

#include <math.h>

void keel_position_plan(const keel_context *context, keel_arena *arena, keel_position *position) {
    if (context->gpt2) return;
    size_t n = context->seq * (context->head_size / 2);
    position->cosine = keel_arena_take(arena, n);
    position->sine = keel_arena_take(arena, n);
}

void keel_position_init(const keel_context *context, keel_position *position) {
    size_t half = context->head_size / 2;
    for (size_t t = 0; position->cosine && t < context->seq; t++)
        for (size_t i = 0; i < half; i++) {
            double angle = (double)t * pow(context->theta, -2.0 * (double)i / (double)context->head_size);
            position->cosine[t * half + i] = (float)cos(angle);
            position->sine[t * half + i] = (float)sin(angle);
        }
}
