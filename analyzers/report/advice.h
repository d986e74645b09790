// What to do next about an incident, in one sentence, by its rule.
#ifndef KEEL_ANALYZERS_REPORT_ADVICE_H
#define KEEL_ANALYZERS_REPORT_ADVICE_H

#include "collectors/incident.h"

const char *keel_advice(const keel_incident *incident);

#endif
