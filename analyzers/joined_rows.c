#include "analyzers/joined_rows.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Series of what a segment's tables hold: [scalar_count], then [site_count].
typedef struct segment_map {
    const keel_run_info *info;
    size_t *series;
} segment_map;

typedef struct side {
    keel_run_rows *rows;
    segment_map *maps; // [segment]
    uint32_t segments;
    keel_joined_value *values; // [series]
    const keel_row *row;
    uint32_t segment;
} side;

struct keel_joiner {
    keel_joined_series *series;
    size_t capacity;
    side sides[KEEL_RUN_SIDES];
};

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory to compare two runs");
}

// ---- which series there are ----

static int by_name(const void *a, const void *b) {
    const keel_joined_series *x = a, *y = b;
    return x->is_site != y->is_site ? (int)x->is_site - (int)y->is_site : strcmp(x->name, y->name);
}

// What is known before the forward pass stands before everything, what the update leaves after everything.
static void place_scalar(keel_joined_series *series) {
    static const struct {
        const char *name;
        keel_phase phase;
        uint32_t order;
    } places[] = {{"lr", KEEL_PHASE_FORWARD, 0},
                  {"loss_scale", KEEL_PHASE_FORWARD, 0},
                  {"loss", KEEL_PHASE_FORWARD, UINT32_MAX - 2},
                  {"loss_max", KEEL_PHASE_FORWARD, UINT32_MAX - 1},
                  {"perplexity", KEEL_PHASE_FORWARD, UINT32_MAX - 1},
                  {"aux_loss", KEEL_PHASE_FORWARD, UINT32_MAX - 1},
                  {"z_loss", KEEL_PHASE_FORWARD, UINT32_MAX - 1},
                  {"grad_norm", KEEL_PHASE_REDUCTION, UINT32_MAX - 1},
                  {"clip_factor", KEEL_PHASE_REDUCTION, UINT32_MAX}};
    series->phase = KEEL_PHASE_OPTIMIZER;
    series->order = UINT32_MAX;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strcmp(series->name, places[i].name) == 0) {
            series->phase = places[i].phase;
            series->order = places[i].order;
        }
}

static void name_scalar(const char *name, keel_joined_series *series) {
    *series = (keel_joined_series){.is_site = false};
    snprintf(series->name, sizeof series->name, "%s", name);
    place_scalar(series);
}

static void name_site(const keel_site_info *site, keel_joined_series *series) {
    *series = (keel_joined_series){.is_site = true, .site = *site, .phase = site->phase, .order = site->order};
    snprintf(series->name, sizeof series->name, "%s:%s", site->name, keel_quantity_name(site->quantity));
}

static keel_joined_series *push(keel_joined *joined) {
    struct keel_joiner *joiner = joined->joiner;
    if (joined->count == joiner->capacity) {
        const size_t capacity = joiner->capacity ? 2 * joiner->capacity : 256;
        keel_joined_series *grown = realloc(joiner->series, capacity * sizeof *grown);
        if (!grown) return NULL;
        joiner->series = grown;
        joiner->capacity = capacity;
    }
    return &joiner->series[joined->count++];
}

static keel_status collect_series(keel_joined *joined, keel_run_side which) {
    const side *s = &joined->joiner->sides[which];
    for (uint32_t segment = 0; segment < s->segments; segment++) {
        const keel_run_info *info = keel_run_rows_info(s->rows, segment);
        for (uint32_t i = 0; i < info->scalar_count + info->site_count; i++) {
            keel_joined_series *series = push(joined);
            if (!series) return no_memory();
            if (i < info->scalar_count)
                name_scalar(info->scalar_names[i], series);
            else
                name_site(&info->sites[i - info->scalar_count], series);
            series->in[which] = true;
        }
    }
    return KEEL_OK;
}

// Sorts them by name and makes one of those that are the same.
static void unite_series(keel_joined *joined) {
    keel_joined_series *list = joined->joiner->series;
    size_t kept = 0;
    if (joined->count == 0) return;
    qsort(list, joined->count, sizeof *list, by_name);
    for (size_t i = 0; i < joined->count; i++) {
        const keel_joined_series *at = &list[i];
        keel_joined_series *last = kept ? &list[kept - 1] : NULL;
        if (!last || by_name(last, at)) {
            list[kept++] = *at;
            continue;
        }
        const bool in_a = last->in[KEEL_RUN_A] || at->in[KEEL_RUN_A], in_b = last->in[KEEL_RUN_B] || at->in[KEEL_RUN_B];
        if (!last->in[KEEL_RUN_A]) *last = *at;
        last->in[KEEL_RUN_A] = in_a;
        last->in[KEEL_RUN_B] = in_b;
    }
    joined->count = kept;
}

static keel_status map_segment(const keel_joined *joined, segment_map *map) {
    const keel_run_info *info = map->info;
    map->series = calloc((size_t)info->scalar_count + info->site_count + 1, sizeof *map->series);
    if (!map->series) return no_memory();
    for (uint32_t i = 0; i < info->scalar_count + info->site_count; i++) {
        assert(joined->series); // all of this run's series were collected into it
        keel_joined_series key;
        if (i < info->scalar_count)
            name_scalar(info->scalar_names[i], &key);
        else
            name_site(&info->sites[i - info->scalar_count], &key);
        const keel_joined_series *found = bsearch(&key, joined->series, joined->count, sizeof key, by_name);
        map->series[i] = (size_t)(found - joined->series);
    }
    return KEEL_OK;
}

static keel_status map_side(keel_joined *joined, keel_run_side which) {
    side *s = &joined->joiner->sides[which];
    s->maps = calloc((size_t)s->segments + 1, sizeof *s->maps);
    s->values = calloc(joined->count + 1, sizeof *s->values);
    if (!s->maps || !s->values) return no_memory();
    joined->values[which] = s->values;
    keel_status status = KEEL_OK;
    for (uint32_t i = 0; !status && i < s->segments; i++) {
        s->maps[i].info = keel_run_rows_info(s->rows, i);
        status = map_segment(joined, &s->maps[i]);
    }
    return status;
}

void keel_joined_ops(keel_op op, bool ops[KEEL_OP_COUNT]) {
    memset(ops, 0, KEEL_OP_COUNT * sizeof *ops);
    ops[op] = true;
    if (op == KEEL_OP_norm) ops[KEEL_OP_nans] = ops[KEEL_OP_infs] = true;
}

keel_status keel_joined_open(keel_run_rows *a, keel_run_rows *b, keel_op op, uint64_t first_step, uint64_t last_step,
                             keel_joined *out) {
    keel_joined joined = {.op = op, .first_step = first_step, .last_step = last_step};
    joined.joiner = calloc(1, sizeof *joined.joiner);
    if (!joined.joiner) return no_memory();
    side *sides = joined.joiner->sides;
    sides[KEEL_RUN_A].rows = a;
    sides[KEEL_RUN_B].rows = b;
    keel_status status = KEEL_OK;
    for (int i = 0; !status && i < KEEL_RUN_SIDES; i++) {
        sides[i].segments = keel_run_rows_segments(sides[i].rows);
        status = collect_series(&joined, (keel_run_side)i);
    }
    if (!status) unite_series(&joined);
    joined.series = joined.joiner->series;
    for (int i = 0; !status && i < KEEL_RUN_SIDES; i++) status = map_side(&joined, (keel_run_side)i);
    if (status) {
        keel_joined_close(&joined);
        return status;
    }
    *out = joined;
    return KEEL_OK;
}

void keel_joined_close(keel_joined *joined) {
    struct keel_joiner *joiner = joined->joiner;
    if (!joiner) return;
    for (int i = 0; i < KEEL_RUN_SIDES; i++) {
        side *s = &joiner->sides[i];
        for (uint32_t k = 0; s->maps && k < s->segments; k++) free(s->maps[k].series);
        free(s->maps);
        free(s->values);
    }
    free(joiner->series);
    free(joiner);
    *joined = (keel_joined){0};
}

// ---- the rows ----

static keel_joined_value measured(double value) {
    if (keel_is_not_collected(value)) return (keel_joined_value){.state = KEEL_JOINED_ABSENT};
    return (keel_joined_value){.state = KEEL_JOINED_VALUE, .value = value};
}

static keel_joined_value site_value(const keel_row *row, keel_op op, uint32_t site) {
    const keel_joined_value value = measured(keel_row_value(row, op, site));
    if (op != KEEL_OP_norm) return value;
    const double nans = keel_row_value(row, KEEL_OP_nans, site), infs = keel_row_value(row, KEEL_OP_infs, site);
    if (keel_is_not_collected(nans) && keel_is_not_collected(infs)) return value;
    if (nans > 0 || infs > 0) return (keel_joined_value){.state = KEEL_JOINED_VALUE, .value = (double)NAN};
    return value.state == KEEL_JOINED_VALUE ? value : (keel_joined_value){.state = KEEL_JOINED_FINITE};
}

static void take_values(const keel_joined *joined, side *s) {
    const segment_map *map = &s->maps[s->segment];
    memset(s->values, 0, joined->count * sizeof *s->values); // all absent
    for (uint32_t i = 0; i < map->info->scalar_count; i++) s->values[map->series[i]] = measured(s->row->scalars[i]);
    for (uint32_t i = 0; i < map->info->site_count; i++)
        s->values[map->series[map->info->scalar_count + i]] = site_value(s->row, joined->op, i);
}

// The next row within the steps that are compared.
static keel_status advance(const keel_joined *joined, side *s) {
    keel_status status;
    do status = keel_run_rows_next(s->rows, &s->row, &s->segment);
    while (!status && s->row && s->row->step.step < joined->first_step);
    if (!status && s->row && s->row->step.step > joined->last_step) s->row = NULL;
    return status;
}

keel_status keel_joined_walk(keel_joined *joined, keel_joined_visit *visit, void *context) {
    side *a = &joined->joiner->sides[KEEL_RUN_A], *b = &joined->joiner->sides[KEEL_RUN_B];
    joined->common = joined->only[KEEL_RUN_A] = joined->only[KEEL_RUN_B] = 0;
    keel_status status = keel_run_rows_rewind(a->rows);
    if (!status) status = keel_run_rows_rewind(b->rows);
    if (!status) status = advance(joined, a);
    if (!status) status = advance(joined, b);
    while (!status && (a->row || b->row)) {
        const bool of_a = a->row && (!b->row || a->row->step.step <= b->row->step.step);
        const bool of_b = b->row && (!a->row || b->row->step.step <= a->row->step.step);
        if (of_a && of_b) {
            take_values(joined, a);
            take_values(joined, b);
            joined->common++;
            joined->step = a->row->step.step;
            status = visit(context, joined);
        } else {
            joined->only[of_a ? KEEL_RUN_A : KEEL_RUN_B]++;
        }
        if (!status && of_a) status = advance(joined, a);
        if (!status && of_b) status = advance(joined, b);
    }
    return status;
}
