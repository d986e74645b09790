// Hugging Face trainer_state.json: a document whose "log_history" is an array of records, one for training, one for
// evaluation.
#include "tools/import/hugging_face.h"
#include "tools/import/import_json.h"

typedef struct state_state {
    keel_import_json_stream *stream;
} state_state;

static keel_status open_state(keel_import_context *context, void *state) {
    keel_status status = keel_import_use_hugging_face_names(context);
    return status ? status : keel_import_json_stream_open("log_history", &((state_state *)state)->stream);
}

static void close_state(void *state) {
    keel_import_json_stream_close(((state_state *)state)->stream);
}

static keel_status read_bytes(keel_import_context *context, void *state, const uint8_t *bytes, size_t size) {
    return keel_import_json_stream_feed(((state_state *)state)->stream, (const char *)bytes, size, context);
}

const keel_importer keel_importer_hugging_face_state = {
    .name = "hugging-face-state",
    .doc = "Hugging Face trainer_state.json",
    .weight = 4,
    .sole = true,
    .columns = true,
    .state_bytes = sizeof(state_state),
    .open = open_state,
    .close = close_state,
    .bytes = read_bytes,
};
