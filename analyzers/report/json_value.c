#include "analyzers/report/json_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *keel_json_number(double value) {
    if (isfinite(value)) return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

json_t *keel_json_text(const char *string) {
    json_t *valid = json_string(string);
    if (valid) return valid;
    char *copy = strdup(string);
    if (!copy) return NULL;
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    valid = json_string(copy);
    free(copy);
    return valid;
}

json_t *keel_json_left_out(const keel_left_out *left_out) {
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "lines", (json_int_t)left_out->lines, "rows",
                     (json_int_t)left_out->rows, "values", (json_int_t)left_out->values, "misplaced",
                     (json_int_t)left_out->misplaced, "first_line",
                     left_out->first_line ? json_integer((json_int_t)left_out->first_line) : json_null());
}
