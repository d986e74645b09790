// The monitor: the backend of a probe. Chooses sites and schedules by the configuration, owns the frames, merges them
// over ranks, and hands merged rows to the sinks on a thread of its own.
//
//   training thread --frame_end--> merge (merge thread, or driven by keel_poll) --> recorder thread: row -> sinks
//
// The training thread never waits. Where no frame is free at frame_begin (a slow disk, a slow sink), the step is not
// recorded on this rank: rank 0 then has all ranks skip it, and counts it in dropped_frames of the next row; another
// rank gives an empty frame to the merge, and the row is flagged KEEL_STEP_DROPPED. Either is said at once, and at the
// end with the total.
//
// A merge that outlives monitor.merge_timeout_seconds is abandoned: rank 0 goes on recording what it observes itself,
// each row flagged KEEL_STEP_DROPPED, other ranks record nothing more. A collective can be neither cancelled nor freed,
// so such a process must end by _exit: keel_monitor_close then returns KEEL_ERR_COMM, in bounded time.
//
// Ranks may register different sites and scalars, as the stages of a pipeline do. Those with the same are a group,
// whose frames merge place by place; rank 0 merges the groups' frames into that of the whole run, which is what sinks
// see. What several groups have is one site.
//
// Memory of a rank, where RECORDS = sites + micro-batches x sites with records per micro-batch, of this rank or, on
// rank 0, of the whole run:
//     frames  (queue_depth + 3, and 1 more on ranks other than 0) x (96 + 16 scalars + sizeof(keel_stats) RECORDS)
//     where replicas are compared  40 bytes a site of them
//     values of single ranks  8 bytes x (queue_depth + 3, and 1 more as above) x those of this rank, on rank 0 of all
//     rank 0  8 bytes x ops stored x RECORDS for a row; the site table once more; with several groups 2 frames more;
//             where replicas are compared 24 bytes a rank; 16 bytes a series of a single rank
// One frame is being filled, one merged, one recorded, and queue_depth may wait.
#ifndef KEEL_COLLECTORS_MONITOR_H
#define KEEL_COLLECTORS_MONITOR_H

#include "collectors/merge.h"
#include "collectors/sink.h"
#include "collectors/watch/rank_watch.h"
#include "configs/monitor_config.h"
#include "probe/keel.h"

typedef struct keel_monitor keel_monitor;

// What judges the rows: implemented by analyzers/online, wired by the assembly. Also a sink, on the recorder thread.
typedef struct keel_judge {
    keel_sink sink; // sink.row judges; incidents come out through emit; closed before the other sinks, so that close
                    // may emit too
    keel_health (*health)(void *context);                           // any thread
    keel_status (*save)(void *context, void **bytes, size_t *size); // training thread, after a drain
    keel_status (*load)(void *context, uint64_t step, const void *bytes,
                        size_t size); // training thread, before the first step
    // Recorder thread, some times a second while a step of this process goes on for SECONDS already and no row comes;
    // WAITED_FOR: by what the ranks of this host know, NULL where they do not. NULL: not interested.
    void (*watch)(void *context, double seconds, const keel_host_event *waited_for);
    // Recorder thread: what this rank has told of another. NULL: not interested.
    void (*event)(void *context, const keel_host_event *event);
} keel_judge;

typedef struct keel_monitor_options {
    const keel_monitor_config *config;    // borrowed, outlives the monitor
    const keel_merge *merge;              // vtable; NULL: one process. Copied, its context taken over if open succeeds
    const keel_rank_watch_options *watch; // NULL: ranks do not watch one another. Copied, its board taken over by
                                          // keel_monitor_open if that succeeds
    // Texts are borrowed until keel_monitor_close.
    const char *run_id; // NULL: made up; the same on every segment of one run: a resumed run passes the stored one
    const char *command;
    const char *config_yaml;
    uint32_t dp, tp, pp, ep;
} keel_monitor_options;

// KEEL_ERR_CONFIG for a selection that names what there is not.
keel_status keel_monitor_open(const keel_monitor_options *options, keel_monitor **monitor);
// Before keel_probe_start, on rank 0: other ranks have no rows. The monitor takes the sink over, also on failure (its
// close is called). Order matters: store, then judge, then the rest. At most KEEL_SINKS_MAX (sink_list.h), one of them
// a judge.
keel_status keel_monitor_add_sink(keel_monitor *monitor, const keel_sink *sink);
keel_status keel_monitor_add_judge(keel_monitor *monitor, const keel_judge *judge);
// For the judge, on the recorder thread: hands an incident to every sink.
void keel_monitor_emit(keel_monitor *monitor, const keel_incident *incident);
// Makes the monitor the backend of PROBE and registers its own scalars (step_seconds, rss_anon_bytes,
// rss_growth_bytes). Before keel_probe_start.
keel_status keel_monitor_attach(keel_monitor *monitor, keel_probe *probe);
// This process was asked to stop: deaths of other ranks from now on follow from it. From any thread.
void keel_monitor_stopping(keel_monitor *monitor);
// One line for people: "5000 sites, at most 120000 values a step, 1172 KiB a step to merge on a thread, 12.3 MiB".
// Valid after keel_probe_start.
const char *keel_monitor_describe(const keel_monitor *monitor);
// Bytes allocated for frames, rows and tables on this rank. Valid after keel_probe_start.
size_t keel_monitor_bytes(const keel_monitor *monitor);
// Records what is left, closes the sinks, ends the threads, frees the monitor. Collective where there is a merge, but
// also after an abandoned one. A step that was begun and not ended is not recorded. NULL: nothing. KEEL_ERR_COMM: a
// merge was abandoned, the process must end by _exit. KEEL_ERR_IO: a sink failed.
keel_status keel_monitor_close(keel_monitor *monitor);

#endif
