// TensorBoard event files: records of a length, its checksum, an Event (protocol buffer, event.proto) and its checksum.
// Every event holds one or a few scalars by tag; those of one step are one record. A file may hold all of one tag
// before the next, so that tags are gathered apart (spooled) and brought together by step at the end.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "event.pb-c.h"
#include "tools/import/import_spool.h"
#include "tools/import/importer.h"

enum { EVENT_BYTES = 16 << 20, FRAME_BYTES = 12, TAGS = 256 };

typedef struct tag_value {
    uint64_t segment, step;
    double value;
} tag_value;

typedef struct tag {
    int32_t key;
    keel_import_spool spool;
    uint64_t count;
    uint64_t segment, step; // of the latest value
} tag;

typedef struct tensorboard_state {
    uint32_t crc_table[256];
    uint8_t *buffer; // the record at hand
    size_t used, capacity;
    uint64_t skip;   // bytes of a record too long to hold scalars alone
    uint64_t offset; // of the record at hand
    bool dead;       // not such a file, or damaged from here on
    tag *tags;
    size_t tag_count;
    uint64_t segment; // counts the times that a tag's steps went back: restarts
} tensorboard_state;

// CRC-32C (Castagnoli), as the framing has it: rotated and shifted, so that the checksum of data that holds checksums
// is not a constant.
static void make_table(uint32_t table[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ UINT32_C(0x82f63b78) : crc >> 1;
        table[i] = crc;
    }
}

static uint32_t masked_crc(const uint32_t table[256], const uint8_t *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) crc = table[(crc ^ bytes[i]) & 0xff] ^ crc >> 8;
    crc ^= UINT32_MAX;
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static uint64_t little_endian(const uint8_t *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static keel_status open_state(keel_import_context *context, void *state) {
    tensorboard_state *s = state;
    make_table(s->crc_table);
    return keel_import_use_names(context, NULL, 0);
}

static void close_state(void *state) {
    tensorboard_state *s = state;
    for (size_t i = 0; i < s->tag_count; i++) keel_import_spool_free(&s->tags[i].spool);
    free(s->tags);
    free(s->buffer);
}

// ---- values ----

static bool tensor_value(const Keel__Tensorboard__Tensor *tensor, double *value) {
    if (tensor->n_float_val)
        *value = (double)tensor->float_val[0];
    else if (tensor->n_double_val)
        *value = tensor->double_val[0];
    else if (tensor->has_tensor_content && tensor->dtype == 1 && tensor->tensor_content.len >= sizeof(float)) {
        float single;
        memcpy(&single, tensor->tensor_content.data, sizeof single);
        *value = (double)single;
    } else if (tensor->has_tensor_content && tensor->dtype == 2 && tensor->tensor_content.len >= sizeof(double)) {
        memcpy(value, tensor->tensor_content.data, sizeof *value);
    } else {
        return false;
    }
    return true;
}

static bool is_wanted(keel_import_field field) {
    return field < KEEL_IMPORT_SCALARS || field == KEEL_IMPORT_EPOCH;
}

static void put(keel_import_record *record, keel_import_field field, double value) {
    if (isnan(value)) value = (double)NAN;
    if (field == KEEL_IMPORT_EPOCH)
        record->epoch = value;
    else
        keel_import_record_set(record, field, value);
}

static keel_status add_value(keel_import_context *context, tensorboard_state *state, int32_t key, uint64_t step,
                             double value) {
    tag *found = NULL;
    for (size_t i = 0; i < state->tag_count && !found; i++)
        if (state->tags[i].key == key) found = &state->tags[i];
    if (!found) {
        if (state->tag_count == TAGS) return KEEL_OK;
        if (!state->tags) state->tags = calloc(TAGS, sizeof *state->tags);
        if (!state->tags) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its tags", keel_import_path(context));
        found = &state->tags[state->tag_count++];
        found->key = key;
        keel_import_spool_init(&found->spool);
    }
    if (found->count && step < found->step && found->segment == state->segment) state->segment++;
    tag_value packed = {.segment = state->segment, .step = step, .value = value};
    found->segment = packed.segment;
    found->step = step;
    found->count++;
    return keel_import_spool_write(&found->spool, &packed, sizeof packed);
}

static void leave_event(keel_import_context *context, const tensorboard_state *state, const char *why) {
    keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, 0, "the event at byte %llu %s",
                          (unsigned long long)state->offset, why);
}

static keel_status read_event(keel_import_context *context, tensorboard_state *state, const uint8_t *bytes,
                              size_t size) {
    Keel__Tensorboard__Event *event = keel__tensorboard__event__unpack(NULL, size, bytes);
    if (!event) {
        leave_event(context, state, "is none");
        return KEEL_OK;
    }
    keel_status status = KEEL_OK;
    keel_import_names *names = keel_import_context_names(context);
    uint64_t step = event->has_step && event->step > 0 ? (uint64_t)event->step : 0;
    const Keel__Tensorboard__Summary *summary = event->summary;
    if (step > UINT64_C(1) << 53 && summary) { // no step that a trainer can have reached
        leave_event(context, state, "has no step that can be");
        summary = NULL;
    }
    keel_import_record counted;
    keel_import_record_clear(&counted);
    for (size_t i = 0; summary && i < summary->n_value && !status; i++) {
        const Keel__Tensorboard__Summary__Value *given = summary->value[i];
        if (!given->tag) continue;
        int32_t key = keel_import_names_key(names, (keel_import_slice){given->tag, strlen(given->tag)});
        keel_import_field field = keel_import_names_field(names, key);
        double value;
        if (!is_wanted(field)) continue;
        if (given->has_simple_value)
            value = (double)given->simple_value;
        else if (!given->tensor || !tensor_value(given->tensor, &value))
            continue;
        if (keel_import_is_counting(context))
            put(&counted, field, value);
        else
            status = add_value(context, state, key, step, value);
    }
    keel__tensorboard__event__free_unpacked(event, NULL);
    return status || !counted.set ? status : keel_import_emit(context, &counted);
}

// ---- framing ----

// The record in the buffer is whole if it has NEEDED bytes.
static size_t bytes_needed(tensorboard_state *state) {
    if (state->used < FRAME_BYTES) return FRAME_BYTES;
    uint64_t length = little_endian(state->buffer, 8);
    if (masked_crc(state->crc_table, state->buffer, 8) != little_endian(state->buffer + 8, 4)) {
        state->dead = true;
        return 0;
    }
    if (length > EVENT_BYTES) {
        state->skip = length + 4;
        state->offset += FRAME_BYTES + state->skip;
        state->used = 0;
        return 0;
    }
    return FRAME_BYTES + (size_t)length + 4;
}

static keel_status reserve(keel_import_context *context, tensorboard_state *state, size_t size) {
    if (size <= state->capacity) return KEEL_OK;
    uint8_t *grown = realloc(state->buffer, 2 * size);
    if (!grown) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for an event", keel_import_path(context));
    state->buffer = grown;
    state->capacity = 2 * size;
    return KEEL_OK;
}

static keel_status finish_event(keel_import_context *context, tensorboard_state *state) {
    const uint8_t *data = state->buffer + FRAME_BYTES;
    size_t size = state->used - FRAME_BYTES - 4;
    bool intact = masked_crc(state->crc_table, data, size) == little_endian(data + size, 4);
    keel_status status = KEEL_OK;
    if (intact)
        status = read_event(context, state, data, size);
    else
        leave_event(context, state, "has another checksum than it says");
    state->offset += state->used;
    state->used = 0;
    return status;
}

static keel_status read_bytes(keel_import_context *context, void *state, const uint8_t *bytes, size_t size) {
    tensorboard_state *s = state;
    while (size && !s->dead) {
        if (s->skip) {
            size_t n = s->skip < size ? (size_t)s->skip : size;
            s->skip -= n;
            bytes += n;
            size -= n;
            continue;
        }
        size_t needed = s->used < FRAME_BYTES ? FRAME_BYTES : bytes_needed(s);
        if (s->dead || s->skip) continue;
        keel_status status = reserve(context, s, needed);
        if (status) return status;
        size_t n = needed - s->used < size ? needed - s->used : size;
        memcpy(s->buffer + s->used, bytes, n);
        s->used += n;
        bytes += n;
        size -= n;
        if (s->used > FRAME_BYTES && s->used == needed) status = finish_event(context, s);
        if (status) return status;
    }
    return KEEL_OK;
}

// ---- bringing the tags together ----

typedef struct tag_head {
    keel_import_cursor cursor;
    keel_import_field field;
    uint64_t left; // values not yet read into NEXT
    bool has_next;
    tag_value next;
} tag_head;

static keel_status advance(tag_head *head) {
    head->has_next = head->left > 0;
    if (!head->left) return KEEL_OK;
    head->left--;
    return keel_import_cursor_read(&head->cursor, &head->next, sizeof head->next);
}

static bool comes_before(const tag_value *a, const tag_value *b) {
    return a->segment != b->segment ? a->segment < b->segment : a->step < b->step;
}

static keel_status merge_tags(keel_import_context *context, tag_head *heads, size_t count) {
    for (;;) {
        const tag_value *first = NULL;
        for (size_t i = 0; i < count; i++)
            if (heads[i].has_next && (!first || comes_before(&heads[i].next, first))) first = &heads[i].next;
        if (!first) return KEEL_OK;
        tag_value at = *first;
        keel_import_record record;
        keel_import_record_clear(&record);
        record.has_step = true;
        record.step = at.step;
        for (size_t i = 0; i < count; i++) {
            if (!heads[i].has_next || comes_before(&at, &heads[i].next)) continue;
            put(&record, heads[i].field, heads[i].next.value);
            keel_status status = advance(&heads[i]);
            if (status) return status;
        }
        keel_status status = keel_import_emit(context, &record);
        if (status) return status;
    }
}

static keel_status finish(keel_import_context *context, void *state) {
    tensorboard_state *s = state;
    if (s->dead && s->offset)
        keel_log(KEEL_LOG_WARNING, "%s: damaged at byte %llu; read up to there", keel_import_path(context),
                 (unsigned long long)s->offset);
    keel_import_names *names = keel_import_context_names(context);
    int32_t keys[TAGS];
    for (size_t i = 0; i < s->tag_count; i++) keys[i] = s->tags[i].key;
    keel_import_names_bind(names, keys, s->tag_count);
    tag_head *heads = calloc(TAGS, sizeof *heads);
    if (!heads) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its tags", keel_import_path(context));
    size_t count = 0;
    keel_status status = KEEL_OK;
    for (size_t i = 0; i < s->tag_count && !status; i++) {
        if (!keel_import_names_is_bound(names, keys[i])) continue;
        tag_head *head = &heads[count++];
        head->field = keel_import_names_field(names, keys[i]);
        head->left = s->tags[i].count;
        keel_import_cursor_init(&head->cursor, &s->tags[i].spool);
        status = advance(head);
    }
    if (!status) status = merge_tags(context, heads, count);
    for (size_t i = 0; i < count; i++) keel_import_cursor_free(&heads[i].cursor);
    free(heads);
    return status;
}

const keel_importer keel_importer_tensorboard = {
    .name = "tensorboard",
    .doc = "TensorBoard event files",
    .weight = 4,
    .sole = true,
    .columns = true,
    .state_bytes = sizeof(tensorboard_state),
    .open = open_state,
    .close = close_state,
    .bytes = read_bytes,
    .finish = finish,
};
