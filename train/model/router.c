#include "train/model/router.h"

#include <math.h>
#include <string.h>

#include "train/tensor/gemm.h"
#include "train/tensor/ops.h"

void keel_router_plan_state(const keel_context *context, keel_arena *arena, keel_router_state *state) {
    const size_t n = context->rows, k = context->chosen;
    state->probs = keel_arena_take(arena, n * context->experts);
    state->logsumexp = keel_arena_take(arena, n);
    state->chosen = (uint32_t *)keel_arena_take(arena, n * k);
    state->weights = keel_arena_take(arena, n * k);
    state->routed = (double *)keel_arena_take(arena, 2 * keel_routed_count(context));
}

static bool among(const uint32_t *chosen, size_t count, uint32_t expert) {
    for (size_t j = 0; j < count; j++)
        if (chosen[j] == expert) return true;
    return false;
}

// The K greatest of PROBS [E], distinct whatever the numbers are.
static void choose(const float *probs, size_t experts, size_t k, uint32_t *chosen) {
    for (size_t j = 0; j < k; j++) {
        uint32_t best = 0;
        while (among(chosen, j, best)) best++;
        for (uint32_t e = best + 1; e < experts; e++)
            if (probs[e] > probs[best] && !among(chosen, j, e)) best = e;
        chosen[j] = best;
    }
}

// Of one token: logits become probabilities.
static void route(const keel_context *context, const keel_router_state *s, size_t row) {
    const size_t experts = context->experts, k = context->chosen;
    float *probs = s->probs + row * experts, *weights = s->weights + row * k;
    uint32_t *chosen = s->chosen + row * k;
    const float greatest = keel_row_max(probs, experts);
    const double total = keel_row_exp(probs, experts, 1, greatest);
    s->logsumexp[row] = (float)((double)greatest + log(total));
    keel_scale(probs, (float)(1 / total), experts);
    choose(probs, experts, k, chosen);
    float sum = 0;
    for (size_t j = 0; j < k; j++) sum += weights[j] = probs[chosen[j]];
    for (size_t j = 0; j < k && context->moe.norm_topk_prob; j++) weights[j] /= sum;
}

// Token by token, so that no sum depends on threads.
static void add_up(const keel_context *context, const keel_router_state *s) {
    const size_t experts = context->experts, k = context->chosen;
    double *load = keel_routed_load(s->routed), *probability = keel_routed_probability(context, s->routed), z = 0;
    memset(s->routed, 0, keel_routed_count(context) * sizeof *s->routed);
    for (size_t row = 0; row < context->rows; row++) {
        for (size_t e = 0; e < experts; e++) probability[e] += (double)s->probs[row * experts + e];
        for (size_t j = 0; j < k; j++) load[s->chosen[row * k + j]]++;
        z += (double)s->logsumexp[row] * (double)s->logsumexp[row];
    }
    s->routed[KEEL_ROUTED_Z] = z;
}

void keel_router_forward(const keel_context *context, const keel_router *router, const float *x) {
    const keel_router_state *s = &router->state;
    const size_t experts = context->experts;
    keel_linear_forward(context, router->linear, context->rows, x, s->probs);
    keel_tap_begin(router->tap);
#pragma omp parallel num_threads(context->threads)
    {
        const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            const size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b);
            keel_tap_piece(router->tap, thread, s->probs + begin * experts, begin * experts, rows * experts);
            for (size_t row = begin; row < begin + rows; row++) route(context, s, row);
        }
    }
    keel_tap_end(router->tap);
    add_up(context, s);
    keel_lap(context, KEEL_PART_ROUTING);
}

// Factors of the losses' gradients by one token's p and logsumexp: the sum over tokens of all ranks, of which the loss
// is the mean, is what SCALE belongs to.
typedef struct factors {
    float z;
    double balance, assignments;
} factors;

static factors factors_of(const keel_context *context) {
    const keel_moe_config *moe = &context->moe;
    return (factors){.z = (float)(2 * moe->z_loss_factor * context->scale),
                     .balance = moe->aux_loss_factor * context->scale * (double)context->experts,
                     .assignments = (double)(context->rows * context->chosen) * context->mesh->dp};
}

// Of one token: DLOGITS [E].
static void route_backward(const keel_context *context, const keel_router_state *s, const factors *by, size_t row,
                           const float *dweights, float *dlogits) {
    const size_t experts = context->experts, k = context->chosen;
    const float *probs = s->probs + row * experts, *weights = s->weights + row * k;
    const uint32_t *chosen = s->chosen + row * k;
    const double *load = keel_routed_load(s->routed);
    const bool norm = context->moe.norm_topk_prob;
    float sum = 0, dot = 0, inner = 0;
    for (size_t j = 0; j < k; j++) {
        sum += probs[chosen[j]];
        dot += weights[j] * dweights[j];
    }
    for (size_t e = 0; e < experts; e++) dlogits[e] = (float)(by->balance * (load[e] / by->assignments));
    for (size_t j = 0; j < k; j++) dlogits[chosen[j]] += norm ? (dweights[j] - dot) / sum : dweights[j];
    for (size_t e = 0; e < experts; e++) inner += probs[e] * dlogits[e];
    const float z = by->z * s->logsumexp[row];
    for (size_t e = 0; e < experts; e++) dlogits[e] = probs[e] * (dlogits[e] - inner + z);
}

void keel_router_backward(const keel_context *context, const keel_router *router, const float *x, const float *dweights,
                          float *dlogits, float *dx) {
    const keel_router_state *s = &router->state;
    const size_t experts = context->experts, k = context->chosen, n = context->rows;
    const keel_linear *linear = router->linear;
    const factors by = factors_of(context);
    keel_tap_begin(router->grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            const size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b);
            for (size_t row = begin; row < begin + rows; row++)
                route_backward(context, s, &by, row, dweights + row * k, dlogits + row * experts);
            keel_tap_piece(router->grad_tap, thread, dlogits + begin * experts, begin * experts, rows * experts);
        }
    }
    keel_tap_end(router->grad_tap);
    keel_linear_backward_weight(context, linear, n, x, dlogits, false);
    // Every tensor rank has it whole: one of them adds it to the sum over them.
    if (context->mesh->model_parallel.rank == 0)
        keel_gemm(n, context->hidden, experts, (keel_operand){dlogits, experts, false},
                  (keel_operand){context->weights + linear->weight, context->hidden, false}, true, dx, context->hidden);
    keel_lap(context, KEEL_PART_ROUTING);
}
