#include "train/model/moe.h"

#include <math.h>
#include <stdio.h>

static bool all_here(const keel_context *context) {
    return context->mesh->expert_parallel.size == 1;
}

void keel_moe_plan(const keel_context *context, keel_arena *arena, keel_moe *moe) {
    const size_t assignments = context->rows * context->chosen;
    keel_experts_plan_scratch(context, arena, &moe->experts);
    keel_exchange_plan_scratch(context, arena, &moe->exchange);
    moe->sent = all_here(context) ? NULL : keel_arena_take(arena, keel_dispatch_most_rows(context) * context->hidden);
    moe->halfway = context->moe.use_fused_ops_permute ? NULL : keel_arena_take(arena, assignments * context->hidden);
    moe->dweights = keel_arena_take(arena, assignments);
    moe->dlogits = keel_arena_take(arena, context->rows * context->experts);
    moe->next = (uint32_t *)keel_arena_take(arena, context->experts);
    moe->load = keel_arena_take(arena, context->experts);
}

void keel_moe_plan_layer(const keel_context *context, keel_arena *arena, keel_moe_layer *layer) {
    keel_router_plan_state(context, arena, &layer->router.state);
    keel_dispatch_plan(context, arena, &layer->dispatch);
    keel_exchange_plan(context, arena, &layer->exchange);
    keel_experts_plan_groups(context, arena, &layer->experts);
}

void keel_moe_plan_rows(const keel_context *context, keel_arena *arena, keel_moe_layer *layer) {
    keel_experts_plan_rows(context, arena, &layer->experts);
    layer->returned = all_here(context) ? layer->experts.out
                                        : keel_arena_take(arena, keel_dispatch_most_rows(context) * context->hidden);
}

keel_status keel_moe_open(const keel_context *context, keel_collectives *collectives, size_t index,
                          keel_moe_common *common) {
    char name[64];
    const keel_status status = keel_exchange_open(context, collectives, index, &common->ways);
    if (status || context->mesh->data_parallel.size == 1) return status;
    snprintf(name, sizeof name, "all_reduce.layers.%zu.mlp.router", index);
    return keel_collectives_add(
        collectives,
        &(keel_collective_plan){.name = name,
                                .kind = KEEL_ALL_REDUCE,
                                .when = KEEL_EVERY_STEP,
                                .dtype = KEEL_F64,
                                .count = keel_routed_count(context),
                                .comm = &context->mesh->data_parallel,
                                .op = MPI_SUM,
                                .place = keel_places_before(context, KEEL_PHASE_FORWARD, index, KEEL_PLACE_UP)},
        &common->routing);
}

void keel_moe_connect(keel_moe_common *common, keel_moe_layer *layer) {
    layer->common = common;
    layer->exchange.ways = &common->ways;
}

// The routing of all data-parallel ranks is known: shows it, and adds it to the totals.
static void tell_routing(const keel_context *context, const keel_moe *moe, keel_moe_layer *layer) {
    double *routed = layer->router.state.routed;
    const double *load = keel_routed_load(routed), *probability = keel_routed_probability(context, routed);
    const double ranks = context->mesh->dp, tokens = (double)context->rows * ranks;
    const double assignments = tokens * (double)context->chosen;
    const double capacity = (double)(context->capacity * context->batch) * ranks;
    keel_routing_totals *totals = &layer->common->totals;
    double balance = 0, beyond = 0;
    for (size_t e = 0; e < context->experts; e++) {
        balance += load[e] / assignments * (probability[e] / tokens);
        if (context->capacity) beyond += fmax(0, load[e] - capacity);
        moe->load[e] = (float)load[e];
    }
    float drop_rate = (float)(routed[KEEL_ROUTED_DROPPED] / assignments), estimate = (float)(beyond / assignments);
    keel_tap_at(layer->taps->load, moe->load, context->experts);
    keel_tap_at(layer->taps->drop_rate, &drop_rate, 1);
    if (layer->taps->estimate) keel_tap_at(layer->taps->estimate, &estimate, 1);
    totals->balance += balance * (double)context->experts;
    totals->z += routed[KEEL_ROUTED_Z] / tokens;
    totals->drop_rate += routed[KEEL_ROUTED_DROPPED] / assignments;
    totals->micro_batches++;
}

keel_status keel_moe_form_rows(const keel_context *context, const keel_moe *moe, const keel_moe_layer *layer,
                               const float *x) {
    const keel_exchange *exchange = &layer->exchange;
    const keel_experts *experts = &layer->experts;
    const bool here = all_here(context);
    keel_dispatch_to_rows(context, &layer->dispatch, x, moe->halfway, here ? experts->in : moe->sent);
    keel_status status = KEEL_OK;
    if (!here)
        status = keel_exchange_there(context, exchange, &moe->exchange, exchange->ways->there, moe->sent, experts->in);
    if (status) return status;
    keel_experts_forward(context, experts);
    if (here) return KEEL_OK;
    return keel_exchange_back(context, exchange, &moe->exchange, exchange->ways->back, experts->out, layer->returned);
}

// Tokens become the experts' input, and their output what has come of each token's rows.
static keel_status experts_forward(const keel_context *context, const keel_moe *moe, keel_moe_layer *layer,
                                   const float *x) {
    const bool here = all_here(context);
    keel_status status = KEEL_OK;
    if (!here) status = keel_exchange_begin(context, &layer->exchange, &moe->exchange, layer->dispatch.counts);
    if (status) return status;
    keel_experts_begin(context, here ? layer->dispatch.counts : layer->exchange.counts_here, &layer->experts);
    return keel_moe_form_rows(context, moe, layer, x);
}

keel_status keel_moe_forward(const keel_context *context, const keel_moe *moe, keel_moe_layer *layer, const float *x,
                             float *y) {
    const keel_router_state *routing = &layer->router.state;
    keel_router_forward(context, &layer->router, x);
    keel_dispatch_make(context, routing->chosen, moe->next, &layer->dispatch);
    routing->routed[KEEL_ROUTED_DROPPED] = (double)(context->rows * context->chosen - layer->dispatch.rows);
    keel_collective *sums = layer->common->routing;
    keel_status status = sums ? keel_all_reduce_start(sums, routing->routed) : KEEL_OK;
    if (!status) status = experts_forward(context, moe, layer, x);
    if (status) return status;
    keel_dispatch_to_tokens(context, &layer->dispatch, layer->returned, routing->weights, moe->halfway, y);
    if (sums) status = keel_collective_wait(sums);
    if (!status) tell_routing(context, moe, layer);
    keel_lap(context, KEEL_PART_ROUTING);
    return status;
}

keel_status keel_moe_backward(const keel_context *context, const keel_moe *moe, const keel_moe_layer *layer,
                              const float *x, const float *dy, float *dx) {
    const keel_exchange *exchange = &layer->exchange;
    const bool here = all_here(context);
    const keel_experts_scratch *scratch = &moe->experts;
    float *drows = here ? scratch->dout : moe->sent;
    keel_dispatch_backward(context, &layer->dispatch, dy, layer->returned, layer->router.state.weights, moe->halfway,
                           drows, moe->dweights);
    keel_cross(context, layer->weights, moe->dweights);
    keel_status status = KEEL_OK;
    if (!here)
        status =
            keel_exchange_there(context, exchange, &moe->exchange, exchange->ways->there_grad, drows, scratch->dout);
    if (status) return status;
    keel_experts_backward(context, &layer->experts, scratch);
    if (!here)
        status = keel_exchange_back(context, exchange, &moe->exchange, exchange->ways->back_grad, scratch->din, drows);
    if (status) return status;
    keel_dispatch_to_tokens(context, &layer->dispatch, here ? scratch->din : drows, NULL, moe->halfway, dx);
    keel_router_backward(context, &layer->router, x, moe->dweights, moe->dlogits, dx);
    return KEEL_OK;
}
