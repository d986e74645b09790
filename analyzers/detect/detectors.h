// Every detector of this folder. A new one is declared here and entered in the table of analyzers/rules.c.
#ifndef KEEL_ANALYZERS_DETECT_DETECTORS_H
#define KEEL_ANALYZERS_DETECT_DETECTORS_H

#include "analyzers/detector.h"

extern const keel_detector keel_detect_nonfinite;
extern const keel_detector keel_detect_resume_discontinuity;
extern const keel_detector keel_detect_data_order;
extern const keel_detector keel_detect_loss_divergence;
extern const keel_detector keel_detect_loss_spike;
extern const keel_detector keel_detect_loss_scale_collapse;
extern const keel_detector keel_detect_grad_norm_spike;
extern const keel_detector keel_detect_lr_jump;
extern const keel_detector keel_detect_clip_ineffective;
extern const keel_detector keel_detect_clip_constant;
extern const keel_detector keel_detect_plateau;
extern const keel_detector keel_detect_template; // not in the table: the example to start from

#endif
