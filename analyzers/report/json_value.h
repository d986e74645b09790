// Values in JSON as reports have them.
#ifndef KEEL_ANALYZERS_REPORT_JSON_VALUE_H
#define KEEL_ANALYZERS_REPORT_JSON_VALUE_H

#include <jansson.h>

#include "analyzers/offline.h"

// A number that is not finite is a string: "nan", "inf", "-inf". A new reference; NULL without memory.
json_t *keel_json_number(double value);
// Names and paths may hold any byte, JSON may not: where they are not UTF-8, each byte beyond ASCII is a '?'.
json_t *keel_json_text(const char *string);
// What a log's reader left out: an object of counts.
json_t *keel_json_left_out(const keel_left_out *left_out);

#endif
