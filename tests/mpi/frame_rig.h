// The records of the last step of a training, as every rank has them and as they merge.
#ifndef KEEL_TESTS_FRAME_RIG_H
#define KEEL_TESTS_FRAME_RIG_H

#include "tests/mpi/trainer_rig.h"

typedef struct frame_rig {
    keel_probe *probe;
    keel_frame *frame;
    uint32_t sites, scalars;
} frame_rig;

static inline keel_status frame_rig_start(void *context, keel_probe *probe, keel_site_plan *plans) {
    frame_rig *f = context;
    f->probe = probe;
    f->sites = keel_probe_site_count(probe);
    f->scalars = keel_probe_scalar_count(probe);
    for (uint32_t i = 0; i < f->sites; i++)
        plans[i] = (keel_site_plan){.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = {1, 1, 0}};
    const size_t bytes = keel_frame_bytes(f->scalars, f->sites, 0, 0);
    f->frame = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(f->frame != NULL);
    return KEEL_OK;
}

static inline keel_frame *frame_rig_begin(void *context, uint64_t step) {
    (void)step;
    frame_rig *f = context;
    return keel_frame_init(f->frame, f->scalars, f->sites, 0, 0);
}

static inline void frame_rig_end(void *context, keel_frame *frame, const keel_step *step) {
    (void)context, (void)frame, (void)step;
}

static inline keel_backend frame_rig_backend(frame_rig *f) {
    return (keel_backend){
        .context = f, .start = frame_rig_start, .frame_begin = frame_rig_begin, .frame_end = frame_rig_end};
}

// The record of a site over all ranks, which have the same sites, on each of them.
static inline keel_stats frame_rig_merged(const frame_rig *f, uint32_t site) {
    keel_stats *all = calloc((size_t)check_size, sizeof *all), merged;
    CHECK(all != NULL);
    MPI_Allgather(&keel_frame_stats(f->frame)[site], (int)sizeof *all, MPI_BYTE, all, (int)sizeof *all, MPI_BYTE,
                  MPI_COMM_WORLD);
    keel_stats_clear(&merged);
    for (int r = 0; r < check_size; r++) keel_stats_merge(&merged, &all[r]);
    free(all);
    return merged;
}

// KEEL_QUANTITY of NAME; the test ends where there is none.
static inline uint32_t frame_rig_site(const frame_rig *f, const char *name, keel_quantity quantity) {
    uint32_t found = f->sites;
    for (uint32_t i = 0; i < f->sites; i++) {
        const keel_site_info *info = keel_probe_site_info(f->probe, i);
        if (info->quantity == quantity && strcmp(info->name, name) == 0) found = i;
    }
    CHECK(found < f->sites);
    return found;
}

#endif
