// How far Adam's second moment lags behind the gradients of a parameter.
#ifndef KEEL_TRAIN_OPTIM_ADAM_RMS_H
#define KEEL_TRAIN_OPTIM_ADAM_RMS_H

#include <stddef.h>

typedef struct keel_adam_rms {
    float clip;   // what gradients are multiplied by
    float unbias; // 1 / (1 - beta2^t)
    float eps;
} keel_adam_rms;

// Sum of g^2 / max(v_hat, eps^2) over N elements; in float64, in a fixed order.
double keel_adam_rms_sum(const float *grad, const float *exp_avg_sq, size_t n, const keel_adam_rms *rms);

#endif
