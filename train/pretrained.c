#include "train/pretrained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/safetensors.h"

static const keel_safetensor *find(const keel_safetensors *file, const char *name) {
    const keel_safetensor *tensor = keel_safetensors_find(file, name);
    char longer[KEEL_SITE_NAME_BYTES + 16];
    snprintf(longer, sizeof longer, "transformer.%s", name);
    return tensor ? tensor : keel_safetensors_find(file, longer);
}

static keel_status load(const keel_safetensors *file, keel_model *model, size_t *ignored) {
    size_t count, present;
    const keel_hf_tensor *wanted = keel_model_hf_tensors(model, &count);
    keel_safetensors_list(file, &present);
    for (size_t i = 0; i < count; i++) {
        const keel_safetensor *tensor = find(file, wanted[i].name);
        if (!tensor)
            return keel_fail(KEEL_ERR_FORMAT, "%s: no tensor %s, which the model needs", keel_safetensors_path(file),
                             wanted[i].name);
        keel_status status = keel_safetensors_expect_shape(file, tensor, wanted[i].ndim, wanted[i].shape);
        if (!status) status = keel_safetensors_read_f32(file, tensor, keel_model_weights(model) + wanted[i].offset);
        if (status) return status;
    }
    *ignored = present - count;
    return KEEL_OK;
}

keel_status keel_pretrained_load(const char *path, keel_model *model, size_t *ignored) {
    struct stat about;
    char *inside = NULL;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode) && asprintf(&inside, "%s/model.safetensors", path) < 0)
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    keel_safetensors *file = NULL;
    keel_status status = keel_safetensors_open(inside ? inside : path, &file);
    if (!status) status = load(file, model, ignored);
    keel_safetensors_close(file);
    free(inside);
    return status;
}

keel_status keel_pretrained_save(const char *path, keel_model *model) {
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    keel_safetensors_item *items = calloc(count, sizeof *items);
    if (!items) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < count; i++) {
        items[i] = (keel_safetensors_item){.name = tensors[i].name,
                                           .dtype = "F32",
                                           .ndim = tensors[i].ndim,
                                           .data = keel_model_weights(model) + tensors[i].offset};
        memcpy(items[i].shape, tensors[i].shape, sizeof tensors[i].shape);
    }
    // Hugging Face's loader asks for this entry.
    static const keel_safetensors_text format = {"format", "pt"};
    const keel_status status = keel_safetensors_write(
        path, &(keel_safetensors_content){.items = items, .item_count = count, .texts = &format, .text_count = 1});
    free(items);
    return status;
}
