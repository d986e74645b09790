#include "train/step_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/trainer_state.h"

enum { VALUES = KEEL_REPLAY_PASSES + KEEL_REPLAY_NEIGHBOURS, FIELDS = sizeof(keel_replay_value) / sizeof(double) };

static bool is_of_machine(const keel_fault_config *fault) {
    return fault->kind == KEEL_FAULT_NAN || fault->kind == KEEL_FAULT_BIT_FLIP ||
           fault->kind == KEEL_FAULT_REPLICA_SKIP;
}

void keel_replay_faults(keel_train_config *config, uint64_t last_step) {
    for (size_t i = 0; i < config->fault_count; i++) {
        keel_fault_config *fault = &config->faults[i];
        if (!is_of_machine(fault)) continue;
        const bool holds_on = keel_fault_due(fault, last_step + 1);
        fault->step = holds_on ? 1 : INT64_MAX;
        fault->steps = holds_on ? INT64_MAX : 1;
    }
}

keel_status keel_replay_open(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                             keel_probe *probe, uint64_t step, const keel_trainer_report *report,
                             keel_trainer **trainer) {
    if (config->parallel.expert_parallel > 1)
        return keel_fail(KEEL_ERR_CONFIG,
                         "--replay-batch cannot tell with parallel_config.expert_parallel %lld: the experts of a rank "
                         "compute for the batches of %lld ranks, so that no result is of one rank alone",
                         (long long)config->parallel.expert_parallel, (long long)config->parallel.expert_parallel);
    return keel_trainer_open_before(config, sequences, comm, probe, step, report, trainer);
}

// ---- one shard ----

typedef struct replayer {
    keel_trainer *trainer;
    keel_collective *gather;
    double *sums; // [VALUES, shards, FIELDS] of one reading, zeros where another rank computes
    uint32_t shards;
    uint64_t step, samples; // of a step, all ranks
    uint64_t position;      // of the loader before the step
} replayer;

typedef struct shard_batches {
    keel_loader loader;
    keel_faults data;
    uint64_t step;
} shard_batches;

// A keel_next_batch.
static keel_status next_batch(void *context, size_t micro, uint32_t *tokens) {
    shard_batches *b = context;
    const keel_status status = keel_loader_next(&b->loader, tokens);
    if (!status) keel_faults_spoil_batch(&b->data, b->step, micro, tokens);
    return status;
}

// SHARD of the batch at POSITION on this rank, as in step STEP: data goes with the shard, the machine is this one. The
// loss is not scaled: an overflow that a lower scale mends is no fault of a batch. VALUE: this rank's share of the
// loss, and of the square of the gradient's norm.
static keel_status compute(const replayer *r, uint64_t step, uint64_t position, uint32_t shard, double *value) {
    keel_trainer *trainer = r->trainer;
    const keel_loader_plan *plan = &trainer->loader.plan;
    const double tokens = (double)(plan->batch_size * plan->seq_length * plan->accumulation);
    shard_batches batches = {.loader = trainer->loader, .data = trainer->faults, .step = step};
    batches.loader.position = position;
    batches.loader.plan.dp_rank = shard;
    batches.data.shard = shard;
    keel_pipeline_loss loss;
    keel_taps_arm(trainer->taps, step);
    keel_model_take_weights(trainer->model);
    const keel_status status = keel_pipeline_run(trainer->pipeline, next_batch, &batches, 1 / tokens, &loss);
    if (status) keel_buckets_give_up(trainer->buckets);
    const keel_status reduced = keel_buckets_finish(trainer->buckets);
    if (trainer->mesh.model_parallel.rank == 0) value[0] = loss.sum / tokens; // all of them have it
    value[1] = keel_optimizer_local_square(trainer->optimizer, keel_buckets_gradient(trainer->buckets));
    return status ? status : reduced;
}

static double *place(const replayer *r, uint32_t row, uint32_t shard) {
    return r->sums + ((size_t)row * r->shards + shard) * FIELDS;
}

// ---- a reading ----

// Batch I of the neighbours: its position and the step it belongs to. False: there is none.
static bool neighbour(const replayer *r, uint32_t i, uint64_t *position, uint64_t *step) {
    const uint64_t before = r->position / r->samples < r->step - 1 ? r->position / r->samples : r->step - 1;
    if (i < before) {
        *position = r->position - (i + 1) * r->samples;
        *step = r->step - (i + 1);
        return true;
    }
    if (i >= KEEL_REPLAY_NEIGHBOURS_LEAST) return false;
    *position = r->position + (i - before + 1) * r->samples;
    *step = r->step + (i - before + 1);
    return true;
}

// A rank that fails goes through all of it, since others may wait for it in any.
static keel_status compute_all(const replayer *r, keel_replay_reading *reading) {
    const uint32_t rank = (uint32_t)r->trainer->mesh.data_parallel.rank;
    keel_status status = KEEL_OK;
    memset(r->sums, 0, (size_t)VALUES * r->shards * FIELDS * sizeof *r->sums);
    for (uint32_t pass = 0; pass < reading->passes; pass++) {
        const uint32_t shard = pass < 2 ? rank : (rank + r->shards - 1) % r->shards;
        const keel_status computed = compute(r, r->step, r->position, shard, place(r, pass, shard));
        if (!status) status = computed;
    }
    for (uint64_t position, step; reading->neighbours < KEEL_REPLAY_NEIGHBOURS; reading->neighbours++) {
        if (!neighbour(r, reading->neighbours, &position, &step)) break;
        const keel_status computed =
            compute(r, step, position, rank, place(r, KEEL_REPLAY_PASSES + reading->neighbours, rank));
        if (!status) status = computed;
    }
    return status;
}

static keel_status read_batches(replayer *r, keel_replay_reading *reading) {
    keel_trainer *trainer = r->trainer;
    *reading = (keel_replay_reading){.step = trainer->progress.step,
                                     .shards = r->shards,
                                     .tp = trainer->mesh.tp,
                                     .pp = trainer->mesh.pp,
                                     .passes = r->shards > 1 ? KEEL_REPLAY_PASSES : 2};
    reading->values = calloc((size_t)VALUES * r->shards, sizeof *reading->values);
    const keel_comm *world = &trainer->mesh.world;
    keel_status status =
        keel_agree(world, reading->values ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a replay"));
    if (status || !reading->values) return status;
    keel_buckets_set_local(trainer->buckets, true);
    status = compute_all(r, reading);
    keel_buckets_set_local(trainer->buckets, false);
    status = keel_agree(world, status);
    if (!status) status = keel_all_reduce(r->gather, r->sums);
    if (status) return status;
    for (size_t i = 0; i < (size_t)VALUES * r->shards; i++)
        reading->values[i] = (keel_replay_value){.loss = keel_plain(r->sums[i * FIELDS]),
                                                 .grad_norm = keel_plain(sqrt(r->sums[i * FIELDS + 1]))};
    return KEEL_OK;
}

// ---- the whole ----

// Where the loader stands before the step: skipped steps move it too, and a loader that stands still does not.
static uint64_t find_position(const keel_trainer *trainer, uint64_t samples) {
    keel_loader loader = trainer->loader;
    for (uint64_t step = trainer->progress.step + 1;; step++, loader.position += samples) {
        keel_faults_move_loader(&trainer->faults, step, &loader);
        if (step == trainer->replay_step) return loader.position;
    }
}

static keel_status make_steps(replayer *r, keel_replay *replay) {
    keel_trainer *trainer = r->trainer;
    const uint64_t count = replay->step - replay->checkpoint_step;
    replay->steps = calloc(count, sizeof *replay->steps);
    keel_status status = keel_agree(&trainer->mesh.world,
                                    replay->steps ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a replay"));
    for (uint64_t i = 0; !status && i < count; i++) {
        if (trainer->report.progress)
            trainer->report.progress(trainer->report.context, "steps again", (double)(i + 1) / (double)count);
        if (i > 0 && i + 1 == count) status = read_batches(r, &replay->at_step);
        if (!status) status = keel_trainer_step(trainer, &replay->steps[i].loss, &replay->steps[i].grad_norm);
        replay->step_count = i + 1;
    }
    return status;
}

keel_status keel_replay_run(keel_trainer *trainer, keel_replay_enough *enough, keel_replay *replay) {
    const keel_loader_plan *plan = &trainer->loader.plan;
    replayer r = {.trainer = trainer,
                  .shards = plan->dp_size,
                  .step = trainer->replay_step,
                  .samples = (uint64_t)plan->dp_size * plan->batch_size * plan->accumulation};
    keel_replay made = {.step = r.step, .checkpoint_step = trainer->progress.step};
    trainer->report.step = NULL; // these steps are nobody's
    r.position = find_position(trainer, r.samples);
    const size_t count = (size_t)VALUES * r.shards * FIELDS;
    r.sums = calloc(count, sizeof *r.sums);
    keel_status status =
        keel_agree(&trainer->mesh.world, r.sums ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a replay"));
    if (status || !r.sums) {
        free(r.sums);
        return status;
    }
    status = keel_collectives_add(trainer->collectives,
                                  &(keel_collective_plan){.name = "all_reduce.replay",
                                                          .kind = KEEL_ALL_REDUCE,
                                                          .when = KEEL_AT_START,
                                                          .dtype = KEEL_F64,
                                                          .count = count,
                                                          .comm = &trainer->mesh.world,
                                                          .op = MPI_SUM},
                                  &r.gather);
    status = keel_agree(&trainer->mesh.world, status);
    if (!status) status = read_batches(&r, &made.at_checkpoint);
    if (!status && !enough(&made.at_checkpoint)) status = make_steps(&r, &made);
    free(r.sums);
    if (status) {
        keel_replay_free(&made);
        return status;
    }
    *replay = made;
    return KEEL_OK;
}

void keel_replay_free(keel_replay *replay) {
    free(replay->at_checkpoint.values);
    free(replay->at_step.values);
    free(replay->steps);
    *replay = (keel_replay){0};
}
