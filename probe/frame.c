#include "probe/frame.h"

#include <math.h>

static size_t record_count(const keel_frame *frame) {
    return frame->site_count + (size_t)frame->micro_count * frame->micro_site_count;
}

size_t keel_frame_bytes(uint32_t scalars, uint32_t sites, uint32_t micros, uint32_t micro_sites) {
    const size_t records = sites + (size_t)micros * micro_sites;
    return sizeof(keel_frame) + scalars * sizeof(keel_scalar_value) + records * sizeof(keel_stats);
}

size_t keel_frame_size(const keel_frame *frame) {
    return keel_frame_bytes(frame->scalar_count, frame->site_count, frame->micro_count, frame->micro_site_count);
}

keel_frame *keel_frame_init(void *memory, uint32_t scalars, uint32_t sites, uint32_t micros, uint32_t micro_sites) {
    keel_frame *frame = memory;
    frame->scalar_count = scalars;
    frame->site_count = sites;
    frame->micro_count = micros;
    frame->micro_site_count = micro_sites;
    keel_scalar_value *values = keel_frame_scalars(frame);
    for (uint32_t i = 0; i < scalars; i++) values[i].merge = KEEL_SCALAR_FIRST;
    keel_frame_clear(frame);
    return frame;
}

void keel_frame_clear(keel_frame *frame) {
    frame->step = (keel_step){0};
    keel_scalar_value *values = keel_frame_scalars(frame);
    for (uint32_t i = 0; i < frame->scalar_count; i++) {
        values[i].value = NAN;
        values[i].owner = KEEL_RANK_NONE;
    }
    keel_stats *records = keel_frame_stats(frame);
    const size_t count = record_count(frame);
    for (size_t i = 0; i < count; i++) keel_stats_clear(&records[i]);
}

keel_scalar_value *keel_frame_scalars(keel_frame *frame) {
    return (keel_scalar_value *)(frame + 1);
}

keel_stats *keel_frame_stats(keel_frame *frame) {
    return (keel_stats *)(keel_frame_scalars(frame) + frame->scalar_count);
}

keel_stats *keel_frame_micro(keel_frame *frame, uint32_t m, uint32_t k) {
    return keel_frame_stats(frame) + frame->site_count + (size_t)m * frame->micro_site_count + k;
}

// True if B is the greater of the two; NaN is the greatest.
static bool is_greater(double b, double a) {
    return isnan(b) ? !isnan(a) : b > a;
}

static bool is_same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

static void merge_scalar(keel_scalar_value *into, const keel_scalar_value *from) {
    if (from->owner == KEEL_RANK_NONE) return;
    if (into->owner == KEEL_RANK_NONE) {
        *into = *from;
        return;
    }
    const bool from_is_lower = from->owner < into->owner;
    bool take = false;
    switch ((keel_scalar_merge)into->merge) {
    case KEEL_SCALAR_FIRST:
        take = from_is_lower;
        break;
    case KEEL_SCALAR_MAX:
        take = is_greater(from->value, into->value) || (is_same(from->value, into->value) && from_is_lower);
        break;
    case KEEL_SCALAR_MIN:
        take = is_greater(into->value, from->value) || (is_same(from->value, into->value) && from_is_lower);
        break;
    case KEEL_SCALAR_SUM:
        into->value += from->value;
        if (from_is_lower) into->owner = from->owner;
        break;
    }
    if (take) *into = *from;
}

static void merge_step(keel_step *into, const keel_step *from) {
    into->flags |= from->flags;
    if (from->seconds > into->seconds) into->seconds = from->seconds;
}

static const keel_scalar_value *scalars_of(const keel_frame *frame) {
    return (const keel_scalar_value *)(frame + 1);
}

static const keel_stats *records_of(const keel_frame *frame) {
    return (const keel_stats *)(scalars_of(frame) + frame->scalar_count);
}

void keel_frame_merge(keel_frame *into, const keel_frame *from) {
    merge_step(&into->step, &from->step);
    keel_scalar_value *into_values = keel_frame_scalars(into);
    for (uint32_t i = 0; i < into->scalar_count; i++) merge_scalar(&into_values[i], &scalars_of(from)[i]);

    keel_stats *into_records = keel_frame_stats(into);
    const keel_stats *from_records = records_of(from);
    const size_t count = record_count(into);
    for (size_t i = 0; i < count; i++) keel_stats_merge(&into_records[i], &from_records[i]);
}

void keel_frame_merge_at(keel_frame *into, const keel_frame *from, const keel_frame_map *map) {
    merge_step(&into->step, &from->step);
    keel_scalar_value *values = keel_frame_scalars(into);
    for (uint32_t i = 0; i < from->scalar_count; i++) merge_scalar(&values[map->scalars[i]], &scalars_of(from)[i]);

    const keel_stats *records = records_of(from);
    for (uint32_t s = 0; s < from->site_count; s++)
        keel_stats_merge(&keel_frame_stats(into)[map->sites[s]], &records[s]);
    records += from->site_count;
    for (uint32_t m = 0; m < from->micro_count; m++)
        for (uint32_t k = 0; k < from->micro_site_count; k++)
            keel_stats_merge(keel_frame_micro(into, m, map->micro_sites[k]), records++);
}
