#include "train/model/places.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct place_kind {
    const char *name, *module;
} place_kind;

static const place_kind kinds[KEEL_PLACE_COUNT] = {
    [KEEL_PLACE_NORM1] = {"norm1", "norm"},
    [KEEL_PLACE_QKV] = {"attention.qkv", "attention"},
    [KEEL_PLACE_CORE] = {"attention.core", "attention"},
    [KEEL_PLACE_OUT] = {"attention.out", "attention"},
    [KEEL_PLACE_NORM2] = {"norm2", "norm"},
    [KEEL_PLACE_UP] = {"mlp.up", "mlp"},
    [KEEL_PLACE_ACT] = {"mlp.act", "mlp"},
    [KEEL_PLACE_DOWN] = {"mlp.down", "mlp"},
    [KEEL_PLACE_BLOCK] = {NULL, "block"},
};

static size_t width_of(const keel_context *context, keel_place place) {
    switch (place) {
    case KEEL_PLACE_QKV:
        return context->qkv_size;
    case KEEL_PLACE_UP:
        return context->up_size;
    case KEEL_PLACE_ACT:
        return context->intermediate;
    default:
        return context->hidden;
    }
}

// ORDER counts the places in forward order; backward they come the other way round.
static keel_status add(const keel_context *context, keel_taps *taps, keel_site_info *info, size_t width, size_t order,
                       keel_place_taps *out) {
    size_t places = context->layers * KEEL_PLACE_COUNT + 3;
    info->dtype = KEEL_F32;
    info->layout = KEEL_LAYOUT_SAMPLE;
    info->ndim = 3;
    info->shape[0] = context->batch;
    info->shape[1] = context->seq;
    info->shape[2] = width;
    info->numel = (uint64_t)context->rows * width;
    info->replica_count = 1;
    info->stage = (int32_t)context->stage.index;
    info->quantity = KEEL_ACTIVATION;
    info->phase = KEEL_PHASE_FORWARD;
    info->order = (uint32_t)order;
    keel_status status = keel_taps_add(taps, info, &out->value);
    if (status != KEEL_OK) return status;
    info->quantity = KEEL_ACTIVATION_GRAD;
    info->phase = KEEL_PHASE_BACKWARD;
    info->order = (uint32_t)(places - 1 - order);
    return keel_taps_add(taps, info, &out->grad);
}

static keel_status add_outer(const keel_context *context, keel_taps *taps, const char *name, const char *module,
                             size_t width, size_t order, keel_place_taps *out) {
    keel_site_info info = {.layer = -1};
    snprintf(info.name, sizeof info.name, "%s", name);
    snprintf(info.module, sizeof info.module, "%s", module);
    return add(context, taps, &info, width, order, out);
}

static keel_status add_inner(const keel_context *context, keel_taps *taps, size_t layer, keel_place place, size_t order,
                             keel_place_taps *out) {
    keel_site_info info = {.layer = (int32_t)layer};
    const char *name = place == KEEL_PLACE_UP && !context->gpt2 ? "mlp.gate_up" : kinds[place].name;
    if (name)
        snprintf(info.name, sizeof info.name, "layers.%zu.%s", layer, name);
    else
        snprintf(info.name, sizeof info.name, "layers.%zu", layer);
    snprintf(info.module, sizeof info.module, "%s", kinds[place].module);
    return add(context, taps, &info, width_of(context, place), order, out);
}

// Between the product that gives queries and keys and what becomes of them: ORDER is that of the core, which is
// registered later.
static keel_status add_logit(const keel_context *context, keel_taps *taps, size_t layer, size_t order, keel_tap **out) {
    keel_site_info info = {.quantity = KEEL_ACTIVATION,
                           .dtype = KEEL_F32,
                           .layout = KEEL_LAYOUT_SAMPLE,
                           .phase = KEEL_PHASE_FORWARD,
                           .order = (uint32_t)order,
                           .layer = (int32_t)layer,
                           .stage = (int32_t)context->stage.index,
                           .ndim = 1,
                           .shape = {1},
                           .numel = 1,
                           .replica_count = 1};
    snprintf(info.name, sizeof info.name, "layers.%zu.attention.max_logit", layer);
    snprintf(info.module, sizeof info.module, "attention");
    return keel_taps_add(taps, &info, out);
}

static keel_status add_layer(const keel_context *context, keel_taps *taps, size_t layer, keel_place_taps *places,
                             keel_tap **logit) {
    const size_t before = 1 + layer * KEEL_PLACE_COUNT;
    keel_status status = KEEL_OK;
    for (keel_place place = 0; place < KEEL_PLACE_COUNT && status == KEEL_OK; place++) {
        const size_t order = before + place;
        if (place == KEEL_PLACE_CORE) status = add_logit(context, taps, layer, order, logit);
        if (status == KEEL_OK) status = add_inner(context, taps, layer, place, order, &places[place]);
    }
    return status;
}

keel_status keel_places_open(const keel_context *context, keel_taps *taps, keel_places *places) {
    const keel_stage *stage = &context->stage;
    keel_places p = {.layers = calloc(stage->layers, sizeof *p.layers),
                     .logits = calloc(stage->layers, sizeof(keel_tap *))};
    if (!p.layers || !p.logits) {
        keel_places_close(&p);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the taps of %zu layers", stage->layers);
    }
    const size_t c = context->hidden, behind = 1 + context->layers * KEEL_PLACE_COUNT;
    keel_status status = KEEL_OK;
    if (keel_stage_is_first(stage)) status = add_outer(context, taps, "embedding", "embedding", c, 0, &p.embedding);
    for (size_t l = 0; l < stage->layers && status == KEEL_OK; l++)
        status = add_layer(context, taps, stage->first + l, p.layers[l], &p.logits[l]);
    if (keel_stage_is_last(stage)) {
        if (status == KEEL_OK) status = add_outer(context, taps, "final_norm", "norm", c, behind, &p.final_norm);
        if (status == KEEL_OK) status = add_outer(context, taps, "head", "head", context->vocab, behind + 1, &p.head);
    }
    if (status != KEEL_OK) {
        keel_places_close(&p);
        return status;
    }
    *places = p;
    return KEEL_OK;
}

void keel_places_close(keel_places *places) {
    free(places->layers);
    free(places->logits);
    *places = (keel_places){0};
}
