#include "train/model/exchange.h"

#include <stdio.h>
#include <string.h>

#include "train/model/dispatch.h"
#include "train/model/places.h"

static size_t ranks_of(const keel_context *context) {
    return (size_t)context->mesh->expert_parallel.size;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t keel_exchange_most_rows(const keel_context *context) {
    const size_t ranks = ranks_of(context), local = context->local_experts;
    if (ranks == 1) return keel_dispatch_most_rows(context);
    // A token goes to an expert once.
    const size_t all = ranks * context->rows * least(context->chosen, local);
    return context->capacity ? least(all, ranks * context->batch * local * context->capacity) : all;
}

void keel_exchange_plan(const keel_context *context, keel_arena *arena, keel_exchange *exchange) {
    const size_t ranks = ranks_of(context);
    if (ranks == 1) return;
    exchange->sent = (uint32_t *)keel_arena_take(arena, ranks);
    exchange->got = (uint32_t *)keel_arena_take(arena, ranks);
    exchange->from = (uint32_t *)keel_arena_take(arena, context->experts);
    exchange->counts_here = (uint32_t *)keel_arena_take(arena, context->local_experts);
}

void keel_exchange_plan_scratch(const keel_context *context, keel_arena *arena, keel_exchange_scratch *scratch) {
    if (ranks_of(context) == 1) return;
    scratch->rows = keel_arena_take(arena, keel_exchange_most_rows(context) * context->hidden);
    scratch->counts = (double *)keel_arena_take(arena, 4 * context->experts);
}

keel_status keel_exchange_open(const keel_context *context, keel_collectives *collectives, size_t index,
                               keel_exchange_ways *ways) {
    const keel_comm *comm = &context->mesh->expert_parallel;
    const struct {
        const char *name;
        keel_collective **made;
        keel_phase phase;
        keel_place before;
        bool whole; // what tensor ranks have alike; else each has its summand
    } list[] = {{"there", &ways->there, KEEL_PHASE_FORWARD, KEEL_PLACE_UP, true},
                {"back", &ways->back, KEEL_PHASE_FORWARD, KEEL_PLACE_DOWN, false},
                {"there_grad", &ways->there_grad, KEEL_PHASE_BACKWARD, KEEL_PLACE_ACT, true},
                {"back_grad", &ways->back_grad, KEEL_PHASE_BACKWARD, KEEL_PLACE_ROUTER, false}};
    char name[64];
    if (comm->size == 1) return KEEL_OK;
    keel_collective_plan plan = {.name = name,
                                 .kind = KEEL_ALL_TO_ALL,
                                 .when = KEEL_EVERY_STEP,
                                 .dtype = KEEL_F64,
                                 .count = context->experts,
                                 .row = context->local_experts,
                                 .comm = comm,
                                 .copies = &context->mesh->model_parallel,
                                 .place = keel_places_before(context, KEEL_PHASE_FORWARD, index, KEEL_PLACE_UP)};
    snprintf(name, sizeof name, "all_to_all.layers.%zu.mlp.counts", index);
    keel_status status = keel_collectives_add(collectives, &plan, &ways->counts);
    plan.dtype = KEEL_F32;
    plan.count = keel_exchange_most_rows(context) * context->hidden;
    plan.row = context->hidden;
    for (size_t i = 0; i < sizeof list / sizeof *list && !status; i++) {
        snprintf(name, sizeof name, "all_to_all.layers.%zu.mlp.%s", index, list[i].name);
        plan.gradient = list[i].phase == KEEL_PHASE_BACKWARD;
        plan.copies = list[i].whole ? &context->mesh->model_parallel : NULL;
        plan.place = keel_places_before(context, list[i].phase, index, list[i].before);
        status = keel_collectives_add(collectives, &plan, list[i].made);
    }
    return status;
}

keel_status keel_exchange_begin(const keel_context *context, const keel_exchange *exchange,
                                const keel_exchange_scratch *scratch, const uint32_t *counts) {
    const size_t ranks = ranks_of(context), local = context->local_experts, experts = context->experts;
    double *mine = scratch->counts, *theirs = mine + experts;
    for (size_t e = 0; e < experts; e++) mine[e] = counts[e];
    for (size_t r = 0; r < ranks; r++) exchange->sent[r] = exchange->got[r] = 1;
    const keel_status status = keel_all_to_all(exchange->ways->counts, mine, exchange->sent, theirs, exchange->got);
    if (status) return status;
    memset(exchange->sent, 0, ranks * sizeof *exchange->sent);
    memset(exchange->got, 0, ranks * sizeof *exchange->got);
    memset(exchange->counts_here, 0, local * sizeof *exchange->counts_here);
    for (size_t e = 0; e < experts; e++) {
        const uint32_t from = (uint32_t)theirs[e];
        exchange->from[e] = from;
        exchange->sent[e / local] += counts[e];
        exchange->got[e / local] += from;
        exchange->counts_here[e % local] += from;
    }
    return KEEL_OK;
}

// Moves blocks of rows between the orders by rank (ROWS) and by expert. A block is what one rank has for one expert.
static void sort(const keel_context *context, const keel_exchange *exchange, bool back, float *by_rank,
                 float *by_expert) {
    const size_t ranks = ranks_of(context), local = context->local_experts, c = context->hidden;
#pragma omp parallel for schedule(dynamic) num_threads(context->threads)
    for (size_t block = 0; block < ranks * local; block++) {
        const size_t expert = block % local;
        size_t at = 0, to = 0;
        for (size_t b = 0; b < block; b++) at += exchange->from[b];
        for (size_t e = 0; e < expert; e++) to += exchange->counts_here[e];
        for (size_t b = expert; b < block; b += local) to += exchange->from[b];
        float *one = by_rank + at * c, *other = by_expert + to * c;
        memcpy(back ? one : other, back ? other : one, exchange->from[block] * c * sizeof *one);
    }
}

keel_status keel_exchange_there(const keel_context *context, const keel_exchange *exchange,
                                const keel_exchange_scratch *scratch, keel_collective *by, float *rows,
                                float *expert_rows) {
    const keel_status status = keel_all_to_all(by, rows, exchange->sent, scratch->rows, exchange->got);
    if (!status) sort(context, exchange, false, scratch->rows, expert_rows);
    keel_lap(context, KEEL_PART_ROUTING);
    return status;
}

keel_status keel_exchange_back(const keel_context *context, const keel_exchange *exchange,
                               const keel_exchange_scratch *scratch, keel_collective *by, float *expert_rows,
                               float *rows) {
    sort(context, exchange, true, scratch->rows, expert_rows);
    const keel_status status = keel_all_to_all(by, scratch->rows, exchange->got, rows, exchange->sent);
    keel_lap(context, KEEL_PART_ROUTING);
    return status;
}
