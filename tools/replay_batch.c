#include "tools/replay_batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/report/report.h"
#include "tools/replay_record.h"
#include "tools/replay_verdict.h"
#include "train/parallel/collective.h"

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

static keel_status print_all(const keel_replay *replay, const keel_recorded *recorded) {
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
    return keel_report_written(stdout);
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
    if (!status) status = keel_agree(world, world->rank == 0 ? print_all(&replay, recorded) : KEEL_OK);
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
    keel_status status =
        keel_agree(&world, world.rank == 0 ? keel_replay_record_read(record, step, &recorded) : KEEL_OK);
    if (!status) {
        uint64_t last_step = recorded.count ? recorded.steps[recorded.count - 1] : 0;
        MPI_Bcast(&last_step, 1, MPI_UINT64_T, 0, comm);
        keel_replay_faults(config, last_step);
        status = replay_as(config, step, &world, report, &recorded);
    }
    keel_replay_record_free(&recorded);
    return status;
}
