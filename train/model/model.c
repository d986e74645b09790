#include "train/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/model_state.h"
#include "train/model/random.h"

// The format in which products take a parameter. The embedding rounds the rows it looks up; a tied table is the head's.
static keel_precision taken_as(const keel_model *m, const keel_param *p) {
    if (strcmp(p->module, "embedding") != 0) return p->precision;
    return m->context.tied && p->offset == m->parameters.head.weight ? m->context.formats.head : KEEL_FLOAT32;
}

static bool rounds_weights(const keel_model *m) {
    for (size_t i = 0; i < m->parameters.count; i++)
        if (taken_as(m, &m->parameters.list[i]) != KEEL_FLOAT32) return true;
    return false;
}

static keel_keep least_kept(const keel_model *m) {
    keel_keep least = KEEL_KEEP_ALL;
    for (size_t l = 0; l < m->context.stage.layers; l++)
        if (m->slots[0].layers[l].keep > least) least = m->slots[0].layers[l].keep;
    return least;
}

// Every piece of memory. Runs twice: to count and to give.
static void plan(keel_model *m, keel_arena *arena) {
    keel_context *c = &m->context;
    c->master = keel_arena_take(arena, m->parameters.numel);
    c->weights = rounds_weights(m) ? keel_arena_take(arena, m->parameters.numel) : c->master;
    keel_context_plan(c, arena);
    keel_attention_plan(c, arena, &m->work.attention);
    keel_work_plan_again(c, arena, least_kept(m), &m->work);
    for (size_t s = 0; s < m->slot_count; s++) {
        for (size_t l = 0; l < c->stage.layers; l++) keel_layer_plan(c, arena, &m->work, &m->slots[s].layers[l]);
        keel_join_plan(c, arena, &m->slots[s].last);
    }
    if (keel_stage_is_last(&c->stage)) keel_head_plan(c, arena, &m->head);
    if (c->stage.count == 1) m->dstream = keel_arena_take(arena, c->own_rows * c->hidden);
    keel_work_plan(c, arena, &m->work);
    m->embedding.all = m->work.branch;
}

// Layer L's first join takes in the MLP of the layer below, the last join (L: their number) that of the last layer.
static void connect_join(const keel_model *m, size_t l, keel_join *join) {
    const keel_parameters *p = &m->parameters;
    const keel_stage *stage = &m->context.stage;
    const bool inner = l < stage->layers;
    if (inner || keel_stage_is_last(stage)) {
        const keel_place_taps *norm = inner ? &m->places.layers[l].taps[KEEL_PLACE_NORM1] : &m->places.final_norm;
        join->norm = inner ? &p->layers[l].norm1 : &p->final_norm;
        join->taken_as = inner ? m->context.formats.compute : m->context.formats.head;
        join->norm_tap = norm->value;
        join->norm_grad_tap = norm->grad;
    }
    if (l == 0) {
        join->from_below = !keel_stage_is_first(stage);
        join->stream_grad_tap = m->places.embedding.grad;
        return;
    }
    const keel_place_taps *below = m->places.layers[l - 1].taps;
    join->branch = &p->layers[l - 1].down;
    join->branch_tap = below[KEEL_PLACE_DOWN].value;
    join->branch_grad_tap = below[KEEL_PLACE_DOWN].grad;
    join->stream_tap = below[KEEL_PLACE_BLOCK].value;
    join->stream_grad_tap = below[KEEL_PLACE_BLOCK].grad;
    keel_taps_pair(join->branch_grad_tap, join->stream_grad_tap);
}

static void connect(keel_model *m) {
    const keel_parameters *p = &m->parameters;
    const size_t layers = m->context.stage.layers;
    for (size_t s = 0; s < m->slot_count; s++) {
        keel_slot *slot = &m->slots[s];
        for (size_t l = 0; l < layers; l++) {
            connect_join(m, l, &slot->layers[l].join1);
            keel_layer_connect(&m->context, &p->layers[l], &m->crossings.layers[l], &m->places.layers[l],
                               &slot->layers[l]);
            if (m->experts) keel_moe_connect(&m->experts[l], &slot->layers[l].moe);
        }
        connect_join(m, layers, &slot->last);
        slot->last.vectors = m->crossings.last;
    }
    m->embedding.token = p->token_embedding;
    m->embedding.position = p->position_embedding;
    m->embedding.crossing = &m->crossings.embedding;
    m->embedding.tap = m->places.embedding.value;
    m->head.linear = &p->head;
    m->head.crossings = &m->crossings;
    m->head.tap = m->places.head.value;
    m->head.grad_tap = m->places.head.grad;
}

// LAYER: of the whole model.
static keel_keep keep_of(const keel_recompute_config *recompute, size_t layer) {
    if (recompute && recompute->full && recompute->full[layer]) return KEEL_KEEP_STREAM;
    return recompute && recompute->select && recompute->select[layer] ? KEEL_KEEP_PRODUCTS : KEEL_KEEP_ALL;
}

static keel_status open_slots(keel_model *m, size_t count, const keel_recompute_config *recompute) {
    const keel_context *c = &m->context;
    m->slots = calloc(count, sizeof *m->slots);
    if (!m->slots) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu micro-batches", count);
    m->slot_count = count;
    for (size_t s = 0; s < count; s++) {
        m->slots[s].layers = calloc(c->stage.layers, sizeof *m->slots[s].layers);
        m->slots[s].tokens = calloc(c->batch * (c->seq + 1), sizeof *m->slots[s].tokens);
        if (!m->slots[s].layers || !m->slots[s].tokens)
            return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu layers", c->stage.layers);
        for (size_t l = 0; l < c->stage.layers; l++)
            m->slots[s].layers[l].keep = keep_of(recompute, c->stage.first + l);
    }
    return KEEL_OK;
}

static keel_status open_experts(keel_model *m) {
    const keel_context *c = &m->context;
    keel_status status = KEEL_OK;
    if (!c->experts) return KEEL_OK;
    m->experts = calloc(c->stage.layers, sizeof *m->experts);
    if (!m->experts) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu layers", c->stage.layers);
    for (size_t l = 0; l < c->stage.layers && !status; l++)
        status = keel_moe_open(c, m->collectives, c->stage.first + l, &m->experts[l]);
    return status;
}

keel_status keel_model_open(const keel_model_plan *given, keel_model **model) {
    const keel_model_config *config = given->config;
    keel_taps *taps = given->taps;
    keel_model *m = calloc(1, sizeof *m);
    if (!m) return keel_fail(KEEL_ERR_MEMORY, "no memory for the model");
    m->probe = keel_taps_probe(taps);
    m->taps = taps;
    m->collectives = given->collectives;
    m->initializer_range = config->initializer_range;
    keel_status status =
        keel_context_init(config, given->micro_batch, keel_taps_threads(taps), given->mesh, &m->context);
    if (given->stage) m->context.stage = *given->stage;
    if (status == KEEL_OK) status = keel_parameters_build(&m->context, &m->parameters);
    if (status == KEEL_OK) status = open_experts(m);
    if (status == KEEL_OK) keel_head_size(&m->context, &m->head);
    if (status == KEEL_OK)
        status = keel_crossings_open(&m->context, given->collectives, m->head.chunk_rows, &m->crossings);
    if (status == KEEL_OK) status = keel_places_open(&m->context, taps, &m->places);
    if (status == KEEL_OK) status = open_slots(m, given->slots ? given->slots : 1, given->recompute);
    if (status != KEEL_OK) goto failed;
    connect(m);
    plan(m, &m->arena);
    status = keel_arena_allocate(&m->arena);
    if (status != KEEL_OK) goto failed;
    plan(m, &m->arena);
    m->context.clock = &m->clock;
    m->context.failure = &m->failure;
    keel_position_init(&m->context, &m->work.attention.position);
    *model = m;
    return KEEL_OK;
failed:
    keel_model_close(m);
    return status;
}

void keel_model_close(keel_model *model) {
    if (!model) return;
    keel_parameters_free(&model->parameters);
    keel_crossings_close(&model->crossings);
    keel_places_close(&model->places);
    keel_arena_free(&model->arena);
    free(model->experts);
    for (size_t s = 0; s < model->slot_count; s++) {
        free(model->slots[s].layers);
        free(model->slots[s].tokens);
    }
    free(model->slots);
    free(model);
}

const keel_param *keel_model_params(const keel_model *model, size_t *count) {
    *count = model->parameters.count;
    return model->parameters.list;
}

uint32_t keel_model_whole_param_count(const keel_model *model) {
    return model->parameters.whole_count;
}

const keel_hf_tensor *keel_model_hf_tensors(const keel_model *model, size_t *count) {
    *count = model->parameters.hf_count;
    return model->parameters.hf;
}

size_t keel_model_numel(const keel_model *model) {
    return model->parameters.numel;
}
size_t keel_model_token_count(const keel_model *model) {
    return model->context.batch * (model->context.seq + 1);
}
float *keel_model_weights(keel_model *model) {
    return model->context.master;
}

void keel_model_take_weights(keel_model *model) {
    const keel_context *c = &model->context;
    enum { PIECE = 16 << 10 };
    for (size_t i = 0; c->weights != c->master && i < model->parameters.count; i++) {
        const keel_param *p = &model->parameters.list[i];
        const keel_precision precision = taken_as(model, p);
#pragma omp parallel for schedule(static) num_threads(c->threads) if (p->numel > PIECE)
        for (size_t at = 0; at < p->numel; at += PIECE)
            keel_round_copy(precision, c->weights + p->offset + at, c->master + p->offset + at,
                            p->numel - at < PIECE ? p->numel - at : PIECE);
    }
}

size_t keel_model_stream_numel(const keel_model *model) {
    return model->context.own_rows * model->context.hidden;
}

size_t keel_model_bytes(const keel_model *model) {
    return model->arena.size;
}
void keel_model_take_routing(keel_model *model, keel_routing_totals *totals) {
    const keel_stage *stage = &model->context.stage;
    memset(totals, 0, model->context.layers * sizeof *totals);
    for (size_t l = 0; l < stage->layers && model->experts; l++) {
        totals[stage->first + l] = model->experts[l].totals;
        model->experts[l].totals = (keel_routing_totals){0};
    }
}

const float *keel_model_losses(const keel_model *model) {
    return model->head.losses;
}

const char *keel_part_name(keel_part part) {
    static const char *const names[KEEL_PART_COUNT] = {
        [KEEL_PART_EMBEDDING] = "embedding",
        [KEEL_PART_NORM] = "norm",
        [KEEL_PART_PRODUCTS] = "products",
        [KEEL_PART_ATTENTION] = "attention",
        [KEEL_PART_ACTIVATION] = "activation",
        [KEEL_PART_ROUTING] = "routing",
        [KEEL_PART_HEAD] = "head",
        [KEEL_PART_LOSS] = "loss",
    };
    return names[part];
}

void keel_model_seconds(const keel_model *model, double seconds[KEEL_PART_COUNT]) {
    memcpy(seconds, model->clock.seconds, sizeof model->clock.seconds);
}

double keel_model_flops(const keel_model *model) {
    const keel_context *c = &model->context;
    double rows = (double)c->rows, width = (double)(c->heads * c->head_size);
    double weights = (double)c->hidden * (double)(c->qkv_size + c->core_size + c->experts);
    weights += (double)c->hidden * (double)(c->up_size + c->intermediate) * (c->experts ? (double)c->chosen : 1);
    double attention = (double)c->batch * (double)c->seq * (double)(c->seq + 1) / 2 * width * 2;
    double products = rows * weights + attention;
    double forward = (double)c->stage.layers * products;
    if (keel_stage_is_last(&c->stage)) forward += rows * (double)c->hidden * (double)c->vocab;
    return 3 * 2 * forward;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

// A parameter's values depend on nothing but the seed, its place in the whole model and theirs in the whole parameter.
static void init_random(const keel_model *model, const keel_param *p, uint64_t seed, double deviation) {
    const uint64_t stream = keel_random_stream(seed, p->place);
    const size_t cols = keel_param_cols(p);
    for (size_t i = 0; i < p->piece_count; i++) {
        const keel_piece *piece = &p->pieces[i];
        float *to = model->context.master + p->offset + piece->local_offset;
        const bool contiguous = piece->cols == cols && piece->local_stride == cols;
        const size_t rows = contiguous ? 1 : piece->rows, n = contiguous ? piece->rows * cols : piece->cols;
#pragma omp parallel for schedule(static) if (rows > 1)
        for (size_t r = 0; r < rows; r++)
            keel_random_normal(stream, (piece->row + r) * cols + piece->col, deviation, to + r * piece->local_stride,
                               n);
    }
}

void keel_model_init(keel_model *model, uint64_t seed) {
    double range = model->initializer_range;
    for (size_t i = 0; i < model->parameters.count; i++) {
        const keel_param *p = &model->parameters.list[i];
        float *w = model->context.master + p->offset;
        bool residual = ends_with(p->name, ".attention.out.weight") || ends_with(p->name, ".down.weight");
        double deviation = residual ? range / sqrt(2.0 * (double)model->context.layers) : range;
        float constant = !strcmp(p->module, "norm") && ends_with(p->name, ".weight") ? 1.0f : 0.0f;
        for (size_t k = 0; p->ndim == 1 && k < p->numel; k++) w[k] = constant;
        if (p->ndim > 1) init_random(model, p, seed, deviation);
    }
}
