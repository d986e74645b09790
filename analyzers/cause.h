// What caused an incident, as far as its own findings decide it; "unknown" with confidence 0 where they do not.
#ifndef KEEL_ANALYZERS_CAUSE_H
#define KEEL_ANALYZERS_CAUSE_H

#include "analyzers/group.h"

// TROUBLES: of the incident, COUNT of them. Fills cause and confidence.
void keel_cause(const keel_trouble *troubles, uint32_t count, keel_incident *incident);

#endif
