#include "analyzers/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOMENTS = 6 };

// Steps at which a quantity was recorded in both runs, and those of them that are shown.
typedef struct moments {
    uint64_t *steps;
    size_t count, capacity;
    uint64_t chosen[MOMENTS];
    size_t chosen_count;
} moments;

typedef struct judge {
    keel_comparison *comparison;
    keel_parting_window *series, *groups; // [count], [group_count]
    size_t *group_of;                     // [list] index of the group; SIZE_MAX: none
    double (*squares)[KEEL_RUN_SIDES];    // [group_count], of one step
    bool *seen;                           // [group_count]
    moments moments[KEEL_QUANTITY_COUNT];
} judge;

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory to compare two runs");
}

// ---- a step ----

// True if there is something to compare: a value on both sides, or a sick one against one that is known to be finite.
static bool take_pair(const keel_joined *joined, size_t series, double *a, double *b) {
    const keel_joined_value *x = &joined->values[KEEL_RUN_A][series], *y = &joined->values[KEEL_RUN_B][series];
    *a = x->state == KEEL_JOINED_VALUE ? x->value : keel_not_collected();
    *b = y->state == KEEL_JOINED_VALUE ? y->value : keel_not_collected();
    if (x->state == KEEL_JOINED_VALUE && y->state == KEEL_JOINED_VALUE) return true;
    if (x->state == KEEL_JOINED_ABSENT || y->state == KEEL_JOINED_ABSENT) return false;
    return isinf(keel_difference(*a, *b));
}

// A side that is known to be finite only keeps the group's sum from being known.
static void add_squares(double squares[KEEL_RUN_SIDES], double a, double b) {
    const double values[KEEL_RUN_SIDES] = {a, b};
    for (int i = 0; i < KEEL_RUN_SIDES; i++) {
        if (keel_is_not_collected(squares[i])) continue;
        squares[i] = keel_is_not_collected(values[i]) ? keel_not_collected() : squares[i] + values[i] * values[i];
    }
}

static double root(double square) {
    return keel_is_not_collected(square) ? square : sqrt(square);
}

static keel_status add_moment(moments *at, uint64_t step) {
    if (at->count && at->steps[at->count - 1] == step) return KEEL_OK;
    if (at->count == at->capacity) {
        const size_t capacity = at->capacity ? 2 * at->capacity : 256;
        uint64_t *grown = realloc(at->steps, capacity * sizeof *grown);
        if (!grown) return no_memory();
        at->steps = grown;
        at->capacity = capacity;
    }
    at->steps[at->count++] = step;
    return KEEL_OK;
}

static keel_status judge_groups(judge *j) {
    keel_comparison *c = j->comparison;
    keel_status status = KEEL_OK;
    for (size_t g = 0; !status && g < c->group_count; g++) {
        if (!j->seen[g]) continue;
        status = add_moment(&j->moments[c->groups[g].quantity], c->joined.step);
        const double a = root(j->squares[g][KEEL_RUN_A]), b = root(j->squares[g][KEEL_RUN_B]);
        keel_parting_add(&j->groups[g], c->options.tolerance, c->joined.step, a, b, &c->groups[g].parting);
    }
    return status;
}

static void sum_groups(judge *j) {
    const keel_comparison *c = j->comparison;
    memset(j->squares, 0, c->group_count * sizeof *j->squares);
    memset(j->seen, 0, c->group_count * sizeof *j->seen);
    for (size_t i = 0; i < c->count; i++) {
        const size_t group = j->group_of[i];
        double a, b;
        if (group == SIZE_MAX || !take_pair(&c->joined, (size_t)(c->list[i].series - c->joined.series), &a, &b))
            continue;
        add_squares(j->squares[group], a, b);
        j->seen[group] = true;
    }
}

static keel_status judge_step(void *context, const keel_joined *joined) {
    judge *j = context;
    keel_comparison *c = j->comparison;
    if (c->first_step == 0) c->first_step = joined->step;
    c->last_step = joined->step;
    for (size_t i = 0; i < c->count; i++) {
        keel_compared *at = &c->list[i];
        double a, b;
        if (!at->judged || !take_pair(joined, (size_t)(at->series - joined->series), &a, &b)) continue;
        const double apart = keel_difference(a, b);
        at->records++;
        if (apart > at->greatest) {
            at->greatest = apart;
            at->greatest_step = joined->step;
        }
        keel_parting_add(&j->series[i], c->options.tolerance, joined->step, a, b, &at->parting);
    }
    sum_groups(j);
    return judge_groups(j);
}

// ---- what is compared ----

static bool has_suffix(const char *name, const char *suffix) {
    const size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

// What says something of the machine and not of the training.
static bool is_of_machine(const char *scalar) {
    static const char *const endings[] = {"_seconds", "_per_second", "_bytes", "_rank", "_time"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (has_suffix(scalar, endings[i])) return true;
    return false;
}

static int by_flow(const void *a, const void *b) {
    const keel_joined_series *x = ((const keel_compared *)a)->series, *y = ((const keel_compared *)b)->series;
    if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return (x > y) - (x < y); // by name
}

static keel_status list_series(keel_comparison *c) {
    c->count = c->joined.count;
    c->list = calloc(c->count + 1, sizeof *c->list);
    if (!c->list) return no_memory();
    for (size_t i = 0; i < c->count; i++) {
        const keel_joined_series *series = &c->joined.series[i];
        const bool both = series->in[KEEL_RUN_A] && series->in[KEEL_RUN_B];
        c->list[i] =
            (keel_compared){.series = series, .judged = both && (series->is_site || !is_of_machine(series->name))};
    }
    qsort(c->list, c->count, sizeof *c->list, by_flow);
    return KEEL_OK;
}

// Early ones first: what stands before the layers, the layers, what stands behind them.
static int64_t depth(const keel_compared_group *group) {
    if (group->layer >= 0) return group->layer;
    return strcmp(group->module, "embedding") == 0 ? -1 : INT64_MAX;
}

static int by_layer(const void *a, const void *b) {
    const keel_compared_group *x = a, *y = b;
    if (x->quantity != y->quantity) return x->quantity < y->quantity ? -1 : 1;
    if (depth(x) != depth(y)) return depth(x) < depth(y) ? -1 : 1;
    return strcmp(x->module, y->module);
}

static void name_group(const keel_site_info *site, keel_compared_group *group) {
    *group = (keel_compared_group){.quantity = site->quantity, .layer = site->layer};
    if (site->layer < 0) memcpy(group->module, site->module, sizeof group->module);
}

static keel_status make_groups(keel_comparison *c) {
    if (c->options.op != KEEL_OP_norm) return KEEL_OK;
    c->groups = calloc(c->count + 1, sizeof *c->groups);
    if (!c->groups) return no_memory();
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++)
        if (c->list[i].judged && c->list[i].series->is_site) name_group(&c->list[i].series->site, &c->groups[count++]);
    qsort(c->groups, count, sizeof *c->groups, by_layer);
    for (size_t i = 0; i < count; i++) {
        if (c->group_count == 0 || by_layer(&c->groups[c->group_count - 1], &c->groups[i]))
            c->groups[c->group_count++] = c->groups[i];
        c->groups[c->group_count - 1].sites++;
    }
    return KEEL_OK;
}

static keel_status open_judge(keel_comparison *c, judge *j) {
    *j = (judge){.comparison = c};
    j->series = calloc(c->count + 1, sizeof *j->series);
    j->groups = calloc(c->group_count + 1, sizeof *j->groups);
    j->group_of = calloc(c->count + 1, sizeof *j->group_of);
    j->squares = calloc(c->group_count + 1, sizeof *j->squares);
    j->seen = calloc(c->group_count + 1, sizeof *j->seen);
    if (!j->series || !j->groups || !j->group_of || !j->squares || !j->seen) return no_memory();
    for (size_t i = 0; i < c->count; i++) {
        j->group_of[i] = SIZE_MAX;
        if (!c->groups || !c->list[i].judged || !c->list[i].series->is_site) continue;
        keel_compared_group key;
        name_group(&c->list[i].series->site, &key);
        const keel_compared_group *found = bsearch(&key, c->groups, c->group_count, sizeof key, by_layer);
        j->group_of[i] = (size_t)(found - c->groups);
    }
    return KEEL_OK;
}

static void close_judge(judge *j) {
    free(j->series);
    free(j->groups);
    free(j->group_of);
    free(j->squares);
    free(j->seen);
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) free(j->moments[q].steps);
}

static keel_status order_partings(keel_comparison *c) {
    c->partings = calloc(c->count + 1, sizeof *c->partings);
    if (!c->partings) return no_memory();
    for (size_t i = 0; i < c->count; i++) {
        if (!c->list[i].parting.step) continue;
        size_t at = c->parting_count++; // in the order of data flow already: what is later in time moves back
        while (at > 0 && c->list[c->partings[at - 1]].parting.step > c->list[i].parting.step) {
            c->partings[at] = c->partings[at - 1];
            at--;
        }
        c->partings[at] = i;
    }
    return KEEL_OK;
}

// ---- the series side by side, and the layers at some steps: a second walk, when the step of the parting is known ----

enum { TABLE_BEFORE = 5, TABLE_FROM = 8 };

static keel_status open_values(keel_compared_values *values, size_t index, size_t capacity) {
    *values = (keel_compared_values){.index = index};
    values->steps = calloc(capacity, sizeof *values->steps);
    values->a = calloc(capacity, sizeof *values->a);
    values->b = calloc(capacity, sizeof *values->b);
    return values->steps && values->a && values->b ? KEEL_OK : no_memory();
}

static void close_values(keel_compared_values *values) {
    free(values->steps);
    free(values->a);
    free(values->b);
}

static void drop_oldest(keel_compared_values *values) {
    values->count--;
    memmove(values->steps, values->steps + 1, values->count * sizeof *values->steps);
    memmove(values->a, values->a + 1, values->count * sizeof *values->a);
    memmove(values->b, values->b + 1, values->count * sizeof *values->b);
}

static void put_value(keel_compared_values *values, uint64_t step, double a, double b) {
    values->steps[values->count] = step;
    values->a[values->count] = a;
    values->b[values->count++] = b;
}

static void fill_tables(keel_comparison *c) {
    const uint64_t parting = c->list[c->partings[0]].parting.step;
    for (size_t t = 0; t < c->table_count; t++) {
        keel_compared_values *table = &c->tables[t];
        double a, b;
        if (table->count == TABLE_BEFORE + TABLE_FROM ||
            !take_pair(&c->joined, (size_t)(c->list[table->index].series - c->joined.series), &a, &b))
            continue;
        if (c->joined.step < parting && table->count == TABLE_BEFORE) drop_oldest(table);
        put_value(table, c->joined.step, a, b);
    }
}

static keel_status detail_step(void *context, const keel_joined *joined) {
    judge *j = context;
    keel_comparison *c = j->comparison;
    if (c->table_count) fill_tables(c);
    sum_groups(j);
    for (size_t g = 0; g < c->group_count; g++) {
        const moments *at = &j->moments[c->groups[g].quantity];
        keel_compared_values *values = &c->group_values[g];
        if (values->count == at->chosen_count || at->chosen[values->count] != joined->step) continue;
        put_value(values, joined->step, j->seen[g] ? root(j->squares[g][KEEL_RUN_A]) : keel_not_collected(),
                  j->seen[g] ? root(j->squares[g][KEEL_RUN_B]) : keel_not_collected());
    }
    return KEEL_OK;
}

static keel_status open_tables(keel_comparison *c) {
    static const char *const beside[] = {"loss", "grad_norm"};
    if (c->parting_count == 0) return KEEL_OK;
    keel_status status = open_values(&c->tables[c->table_count++], c->partings[0], TABLE_BEFORE + TABLE_FROM);
    for (size_t i = 0; !status && i < c->count; i++) {
        const keel_compared *at = &c->list[i];
        if (i == c->partings[0] || !at->judged || at->series->is_site) continue;
        for (size_t k = 0; !status && k < sizeof beside / sizeof *beside; k++)
            if (strcmp(at->series->name, beside[k]) == 0)
                status = open_values(&c->tables[c->table_count++], i, TABLE_BEFORE + TABLE_FROM);
    }
    return status;
}

// The first, those around the parting, some after it, the last; without a parting, evenly over the run.
static void choose_moments(const keel_comparison *c, moments *at) {
    const uint64_t parting = c->parting_count ? c->list[c->partings[0]].parting.step : 0;
    size_t p = 0;
    while (parting && p < at->count && at->steps[p] < parting) p++;
    const size_t last = at->count - 1;
    const size_t around[MOMENTS] = {0, p ? p - 1 : 0, p, p + 5, p + 20, last};
    const size_t even[MOMENTS] = {0, last / 5, 2 * last / 5, 3 * last / 5, 4 * last / 5, last};
    for (size_t i = 0; at->count && i < MOMENTS; i++) {
        const size_t index = parting ? around[i] : even[i];
        if (index > last || (at->chosen_count && at->steps[index] <= at->chosen[at->chosen_count - 1])) continue;
        at->chosen[at->chosen_count++] = at->steps[index];
    }
}

static keel_status detail(keel_comparison *c, judge *j) {
    keel_status status = open_tables(c);
    c->group_values = calloc(c->group_count + 1, sizeof *c->group_values);
    if (!c->group_values) return no_memory();
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) choose_moments(c, &j->moments[q]);
    for (size_t g = 0; !status && g < c->group_count; g++) status = open_values(&c->group_values[g], g, MOMENTS);
    return status ? status : keel_joined_walk(&c->joined, detail_step, j);
}

// ---- open, close ----

static keel_status judge_all(keel_comparison *c, judge *j) {
    keel_status status = keel_joined_walk(&c->joined, judge_step, j);
    if (status) return status;
    if (c->joined.common == 0) return keel_fail(KEEL_ERR_NOT_FOUND, "the two runs have no step in common");
    const double tolerance = c->options.tolerance;
    for (size_t i = 0; i < c->count; i++) keel_parting_end(&j->series[i], tolerance, &c->list[i].parting);
    for (size_t g = 0; g < c->group_count; g++) keel_parting_end(&j->groups[g], tolerance, &c->groups[g].parting);
    return order_partings(c);
}

bool keel_op_is_label(keel_op op) {
    static const keel_op labels[] = {KEEL_OP_rank_nonfinite, KEEL_OP_micro_nonfinite, KEEL_OP_rank_low,
                                     KEEL_OP_rank_high,      KEEL_OP_replica_rank,    KEEL_OP_replica_peer};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        if (op == labels[i]) return true;
    return false;
}

keel_status keel_compare(keel_run_rows *a, keel_run_rows *b, const keel_compare_options *options,
                         keel_comparison **comparison) {
    keel_comparison *c = calloc(1, sizeof *c);
    if (!c) return no_memory();
    c->options = *options;
    judge j = {0};
    keel_status status = keel_joined_open(a, b, options->op, options->first_step, options->last_step, &c->joined);
    if (!status) status = list_series(c);
    if (!status) status = make_groups(c);
    if (!status) status = open_judge(c, &j);
    if (!status) status = judge_all(c, &j);
    if (!status) status = detail(c, &j);
    close_judge(&j);
    if (status) {
        keel_comparison_free(c);
        return status;
    }
    *comparison = c;
    return KEEL_OK;
}

void keel_comparison_free(keel_comparison *comparison) {
    if (!comparison) return;
    for (size_t i = 0; i < comparison->table_count; i++) close_values(&comparison->tables[i]);
    for (size_t i = 0; comparison->group_values && i < comparison->group_count; i++)
        close_values(&comparison->group_values[i]);
    free(comparison->group_values);
    free(comparison->groups);
    free(comparison->partings);
    free(comparison->list);
    keel_joined_close(&comparison->joined);
    free(comparison);
}
