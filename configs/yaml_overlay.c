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

// A copy of ITEM under a copy of KEY, in place of child AT of INTO or, where AT is its size, behind the last.
static keel_status put(keel_yaml_node *into, size_t at, const keel_yaml_node *from_key, const keel_yaml_node *item,
                       size_t depth) {
    keel_yaml_node *key = NULL, *copy = NULL;
    keel_status status = keel_yaml_node_copy(from_key, into, NULL, at, depth, &key);
    if (status) return status;
    key->key = key;
    status = keel_yaml_node_copy(item, into, key, at, depth, &copy);
    if (status) return status;
    if (at == into->size) return keel_yaml_node_append(into, key, copy);
    into->keys[at] = key;
    into->items[at] = copy;
    return KEEL_OK;
}

static keel_status merge(keel_yaml_node *into, const keel_yaml_node *overlay, size_t depth) {
    into->kind = KEEL_YAML_MAP;
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < overlay->size; i++) {
        const keel_yaml_node *item = overlay->items[i];
        const size_t at = keel_yaml_node_find(into, overlay->keys[i]->text);
        if (at < into->size && into->items[at]->kind == KEEL_YAML_MAP && item->kind == KEEL_YAML_MAP)
            status = merge(into->items[at], item, depth + 1);
        else
            status = put(into, at, overlay->keys[i], item, depth + 1);
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

keel_status keel_yaml_take(keel_yaml *doc, const keel_yaml *from, const char *key) {
    if (doc->root->kind != KEEL_YAML_NULL && doc->root->kind != KEEL_YAML_MAP)
        return keel_yaml_fail_kind(doc->root, "a mapping");
    const size_t at = keel_yaml_node_find(doc->root, key), theirs = keel_yaml_node_find(from->root, key);
    if (theirs < from->root->size) {
        doc->root->kind = KEEL_YAML_MAP;
        return put(doc->root, at, from->root->keys[theirs], from->root->items[theirs], 1);
    }
    if (at == doc->root->size) return KEEL_OK;
    keel_yaml_place place = {.source = from->name, .parent = doc->root, .key = doc->root->keys[at]};
    return keel_yaml_node_new(doc, &place, &doc->root->items[at]);
}
