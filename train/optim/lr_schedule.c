#include <math.h>

#include "train/optim/optimizer.h"

double keel_lr_at(const keel_lr_config *config, uint64_t t) {
    uint64_t warmup = (uint64_t)config->warmup_steps, total = (uint64_t)config->total_steps;
    double peak = config->learning_rate, end = config->lr_end;
    if (t <= warmup && warmup) return peak * (double)t / (double)warmup;
    if (config->type == KEEL_LR_CONSTANT) return peak;
    if (t >= total) return end;
    double progress = (double)(t - warmup) / (double)(total - warmup);
    if (config->type == KEEL_LR_LINEAR) return peak + (end - peak) * progress;
    return end + (peak - end) * 0.5 * (1 + cos(3.14159265358979323846 * progress));
}
