#include "train/reshard_file.h"

#include <stdio.h>

keel_status keel_reshard_look_up(const keel_whole_list *list, const char *path, const char *prefix,
                                 keel_reshard_find *find, void *context, keel_reshard_source *sources) {
    for (size_t i = 0; i < list->count; i++) {
        const keel_whole_tensor *wanted = &list->list[i];
        char name[KEEL_SITE_NAME_BYTES + 32];
        snprintf(name, sizeof name, "%s%s%s", prefix ? prefix : "", prefix ? "." : "", wanted->name);
        keel_reshard_source *source = &sources[i];
        source->file = find(context, name, &source->tensor);
        if (!source->file) return keel_fail(KEEL_ERR_FORMAT, "%s: no tensor %s, which the model needs", path, name);
        const keel_status status =
            keel_safetensors_expect_shape(source->file, source->tensor, wanted->ndim, wanted->shape);
        if (status) return status;
    }
    return KEEL_OK;
}

// The elements from BEGIN on; *NEXT: the first tensor that may hold any of them.
static keel_status fill(keel_reshard *reshard, const keel_whole_list *list, const keel_reshard_source *sources,
                        size_t begin, size_t *next) {
    const size_t end = begin + keel_reshard_window(reshard);
    float *data = keel_reshard_data(reshard);
    keel_status status = KEEL_OK;
    while (*next < list->count && list->list[*next].begin + list->list[*next].numel <= begin) ++*next;
    for (size_t i = *next; !status && i < list->count && list->list[i].begin < end; i++) {
        const keel_whole_tensor *t = &list->list[i];
        const size_t from = t->begin > begin ? t->begin : begin;
        const size_t to = t->begin + t->numel < end ? t->begin + t->numel : end;
        status = keel_safetensors_read_f32(sources[i].file, sources[i].tensor, from - t->begin, to - from,
                                           data + (from - begin));
    }
    return status;
}

keel_status keel_reshard_read(keel_reshard *reshard, size_t buffer, const keel_whole_list *list,
                              const keel_reshard_source *sources) {
    keel_status read = KEEL_OK, moved = KEEL_OK;
    size_t next = 0;
    for (size_t at = 0; !moved && at < keel_reshard_numel(reshard); at += keel_reshard_window(reshard)) {
        if (sources && !read) read = fill(reshard, list, sources, at, &next);
        moved = keel_reshard_scatter(reshard, buffer, at);
    }
    return read ? read : moved;
}

keel_status keel_reshard_write(keel_reshard *reshard, size_t buffer, keel_safetensors_writer *writer) {
    keel_status written = KEEL_OK, moved = KEEL_OK;
    const size_t numel = keel_reshard_numel(reshard), window = keel_reshard_window(reshard);
    for (size_t at = 0; !moved && at < numel; at += window) {
        const float *data;
        moved = keel_reshard_gather(reshard, buffer, at, &data);
        if (moved || written || !writer) continue;
        const size_t n = numel - at < window ? numel - at : window;
        written = keel_safetensors_put(writer, data, n * sizeof *data);
    }
    return written ? written : moved;
}
