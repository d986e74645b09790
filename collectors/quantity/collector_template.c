// How to add a collector. Copy this file, rename it after what it collects, and add a line to keel_collectors in
// collector.c. It is compiled and tested, but not in that table.
//
// This one measures the processor seconds that the process has used, all its threads together, in each step.
#include <stdlib.h>
#include <time.h>

#include "collectors/collector.h"

// Whatever must be kept between steps. One rank, one thread: no lock is needed.
typedef struct template_state {
    uint32_t cpu_seconds; // id of the scalar
    double before;
} template_state;

static double process_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Every rank registers the same scalars: they are part of the table on which ranks agree. Units go into the name. The
// kind of merge says what one number of all ranks is: MAX also keeps whose it was (as cpu_seconds_rank), SUM adds,
// FIRST takes the lowest rank that has it.
static keel_status start(keel_probe *probe, void **out) {
    template_state *state = calloc(1, sizeof *state);
    if (!state) return keel_fail(KEEL_ERR_MEMORY, "no memory for the template collector");
    const keel_status status = keel_scalar_add(probe, "cpu_seconds", KEEL_SCALAR_SUM, &state->cpu_seconds);
    if (status) {
        free(state);
        return status;
    }
    state->before = process_seconds();
    *out = state;
    return KEEL_OK;
}

// At the end of every step that is recorded. The training thread waits for this: what takes more than a few
// microseconds belongs on a thread of the collector's own, from which this call takes the latest value.
static void sample(void *context, keel_frame *frame, uint32_t rank, const keel_step *step) {
    (void)step;
    template_state *state = context;
    const double now = process_seconds();
    keel_frame_set_scalar(frame, state->cpu_seconds, rank, now - state->before);
    state->before = now;
}

static void stop(void *context) {
    free(context);
}

const keel_collector keel_collector_template = {"template", start, sample, stop};
