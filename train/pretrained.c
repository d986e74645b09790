#include "train/pretrained.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/safetensors.h"

// The files of one model: one, or those that an index names.
typedef struct weight_files {
    keel_safetensors **list;
    size_t count;
} weight_files;

static void close_files(weight_files *files) {
    for (size_t i = 0; i < files->count; i++) keel_safetensors_close(files->list[i]);
    free(files->list);
}

static keel_status add_file(weight_files *files, const char *path) {
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(keel_safetensors_path(files->list[i]), path) == 0) return KEEL_OK;
    keel_safetensors **grown = realloc(files->list, (files->count + 1) * sizeof(keel_safetensors *));
    if (!grown) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    files->list = grown;
    const keel_status status = keel_safetensors_open(path, &files->list[files->count]);
    if (!status) files->count++;
    return status;
}

// "weight_map": {"TENSOR": "FILE"}, the files beside the index.
static keel_status add_map(weight_files *files, const char *index, const json_t *map) {
    const char *slash = strrchr(index, '/'), *tensor;
    const int folder = slash ? (int)(slash + 1 - index) : 0;
    json_t *name;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return keel_fail(KEEL_ERR_FORMAT, "%s: no weight_map, which says in which file a tensor is", index);
    json_object_foreach((json_t *)map, tensor, name) {
        char *path;
        if (!json_is_string(name) || strchr(json_string_value(name), '/'))
            return keel_fail(KEEL_ERR_FORMAT, "%s: weight_map: %s: expected the name of a file beside it", index,
                             tensor);
        if (asprintf(&path, "%.*s%s", folder, index, json_string_value(name)) < 0)
            return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", index);
        const keel_status status = add_file(files, path);
        free(path);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status add_index(weight_files *files, const char *path) {
    json_error_t error;
    json_t *index = json_load_file(path, 0, &error);
    if (!index) return keel_fail(KEEL_ERR_FORMAT, "%s:%d: %s", path, error.line > 0 ? error.line : 1, error.text);
    const keel_status status = add_map(files, path, json_object_get(index, "weight_map"));
    json_decref(index);
    return status;
}

static bool is_index(const char *path) {
    static const char ending[] = ".index.json";
    const size_t n = strlen(path), k = sizeof ending - 1;
    return n > k && strcmp(path + n - k, ending) == 0;
}

static keel_status open_files(const char *path, weight_files *files) {
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        return is_index(path) ? add_index(files, path) : add_file(files, path);
    char *one = NULL, *index = NULL;
    keel_status status = KEEL_OK;
    if (asprintf(&one, "%s/model.safetensors", path) < 0 || asprintf(&index, "%s.index.json", one) < 0)
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    else if (access(one, F_OK) != 0 && access(index, F_OK) == 0)
        status = add_index(files, index);
    else
        status = add_file(files, one);
    free(one);
    free(index);
    return status;
}

// The file that holds NAME, or "transformer.NAME"; NULL: none.
static const keel_safetensors *find(void *context, const char *name, const keel_safetensor **tensor) {
    const weight_files *files = context;
    char longer[KEEL_SITE_NAME_BYTES + 16];
    snprintf(longer, sizeof longer, "transformer.%s", name);
    for (size_t i = 0; i < files->count; i++) {
        *tensor = keel_safetensors_find(files->list[i], name);
        if (!*tensor) *tensor = keel_safetensors_find(files->list[i], longer);
        if (*tensor) return files->list[i];
    }
    return NULL;
}

struct keel_pretrained {
    weight_files files;
    keel_reshard_source *sources; // [tensor of the whole model]
};

keel_status keel_pretrained_open(const char *path, keel_reshard *reshard, keel_pretrained **weights, size_t *ignored) {
    const keel_whole_list *wanted = keel_reshard_hf(reshard);
    keel_pretrained *made = calloc(1, sizeof *made);
    if (made) made->sources = calloc(wanted->count, sizeof *made->sources);
    keel_status status = KEEL_OK;
    if (!made || !made->sources) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    if (!status) status = open_files(path, &made->files);
    size_t present = 0;
    for (size_t i = 0; !status && i < made->files.count; i++) {
        size_t here;
        keel_safetensors_list(made->files.list[i], &here);
        present += here;
    }
    if (!status) {
        if (made->files.count == 1) path = keel_safetensors_path(made->files.list[0]);
        status = keel_reshard_look_up(wanted, path, NULL, find, &made->files, made->sources);
    }
    if (status) {
        keel_pretrained_close(made);
        return status;
    }
    *weights = made;
    *ignored = present - wanted->count;
    return KEEL_OK;
}

keel_status keel_pretrained_load(const keel_pretrained *weights, keel_reshard *reshard) {
    return keel_reshard_read(reshard, 0, keel_reshard_hf(reshard), weights ? weights->sources : NULL);
}

void keel_pretrained_close(keel_pretrained *weights) {
    if (!weights) return;
    close_files(&weights->files);
    free(weights->sources);
    free(weights);
}

static keel_status begin_file(const char *path, const keel_whole_list *tensors, keel_safetensors_writer **writer) {
    keel_safetensors_item *items = calloc(tensors->count, sizeof *items);
    if (!items) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < tensors->count; i++) {
        const keel_whole_tensor *tensor = &tensors->list[i];
        items[i] = (keel_safetensors_item){.name = tensor->name, .dtype = "F32", .ndim = tensor->ndim};
        memcpy(items[i].shape, tensor->shape, sizeof tensor->shape);
    }
    // Hugging Face's loader asks for this entry.
    static const keel_safetensors_text format = {"format", "pt"};
    const keel_status status = keel_safetensors_begin(
        path,
        &(keel_safetensors_content){.items = items, .item_count = tensors->count, .texts = &format, .text_count = 1},
        writer);
    free(items);
    return status;
}

keel_status keel_pretrained_save(const char *path, keel_reshard *reshard) {
    keel_safetensors_writer *writer = NULL;
    keel_status status = KEEL_OK;
    if (keel_reshard_leads(reshard)) status = begin_file(path, keel_reshard_hf(reshard), &writer);
    if (status && keel_reshard_alone(reshard)) return status;
    const keel_status written = keel_reshard_write(reshard, 0, writer);
    if (!status) status = written;
    if (!status && writer) return keel_safetensors_end(writer);
    keel_safetensors_abort(writer);
    return status;
}
