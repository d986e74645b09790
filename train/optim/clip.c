#include "train/optim/optimizer.h"

double keel_clip_factor(double grad_norm, double max_norm) {
    double factor = max_norm / (grad_norm + 1e-6);
    return factor < 1 ? factor : 1;
}
