#include "tools/lab/lab_judge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/offline.h"

typedef struct alert {
    uint32_t id;
    uint64_t step;
} alert;

typedef struct watch {
    alert *alerts; // in their order
    size_t count, capacity;
    bool full; // no memory
} watch;

static void watch_begin(void *context) {
    ((watch *)context)->count = 0;
}

static void add_alert(watch *w, uint32_t id, uint64_t step) {
    for (size_t i = 0; i < w->count; i++)
        if (w->alerts[i].id == id) return;
    if (w->count == w->capacity) {
        const size_t capacity = w->capacity ? 2 * w->capacity : 16;
        alert *grown = realloc(w->alerts, capacity * sizeof *grown);
        if (!grown) {
            w->full = true;
            return;
        }
        w->alerts = grown;
        w->capacity = capacity;
    }
    w->alerts[w->count++] = (alert){.id = id, .step = step};
}

static void watch_row(void *context, const keel_row *row, const keel_incident *const *changed, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (changed[i]->severity >= KEEL_WARNING) add_alert(context, changed[i]->id, row->step.step);
}

static const keel_incident *last_form(const keel_result *result, uint32_t id) {
    const keel_incident *found = NULL;
    for (size_t i = 0; i < result->incident_count; i++)
        if (result->incidents[i].id == id) found = &result->incidents[i];
    return found;
}

static bool names(char *const *rules, const char *rule) {
    for (; *rules; rules++)
        if (strcmp(*rules, rule) == 0) return true;
    return false;
}

static void take_found(const keel_lab_find *find, const keel_incident *incident, uint64_t step, keel_lab_outcome *out) {
    out->found = true;
    out->alert_step = step;
    out->incident = *incident;
    out->site_right = !find->site || strncmp(incident->site, find->site, strlen(find->site)) == 0;
    out->rank_right = find->rank < 0 || incident->rank == find->rank;
}

static void tell_other(const keel_incident *incident, uint64_t step, keel_lab_outcome *out) {
    const size_t used = strlen(out->other);
    snprintf(out->other + used, sizeof out->other - used, "%s%s %s at step %" PRIu64 " (%s) cause %s", used ? "; " : "",
             keel_severity_name(incident->severity), incident->rule, step, incident->message, incident->cause);
}

static void judge_alerts(const watch *w, const keel_result *result, const keel_lab_case *lab_case,
                         keel_lab_outcome *out) {
    const keel_lab_find *find = &lab_case->find;
    bool named = false;
    for (size_t i = 0; i < w->count; i++) {
        const keel_incident *incident = last_form(result, w->alerts[i].id);
        const uint64_t step = w->alerts[i].step;
        const bool early = lab_case->faulty && step < (uint64_t)find->onset;
        out->criticals += incident->severity == KEEL_CRITICAL;
        out->warnings += incident->severity == KEEL_WARNING;
        out->early += early;
        const bool finds = lab_case->faulty && !early && names(find->rules, incident->rule);
        if (finds && !out->found) take_found(find, incident, step, out);
        if (!finds) tell_other(incident, step, out);
        if (!lab_case->faulty || early || named || strcmp(incident->cause, "unknown") == 0) continue;
        named = true;
        out->cause_first = strcmp(incident->cause, find->cause) == 0;
    }
}

keel_status keel_lab_judge(const char *path, const keel_lab_case *lab_case, keel_lab_outcome *outcome) {
    watch w = {0};
    keel_result *result = NULL;
    *outcome = (keel_lab_outcome){0};
    const keel_offline_listener listener = {.context = &w, .begin = watch_begin, .row = watch_row};
    keel_status status = keel_offline_follow(path, NULL, &listener, &result);
    if (!status && w.full) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its alerts", path);
    if (!status && result->dropped_steps)
        status = keel_fail(KEEL_ERR_IO,
                           "%s: %" PRIu64 " steps were not recorded: the machine is too busy, or the steps "
                           "are too short",
                           path, result->dropped_steps);
    if (!status) {
        outcome->steps = result->records;
        judge_alerts(&w, result, lab_case, outcome);
    }
    keel_result_free(result);
    free(w.alerts);
    return status;
}
