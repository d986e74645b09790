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
extern const keel_detector keel_detect_tensor_jump;
extern const keel_detector keel_detect_tensor_trend;
extern const keel_detector keel_detect_dead_unit;
extern const keel_detector keel_detect_fake_float32;
extern const keel_detector keel_detect_precision_policy;
extern const keel_detector keel_detect_update_ratio;
extern const keel_detector keel_detect_vanishing_gradient;
extern const keel_detector keel_detect_rank_outlier;
extern const keel_detector keel_detect_replica_divergence;
extern const keel_detector keel_detect_attention_logit_growth;
extern const keel_detector keel_detect_fp16_underflow;
extern const keel_detector keel_detect_stale_second_moment;
extern const keel_detector keel_detect_initialisation;
extern const keel_detector keel_detect_fp16_overflow;
extern const keel_detector keel_detect_memory_growth;
extern const keel_detector keel_detect_straggler;
extern const keel_detector keel_detect_dead_rank;
extern const keel_detector keel_detect_hang;
extern const keel_detector keel_detect_router_collapse;
extern const keel_detector keel_detect_drop_rate;
extern const keel_detector keel_detect_template; // not in the table: the example to start from

#endif
