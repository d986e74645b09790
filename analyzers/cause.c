#include "analyzers/cause.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/rules.h"

const keel_trouble *keel_case_find_series(const keel_case *c, const char *rule, const char *series) {
    for (uint32_t i = 0; i < c->count; i++) {
        const keel_trouble *t = &c->troubles[i];
        if (strcmp(keel_rule_table[t->rule]->rule, rule) == 0 && (!series || strcmp(t->series, series) == 0)) return t;
    }
    return NULL;
}

const keel_trouble *keel_case_find(const keel_case *c, const char *rule) {
    return keel_case_find_series(c, rule, NULL);
}

void keel_verdict_line(keel_verdict *verdict, const char *format, ...) {
    if (verdict->lines == KEEL_CAUSE_LINES) return;
    va_list args;
    va_start(args, format);
    vsnprintf(verdict->evidence[verdict->lines++], KEEL_EVIDENCE_BYTES, format, args);
    va_end(args);
}

void keel_cause(const keel_case *c, keel_verdict *verdict) {
    *verdict = (keel_verdict){.cause = "unknown"};
    for (const keel_cause_test *t = keel_cause_table; t->name; t++) {
        keel_verdict other = {.cause = t->name};
        other.confidence = t->test(c, &other);
        if (other.confidence > verdict->confidence) *verdict = other;
    }
}
