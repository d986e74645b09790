// Runs of known values for the tests of the store: what a row holds follows from its step.
#ifndef KEEL_TESTS_STORE_RIG_H
#define KEEL_TESTS_STORE_RIG_H

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <hdf5.h>

#include "collectors/row.h"
#include "collectors/store/reader.h"
#include "collectors/store/writer.h"

enum { RIG_SITES_MOST = 6000, RIG_SCALARS = 5, RIG_MICROS = 3 };

typedef struct rig {
    char directory[64]; // a new one under /tmp
    keel_run_info info;
    keel_site_info *sites;
    uint32_t micro_sites[2];
    keel_rank_series rank_series[3];
    keel_row_buffer *row;
} rig;

static const char *const rig_scalar_names[RIG_SCALARS] = {"loss", "grad_norm", "lr", "loss_max", "loss_max_rank"};

static inline void assert_ok(keel_status status) {
    if (status != KEEL_OK) fail_msg("%s: %s", keel_status_name(status), keel_error());
}

// OPS: bits of keel_op. With two sites of RIG_MICROS micro-batches, and three series of single ranks, where MICRO.
static inline void rig_open(rig *r, uint32_t sites, uint64_t ops, bool micro) {
    *r = (rig){0};
    snprintf(r->directory, sizeof r->directory, "/tmp/keel-store-XXXXXX");
    assert_non_null(mkdtemp(r->directory));
    r->sites = calloc(sites + 1, sizeof *r->sites);
    for (uint32_t s = 0; s < sites; s++) {
        keel_site_info *site = &r->sites[s];
        *site = (keel_site_info){.id = s,
                                 .quantity = (keel_quantity)(s % KEEL_QUANTITY_COUNT),
                                 .dtype = (keel_dtype)(s % KEEL_DTYPE_COUNT),
                                 .layout = (keel_layout)(s % KEEL_LAYOUT_COUNT),
                                 .phase = (keel_phase)(s % KEEL_PHASE_COUNT),
                                 .order = 10 * s,
                                 .layer = (int32_t)(s % 7) - 1,
                                 .stage = (int32_t)(s % 2),
                                 .ndim = 2,
                                 .shape = {s + 1, 8},
                                 .numel = 8 * ((uint64_t)s + 1),
                                 .replica_count = 1};
        snprintf(site->name, sizeof site->name, "layers.%u.weight", s);
        snprintf(site->module, sizeof site->module, "mlp");
    }
    r->info = (keel_run_info){.run_id = "20260729-120000-00c0ffee",
                              .created_utc = "2026-07-29T12:00:00Z",
                              .host = "h\xc3\xb6st",
                              .command = "keel-train demo.yaml",
                              .world_size = 4,
                              .dp = 2,
                              .tp = 2,
                              .pp = 1,
                              .ep = 1,
                              .micro_count = micro ? RIG_MICROS : 1,
                              .config_yaml = "monitor:\n  enabled: true\n",
                              .site_count = sites,
                              .sites = r->sites,
                              .scalar_count = RIG_SCALARS,
                              .scalar_names = rig_scalar_names};
    for (int op = 0; op < KEEL_OP_COUNT; op++) r->info.op_stored[op] = ops >> op & 1;
    if (micro) {
        r->micro_sites[0] = 0;
        r->micro_sites[1] = sites - 1;
        r->info.micro_sites = r->micro_sites;
        r->info.micro_site_count = 2;
        r->rank_series[0] = (keel_rank_series){1, 0};
        r->rank_series[1] = (keel_rank_series){1, sites - 1};
        r->rank_series[2] = (keel_rank_series){3, 0};
        r->info.rank_series = r->rank_series;
        r->info.rank_series_count = 3;
        memcpy(r->info.rank_op_stored, r->info.op_stored, sizeof r->info.rank_op_stored);
    }
    assert_ok(keel_row_buffer_open(&r->info, &r->row));
}

// A run without series of single ranks, whatever else it holds.
static inline void rig_forget_ranks(rig *r) {
    keel_row_buffer_close(r->row);
    r->info.rank_series_count = 0;
    memset(r->info.rank_op_stored, 0, sizeof r->info.rank_op_stored);
    assert_ok(keel_row_buffer_open(&r->info, &r->row));
}

static inline void rig_remove_directory(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return;
    for (const struct dirent *entry; (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}

static inline void rig_close(rig *r) {
    keel_row_buffer_close(r->row);
    free(r->sites);
    rig_remove_directory(r->directory);
}

static inline double rig_f64(uint64_t step, unsigned op, uint64_t place) {
    const uint64_t mixed = (step * 1000003 + op * 10007 + place) * UINT64_C(0x9e3779b97f4a7c15);
    switch (mixed >> 60) {
    case 0:
        return NAN;
    case 1:
        return keel_not_collected();
    case 2:
        return 0;
    case 3:
        return -INFINITY;
    default:
        return ldexp((double)(mixed >> 11), -40);
    }
}

static inline uint64_t rig_u64(uint64_t step, unsigned op, uint64_t place) {
    const uint64_t mixed = (step * 1000003 + op * 10007 + place) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed >> 62 == 0 ? KEEL_NOT_COLLECTED : mixed >> 40;
}

// The row of STEP in r->row; SALT tells one attempt at a step from another.
static inline const keel_row *rig_row(rig *r, uint64_t step, uint64_t salt) {
    keel_row_buffer_clear(r->row);
    keel_row *row = keel_row_buffer_row(r->row);
    row->step = (keel_step){.step = step,
                            .update = step - step / 10,
                            .samples = 8 * step,
                            .first_batch = 100 + step,
                            .last_batch = 103 + step,
                            .time_unix = 1.7e9 + (double)step,
                            .seconds = 0.25,
                            .flags = step % 10 == 0 ? KEEL_STEP_SKIPPED : 0};
    row->dropped_frames = step % 50 == 0 ? 2 : 0;
    for (uint32_t i = 0; i < RIG_SCALARS; i++)
        if ((step + i) % 4 != 0)
            keel_row_buffer_set_scalar(r->row, i, step % 9 == 0 ? NAN : (double)(step + 1000 * i + 7 * salt));
    const size_t micro_cells = (size_t)r->info.micro_count * r->info.micro_site_count;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        double *f64 = keel_row_buffer_f64(r->row, (keel_op)op);
        double *micro_f64 = (double *)row->micro_f64[op];
        uint64_t *u64 = keel_row_buffer_u64(r->row, (keel_op)op);
        uint64_t *micro_u64 = (uint64_t *)row->micro_u64[op];
        double *rank_f64 = (double *)row->rank_f64[op];
        uint64_t *rank_u64 = (uint64_t *)row->rank_u64[op];
        for (uint32_t j = 0; rank_f64 && j < r->info.rank_series_count; j++)
            rank_f64[j] = rig_f64(step + salt, op, 2000000 + j);
        for (uint32_t j = 0; rank_u64 && j < r->info.rank_series_count; j++)
            rank_u64[j] = rig_u64(step + salt, op, 2000000 + j);
        for (uint32_t s = 0; f64 && s < r->info.site_count; s++) f64[s] = rig_f64(step + salt, op, s);
        for (uint32_t s = 0; u64 && s < r->info.site_count; s++) u64[s] = rig_u64(step + salt, op, s);
        for (size_t k = 0; micro_f64 && k < micro_cells; k++) micro_f64[k] = rig_f64(step + salt, op, 1000000 + k);
        for (size_t k = 0; micro_u64 && k < micro_cells; k++) micro_u64[k] = rig_u64(step + salt, op, 1000000 + k);
    }
    return row;
}

static inline void assert_same_cells(const void *got, const void *want, size_t count) {
    assert_int_equal(got != NULL, want != NULL);
    if (want && count > 0) assert_memory_equal(got, want, 8 * count);
}

// HDF5 keeps its handles in tables of its own, where no sanitizer sees one that was not closed.
static inline int rig_no_handles_left(void **state) {
    (void)state;
    hsize_t spaces = 0;
    const ssize_t objects = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    H5Inmembers(H5I_DATASPACE, &spaces);
    if (objects == 0 && spaces == 0) return 0;
    fprintf(stderr, "left open: %zd objects, %llu spaces\n", objects, (unsigned long long)spaces);
    return 1;
}

// ROW is, bit by bit, what rig_row writes of STEP, with DROPPED more steps lost before it.
static inline void rig_check_row(rig *r, const keel_row *row, uint64_t step, uint64_t salt, uint64_t dropped) {
    const keel_row *want = rig_row(r, step, salt);
    assert_non_null(row);
    assert_int_equal(row->step.step, step);
    assert_int_equal(row->step.update, want->step.update);
    assert_int_equal(row->step.samples, want->step.samples);
    assert_int_equal(row->step.first_batch, want->step.first_batch);
    assert_int_equal(row->step.last_batch, want->step.last_batch);
    assert_true(row->step.time_unix == want->step.time_unix && row->step.seconds == want->step.seconds);
    assert_int_equal(row->step.flags, want->step.flags);
    assert_int_equal(row->dropped_frames, want->dropped_frames + dropped);
    assert_same_cells(row->scalars, want->scalars, RIG_SCALARS);
    assert_memory_equal(row->scalar_set, want->scalar_set, RIG_SCALARS * sizeof(bool));
    const size_t micro_cells = (size_t)r->info.micro_count * r->info.micro_site_count;
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        assert_same_cells(row->f64[op], want->f64[op], r->info.site_count);
        assert_same_cells(row->u64[op], want->u64[op], r->info.site_count);
        assert_same_cells(row->micro_f64[op], want->micro_f64[op], micro_cells);
        assert_same_cells(row->micro_u64[op], want->micro_u64[op], micro_cells);
        assert_same_cells(row->rank_f64[op], want->rank_f64[op], r->info.rank_series_count);
        assert_same_cells(row->rank_u64[op], want->rank_u64[op], r->info.rank_series_count);
    }
}

static inline keel_sink rig_sink(rig *r, uint64_t segment_bytes, double pack_seconds) {
    keel_sink sink;
    assert_ok(keel_store_sink_open(
        r->directory, &(keel_store_options){.segment_bytes = segment_bytes, .pack_seconds = pack_seconds}, &sink));
    assert_ok(sink.start(sink.context, &r->info));
    return sink;
}

static inline void rig_write(rig *r, const keel_sink *sink, uint64_t first, uint64_t last, uint64_t salt) {
    for (uint64_t step = first; step <= last; step++) assert_ok(sink->row(sink->context, rig_row(r, step, salt)));
}

// A whole job: steps FIRST to LAST in segments of about SEGMENT_BYTES.
static inline void rig_job(rig *r, uint64_t segment_bytes, uint64_t first, uint64_t last, uint64_t salt) {
    keel_sink sink = rig_sink(r, segment_bytes, 60);
    rig_write(r, &sink, first, last, salt);
    assert_ok(sink.flush(sink.context));
    sink.close(sink.context);
}

static inline keel_incident rig_incident(uint32_t id, uint32_t revision) {
    keel_incident incident = {.id = id,
                              .revision = revision,
                              .severity = revision > 1 ? KEEL_CRITICAL : KEEL_WARNING,
                              .open = revision < 3,
                              .rank = -1,
                              .first_step = 10,
                              .peak_step = 11,
                              .last_step = 11 + revision,
                              .value = 9.5,
                              .expected = INFINITY,
                              .score = 12.25,
                              .confidence = 0.5};
    snprintf(incident.rule, sizeof incident.rule, "loss_spike");
    snprintf(incident.series, sizeof incident.series, "loss,grad_norm");
    snprintf(incident.site, sizeof incident.site, "layers.0.weight:weight");
    snprintf(incident.cause, sizeof incident.cause, "unknown");
    snprintf(incident.message, sizeof incident.message, "The loss rose \xe2\x80\x94 revision %u.", revision);
    return incident;
}

#endif
