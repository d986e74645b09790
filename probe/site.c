#include "probe/site.h"

#include <string.h>

static const char *const quantity_names[KEEL_QUANTITY_COUNT] = {
    [KEEL_WEIGHT] = "weight",
    [KEEL_GRAD_UNREDUCED] = "grad_unreduced",
    [KEEL_GRAD_REDUCED] = "grad_reduced",
    [KEEL_ACTIVATION] = "activation",
    [KEEL_ACTIVATION_GRAD] = "activation_grad",
    [KEEL_EXP_AVG] = "exp_avg",
    [KEEL_EXP_AVG_SQ] = "exp_avg_sq",
    [KEEL_UPDATE] = "update",
    [KEEL_ADAM_DIRECTION] = "adam_direction",
    [KEEL_COLLECTIVE_IN] = "collective_in",
    [KEEL_COLLECTIVE_OUT] = "collective_out",
    [KEEL_ADAM_RMS] = "adam_rms",
};

static const char *const layout_names[KEEL_LAYOUT_COUNT] = {
    [KEEL_LAYOUT_WHOLE] = "whole",     [KEEL_LAYOUT_SHARD] = "shard",   [KEEL_LAYOUT_REPLICA] = "replica",
    [KEEL_LAYOUT_PARTIAL] = "partial", [KEEL_LAYOUT_SAMPLE] = "sample",
};

static const char *const phase_names[KEEL_PHASE_COUNT] = {
    [KEEL_PHASE_FORWARD] = "forward",     [KEEL_PHASE_RECOMPUTE] = "recompute", [KEEL_PHASE_BACKWARD] = "backward",
    [KEEL_PHASE_REDUCTION] = "reduction", [KEEL_PHASE_OPTIMIZER] = "optimizer",
};

static const char *name_at(const char *const *names, unsigned count, unsigned index) {
    return index < count ? names[index] : "unknown";
}

const char *keel_quantity_name(keel_quantity quantity) {
    return name_at(quantity_names, KEEL_QUANTITY_COUNT, (unsigned)quantity);
}

keel_quantity keel_quantity_find(const char *name) {
    unsigned i = 0;
    while (i < KEEL_QUANTITY_COUNT && strcmp(quantity_names[i], name) != 0) i++;
    return (keel_quantity)i;
}

const char *keel_layout_name(keel_layout layout) {
    return name_at(layout_names, KEEL_LAYOUT_COUNT, (unsigned)layout);
}

const char *keel_phase_name(keel_phase phase) {
    return name_at(phase_names, KEEL_PHASE_COUNT, (unsigned)phase);
}

int keel_site_compare(const keel_site_info *a, const keel_site_info *b) {
    if (a->phase != b->phase) return a->phase < b->phase ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

// FNV-1a, 64 bits (Fowler, Noll, Vo).
uint64_t keel_site_hash(const keel_site_info *site) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = site->name; *c; c++) hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    return (hash ^ (uint64_t)site->quantity) * UINT64_C(0x100000001b3);
}
