// From text to nodes, over libyaml's events: its own document loader keeps neither aliases' bounds nor duplicate keys
// in check.
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "configs/yaml_node.h"

typedef struct anchor {
    char *name;
    keel_yaml_node *node;
    bool open; // its value is still being read: an alias to it would hold itself
} anchor;

typedef struct reader {
    yaml_parser_t parser;
    keel_yaml *doc;
    keel_yaml_place start; // of the text's first character
    const char *about;
    const char *text;
    size_t size;
    anchor *anchors;
    size_t anchor_count, anchor_capacity;
} reader;

static keel_yaml_place place_at(const reader *r, yaml_mark_t mark) {
    keel_yaml_place place = r->start;
    if (r->about) { // an assignment: its line is its number, its column counts through it
        place.column += mark.index < r->size ? mark.index : r->size;
        return place;
    }
    place.line += mark.line;
    place.column = mark.column + 1;
    return place;
}

static keel_status fail_at(const reader *r, yaml_mark_t mark, const char *format, ...) KEEL_PRINTF(3, 4);

static keel_status fail_at(const reader *r, yaml_mark_t mark, const char *format, ...) {
    keel_yaml_place place = place_at(r, mark);
    va_list args;
    va_start(args, format);
    keel_status status = keel_yaml_fail_at(place.source, place.line, place.column, r->about, format, args);
    va_end(args);
    return status;
}

// libyaml tells where undecodable text stands by its byte alone.
static yaml_mark_t mark_of_byte(const reader *r, size_t offset) {
    yaml_mark_t mark = {.index = offset};
    for (size_t i = 0; i < offset && i < r->size; i++) {
        unsigned char c = (unsigned char)r->text[i];
        if (c == '\n') {
            mark.line++;
            mark.column = 0;
        } else if ((c & 0xC0) != 0x80) {
            mark.column++;
        }
    }
    return mark;
}

static bool is_tab(const reader *r, yaml_mark_t mark) {
    size_t line = 0, i = 0;
    for (; i < r->size && line < mark.line; i++) line += r->text[i] == '\n';
    for (size_t column = 0; i < r->size && column < mark.column; i++)
        column += ((unsigned char)r->text[i] & 0xC0) != 0x80;
    while (i < r->size && ((unsigned char)r->text[i] & 0xC0) == 0x80) i++;
    return i < r->size && r->text[i] == '\t';
}

static keel_status fail_libyaml(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "unreadable";
    switch (p->error) {
    case YAML_MEMORY_ERROR:
        return keel_yaml_no_memory(r->start.source);
    case YAML_READER_ERROR:
        return fail_at(r, mark_of_byte(r, p->problem_offset), "not UTF-8 text: %s", problem);
    default:
        break;
    }
    if (is_tab(r, p->problem_mark)) return fail_at(r, p->problem_mark, "a tab in the indentation: use spaces");
    if (!p->context || r->about) return fail_at(r, p->problem_mark, "%s", problem);
    return fail_at(r, p->problem_mark, "%s, %s that begins on line %zu", problem, p->context,
                   place_at(r, p->context_mark).line);
}

static keel_status next_event(reader *r, yaml_event_t *event) {
    if (!yaml_parser_parse(&r->parser, event)) return fail_libyaml(r);
    return KEEL_OK;
}

static keel_status add_anchor(reader *r, const yaml_char_t *name, keel_yaml_node *node) {
    if (r->anchor_count == r->anchor_capacity) {
        size_t capacity = r->anchor_capacity ? 2 * r->anchor_capacity : 8;
        anchor *grown = realloc(r->anchors, capacity * sizeof *grown);
        if (!grown) return keel_yaml_no_memory(r->start.source);
        r->anchors = grown;
        r->anchor_capacity = capacity;
    }
    char *copy = strdup((const char *)name);
    if (!copy) return keel_yaml_no_memory(r->start.source);
    r->anchors[r->anchor_count++] = (anchor){.name = copy, .node = node, .open = true};
    return KEEL_OK;
}

static void close_anchor(reader *r, const keel_yaml_node *node) {
    for (size_t i = 0; i < r->anchor_count; i++)
        if (r->anchors[i].node == node) r->anchors[i].open = false;
}

static keel_status resolve_alias(reader *r, const char *name, size_t depth, keel_yaml_node *node) {
    for (size_t i = r->anchor_count; i-- > 0;) {
        if (strcmp(r->anchors[i].name, name) != 0) continue;
        if (r->anchors[i].open) return keel_yaml_fail(node, "alias *%s stands inside the value that it names", name);
        keel_status status = keel_yaml_node_copy_into(r->anchors[i].node, depth, node);
        if (status) return status;
        node->line = r->anchors[i].node->line;
        node->column = r->anchors[i].node->column;
        return KEEL_OK;
    }
    return keel_yaml_fail(node, "alias *%s has no anchor &%s before it", name, name);
}

static bool is_null_text(const char *text) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        if (strcmp(text, nulls[i]) == 0) return true;
    return false;
}

static keel_status check_tag(const keel_yaml_node *node, const yaml_char_t *tag, const char *allowed) {
    if (!tag || strcmp((const char *)tag, "!") == 0 || strcmp((const char *)tag, allowed) == 0) return KEEL_OK;
    return keel_yaml_fail(node, "tag %s is not supported", (const char *)tag);
}

static keel_status read_scalar(const yaml_event_t *event, keel_yaml_node *node) {
    keel_status status = check_tag(node, event->data.scalar.tag, YAML_STR_TAG);
    if (status) return status;
    status = keel_yaml_node_set_text(node, (const char *)event->data.scalar.value, event->data.scalar.length);
    if (status) return status;
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || event->data.scalar.tag;
    node->kind = !node->quoted && is_null_text(node->text) ? KEEL_YAML_NULL : KEEL_YAML_SCALAR;
    return KEEL_OK;
}

static keel_status read_node(reader *r, const yaml_event_t *event, const keel_yaml_place *where, size_t depth,
                             keel_yaml_node **node);

static keel_status read_list(reader *r, keel_yaml_node *list, size_t depth) {
    for (;;) {
        yaml_event_t event;
        keel_status status = next_event(r, &event);
        if (status) return status;
        bool end = event.type == YAML_SEQUENCE_END_EVENT;
        if (!end) {
            keel_yaml_place where = {.parent = list, .index = list->size};
            keel_yaml_node *item = NULL;
            status = read_node(r, &event, &where, depth + 1, &item);
            if (!status) status = keel_yaml_node_append(list, NULL, item);
        }
        yaml_event_delete(&event);
        if (status || end) return status;
    }
}

static keel_status merge_map(keel_yaml_node *map, keel_yaml_node *merged) {
    if (merged->kind != KEEL_YAML_MAP)
        return keel_yaml_fail(merged, "only a mapping, or a list of them, can be merged");
    for (size_t i = 0; i < merged->size; i++) {
        if (keel_yaml_node_find(map, merged->keys[i]->text) < map->size) continue;
        merged->keys[i]->parent = map;
        merged->items[i]->parent = map;
        keel_status status = keel_yaml_node_append(map, merged->keys[i], merged->items[i]);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status merge(keel_yaml_node *map, keel_yaml_node *merged) {
    if (merged->kind != KEEL_YAML_LIST) return merge_map(map, merged);
    for (size_t i = 0; i < merged->size; i++) {
        keel_status status = merge_map(map, merged->items[i]);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status check_key(const keel_yaml_node *map, const keel_yaml_node *key) {
    if (key->kind == KEEL_YAML_LIST || key->kind == KEEL_YAML_MAP) return keel_yaml_fail(key, "a key must be a name");
    if (key->text[0] == '\0') return keel_yaml_fail(key, "a key without a name");
    size_t found = keel_yaml_node_find(map, key->text);
    if (found < map->size) return keel_yaml_fail(key, "duplicate key, first on line %zu", map->keys[found]->line);
    return KEEL_OK;
}

static keel_status read_pair(reader *r, const yaml_event_t *key_event, size_t depth, keel_yaml_node *map,
                             keel_yaml_node **merged) {
    keel_yaml_place where = {.parent = map};
    keel_yaml_node *key = NULL, *item = NULL;
    keel_status status = read_node(r, key_event, &where, depth + 1, &key);
    if (status) return status;
    key->key = key;
    bool is_merge = key->kind == KEEL_YAML_SCALAR && !key->quoted && strcmp(key->text, "<<") == 0;
    if (is_merge && *merged) return keel_yaml_fail(key, "duplicate key, first on line %zu", (*merged)->key->line);
    if (!is_merge) status = check_key(map, key);
    if (status) return status;

    yaml_event_t event;
    status = next_event(r, &event);
    if (status) return status;
    where.key = key;
    status = read_node(r, &event, &where, depth + 1, &item);
    yaml_event_delete(&event);
    if (status) return status;
    if (!is_merge) return keel_yaml_node_append(map, key, item);
    *merged = item;
    return KEEL_OK;
}

static keel_status read_map(reader *r, keel_yaml_node *map, size_t depth) {
    keel_yaml_node *merged = NULL;
    for (;;) {
        yaml_event_t event;
        keel_status status = next_event(r, &event);
        if (status) return status;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end) status = read_pair(r, &event, depth, map, &merged);
        yaml_event_delete(&event);
        if (status) return status;
        // Merged last, so that the mapping's own keys win wherever "<<" stands.
        if (end) return merged ? merge(map, merged) : KEEL_OK;
    }
}

static keel_status read_node(reader *r, const yaml_event_t *event, const keel_yaml_place *where, size_t depth,
                             keel_yaml_node **node) {
    keel_yaml_place place = place_at(r, event->start_mark);
    place.parent = where->parent;
    place.key = where->key;
    place.index = where->index;
    keel_yaml_node *made = NULL;
    keel_status status = keel_yaml_node_new(r->doc, &place, &made);
    if (status) return status;
    if (depth > KEEL_YAML_MAX_DEPTH) return keel_yaml_fail(made, "nested more than %d deep", KEEL_YAML_MAX_DEPTH);

    const yaml_char_t *name = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        status = resolve_alias(r, (const char *)event->data.alias.anchor, depth, made);
        break;
    case YAML_SCALAR_EVENT:
        name = event->data.scalar.anchor;
        status = read_scalar(event, made);
        if (!status && name) status = add_anchor(r, name, made);
        break;
    case YAML_SEQUENCE_START_EVENT:
        name = event->data.sequence_start.anchor;
        made->kind = KEEL_YAML_LIST;
        status = check_tag(made, event->data.sequence_start.tag, YAML_SEQ_TAG);
        if (!status && name) status = add_anchor(r, name, made);
        if (!status) status = read_list(r, made, depth);
        break;
    default: // MAPPING-START, the only event left where a node may stand
        name = event->data.mapping_start.anchor;
        made->kind = KEEL_YAML_MAP;
        status = check_tag(made, event->data.mapping_start.tag, YAML_MAP_TAG);
        if (!status && name) status = add_anchor(r, name, made);
        if (!status) status = read_map(r, made, depth);
        break;
    }
    if (status) return status;
    if (name) close_anchor(r, made);
    *node = made;
    return KEEL_OK;
}

// The next event of a type that carries no data.
static keel_status skip_event(reader *r, yaml_event_type_t *type, yaml_mark_t *mark) {
    yaml_event_t event;
    keel_status status = next_event(r, &event);
    if (status) return status;
    *type = event.type;
    *mark = event.start_mark;
    yaml_event_delete(&event);
    return KEEL_OK;
}

static keel_status read_document(reader *r, size_t depth, keel_yaml_node **node) {
    yaml_event_type_t type = YAML_NO_EVENT;
    yaml_mark_t mark = {0};
    keel_status status = skip_event(r, &type, &mark); // STREAM-START
    if (!status) status = skip_event(r, &type, &mark);
    if (status) return status;
    if (type == YAML_STREAM_END_EVENT) {
        keel_yaml_place place = r->start;
        return keel_yaml_node_new(r->doc, &place, node);
    }

    yaml_event_t event;
    status = next_event(r, &event);
    if (status) return status;
    keel_yaml_node *made = NULL;
    status = read_node(r, &event, &r->start, depth, &made);
    yaml_event_delete(&event);
    if (!status) status = skip_event(r, &type, &mark); // DOCUMENT-END
    if (!status) status = skip_event(r, &type, &mark);
    if (status) return status;
    if (type != YAML_STREAM_END_EVENT) return fail_at(r, mark, "a second document: one is allowed");
    *node = made;
    return KEEL_OK;
}

keel_status keel_yaml_parse_value(keel_yaml *doc, const keel_yaml_place *place, const char *about, size_t depth,
                                  const char *text, size_t size, keel_yaml_node **node) {
    reader r = {.doc = doc, .start = *place, .about = about, .text = text, .size = size};
    if (!yaml_parser_initialize(&r.parser)) return keel_yaml_no_memory(place->source);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);

    keel_status status = read_document(&r, depth, node);

    for (size_t i = 0; i < r.anchor_count; i++) free(r.anchors[i].name);
    free(r.anchors);
    yaml_parser_delete(&r.parser);
    return status;
}
