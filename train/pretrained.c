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
static const keel_safetensors *find(const weight_files *files, const char *name, const keel_safetensor **tensor) {
    char longer[KEEL_SITE_NAME_BYTES + 16];
    snprintf(longer, sizeof longer, "transformer.%s", name);
    for (size_t i = 0; i < files->count; i++) {
        *tensor = keel_safetensors_find(files->list[i], name);
        if (!*tensor) *tensor = keel_safetensors_find(files->list[i], longer);
        if (*tensor) return files->list[i];
    }
    return NULL;
}

// A tensor that this rank does not hold whole passes through memory of its own.
static keel_status load_tensor(const keel_safetensors *file, const keel_safetensor *tensor, const keel_hf_tensor *place,
                               keel_model *model) {
    size_t count;
    const keel_param *param = keel_model_params(model, &count) + place->param;
    float *weights = keel_model_weights(model);
    if (param->cut == KEEL_CUT_NONE)
        return keel_safetensors_read_f32(file, tensor, weights + param->offset + place->row * keel_param_cols(param));
    float *whole = malloc(place->rows * keel_param_cols(param) * sizeof *whole);
    if (!whole) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for %s", keel_safetensors_path(file), place->name);
    const keel_status status = keel_safetensors_read_f32(file, tensor, whole);
    if (!status) keel_param_take(param, weights, whole, place->row, place->rows);
    free(whole);
    return status;
}

static keel_status load(const weight_files *files, const char *path, keel_model *model, size_t *ignored) {
    size_t count, present = 0;
    const keel_hf_tensor *wanted = keel_model_hf_tensors(model, &count);
    for (size_t i = 0; i < files->count; i++) {
        size_t here;
        keel_safetensors_list(files->list[i], &here);
        present += here;
    }
    for (size_t i = 0; i < count; i++) {
        const keel_safetensor *tensor;
        const keel_safetensors *file = find(files, wanted[i].name, &tensor);
        if (!file)
            return keel_fail(KEEL_ERR_FORMAT, "%s: no tensor %s, which the model needs",
                             files->count == 1 ? keel_safetensors_path(files->list[0]) : path, wanted[i].name);
        keel_status status = keel_safetensors_expect_shape(file, tensor, wanted[i].ndim, wanted[i].shape);
        if (!status) status = load_tensor(file, tensor, &wanted[i], model);
        if (status) return status;
    }
    *ignored = present - count;
    return KEEL_OK;
}

keel_status keel_pretrained_load(const char *path, keel_model *model, size_t *ignored) {
    weight_files files = {0};
    keel_status status = open_files(path, &files);
    if (!status) status = load(&files, path, model, ignored);
    close_files(&files);
    return status;
}

keel_status keel_pretrained_save(const char *path, keel_model *model) {
    size_t count, param_count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    const keel_param *params = keel_model_params(model, &param_count);
    keel_safetensors_item *items = calloc(count, sizeof *items);
    if (!items) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    for (size_t i = 0; i < count; i++) {
        const keel_param *param = &params[tensors[i].param];
        const size_t at = param->offset + tensors[i].row * keel_param_cols(param);
        items[i] = (keel_safetensors_item){
            .name = tensors[i].name, .dtype = "F32", .ndim = tensors[i].ndim, .data = keel_model_weights(model) + at};
        memcpy(items[i].shape, tensors[i].shape, sizeof tensors[i].shape);
    }
    // Hugging Face's loader asks for this entry.
    static const keel_safetensors_text format = {"format", "pt"};
    const keel_status status = keel_safetensors_write(
        path, &(keel_safetensors_content){.items = items, .item_count = count, .texts = &format, .text_count = 1});
    free(items);
    return status;
}
