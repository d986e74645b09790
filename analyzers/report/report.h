// Reports of a result: for people (text, with small plots) and for programs (JSON, schema 1).
#ifndef KEEL_ANALYZERS_REPORT_REPORT_H
#define KEEL_ANALYZERS_REPORT_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "analyzers/offline.h"

// COLOUR: ANSI colours (a terminal). WIDTH: columns.
keel_status keel_report_text(const keel_result *result, FILE *out, bool colour, int width);
keel_status keel_report_json(const keel_result *result, FILE *out);
// One incident as a JSON object, one line, malloc'ed: what alerts send.
keel_status keel_incident_json(const keel_incident *incident, char **text);

#endif
