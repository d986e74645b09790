// A monitor with a probe of three sites in front and a sink behind that remembers, for tests.
#ifndef KEEL_TESTS_MONITOR_RIG_H
#define KEEL_TESTS_MONITOR_RIG_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "collectors/monitor.h"
#include "collectors/sink_list.h"
#include "tests/unit/collectors/captured_log.h"

enum { RIG_WEIGHT, RIG_REPLICA, RIG_OUT, RIG_SITES };
enum { RIG_ROWS_MAX = 128 };

typedef struct seen_row {
    keel_step step;
    uint64_t dropped;
    double max;                                    // of site RIG_WEIGHT
    double out_zeros;                              // share of zeros of site RIG_OUT
    uint64_t residual, replica_rank, replica_peer; // of site RIG_REPLICA
    double loss, loss_owner, rss, step_seconds;
} seen_row;

typedef struct test_sink {
    const char *name;
    keel_status start_status, row_status, flush_status; // what it answers
    bool gated;                                         // each row waits for one post of the gate
    sem_t gate;
    const keel_run_info *info;
    seen_row rows[RIG_ROWS_MAX];
    atomic_uint count, incidents, flushes, closes;
} test_sink;

static inline keel_status test_sink_start(void *context, const keel_run_info *info) {
    test_sink *sink = context;
    if (sink->start_status) return keel_fail(sink->start_status, "%s refuses", sink->name);
    sink->info = info;
    return KEEL_OK;
}

static inline double seen_scalar(const test_sink *sink, const keel_row *row, const char *name) {
    const int32_t id = keel_run_scalar(sink->info, name);
    assert_true(id >= 0);
    return row->scalars[id];
}

static inline keel_status test_sink_row(void *context, const keel_row *row) {
    test_sink *sink = context;
    if (sink->gated) sem_wait(&sink->gate);
    const uint32_t i = sink->count;
    assert_true(i < RIG_ROWS_MAX);
    sink->rows[i] = (seen_row){
        .step = row->step,
        .dropped = row->dropped_frames,
        .max = keel_row_value(row, KEEL_OP_max, RIG_WEIGHT),
        .out_zeros = keel_row_value(row, KEEL_OP_zeros, RIG_OUT),
        .residual = row->u64[KEEL_OP_replica_residual] ? row->u64[KEEL_OP_replica_residual][RIG_REPLICA] : 0,
        .replica_rank = row->u64[KEEL_OP_replica_rank] ? row->u64[KEEL_OP_replica_rank][RIG_REPLICA] : 0,
        .replica_peer = row->u64[KEEL_OP_replica_peer] ? row->u64[KEEL_OP_replica_peer][RIG_REPLICA] : 0,
        .loss = seen_scalar(sink, row, "loss"),
        .loss_owner = seen_scalar(sink, row, "loss_rank"),
        .rss = seen_scalar(sink, row, "rss_anon_bytes"),
        .step_seconds = seen_scalar(sink, row, "step_seconds"),
    };
    sink->count++;
    return sink->row_status ? keel_fail(sink->row_status, "%s refuses", sink->name) : KEEL_OK;
}

static inline keel_status test_sink_incident(void *context, const keel_incident *incident) {
    (void)incident;
    ((test_sink *)context)->incidents++;
    return KEEL_OK;
}

static inline keel_status test_sink_flush(void *context) {
    test_sink *sink = context;
    sink->flushes++;
    return sink->flush_status ? keel_fail(sink->flush_status, "%s keeps some back", sink->name) : KEEL_OK;
}

static inline void test_sink_close(void *context) {
    ((test_sink *)context)->closes++;
}

static inline keel_sink test_sink_of(test_sink *sink) {
    return (keel_sink){.context = sink,
                       .name = sink->name,
                       .start = test_sink_start,
                       .row = test_sink_row,
                       .incident = test_sink_incident,
                       .flush = test_sink_flush,
                       .close = test_sink_close};
}

typedef struct rig {
    keel_monitor_config *config;
    keel_probe *probe;
    keel_monitor *monitor;
    keel_site *sites[RIG_SITES];
    uint32_t loss;
    test_sink sink; // on rank 0
} rig;

static inline void rig_add_sink(rig *r, test_sink *sink) {
    sem_init(&sink->gate, 0, 0);
    const keel_sink made = test_sink_of(sink);
    assert_int_equal(keel_monitor_add_sink(r->monitor, &made), KEEL_OK);
}

static inline void rig_add_sites(rig *r, uint32_t rank, uint32_t ranks) {
    const keel_site_info infos[RIG_SITES] = {
        [RIG_WEIGHT] = {.name = "layers.0.weight",
                        .numel = 1,
                        .quantity = KEEL_WEIGHT,
                        .layout = KEEL_LAYOUT_SHARD,
                        .phase = KEEL_PHASE_OPTIMIZER},
        [RIG_REPLICA] = {.name = "embedding.weight",
                         .numel = 1,
                         .quantity = KEEL_WEIGHT,
                         .layout = KEEL_LAYOUT_REPLICA,
                         .phase = KEEL_PHASE_OPTIMIZER,
                         .replica_index = rank,
                         .replica_count = ranks},
        [RIG_OUT] = {.name = "layers.0.out",
                     .numel = 2,
                     .quantity = KEEL_ACTIVATION,
                     .layout = KEEL_LAYOUT_SAMPLE,
                     .phase = KEEL_PHASE_FORWARD},
    };
    for (int s = 0; s < RIG_SITES; s++) assert_int_equal(keel_site_add(r->probe, &infos[s], &r->sites[s]), KEEL_OK);
}

// A site that no monitor accepts.
static inline void rig_add_contradiction(rig *r) {
    const keel_site_info info = {.name = "odd", .layout = KEEL_LAYOUT_PARTIAL, .phase = KEEL_PHASE_OPTIMIZER};
    keel_site *site;
    assert_int_equal(keel_site_add(r->probe, &info, &site), KEEL_OK);
}

// MONITOR: the value of the YAML's key `monitor`.
static inline void rig_open(rig *r, const keel_merge *merge, const char *monitor) {
    *r = (rig){.sink = {.name = "memory"}};
    capture_log();
    char text[512];
    snprintf(text, sizeof text, "monitor: %s", monitor);
    keel_yaml *doc;
    assert_int_equal(keel_yaml_parse("m.yaml", text, strlen(text), &doc), KEEL_OK);
    if (keel_monitor_config_read(doc, &r->config)) fail_msg("%s", keel_error());
    const uint32_t rank = merge ? merge->rank : 0;
    assert_int_equal(keel_probe_open(rank, &r->probe), KEEL_OK);
    rig_add_sites(r, rank, merge ? merge->size : 1);
    assert_int_equal(keel_scalar_add(r->probe, "loss", KEEL_SCALAR_MAX, &r->loss), KEEL_OK);
    assert_int_equal(
        keel_monitor_open(&(keel_monitor_options){.config = r->config, .merge = merge, .command = "test"}, &r->monitor),
        KEEL_OK);
    if (rank == 0) rig_add_sink(r, &r->sink);
    assert_int_equal(keel_monitor_attach(r->monitor, r->probe), KEEL_OK);
}

static inline void rig_start(rig *r) {
    if (keel_probe_start(r->probe)) fail_msg("%s", keel_error());
}

// Every site holds VALUE, and 0 once more where it is RIG_OUT.
static inline void rig_observe(rig *r, double value) {
    const float values[2] = {(float)value, 0};
    for (int s = 0; s < RIG_SITES; s++) keel_observe(r->sites[s], values, s == RIG_OUT ? 2 : 1);
    keel_scalar_set(r->probe, r->loss, 0.5 * value);
}

static inline void rig_step(rig *r, uint64_t step) {
    keel_step_begin(r->probe, step);
    rig_observe(r, (double)step);
    keel_step_end(r->probe, &(keel_step){.step = step, .update = step, .seconds = 0.01});
}

static inline keel_status rig_close(rig *r) {
    const keel_status status = keel_monitor_close(r->monitor);
    keel_probe_close(r->probe);
    keel_monitor_config_free(r->config);
    return status;
}

#endif
