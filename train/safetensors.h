// safetensors files: 8 bytes little-endian length, a JSON header of that length, then the tensors' bytes.
//     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {"KEY": "TEXT"}}
// Offsets count from the end of the header. The format: https://github.com/huggingface/safetensors#format
#ifndef KEEL_TRAIN_SAFETENSORS_H
#define KEEL_TRAIN_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// A header beyond this is refused; the format's own limit.
#define KEEL_SAFETENSORS_MAX_HEADER UINT64_C(100000000)

enum { KEEL_SAFETENSORS_MAX_DIMS = 8 };

typedef struct keel_safetensor {
    const char *name;  // owned by the file
    const char *dtype; // "F32", "BF16", ...; a constant
    uint32_t ndim;
    uint64_t shape[KEEL_SAFETENSORS_MAX_DIMS];
    uint64_t numel;
    uint64_t begin, end; // bytes from the end of the header
} keel_safetensor;

typedef struct keel_safetensors keel_safetensors; // an open file

// Reads and checks the header: every offset within the file, sizes as shape and dtype say, no two tensors over the same
// bytes, no bytes that belong to none. KEEL_ERR_FORMAT names the tensor; KEEL_ERR_NOT_FOUND where there is no file.
keel_status keel_safetensors_open(const char *path, keel_safetensors **file);
void keel_safetensors_close(keel_safetensors *file); // NULL is fine

const char *keel_safetensors_path(const keel_safetensors *file);
// In the order of their bytes. Valid as long as the file is open.
const keel_safetensor *keel_safetensors_list(const keel_safetensors *file, size_t *count);
const keel_safetensor *keel_safetensors_find(const keel_safetensors *file, const char *name); // NULL: none
// The text of KEY in __metadata__; NULL: none.
const char *keel_safetensors_metadata(const keel_safetensors *file, const char *key);

// OUT [count], the elements from FIRST on: F32, F16, BF16 exactly, F64 rounded; KEEL_ERR_FORMAT for other dtypes, with
// the tensor's name.
keel_status keel_safetensors_read_f32(const keel_safetensors *file, const keel_safetensor *tensor, uint64_t first,
                                      uint64_t count, float *out);
// OUT [end - begin]: the bytes as they are.
keel_status keel_safetensors_read_bytes(const keel_safetensors *file, const keel_safetensor *tensor, void *out);
// KEEL_ERR_FORMAT unless TENSOR has exactly this shape; the message holds both.
keel_status keel_safetensors_expect_shape(const keel_safetensors *file, const keel_safetensor *tensor, uint32_t ndim,
                                          const size_t *shape);

// ---- writing ----

typedef struct keel_safetensors_item {
    const char *name;
    const char *dtype; // "F32" or "U8"
    uint32_t ndim;
    size_t shape[KEEL_SAFETENSORS_MAX_DIMS];
} keel_safetensors_item;

typedef struct keel_safetensors_text {
    const char *key, *value;
} keel_safetensors_text;

typedef struct keel_safetensors_content {
    const keel_safetensors_item *items; // written in this order
    size_t item_count;
    const keel_safetensors_text *texts; // __metadata__
    size_t text_count;
    bool checksum; // a last tensor "crc32", U8 [4]: CRC-32 (zlib's) of every byte before it, little-endian
} keel_safetensors_content;

// Begin, then the bytes of all items one after another in any pieces, then end (KEEL_ERR_USAGE if they were not all) or
// abort, which leave nothing open. Written under a temporary name beside PATH, flushed to the disk, then renamed: PATH
// is either as it was or whole. KEEL_ERR_IO with the system's reason, and no temporary file left. CONTENT is not needed
// after begin.
typedef struct keel_safetensors_writer keel_safetensors_writer;
keel_status keel_safetensors_begin(const char *path, const keel_safetensors_content *content,
                                   keel_safetensors_writer **writer);
keel_status keel_safetensors_put(keel_safetensors_writer *writer, const void *data, size_t bytes);
keel_status keel_safetensors_end(keel_safetensors_writer *writer);
void keel_safetensors_abort(keel_safetensors_writer *writer); // NULL is fine

// Reads the whole file against its "crc32". KEEL_ERR_FORMAT if it has none or it differs.
keel_status keel_safetensors_verify(const keel_safetensors *file);

#endif
