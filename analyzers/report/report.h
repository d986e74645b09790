// Reports of a result: for people (text, with small plots) and for programs (JSON, schema 1).
#ifndef KEEL_ANALYZERS_REPORT_REPORT_H
#define KEEL_ANALYZERS_REPORT_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "analyzers/offline.h"

typedef struct keel_report_style {
    bool colour; // ANSI colours: a terminal
    bool ascii;  // no character beyond ASCII: the locale is not UTF-8
    int width;   // columns; 40 at least are used
} keel_report_style;

// KEEL_ERR_IO where OUT cannot be written, KEEL_ERR_MEMORY.
keel_status keel_report_text(const keel_result *result, const keel_report_style *style, FILE *out);
// The COUNT runs of one source as one object: several runs have their incidents in one list, each with its `run` from
// 1, and a list `runs` with what is known of each.
keel_status keel_report_json(const keel_result *const *runs, size_t count, FILE *out);
// One line: the verdict (`empty` of a run without a record), the source, how many incidents, the worst of them.
keel_status keel_report_line(const keel_result *result, const keel_report_style *style, FILE *out);

// Whether all that was printed to OUT has gone out, which is flushed: else KEEL_ERR_IO.
keel_status keel_report_written(FILE *out);

// The incident that a report speaks of first: the most severe, of those the earliest, one that was not rolled back
// before one that was. NULL where there is none.
const keel_incident *keel_report_worst(const keel_result *result);
// The greatest severity of an incident that was not rolled back; -1 where there is none.
int keel_report_severity(const keel_result *result);

// One incident as a JSON object, one line, malloc'ed: what alerts send. EXTRA NULL: no evidence.
keel_status keel_incident_json(const keel_incident *incident, const keel_incident_extra *extra, char **text);

#endif
