#include "train/model/experts.h"

#include <string.h>

#include "train/model/exchange.h"

// Only a product of all experts together has rows for experts without tokens.
static bool pads(const keel_context *context) {
    return context->moe.use_gmm && context->moe.enable_gmm_safe_tokens;
}

static size_t most_rows(const keel_context *context) {
    return keel_exchange_most_rows(context) + (pads(context) ? context->local_experts : 0);
}

void keel_experts_plan_groups(const keel_context *context, keel_arena *arena, keel_experts *experts) {
    experts->groups = (keel_group *)keel_arena_take(arena, context->local_experts * sizeof(keel_group) / sizeof(float));
}

void keel_experts_plan_rows(const keel_context *context, keel_arena *arena, keel_experts *experts) {
    const size_t most = most_rows(context);
    experts->in = keel_arena_take(arena, most * context->hidden);
    experts->out = keel_arena_take(arena, most * context->hidden);
    keel_mlp_plan_up(context, arena, most, &experts->mlp.state);
}

void keel_experts_plan_act(const keel_context *context, keel_arena *arena, keel_experts *experts) {
    keel_mlp_plan_act(context, arena, most_rows(context), &experts->mlp.state);
}

void keel_experts_plan_scratch(const keel_context *context, keel_arena *arena, keel_experts_scratch *scratch) {
    const size_t most = most_rows(context);
    scratch->dout = keel_arena_take(arena, most * context->hidden);
    scratch->din = keel_arena_take(arena, most * context->hidden);
    scratch->dact = keel_arena_take(arena, most * context->intermediate);
    scratch->dup = keel_arena_take(arena, most * context->up_size);
}

void keel_experts_begin(const keel_context *context, const uint32_t *counts, keel_experts *experts) {
    uint32_t rows = 0, padding = 0;
    for (size_t e = 0; e < context->local_experts; e++) {
        experts->groups[e] = (keel_group){.first = rows, .rows = counts[e]};
        rows += counts[e];
    }
    for (size_t e = 0; e < context->local_experts && pads(context); e++)
        if (!counts[e]) experts->groups[e] = (keel_group){.first = rows + padding++, .rows = 1};
    experts->rows = rows;
    experts->padding = padding;
}

// Experts that are worked on together, from FIRST on, and their rows without padding.
typedef struct span {
    size_t first, count;
    size_t begin, rows;
} span;

static span span_at(const keel_context *context, const keel_experts *experts, size_t first) {
    const keel_group *group = &experts->groups[first];
    if (context->moe.use_gmm) return (span){first, context->local_experts, 0, experts->rows};
    return (span){first, 1, group->first, group->rows};
}

static void round_rows(const keel_context *context, float *rows, size_t count) {
    const size_t c = context->hidden;
    const keel_precision compute = context->formats.compute;
    if (compute == KEEL_FLOAT32) return;
#pragma omp parallel for schedule(static) num_threads(context->threads)
    for (size_t r = 0; r < count; r++) keel_round(compute, rows + r * c, c);
}

static void clear_padding(const keel_experts *experts, float *rows, size_t width) {
    memset(rows + experts->rows * width, 0, experts->padding * width * sizeof *rows);
}

// Where the matrix of EXPERT begins in the flat buffers.
static size_t matrix(const keel_linear *linear, size_t expert) {
    return linear->weight + expert * linear->in * linear->out;
}

static void span_forward(const keel_context *context, const keel_experts *experts, const span *s) {
    const size_t c = context->hidden, f = context->intermediate, u = context->up_size;
    const keel_mlp_layer *mlp = &experts->mlp;
    const keel_group *groups = experts->groups + s->first;
    const float *up = context->weights + matrix(mlp->up, s->first);
    const float *down = context->weights + matrix(experts->down, s->first);
    keel_grouped_rows(groups, s->count, u, c, experts->in, up, true, mlp->state.up);
    keel_lap(context, KEEL_PART_PRODUCTS);
    keel_mlp_activate_rows(context, mlp, s->begin, s->rows);
    keel_grouped_rows(groups, s->count, c, f, mlp->state.act, down, true, experts->out);
    keel_lap(context, KEEL_PART_PRODUCTS);
}

void keel_experts_forward(const keel_context *context, const keel_experts *experts) {
    clear_padding(experts, experts->in, context->hidden);
    clear_padding(experts, experts->mlp.state.act, context->intermediate);
    keel_mlp_activate_begin(&experts->mlp);
    for (size_t e = 0; e < context->local_experts;) {
        const span s = span_at(context, experts, e);
        span_forward(context, experts, &s);
        e += s.count;
    }
    keel_mlp_activate_end(&experts->mlp);
    round_rows(context, experts->out, experts->rows);
}

// Without a bias the first half of the activation changes nothing that it has done before.
void keel_experts_act(const keel_context *context, const keel_experts *experts) {
    clear_padding(experts, experts->mlp.state.act, context->intermediate);
    keel_mlp_activate_begin(&experts->mlp);
    for (size_t e = 0; e < context->local_experts;) {
        const span s = span_at(context, experts, e);
        keel_mlp_activate_rows(context, &experts->mlp, s.begin, s.rows);
        e += s.count;
    }
    keel_mlp_activate_end(&experts->mlp);
}

static void span_backward(const keel_context *context, const keel_experts *experts, const keel_experts_scratch *scratch,
                          const span *s) {
    const size_t c = context->hidden, f = context->intermediate, u = context->up_size;
    const keel_mlp_layer *mlp = &experts->mlp;
    const keel_group *groups = experts->groups + s->first;
    const size_t up = matrix(mlp->up, s->first), down = matrix(experts->down, s->first);
    keel_grouped_weights(groups, s->count, c, f, scratch->dout, mlp->state.act, context->grad + down);
    keel_grouped_rows(groups, s->count, f, c, scratch->dout, context->weights + down, false, scratch->dact);
    keel_lap(context, KEEL_PART_PRODUCTS);
    keel_mlp_activate_backward_rows(context, mlp, scratch->dact, scratch->dup, s->begin, s->rows);
    keel_grouped_weights(groups, s->count, u, c, scratch->dup, experts->in, context->grad + up);
    keel_grouped_rows(groups, s->count, c, u, scratch->dup, context->weights + up, false, scratch->din);
    keel_lap(context, KEEL_PART_PRODUCTS);
}

void keel_experts_backward(const keel_context *context, const keel_experts *experts,
                           const keel_experts_scratch *scratch) {
    round_rows(context, scratch->dout, experts->rows);
    clear_padding(experts, scratch->dout, context->hidden);
    clear_padding(experts, scratch->dup, context->up_size);
    keel_mlp_activate_backward_begin(&experts->mlp);
    for (size_t e = 0; e < context->local_experts;) {
        const span s = span_at(context, experts, e);
        span_backward(context, experts, scratch, &s);
        e += s.count;
    }
    keel_mlp_activate_backward_end(&experts->mlp);
}
