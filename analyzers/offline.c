#include "analyzers/offline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/rules.h"
#include "collectors/store/reader.h"

// The state before the first row of STEP or later: where a later segment may take the run up again.
typedef struct snapshot {
    uint64_t step;
    void *bytes; // NULL: not reached yet
    size_t size;
    keel_trace *trace;
} snapshot;

typedef struct keel_offline keel_offline;

struct keel_offline {
    keel_store_reader *reader; // NULL for other sources
    keel_analysis *analysis;
    keel_trace *trace;
    const keel_monitor_config *config; // NULL: each segment's own
    const keel_run_info *info;
    bool told;                             // that a segment's settings are of no use
    const keel_offline_listener *listener; // NULL: nobody
    keel_host_event *events;               // of the hosts, in the order of time
    size_t event_count, event_at;          // the next to be judged
    snapshot *snapshots;
    size_t snapshot_count;
};

static void drop_snapshot_states(keel_offline *o) {
    for (size_t i = 0; i < o->snapshot_count; i++) {
        free(o->snapshots[i].bytes);
        free(o->snapshots[i].trace);
        o->snapshots[i].bytes = NULL;
        o->snapshots[i].trace = NULL;
    }
}

static void close_offline(keel_offline *o) {
    if (!o) return;
    drop_snapshot_states(o);
    free(o->snapshots);
    free(o->events);
    keel_analysis_close(o->analysis);
    free(o->trace);
    keel_store_close(o->reader);
    free(o);
}

void keel_result_free(keel_result *result) {
    if (!result) return;
    close_offline(result->keeper);
    free(result->source);
    free(result);
}

static keel_status out_of_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for the analysis");
}

// The rules go on by the settings under which the segment of INFO was judged live, where its store has them.
static keel_status take_settings(keel_offline *o, const keel_run_info *info) {
    keel_yaml *doc = NULL;
    keel_monitor_config *config = NULL;
    const char *text = info->config_yaml ? info->config_yaml : "";
    keel_status status = keel_yaml_parse("config_yaml", text, strlen(text), &doc);
    if (!status) status = keel_monitor_config_section(keel_yaml_get(keel_yaml_root(doc), "monitor"), &config);
    if (!status) status = keel_analysis_configure(o->analysis, config);
    if (status && !o->told)
        keel_log(KEEL_LOG_WARNING, "the run's own monitor settings are not understood (%s): the defaults judge it",
                 keel_error());
    o->told |= status != KEEL_OK;
    if (status) status = keel_analysis_configure(o->analysis, NULL);
    keel_monitor_config_free(config);
    keel_yaml_free(doc);
    return status;
}

static keel_status start_segment(keel_offline *o, const keel_run_info *info) {
    o->info = info;
    keel_trace_start(o->trace, info);
    keel_status status = o->config ? KEEL_OK : take_settings(o, info);
    return status ? status : keel_analysis_start(o->analysis, info);
}

// A fresh analysis, from the first row.
static keel_status begin(keel_offline *o) {
    keel_analysis_close(o->analysis);
    o->analysis = NULL;
    if (!o->trace && !(o->trace = malloc(sizeof *o->trace))) return out_of_memory();
    keel_trace_init(o->trace);
    drop_snapshot_states(o);
    o->event_at = 0;
    return keel_analysis_open(o->config, &o->analysis);
}

// ---- forks of a store ----

static snapshot *find_snapshot(keel_offline *o, uint64_t step) {
    for (size_t i = 0; i < o->snapshot_count; i++)
        if (o->snapshots[i].step == step) return &o->snapshots[i];
    return NULL;
}

static keel_status add_snapshot(keel_offline *o, uint64_t step) {
    if (find_snapshot(o, step)) return KEEL_OK;
    snapshot *grown = realloc(o->snapshots, (o->snapshot_count + 1) * sizeof *grown);
    if (!grown) return out_of_memory();
    o->snapshots = grown;
    o->snapshots[o->snapshot_count++] = (snapshot){.step = step};
    return KEEL_OK;
}

// Before the row of STEP is judged: the state of every snapshot that lies between the last row and this one.
static keel_status take_snapshots(keel_offline *o, uint64_t step) {
    uint64_t last = keel_analysis_records(o->analysis) ? keel_analysis_last_step(o->analysis) : 0;
    for (size_t i = 0; i < o->snapshot_count; i++) {
        snapshot *s = &o->snapshots[i];
        if (s->step > step || last >= s->step) continue;
        void *bytes;
        size_t size;
        keel_status status = keel_analysis_save(o->analysis, &bytes, &size);
        if (status) return status;
        free(s->bytes);
        s->bytes = bytes;
        s->size = size;
        if (!s->trace && !(s->trace = malloc(sizeof *s->trace))) return out_of_memory();
        *s->trace = *o->trace;
    }
    return KEEL_OK;
}

// The run was taken up again at STEP. *again: this fork was not foreseen; its state must be taken in a second reading.
static keel_status go_back(keel_offline *o, uint64_t step, bool *again) {
    if (keel_analysis_records(o->analysis) == 0 || keel_analysis_last_step(o->analysis) < step) return KEEL_OK;
    const snapshot *s = find_snapshot(o, step);
    if (!s || !s->bytes) {
        *again = !s;
        return s ? KEEL_OK : add_snapshot(o, step);
    }
    keel_status status = keel_analysis_rewind(o->analysis, s->bytes, s->size);
    if (status) return status;
    *o->trace = *s->trace;
    keel_trace_start(o->trace, o->info);
    return KEEL_OK;
}

// What hosts saw before TIME.
static keel_status judge_events(keel_offline *o, double time) {
    keel_status status = KEEL_OK;
    while (!status && o->event_at < o->event_count && o->events[o->event_at].time_unix < time)
        status = keel_analysis_event(o->analysis, &o->events[o->event_at++]);
    return status;
}

static keel_status read_store(keel_offline *o, bool *again) {
    keel_status status = begin(o);
    if (o->listener) o->listener->begin(o->listener->context);
    bool ops[KEEL_OP_COUNT];
    keel_rules_ops(ops);
    keel_store_want(o->reader, ops, false);
    if (!status) status = keel_store_rewind(o->reader);
    uint32_t segment = 0;
    bool was_superseded = false;
    if (!status) status = start_segment(o, keel_store_info(o->reader, 0));
    while (!status) {
        const keel_row *row;
        keel_store_position at;
        if ((status = keel_store_next(o->reader, &row, &at)) || !row) break;
        if (at.segment != segment) {
            segment = at.segment;
            if ((status = start_segment(o, keel_store_info(o->reader, segment)))) break;
        }
        if (at.fork && ((status = go_back(o, row->step.step, again)) || *again)) break;
        if (at.superseded && !was_superseded && (status = add_snapshot(o, row->step.step))) break;
        was_superseded = at.superseded;
        if ((status = take_snapshots(o, row->step.step))) break;
        if ((status = judge_events(o, row->step.time_unix))) break;
        keel_trace_add(o->trace, row);
        status = keel_analysis_row(o->analysis, row);
        if (!o->listener) continue;
        size_t count;
        const keel_incident *const *changed = keel_analysis_changed(o->analysis, &count);
        o->listener->row(o->listener->context, row, changed, count);
    }
    return status || *again ? status : judge_events(o, INFINITY);
}

static keel_status read_events(keel_offline *o) {
    char *folder = keel_store_folder(o->reader);
    if (!folder) return out_of_memory();
    const keel_status status = keel_host_events_read(folder, &o->events, &o->event_count);
    free(folder);
    return status;
}

// An empty result that owns what the reading of SOURCE needs; closed as a whole, also where that fails. NULL: no
// memory.
static keel_result *open_result(const char *source, const keel_monitor_config *config) {
    keel_result *result = calloc(1, sizeof *result);
    if (!result) return NULL;
    result->source = strdup(source);
    result->keeper = calloc(1, sizeof *result->keeper);
    if (!result->source || !result->keeper) {
        keel_result_free(result);
        return NULL;
    }
    result->keeper->config = config;
    return result;
}

static bool has_open_hang(const keel_offline *o) {
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(o->analysis, &count);
    for (size_t i = 0; i < count; i++)
        if (incidents[i].open && strcmp(incidents[i].rule, "hang") == 0) return true;
    return false;
}

// The run may have ended in a hang, of which no row tells, nor a host.
static keel_status adopt_hang(keel_offline *o) {
    keel_incident *incidents = NULL;
    size_t count = 0, last = SIZE_MAX;
    if (has_open_hang(o)) return KEEL_OK;
    keel_status status = keel_store_incidents(o->reader, &incidents, &count);
    for (size_t i = 0; !status && i < count; i++)
        if (strcmp(incidents[i].rule, "hang") == 0) last = i;
    if (last != SIZE_MAX && incidents[last].open && incidents[last].first_step > keel_analysis_last_step(o->analysis))
        status = keel_analysis_adopt(o->analysis, &incidents[last]);
    free(incidents);
    return status;
}

// Fills RESULT, or closes it where STATUS is a failure.
static keel_status finish(keel_status status, keel_result *result, keel_result **out) {
    const keel_offline *o = result->keeper;
    if (status) {
        keel_result_free(result);
        return status;
    }
    result->records = keel_analysis_records(o->analysis);
    result->dropped_steps = keel_analysis_dropped_steps(o->analysis);
    result->first_step = keel_analysis_first_step(o->analysis);
    result->last_step = keel_analysis_last_step(o->analysis);
    result->trace = o->trace;
    result->info = o->info;
    result->analysis = o->analysis;
    result->incidents = keel_analysis_incidents(o->analysis, &result->incident_count);
    *out = result;
    return KEEL_OK;
}

keel_status keel_offline_store(const char *path, const keel_monitor_config *config, keel_result **result) {
    return keel_offline_follow(path, config, NULL, result);
}

keel_status keel_offline_follow(const char *path, const keel_monitor_config *config,
                                const keel_offline_listener *listener, keel_result **out) {
    keel_result *result = open_result(path, config);
    if (!result) return out_of_memory();
    keel_offline *o = result->keeper;
    o->listener = listener;
    keel_status status = keel_store_open(path, &o->reader);
    if (!status) status = read_events(o);
    for (bool again = true; !status && again;) {
        again = false;
        status = read_store(o, &again);
    }
    drop_snapshot_states(o);
    if (!status) status = adopt_hang(o);
    return finish(status, result, out);
}

keel_status keel_offline_rows(const char *source, const keel_row_source *rows, const keel_monitor_config *config,
                              keel_result **out) {
    keel_result *result = open_result(source, config);
    if (!result) return out_of_memory();
    keel_offline *o = result->keeper;
    keel_status status = begin(o);
    if (!status) status = start_segment(o, rows->info);
    while (!status) {
        const keel_row *row;
        if ((status = rows->next(rows->context, &row)) || !row) break;
        keel_trace_add(o->trace, row);
        status = keel_analysis_row(o->analysis, row);
    }
    return finish(status, result, out);
}
