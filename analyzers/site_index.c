#include "analyzers/site_index.h"

#include <stdlib.h>
#include <string.h>

static int by_flow(const void *a, const void *b) {
    const keel_site_info *x = *(const keel_site_info *const *)a, *y = *(const keel_site_info *const *)b;
    int order = keel_site_compare(x, y);
    return order ? order : x < y ? -1 : x > y;
}

static const char *const endings[KEEL_NAMED_COUNT] = {
    [KEEL_NAMED_MAX_LOGIT] = ".max_logit",
    [KEEL_NAMED_EXPERT_LOAD] = ".expert_load",
    [KEEL_NAMED_DROP_RATE] = ".drop_rate",
};

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

static int by_name(const void *a, const void *b) {
    const keel_site_info *x = *(const keel_site_info *const *)a, *y = *(const keel_site_info *const *)b;
    return strcmp(x->name, y->name);
}

// The id of the weight named like SITE among the COUNT of WEIGHTS, sorted by name; -1: none.
static int32_t find_weight(const keel_site_info *const *weights, uint32_t count, const keel_site_info *site,
                           const keel_site_info *sites) {
    const keel_site_info *const *found = bsearch(&site, weights, count, sizeof *weights, by_name);
    return found ? (int32_t)(*found - sites) : -1;
}

int64_t keel_site_now(const keel_run_info *info, int64_t id, uint64_t hash) {
    if (id < 0 || (id < (int64_t)info->site_count && keel_site_hash(&info->sites[id]) == hash)) return id;
    for (uint32_t i = 0; i < info->site_count; i++)
        if (keel_site_hash(&info->sites[i]) == hash) return i;
    return -1;
}

keel_status keel_site_index_open(const keel_run_info *info, keel_site_index *index) {
    const uint32_t n = info->site_count;
    uint32_t *memory = calloc(4 * (size_t)n + 1, sizeof *memory);
    const keel_site_info **order = calloc((size_t)n + 1, sizeof *order);
    if (!memory || !order) {
        free(memory);
        free((void *)order);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the index of %u sites", n);
    }
    uint32_t *next = memory, *flow = memory + n;
    int32_t *weight = (int32_t *)(memory + 2 * (size_t)n);
    *index = (keel_site_index){.site_count = n, .flow = flow, .weight = weight, .memory = memory};
    for (uint32_t i = 0; i < n; i++) order[i] = &info->sites[i];
    qsort((void *)order, n, sizeof *order, by_flow);
    for (uint32_t i = 0; i < n; i++) flow[order[i] - info->sites] = i;
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        index->sites[q] = next;
        for (uint32_t i = 0; i < n; i++)
            if (order[i]->quantity == (keel_quantity)q) *next++ = (uint32_t)(order[i] - info->sites);
        index->count[q] = (uint32_t)(next - index->sites[q]);
    }
    next = memory + 3 * (size_t)n;
    for (int k = 0; k < KEEL_NAMED_COUNT; k++) {
        index->named[k] = next;
        for (uint32_t i = 0; i < n; i++)
            if (ends_with(order[i]->name, endings[k])) *next++ = (uint32_t)(order[i] - info->sites);
        index->named_count[k] = (uint32_t)(next - index->named[k]);
    }
    uint32_t weights = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (info->sites[i].layer >= 0 && (uint32_t)info->sites[i].layer >= index->layers)
            index->layers = (uint32_t)info->sites[i].layer + 1;
        if (info->sites[i].quantity == KEEL_WEIGHT) order[weights++] = &info->sites[i];
    }
    qsort((void *)order, weights, sizeof *order, by_name);
    for (uint32_t i = 0; i < n; i++) weight[i] = find_weight(order, weights, &info->sites[i], info->sites);
    free((void *)order);
    return KEEL_OK;
}

void keel_site_index_close(keel_site_index *index) {
    free(index->memory);
    *index = (keel_site_index){0};
}
