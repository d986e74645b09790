// Inside the YAML loader: what a document and its nodes are made of.
#ifndef KEEL_CONFIGS_YAML_NODE_H
#define KEEL_CONFIGS_YAML_NODE_H

#include <stdarg.h>

#include "configs/yaml.h"

struct keel_yaml_node {
    keel_yaml *doc;
    const char *source;        // the file's path, or "--set"
    size_t line, column;       // from 1
    keel_yaml_node *parent;    // NULL: the root
    const keel_yaml_node *key; // of a value in a mapping; a key's is itself; NULL in a list
    size_t index;              // in a list
    keel_yaml_kind kind;
    bool quoted;                    // the text is a text even if it looks like a number
    const char *text;               // SCALAR, NULL
    keel_yaml_node **keys, **items; // MAP: [size] each; LIST: items alone
    size_t size, capacity;
};

struct keel_yaml {
    struct keel_yaml_block *blocks; // all that the document has allocated
    const char *name;
    keel_yaml_node *root; // kind NULL for an empty document; never NULL
    size_t node_count;
    size_t assignment_count;
};

// KEEL_ERR_MEMORY about document NAME.
keel_status keel_yaml_no_memory(const char *name);

keel_status keel_yaml_new(const char *name, keel_yaml **doc);

// SIZE zeroed bytes that live as long as the document.
keel_status keel_yaml_alloc(keel_yaml *doc, size_t size, void **memory);

// A node of kind NULL that knows its place but is not yet among its parent's children.
typedef struct keel_yaml_place {
    const char *source;
    size_t line, column;
    keel_yaml_node *parent;
    const keel_yaml_node *key;
    size_t index;
} keel_yaml_place;
keel_status keel_yaml_node_new(keel_yaml *doc, const keel_yaml_place *place, keel_yaml_node **node);

keel_status keel_yaml_node_set_text(keel_yaml_node *node, const char *text, size_t size);

// KEEL_ERR_CONFIG with one printable line: "source:line:column: path: message", without the path if that is NULL or
// empty.
keel_status keel_yaml_fail_at(const char *source, size_t line, size_t column, const char *path, const char *format,
                              va_list args);

// A copy of FROM, so that each value knows the path on which it is used; its place stays where it is written. Texts are
// shared. DEPTH levels below the root.
keel_status keel_yaml_node_copy(const keel_yaml_node *from, keel_yaml_node *parent, const keel_yaml_node *key,
                                size_t index, size_t depth, keel_yaml_node **copy);
// The same into a node that is there.
keel_status keel_yaml_node_copy_into(const keel_yaml_node *from, size_t depth, keel_yaml_node *to);

// Appends to a list (KEY NULL) or a mapping.
keel_status keel_yaml_node_append(keel_yaml_node *node, keel_yaml_node *key, keel_yaml_node *item);

// Index of the child with this key; the size if there is none.
size_t keel_yaml_node_find(const keel_yaml_node *node, const char *key);

// Parses TEXT, whose first character stands at PLACE, as the child that PLACE describes, DEPTH levels below the root.
// Gives a node of kind NULL for an empty text. ABOUT: the key for messages of libyaml; NULL: none.
keel_status keel_yaml_parse_value(keel_yaml *doc, const keel_yaml_place *place, const char *about, size_t depth,
                                  const char *text, size_t size, keel_yaml_node **node);

#endif
