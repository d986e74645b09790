// A probe with a backend that keeps the frames, for tests.
#ifndef KEEL_TESTS_PROBE_RIG_H
#define KEEL_TESTS_PROBE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/keel.h"

// ---- a backend ----

enum { MOST_SITES = 4 };

typedef struct fake {
    keel_site_plan plans[MOST_SITES];
    keel_frame *frame;
    uint32_t micro_sites;
    bool out_of_frames;
    int begins, ends, polls, waits_begun, waits_ended;
    bool last_had_frame;
    keel_step last_step;
    keel_status start_status;
    bool sign;
} fake;

static inline keel_status fake_start(void *context, keel_probe *probe, keel_site_plan *plans) {
    fake *f = context;
    if (f->start_status) return keel_fail(f->start_status, "start refused");
    const uint32_t sites = keel_probe_site_count(probe);
    for (uint32_t i = 0; i < sites && i < MOST_SITES; i++) plans[i] = f->plans[i];
    for (uint32_t i = 0; i < MOST_SITES; i++) f->micro_sites += f->plans[i].fields && f->plans[i].per_micro;
    const uint32_t scalars = keel_probe_scalar_count(probe), micros = keel_probe_micro_count(probe);
    const size_t bytes = keel_frame_bytes(scalars, sites, micros, f->micro_sites);
    f->frame = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!f->frame) return keel_fail(KEEL_ERR_MEMORY, "no frame");
    keel_frame_init(f->frame, scalars, sites, micros, f->micro_sites);
    return KEEL_OK;
}

static inline keel_frame *fake_frame_begin(void *context, uint64_t step) {
    fake *f = context;
    (void)step;
    f->begins++;
    if (f->out_of_frames) return NULL;
    keel_frame_clear(f->frame);
    return f->frame;
}

static inline void fake_frame_end(void *context, keel_frame *frame, const keel_step *step) {
    fake *f = context;
    f->ends++;
    f->last_had_frame = frame != NULL;
    f->last_step = *step;
}

static inline void fake_poll(void *context) {
    ((fake *)context)->polls++;
}

static inline void fake_wait(void *context, bool begins) {
    fake *f = context;
    *(begins ? &f->waits_begun : &f->waits_ended) += 1;
}

static inline keel_health fake_health(void *context) {
    (void)context;
    return (keel_health){.judged_step = 5, .open_warnings = 2};
}

static inline keel_status fake_save(void *context, void **bytes, size_t *size) {
    (void)context;
    *bytes = malloc(3);
    if (!*bytes) return keel_fail(KEEL_ERR_MEMORY, "no state");
    memcpy(*bytes, "abc", 3);
    *size = 3;
    return KEEL_OK;
}

static inline keel_status fake_load(void *context, uint64_t step, const void *bytes, size_t size) {
    (void)context;
    if (step == 8 && size == 3 && memcmp(bytes, "abc", 3) == 0) return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "no such state");
}

static inline keel_status fake_drain(void *context) {
    (void)context;
    return keel_fail(KEEL_ERR_COMM, "drain refused");
}

static inline keel_backend backend_of(fake *f) {
    return (keel_backend){
        .context = f,
        .sign = &f->sign,
        .start = fake_start,
        .frame_begin = fake_frame_begin,
        .frame_end = fake_frame_end,
        .poll = fake_poll,
        .wait = fake_wait,
        .health = fake_health,
        .drain = fake_drain,
        .save = fake_save,
        .load = fake_load,
    };
}

// ---- helpers ----

static inline keel_site_info info_of(const char *name, keel_quantity quantity) {
    keel_site_info info = {.quantity = quantity, .dtype = KEEL_F32, .layer = -1, .replica_count = 1};
    snprintf(info.name, sizeof info.name, "%s", name);
    return info;
}

static inline keel_site *add(keel_probe *probe, const char *name) {
    const keel_site_info info = info_of(name, KEEL_WEIGHT);
    keel_site *site = NULL;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_non_null(site);
    return site;
}

static inline keel_probe *open_with(fake *f, uint32_t rank) {
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(rank, &probe), KEEL_OK);
    const keel_backend backend = backend_of(f);
    keel_probe_set_backend(probe, &backend);
    return probe;
}

static inline void close_all(keel_probe *probe, fake *f) {
    keel_probe_close(probe);
    free(f->frame);
}

static const keel_schedule always = {.start = 1, .every = 1};

#endif
