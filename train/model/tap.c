#include "train/model/tap.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// OPEN_MAX: taps in block form at a time. PACKED: elements that are copied together to be seen.
enum { OPEN_MAX = 16, PACKED = 2048, SHARED_PIECE = 1 << 16 };

struct keel_taps {
    keel_probe *probe;
    uint32_t rank;
    int threads;
    const keel_fault_config *faults;
    size_t fault_count;
    double loss_scale;
    uint32_t micro;
    bool again;
    keel_tap **list;
    size_t count, capacity;
    keel_tap_block *blocks; // [OPEN_MAX, threads]
    bool used[OPEN_MAX];
};

keel_status keel_taps_open(keel_probe *probe, uint32_t rank, const keel_fault_config *faults, size_t count,
                           keel_taps **taps) {
    keel_taps *t = calloc(1, sizeof *t);
    if (!t) return keel_fail(KEEL_ERR_MEMORY, "no memory for taps");
    *t = (keel_taps){.probe = probe, .rank = rank, .threads = omp_get_max_threads(), .faults = faults};
    t->fault_count = count;
    t->loss_scale = 1;
    size_t bytes = (size_t)OPEN_MAX * (size_t)t->threads * sizeof *t->blocks;
    t->blocks = aligned_alloc(_Alignof(keel_tap_block), bytes);
    if (!t->blocks) {
        free(t);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the blocks of taps");
    }
    memset(t->blocks, 0, bytes);
    *taps = t;
    return KEEL_OK;
}

void keel_taps_close(keel_taps *taps) {
    if (!taps) return;
    for (size_t i = 0; i < taps->count; i++) free(taps->list[i]);
    free(taps->list);
    free(taps->blocks);
    free(taps);
}

keel_probe *keel_taps_probe(keel_taps *taps) {
    return taps->probe;
}

int keel_taps_threads(const keel_taps *taps) {
    return taps->threads;
}

keel_status keel_taps_add(keel_taps *taps, const keel_site_info *info, keel_tap **tap) {
    if (taps->count == taps->capacity) {
        size_t capacity = taps->capacity ? 2 * taps->capacity : 64;
        keel_tap **list = realloc(taps->list, capacity * sizeof(keel_tap *));
        if (!list) return keel_fail(KEEL_ERR_MEMORY, "no memory for a tap of %s", info->name);
        taps->list = list;
        taps->capacity = capacity;
    }
    keel_tap *t = calloc(1, sizeof *t);
    if (!t) return keel_fail(KEEL_ERR_MEMORY, "no memory for a tap of %s", info->name);
    t->taps = taps;
    t->numel = info->numel;
    t->gradient = info->quantity == KEEL_ACTIVATION_GRAD || info->quantity == KEEL_GRAD_UNREDUCED;
    keel_status status = keel_site_add(taps->probe, info, &t->site);
    if (status != KEEL_OK) {
        free(t);
        return status;
    }
    taps->list[taps->count++] = t;
    *tap = t;
    return KEEL_OK;
}

static bool hits(const keel_fault_config *fault, const keel_site_info *info) {
    if (!fault->site || strcmp(fault->site, info->name) != 0) return false;
    switch (fault->kind) {
    case KEEL_FAULT_NAN:
        return keel_quantity_find(fault->quantity) == info->quantity;
    case KEEL_FAULT_DEAD_LAYER:
        return info->quantity == KEEL_ACTIVATION || info->quantity == KEEL_ACTIVATION_GRAD;
    case KEEL_FAULT_FAKE_FLOAT32:
        return info->quantity == KEEL_WEIGHT;
    default:
        return false;
    }
}

// The quantity of the site at which a fault is looked for; NULL: it is none of a tap's.
static const char *quantity_of(const keel_fault_config *fault) {
    switch (fault->kind) {
    case KEEL_FAULT_NAN:
        return fault->quantity;
    case KEEL_FAULT_DEAD_LAYER:
        return keel_quantity_name(KEEL_ACTIVATION);
    case KEEL_FAULT_FAKE_FLOAT32:
        return keel_quantity_name(KEEL_WEIGHT);
    default:
        return NULL;
    }
}

const keel_tap *keel_taps_find(const keel_taps *taps, const keel_fault_config *fault) {
    for (size_t i = 0; i < taps->count; i++)
        if (hits(fault, keel_site_get_info(taps->list[i]->site))) return taps->list[i];
    return NULL;
}

keel_status keel_taps_nearest(const keel_taps *taps, const keel_fault_config *fault, const char **nearest) {
    const char *wanted = quantity_of(fault);
    const keel_quantity quantity = wanted ? keel_quantity_find(wanted) : KEEL_QUANTITY_COUNT;
    const char **names = malloc((taps->count + 1) * sizeof *names);
    if (!names) return keel_fail(KEEL_ERR_MEMORY, "no memory for site names");
    size_t count = 0;
    for (size_t i = 0; i < taps->count; i++) {
        const keel_site_info *info = keel_site_get_info(taps->list[i]->site);
        if (info->quantity == quantity) names[count++] = info->name;
    }
    *nearest = keel_yaml_nearest(fault->site, names, count);
    free(names);
    return KEEL_OK;
}

keel_status keel_taps_fail_unknown(const keel_fault_config *fault, const char *nearest) {
    const char *wanted = quantity_of(fault);
    if (keel_quantity_find(wanted) == KEEL_QUANTITY_COUNT) {
        const char *names[KEEL_QUANTITY_COUNT];
        for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) names[q] = keel_quantity_name((keel_quantity)q);
        return keel_yaml_fail_key(fault->node, "quantity", "no quantity '%s'; the nearest is '%s'", wanted,
                                  keel_yaml_nearest(wanted, names, KEEL_QUANTITY_COUNT));
    }
    if (!nearest) return keel_yaml_fail_key(fault->node, "site", "no site has the quantity %s here", wanted);
    return keel_yaml_fail_key(fault->node, "site", "no site '%s' with the quantity %s; the nearest is '%s'",
                              fault->site, wanted, nearest);
}

static bool same_moment(const keel_fault_config *a, const keel_fault_config *b) {
    bool ranks = a->rank < 0 || b->rank < 0 || a->rank == b->rank;
    return ranks && (keel_fault_due(a, (uint64_t)b->step) || keel_fault_due(b, (uint64_t)a->step));
}

bool keel_taps_concern(const keel_fault_config *fault) {
    return quantity_of(fault) != NULL;
}

keel_status keel_taps_check(const keel_taps *taps) {
    for (size_t i = 0; i < taps->fault_count; i++) {
        const keel_fault_config *fault = &taps->faults[i];
        const keel_tap *tap = keel_taps_find(taps, fault);
        if (!tap) continue;
        const keel_site_info *info = keel_site_get_info(tap->site);
        if (fault->index < 0 || (uint64_t)fault->index >= tap->numel)
            return keel_yaml_fail_key(fault->node, "index", "%s has %llu elements%s", info->name,
                                      (unsigned long long)tap->numel, tap->numel < info->numel ? " on this rank" : "");
        for (size_t j = 0; j < i; j++)
            if (hits(&taps->faults[j], info) && same_moment(&taps->faults[j], fault))
                return keel_yaml_fail_key(fault->node, "site", "another fault hits %s at the same step", info->name);
    }
    return KEEL_OK;
}

bool keel_taps_arm(keel_taps *taps, uint64_t step) {
    bool any = false;
    for (size_t i = 0; i < taps->fault_count; i++) any |= keel_fault_due(&taps->faults[i], step);
    for (size_t t = 0; t < taps->count && taps->fault_count; t++) {
        keel_tap *tap = taps->list[t];
        tap->armed = false;
        tap->struck = 0;
        for (size_t i = 0; i < taps->fault_count; i++) {
            const keel_fault_config *fault = &taps->faults[i];
            if (!keel_fault_due(fault, step) || !keel_fault_concerns(fault, taps->rank)) continue;
            if (!hits(fault, keel_site_get_info(tap->site))) continue;
            tap->armed = true;
            tap->fault = fault;
        }
    }
    return any;
}

void keel_taps_set_loss_scale(keel_taps *taps, double scale) {
    if (scale == taps->loss_scale) return;
    taps->loss_scale = scale;
    for (size_t t = 0; t < taps->count; t++) {
        keel_tap *tap = taps->list[t];
        if (!tap->gradient) continue;
        tap->scaled = scale != 1;
        keel_site_set_scale(tap->site, scale);
    }
}

// Exact for a scale that is a power of two, but below the normal numbers of float32.
static void unscale(const keel_tap *tap, float *out, const float *data, size_t n) {
    const float factor = (float)(1 / tap->taps->loss_scale);
    for (size_t i = 0; i < n; i++) out[i] = data[i] * factor;
}

void keel_tap_strike(const keel_tap *tap, float *data, size_t offset, size_t n) {
    const size_t index = (size_t)tap->fault->index;
    switch (tap->fault->kind) {
    case KEEL_FAULT_NAN:
        if (index >= offset && index - offset < n) data[index - offset] = NAN;
        break;
    case KEEL_FAULT_DEAD_LAYER:
        memset(data, 0, n * sizeof *data);
        break;
    case KEEL_FAULT_FAKE_FLOAT32:
        for (size_t i = 0; i < n; i++) data[i] = keel_bf16_to_f32(keel_bf16_from_f32(data[i]));
        break;
    default:
        break;
    }
}

void keel_taps_pair(keel_tap *earlier, keel_tap *later) {
    earlier->later = later;
    later->earlier = earlier;
}

static bool serves_both(const keel_tap *earlier, const keel_tap *later) {
    return !earlier->armed && !later->armed && !earlier->scaled && !later->scaled &&
           keel_site_asks_alike(earlier->site, later->site);
}

keel_site *keel_tap_other(const keel_tap *later) {
    return later->earlier && later->earlier->left ? later->earlier->site : NULL;
}

void keel_tap_over(keel_tap *tap) {
    if (tap->earlier) tap->earlier->left = false;
    if (tap->armed) tap->struck = tap->taps->micro + 1;
    tap->armed = false;
}

void keel_taps_begin_micro(keel_taps *taps, uint32_t micro) {
    taps->micro = micro;
    keel_micro_begin(taps->probe, micro);
}

void keel_taps_set_again(keel_taps *taps, bool again) {
    taps->again = again;
    for (size_t t = 0; t < taps->count && taps->fault_count; t++)
        if (taps->list[t]->struck == taps->micro + 1) taps->list[t]->armed = again;
}

void keel_tap_begin_active(keel_tap *tap) {
    keel_taps *taps = tap->taps;
    if (taps->again && !tap->armed) return;
    tap->left = !taps->again && tap->later && serves_both(tap, tap->later);
    if (tap->left) return;
    size_t slot = 0;
    while (slot + 1 < OPEN_MAX && taps->used[slot]) slot++;
    taps->used[slot] = true;
    tap->blocks = taps->blocks + slot * (size_t)taps->threads;
    for (int i = 0; i < taps->threads; i++) {
        tap->blocks[i].block.site = NULL;
        if (!taps->again) keel_block_begin(&tap->blocks[i].block, tap->site);
    }
    tap->busy = true;
}

static void add(const keel_tap *tap, int thread, const float *data, size_t n) {
    keel_block *block = &tap->blocks[thread].block;
    float packed[PACKED];
    if (!tap->scaled) {
        keel_block_add(block, data, n);
        return;
    }
    for (size_t at = 0, take; block->site && at < n; at += take) {
        take = n - at < PACKED ? n - at : PACKED;
        unscale(tap, packed, data + at, take);
        keel_block_add(block, packed, take);
    }
}

void keel_tap_piece_active(keel_tap *tap, int thread, float *data, size_t offset, size_t n) {
    if (tap->armed) keel_tap_strike(tap, data, offset, n);
    add(tap, thread, data, n);
}

void keel_tap_part_active(keel_tap *tap, float *data, size_t offset, size_t n) {
    const size_t parts = n / SHARED_PIECE + 1; // the last one takes the rest
    keel_tap_begin_active(tap);
#pragma omp parallel for schedule(static) if (parts > 2)
    for (size_t k = 0; k < parts; k++) {
        const size_t at = k * SHARED_PIECE;
        keel_tap_piece(tap, omp_get_thread_num(), data + at, offset + at, k + 1 < parts ? SHARED_PIECE : n - at);
    }
    keel_tap_end(tap);
}

void keel_tap_tile_active(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                          size_t cols) {
    // Rows of a tile are short: they are observed together.
    float packed[PACKED];
    size_t used = 0;
    for (size_t r = 0; r < rows && tap->armed; r++) keel_tap_strike(tap, data + r * stride, offset + r * stride, cols);
    for (size_t r = 0; r < rows && cols <= PACKED; r++) {
        if (used + cols > PACKED) {
            add(tap, thread, packed, used);
            used = 0;
        }
        memcpy(packed + used, data + r * stride, cols * sizeof(float));
        used += cols;
    }
    if (used) add(tap, thread, packed, used);
    for (size_t r = 0; r < rows && cols > PACKED; r++) add(tap, thread, data + r * stride, cols);
}

void keel_tap_end_active(keel_tap *tap) {
    keel_taps *taps = tap->taps;
    keel_site *other = keel_tap_other(tap);
    for (int i = 0; i < taps->threads; i++) keel_block_end_both(&tap->blocks[i].block, other);
    taps->used[(size_t)(tap->blocks - taps->blocks) / (size_t)taps->threads] = false;
    tap->busy = false;
    keel_tap_over(tap);
}
