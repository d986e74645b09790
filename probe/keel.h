// The public interface of the probe: what a training program calls. C11, no MPI, libc and libm only.
//
//     keel_site *site;                                     // once, at start, on every rank in the same order
//     keel_site_add(probe, &info, &site);
//     keel_probe_start(probe);                             // the site table is complete
//     for (...) {
//         keel_step_begin(probe, step);
//         keel_micro_begin(probe, micro);
//         keel_observe(site, tensor, n);                   // wherever the tensor is at hand
//         keel_scalar_set(probe, loss_id, loss);
//         keel_step_end(probe, &info);
//     }
//
// One thread calls begin, end and registration; observations may come from any thread, but a given site from one at a
// time (see keel_block for parallel loops). No observation allocates, locks, makes a system call or communicates; the
// end of a step reads the process's memory from /proc and wakes the thread that takes the frame.
#ifndef KEEL_PROBE_KEEL_H
#define KEEL_PROBE_KEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/dtype.h"
#include "probe/frame.h"
#include "probe/schedule.h"
#include "probe/site.h"
#include "probe/stats.h"
#include "probe/status.h"

KEEL_C_BEGIN

typedef struct keel_probe keel_probe;

// The visible head of a site; the rest is private to the probe.
typedef struct keel_site {
    uint32_t active; // KEEL_FIELDS_* wanted of the present step; 0: do nothing
} keel_site;

// ---- set-up ----

// RANK: this process among those whose frames are merged, from 0.
KEEL_API keel_status keel_probe_open(uint32_t rank, keel_probe **probe);
KEEL_API void keel_probe_close(keel_probe *probe); // NULL is fine

// Registers a site. INFO is copied; INFO->id is ignored and set in the copy. Names are unique per quantity:
// KEEL_ERR_USAGE otherwise. The site lives as long as the probe.
KEEL_API keel_status keel_site_add(keel_probe *probe, const keel_site_info *info, keel_site **site);
KEEL_API const keel_site_info *keel_site_get_info(const keel_site *site);

// Registers a scalar; the same name gives the same id. At most 31 characters. The greatest and the least are kept with
// whose they are, as NAME_rank: a monitor refuses the start where that is the name of another.
KEEL_API keel_status keel_scalar_add(keel_probe *probe, const char *name, keel_scalar_merge merge, uint32_t *id);

// The most micro-batches of a step (gradient accumulation); 1 unless set before keel_probe_start.
KEEL_API void keel_probe_set_micro_count(keel_probe *probe, uint32_t count);

// Completes the table: the backend chooses sites, ops and schedules and allocates frames. Nothing can be added after
// it. Without a backend nothing is enabled; neither where the start fails, and the program may go on without a monitor:
// all calls below then do nothing.
KEEL_API keel_status keel_probe_start(keel_probe *probe);

// ---- the step ----

KEEL_API void keel_step_begin(keel_probe *probe, uint64_t step);   // step from 1
KEEL_API void keel_micro_begin(keel_probe *probe, uint32_t micro); // micro-batch from 0
// STEP->seconds and time_unix may be 0: they are then measured.
KEEL_API void keel_step_end(keel_probe *probe, const keel_step *step);

KEEL_API void keel_observe_active(keel_site *site, const void *data, size_t n);

// Adds the N elements at DATA (of the site's dtype) to the site's record of this step. Several calls in one step add
// up: the parts of one tensor, or one tensor per micro-batch. One predictable branch where the site is not enabled.
static inline void keel_observe(keel_site *site, const void *data, size_t n) {
    if (site->active) keel_observe_active(site, data, n);
}

// Block form, for loops that write a tensor block by block, also in parallel: look at each block while it is in cache.
// Every thread has a keel_block of its own; the caller ends them one after another, in a fixed order if sums must be
// reproducible to the bit.
typedef struct keel_block {
    keel_stats stats; // complete after the end only
    keel_stats_stream stream;
    keel_site *site; // NULL: not active
    uint64_t frame;  // begun in; a block that outlives its step is dropped
} keel_block;
KEEL_API void keel_block_begin(keel_block *block, keel_site *site);
KEEL_API void keel_block_add_active(keel_block *block, const void *data, size_t n);
static inline void keel_block_add(keel_block *block, const void *data, size_t n) {
    if (block->site) keel_block_add_active(block, data, n);
}
// The next N elements are known to be finite. True if that is all that is asked of them, so that they need not be
// added.
static inline bool keel_block_take_finite(keel_block *block, size_t n) {
    if (!block->site || block->stream.asked != KEEL_FIELDS_FLAGS) return false;
    keel_stats_stream_add_finite(&block->stream, &block->stats, n);
    return true;
}
KEEL_API void keel_block_end(keel_block *block);

// Two sites of one tensor, where nothing changes it between them: true if the same is asked of both in this step, so
// that one look serves both.
KEEL_API bool keel_site_asks_alike(const keel_site *a, const keel_site *b);
// keel_block_end, and OTHER, asked alike, takes the same; NULL: keel_block_end.
KEEL_API void keel_block_end_both(keel_block *block, keel_site *other);

// Between two steps: while paused, steps are not recorded and every site costs what a disabled one costs. The same on
// all ranks.
KEEL_API void keel_probe_set_paused(keel_probe *probe, bool paused);

// The scale of the half group at this site from now on (the loss scale, ...), positive and finite; 1 unless set.
KEEL_API void keel_site_set_scale(keel_site *site, double scale);

KEEL_API void keel_scalar_set(keel_probe *probe, uint32_t id, double value);

// To be called where the caller has a moment, such as layer borders: lets the backend drive a pending merge. Cheap.
KEEL_API void keel_poll(keel_probe *probe);

// Around what lasts until other ranks have come as far (a blocking collective): so that of a job that stands the rank
// is named that the others wait for. Cheap. They do not nest.
KEEL_API void keel_wait_begin(keel_probe *probe);
KEEL_API void keel_wait_end(keel_probe *probe);

// ---- what the monitor thinks ----

typedef struct keel_health {
    uint64_t judged_step;   // the last step that detectors have seen
    uint64_t quiet_steps;   // steps up to it without a warning or critical incident open
    uint32_t open_warnings; // incidents open now
    uint32_t open_criticals;
    bool stop; // the monitor asks for the end of the run (monitor.stop_on_critical)
} keel_health;

// The monitor's view on this process (complete on rank 0; zeros elsewhere and without a backend). Never blocks.
KEEL_API keel_health keel_probe_health(keel_probe *probe);

// Waits until every step handed over has been merged, recorded and judged. Collective where the monitor merges over
// ranks.
KEEL_API keel_status keel_probe_drain(keel_probe *probe);

// The monitor's state (detectors, incidents), for a checkpoint, after a drain. BYTES is malloc'ed, owned by the caller;
// NULL and 0 on ranks that have none.
KEEL_API keel_status keel_probe_save(keel_probe *probe, void **bytes, size_t *size);
// To be called after keel_probe_start and before the first step of a resumed run. STEP: the last step the state has
// seen. KEEL_ERR_USAGE before the start.
KEEL_API keel_status keel_probe_load(keel_probe *probe, uint64_t step, const void *bytes, size_t size);

// ---- for the monitor behind it (collectors/), not for training programs ----

typedef struct keel_site_plan { // what the backend decides of a site at start
    keel_schedule schedule;     // on other steps only FLAGS are taken
    double eps;                 // near_zeros
    uint32_t fields;            // KEEL_FIELDS_* on scheduled steps; 0: the site is not enabled, not even flags
    bool per_micro;             // keep a record per micro-batch as well
} keel_site_plan;

typedef struct keel_backend {
    void *context;
    // Set to true whenever something is observed, from any thread (__ATOMIC_RELAXED); to be taken back by whoever looks
    // for signs of life. NULL: of no interest.
    bool *sign;
    // Called by keel_probe_start with the complete table; fills plans[0 .. site count).
    keel_status (*start)(void *context, keel_probe *probe, keel_site_plan *plans);
    // A cleared frame for STEP, or NULL to record nothing of it.
    keel_frame *(*frame_begin)(void *context, uint64_t step);
    // The frame as it was observed, before its rank fields are sealed, which empties copies that do not count. NULL:
    // not interested.
    void (*frame_observed)(void *context, keel_frame *frame);
    // The step is over. FRAME is NULL if frame_begin gave none. Rank fields are sealed. Must return at once.
    void (*frame_end)(void *context, keel_frame *frame, const keel_step *step);
    void (*poll)(void *context);
    void (*wait)(void *context, bool begins); // NULL: of no interest
    keel_health (*health)(void *context);
    keel_status (*drain)(void *context);
    keel_status (*save)(void *context, void **bytes, size_t *size);
    keel_status (*load)(void *context, uint64_t step, const void *bytes, size_t size);
} keel_backend;

// Before keel_probe_start. BACKEND is copied; its context must outlive the probe's last call.
KEEL_API void keel_probe_set_backend(keel_probe *probe, const keel_backend *backend);

KEEL_API uint32_t keel_probe_rank(const keel_probe *probe);
KEEL_API uint32_t keel_probe_site_count(const keel_probe *probe);
KEEL_API const keel_site_info *keel_probe_site_info(const keel_probe *probe, uint32_t id);
KEEL_API uint32_t keel_probe_scalar_count(const keel_probe *probe);
KEEL_API const char *keel_probe_scalar_name(const keel_probe *probe, uint32_t id);
KEEL_API keel_scalar_merge keel_probe_scalar_merge(const keel_probe *probe, uint32_t id);
KEEL_API uint32_t keel_probe_micro_count(const keel_probe *probe);

KEEL_C_END

#endif
