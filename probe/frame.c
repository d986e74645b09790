#include "probe/frame.h"

#include <math.h>

static size_t record_count(const keel_frame *frame) {
    return frame->site_count + (size_t)frame->micro_count * frame->micro_site_count;
}

size_t keel_frame_bytes(uint32_t scalars, uint32_t sites, uint32_t micros, uint32_t micro_sites) {
    const size_t records = sites + (size_t)micros * micro_sites;
    return sizeof(keel_frame) + scalars * sizeof(keel_scalar_value) + records * sizeof(keel_stats);
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

void keel_frame_merge(keel_frame *into, const keel_frame *from) {
    into->step.flags |= from->step.flags;
    if (from->step.seconds > into->step.seconds) into->step.seconds = from->step.seconds;

    keel_scalar_value *into_values = keel_frame_scalars(into);
    const keel_scalar_value *from_values = (const keel_scalar_value *)(from + 1);
    for (uint32_t i = 0; i < into->scalar_count; i++) merge_scalar(&into_values[i], &from_values[i]);

    keel_stats *into_records = keel_frame_stats(into);
    const keel_stats *from_records = (const keel_stats *)(from_values + from->scalar_count);
    const size_t count = record_count(into);
    for (size_t i = 0; i < count; i++) keel_stats_merge(&into_records[i], &from_records[i]);
}
