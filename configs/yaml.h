// The one loader of YAML: a tree of nodes that know where they stand, and readers that check key, type and range and
// fail with "FILE:LINE:COLUMN: KEY: what is wrong" and, for an unknown key, the nearest known one.
#ifndef KEEL_CONFIGS_YAML_H
#define KEEL_CONFIGS_YAML_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

KEEL_C_BEGIN

typedef struct keel_yaml keel_yaml;           // a document; owns its nodes
typedef struct keel_yaml_node keel_yaml_node; // valid as long as the document

// What a document may hold: an alias that would copy more than this is refused, not expanded.
enum { KEEL_YAML_MAX_BYTES = 1 << 20, KEEL_YAML_MAX_NODES = 10000, KEEL_YAML_MAX_DEPTH = 64 };

// Anchors and aliases are resolved, merge keys ("<<") too. One document per file, UTF-8. A tab in indentation, a
// duplicate key, a tag other than !!str, a bound met and everything that libyaml refuses are KEEL_ERR_CONFIG with the
// place. A file that cannot be read is KEEL_ERR_IO.
KEEL_API keel_status keel_yaml_load(const char *path, keel_yaml **doc);
KEEL_API keel_status keel_yaml_parse(const char *name, const char *text, size_t size,
                                     keel_yaml **doc);               // NAME stands for the file in messages
KEEL_API void keel_yaml_free(keel_yaml *doc);                        // NULL is fine
KEEL_API const char *keel_yaml_name(const keel_yaml *doc);           // the file's path
KEEL_API const keel_yaml_node *keel_yaml_root(const keel_yaml *doc); // NULL for an empty document

// "key.path=value" over the document: creates missing mappings, replaces what is there; value is YAML ("[1, 2]", "0.1",
// "text"). List items by number ("faults.0.step=3"). The document is as before on failure. In messages such a value
// stands in "--set", its line is the number of the assignment on this document, from 1, its column that in the
// assignment.
KEEL_API keel_status keel_yaml_set(keel_yaml *doc, const char *assignment);

// Puts OVERLAY, a mapping of any document (NULL or null: nothing), over DOC's own: mappings are merged key by key, all
// else takes the place of what is there. What is taken over keeps its place in messages, and
// OVERLAY's document must outlive DOC.
KEEL_API keel_status keel_yaml_overlay(keel_yaml *doc, const keel_yaml_node *overlay);

// The same for one KEY at the top, whose value in FROM takes the place of whatever is there: null where FROM lacks it.
KEEL_API keel_status keel_yaml_take(keel_yaml *doc, const keel_yaml *from, const char *key);

// The document as YAML text, malloc'ed, with overrides applied: what the store keeps as /config_yaml.
KEEL_API keel_status keel_yaml_dump(const keel_yaml *doc, char **text, size_t *size);

typedef enum keel_yaml_kind { KEEL_YAML_NULL, KEEL_YAML_SCALAR, KEEL_YAML_LIST, KEEL_YAML_MAP } keel_yaml_kind;
KEEL_API keel_yaml_kind keel_yaml_kind_of(const keel_yaml_node *node); // of NULL: KEEL_YAML_NULL
// The child of a mapping; NULL if absent or NODE is no mapping or NULL.
KEEL_API const keel_yaml_node *keel_yaml_get(const keel_yaml_node *node, const char *key);
KEEL_API size_t keel_yaml_size(const keel_yaml_node *node); // items of a list, pairs of a map; else 0
KEEL_API const keel_yaml_node *keel_yaml_item(const keel_yaml_node *node, size_t index);
KEEL_API const char *keel_yaml_key(const keel_yaml_node *node, size_t index); // of a map
KEEL_API const char *keel_yaml_text(const keel_yaml_node *node); // of a scalar, unquoted; NULL of anything else

// Fails with KEEL_ERR_CONFIG: "file:line:column: dotted.key: MESSAGE". NODE NULL: "built-in defaults: MESSAGE".
KEEL_API keel_status keel_yaml_fail(const keel_yaml_node *node, const char *format, ...) KEEL_PRINTF(2, 3);
// The same for KEY of NODE: "file:line:column: dotted.KEY: MESSAGE", at NODE where that lacks it (KEY may be dotted).
KEEL_API keel_status keel_yaml_fail_key(const keel_yaml_node *node, const char *key, const char *format, ...)
    KEEL_PRINTF(3, 4);

// The same for a value of the wrong kind: "expected EXPECTED, found a list".
KEEL_API keel_status keel_yaml_fail_kind(const keel_yaml_node *node, const char *expected);

// The one of NAMES that needs the fewest edits (insert, delete, replace, swap of neighbours) to become TEXT; the first
// of equals. NULL if COUNT is 0.
KEEL_API const char *keel_yaml_nearest(const char *text, const char *const *names, size_t count);

// One value. Quoted text is never a number or a switch.
KEEL_API keel_status keel_yaml_to_bool(const keel_yaml_node *node, bool *value);     // true, false, yes, no, on, off
KEEL_API keel_status keel_yaml_to_int(const keel_yaml_node *node, int64_t *value);   // decimal
KEEL_API keel_status keel_yaml_to_double(const keel_yaml_node *node, double *value); // decimal or .inf; never NaN
// A list of scalars, or one scalar as a list of one. LIST is malloc'ed and ends with NULL; free with
// keel_yaml_free_strings.
KEEL_API keel_status keel_yaml_to_strings(const keel_yaml_node *node, char ***list, size_t *count);
KEEL_API void keel_yaml_free_strings(char **list); // NULL is fine

// A schema is a table: key, type, where the value goes, range. Absent keys keep what the struct holds (its defaults).
typedef enum keel_yaml_type {
    KEEL_YAML_BOOL,    // bool
    KEEL_YAML_INT,     // int64_t
    KEEL_YAML_DOUBLE,  // double; .inf allowed where the range allows it
    KEEL_YAML_STRING,  // char *, malloc'ed; an old value is freed; null gives NULL
    KEEL_YAML_ENUM,    // int, index into NAMES
    KEEL_YAML_NODE,    // const keel_yaml_node *: read by the caller
    KEEL_YAML_SECTION, // nothing is stored: the caller reads it with keel_yaml_get
} keel_yaml_type;

typedef struct keel_yaml_field {
    const char *key;
    keel_yaml_type type;
    size_t offset;
    double min, max;          // INT, DOUBLE: inclusive; both 0: any
    const char *const *names; // ENUM: NULL-terminated
} keel_yaml_field;

// Bounds for DOUBLE: as min, greater than 0; as max, any but infinity.
#define KEEL_YAML_POSITIVE DBL_TRUE_MIN
#define KEEL_YAML_FINITE   DBL_MAX

// Rows of such a table for members that are named as their keys.
#define KEEL_YAML_ROW_BOOL(s, member)                                                                                  \
    { .key = #member, .type = KEEL_YAML_BOOL, .offset = offsetof(s, member) }
#define KEEL_YAML_ROW_STRING(s, member)                                                                                \
    { .key = #member, .type = KEEL_YAML_STRING, .offset = offsetof(s, member) }
#define KEEL_YAML_ROW_NODE(s, member)                                                                                  \
    { .key = #member, .type = KEEL_YAML_NODE, .offset = offsetof(s, member) }
#define KEEL_YAML_ROW_SECTION(name)                                                                                    \
    { .key = #name, .type = KEEL_YAML_SECTION }
#define KEEL_YAML_ROW_ENUM(s, member, list)                                                                            \
    { .key = #member, .type = KEEL_YAML_ENUM, .offset = offsetof(s, member), .names = (list) }
#define KEEL_YAML_ROW_INT(s, member, least, most)                                                                      \
    { .key = #member, .type = KEEL_YAML_INT, .offset = offsetof(s, member), .min = (least), .max = (most) }
#define KEEL_YAML_ROW_DOUBLE(s, member, least, most)                                                                   \
    { .key = #member, .type = KEEL_YAML_DOUBLE, .offset = offsetof(s, member), .min = (least), .max = (most) }

// Reads mapping NODE (NULL or null: nothing to read) into the struct at TARGET. Unknown keys are errors.
KEEL_API keel_status keel_yaml_read(const keel_yaml_node *node, const keel_yaml_field *fields, size_t count,
                                    void *target);

KEEL_C_END

#endif
