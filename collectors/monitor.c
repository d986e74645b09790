#include "collectors/monitor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/collector.h"
#include "collectors/frame_pool.h"
#include "collectors/helper_thread.h"
#include "collectors/merge_stage.h"
#include "collectors/quantity/quantity.h"
#include "collectors/recorder.h"
#include "collectors/run_tables.h"
#include "collectors/select.h"
#include "collectors/sink_list.h"

enum {
    FRAMES_AT_WORK = 3, // one is filled, one merged, one recorded, while queue_depth wait
    COLLECTORS_MAX = 16,
};

struct keel_monitor {
    keel_monitor_options options;
    keel_merge merge; // options.merge points here, or is NULL
    uint32_t rank;
    void *collectors[COLLECTORS_MAX]; // states, in the order of keel_collectors
    uint32_t collector_count;         // started
    keel_sink_list sinks;
    keel_judge judge; // its sink lives in the list
    bool has_judge;

    keel_whole_table whole; // complete on rank 0
    keel_copies copies;     // of this rank, where replicas are compared
    keel_rank_series_table ranks;
    keel_run_tables tables;
    keel_frame_pool pool;
    keel_recorder *recorder;
    keel_merge_stage *stage;
    keel_rank_watch *watch; // NULL: none
    atomic_bool started;
    char describe[192];

    _Atomic double step_began; // of the step that goes on, by the monotonic clock; 0: none does

    // The training thread's own.
    keel_slot *filling;
    uint64_t unrecorded; // steps for which no frame was free
    keel_step last_step;
};

// ---- set-up ----

keel_status keel_monitor_open(const keel_monitor_options *options, keel_monitor **out) {
    const keel_status status = keel_select_check(options->config);
    if (status) return status;
    keel_monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor) return keel_fail(KEEL_ERR_MEMORY, "no memory for the monitor");
    monitor->options = *options;
    if (options->merge) {
        monitor->merge = *options->merge;
        monitor->options.merge = &monitor->merge;
        monitor->rank = monitor->merge.rank;
    }
    const keel_status watched = options->watch ? keel_rank_watch_open(options->watch, &monitor->watch) : KEEL_OK;
    if (watched) {
        free(monitor);
        return watched;
    }
    *out = monitor;
    return KEEL_OK;
}

static keel_status add_sink(keel_monitor *monitor, const keel_sink *sink, bool judge) {
    if (monitor->started || monitor->rank != 0 || (judge && monitor->has_judge)) {
        sink->close(sink->context);
        return keel_fail(KEEL_ERR_USAGE, "sink %s: %s", sink->name,
                         monitor->started     ? "added after the start"
                         : monitor->rank != 0 ? "only rank 0 has rows"
                                              : "there is a judge already");
    }
    return keel_sink_list_add(&monitor->sinks, sink, judge);
}

keel_status keel_monitor_add_sink(keel_monitor *monitor, const keel_sink *sink) {
    return add_sink(monitor, sink, false);
}

keel_status keel_monitor_add_judge(keel_monitor *monitor, const keel_judge *judge) {
    const keel_status status = add_sink(monitor, &judge->sink, true);
    if (status) return status;
    monitor->judge = *judge;
    monitor->has_judge = true;
    return KEEL_OK;
}

void keel_monitor_emit(keel_monitor *monitor, const keel_incident *incident) {
    keel_sink_list_incident(&monitor->sinks, incident);
}

static keel_status copy_shape(const keel_rank_table *table, keel_frame_shape *shape) {
    *shape = (keel_frame_shape){.scalars = table->scalar_count,
                                .sites = table->site_count,
                                .micros = table->micro_count,
                                .micro_sites = keel_rank_table_micro_sites(table),
                                .merges = calloc((size_t)table->scalar_count + 1, sizeof(keel_scalar_merge))};
    if (!shape->merges) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u scalars", shape->scalars);
    for (uint32_t i = 0; i < shape->scalars; i++) shape->merges[i] = table->scalars[i].merge;
    return KEEL_OK;
}

static keel_status open_pool(keel_monitor *monitor, const keel_rank_table *own) {
    keel_frame_shape shape, whole = {.merges = NULL};
    const bool several = monitor->whole.group_count > 1; // known on rank 0
    keel_status status = copy_shape(own, &shape);
    if (!status && several) status = copy_shape(&monitor->whole.table, &whole);
    const uint32_t count = (uint32_t)monitor->options.config->queue_depth + FRAMES_AT_WORK;
    if (!status)
        status = keel_frame_pool_open(&monitor->pool, &shape, several ? &whole : NULL, count,
                                      monitor->ranks.value_count, monitor->rank != 0);
    if (!status && monitor->pool.empty) keel_rank_series_take(&monitor->ranks, NULL, monitor->pool.no_values);
    free(shape.merges);
    free(whole.merges);
    return status;
}

static void describe(keel_monitor *monitor, const keel_rank_table *table) {
    uint32_t enabled = 0;
    uint64_t values = 0;
    for (uint32_t s = 0; s < table->site_count; s++) {
        enabled += table->plans[s].fields != 0;
        const uint64_t records = table->plans[s].per_micro ? table->micro_count + UINT64_C(1) : 1;
        values += records * (uint64_t)__builtin_popcountll(table->op_masks[s]);
    }
    const keel_merge *merge = monitor->options.merge;
    char groups[48] = "", way[64] = "one process";
    if (merge)
        snprintf(way, sizeof way, "%.0f KiB a step to merge %s", (double)monitor->pool.frame_bytes / 1024,
                 merge->threaded ? "on a thread" : "at layer borders");
    if (monitor->whole.group_count > 1)
        snprintf(groups, sizeof groups, " of %u groups of ranks", monitor->whole.group_count);
    snprintf(monitor->describe, sizeof monitor->describe, "%u sites%s, at most %" PRIu64 " values a step, %s, %.1f MiB",
             enabled, groups, values, way, (double)keel_monitor_bytes(monitor) / 0x1p20);
}

// What lies between two steps (a checkpoint, an evaluation, the end) is none of a hang.
static void watch(keel_monitor *monitor) {
    const double began = atomic_load(&monitor->step_began);
    keel_host_event event;
    if (!monitor->has_judge) return;
    if (monitor->judge.event && monitor->watch && keel_rank_watch_told(monitor->watch, &event))
        monitor->judge.event(monitor->judge.sink.context, &event);
    if (monitor->watch && keel_rank_watch_broken(monitor->watch)) return;
    if (began <= 0 || !monitor->judge.watch) return;
    const bool known = monitor->watch && keel_rank_watch_waited_for(monitor->watch, &event);
    monitor->judge.watch(monitor->judge.sink.context, keel_seconds_now() - began, known ? &event : NULL);
}

static void idle(void *context) {
    keel_monitor *monitor = context;
    if (!atomic_load(&monitor->started)) return;
    keel_sink_list_idle(&monitor->sinks);
    watch(monitor);
}

// What this rank registered, and what is to be observed of it.
static keel_status plan(keel_monitor *monitor, const keel_probe *probe, keel_site_plan *plans, keel_rank_table *own) {
    if (keel_probe_rank(probe) != monitor->rank)
        return keel_fail(KEEL_ERR_USAGE, "the probe is rank %u, the merge rank %u", keel_probe_rank(probe),
                         monitor->rank);
    const uint32_t sites = keel_probe_site_count(probe);
    for (uint32_t s = 0; s < sites; s++) {
        const keel_status status = keel_quantity_check(keel_probe_site_info(probe, s));
        if (status) return status;
    }
    keel_status status = keel_rank_table_open(probe, plans, own);
    if (status) return status;
    own->ranks_hash = keel_select_ranks_hash(monitor->options.config);
    status = keel_select(monitor->options.config, probe, own->plans, own->op_masks, own->rank_entries);
    if (!status && sites) memcpy(plans, own->plans, sites * sizeof *plans);
    return status;
}

// The table of the whole run, on rank 0.
static keel_status agree(keel_monitor *monitor, keel_status planned, const keel_rank_table *own) {
    if (monitor->options.merge)
        return monitor->merge.agree(monitor->merge.context, planned ? NULL : own, &monitor->whole);
    return planned ? planned : keel_whole_table_open(own, &(uint32_t){0}, 1, &monitor->whole);
}

static void warn_of_sizes(const keel_rank_table *table) {
    uint32_t count = 0, first = 0;
    for (uint32_t s = table->site_count; s-- > 0;) {
        const keel_site_info *site = &table->sites[s];
        if (!table->plans[s].fields || site->ndim > 0 || site->numel > 0) continue;
        count++;
        first = s;
    }
    if (count > 0)
        keel_log(
            KEEL_LOG_WARNING,
            "%u sites, the first of them %s (%s), are registered without shape and numel: rules that need a size do "
            "not judge them",
            count, table->sites[first].name, keel_quantity_name(table->sites[first].quantity));
}

static keel_status open_tables(keel_monitor *monitor) {
    const keel_status status =
        keel_run_tables_open(&(keel_run_identity){.run_id = monitor->options.run_id,
                                                  .command = monitor->options.command,
                                                  .config_yaml = monitor->options.config_yaml,
                                                  .world_size = monitor->options.merge ? monitor->merge.size : 1,
                                                  .dp = monitor->options.dp,
                                                  .tp = monitor->options.tp,
                                                  .pp = monitor->options.pp,
                                                  .ep = monitor->options.ep},
                             &monitor->whole.table, &monitor->ranks, &monitor->tables);
    if (status) return status;
    warn_of_sizes(&monitor->whole.table);
    return keel_select_warn(monitor->options.config, monitor->whole.table.sites, monitor->whole.table.site_count);
}

// Frames, rows and threads.
static keel_status open_ways(keel_monitor *monitor, const keel_rank_table *own) {
    const bool leads = monitor->rank == 0;
    keel_status status = keel_rank_series_open(monitor->options.config, own, &monitor->whole, monitor->rank,
                                               monitor->options.merge ? monitor->merge.size : 1, &monitor->ranks);
    if (!status) status = open_pool(monitor, own);
    if (!status && monitor->whole.compares) status = keel_copies_open(own, &monitor->copies);
    if (!status && leads) status = open_tables(monitor);
    if (!status)
        status = keel_recorder_open(&(keel_recorder_options){.pool = &monitor->pool,
                                                             .info = leads ? &monitor->tables.info : NULL,
                                                             .sinks = &monitor->sinks,
                                                             .idle = leads ? idle : NULL,
                                                             .idle_context = monitor},
                                    &monitor->recorder);
    if (!status)
        status = keel_merge_stage_open(
            &(keel_merge_stage_options){.merge = monitor->options.merge,
                                        .whole = &monitor->whole,
                                        .copies = &monitor->copies,
                                        .ranks = &monitor->ranks,
                                        .pool = &monitor->pool,
                                        .recorder = monitor->recorder,
                                        .timeout_seconds = monitor->options.config->merge_timeout_seconds},
            &monitor->stage);
    return status;
}

static keel_status start(void *context, keel_probe *probe, keel_site_plan *plans) {
    keel_monitor *monitor = context;
    keel_rank_table own = {0};
    keel_status status = plan(monitor, probe, plans, &own);
    const keel_status agreed = agree(monitor, status, &own);
    if (!status) status = agreed;
    if (!agreed) {
        status = open_ways(monitor, &own);
        if (monitor->options.merge) {
            const keel_status confirmed = monitor->merge.confirm(monitor->merge.context, !status);
            if (!status) status = confirmed;
        }
    }
    if (!status) {
        keel_sink_list_start(&monitor->sinks, &monitor->tables.info);
        describe(monitor, monitor->rank == 0 ? &monitor->whole.table : &own);
        atomic_store(&monitor->started, true);
    }
    keel_rank_table_close(&own);
    return status;
}

// ---- the step ----

static keel_frame *frame_begin(void *context, uint64_t step) {
    keel_monitor *monitor = context;
    if (monitor->watch) keel_rank_watch_step(monitor->watch, step, true);
    atomic_store(&monitor->step_began, keel_seconds_now());
    if (monitor->filling) // the step before was begun and never ended
        keel_frame_clear(monitor->filling->frame);
    else if (monitor->rank == 0 || !keel_merge_stage_abandoned(monitor->stage))
        monitor->filling = keel_ring_take(&monitor->pool.free);
    return monitor->filling ? monitor->filling->frame : NULL;
}

static void frame_observed(void *context, keel_frame *frame) {
    keel_monitor *monitor = context;
    keel_rank_series_take(&monitor->ranks, frame, monitor->filling->values);
}

// What the program leaves to the clock.
static keel_step timed(const keel_step *given, double began) {
    keel_step step = *given;
    if (step.seconds == 0 && began > 0) step.seconds = keel_seconds_now() - began;
    if (step.time_unix == 0) step.time_unix = keel_unix_seconds_now();
    return step;
}

static void frame_end(void *context, keel_frame *frame, const keel_step *given) {
    keel_monitor *monitor = context;
    const keel_step ended = timed(given, atomic_exchange(&monitor->step_began, 0)), *step = &ended;
    if (frame) frame->step = ended;
    if (monitor->watch) keel_rank_watch_step(monitor->watch, step->step, false);
    for (uint32_t i = 0; frame && i < monitor->collector_count; i++)
        keel_collectors[i]->sample(monitor->collectors[i], frame, monitor->rank, step);
    if (!frame && monitor->rank == 0 && !monitor->unrecorded++)
        keel_log(KEEL_LOG_WARNING,
                 "step %" PRIu64 " is not recorded, and so may be others: %u frames wait (a slow disk or sink?); the "
                 "total comes at the end",
                 step->step, monitor->pool.count);
    monitor->last_step = *step;
    keel_slot *slot = monitor->filling;
    monitor->filling = NULL;
    keel_merge_stage_submit(monitor->stage, slot);
}

static void poll(void *context) {
    keel_monitor *monitor = context;
    if (monitor->watch) keel_rank_watch_sign(monitor->watch);
    keel_merge_stage_poll(monitor->stage);
}

static void wait(void *context, bool begins) {
    keel_monitor *monitor = context;
    if (monitor->watch) keel_rank_watch_wait(monitor->watch, begins);
}

static keel_status drain(void *context) {
    keel_monitor *monitor = context;
    keel_merge_stage_drain(monitor->stage);
    return keel_recorder_drain(monitor->recorder);
}

// ---- the judge ----

static keel_health health(void *context) {
    const keel_monitor *monitor = context;
    keel_health health = {0};
    if (monitor->has_judge) health = monitor->judge.health(monitor->judge.sink.context);
    health.stop = monitor->options.config->stop_on_critical && health.open_criticals > 0;
    return health;
}

static keel_status save(void *context, void **bytes, size_t *size) {
    const keel_monitor *monitor = context;
    if (monitor->has_judge) return monitor->judge.save(monitor->judge.sink.context, bytes, size);
    *bytes = NULL;
    *size = 0;
    return KEEL_OK;
}

static keel_status load(void *context, uint64_t step, const void *bytes, size_t size) {
    const keel_monitor *monitor = context;
    if (!monitor->has_judge || size == 0) return KEEL_OK; // a checkpoint of a run that was not watched
    return monitor->judge.load(monitor->judge.sink.context, step, bytes, size);
}

keel_status keel_monitor_attach(keel_monitor *monitor, keel_probe *probe) {
    for (uint32_t i = 0; keel_collectors[i] && i < COLLECTORS_MAX; i++) {
        const keel_status status = keel_collectors[i]->start(probe, &monitor->collectors[i]);
        if (status) return status;
        monitor->collector_count++;
    }
    keel_probe_set_backend(probe,
                           &(keel_backend){.context = monitor,
                                           .sign = monitor->watch ? keel_rank_watch_observed(monitor->watch) : NULL,
                                           .start = start,
                                           .frame_begin = frame_begin,
                                           .frame_observed = frame_observed,
                                           .frame_end = frame_end,
                                           .poll = poll,
                                           .wait = wait,
                                           .health = health,
                                           .drain = drain,
                                           .save = save,
                                           .load = load});
    return KEEL_OK;
}

void keel_monitor_stopping(keel_monitor *monitor) {
    if (monitor->watch) keel_rank_watch_stopping(monitor->watch);
}

const char *keel_monitor_describe(const keel_monitor *monitor) {
    return monitor->describe;
}

size_t keel_monitor_bytes(const keel_monitor *monitor) {
    const size_t bytes = monitor->pool.bytes + monitor->copies.count * sizeof *monitor->copies.sites +
                         keel_rank_series_bytes(&monitor->ranks);
    if (monitor->rank != 0) return bytes;
    return bytes + keel_run_tables_bytes(&monitor->tables) + keel_whole_table_bytes(&monitor->whole);
}

// ---- the end ----

static void say_totals(const keel_monitor *monitor, const keel_merge_totals *totals, uint64_t rows) {
    if (monitor->rank == 0 && rows < totals->ended)
        keel_log(KEEL_LOG_WARNING, "%" PRIu64 " of %" PRIu64 " steps were not recorded", totals->ended - rows,
                 totals->ended);
    if (totals->missing)
        keel_log(KEEL_LOG_WARNING, "this rank's values are missing from %" PRIu64 " of %" PRIu64 " steps",
                 totals->missing, totals->ended);
}

keel_status keel_monitor_close(keel_monitor *monitor) {
    if (!monitor) return KEEL_OK;
    keel_status status = KEEL_OK;
    keel_merge_totals totals = {0};
    uint64_t rows = 0;
    if (monitor->stage) keel_merge_stage_close(monitor->stage, monitor->started, &totals);
    if (monitor->recorder)
        status = keel_recorder_close(monitor->recorder, totals.ended, &monitor->last_step, &rows);
    else
        keel_sink_list_close(&monitor->sinks);
    if (monitor->started) say_totals(monitor, &totals, rows);
    if (totals.abandoned) status = keel_fail(KEEL_ERR_COMM, "the merge over ranks was abandoned");
    for (uint32_t i = 0; i < monitor->collector_count; i++) keel_collectors[i]->stop(monitor->collectors[i]);
    if (monitor->options.merge) monitor->merge.close(monitor->merge.context, totals.abandoned);
    if (totals.abandoned)
        keel_frame_pool_abandon(&monitor->pool);
    else
        keel_frame_pool_close(&monitor->pool);
    keel_run_tables_close(&monitor->tables);
    keel_whole_table_close(&monitor->whole);
    keel_copies_close(&monitor->copies);
    keel_rank_series_close(&monitor->ranks);
    keel_rank_watch_close(monitor->watch);
    free(monitor);
    return status;
}
