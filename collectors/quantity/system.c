// What the process itself takes: step_seconds, rss_anon_bytes, and rss_growth_bytes, what the last has grown by since
// the process had taken what it needs (SETTLED steps); each the greatest of all ranks and whose it is.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectors/collector.h"

typedef struct system_state {
    uint32_t step_seconds, rss_anon, rss_growth;
    int statm; // /proc/self/statm, kept open; -1 where there is none
    double page_bytes;
    uint32_t samples; // up to SETTLED
    double settled;   // rss_anon_bytes then
} system_state;

enum { SETTLED = 16 };

static keel_status start(keel_probe *probe, void **out) {
    system_state *state = calloc(1, sizeof *state);
    if (!state) return keel_fail(KEEL_ERR_MEMORY, "no memory for the system collector");
    keel_status status = keel_scalar_add(probe, "step_seconds", KEEL_SCALAR_MAX, &state->step_seconds);
    if (!status) status = keel_scalar_add(probe, "rss_anon_bytes", KEEL_SCALAR_MAX, &state->rss_anon);
    if (!status) status = keel_scalar_add(probe, "rss_growth_bytes", KEEL_SCALAR_MAX, &state->rss_growth);
    if (status) {
        free(state);
        return status;
    }
    state->page_bytes = (double)sysconf(_SC_PAGESIZE);
    state->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (state->statm < 0)
        keel_log(KEEL_LOG_WARNING, "rss_anon_bytes is not collected: /proc/self/statm: %s", strerror(errno));
    *out = state;
    return KEEL_OK;
}

// statm is a few microseconds where status or smaps_rollup are tens to thousands. Its "resident" less "shared" (of
// files and shared memory) is what status calls RssAnon.
static bool read_rss_anon(const system_state *state, double *bytes) {
    char text[128];
    const ssize_t size = state->statm < 0 ? -1 : pread(state->statm, text, sizeof text - 1, 0);
    if (size <= 0) return false;
    text[size] = '\0';
    char *at = text;
    strtoull(at, &at, 10); // all of the address space
    const unsigned long long resident = strtoull(at, &at, 10), shared = strtoull(at, &at, 10);
    *bytes = (double)(resident - shared) * state->page_bytes;
    return resident >= shared;
}

static void sample(void *context, keel_frame *frame, uint32_t rank, const keel_step *step) {
    system_state *state = context;
    keel_frame_set_scalar(frame, state->step_seconds, rank, step->seconds);
    double bytes;
    if (!read_rss_anon(state, &bytes)) return;
    keel_frame_set_scalar(frame, state->rss_anon, rank, bytes);
    if (state->samples < SETTLED) {
        state->samples++;
        state->settled = bytes;
        return;
    }
    keel_frame_set_scalar(frame, state->rss_growth, rank, bytes - state->settled);
}

static void stop(void *context) {
    system_state *state = context;
    if (state->statm >= 0) close(state->statm);
    free(state);
}

const keel_collector keel_collector_system = {"system", start, sample, stop};
