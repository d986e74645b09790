// A monitor for tests: takes every field of every site into one frame, when it is on.
#ifndef KEEL_TESTS_UNIT_TRAIN_MATH_WATCHER_H
#define KEEL_TESTS_UNIT_TRAIN_MATH_WATCHER_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/model.h"
#include "train/optim/optimizer.h"

typedef struct watcher {
    bool on;
    void *memory;
    keel_frame *frame;
} watcher;

static inline keel_status watcher_start(void *context, keel_probe *probe, keel_site_plan *plans) {
    watcher *w = context;
    uint32_t sites = keel_probe_site_count(probe), scalars = keel_probe_scalar_count(probe);
    for (uint32_t i = 0; i < sites; i++)
        plans[i] = (keel_site_plan){.fields = KEEL_FIELDS_ALL, .schedule = {.start = 1, .every = 1}, .eps = 1e-8};
    size_t bytes = (keel_frame_bytes(scalars, sites, 0, 0) + 63) / 64 * 64;
    w->memory = aligned_alloc(64, bytes);
    w->frame = keel_frame_init(w->memory, scalars, sites, 0, 0);
    return KEEL_OK;
}

static inline keel_frame *watcher_frame_begin(void *context, uint64_t step) {
    (void)step;
    watcher *w = context;
    if (!w->on) return NULL;
    keel_frame_clear(w->frame);
    return w->frame;
}

static inline void watcher_frame_end(void *context, keel_frame *frame, const keel_step *step) {
    (void)context, (void)frame, (void)step;
}

// A whole rank: probe, taps, model, optimizer.
typedef struct rig {
    watcher watcher;
    keel_probe *probe;
    keel_mesh mesh;
    keel_taps *taps;
    keel_model *model;
    keel_zero zero;
    keel_optimizer *optimizer;
    size_t numel;
    float *grad;
} rig;

static inline keel_status rig_open(const keel_model_config *config, size_t batch, const keel_optimizer_config *adamw,
                                   const keel_fault_config *faults, size_t fault_count, bool on, rig *r) {
    *r = (rig){.watcher = {.on = on}, .mesh = keel_mesh_alone()};
    keel_status status = keel_probe_open(0, &r->probe);
    if (status != KEEL_OK) return status;
    const keel_backend backend = {
        .context = &r->watcher,
        .start = watcher_start,
        .frame_begin = watcher_frame_begin,
        .frame_end = watcher_frame_end,
    };
    keel_probe_set_backend(r->probe, &backend);
    status = keel_taps_open(r->probe, 0, faults, fault_count, &r->taps);
    if (status == KEEL_OK)
        status = keel_model_open(
            &(keel_model_plan){.config = config, .micro_batch = batch, .mesh = &r->mesh, .taps = r->taps}, &r->model);
    if (status == KEEL_OK) status = keel_zero_open(r->model, &r->mesh, 1 << 20, false, &r->zero);
    if (status == KEEL_OK)
        status = keel_optimizer_open(
            &(keel_optimizer_plan){.config = adamw, .model = r->model, .taps = r->taps, .zero = &r->zero},
            &r->optimizer);
    if (status == KEEL_OK) status = keel_probe_start(r->probe);
    if (status != KEEL_OK) return status;
    r->numel = keel_model_numel(r->model);
    r->grad = calloc(r->numel, sizeof *r->grad);
    keel_model_init(r->model, 7);
    return KEEL_OK;
}

// With one rank it cannot fail, nor can a step.
static inline double rig_norm(rig *r) {
    double norm = NAN;
    (void)keel_optimizer_grad_norm(r->optimizer, r->grad, &norm);
    return norm;
}

static inline void rig_close(rig *r) {
    keel_optimizer_close(r->optimizer);
    keel_zero_close(&r->zero);
    keel_model_close(r->model);
    keel_taps_close(r->taps);
    keel_probe_close(r->probe);
    free(r->watcher.memory);
    free(r->grad);
}

// The record of a site in the frame; NULL if there is no such site.
static inline const keel_stats *rig_stats(const rig *r, const char *name, keel_quantity quantity) {
    for (uint32_t i = 0; i < keel_probe_site_count(r->probe); i++) {
        const keel_site_info *info = keel_probe_site_info(r->probe, i);
        if (info->quantity == quantity && !strcmp(info->name, name)) return keel_frame_stats(r->watcher.frame) + i;
    }
    return NULL;
}

static inline const keel_param *rig_param(const rig *r, const char *name) {
    size_t count;
    const keel_param *params = keel_model_params(r->model, &count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(params[i].name, name)) return &params[i];
    return NULL;
}

static inline void random_tokens(uint32_t *tokens, size_t n, uint32_t vocab, uint32_t state) {
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (state >> 8) % vocab;
    }
}

// In [-1, 1).
static inline float random_float(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

#endif
