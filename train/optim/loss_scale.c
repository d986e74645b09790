#include "train/optim/loss_scale.h"

#include <math.h>

void keel_loss_scale_begin(const keel_loss_scale_config *config, keel_loss_scale *state) {
    if (config->type != KEEL_LOSS_SCALE_DYNAMIC) *state = (keel_loss_scale){0};
    if (config->type == KEEL_LOSS_SCALE_DYNAMIC && !(state->scale > 0))
        *state = (keel_loss_scale){.scale = config->loss_scale_value};
}

double keel_loss_scale_now(const keel_loss_scale_config *config, const keel_loss_scale *state) {
    switch (config->type) {
    case KEEL_LOSS_SCALE_FIXED:
        return config->loss_scale_value;
    case KEEL_LOSS_SCALE_DYNAMIC:
        return state->scale;
    default:
        return 1;
    }
}

bool keel_loss_scale_end_step(const keel_loss_scale_config *config, keel_loss_scale *state, bool skipped) {
    const double before = state->scale;
    if (config->type != KEEL_LOSS_SCALE_DYNAMIC) return false;
    if (skipped) {
        state->scale = fmax(before / config->scale_factor, KEEL_LOSS_SCALE_LEAST);
        state->clean = 0;
    } else if (++state->clean >= (uint64_t)config->scale_window) {
        state->scale = fmin(before * config->scale_factor, fmax(config->loss_scale_value, KEEL_LOSS_SCALE_MOST));
        state->clean = 0;
    }
    return state->scale < before;
}
