#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "train/atomic_file.h"
#include "train/safetensors.h"

enum { CHECKSUM_BYTES = 4, MAX_CRC_PIECE = 1 << 30 };

static size_t item_bytes(const keel_safetensors_item *item) {
    size_t bytes = strcmp(item->dtype, "F32") == 0 ? sizeof(float) : 1;
    for (uint32_t i = 0; i < item->ndim; i++) bytes *= item->shape[i];
    return bytes;
}

static json_t *make_entry(const keel_safetensors_item *item, size_t begin, size_t end) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < item->ndim; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)item->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", item->dtype, "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)end);
}

// NULL without memory.
static char *make_header(const keel_safetensors_content *content) {
    static const keel_safetensors_item checksum = {
        .name = "crc32", .dtype = "U8", .ndim = 1, .shape = {CHECKSUM_BYTES}};
    char *text = NULL;
    json_t *header = json_object(), *texts = json_object();
    bool failed = !header || !texts;
    for (size_t i = 0; !failed && i < content->text_count; i++)
        failed = json_object_set_new(texts, content->texts[i].key, json_string(content->texts[i].value)) != 0;
    if (!failed && content->text_count) failed = json_object_set(header, "__metadata__", texts) != 0;
    size_t at = 0;
    const size_t count = content->item_count + content->checksum;
    for (size_t i = 0; !failed && i < count; i++) {
        const keel_safetensors_item *item = i < content->item_count ? &content->items[i] : &checksum;
        const size_t end = at + item_bytes(item);
        failed = json_object_set_new(header, item->name, make_entry(item, at, end)) != 0;
        at = end;
    }
    if (!failed) text = json_dumps(header, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(texts);
    json_decref(header);
    return text;
}

struct keel_safetensors_writer {
    keel_atomic_file *file;
    uLong crc;
    size_t left; // bytes of items
    bool checksum;
};

static keel_status put(keel_safetensors_writer *out, const void *data, size_t size) {
    const uint8_t *p = data;
    while (size) {
        const size_t take = size < MAX_CRC_PIECE ? size : MAX_CRC_PIECE;
        out->crc = crc32(out->crc, p, (uInt)take);
        const keel_status status = keel_atomic_write(out->file, p, take);
        if (status) return status;
        p += take;
        size -= take;
    }
    return KEEL_OK;
}

static keel_status put_header(keel_safetensors_writer *out, const char *header) {
    // Spaces after the header keep the data aligned, as the format allows.
    static const char spaces[] = "       ";
    const size_t length = strlen(header), padding = (8 - length % 8) % 8;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)(length + padding) >> 8 * i);
    keel_status status = put(out, prefix, sizeof prefix);
    if (!status) status = put(out, header, length);
    if (!status) status = put(out, spaces, padding);
    return status;
}

keel_status keel_safetensors_begin(const char *path, const keel_safetensors_content *content,
                                   keel_safetensors_writer **writer) {
    char *header = make_header(content);
    keel_safetensors_writer *made = calloc(1, sizeof *made);
    keel_status status = KEEL_OK;
    if (!header || !made)
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its header, or a name that is not UTF-8", path);
    if (!status) {
        *made = (keel_safetensors_writer){.crc = crc32(0, NULL, 0), .checksum = content->checksum};
        for (size_t i = 0; i < content->item_count; i++) made->left += item_bytes(&content->items[i]);
        status = keel_atomic_open(path, &made->file);
    }
    if (!status) status = put_header(made, header);
    free(header);
    if (status)
        keel_safetensors_abort(made);
    else
        *writer = made;
    return status;
}

keel_status keel_safetensors_put(keel_safetensors_writer *writer, const void *data, size_t bytes) {
    if (bytes > writer->left)
        return keel_fail(KEEL_ERR_USAGE, "a safetensors file of more bytes than its tensors have");
    writer->left -= bytes;
    return put(writer, data, bytes);
}

void keel_safetensors_abort(keel_safetensors_writer *writer) {
    if (!writer) return;
    keel_atomic_abort(writer->file);
    free(writer);
}

static keel_status put_checksum(keel_safetensors_writer *out) {
    uint8_t crc[CHECKSUM_BYTES];
    for (int i = 0; i < CHECKSUM_BYTES; i++) crc[i] = (uint8_t)(out->crc >> 8 * i);
    return put(out, crc, sizeof crc);
}

keel_status keel_safetensors_end(keel_safetensors_writer *writer) {
    keel_status status = KEEL_OK;
    if (writer->left) status = keel_fail(KEEL_ERR_USAGE, "a safetensors file that lacks %zu bytes", writer->left);
    if (!status && writer->checksum) status = put_checksum(writer);
    if (status) {
        keel_safetensors_abort(writer);
        return status;
    }
    status = keel_atomic_commit(writer->file);
    free(writer);
    return status;
}
