// What a step's routing to experts comes to: the scalars aux_loss, z_loss, loss_total and drop_rate (the mean of the
// layers'), and the caller's report.
#ifndef KEEL_TRAIN_ROUTING_REPORT_H
#define KEEL_TRAIN_ROUTING_REPORT_H

#include "train/model/model.h"
#include "train/trainer.h"

typedef struct keel_routing_report {
    keel_routing_totals *totals; // [layers]
    double *values;              // [layers, KEEL_ROUTING_VALUES]: means of the step's micro-batches
    size_t layers;               // of the whole model; 0: no experts, nothing is done
    keel_collective *gather;     // from all stages
    const keel_moe_config *config;
    uint32_t aux_loss, z_loss, loss_total, drop_rate; // scalars
} keel_routing_report;

keel_status keel_routing_report_open(const keel_model_config *config, keel_probe *probe, const keel_mesh *mesh,
                                     keel_collectives *collectives, keel_routing_report *report);
void keel_routing_report_close(keel_routing_report *report); // zeros are fine

// Before a step: what was routed for other ends is forgotten.
void keel_routing_report_begin(const keel_routing_report *report, keel_model *model);
// After its last backward pass. Collective.
keel_status keel_routing_report_gather(const keel_routing_report *report, keel_model *model);
// Sets the scalars of STEP, whose cross entropy is LOSS, and tells LISTENER.
void keel_routing_report_tell(const keel_routing_report *report, keel_probe *probe, const keel_step *step, double loss,
                              const keel_trainer_report *listener);

#endif
