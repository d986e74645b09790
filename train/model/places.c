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
    [KEEL_PLACE_ROUTER] = {"mlp.router", "router"},
    [KEEL_PLACE_UP] = {"mlp.up", "mlp"},
    [KEEL_PLACE_ACT] = {"mlp.act", "mlp"},
    [KEEL_PLACE_DOWN] = {"mlp.down", "mlp"},
    [KEEL_PLACE_BLOCK] = {NULL, "block"},
};

// With experts.
static const place_kind expert_kinds[KEEL_PLACE_COUNT] = {
    [KEEL_PLACE_UP] = {"mlp.experts.gate_up", "expert"},
    [KEEL_PLACE_ACT] = {"mlp.experts.act", "expert"},
    [KEEL_PLACE_DOWN] = {"mlp", "mlp"},
};

static place_kind kind_of(const keel_context *context, keel_place place) {
    if (context->experts && expert_kinds[place].module) return expert_kinds[place];
    place_kind kind = kinds[place];
    if (place == KEEL_PLACE_UP && !context->gpt2) kind.name = "mlp.gate_up";
    return kind;
}

static size_t width_of(const keel_context *context, keel_place place) {
    switch (place) {
    case KEEL_PLACE_QKV:
        return context->qkv_size;
    case KEEL_PLACE_CORE:
        return context->core_size;
    case KEEL_PLACE_ROUTER:
        return context->experts;
    case KEEL_PLACE_UP:
        return context->up_size;
    case KEEL_PLACE_ACT:
        return context->intermediate;
    default:
        return context->hidden;
    }
}

// What the tensor ranks have of a place.
typedef enum spread {
    ROWS,    // each its rows of the stream, with sequence parallel; else all the same
    COLUMNS, // each its columns
    COPIES,  // all the same
} spread;

static spread spread_of(keel_place place) {
    switch (place) {
    case KEEL_PLACE_QKV:
    case KEEL_PLACE_CORE:
    case KEEL_PLACE_UP:
    case KEEL_PLACE_ACT:
        return COLUMNS;
    case KEEL_PLACE_ROUTER:
        return COPIES;
    default:
        return ROWS;
    }
}

// EACH rows for every token, of which WIDTH columns are this rank's. ORDER counts the places in forward order.
static keel_status add(const keel_context *context, keel_taps *taps, keel_site_info *info, size_t each, size_t width,
                       spread how, size_t order, keel_place_taps *out) {
    const keel_comm *tensor = &context->mesh->model_parallel;
    const bool alike = how == COPIES || (how == ROWS && !context->mesh->sequence);
    const size_t rows = how == ROWS ? context->own_rows : context->rows;
    info->dtype = KEEL_F32;
    info->layout = KEEL_LAYOUT_SAMPLE;
    info->ndim = 3;
    info->shape[0] = context->batch;
    info->shape[1] = context->seq * each;
    info->shape[2] = how == COLUMNS ? width * (size_t)tensor->size : width;
    info->numel = (uint64_t)context->rows * each * info->shape[2];
    info->replica_index = alike ? (uint32_t)tensor->rank : 0;
    info->replica_count = alike ? (uint32_t)tensor->size : 1;
    info->stage = (int32_t)context->stage.index;
    info->quantity = KEEL_ACTIVATION;
    info->phase = KEEL_PHASE_FORWARD;
    info->order = (uint32_t)order;
    keel_status status = keel_taps_add(taps, info, &out->value);
    if (status != KEEL_OK) return status;
    info->quantity = KEEL_ACTIVATION_GRAD;
    info->phase = KEEL_PHASE_BACKWARD;
    info->order = keel_places_back(context->layers, order);
    status = keel_taps_add(taps, info, &out->grad);
    if (status == KEEL_OK) out->value->numel = out->grad->numel = rows * each * width;
    return status;
}

static keel_status add_outer(const keel_context *context, keel_taps *taps, const char *name, const char *module,
                             size_t width, spread how, size_t order, keel_place_taps *out) {
    keel_site_info info = {.layer = -1};
    snprintf(info.name, sizeof info.name, "%s", name);
    snprintf(info.module, sizeof info.module, "%s", module);
    return add(context, taps, &info, 1, width, how, order, out);
}

static keel_status add_inner(const keel_context *context, keel_taps *taps, size_t layer, keel_place place, size_t order,
                             keel_place_taps *out) {
    keel_site_info info = {.layer = (int32_t)layer};
    const place_kind kind = kind_of(context, place);
    const bool sorted = context->experts && (place == KEEL_PLACE_UP || place == KEEL_PLACE_ACT);
    if (place == KEEL_PLACE_ROUTER && !context->experts) return KEEL_OK;
    if (kind.name)
        snprintf(info.name, sizeof info.name, "layers.%zu.%s", layer, kind.name);
    else
        snprintf(info.name, sizeof info.name, "layers.%zu", layer);
    snprintf(info.module, sizeof info.module, "%s", kind.module);
    return add(context, taps, &info, sorted ? context->chosen : 1, width_of(context, place), spread_of(place), order,
               out);
}

// N numbers of a layer that are no module's output.
static keel_site_info numbers_of(const keel_context *context, size_t layer, const char *module, const char *name,
                                 size_t n, size_t order) {
    keel_site_info info = {.quantity = KEEL_ACTIVATION,
                           .dtype = KEEL_F32,
                           .layout = KEEL_LAYOUT_SAMPLE,
                           .phase = KEEL_PHASE_FORWARD,
                           .order = (uint32_t)order,
                           .layer = (int32_t)layer,
                           .stage = (int32_t)context->stage.index,
                           .ndim = 1,
                           .shape = {n},
                           .numel = n,
                           .replica_count = 1};
    snprintf(info.name, sizeof info.name, "layers.%zu.%s", layer, name);
    snprintf(info.module, sizeof info.module, "%s", module);
    return info;
}

// Between the product that gives queries and keys and what becomes of them: ORDER is that of the core, which is
// registered later.
static keel_status add_logit(const keel_context *context, keel_taps *taps, size_t layer, size_t order, keel_tap **out) {
    const size_t own = context->batch * context->heads; // this rank's heads of all
    const keel_site_info info = numbers_of(context, layer, "attention", "attention.max_logit",
                                           own * (size_t)context->mesh->model_parallel.size, order);
    const keel_status status = keel_taps_add(taps, &info, out);
    if (status == KEEL_OK) (*out)->numel = own;
    return status;
}

// All data-parallel and all tensor ranks know the same.
static keel_status add_routing(const keel_context *context, keel_taps *taps, size_t layer, size_t order,
                               keel_routing_taps *out) {
    const keel_mesh *mesh = context->mesh;
    const struct {
        const char *name;
        size_t n;
        keel_tap **tap;
    } list[] = {{"mlp.router.expert_load", context->experts, &out->load},
                {"mlp.router.drop_rate", 1, &out->drop_rate},
                {"mlp.router.drop_rate_estimate", 1, &out->estimate}};
    const size_t count = context->capacity ? 3 : 2;
    keel_status status = KEEL_OK;
    for (size_t i = 0; i < count && status == KEEL_OK; i++) {
        keel_site_info info = numbers_of(context, layer, "router", list[i].name, list[i].n, order);
        info.replica_count = mesh->dp * mesh->tp;
        info.replica_index = (uint32_t)mesh->data_parallel.rank * mesh->tp + (uint32_t)mesh->model_parallel.rank;
        status = keel_taps_add(taps, &info, list[i].tap);
    }
    return status;
}

static keel_status add_layer(const keel_context *context, keel_taps *taps, size_t layer, keel_layer_places *places) {
    const size_t before = keel_places_order(layer, 0);
    keel_status status = KEEL_OK;
    for (keel_place place = 0; place < KEEL_PLACE_COUNT && status == KEEL_OK; place++) {
        const size_t order = before + place;
        if (place == KEEL_PLACE_CORE) status = add_logit(context, taps, layer, order, &places->logit);
        if (place == KEEL_PLACE_ROUTER && context->experts)
            status = add_routing(context, taps, layer, order, &places->routing);
        if (status == KEEL_OK) status = add_inner(context, taps, layer, place, order, &places->taps[place]);
    }
    return status;
}

keel_status keel_places_open(const keel_context *context, keel_taps *taps, keel_places *places) {
    const keel_stage *stage = &context->stage;
    keel_places p = {.layers = calloc(stage->layers, sizeof *p.layers)};
    if (!p.layers) return keel_fail(KEEL_ERR_MEMORY, "no memory for the taps of %zu layers", stage->layers);
    const size_t c = context->hidden, behind = keel_places_order(context->layers, 0);
    keel_status status = KEEL_OK;
    if (keel_stage_is_first(stage))
        status = add_outer(context, taps, "embedding", "embedding", c, ROWS, 0, &p.embedding);
    for (size_t l = 0; l < stage->layers && status == KEEL_OK; l++)
        status = add_layer(context, taps, stage->first + l, &p.layers[l]);
    if (keel_stage_is_last(stage)) {
        if (status == KEEL_OK) status = add_outer(context, taps, "final_norm", "norm", c, ROWS, behind, &p.final_norm);
        if (status == KEEL_OK)
            status = add_outer(context, taps, "head", "head", context->vocab, COLUMNS, behind + 1, &p.head);
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
    *places = (keel_places){0};
}
