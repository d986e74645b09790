// Faults of the weights.
#ifndef KEEL_TRAIN_FAULTS_FAULT_WEIGHTS_H
#define KEEL_TRAIN_FAULTS_FAULT_WEIGHTS_H

#include "configs/train_config.h"
#include "train/model/model.h"

// True unless FAULT is one of a parameter that MODEL, which may be one stage of several, does not have.
bool keel_fault_finds_weights(const keel_model *model, const keel_fault_config *fault);
// KEEL_ERR_CONFIG, with the place and the nearest name, for a fault of weights that MODEL does not have. Other faults
// are fine.
keel_status keel_fault_check_weights(const keel_model_config *config, const keel_model *model,
                                     const keel_fault_config *fault);

// They do nothing to a parameter that is not here.
void keel_fault_flip_bit(keel_model *model, const keel_fault_config *fault);
void keel_fault_scale_parameter(keel_model *model, const keel_fault_config *fault);
void keel_fault_scale_queries(const keel_model_config *config, keel_model *model, const keel_fault_config *fault);

#endif
