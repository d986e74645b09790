// From nodes back to text.
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "configs/yaml_node.h"

typedef struct buffer {
    char *text;
    size_t size, capacity;
} buffer;

static int append(void *context, unsigned char *bytes, size_t size) {
    buffer *out = context;
    if (out->capacity - out->size < size + 1) {
        size_t capacity = 2 * (out->capacity + size + 1);
        char *grown = realloc(out->text, capacity);
        if (!grown) return 0;
        out->text = grown;
        out->capacity = capacity;
    }
    memcpy(out->text + out->size, bytes, size);
    out->size += size;
    out->text[out->size] = '\0';
    return 1;
}

static bool emit_scalar(yaml_emitter_t *emitter, const keel_yaml_node *node) {
    const char *text = node->kind == KEEL_YAML_NULL && !node->text[0] ? "null" : node->text;
    // The copy is for libyaml's prototype alone, which takes a mutable text.
    yaml_char_t *value = (yaml_char_t *)strdup(text);
    if (!value) return false;
    yaml_event_t event;
    yaml_scalar_style_t style = node->quoted ? YAML_SINGLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE;
    bool made = yaml_scalar_event_initialize(&event, NULL, NULL, value, (int)strlen(text), 1, 1, style);
    free(value);
    return made && yaml_emitter_emit(emitter, &event);
}

static bool emit_node(yaml_emitter_t *emitter, const keel_yaml_node *node) {
    yaml_event_t event;
    bool ok = true;
    switch (node->kind) {
    case KEEL_YAML_NULL:
    case KEEL_YAML_SCALAR:
        return emit_scalar(emitter, node);
    case KEEL_YAML_LIST:
        ok = yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, YAML_ANY_SEQUENCE_STYLE) &&
             yaml_emitter_emit(emitter, &event);
        for (size_t i = 0; ok && i < node->size; i++) ok = emit_node(emitter, node->items[i]);
        return ok && yaml_sequence_end_event_initialize(&event) && yaml_emitter_emit(emitter, &event);
    case KEEL_YAML_MAP:
        ok = yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_ANY_MAPPING_STYLE) &&
             yaml_emitter_emit(emitter, &event);
        for (size_t i = 0; ok && i < node->size; i++)
            ok = emit_scalar(emitter, node->keys[i]) && emit_node(emitter, node->items[i]);
        return ok && yaml_mapping_end_event_initialize(&event) && yaml_emitter_emit(emitter, &event);
    }
    return false;
}

keel_status keel_yaml_dump(const keel_yaml *doc, char **text, size_t *size) {
    buffer out = {0};
    yaml_emitter_t emitter;
    yaml_event_t event;
    bool ok = append(&out, (unsigned char *)"", 0) && yaml_emitter_initialize(&emitter);
    if (!ok) {
        free(out.text);
        return keel_yaml_no_memory(doc->name);
    }
    yaml_emitter_set_output(&emitter, append, &out);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);

    if (doc->root->kind != KEEL_YAML_NULL) {
        ok = yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING) && yaml_emitter_emit(&emitter, &event) &&
             yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1) && yaml_emitter_emit(&emitter, &event) &&
             emit_node(&emitter, doc->root) && yaml_document_end_event_initialize(&event, 1) &&
             yaml_emitter_emit(&emitter, &event) && yaml_stream_end_event_initialize(&event) &&
             yaml_emitter_emit(&emitter, &event);
    }
    keel_status status = KEEL_OK;
    if (ok) {
        *text = out.text;
        *size = out.size;
    } else {
        // A tree of ours is a valid sequence of events: only memory can have failed.
        status = keel_yaml_no_memory(doc->name);
        free(out.text);
    }
    yaml_emitter_delete(&emitter);
    return status;
}
