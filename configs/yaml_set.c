// Assignments over a document, as given on a command line.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "configs/yaml_node.h"

typedef struct assignment {
    keel_yaml *doc;
    const char *text;
    size_t number;
    char path[256];
    size_t depth; // of the node that parse gives
} assignment;

static keel_yaml_place place_of(const assignment *a, const char *at, keel_yaml_node *parent) {
    return (keel_yaml_place){
        .source = "--set", .line = a->number, .column = (size_t)(at - a->text) + 1, .parent = parent};
}

static keel_status fail(const assignment *a, const char *at, const char *format, ...) KEEL_PRINTF(3, 4);

static keel_status fail(const assignment *a, const char *at, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t column = (size_t)(at - a->text) + 1;
    keel_yaml_fail_at("--set", a->number, column, a->path, format, args);
    va_end(args);
    return KEEL_ERR_CONFIG;
}

// The name that begins at *AT, up to "." or the "="; moves *AT behind the dot, or to NULL after the last name.
static keel_status next_name(const assignment *a, const char *equals, const char **at, char *name, size_t room) {
    size_t left = (size_t)(equals - *at);
    const char *dot = memchr(*at, '.', left);
    size_t length = dot ? (size_t)(dot - *at) : left;
    if (length == 0) return fail(a, *at, "a key without a name");
    if (length >= room) return fail(a, *at, "a key is too long");
    for (size_t i = 0; i < length; i++)
        if ((*at)[i] <= ' ' || (*at)[i] > '~') return fail(a, *at, "a key must be of printable ASCII characters");
    memcpy(name, *at, length);
    name[length] = '\0';
    *at = dot ? dot + 1 : NULL;
    return KEEL_OK;
}

static keel_status make_key(const assignment *a, const char *at, keel_yaml_node *parent, const char *name,
                            keel_yaml_node **key) {
    keel_yaml_place place = place_of(a, at, parent);
    keel_status status = keel_yaml_node_new(a->doc, &place, key);
    if (!status) status = keel_yaml_node_set_text(*key, name, strlen(name));
    if (status) return status;
    (*key)->kind = KEEL_YAML_SCALAR;
    (*key)->key = *key;
    (*key)->quoted = strcmp(name, "<<") == 0; // a name like any other, where a plain one would merge when read again
    return KEEL_OK;
}

// The child of NODE by NAME: its index, or the size where a mapping lacks it.
static keel_status find_child(const assignment *a, const keel_yaml_node *node, const char *at, const char *name,
                              size_t *index) {
    if (node->kind == KEEL_YAML_SCALAR)
        return fail(a, at, "'%.40s' is a single value, it has no key '%.40s'", node->text, name);
    if (node->kind != KEEL_YAML_LIST) {
        *index = keel_yaml_node_find(node, name);
        return KEEL_OK;
    }
    char *end = NULL;
    unsigned long number = strtoul(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end || number >= node->size)
        return fail(a, at, "'%.40s' is no item of this list of %zu, counted from 0", name, node->size);
    *index = number;
    return KEEL_OK;
}

static keel_status link_child(keel_yaml_node *parent, size_t index, keel_yaml_node *key, keel_yaml_node *item) {
    if (parent->kind == KEEL_YAML_NULL) parent->kind = KEEL_YAML_MAP;
    if (index == parent->size) return keel_yaml_node_append(parent, key, item);
    parent->keys[index] = key;
    parent->items[index] = item;
    return KEEL_OK;
}

// Reads the value into a child of PARENT, under the mappings for the names from AT on that do not exist yet. NAME: the
// child's own.
static keel_status make_child(assignment *a, const char *equals, const char *at, const char *rest, const char *name,
                              keel_yaml_node *parent, size_t index, keel_yaml_node **key, keel_yaml_node **child) {
    *key = NULL;
    keel_status status = KEEL_OK;
    if (parent->kind != KEEL_YAML_LIST) status = make_key(a, at, parent, name, key);
    if (status) return status;
    a->depth++;
    if (a->depth > KEEL_YAML_MAX_DEPTH) return fail(a, at, "nested more than %d deep", KEEL_YAML_MAX_DEPTH);
    if (!rest) {
        keel_yaml_place place = place_of(a, equals + 1, parent);
        place.key = *key;
        place.index = index;
        return keel_yaml_parse_value(a->doc, &place, a->path, a->depth, equals + 1, strlen(equals + 1), child);
    }
    keel_yaml_place place = place_of(a, at, parent);
    place.key = *key;
    place.index = index;
    status = keel_yaml_node_new(a->doc, &place, child);
    if (status) return status;
    (*child)->kind = KEEL_YAML_MAP;

    char next[128];
    const char *next_at = rest;
    status = next_name(a, equals, &rest, next, sizeof next);
    keel_yaml_node *grandkey = NULL, *grandchild = NULL;
    if (!status) status = make_child(a, equals, next_at, rest, next, *child, 0, &grandkey, &grandchild);
    if (!status) status = keel_yaml_node_append(*child, grandkey, grandchild);
    return status;
}

keel_status keel_yaml_set(keel_yaml *doc, const char *text) {
    assignment a = {.doc = doc, .text = text, .number = doc->assignment_count + 1};
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) return fail(&a, text, "expected key.path=value, found '%.60s'", text);
    snprintf(a.path, sizeof a.path, "%.*s", (int)(equals - text), text);

    keel_yaml_node *parent = doc->root;
    const char *at = text, *rest = text;
    char name[128] = "";
    size_t index = 0;
    for (;;) {
        at = rest;
        keel_status status = next_name(&a, equals, &rest, name, sizeof name);
        if (!status) status = find_child(&a, parent, at, name, &index);
        if (status) return status;
        if (!rest || index == parent->size) break;
        parent = parent->items[index];
        a.depth++;
    }

    keel_yaml_node *key = NULL, *child = NULL;
    keel_status status = make_child(&a, equals, at, rest, name, parent, index, &key, &child);
    if (!status) status = link_child(parent, index, key, child);
    if (status) return status;
    doc->assignment_count = a.number;
    return KEEL_OK;
}
