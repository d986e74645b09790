#include "analyzers/cause.h"

#include <stdio.h>
#include <string.h>

#include "analyzers/rules.h"

static const keel_trouble *find(const keel_trouble *troubles, uint32_t count, const char *rule) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(keel_rule_table[troubles[i].rule]->rule, rule) == 0) return &troubles[i];
    return NULL;
}

static void set(keel_incident *incident, const char *cause, double confidence) {
    snprintf(incident->cause, sizeof incident->cause, "%s", cause);
    incident->confidence = confidence;
}

// Loss and gradient norm jump in one record and are back within two: the batch was bad, not the parameters.
static bool is_bad_batch(const keel_trouble *loss, const keel_trouble *grad_norm) {
    enum { BACK_WITHIN = 2 + 3 }; // an excursion is known to be over three records later
    return loss && grad_norm && loss->closed && grad_norm->closed && loss->bursts == 1 && grad_norm->bursts == 1 &&
           loss->first_step == grad_norm->first_step && loss->peak_step == loss->first_step &&
           loss->last_record - loss->first_record <= BACK_WITHIN &&
           grad_norm->last_record - grad_norm->first_record <= BACK_WITHIN;
}

void keel_cause(const keel_trouble *troubles, uint32_t count, keel_incident *incident) {
    const keel_trouble *nonfinite = find(troubles, count, "nonfinite");
    const keel_trouble *loss = find(troubles, count, "loss_spike");
    const keel_trouble *grad_norm = find(troubles, count, "grad_norm_spike");
    const keel_trouble *lr = find(troubles, count, "lr_jump");
    const keel_trouble *divergence = find(troubles, count, "loss_divergence");
    bool other = loss || grad_norm || divergence || nonfinite;
    if (nonfinite && nonfinite->site >= 0)
        set(incident, "non-finite tensor", 0.9);
    else if (lr && other)
        set(incident, "learning rate jump", 0.8);
    else if (lr)
        set(incident, "learning rate jump", 1.0);
    else if (find(troubles, count, "resume_discontinuity"))
        set(incident, "resume does not continue", 0.7);
    else if (find(troubles, count, "data_order"))
        set(incident, "order of the data", 0.7);
    else if (!nonfinite && !divergence && is_bad_batch(loss, grad_norm))
        set(incident, "bad batch", 0.5);
    else
        set(incident, "unknown", 0.0);
}
