#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/report/json_value.h"
#include "analyzers/report/report.h"

enum { SCHEMA = 1, DIGITS = 12 };

static json_t *text_or_null(const char *string) {
    return string[0] ? keel_json_text(string) : json_null();
}

static json_t *series_list(const char *series) {
    json_t *list = json_array();
    for (const char *at = series; at && *at;) {
        size_t n = strcspn(at, ",");
        json_array_append_new(list, json_stringn(at, n));
        at += n + (at[n] == ',');
    }
    return list;
}

static json_t *cause(const keel_incident *incident, const keel_incident_extra *extra) {
    json_t *evidence = json_array();
    for (uint32_t i = 0; extra && i < extra->evidence_count; i++)
        json_array_append_new(evidence, keel_json_text(extra->evidence[i]));
    return json_pack("{s:o, s:o, s:o}", "name", keel_json_text(incident->cause), "confidence",
                     keel_json_number(incident->confidence), "evidence", evidence);
}

static json_t *incident_object(const keel_incident *k, const keel_incident_extra *extra) {
    json_t *object = json_object();
    json_object_set_new(object, "id", json_integer(k->id));
    json_object_set_new(object, "severity", json_string(keel_severity_name(k->severity)));
    json_object_set_new(object, "rule", keel_json_text(k->rule));
    json_object_set_new(object, "series", series_list(k->series));
    json_object_set_new(object, "site", text_or_null(k->site));
    json_object_set_new(object, "rank", k->rank < 0 ? json_null() : json_integer(k->rank));
    json_object_set_new(object, "first_step", json_integer((json_int_t)k->first_step));
    json_object_set_new(object, "peak_step", json_integer((json_int_t)k->peak_step));
    json_object_set_new(object, "last_step", json_integer((json_int_t)k->last_step));
    json_object_set_new(object, "value", keel_json_number(k->value));
    json_object_set_new(object, "expected", keel_json_number(k->expected));
    json_object_set_new(object, "score", keel_json_number(k->score));
    json_object_set_new(object, "cause", cause(k, extra));
    json_object_set_new(object, "message", keel_json_text(k->message));
    if (extra && extra->discarded) json_object_set_new(object, "discarded", json_true());
    return object;
}

keel_status keel_incident_json(const keel_incident *incident, const keel_incident_extra *extra, char **out) {
    json_t *object = incident_object(incident, extra);
    char *line = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    json_decref(object);
    if (!line) return keel_fail(KEEL_ERR_MEMORY, "no memory for an incident as JSON");
    *out = line;
    return KEEL_OK;
}

typedef struct extent {
    uint64_t records, dropped_steps, first_step, last_step;
} extent;

static extent extent_of(const keel_result *run) {
    return (extent){.records = run->records,
                    .dropped_steps = run->dropped_steps,
                    .first_step = run->first_step,
                    .last_step = run->last_step};
}

static void set_extent(json_t *object, const extent *e) {
    json_object_set_new(object, "records", json_integer((json_int_t)e->records));
    json_object_set_new(object, "dropped_steps", json_integer((json_int_t)e->dropped_steps));
    json_object_set_new(object, "first_step", json_integer((json_int_t)e->first_step));
    json_object_set_new(object, "last_step", json_integer((json_int_t)e->last_step));
}

static json_t *incident_list(const keel_result *const *runs, size_t count) {
    json_t *list = json_array();
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < runs[r]->incident_count; i++) {
            json_t *object = incident_object(&runs[r]->incidents[i], keel_analysis_extra(runs[r]->analysis, i));
            if (count > 1) json_object_set_new(object, "run", json_integer((json_int_t)r + 1));
            json_array_append_new(list, object);
        }
    return list;
}

static json_t *run_list(const keel_result *const *runs, size_t count) {
    json_t *list = json_array();
    for (size_t r = 0; r < count; r++) {
        json_t *object = json_object();
        json_object_set_new(object, "run", json_integer((json_int_t)r + 1));
        const extent e = extent_of(runs[r]);
        set_extent(object, &e);
        json_array_append_new(list, object);
    }
    return list;
}

keel_status keel_report_json(const keel_result *const *runs, size_t count, FILE *out) {
    extent all = extent_of(runs[0]);
    for (size_t r = 1; r < count; r++) {
        const extent e = extent_of(runs[r]);
        all.records += e.records;
        all.dropped_steps += e.dropped_steps;
        if (e.first_step < all.first_step) all.first_step = e.first_step;
        if (e.last_step > all.last_step) all.last_step = e.last_step;
    }
    json_t *report = json_object();
    json_object_set_new(report, "schema", json_integer(SCHEMA));
    json_object_set_new(report, "source", keel_json_text(runs[0]->source));
    set_extent(report, &all);
    if (runs[0]->runs) json_object_set_new(report, "left_out", keel_json_left_out(&runs[0]->left_out));
    json_object_set_new(report, "incidents", incident_list(runs, count));
    if (count > 1) json_object_set_new(report, "runs", run_list(runs, count));
    const int failed = json_dumpf(report, out, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS));
    json_decref(report);
    fputc('\n', out);
    keel_status status = keel_report_written(out);
    return failed && !status ? keel_fail(KEEL_ERR_MEMORY, "no memory for the report") : status;
}
