#include "configs/yaml.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "configs/yaml_node.h"

typedef struct keel_yaml_block {
    struct keel_yaml_block *next;
    max_align_t data[];
} keel_yaml_block;

keel_status keel_yaml_no_memory(const char *name) {
    keel_fail(KEEL_ERR_MEMORY, "%s: out of memory", name);
    return KEEL_ERR_MEMORY;
}

keel_status keel_yaml_alloc(keel_yaml *doc, size_t size, void **memory) {
    keel_yaml_block *block = calloc(1, sizeof *block + size);
    if (!block) return keel_yaml_no_memory(doc->name);
    block->next = doc->blocks;
    doc->blocks = block;
    *memory = block->data;
    return KEEL_OK;
}

keel_status keel_yaml_new(const char *name, keel_yaml **doc) {
    keel_yaml *made = calloc(1, sizeof *made);
    if (!made) return keel_yaml_no_memory(name);
    made->name = name;

    size_t bytes = strlen(name) + 1;
    void *copy = NULL;
    keel_status status = keel_yaml_alloc(made, bytes, &copy);
    if (status) goto fail;
    memcpy(copy, name, bytes);
    made->name = copy;

    keel_yaml_place place = {.source = copy, .line = 1, .column = 1};
    status = keel_yaml_node_new(made, &place, &made->root);
    if (status) goto fail;
    *doc = made;
    return KEEL_OK;

fail:
    keel_yaml_free(made);
    return status;
}

void keel_yaml_free(keel_yaml *doc) {
    if (!doc) return;
    for (keel_yaml_block *block = doc->blocks; block;) {
        keel_yaml_block *next = block->next;
        free(block);
        block = next;
    }
    free(doc);
}

keel_status keel_yaml_node_new(keel_yaml *doc, const keel_yaml_place *place, keel_yaml_node **node) {
    void *memory = NULL;
    keel_status status = keel_yaml_alloc(doc, sizeof **node, &memory);
    if (status) return status;
    keel_yaml_node *made = memory;
    *made = (keel_yaml_node){
        .doc = doc,
        .source = place->source,
        .line = place->line,
        .column = place->column,
        .parent = place->parent,
        .key = place->key,
        .index = place->index,
        .kind = KEEL_YAML_NULL,
        .text = "",
    };
    if (++doc->node_count > KEEL_YAML_MAX_NODES)
        return keel_yaml_fail(made, "more than %d values, aliases expanded", KEEL_YAML_MAX_NODES);
    *node = made;
    return KEEL_OK;
}

keel_status keel_yaml_node_set_text(keel_yaml_node *node, const char *text, size_t size) {
    if (memchr(text, '\0', size)) return keel_yaml_fail(node, "a zero byte in a text");
    void *copy = NULL;
    keel_status status = keel_yaml_alloc(node->doc, size + 1, &copy);
    if (status) return status;
    if (size > 0) memcpy(copy, text, size);
    node->text = copy;
    return KEEL_OK;
}

static keel_status grow(keel_yaml *doc, keel_yaml_node ***nodes, size_t used, size_t capacity) {
    void *memory = NULL;
    keel_status status = keel_yaml_alloc(doc, capacity * sizeof **nodes, &memory);
    if (status) return status;
    if (used > 0) memcpy(memory, *nodes, used * sizeof **nodes);
    *nodes = memory;
    return KEEL_OK;
}

keel_status keel_yaml_node_append(keel_yaml_node *node, keel_yaml_node *key, keel_yaml_node *item) {
    if (node->size == node->capacity) {
        size_t capacity = node->capacity ? 2 * node->capacity : 4;
        keel_status status = grow(node->doc, &node->items, node->size, capacity);
        if (!status) status = grow(node->doc, &node->keys, node->keys ? node->size : 0, capacity);
        if (status) return status;
        node->capacity = capacity;
    }
    node->keys[node->size] = key;
    node->items[node->size] = item;
    node->size++;
    return KEEL_OK;
}

size_t keel_yaml_node_find(const keel_yaml_node *node, const char *key) {
    size_t i = 0;
    while (i < node->size && strcmp(node->keys[i]->text, key) != 0) i++;
    return i;
}

keel_status keel_yaml_load(const char *path, keel_yaml **doc) {
    char *text = NULL;
    keel_status status = KEEL_OK;
    FILE *file = fopen(path, "rb");
    if (!file) return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));

    text = malloc(KEEL_YAML_MAX_BYTES + 1);
    if (!text) {
        status = keel_yaml_no_memory(path);
        goto done;
    }
    size_t size = fread(text, 1, KEEL_YAML_MAX_BYTES + 1, file);
    if (ferror(file)) {
        status = keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    status = keel_yaml_parse(path, text, size, doc);

done:
    free(text);
    fclose(file);
    return status;
}

keel_status keel_yaml_parse(const char *name, const char *text, size_t size, keel_yaml **doc) {
    if (size > KEEL_YAML_MAX_BYTES)
        return keel_fail(KEEL_ERR_CONFIG, "%s:1:1: more than %d bytes", name, KEEL_YAML_MAX_BYTES);
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { // a byte order mark would shift the first line's columns
        text += 3;
        size -= 3;
    }
    keel_yaml *made = NULL;
    keel_status status = keel_yaml_new(name, &made);
    if (status) return status;
    keel_yaml_place place = {.source = made->name, .line = 1, .column = 1};
    status = keel_yaml_parse_value(made, &place, NULL, 0, text, size, &made->root);
    if (status) {
        keel_yaml_free(made);
        return status;
    }
    *doc = made;
    return KEEL_OK;
}

const char *keel_yaml_name(const keel_yaml *doc) {
    return doc->name;
}

const keel_yaml_node *keel_yaml_root(const keel_yaml *doc) {
    return doc->root->kind == KEEL_YAML_NULL ? NULL : doc->root;
}

keel_yaml_kind keel_yaml_kind_of(const keel_yaml_node *node) {
    return node ? node->kind : KEEL_YAML_NULL;
}

const keel_yaml_node *keel_yaml_get(const keel_yaml_node *node, const char *key) {
    if (!node || node->kind != KEEL_YAML_MAP) return NULL;
    size_t i = keel_yaml_node_find(node, key);
    return i < node->size ? node->items[i] : NULL;
}

size_t keel_yaml_size(const keel_yaml_node *node) {
    return node ? node->size : 0;
}

const keel_yaml_node *keel_yaml_item(const keel_yaml_node *node, size_t index) {
    return node->items[index];
}

const char *keel_yaml_key(const keel_yaml_node *node, size_t index) {
    return node->keys[index]->text;
}

const char *keel_yaml_text(const keel_yaml_node *node) {
    return keel_yaml_kind_of(node) == KEEL_YAML_SCALAR ? node->text : NULL;
}

enum { PATH_BYTES = 256, MESSAGE_BYTES = 512 };

// Keys and values may hold line breaks and escapes.
static void make_printable(char *text) {
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

keel_status keel_yaml_fail_at(const char *source, size_t line, size_t column, const char *path, const char *format,
                              va_list args) {
    char text[PATH_BYTES + MESSAGE_BYTES];
    int used = path && path[0] ? snprintf(text, sizeof text, "%.*s: ", PATH_BYTES - 1, path) : 0;
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    make_printable(text);
    keel_fail(KEEL_ERR_CONFIG, "%s:%zu:%zu: %s", source, line, column, text);
    return KEEL_ERR_CONFIG;
}

// Writes "a.b.0", each name cut where the whole would not fit.
static size_t write_path(const keel_yaml_node *node, char *path, size_t used) {
    if (!node->parent) return used;
    used = write_path(node->parent, path, used);
    bool nameless = node->key ? node->key->text[0] == '\0' : node->parent->kind == KEEL_YAML_MAP;
    if (nameless) return used; // a key that is still being read, or is refused
    int wrote = node->key ? snprintf(path + used, PATH_BYTES - used, "%s%s", used ? "." : "", node->key->text)
                          : snprintf(path + used, PATH_BYTES - used, "%s%zu", used ? "." : "", node->index);
    used += (size_t)wrote;
    return used < PATH_BYTES ? used : PATH_BYTES - 1;
}

static keel_status fail_with_path(const keel_yaml_node *node, const char *key, const char *format, va_list args) {
    if (!node) {
        char message[MESSAGE_BYTES];
        vsnprintf(message, sizeof message, format, args);
        make_printable(message);
        return keel_fail(KEEL_ERR_CONFIG, "built-in defaults: %s%s%s", key ? key : "", key ? ": " : "", message);
    }
    char path[PATH_BYTES] = "";
    size_t used = write_path(node, path, 0);
    if (key) snprintf(path + used, sizeof path - used, "%s%s", used ? "." : "", key);
    return keel_yaml_fail_at(node->source, node->line, node->column, path, format, args);
}

keel_status keel_yaml_fail(const keel_yaml_node *node, const char *format, ...) {
    va_list args;
    va_start(args, format);
    keel_status status = fail_with_path(node, NULL, format, args);
    va_end(args);
    return status;
}

keel_status keel_yaml_fail_key(const keel_yaml_node *node, const char *key, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const keel_yaml_node *value = keel_yaml_get(node, key);
    keel_status status = fail_with_path(value ? value : node, value ? NULL : key, format, args);
    va_end(args);
    return status;
}
