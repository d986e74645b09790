// The ranks of a node watch one another: on a thread of its own each looks at the beats and processes of all, and the
// lowest that still can writes at once what has become of another (host_event.h), alerts, and ends a job that cannot go
// on. Nothing of that needs MPI or the training thread, which only counts up its beat.
//
// GONE     a process has ended and its run has not (it was killed, crashed, or has called exit). Noticed in
//          milliseconds; what dies after it is taken for a consequence. The launcher ends the job as a rule; where it
//          has not after KEEL_WATCH_GRACE_SECONDS, the watch does, if it was told how (end_job).
//          After this process was asked to stop for half a second, which is also how launchers end what is left of a
//          job, it is written down as such, and nobody is alerted.
// SILENT   a step goes on, and the rank that the others wait for has given no sign of life for longer than the limit of
//          rule `hang` (hang_times the median step and hang_seconds; two steps must have ended); or a process is
//          stopped for as long, whatever it does (before two steps: for hang_seconds). The rank waited for is the
//          lowest stopped one, else of those that do not wait themselves the one without a sign for longest. After
//          end_seconds the job is ended likewise.
//
// Time is counted while this process runs: being stopped with the whole job is no silence of others.
#ifndef KEEL_COLLECTORS_WATCH_RANK_WATCH_H
#define KEEL_COLLECTORS_WATCH_RANK_WATCH_H

#include <stdbool.h>

#include "collectors/watch/beat_board.h"
#include "collectors/watch/host_event.h"

enum { KEEL_WATCH_GRACE_SECONDS = 5 };

typedef struct keel_rank_watch keel_rank_watch;

typedef struct keel_rank_watch_options {
    keel_beat_board board;           // taken over if open succeeds
    const char *directory;           // of the run; borrowed, like the context
    double hang_times, hang_seconds; // of rule `hang`; hang_seconds 0: silence is not looked for
    double end_seconds;              // 0: never
    bool judges; // events are told by who asks keel_rank_watch_told some times a second, once there is a first step
    void *context;
    // An event is on the disk, and no judge tells of it: the other ranks may end with this one within a second or two.
    // On the watch's thread.
    void (*alert)(void *context, const keel_host_event *event);
    void (*end_job)(void *context); // ends this process and, where it can, all others; NULL: the job is never ended
} keel_rank_watch_options;

keel_status keel_rank_watch_open(const keel_rank_watch_options *options, keel_rank_watch **watch);
// This rank has ended its run in order. NULL is fine.
void keel_rank_watch_close(keel_rank_watch *watch);

// Signs of life; of the training thread.
void keel_rank_watch_step(keel_rank_watch *watch, uint64_t step, bool begins);
void keel_rank_watch_sign(keel_rank_watch *watch);
void keel_rank_watch_wait(keel_rank_watch *watch, bool begins);
// What whoever observes sets, from any thread (keel_backend.sign): a sign of life at the next look. As long as WATCH.
bool *keel_rank_watch_observed(keel_rank_watch *watch);

// This process was asked to stop. From any thread.
void keel_rank_watch_stopping(keel_rank_watch *watch);
// A rank is gone, and was told of: what the others wait for from now on is no hang. From any thread.
bool keel_rank_watch_broken(const keel_rank_watch *watch);
// The event that this process has written down last and is to judge, once. From any thread.
bool keel_rank_watch_told(keel_rank_watch *watch, keel_host_event *event);
// Whom the others wait for, where a step goes on for long: false where that is not known. From any thread.
bool keel_rank_watch_waited_for(keel_rank_watch *watch, keel_host_event *event);

#endif
