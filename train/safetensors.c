#include "train/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "probe/dtype.h"

enum { PREFIX_BYTES = 8, CHECKSUM_BYTES = 4, CHUNK_BYTES = 1 << 20 };

struct keel_safetensors {
    char *path;
    int fd;
    json_t *header; // owns the names and texts
    keel_safetensor *tensors;
    size_t count;
    uint64_t data_begin; // in the file
    uint64_t data_bytes;
};

typedef struct dtype_row {
    const char *name;
    uint32_t bytes;
} dtype_row;

static const dtype_row dtypes[] = {{"F32", 4}, {"F16", 2},  {"BF16", 2}, {"F64", 8},     {"U8", 1},
                                   {"I8", 1},  {"BOOL", 1}, {"I16", 2},  {"U16", 2},     {"I32", 4},
                                   {"U32", 4}, {"I64", 8},  {"U64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}};

static const dtype_row *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

static keel_status no_memory(const char *path) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its tensors", path);
}

static keel_status read_fully(const keel_safetensors *file, void *out, size_t size, uint64_t at) {
    for (char *p = out; size;) {
        const ssize_t got = pread(file->fd, p, size, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", file->path, strerror(errno));
        if (got == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: ends at byte %" PRIu64 ", cut short", file->path, at);
        p += got;
        size -= (size_t)got;
        at += (uint64_t)got;
    }
    return KEEL_OK;
}

// A non-negative integer; false otherwise.
static bool to_u64(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static keel_status read_shape(const keel_safetensors *file, const json_t *shape, keel_safetensor *tensor) {
    if (!json_is_array(shape))
        return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: no list \"shape\"", file->path, tensor->name);
    const size_t ndim = json_array_size(shape);
    if (ndim > KEEL_SAFETENSORS_MAX_DIMS)
        return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: %zu dimensions, at most %d are read", file->path,
                         tensor->name, ndim, KEEL_SAFETENSORS_MAX_DIMS);
    tensor->ndim = (uint32_t)ndim;
    tensor->numel = 1;
    for (size_t i = 0; i < ndim; i++) {
        if (!to_u64(json_array_get(shape, i), &tensor->shape[i]))
            return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: dimension %zu of its shape is not a size", file->path,
                             tensor->name, i);
        if (__builtin_mul_overflow(tensor->numel, tensor->shape[i], &tensor->numel))
            return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: its shape overflows", file->path, tensor->name);
    }
    return KEEL_OK;
}

static keel_status read_tensor(const keel_safetensors *file, const char *name, const json_t *entry,
                               keel_safetensor *tensor) {
    *tensor = (keel_safetensor){.name = name};
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype_name) return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: no text \"dtype\"", file->path, name);
    const dtype_row *dtype = find_dtype(dtype_name);
    if (!dtype) return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: unknown dtype \"%s\"", file->path, name, dtype_name);
    tensor->dtype = dtype->name;

    const keel_status status = read_shape(file, json_object_get(entry, "shape"), tensor);
    if (status) return status;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !to_u64(json_array_get(offsets, 0), &tensor->begin) || !to_u64(json_array_get(offsets, 1), &tensor->end))
        return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: \"data_offsets\" is not [begin, end]", file->path, name);
    if (tensor->begin > tensor->end || tensor->end > file->data_bytes)
        return keel_fail(KEEL_ERR_FORMAT,
                         "%s: tensor %s: bytes %" PRIu64 " to %" PRIu64 " lie outside the %" PRIu64
                         " bytes of data; the file may be cut short",
                         file->path, name, tensor->begin, tensor->end, file->data_bytes);
    uint64_t bytes;
    if (__builtin_mul_overflow(tensor->numel, dtype->bytes, &bytes) || bytes != tensor->end - tensor->begin)
        return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: %" PRIu64 " bytes, but %" PRIu64 " elements of %s",
                         file->path, name, tensor->end - tensor->begin, tensor->numel, dtype->name);
    return KEEL_OK;
}

static int by_place(const void *a, const void *b) {
    const keel_safetensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

// The tensors tile the data: no overlap, no hole, no rest.
static keel_status check_tiling(const keel_safetensors *file) {
    uint64_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const keel_safetensor *tensor = &file->tensors[i];
        if (tensor->begin < at)
            return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s lies over tensor %s", file->path, tensor->name,
                             file->tensors[i - 1].name);
        if (tensor->begin > at)
            return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: %" PRIu64 " bytes before it belong to none", file->path,
                             tensor->name, tensor->begin - at);
        at = tensor->end;
    }
    if (at != file->data_bytes)
        return keel_fail(KEEL_ERR_FORMAT, "%s: %" PRIu64 " bytes after the last tensor belong to none", file->path,
                         file->data_bytes - at);
    return KEEL_OK;
}

static keel_status read_entries(keel_safetensors *file) {
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors) return no_memory(file->path);
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry) {
        if (!json_is_object(entry))
            return keel_fail(KEEL_ERR_FORMAT, "%s: entry %s of the header is not an object", file->path, name);
        if (strcmp(name, "__metadata__") == 0) continue;
        const keel_status status = read_tensor(file, name, entry, &file->tensors[file->count]);
        if (status) return status;
        file->count++;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    return check_tiling(file);
}

static keel_status read_header(keel_safetensors *file, uint64_t file_bytes) {
    uint8_t prefix[PREFIX_BYTES];
    if (file_bytes < PREFIX_BYTES)
        return keel_fail(KEEL_ERR_FORMAT, "%s: %" PRIu64 " bytes, too short for a safetensors file", file->path,
                         file_bytes);
    keel_status status = read_fully(file, prefix, sizeof prefix, 0);
    if (status) return status;
    uint64_t size = 0;
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) size = size << 8 | prefix[i];
    if (size > KEEL_SAFETENSORS_MAX_HEADER)
        return keel_fail(KEEL_ERR_FORMAT, "%s: not a safetensors file: a header of %" PRIu64 " bytes", file->path,
                         size);
    if (size > file_bytes - PREFIX_BYTES)
        return keel_fail(KEEL_ERR_FORMAT, "%s: %" PRIu64 " bytes, but its header alone has %" PRIu64, file->path,
                         file_bytes, size);
    file->data_begin = PREFIX_BYTES + size;
    file->data_bytes = file_bytes - file->data_begin;

    char *text = malloc(size + 1);
    if (!text) return no_memory(file->path);
    status = read_fully(file, text, size, PREFIX_BYTES);
    if (!status) {
        json_error_t error;
        file->header = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(file->header))
            status = keel_fail(KEEL_ERR_FORMAT, "%s: header: %s", file->path,
                               file->header ? "not a JSON object" : error.text);
    }
    free(text);
    return status ? status : read_entries(file);
}

keel_status keel_safetensors_open(const char *path, keel_safetensors **file) {
    keel_safetensors *made = calloc(1, sizeof *made);
    if (!made) return no_memory(path);
    made->fd = -1;
    keel_status status = KEEL_OK;
    made->path = strdup(path);
    if (!made->path) {
        status = no_memory(path);
        goto fail;
    }
    made->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (made->fd < 0 || fstat(made->fd, &about) != 0) {
        status = keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(about.st_mode)) {
        status = keel_fail(KEEL_ERR_FORMAT, "%s: not a regular file", path);
        goto fail;
    }
    status = read_header(made, (uint64_t)about.st_size);
    if (status) goto fail;
    *file = made;
    return KEEL_OK;
fail:
    keel_safetensors_close(made);
    return status;
}

void keel_safetensors_close(keel_safetensors *file) {
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *keel_safetensors_path(const keel_safetensors *file) {
    return file->path;
}

const keel_safetensor *keel_safetensors_list(const keel_safetensors *file, size_t *count) {
    *count = file->count;
    return file->tensors;
}

const keel_safetensor *keel_safetensors_find(const keel_safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *keel_safetensors_metadata(const keel_safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

keel_status keel_safetensors_read_bytes(const keel_safetensors *file, const keel_safetensor *tensor, void *out) {
    return read_fully(file, out, tensor->end - tensor->begin, file->data_begin + tensor->begin);
}

typedef void widen(const uint8_t *from, float *to, size_t n);

static void widen_f16(const uint8_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = keel_f16_to_f32(bits);
    }
}

static void widen_bf16(const uint8_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = keel_bf16_to_f32(bits);
    }
}

static void narrow_f64(const uint8_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, from + 8 * i, sizeof value);
        to[i] = (float)value;
    }
}

keel_status keel_safetensors_read_f32(const keel_safetensors *file, const keel_safetensor *tensor, uint64_t first,
                                      uint64_t count, float *out) {
    static const struct {
        const char *dtype;
        size_t bytes;
        widen *convert; // NULL: as it is
    } conversions[] = {{"F32", 4, NULL}, {"F16", 2, widen_f16}, {"BF16", 2, widen_bf16}, {"F64", 8, narrow_f64}};
    enum { KINDS = sizeof conversions / sizeof conversions[0] };
    size_t kind = 0;
    while (kind < KINDS && strcmp(tensor->dtype, conversions[kind].dtype) != 0) kind++;
    if (kind == KINDS)
        return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s: dtype %s is not a floating-point one that can be read",
                         file->path, tensor->name, tensor->dtype);
    const size_t width = conversions[kind].bytes;
    const uint64_t begin = file->data_begin + tensor->begin + first * width;
    if (!conversions[kind].convert) return read_fully(file, out, count * width, begin);

    uint8_t *chunk = malloc(CHUNK_BYTES);
    if (!chunk) return no_memory(file->path);
    keel_status status = KEEL_OK;
    for (uint64_t at = 0; !status && at < count * width;) {
        const uint64_t left = count * width - at;
        const size_t take = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        status = read_fully(file, chunk, take, begin + at);
        if (!status) conversions[kind].convert(chunk, out, take / width);
        out += take / width;
        at += take;
    }
    free(chunk);
    return status;
}

static void print_shape(char *text, size_t size, uint32_t ndim, const uint64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

keel_status keel_safetensors_expect_shape(const keel_safetensors *file, const keel_safetensor *tensor, uint32_t ndim,
                                          const size_t *shape) {
    uint64_t wanted[KEEL_SAFETENSORS_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < ndim; i++) wanted[i] = shape[i];
    if (tensor->ndim == ndim && memcmp(tensor->shape, wanted, ndim * sizeof wanted[0]) == 0) return KEEL_OK;
    char found_text[128], wanted_text[128];
    print_shape(found_text, sizeof found_text, tensor->ndim, tensor->shape);
    print_shape(wanted_text, sizeof wanted_text, ndim, wanted);
    return keel_fail(KEEL_ERR_FORMAT, "%s: tensor %s has shape %s, the model needs %s", file->path, tensor->name,
                     found_text, wanted_text);
}

keel_status keel_safetensors_verify(const keel_safetensors *file) {
    const keel_safetensor *tensor = keel_safetensors_find(file, "crc32");
    if (!tensor || tensor->end - tensor->begin != CHECKSUM_BYTES || tensor->end != file->data_bytes)
        return keel_fail(KEEL_ERR_FORMAT, "%s: holds no checksum", file->path);
    uint8_t stored[CHECKSUM_BYTES];
    keel_status status = keel_safetensors_read_bytes(file, tensor, stored);
    uint8_t *chunk = malloc(CHUNK_BYTES);
    if (!chunk) status = no_memory(file->path);
    uLong crc = crc32(0, NULL, 0);
    for (uint64_t at = 0, end = file->data_begin + tensor->begin; !status && at < end;) {
        const size_t take = end - at < CHUNK_BYTES ? (size_t)(end - at) : CHUNK_BYTES;
        status = read_fully(file, chunk, take, at);
        if (!status) crc = crc32(crc, chunk, (uInt)take);
        at += take;
    }
    free(chunk);
    if (status) return status;
    for (int i = 0; i < CHECKSUM_BYTES; i++)
        if (stored[i] != (uint8_t)(crc >> 8 * i))
            return keel_fail(KEEL_ERR_FORMAT, "%s: damaged: its checksum does not fit", file->path);
    return KEEL_OK;
}
