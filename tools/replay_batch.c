#include "tools/replay_batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/run_rows.h"
#include "tools/import/import.h"
#include "tools/replay_verdict.h"
#include "tools/run_path.h"
#include "train/parallel/collective.h"

// ---- what was recorded ----

static void free_recorded(keel_recorded *recorded) {
    free(recorded->steps);
    free(recorded->values);
}

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

static keel_status read_record(const char *path, uint64_t step, keel_recorded *recorded) {
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
        if (recorded->steps[i] == step) return KEEL_OK;
    if (recorded->count == 0) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no step with loss and grad_norm", path);
    return keel_fail(KEEL_ERR_NOT_FOUND, "%s: step %" PRIu64 " was not recorded; steps %" PRIu64 " to %" PRIu64 " were",
                     path, step, recorded->steps[0], recorded->steps[recorded->count - 1]);
}

// ---- what is printed ----

static bool is_same(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

static void print_value(const keel_replay_reading *reading, uint32_t pass, uint32_t shard) {
    const keel_replay_value *value = &reading->values[(size_t)pass * reading->shards + shard];
    const keel_replay_value *again = value + reading->shards;
    printf("  %8.4f %10.4g", value->loss, value->grad_norm);
    if (is_same(value->loss, again->loss) && is_same(value->grad_norm, again->grad_norm))
        printf("  twice the same");
    else
        printf("  then %8.4f %10.4g", again->loss, again->grad_norm);
}

static void print_reading(const keel_replay_reading *reading, uint64_t step) {
    printf("\nbatch of step %" PRIu64 " at the parameters of step %" PRIu64 ": loss, gradient norm%s\n", step,
           reading->step, reading->tp * reading->pp > 1 ? " (ranks are data-parallel ones)" : "");
    for (uint32_t shard = 0; shard < reading->shards; shard++) {
        printf("  of rank %-4" PRIu32 "  on rank %-4" PRIu32, shard, shard);
        print_value(reading, 0, shard);
        if (reading->passes == KEEL_REPLAY_PASSES) {
            printf("   on rank %-4" PRIu32, (shard + 1) % reading->shards);
            print_value(reading, 2, shard);
        }
        putchar('\n');
    }
    printf("  %" PRIu32 " batches beside it   %8.4f %10.4g  in the middle\n", reading->neighbours,
           keel_replay_usual(reading, true), keel_replay_usual(reading, false));
}

static void print_all(const keel_replay *replay, const keel_recorded *recorded) {
    print_reading(&replay->at_checkpoint, replay->step);
    if (replay->at_step.values) print_reading(&replay->at_step, replay->step);
    if (replay->step_count) {
        const keel_replay_value *now = &replay->steps[replay->step_count - 1];
        for (size_t i = 0; i < recorded->count; i++)
            if (recorded->steps[i] == replay->step)
                printf("\nstep %" PRIu64 " recorded  %8.4f %10.4g\n", replay->step, recorded->values[i].loss,
                       recorded->values[i].grad_norm);
        printf("step %" PRIu64 " again     %8.4f %10.4g\n", replay->step, now->loss, now->grad_norm);
    }
    keel_replay_verdict verdict;
    keel_replay_judge(replay, recorded, &verdict);
    printf("\nverdict: %s: %s\n", keel_replay_cause_name(verdict.cause), verdict.reason);
    fflush(stdout);
}

// ---- the whole ----

static keel_status replay_as(const keel_train_config *config, uint64_t step, const keel_comm *world,
                             const keel_trainer_report *report, const keel_recorded *recorded) {
    keel_probe *probe = NULL;
    keel_trainer *trainer = NULL;
    keel_replay replay = {0};
    keel_status status = keel_agree(world, keel_probe_open((uint32_t)world->rank, &probe));
    if (!status) status = keel_replay_open(config, NULL, world->mpi, probe, step, report, &trainer);
    if (!status) status = keel_agree(world, keel_probe_start(probe));
    if (!status) status = keel_replay_run(trainer, keel_replay_decides, &replay);
    if (!status && world->rank == 0) print_all(&replay, recorded);
    keel_replay_free(&replay);
    keel_trainer_close(trainer);
    keel_probe_close(probe);
    return status;
}

keel_status keel_replay_batch(keel_train_config *config, const char *record, uint64_t step, MPI_Comm comm,
                              const keel_trainer_report *report) {
    keel_comm world = {.mpi = comm, .name = "world"};
    MPI_Comm_rank(comm, &world.rank);
    MPI_Comm_size(comm, &world.size);
    keel_recorded recorded = {0};
    keel_status status = keel_agree(&world, world.rank == 0 ? read_record(record, step, &recorded) : KEEL_OK);
    if (!status) {
        uint64_t last_step = recorded.count ? recorded.steps[recorded.count - 1] : 0;
        MPI_Bcast(&last_step, 1, MPI_UINT64_T, 0, comm);
        keel_replay_faults(config, last_step);
        status = replay_as(config, step, &world, report, &recorded);
    }
    free_recorded(&recorded);
    return status;
}
