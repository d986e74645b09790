#include "tools/replay_record.h"

#include <inttypes.h>
#include <stdlib.h>

#include "analyzers/run_rows.h"
#include "analyzers/series.h"
#include "tools/import/import.h"
#include "tools/run_path.h"

// ---- reading ----

static double scalar_of(const keel_run_info *info, const keel_row *row, const char *name) {
    const int32_t at = keel_run_scalar(info, name);
    return at < 0 ? keel_not_collected() : row->scalars[at];
}

static keel_status add_row(keel_recorded *recorded, size_t *capacity, const keel_run_info *info, const keel_row *row) {
    const keel_replay_value value = {scalar_of(info, row, "loss"), scalar_of(info, row, "grad_norm")};
    if (keel_is_not_collected(value.loss) || keel_is_not_collected(value.grad_norm)) return KEEL_OK;
    if (recorded->count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 1024;
        uint64_t *steps = realloc(recorded->steps, *capacity * sizeof *steps);
        if (steps) recorded->steps = steps;
        keel_replay_value *values = realloc(recorded->values, *capacity * sizeof *values);
        if (values) recorded->values = values;
        if (!steps || !values) return keel_fail(KEEL_ERR_MEMORY, "no memory for what was recorded");
    }
    recorded->steps[recorded->count] = row->step.step;
    recorded->values[recorded->count++] = value;
    return KEEL_OK;
}

static keel_status read_rows(keel_run_rows *rows, keel_recorded *recorded) {
    size_t capacity = 0;
    keel_status status = KEEL_OK;
    for (;;) {
        const keel_row *row;
        uint32_t segment;
        if (!status) status = keel_run_rows_next(rows, &row, &segment);
        if (status || !row) return status;
        status = add_row(recorded, &capacity, keel_run_rows_info(rows, segment), row);
    }
}

// ---- judging ----

enum { LOSS, GRAD_NORM, SCALARS };

typedef struct record_source {
    const keel_recorded *recorded;
    size_t next;
    keel_row row;
    double scalars[SCALARS];
    bool set[SCALARS];
} record_source;

static keel_status next_row(void *context, const keel_row **row) {
    record_source *source = context;
    *row = NULL;
    if (source->next == source->recorded->count) return KEEL_OK;
    const keel_replay_value *value = &source->recorded->values[source->next];
    source->row.step.step = source->row.step.update = source->recorded->steps[source->next++];
    source->scalars[LOSS] = value->loss;
    source->scalars[GRAD_NORM] = value->grad_norm;
    source->set[LOSS] = source->set[GRAD_NORM] = true;
    *row = &source->row;
    return KEEL_OK;
}

static void rewind_rows(void *context) {
    record_source *source = context;
    source->next = 0;
}

keel_status keel_replay_record_judge(const char *path, uint64_t step, keel_recorded *recorded) {
    static const char *const names[SCALARS] = {[LOSS] = "loss", [GRAD_NORM] = "grad_norm"};
    const keel_run_info info = {.command = "",
                                .config_yaml = "",
                                .world_size = 1,
                                .dp = 1,
                                .tp = 1,
                                .pp = 1,
                                .ep = 1,
                                .scalar_count = SCALARS,
                                .scalar_names = names};
    record_source source = {.recorded = recorded};
    source.row.scalars = source.scalars;
    source.row.scalar_set = source.set;
    const keel_row_source rows = {.context = &source, .info = &info, .next = next_row, .rewind = rewind_rows};
    size_t before = 0;
    while (before < recorded->count && recorded->steps[before] < step) before++;
    recorded->judged = before >= KEEL_SERIES_WARMUP;
    recorded->sick = false;
    keel_result *result;
    const keel_status status = keel_offline_rows(path, &rows, NULL, &result);
    if (status) return status;
    for (size_t i = 0; i < result->incident_count; i++) {
        const keel_incident *incident = &result->incidents[i];
        if (incident->severity != KEEL_INFO && incident->first_step <= step && step <= incident->last_step)
            recorded->sick = true;
    }
    keel_result_free(result);
    return KEEL_OK;
}

// ---- the whole ----

keel_status keel_replay_record_read(const char *path, uint64_t step, keel_recorded *recorded) {
    static const bool no_ops[KEEL_OP_COUNT] = {false};
    keel_store_reader *reader = NULL;
    keel_import *import = NULL;
    keel_run_rows *rows = NULL;
    keel_status status;
    if (keel_path_is_store(path)) {
        status = keel_store_open(path, &reader);
        if (!status) status = keel_run_rows_of_store(reader, no_ops, &rows);
    } else {
        status = keel_import_open(path, &(keel_import_options){.format = "csv"}, &import);
        if (!status) // of runs appended the last
            status = keel_run_rows_of_source(keel_import_run(import, keel_import_runs(import) - 1), &rows);
    }
    if (!status) status = read_rows(rows, recorded);
    keel_run_rows_close(rows);
    keel_import_close(import);
    keel_store_close(reader);
    if (status) return status;
    for (size_t i = 0; i < recorded->count; i++)
        if (recorded->steps[i] == step) return keel_replay_record_judge(path, step, recorded);
    if (recorded->count == 0) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no step with loss and grad_norm", path);
    return keel_fail(KEEL_ERR_NOT_FOUND, "%s: step %" PRIu64 " was not recorded; steps %" PRIu64 " to %" PRIu64 " were",
                     path, step, recorded->steps[0], recorded->steps[recorded->count - 1]);
}

void keel_replay_record_free(keel_recorded *recorded) {
    free(recorded->steps);
    free(recorded->values);
}
