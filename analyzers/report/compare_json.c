#include "analyzers/report/compare_report.h"
#include "analyzers/report/json_value.h"
#include "analyzers/report/report.h"

enum { SCHEMA = 1, DIGITS = 17 };

static json_t *number(double value) {
    return keel_is_not_collected(value) ? json_null() : keel_json_number(value);
}

static json_t *step_number(uint64_t step) {
    return step ? json_integer((json_int_t)step) : json_null();
}

// "series": a scalar's name, or the op with the site beside it.
static json_t *named(const keel_comparison *c, const keel_compared *at) {
    if (!at->series->is_site) return json_pack("{s:o, s:n}", "series", keel_json_text(at->series->name), "site");
    return json_pack("{s:s, s:o}", "series", keel_op_get(c->options.op)->name, "site",
                     keel_json_text(at->series->name));
}

static json_t *parting(const keel_comparison *c, const keel_compared *at) {
    json_t *object = named(c, at);
    const keel_parting *p = &at->parting;
    json_object_set_new(object, "step", step_number(p->step));
    json_object_set_new(object, "before", step_number(p->before));
    json_object_set_new(object, "a", number(p->a));
    json_object_set_new(object, "b", number(p->b));
    json_object_set_new(object, "ratio", number(keel_compare_ratio(p->a, p->b)));
    return object;
}

static json_t *greatest(const keel_comparison *c) {
    const keel_compared *at = keel_compare_greatest(c);
    if (!at) return json_null();
    json_t *object = named(c, at);
    json_object_set_new(object, "step", step_number(at->greatest_step));
    json_object_set_new(object, "difference", number(at->greatest));
    return object;
}

static void put_values(json_t *object, const keel_compared_values *values, bool ratios) {
    json_t *steps = json_array(), *a = json_array(), *b = json_array(), *ratio = json_array();
    for (size_t i = 0; i < values->count; i++) {
        json_array_append_new(steps, step_number(values->steps[i]));
        json_array_append_new(a, number(values->a[i]));
        json_array_append_new(b, number(values->b[i]));
        json_array_append_new(ratio, number(keel_compare_ratio(values->a[i], values->b[i])));
    }
    json_object_set_new(object, "steps", steps);
    json_object_set_new(object, "a", a);
    json_object_set_new(object, "b", b);
    if (ratios)
        json_object_set_new(object, "ratio", ratio);
    else
        json_decref(ratio);
}

static json_t *tables(const keel_comparison *c) {
    json_t *list = json_array();
    for (size_t t = 0; t < c->table_count; t++) {
        json_t *table = named(c, &c->list[c->tables[t].index]);
        put_values(table, &c->tables[t], false);
        json_array_append_new(list, table);
    }
    return list;
}

static json_t *layers(const keel_comparison *c) {
    json_t *list = json_array();
    for (size_t g = 0; g < c->group_count; g++) {
        const keel_compared_group *group = &c->groups[g];
        if (c->group_values[g].count == 0) continue; // flags alone
        json_t *layer = json_pack("{s:s, s:o, s:o, s:I, s:o}", "quantity", keel_quantity_name(group->quantity), "layer",
                                  group->layer < 0 ? json_null() : json_integer(group->layer), "module",
                                  group->layer < 0 ? keel_json_text(group->module) : json_null(), "sites",
                                  (json_int_t)group->sites, "parted", step_number(group->parting.step));
        put_values(layer, &c->group_values[g], true);
        json_array_append_new(list, layer);
    }
    return list;
}

static json_t *names(const keel_comparison *c, bool in_a, bool in_b) {
    json_t *list = json_array();
    for (size_t i = 0; i < c->count; i++) {
        const keel_compared *at = &c->list[i];
        if (at->series->in[KEEL_RUN_A] == in_a && at->series->in[KEEL_RUN_B] == in_b && !at->judged)
            json_array_append_new(list, keel_json_text(at->series->name));
    }
    return list;
}

keel_status keel_compare_json(const keel_comparison *c, const char *a, const char *b, FILE *out) {
    json_t *partings = json_array();
    for (size_t i = 0; i < c->parting_count; i++) json_array_append_new(partings, parting(c, &c->list[c->partings[i]]));
    json_t *object = json_pack(
        "{s:i, s:o, s:o, s:s, s:f, s:I, s:o, s:o, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "schema",
        SCHEMA, "a", keel_json_text(a), "b", keel_json_text(b), "op", keel_op_get(c->options.op)->name, "tolerance",
        c->options.tolerance, "common_steps", (json_int_t)c->joined.common, "first_step", step_number(c->first_step),
        "last_step", step_number(c->last_step), "only_a_steps", (json_int_t)c->joined.only[KEEL_RUN_A], "only_b_steps",
        (json_int_t)c->joined.only[KEEL_RUN_B], "parted", c->parting_count > 0, "first",
        c->parting_count ? parting(c, &c->list[c->partings[0]]) : json_null(), "partings", partings, "greatest",
        greatest(c), "tables", tables(c), "layers", layers(c), "only_a", names(c, true, false), "only_b",
        names(c, false, true), "not_judged", names(c, true, true));
    if (object)
        json_object_set_new(object, "left_out",
                            json_pack("{s:o, s:o}", "a", keel_json_left_out(&c->options.left_out[KEEL_RUN_A]), "b",
                                      keel_json_left_out(&c->options.left_out[KEEL_RUN_B])));
    if (!object) return keel_fail(KEEL_ERR_MEMORY, "no memory for the comparison");
    const int failed = json_dumpf(object, out, JSON_INDENT(2) | JSON_REAL_PRECISION(DIGITS));
    json_decref(object);
    fputc('\n', out);
    keel_status status = keel_report_written(out);
    return failed && !status ? keel_fail(KEEL_ERR_MEMORY, "no memory for the comparison") : status;
}
