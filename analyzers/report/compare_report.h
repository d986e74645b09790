// Reports of a comparison of two runs: for people and for programs (JSON, schema 1).
#ifndef KEEL_ANALYZERS_REPORT_COMPARE_REPORT_H
#define KEEL_ANALYZERS_REPORT_COMPARE_REPORT_H

#include <stdio.h>

#include "analyzers/compare.h"

// A and B: the runs as the user named them. KEEL_ERR_IO where OUT cannot be written, KEEL_ERR_MEMORY.
keel_status keel_compare_text(const keel_comparison *comparison, const char *a, const char *b, FILE *out);
// {"schema", "a", "b", "op", "tolerance", "common_steps", "first_step", "last_step", "only_a_steps", "only_b_steps",
// "parted", "first", "partings": [{"series", "site", "step", "before", "a", "b", "ratio"}], "greatest", "tables":
// [{"series", "site", "steps", "a", "b"}], "layers": [{"quantity", "layer", "module", "sites", "parted", "steps", "a",
// "b", "ratio"}], "only_a", "only_b", "not_judged"}. Where there is nothing to say: null.
keel_status keel_compare_json(const keel_comparison *comparison, const char *a, const char *b, FILE *out);

// b / a; 1 where both are 0; keel_not_collected() where one is.
double keel_compare_ratio(double a, double b);
// The judged series with the greatest finite difference; NULL where there is none.
const keel_compared *keel_compare_greatest(const keel_comparison *comparison);

#endif
