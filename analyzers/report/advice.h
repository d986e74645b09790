// What to do next about an incident, in one sentence, by its rule.
#ifndef KEEL_ANALYZERS_REPORT_ADVICE_H
#define KEEL_ANALYZERS_REPORT_ADVICE_H

#include "analyzers/group.h"

enum { KEEL_ADVICE_BYTES = 512 };
void keel_advice(const keel_incident *incident, const keel_incident_extra *extra, char text[KEEL_ADVICE_BYTES]);

#endif
