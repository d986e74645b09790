// Numbers out of the settings that a run's store keeps: the clip threshold, the size of the vocabulary.
#ifndef KEEL_ANALYZERS_RUN_SETTINGS_H
#define KEEL_ANALYZERS_RUN_SETTINGS_H

#include "collectors/row.h"

// The number at SECTION.KEY of the run's stored document; FALLBACK where there is none.
double keel_run_setting(const keel_run_info *info, const char *section, const char *key, double fallback);

#endif
