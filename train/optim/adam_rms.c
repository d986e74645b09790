#include "train/optim/adam_rms.h"

#include <math.h>

double keel_adam_rms_sum(const float *grad, const float *exp_avg_sq, size_t n, const keel_adam_rms *rms) {
    const float clip = rms->clip, unbias = rms->unbias, least = rms->eps * rms->eps;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * clip;
        sum += (double)(g * g / fmaxf(exp_avg_sq[i] * unbias, least));
    }
    return sum;
}
