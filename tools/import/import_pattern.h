// Regular expressions (PCRE2, compiled to machine code once per process) and what a match left of them.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_PATTERN_H
#define KEEL_TOOLS_IMPORT_IMPORT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// A piece of text that somebody else owns; not terminated.
typedef struct keel_import_slice {
    const char *text; // NULL: absent
    size_t size;
} keel_import_slice;

// To be declared static: compiled at its first use, kept for the process. Texts are bytes, not UTF-8.
typedef struct keel_import_pattern {
    const char *source;
    uint32_t options; // PCRE2_*
    void *code;       // pcre2_code, set once
} keel_import_pattern;

#define KEEL_IMPORT_NUMBER "[-+]?(?:\\d++(?:\\.\\d*+)?|\\.\\d++)(?:[eE][-+]?\\d++)?+|[-+]?(?i:nan|inf(?:inity)?+)"
// What may follow a number that is whole.
#define KEEL_IMPORT_END "(?=[\\s,;|)\\]}]|$)"

typedef struct keel_import_match keel_import_match;
keel_status keel_import_match_open(keel_import_match **match);
void keel_import_match_close(keel_import_match *match); // NULL is fine

// True if PATTERN matches in TEXT at or after FROM; the groups are then in MATCH, slices of TEXT. A pattern that cannot
// be compiled is a fault of the program: it matches nothing (a test compiles them all).
bool keel_import_find(keel_import_match *match, keel_import_pattern *pattern, const char *text, size_t size,
                      size_t from);
// Group GROUP of the latest find (0: the whole); text NULL where it took no part.
keel_import_slice keel_import_group(const keel_import_match *match, uint32_t group);
bool keel_import_group_number(const keel_import_match *match, uint32_t group, double *value);
bool keel_import_group_step(const keel_import_match *match, uint32_t group, uint64_t *step);
// Where the latest find ended.
size_t keel_import_match_end(const keel_import_match *match);

// A whole slice as a number: decimal, nan, inf; blanks around it are skipped. False: it is something else.
bool keel_import_number(keel_import_slice slice, double *value);
// A whole slice as a step: a number that is a whole one in 0..2^53.
bool keel_import_step(keel_import_slice slice, uint64_t *step);
bool keel_import_step_from(double value, uint64_t *step);

#endif
