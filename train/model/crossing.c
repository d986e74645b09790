#include "train/model/crossing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/places.h"

typedef struct opener {
    const keel_context *context;
    keel_collectives *collectives;
    keel_status status; // of the first failure; what follows does nothing
} opener;

// One that stands where PLAN says, before NAME; its name is that of its kind and NAME.
static keel_collective *add(opener *o, const char *name, keel_collective_plan plan) {
    char full[KEEL_SITE_NAME_BYTES], layer[32] = "";
    keel_collective *made = NULL;
    if (o->status) return NULL;
    if (plan.place.layer >= 0) snprintf(layer, sizeof layer, "layers.%d.", plan.place.layer);
    snprintf(full, sizeof full, "%s.%s%s", keel_collective_kind_name(plan.kind), layer, name);
    plan.name = full;
    plan.when = KEEL_EVERY_STEP;
    plan.comm = &o->context->mesh->model_parallel;
    plan.place.within = true;
    plan.place.stage = (int32_t)o->context->stage.index;
    o->status = keel_collectives_add(o->collectives, &plan, &made);
    return made;
}

// On the way back, before the place of ORDER.
static size_t back(const opener *o, size_t order) {
    return keel_places_back(o->context->layers, order);
}

// Over all rows of the stream.
static keel_collective *add_rows(opener *o, keel_collective_kind kind, const char *name, int32_t layer,
                                 keel_phase phase, size_t order) {
    const keel_context *c = o->context;
    return add(o, name,
               (keel_collective_plan){.kind = kind,
                                      .dtype = KEEL_F32,
                                      .count = c->rows * c->hidden,
                                      .share = c->own_rows * c->hidden,
                                      .op = MPI_SUM,
                                      .gradient = phase == KEEL_PHASE_BACKWARD,
                                      .place = {.phase = phase, .order = (uint32_t)order, .layer = layer}});
}

// FORWARD, BACKWARD: orders of the places behind it on the way.
static keel_crossing add_in(opener *o, const char *name, int32_t layer, size_t forward, size_t backward) {
    const bool cut = o->context->mesh->sequence;
    char grad[64];
    snprintf(grad, sizeof grad, "%s.grad", name);
    return (keel_crossing){
        .forward = cut ? add_rows(o, KEEL_ALL_GATHER, name, layer, KEEL_PHASE_FORWARD, forward) : NULL,
        .backward =
            add_rows(o, cut ? KEEL_REDUCE_SCATTER : KEEL_ALL_REDUCE, grad, layer, KEEL_PHASE_BACKWARD, backward),
    };
}

static keel_crossing add_out(opener *o, const char *name, int32_t layer, size_t forward, size_t backward) {
    const bool cut = o->context->mesh->sequence;
    char grad[64];
    snprintf(grad, sizeof grad, "%s.grad", name);
    return (keel_crossing){
        .forward = add_rows(o, cut ? KEEL_REDUCE_SCATTER : KEEL_ALL_REDUCE, name, layer, KEEL_PHASE_FORWARD, forward),
        .backward = cut ? add_rows(o, KEEL_ALL_GATHER, grad, layer, KEEL_PHASE_BACKWARD, backward) : NULL,
    };
}

// Gradients of a norm's parameters and of the bias before it.
static keel_collective *add_vectors(opener *o, const char *name, int32_t layer, size_t order) {
    const keel_context *c = o->context;
    if (!c->mesh->sequence) return NULL;
    return add(
        o, name,
        (keel_collective_plan){.kind = KEEL_ALL_REDUCE,
                               .dtype = KEEL_F32,
                               .count = KEEL_JOIN_VECTORS * c->hidden,
                               .op = MPI_SUM,
                               .gradient = true,
                               .place = {.phase = KEEL_PHASE_BACKWARD, .order = (uint32_t)order, .layer = layer}});
}

static keel_collective *add_weights(opener *o, int32_t layer, size_t order) {
    const keel_context *c = o->context;
    return add(
        o, "mlp.router.weights.grad",
        (keel_collective_plan){.kind = KEEL_ALL_REDUCE,
                               .dtype = KEEL_F32,
                               .count = c->rows * c->chosen,
                               .op = MPI_SUM,
                               .gradient = true,
                               .place = {.phase = KEEL_PHASE_BACKWARD, .order = (uint32_t)order, .layer = layer}});
}

static void add_layer(opener *o, size_t layer, keel_layer_crossings *out) {
    const int32_t l = (int32_t)layer;
    const size_t first = keel_places_order(layer, 0);
    out->qkv = add_in(o, "norm1", l, first + KEEL_PLACE_QKV, back(o, first + KEEL_PLACE_NORM1));
    out->out = add_out(o, "attention.out", l, first + KEEL_PLACE_OUT, back(o, first + KEEL_PLACE_CORE));
    out->up = add_in(o, "norm2", l, first + KEEL_PLACE_ROUTER, back(o, first + KEEL_PLACE_NORM2));
    out->down = add_out(o, "mlp.down", l, first + KEEL_PLACE_DOWN, back(o, first + KEEL_PLACE_ACT));
    out->norm1 = add_vectors(o, "norm1.parameters", l, back(o, first + KEEL_PLACE_NORM1) + 1);
    out->norm2 = add_vectors(o, "norm2.parameters", l, back(o, first + KEEL_PLACE_NORM2) + 1);
    if (o->context->experts) out->weights = add_weights(o, l, back(o, first + KEEL_PLACE_ROUTER));
}

// One number or two of every row of a chunk.
static keel_collective *add_numbers(opener *o, const char *name, keel_dtype dtype, MPI_Op op, size_t count) {
    return add(o, name,
               (keel_collective_plan){.kind = KEEL_ALL_REDUCE,
                                      .dtype = dtype,
                                      .count = count,
                                      .op = op,
                                      .place = {.phase = KEEL_PHASE_FORWARD,
                                                .order = (uint32_t)keel_places_count(o->context->layers),
                                                .layer = -1}});
}

static void add_all(opener *o, size_t chunk_rows, keel_crossings *out) {
    const keel_context *c = o->context;
    const keel_stage *stage = &c->stage;
    const size_t behind = keel_places_order(c->layers, 0); // all layers
    if (keel_stage_is_first(stage)) out->embedding = add_out(o, "embedding", -1, 0, keel_places_count(c->layers));
    for (size_t l = 0; l < stage->layers; l++) add_layer(o, stage->first + l, &out->layers[l]);
    if (!keel_stage_is_last(stage)) {
        const size_t layer = stage->first + stage->layers - 1;
        out->last = add_vectors(o, "parameters", (int32_t)layer, back(o, keel_places_order(layer, KEEL_PLACE_DOWN)));
        return;
    }
    out->head = add_in(o, "final_norm", -1, behind + 1, back(o, behind));
    out->last = add_vectors(o, "final_norm.parameters", -1, back(o, behind) + 1);
    out->greatest = add_numbers(o, "head.greatest", KEEL_F32, MPI_MAX, chunk_rows);
    out->total = add_numbers(o, "head.total", KEEL_F64, MPI_SUM, 2 * chunk_rows);
}

keel_status keel_crossings_open(const keel_context *context, keel_collectives *collectives, size_t chunk_rows,
                                keel_crossings *crossings) {
    const size_t layers = context->stage.layers;
    opener o = {.context = context, .collectives = collectives};
    keel_crossings made = {.layers = calloc(layers, sizeof *made.layers)};
    if (!made.layers) return keel_fail(KEEL_ERR_MEMORY, "no memory for the meetings of %zu layers", layers);
    if (context->mesh->model_parallel.size > 1) add_all(&o, chunk_rows, &made);
    if (o.status)
        keel_crossings_close(&made);
    else
        *crossings = made;
    return o.status;
}

void keel_crossings_close(keel_crossings *crossings) {
    free(crossings->layers);
    *crossings = (keel_crossings){0};
}

void keel_cross(const keel_context *context, keel_collective *collective, void *data) {
    if (collective && !*context->failure) *context->failure = keel_collective_run(collective, data);
}

void keel_cross_first(const keel_context *context, keel_collective *collective, void *data, size_t count) {
    if (collective && !*context->failure) *context->failure = keel_all_reduce_first(collective, data, count);
}

float *keel_cross_rows(const keel_context *context, keel_collective *collective, float *own, float *all) {
    if (!collective) return own;
    memcpy(keel_context_own(context, all), own, context->own_rows * context->hidden * sizeof *all);
    keel_cross(context, collective, all);
    return all;
}
