// What caused an incident, as far as its findings, the run's settings and what is usual in it decide: causes with their
// evidence in numbers and a confidence. "unknown" with confidence 0 where the evidence does not decide.
#ifndef KEEL_ANALYZERS_CAUSE_H
#define KEEL_ANALYZERS_CAUSE_H

#include "analyzers/group.h"

enum { KEEL_CAUSE_LINES = 4 };

// What the tests of causes see.
typedef struct keel_case {
    const keel_run_view *run;
    const keel_trouble *troubles; // of the incident, in the order in which they came
    uint32_t count;
    uint64_t first_step; // of the incident
} keel_case;

typedef struct keel_verdict {
    const char *cause;
    double confidence;           // 0..1
    const keel_trouble *culprit; // whose place and rank are the incident's; NULL: those of what began first
    uint32_t lines;
    char evidence[KEEL_CAUSE_LINES][KEEL_EVIDENCE_BYTES];
} keel_verdict;

// The trouble of RULE; NULL: the incident has none.
const keel_trouble *keel_case_find(const keel_case *c, const char *rule);
// The same of one of the rule's series.
const keel_trouble *keel_case_find_series(const keel_case *c, const char *rule, const char *series);
void keel_verdict_line(keel_verdict *verdict, const char *format, ...) KEEL_PRINTF(2, 3);

// One possible cause: its test returns a confidence, 0 where it is none of this incident's, and adds lines of evidence.
typedef struct keel_cause_test {
    const char *name;
    double (*test)(const keel_case *c, keel_verdict *verdict);
} keel_cause_test;
extern const keel_cause_test keel_cause_table[]; // ended by a NULL name; of equal confidence the first counts

// The most likely cause.
void keel_cause(const keel_case *c, keel_verdict *verdict);

#endif
