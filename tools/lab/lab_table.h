// What the laboratory found, as text, JSON and a document.
#ifndef KEEL_TOOLS_LAB_LAB_TABLE_H
#define KEEL_TOOLS_LAB_LAB_TABLE_H

#include <stdio.h>

#include "tools/lab/lab.h"

void keel_lab_print_text(const keel_lab_report *report, FILE *out);
// {"seed": S, "faults": [{"name", "about", "runs", "found", "latency_steps", "sudden", "site_right", "rank_right",
// "cause_first", "early"}], "healthy": {"runs", "steps", "false_alarms", "criticals", "warnings",
// "per_10000", "bound_per_10000"}}. latency_steps: the median of those found. null: nothing was found, or nothing is
// asked of a site or rank, or there was no healthy step.
keel_status keel_lab_print_json(const keel_lab_report *report, uint64_t seed, FILE *out);
// docs/detectors.md. COMMAND: what made it.
void keel_lab_print_document(const keel_lab_report *report, const char *command, FILE *out);

#endif
