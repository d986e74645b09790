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
