// What the rules and the diagnosis need of the settings that a run's store keeps (/config_yaml): numbers of the
// trainer's sections, and the dtypes that things are computed in. Runs of other programs have none.
#ifndef KEEL_ANALYZERS_RUN_SETTINGS_H
#define KEEL_ANALYZERS_RUN_SETTINGS_H

#include "collectors/row.h"

typedef enum keel_computed { KEEL_COMPUTED_FLOAT32, KEEL_COMPUTED_BFLOAT16, KEEL_COMPUTED_FLOAT16 } keel_computed;
const char *keel_computed_name(keel_computed dtype); // "float32", ...

typedef enum keel_scaling { KEEL_SCALING_NONE, KEEL_SCALING_FIXED, KEEL_SCALING_DYNAMIC } keel_scaling;

typedef struct keel_run_settings {
    bool known;           // the document has the trainer's model_config; else all others stand at their defaults
    double vocab_size;    // 0: unknown
    double max_grad_norm; // 0: no clipping, or unknown
    double learning_rate; // peak; 0: unknown
    double warmup_steps, steps;
    double beta1, beta2, eps; // of Adam; 0.9, 0.999, 1e-8 where nothing is known
    double initializer_range; // 0: unknown
    bool pretrained;          // starts from given weights
    keel_scaling scaling;     // of the loss
    keel_computed compute, softmax, norm, loss, value, embedding, head, grad_reduce;
} keel_run_settings;

void keel_run_settings_read(const keel_run_info *info, keel_run_settings *settings);

// The number at SECTION.KEY of the run's stored document; FALLBACK where there is none.
double keel_run_setting(const keel_run_info *info, const char *section, const char *key, double fallback);

#endif
