// A JSON document that is an array of objects with a loss, on one line or many:
//     [
//       {"step": 1, "loss": 10.5},
//       {"step": 2, "loss": 10.4}
//     ]
#include "tools/import/import_json.h"
#include "tools/import/importer.h"

typedef struct json_state {
    keel_import_json_stream *stream;
} json_state;

static keel_status open_state(keel_import_context *context, void *state) {
    keel_status status = keel_import_use_names(context, NULL, 0);
    return status ? status : keel_import_json_stream_open(NULL, &((json_state *)state)->stream);
}

static void close_state(void *state) {
    keel_import_json_stream_close(((json_state *)state)->stream);
}

static keel_status read_bytes(keel_import_context *context, void *state, const uint8_t *bytes, size_t size) {
    return keel_import_json_stream_feed(((json_state *)state)->stream, (const char *)bytes, size, context);
}

const keel_importer keel_importer_json = {
    .name = "json",
    .doc = "a JSON array of objects with a step and a loss",
    .weight = 2,
    .sole = true,
    .columns = true,
    .state_bytes = sizeof(json_state),
    .open = open_state,
    .close = close_state,
    .bytes = read_bytes,
};
