// Copies of nodes, and one document over another.
#include <string.h>

#include "configs/yaml_node.h"

keel_status keel_yaml_node_copy(const keel_yaml_node *from, keel_yaml_node *parent, const keel_yaml_node *key,
                                size_t index, size_t depth, keel_yaml_node **copy) {
    keel_yaml_place place = {from->source, from->line, from->column, parent, key, index};
    keel_status status = keel_yaml_node_new(parent->doc, &place, copy);
    if (status) return status;
    return keel_yaml_node_copy_into(from, depth, *copy);
}

keel_status keel_yaml_node_copy_into(const keel_yaml_node *from, size_t depth, keel_yaml_node *to) {
    if (depth > KEEL_YAML_MAX_DEPTH) return keel_yaml_fail(to, "nested more than %d deep", KEEL_YAML_MAX_DEPTH);
    to->kind = from->kind;
    to->quoted = from->quoted;
    to->text = from->text;
    for (size_t i = 0; i < from->size; i++) {
        keel_yaml_node *key = NULL, *item = NULL;
        keel_status status = KEEL_OK;
        if (from->keys[i]) {
            status = keel_yaml_node_copy(from->keys[i], to, NULL, 0, depth + 1, &key);
            if (status) return status;
            key->key = key;
        }
        status = keel_yaml_node_copy(from->items[i], to, key, i, depth + 1, &item);
        if (!status) status = keel_yaml_node_append(to, key, item);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status merge(keel_yaml_node *into, const keel_yaml_node *overlay, size_t depth) {
    into->kind = KEEL_YAML_MAP;
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < overlay->size; i++) {
        const keel_yaml_node *item = overlay->items[i];
        const size_t at = keel_yaml_node_find(into, overlay->keys[i]->text);
        const bool there = at < into->size;
        if (there && into->items[at]->kind == KEEL_YAML_MAP && item->kind == KEEL_YAML_MAP) {
            status = merge(into->items[at], item, depth + 1);
            continue;
        }
        keel_yaml_node *key = NULL, *copy = NULL;
        status = keel_yaml_node_copy(overlay->keys[i], into, NULL, at, depth + 1, &key);
        if (status) break;
        key->key = key;
        status = keel_yaml_node_copy(item, into, key, at, depth + 1, &copy);
        if (status) break;
        if (there) {
            into->keys[at] = key;
            into->items[at] = copy;
        } else {
            status = keel_yaml_node_append(into, key, copy);
        }
    }
    return status;
}

keel_status keel_yaml_overlay(keel_yaml *doc, const keel_yaml_node *overlay) {
    if (keel_yaml_kind_of(overlay) == KEEL_YAML_NULL) return KEEL_OK;
    if (overlay->kind != KEEL_YAML_MAP) return keel_yaml_fail_kind(overlay, "a mapping");
    if (doc->root->kind != KEEL_YAML_NULL && doc->root->kind != KEEL_YAML_MAP)
        return keel_yaml_fail_kind(doc->root, "a mapping");
    return merge(doc->root, overlay, 0);
}
