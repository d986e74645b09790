// The monitor: the backend of a probe. Chooses sites and schedules by the configuration, owns the frames, merges them over ranks, and hands
// merged rows to the sinks on a thread of its own.
//
//   training thread --frame_end--> merge (merge thread, or driven by keel_poll) --> queue --> writer thread: row -> sinks
//
// Frames: a pool of preallocated ones. Where none is free at frame_begin the step is not recorded on this rank, which still takes part in
// the merge of that step with an empty frame flagged KEEL_STEP_DROPPED; where the writer's queue is full rank 0 drops the merged frame. Both are counted in the next row's dropped_frames
// and said once. The training thread never waits.
#ifndef KEEL_COLLECTORS_MONITOR_H
#define KEEL_COLLECTORS_MONITOR_H

#include "collectors/merge.h"
#include "collectors/sink.h"
#include "configs/monitor_config.h"
#include "probe/keel.h"

typedef struct keel_monitor keel_monitor;

// What judges the rows: implemented by analyzers/online, wired by the assembly. Also a sink; these calls are made on the writer thread as well.
typedef struct keel_judge {
    keel_sink sink; // sink.row judges; incidents come out through emit
    keel_health (*health)(void *context);                                   // any thread
    keel_status (*save)(void *context, void **bytes, size_t *size);         // after a drain
    keel_status (*load)(void *context, uint64_t step, const void *bytes, size_t size);
} keel_judge;

typedef struct keel_monitor_options {
    const keel_monitor_config *config; // borrowed, outlives the monitor
    const keel_merge *merge;           // vtable; NULL: one process. Copied.
    const char *run_id;                // NULL: made up; the same on every segment of one run: a resumed run passes the stored one
    const char *command;
    const char *config_yaml;
    uint32_t dp, tp, pp, ep;
} keel_monitor_options;

keel_status keel_monitor_open(const keel_monitor_options *options, keel_monitor **monitor);
// Before keel_probe_start, on rank 0. The monitor takes the sink over (its close is called). Order matters: store, then judge, then the rest.
keel_status keel_monitor_add_sink(keel_monitor *monitor, const keel_sink *sink);
keel_status keel_monitor_add_judge(keel_monitor *monitor, const keel_judge *judge);
// For the judge: hands an incident to every sink. On the writer thread.
void keel_monitor_emit(keel_monitor *monitor, const keel_incident *incident);
// Makes the monitor the backend of PROBE.
void keel_monitor_attach(keel_monitor *monitor, keel_probe *probe);
// One line for people: "5000 sites, 120000 values a step, merge on a thread, 12.3 MiB". Valid after keel_probe_start.
const char *keel_monitor_describe(const keel_monitor *monitor);
// Bytes allocated for frames and rows on this rank.
size_t keel_monitor_bytes(const keel_monitor *monitor);
// Drains, closes the sinks, joins the threads. Collective. KEEL_ERR_IO if something could not be kept.
keel_status keel_monitor_close(keel_monitor *monitor);

#endif
