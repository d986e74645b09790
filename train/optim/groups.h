// Groups of parameters by name, each with its own rate, decay and clipping.
#ifndef KEEL_TRAIN_OPTIM_GROUPS_H
#define KEEL_TRAIN_OPTIM_GROUPS_H

#include "train/model/model.h"

typedef struct keel_group {
    double lr_scale;
    double max_grad_norm; // NaN: no clipping of its own
} keel_group;

typedef struct keel_groups {
    keel_group *list; // the configured ones, then the rest
    size_t count;
    size_t *of_param; // [parameter] index in LIST
    double *decay;    // [parameter] weight decay
    bool *used;       // [group] some parameter belongs to it
} keel_groups;

// A parameter belongs to the first group whose pattern is found in its name. KEEL_ERR_CONFIG for a bad pattern and for
// a group that no parameter belongs to, unless these are only a PART of the model's.
keel_status keel_groups_open(const keel_optimizer_config *config, const keel_param *params, size_t count, bool part,
                             keel_groups *groups);
keel_status keel_group_fail_unused(const keel_param_group_config *config);
void keel_groups_close(keel_groups *groups);

#endif
