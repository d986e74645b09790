#include "collectors/collector.h"

const keel_collector *const keel_collectors[] = {&keel_collector_system, NULL};

void keel_frame_set_scalar(keel_frame *frame, uint32_t id, uint32_t rank, double value) {
    keel_scalar_value *scalar = &keel_frame_scalars(frame)[id];
    if (scalar->owner != KEEL_RANK_NONE) return;
    scalar->value = value;
    scalar->owner = rank;
}
