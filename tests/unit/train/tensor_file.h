// A safetensors file of tensors that lie in memory.
#ifndef KEEL_TESTS_TENSOR_FILE_H
#define KEEL_TESTS_TENSOR_FILE_H

#include <string.h>

#include "train/safetensors.h"

// DATA [item_count] of CONTENT's items.
static inline keel_status tensor_file_write(const char *path, const keel_safetensors_content *content,
                                            const void *const *data) {
    keel_safetensors_writer *writer;
    keel_status status = keel_safetensors_begin(path, content, &writer);
    if (status) return status;
    for (size_t i = 0; !status && i < content->item_count; i++) {
        const keel_safetensors_item *item = &content->items[i];
        size_t bytes = strcmp(item->dtype, "F32") == 0 ? sizeof(float) : 1;
        for (uint32_t d = 0; d < item->ndim; d++) bytes *= item->shape[d];
        status = keel_safetensors_put(writer, data[i], bytes);
    }
    if (!status) return keel_safetensors_end(writer);
    keel_safetensors_abort(writer);
    return status;
}

#endif
