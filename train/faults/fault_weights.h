// Faults of the weights.
#ifndef KEEL_TRAIN_FAULTS_FAULT_WEIGHTS_H
#define KEEL_TRAIN_FAULTS_FAULT_WEIGHTS_H

#include "configs/train_config.h"
#include "train/model/model.h"

// True if FAULT's site is a parameter.
bool keel_fault_names_parameter(const keel_fault_config *fault);
// For such a fault: whether MODEL, which may be one stage of several, has the parameter; if not, the nearest name; and
// KEEL_ERR_CONFIG with the place and that name.
bool keel_fault_finds_parameter(const keel_model *model, const keel_fault_config *fault);
keel_status keel_fault_nearest_parameter(const keel_model *model, const keel_fault_config *fault, const char **nearest);
keel_status keel_fault_fail_parameter(const keel_fault_config *fault, const char *nearest);
// KEEL_ERR_CONFIG, with the place, for a layer or an element that there is not. Other faults, and those of parameters
// that are not in MODEL, are fine.
keel_status keel_fault_check_weights(const keel_model_config *config, const keel_model *model,
                                     const keel_fault_config *fault);

// They do nothing to a parameter that is not here.
void keel_fault_flip_bit(keel_model *model, const keel_fault_config *fault);
void keel_fault_scale_parameter(keel_model *model, const keel_fault_config *fault);
void keel_fault_scale_queries(const keel_model_config *config, keel_model *model, const keel_fault_config *fault);

#endif
