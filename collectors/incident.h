// An incident as it is stored and shown: findings that belong together. Detected in analyzers/, kept here since the
// store writes and reads it.
#ifndef KEEL_COLLECTORS_INCIDENT_H
#define KEEL_COLLECTORS_INCIDENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/site.h"

typedef enum keel_severity { KEEL_INFO, KEEL_WARNING, KEEL_CRITICAL } keel_severity;
const char *keel_severity_name(keel_severity severity); // "info", "warning", "critical"
// False if there is none of that name.
bool keel_severity_find(const char *name, keel_severity *severity);

enum { KEEL_RULE_BYTES = 32, KEEL_SERIES_BYTES = 96, KEEL_CAUSE_BYTES = 64, KEEL_MESSAGE_BYTES = 256 };
enum { KEEL_INCIDENT_SITE_BYTES = KEEL_SITE_NAME_BYTES + 32 };

typedef struct keel_incident {
    uint32_t id;       // from 1, unique in a run
    uint32_t revision; // from 1; the highest wins
    keel_severity severity;
    uint32_t open;                       // 1 while it may still grow
    char rule[KEEL_RULE_BYTES];          // the rule of the finding that leads
    char series[KEEL_SERIES_BYTES];      // comma-separated: "loss,grad_norm", ops as "norm"
    char site[KEEL_INCIDENT_SITE_BYTES]; // "NAME:QUANTITY" of the first site in data-flow order; "" when none
    int32_t rank;                        // first bad rank; -1 unknown
    uint64_t first_step, peak_step, last_step;
    double value, expected, score;    // at the peak
    char cause[KEEL_CAUSE_BYTES];     // "unknown" when the evidence does not decide
    double confidence;                // 0..1
    char message[KEEL_MESSAGE_BYTES]; // one plain sentence, UTF-8; see keel_text_fit
} keel_incident;

// Copies TEXT into the SIZE bytes at TO (at least 4), always ended by a NUL. What is too long is cut at the border of a
// UTF-8 character and marked with "..." at its end; then false.
bool keel_text_fit(char *to, size_t size, const char *text);

#endif
