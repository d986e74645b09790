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

typedef struct draft {
    keel_safetensors_item *items;
    char (*names)[NAME_BYTES];
    size_t count;
} draft;

static keel_status draft_items(const char *path, const keel_checkpoint *checkpoint, draft *made) {
    const keel_whole_list *params = keel_reshard_params(checkpoint->reshard);
    size_t buffers = 0;
    while (keel_reshard_name(checkpoint->reshard, buffers)) buffers++;
    const size_t most = params->count * buffers + 1;
    made->items = calloc(most, sizeof *made->items);
    made->names = calloc(most, sizeof *made->names);
    if (!made->items || !made->names) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its list of tensors", path);
    for (size_t k = 0; k < buffers; k++) {
        for (size_t i = 0; i < params->count; i++, made->count++) {
            const keel_whole_tensor *param = &params->list[i];
            char *name = made->names[made->count];
            snprintf(name, NAME_BYTES, "%s.%s", keel_reshard_name(checkpoint->reshard, k), param->name);
            keel_safetensors_item *item = &made->items[made->count];
            *item = (keel_safetensors_item){.name = name, .dtype = "F32", .ndim = param->ndim};
            memcpy(item->shape, param->shape, sizeof param->shape);
        }
    }
    if (checkpoint->monitor_bytes)
        made->items[made->count++] =
            (keel_safetensors_item){.name = "monitor", .dtype = "U8", .ndim = 1, .shape = {checkpoint->monitor_bytes}};
    return KEEL_OK;
}

static keel_status begin_file(const char *path, const keel_checkpoint *checkpoint, const keel_facts *facts,
                              keel_safetensors_writer **writer) {
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
        status = keel_safetensors_begin(path,
                                        &(keel_safetensors_content){.items = made.items,
                                                                    .item_count = made.count,
                                                                    .texts = texts,
                                                                    .text_count = text_count,
                                                                    .checksum = true},
                                        writer);
    free(made.items);
    free(made.names);
    return status;
}

keel_status keel_checkpoint_write(const char *path, const keel_checkpoint *checkpoint, const keel_facts *facts) {
    keel_reshard *reshard = checkpoint->reshard;
    keel_safetensors_writer *writer = NULL;
    keel_status status = KEEL_OK;
    if (path) status = begin_file(path, checkpoint, facts, &writer);
    if (!writer && keel_reshard_alone(reshard)) return status;
    for (size_t k = 0; keel_reshard_name(reshard, k); k++) {
        const keel_status written = keel_reshard_write(reshard, k, status ? NULL : writer);
        if (!status) status = written;
    }
    const keel_status sound = keel_reshard_check(reshard);
    if (!status) status = sound;
    if (!status && writer) status = keel_safetensors_put(writer, checkpoint->monitor, checkpoint->monitor_bytes);
    if (!status && writer) return keel_safetensors_end(writer);
    keel_safetensors_abort(writer);
    return status;
}

// A number of 17 digits in as few as give it back: 9.9999999999999995e-07 is 1e-06.
static void print_fact(FILE *out, const char *text) {
    char *end, brief[32];
    const double value = strtod(text, &end);
    if (!strchr(text, '.') || *end) {
        fputs(text, out);
        return;
    }
    snprintf(brief, sizeof brief, "%.15g", value);
    fputs(strtod(brief, NULL) == value ? brief : text, out);
}

static keel_status compare_facts(const keel_safetensors *file, const keel_facts *facts, FILE *changed) {
    for (size_t i = 0; i < facts->count; i++) {
        const keel_fact *fact = &facts->list[i];
        const char *stored = keel_safetensors_metadata(file, fact->key);
        if (!stored) stored = fact->absent;
        if (stored && strcmp(stored, fact->value) == 0) continue;
        if (!stored) stored = "unknown";
        if (fact->required)
            return keel_fail(KEEL_ERR_CONFIG, "%s does not fit this configuration: %s is %s there and %s here",
                             keel_safetensors_path(file), fact->key, stored, fact->value);
        fprintf(changed, "%s%s ", ftell(changed) ? ", " : "", fact->key);
        print_fact(changed, stored);
        fputs(" -> ", changed);
        print_fact(changed, fact->value);
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

static const keel_safetensors *find(void *file, const char *name, const keel_safetensor **tensor) {
    *tensor = keel_safetensors_find(file, name);
    return *tensor ? file : NULL;
}

// Every tensor is there in its shape, before the first is overwritten.
static keel_status find_tensors(const char *path, keel_checkpoint *checkpoint) {
    const keel_whole_list *params = keel_reshard_params(checkpoint->reshard);
    size_t buffers = 0;
    while (keel_reshard_name(checkpoint->reshard, buffers)) buffers++;
    checkpoint->sources = calloc(buffers * params->count, sizeof *checkpoint->sources);
    if (!checkpoint->sources) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its list of tensors", path);
    keel_status status = KEEL_OK;
    for (size_t k = 0; !status && k < buffers; k++)
        status = keel_reshard_look_up(params, path, keel_reshard_name(checkpoint->reshard, k), find, checkpoint->file,
                                      checkpoint->sources + k * params->count);
    return status;
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

void keel_checkpoint_close(keel_checkpoint *checkpoint) {
    keel_safetensors_close(checkpoint->file);
    free(checkpoint->sources);
    checkpoint->file = NULL;
    checkpoint->sources = NULL;
}

static keel_status check_version(const keel_safetensors *file) {
    const char *version = keel_safetensors_metadata(file, "keel_checkpoint");
    if (version && atoi(version) == KEEL_CHECKPOINT_SCHEMA) return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "%s: not a checkpoint of version %d", keel_safetensors_path(file),
                     KEEL_CHECKPOINT_SCHEMA);
}

static keel_status read_content(const char *path, const keel_facts *facts, keel_checkpoint *made, FILE *differences) {
    keel_status status = check_version(made->file);
    if (!status) status = compare_facts(made->file, facts, differences);
    if (!status) status = read_progress(made->file, &made->progress);
    if (!status) status = find_tensors(path, made);
    if (!status) status = read_monitor(made->file, &made->monitor, &made->monitor_bytes);
    // Its checksum holds: what is not as expected now is no damage, but another program's or another model's.
    return status == KEEL_ERR_FORMAT ? KEEL_ERR_CONFIG : status;
}

keel_status keel_checkpoint_open(const char *path, const keel_facts *facts, keel_checkpoint *checkpoint,
                                 char **changed) {
    char *text = NULL;
    size_t text_bytes = 0;
    keel_checkpoint made = {.reshard = checkpoint->reshard};
    FILE *differences = open_memstream(&text, &text_bytes);
    keel_status status = differences ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    if (!status) status = keel_safetensors_open(path, &made.file);
    if (!status) status = keel_safetensors_verify(made.file);
    if (!status) status = read_content(path, facts, &made, differences);
    if (differences) fclose(differences);
    if (status) {
        keel_checkpoint_close(&made);
        free(text);
        return status;
    }
    *checkpoint = made;
    *changed = text_bytes ? text : NULL;
    if (!text_bytes) free(text);
    return KEEL_OK;
}

keel_status keel_checkpoint_load(keel_checkpoint *checkpoint) {
    const keel_whole_list *params = keel_reshard_params(checkpoint->reshard);
    keel_status status = KEEL_OK;
    for (size_t k = 0; keel_reshard_name(checkpoint->reshard, k); k++) {
        const keel_reshard_source *sources = checkpoint->sources ? checkpoint->sources + k * params->count : NULL;
        const keel_status read = keel_reshard_read(checkpoint->reshard, k, params, sources);
        if (!status) status = read;
    }
    keel_checkpoint_close(checkpoint);
    return status;
}
