#include "tools/import/import_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <math.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 32, NUMBER_BYTES = 64 };

struct keel_import_match {
    pcre2_match_data *data;
    const char *text;
    uint32_t groups; // filled by the latest find
};

static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER;

static pcre2_code *compiled(keel_import_pattern *pattern) {
    pcre2_code *code = __atomic_load_n(&pattern->code, __ATOMIC_ACQUIRE);
    if (code) return code;
    pthread_mutex_lock(&compiling);
    code = pattern->code;
    if (!code) {
        int error;
        PCRE2_SIZE offset;
        code =
            pcre2_compile((PCRE2_SPTR)pattern->source, PCRE2_ZERO_TERMINATED, pattern->options, &error, &offset, NULL);
        // Without the just-in-time compiler (some hardened systems) pcre2_match interprets: slower, the same matches.
        if (code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        __atomic_store_n(&pattern->code, code, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&compiling);
    return code;
}

keel_status keel_import_match_open(keel_import_match **match) {
    keel_import_match *made = calloc(1, sizeof *made);
    if (made) made->data = pcre2_match_data_create(GROUPS, NULL);
    if (!made || !made->data) {
        free(made);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for a pattern match");
    }
    *match = made;
    return KEEL_OK;
}

void keel_import_match_close(keel_import_match *match) {
    if (!match) return;
    pcre2_match_data_free(match->data);
    free(match);
}

bool keel_import_find(keel_import_match *match, keel_import_pattern *pattern, const char *text, size_t size,
                      size_t from) {
    match->groups = 0;
    pcre2_code *code = compiled(pattern);
    if (!code || from > size) return false;
    int count = pcre2_match(code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, match->data, NULL);
    if (count <= 0) return false;
    match->text = text;
    match->groups = (uint32_t)count;
    return true;
}

keel_import_slice keel_import_group(const keel_import_match *match, uint32_t group) {
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match->data);
    if (group >= match->groups || ends[2 * group] == PCRE2_UNSET) return (keel_import_slice){NULL, 0};
    return (keel_import_slice){match->text + ends[2 * group], ends[2 * group + 1] - ends[2 * group]};
}

bool keel_import_group_number(const keel_import_match *match, uint32_t group, double *value) {
    return keel_import_number(keel_import_group(match, group), value);
}

bool keel_import_group_step(const keel_import_match *match, uint32_t group, uint64_t *step) {
    return keel_import_step(keel_import_group(match, group), step);
}

size_t keel_import_match_end(const keel_import_match *match) {
    return match->groups ? pcre2_get_ovector_pointer(match->data)[1] : 0;
}

// What decimal numbers, nan and inf are made of: strtod would also take hexadecimal floats and nan(text).
static bool is_number_char(char c) {
    static const bool allowed[256] = {
        ['0'] = true, ['1'] = true, ['2'] = true, ['3'] = true, ['4'] = true, ['5'] = true, ['6'] = true,
        ['7'] = true, ['8'] = true, ['9'] = true, ['.'] = true, ['+'] = true, ['-'] = true, ['e'] = true,
        ['E'] = true, ['n'] = true, ['N'] = true, ['a'] = true, ['A'] = true, ['i'] = true, ['I'] = true,
        ['f'] = true, ['F'] = true, ['t'] = true, ['T'] = true, ['y'] = true, ['Y'] = true,
    };
    return allowed[(unsigned char)c];
}

bool keel_import_number(keel_import_slice slice, double *value) {
    while (slice.size && isspace((unsigned char)*slice.text)) slice.text++, slice.size--;
    while (slice.size && isspace((unsigned char)slice.text[slice.size - 1])) slice.size--;
    char copy[NUMBER_BYTES];
    if (!slice.size || slice.size >= sizeof copy) return false;
    for (size_t i = 0; i < slice.size; i++) {
        if (!is_number_char(slice.text[i])) return false;
        copy[i] = slice.text[i];
    }
    copy[slice.size] = 0;
    char *end;
    double read = strtod(copy, &end);
    if (end != copy + slice.size) return false;
    *value = isnan(read) ? (double)NAN : read;
    return true;
}

bool keel_import_step_from(double value, uint64_t *step) {
    if (!(value >= 0 && value <= 0x1p53) || value != floor(value)) return false;
    *step = (uint64_t)value;
    return true;
}

bool keel_import_step(keel_import_slice slice, uint64_t *step) {
    double value;
    return keel_import_number(slice, &value) && keel_import_step_from(value, step);
}
