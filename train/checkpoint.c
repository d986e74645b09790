#include "train/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/safetensors.h"

enum { NAME_BYTES = KEEL_SITE_NAME_BYTES + 32, PROGRESS_COUNT = 5 };

// Files from before there was a loss scale are as good as those with none.
static const struct {
    const char *key;
    size_t offset;
    bool optional;
} progress_fields[PROGRESS_COUNT] = {
    {.key = "step", .offset = offsetof(keel_progress, step)},
    {.key = "update", .offset = offsetof(keel_progress, update)},
    {.key = "samples", .offset = offsetof(keel_progress, samples)},
    {.key = "skipped_in_row", .offset = offsetof(keel_progress, skipped_in_row)},
    {.key = "clean_updates", .offset = offsetof(keel_progress, loss_scale.clean), .optional = true},
};

static uint64_t *progress_field(keel_progress *progress, size_t i) {
    return (uint64_t *)((char *)progress + progress_fields[i].offset);
}

// The K-th flat buffer of a checkpoint: the weights, then the optimizer's states; NULL beyond the last.
static float *buffer_at(const keel_checkpoint *checkpoint, size_t k, const char **name) {
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(checkpoint->optimizer, &count);
    if (k == 0) {
        *name = "model";
        return keel_model_weights(checkpoint->model);
    }
    if (k > count) return NULL;
    *name = states[k - 1].name;
    return states[k - 1].data;
}

typedef struct draft {
    keel_safetensors_item *items;
    char (*names)[NAME_BYTES];
    size_t count;
} draft;

static keel_status draft_items(const char *path, const keel_checkpoint *checkpoint, draft *made) {
    size_t param_count, states;
    const keel_param *params = keel_model_params(checkpoint->model, &param_count);
    keel_optimizer_states(checkpoint->optimizer, &states);
    const size_t most = param_count * (states + 1) + 1;
    made->items = calloc(most, sizeof *made->items);
    made->names = calloc(most, sizeof *made->names);
    if (!made->items || !made->names) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its list of tensors", path);
    const char *kind;
    const float *buffer;
    for (size_t k = 0; (buffer = buffer_at(checkpoint, k, &kind)); k++) {
        for (size_t i = 0; i < param_count; i++, made->count++) {
            char *name = made->names[made->count];
            snprintf(name, NAME_BYTES, "%s.%s", kind, params[i].name);
            keel_safetensors_item *item = &made->items[made->count];
            *item = (keel_safetensors_item){
                .name = name, .dtype = "F32", .ndim = params[i].ndim, .data = buffer + params[i].offset};
            memcpy(item->shape, params[i].shape, sizeof params[i].shape);
        }
    }
    if (checkpoint->monitor_bytes)
        made->items[made->count++] = (keel_safetensors_item){.name = "monitor",
                                                             .dtype = "U8",
                                                             .ndim = 1,
                                                             .shape = {checkpoint->monitor_bytes},
                                                             .data = checkpoint->monitor};
    return KEEL_OK;
}

keel_status keel_checkpoint_write(const char *path, const keel_checkpoint *checkpoint, const keel_facts *facts) {
    keel_safetensors_text texts[2 + PROGRESS_COUNT + KEEL_FACT_COUNT];
    char version[16], numbers[PROGRESS_COUNT][24], scale[32];
    size_t text_count = 0;
    snprintf(version, sizeof version, "%d", KEEL_CHECKPOINT_SCHEMA);
    texts[text_count++] = (keel_safetensors_text){"keel_checkpoint", version};
    keel_progress progress = checkpoint->progress;
    for (size_t i = 0; i < PROGRESS_COUNT; i++) {
        snprintf(numbers[i], sizeof numbers[i], "%" PRIu64, *progress_field(&progress, i));
        texts[text_count++] = (keel_safetensors_text){progress_fields[i].key, numbers[i]};
    }
    snprintf(scale, sizeof scale, "%.17g", progress.loss_scale.scale);
    texts[text_count++] = (keel_safetensors_text){"loss_scale", scale};
    for (size_t i = 0; i < facts->count; i++)
        texts[text_count++] = (keel_safetensors_text){facts->list[i].key, facts->list[i].value};

    draft made = {0};
    keel_status status = draft_items(path, checkpoint, &made);
    if (!status)
        status = keel_safetensors_write(path, &(keel_safetensors_content){.items = made.items,
                                                                          .item_count = made.count,
                                                                          .texts = texts,
                                                                          .text_count = text_count,
                                                                          .checksum = true});
    free(made.items);
    free(made.names);
    return status;
}

static keel_status compare_facts(const keel_safetensors *file, const keel_facts *facts, FILE *changed) {
    for (size_t i = 0; i < facts->count; i++) {
        const keel_fact *fact = &facts->list[i];
        const char *stored = keel_safetensors_metadata(file, fact->key);
        if (stored && strcmp(stored, fact->value) == 0) continue;
        if (!stored) stored = "unknown";
        if (fact->required)
            return keel_fail(KEEL_ERR_CONFIG, "%s does not fit this configuration: %s is %s there and %s here",
                             keel_safetensors_path(file), fact->key, stored, fact->value);
        fprintf(changed, "%s%s %s -> %s", ftell(changed) ? ", " : "", fact->key, stored, fact->value);
    }
    return KEEL_OK;
}

static keel_status read_progress(const keel_safetensors *file, keel_progress *progress) {
    for (size_t i = 0; i < PROGRESS_COUNT; i++) {
        const char *text = keel_safetensors_metadata(file, progress_fields[i].key);
        char *end;
        if (!text && progress_fields[i].optional) continue;
        errno = 0;
        const unsigned long long value = text ? strtoull(text, &end, 10) : 0;
        if (!text || end == text || *end || errno)
            return keel_fail(KEEL_ERR_FORMAT, "%s: no number \"%s\"", keel_safetensors_path(file),
                             progress_fields[i].key);
        *progress_field(progress, i) = value;
    }
    const char *scale = keel_safetensors_metadata(file, "loss_scale");
    char *end;
    progress->loss_scale.scale = scale ? strtod(scale, &end) : 0;
    if (scale && (end == scale || *end || !isfinite(progress->loss_scale.scale)))
        return keel_fail(KEEL_ERR_FORMAT, "%s: no number \"loss_scale\"", keel_safetensors_path(file));
    return KEEL_OK;
}

// Every tensor is there in its shape, before the first is overwritten.
static keel_status visit_tensors(const keel_safetensors *file, const keel_checkpoint *checkpoint, bool read) {
    size_t param_count;
    const keel_param *params = keel_model_params(checkpoint->model, &param_count);
    const char *kind;
    float *buffer;
    for (size_t k = 0; (buffer = buffer_at(checkpoint, k, &kind)); k++) {
        for (size_t i = 0; i < param_count; i++) {
            char name[NAME_BYTES];
            snprintf(name, sizeof name, "%s.%s", kind, params[i].name);
            const keel_safetensor *tensor = keel_safetensors_find(file, name);
            if (!tensor) return keel_fail(KEEL_ERR_FORMAT, "%s: no tensor %s", keel_safetensors_path(file), name);
            keel_status status = keel_safetensors_expect_shape(file, tensor, params[i].ndim, params[i].shape);
            if (!status && read) status = keel_safetensors_read_f32(file, tensor, buffer + params[i].offset);
            if (status) return status;
        }
    }
    return KEEL_OK;
}

static keel_status read_monitor(const keel_safetensors *file, void **bytes, size_t *size) {
    const keel_safetensor *tensor = keel_safetensors_find(file, "monitor");
    *bytes = NULL;
    *size = 0;
    if (!tensor || tensor->begin == tensor->end) return KEEL_OK;
    void *made = malloc(tensor->end - tensor->begin);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for the monitor's state", keel_safetensors_path(file));
    const keel_status status = keel_safetensors_read_bytes(file, tensor, made);
    if (status) {
        free(made);
        return status;
    }
    *bytes = made;
    *size = tensor->end - tensor->begin;
    return KEEL_OK;
}

keel_status keel_checkpoint_read(const char *path, const keel_facts *facts, keel_checkpoint *checkpoint,
                                 char **changed) {
    keel_safetensors *file = NULL;
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *differences = NULL;
    keel_progress progress = {0};
    void *monitor = NULL;
    size_t monitor_bytes = 0;
    keel_status status = keel_safetensors_open(path, &file);
    if (status) goto done;
    status = keel_safetensors_verify(file);
    if (status) goto done;
    const char *version = keel_safetensors_metadata(file, "keel_checkpoint");
    if (!version || atoi(version) != KEEL_CHECKPOINT_SCHEMA) {
        status = keel_fail(KEEL_ERR_FORMAT, "%s: not a checkpoint of version %d", path, KEEL_CHECKPOINT_SCHEMA);
        goto done;
    }
    differences = open_memstream(&text, &text_bytes);
    if (!differences) {
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
        goto done;
    }
    status = compare_facts(file, facts, differences);
    if (!status) status = read_progress(file, &progress);
    if (!status) status = visit_tensors(file, checkpoint, false);
    if (!status) status = read_monitor(file, &monitor, &monitor_bytes);
    if (!status) status = visit_tensors(file, checkpoint, true);
    if (status) free(monitor);
done:
    if (differences) fclose(differences);
    keel_safetensors_close(file);
    if (!status) {
        checkpoint->progress = progress;
        checkpoint->monitor = monitor;
        checkpoint->monitor_bytes = monitor_bytes;
        *changed = text_bytes ? text : NULL;
    }
    if (status || !text_bytes) free(text);
    return status;
}

bool keel_checkpoint_nonfinite(const keel_checkpoint *checkpoint, char *name) {
    size_t param_count;
    const keel_param *params = keel_model_params(checkpoint->model, &param_count);
    const keel_stats_params flags = {.fields = KEEL_FIELDS_FLAGS};
    const char *kind;
    const float *buffer;
    for (size_t k = 0; (buffer = buffer_at(checkpoint, k, &kind)); k++) {
        for (size_t i = 0; i < param_count; i++) {
            keel_stats stats;
            keel_stats_clear(&stats);
            keel_stats_observe(&stats, &flags, KEEL_F32, buffer + params[i].offset, params[i].numel);
            if (!keel_stats_nonfinite(&stats)) continue;
            snprintf(name, NAME_BYTES, "%s.%s", kind, params[i].name);
            return true;
        }
    }
    return false;
}
