#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/clock.h"
#include "train/cpu_wait.h"
#include "train/memory_peak.h"
#include "train/pretrained.h"
#include "train/trainer_state.h"

// KEEL_CONTROL_STOP of a rank; the greatest decides.
enum { STOP_BY_CALLER = 1, STOP_BY_MONITOR };

enum { PEAK_STEPS = 16 }; // between two looks at the peak of memory

// What a step finds out on its way.
typedef struct outcome {
    double control[KEEL_CONTROL_COUNT];
    double loss_max; // of this rank
    double loss;     // of all
    double grad_norm, lr, clip_factor, waited, queued, offload, loss_scale;
    bool skipped, overflow; // overflow: skipped, and a lower loss scale may mend it
} outcome;

// ---- one step ----

typedef struct batches {
    keel_trainer *trainer;
    uint64_t step;
} batches;

// A keel_next_batch.
static keel_status next_batch(void *context, size_t micro, uint32_t *tokens) {
    const batches *b = context;
    keel_trainer *trainer = b->trainer;
    keel_status status = micro == 0 ? keel_faults_begin_step(&trainer->faults, b->step) : KEEL_OK;
    if (micro == 0) keel_model_take_weights(trainer->model);
    if (!status) status = keel_loader_next(&trainer->loader, tokens);
    if (!status) keel_faults_spoil_batch(&trainer->faults, b->step, micro, tokens);
    return status;
}

// Sum over ranks and micro-batches of loss and gradient. A rank that fails still takes part in the reductions.
static keel_status forward_backward(keel_trainer *trainer, uint64_t step, outcome *out) {
    const keel_loader_plan *plan = &trainer->loader.plan;
    const double rows = (double)(plan->batch_size * plan->seq_length);
    const double tokens = rows * (double)plan->accumulation * trainer->mesh.dp;
    keel_pipeline_loss loss;
    batches b = {.trainer = trainer, .step = step};
    const double queued = keel_cpu_wait_read(trainer->cpu_wait), waited = keel_collectives_waited(trainer->collectives);
    const keel_status status = keel_pipeline_run(trainer->pipeline, next_batch, &b, out->loss_scale / tokens, &loss);
    if (status) keel_buckets_give_up(trainer->buckets);
    // Who waits for others anyway, loses nothing by having no processor meanwhile.
    const double lost = keel_cpu_wait_read(trainer->cpu_wait) - queued;
    out->queued = fmax(0, lost - (keel_collectives_waited(trainer->collectives) - waited));
    const keel_status reduced = keel_buckets_finish(trainer->buckets);
    keel_buckets_unscale(trainer->buckets, out->loss_scale);
    out->control[KEEL_CONTROL_LOSS_SUM] = trainer->mesh.model_parallel.rank == 0 ? loss.sum : 0; // all of them have it
    out->loss_max = loss.greatest / rows;
    return status ? status : reduced;
}

static void fill_control(keel_trainer *trainer, keel_status status, outcome *out) {
    double *control = out->control;
    const int rank = trainer->mesh.world.rank;
    control[KEEL_CONTROL_LOSS_MAX] = out->loss_max;
    // The first of the ranks that have read the batch, not the one of the last stage that has its loss.
    control[KEEL_CONTROL_LOSS_RANK] = (double)((uint32_t)trainer->mesh.data_parallel.rank * trainer->mesh.tp);
    control[KEEL_CONTROL_NONFINITE] = !isfinite(out->grad_norm) || !isfinite(control[KEEL_CONTROL_LOSS_SUM]);
    control[KEEL_CONTROL_FAILED] = status != KEEL_OK;
    const keel_health health = rank == 0 ? keel_probe_health(trainer->probe) : (keel_health){0};
    control[KEEL_CONTROL_STOP] = health.stop ? STOP_BY_MONITOR : atomic_load(&trainer->stop) ? STOP_BY_CALLER : 0;
    control[KEEL_CONTROL_CRITICALS] = health.open_criticals;
}

static keel_status update_weights(keel_trainer *trainer, uint64_t step, outcome *out) {
    const keel_wrapper_config *wrapper = &trainer->config->wrapper;
    keel_progress *progress = &trainer->progress;
    out->lr = keel_faults_learning_rate(&trainer->faults, step, keel_lr_at(&trainer->config->lr, progress->update + 1));
    if (out->skipped) {
        if (!out->overflow) progress->skipped_in_row++;
        keel_optimizer_skip(trainer->optimizer);
        return KEEL_OK;
    }
    out->clip_factor = wrapper->use_clip_grad ? keel_clip_factor(out->grad_norm, wrapper->max_grad_norm) : 1;
    progress->skipped_in_row = 0;
    progress->update++;
    return keel_optimizer_step(trainer->optimizer, keel_buckets_gradient(trainer->buckets),
                               &(keel_update){.lr = out->lr,
                                              .clip_factor = out->clip_factor,
                                              .update = progress->update,
                                              .leave = keel_faults_skip_update(&trainer->faults, step)});
}

// States in files are lost by one rank alone, whether it was an update or a look at them that lost them.
static keel_status agree_on_update(keel_trainer *trainer, keel_status status) {
    if (!trainer->config->optimizer.offload.folder) return status;
    if (!status) status = keel_optimizer_check(trainer->optimizer);
    keel_wait_begin(trainer->probe);
    status = keel_agree(&trainer->mesh.world, status);
    keel_wait_end(trainer->probe);
    return status;
}

static void set_scalar(const keel_trainer *trainer, keel_trainer_scalar scalar, double value) {
    keel_scalar_set(trainer->probe, trainer->scalars[scalar], value);
}

static void end_step(keel_trainer *trainer, keel_step *end, outcome *out, double began) {
    const keel_loader_plan *plan = &trainer->loader.plan;
    const uint64_t samples = (uint64_t)plan->batch_size * plan->accumulation * plan->dp_size;
    const double tokens = (double)samples * (double)plan->seq_length;
    const double loss = out->loss = keel_plain(out->control[KEEL_CONTROL_LOSS_SUM] / tokens);
    out->grad_norm = keel_plain(out->grad_norm);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    end->update = trainer->progress.update;
    end->samples = trainer->progress.samples = trainer->loader.position;
    end->last_batch = keel_loader_batch(&trainer->loader) - 1;
    end->time_unix = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    end->seconds = keel_seconds() - began;
    const double speed = tokens / end->seconds;

    set_scalar(trainer, KEEL_SCALAR_LOSS, loss);
    if (trainer->mesh.world.rank == (int)out->control[KEEL_CONTROL_LOSS_RANK])
        set_scalar(trainer, KEEL_SCALAR_LOSS_MAX, keel_plain(out->control[KEEL_CONTROL_LOSS_MAX]));
    set_scalar(trainer, KEEL_SCALAR_PERPLEXITY, exp(loss));
    set_scalar(trainer, KEEL_SCALAR_LR, out->lr);
    set_scalar(trainer, KEEL_SCALAR_GRAD_NORM, out->grad_norm);
    if (!out->skipped) set_scalar(trainer, KEEL_SCALAR_CLIP_FACTOR, out->clip_factor);
    set_scalar(trainer, KEEL_SCALAR_TOKENS_PER_SECOND, speed);
    set_scalar(trainer, KEEL_SCALAR_REDUCE_WAIT, out->waited);
    set_scalar(trainer, KEEL_SCALAR_REDUCE_WAIT_LEAST, out->waited);
    set_scalar(trainer, KEEL_SCALAR_CPU_WAIT, out->queued);
    // It grows at the start and seldom later.
    if (end->step - trainer->resumed_step <= PEAK_STEPS || end->step % PEAK_STEPS == 0)
        trainer->memory_peak = keel_memory_peak();
    set_scalar(trainer, KEEL_SCALAR_RSS_PEAK, trainer->memory_peak);
    const bool scaled = trainer->config->wrapper.scale_sense.type != KEEL_LOSS_SCALE_NONE;
    if (trainer->config->optimizer.offload.folder) set_scalar(trainer, KEEL_SCALAR_OFFLOAD_WAIT, out->offload);
    if (scaled) set_scalar(trainer, KEEL_SCALAR_LOSS_SCALE, out->loss_scale);
    keel_routing_report_tell(&trainer->routing, trainer->probe, end, loss, &trainer->report);
    keel_step_end(trainer->probe, end);
    if (trainer->report.step)
        trainer->report.step(trainer->report.context, end, loss, out->grad_norm, out->lr, speed,
                             scaled ? out->loss_scale : 0);
}

static bool checkpoint_due(const keel_trainer *trainer) {
    const int64_t interval = trainer->config->checkpoint.save_interval;
    return interval > 0 && trainer->progress.step % (uint64_t)interval == 0;
}

// From the end of the part before to now.
static void end_part(keel_trainer *trainer, keel_trainer_part part, double *since) {
    const double now = keel_seconds();
    trainer->seconds[part] += now - *since;
    *since = now;
}

static keel_status run_step(keel_trainer *trainer, outcome *out) {
    *out = (outcome){0};
    const double began = keel_seconds();
    out->waited = -keel_collectives_waited(trainer->collectives);
    keel_progress *progress = &trainer->progress;
    const uint64_t step = ++progress->step;
    keel_faults_move_loader(&trainer->faults, step, &trainer->loader);
    keel_step end = {.step = step, .first_batch = keel_loader_batch(&trainer->loader)};
    if (keel_loader_at_epoch(&trainer->loader)) end.flags |= KEEL_STEP_EPOCH;
    if (!trainer->new_run && step == trainer->resumed_step + 1) end.flags |= KEEL_STEP_RESUMED;
    if (checkpoint_due(trainer)) end.flags |= KEEL_STEP_CHECKPOINT;
    const keel_loss_scale_config *scale = &trainer->config->wrapper.scale_sense;
    out->loss_scale = keel_loss_scale_now(scale, &progress->loss_scale);
    keel_taps_set_loss_scale(trainer->taps, out->loss_scale);
    keel_step_begin(trainer->probe, step);
    if (keel_taps_arm(trainer->taps, step)) end.flags |= KEEL_STEP_FAULT;

    double since = keel_seconds();
    keel_routing_report_begin(&trainer->routing, trainer->model);
    keel_status status = forward_backward(trainer, step, out);
    end_part(trainer, KEEL_TRAINER_PART_MODEL, &since);
    // A rank that fails takes part here too.
    const keel_status measured =
        keel_optimizer_grad_norm(trainer->optimizer, keel_buckets_gradient(trainer->buckets), &out->grad_norm);
    end_part(trainer, KEEL_TRAINER_PART_NORM, &since);
    if (!status) status = measured;
    fill_control(trainer, status, out);
    const keel_status told = keel_all_reduce(trainer->control, out->control);
    if (told) return told;
    if (out->control[KEEL_CONTROL_FAILED] > 0) return keel_agree(&trainer->mesh.world, status);

    status = keel_routing_report_gather(&trainer->routing, trainer->model);
    if (status) return status;
    out->skipped = out->control[KEEL_CONTROL_NONFINITE] > 0;
    // Of a loss that is not finite the scale is innocent.
    out->overflow = keel_loss_scale_end_step(scale, &progress->loss_scale, out->skipped) &&
                    isfinite(out->control[KEEL_CONTROL_LOSS_SUM]);
    if (out->skipped) end.flags |= KEEL_STEP_SKIPPED;
    if (out->overflow) end.flags |= KEEL_STEP_OVERFLOW;
    out->offload = -keel_optimizer_waited(trainer->optimizer);
    since = keel_seconds();
    status = update_weights(trainer, step, out);
    end_part(trainer, KEEL_TRAINER_PART_UPDATE, &since);
    out->offload += keel_optimizer_waited(trainer->optimizer);
    status = agree_on_update(trainer, status);
    if (status) return status;
    out->waited += keel_collectives_waited(trainer->collectives);
    end_step(trainer, &end, out, began);
    return KEEL_OK;
}

keel_status keel_trainer_step(keel_trainer *trainer, double *loss, double *grad_norm) {
    outcome out;
    const keel_status status = run_step(trainer, &out);
    if (status) return status;
    *loss = out.loss;
    *grad_norm = out.grad_norm;
    return KEEL_OK;
}

// ---- the run ----

static keel_status diverged(const keel_trainer *trainer, const outcome *out) {
    const uint64_t step = trainer->progress.step, in_row = trainer->progress.skipped_in_row;
    (void)keel_probe_drain(trainer->probe); // the store shall hold the steps that led here
    if (!isfinite(out->control[KEEL_CONTROL_LOSS_MAX]))
        return keel_fail(KEEL_ERR_DIVERGED,
                         "stopped at step %" PRIu64 ": the loss was not finite, first on rank %d, and the last %" PRIu64
                         " updates were skipped",
                         step, (int)out->control[KEEL_CONTROL_LOSS_RANK], in_row);
    char scale[64] = "";
    if (out->loss_scale != 1) snprintf(scale, sizeof scale, " at the loss scale %g", out->loss_scale);
    return keel_fail(KEEL_ERR_DIVERGED,
                     "stopped at step %" PRIu64 ": the gradient norm was %s%s, and the last %" PRIu64
                     " updates were skipped",
                     step, isnan(out->grad_norm) ? "NaN" : "infinite", scale, in_row);
}

static keel_status tell_memory(const keel_trainer *trainer) {
    const double peak = keel_memory_peak(), mebibyte = 1 << 20;
    double ends[2] = {peak, -peak};
    const keel_status status = keel_all_reduce(trainer->memory, ends);
    if (status) return status;
    if (ends[0] == -ends[1])
        keel_trainer_note(trainer, "peak memory of a rank: %.1f MiB", ends[0] / mebibyte);
    else
        keel_trainer_note(trainer, "peak memory of a rank: %.1f to %.1f MiB", -ends[1] / mebibyte, ends[0] / mebibyte);
    return KEEL_OK;
}

// What the states of rank 0 have cost that lie in a file.
static void note_offload(const keel_trainer *trainer) {
    const double steps = (double)(trainer->progress.step - trainer->resumed_step);
    const size_t bytes = keel_optimizer_disk(trainer->optimizer);
    if (!bytes || !(steps > 0)) return;
    keel_trainer_note(
        trainer,
        "optimizer.offload: an update reads and writes %.1f MiB of states, and waited %.3f s of a step of "
        "%.3f s for them",
        (double)bytes / (1 << 20), keel_optimizer_waited(trainer->optimizer) / steps,
        (keel_seconds() - trainer->began) / steps);
}

void keel_trainer_seconds(const keel_trainer *trainer, double seconds[KEEL_TRAINER_PART_COUNT]) {
    memcpy(seconds, trainer->seconds, sizeof trainer->seconds);
}

bool keel_trainer_is_complete(const keel_trainer *trainer) {
    return trainer->progress.update >= (uint64_t)trainer->config->runner.steps;
}

// BY_MONITOR: with a critical incident open, which leaves no checkpoint to write, and which the caller tells of.
static keel_status finish_run(keel_trainer *trainer, bool by_monitor, bool critical_open) {
    const uint64_t steps = (uint64_t)trainer->config->runner.steps;
    const bool complete = keel_trainer_is_complete(trainer);
    const bool idle = !trainer->new_run && trainer->progress.step == trainer->resumed_step;
    if (trainer->config->checkpoint.save_interval > 0 && trainer->saved_step != trainer->progress.step && !by_monitor)
        keel_trainer_save(trainer, critical_open);
    const keel_comm *world = &trainer->mesh.world;
    note_offload(trainer);
    if (!complete && !by_monitor) keel_trainer_note(trainer, "stopped after step %" PRIu64, trainer->progress.step);
    if (complete && idle)
        keel_trainer_note(trainer,
                          "nothing was trained: the checkpoint of step %" PRIu64 " has made %" PRIu64
                          " updates, and runner_config.steps is %" PRIu64,
                          trainer->resumed_step, trainer->progress.update, steps);
    keel_status status = KEEL_OK;
    if (complete && (world->rank == 0 || !keel_reshard_alone(trainer->reshard))) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/model.safetensors", trainer->config->runner.output_dir);
        status = keel_pretrained_save(path, trainer->reshard);
        if (!status) keel_trainer_note(trainer, "%s: %s", idle ? "model of that checkpoint" : "trained model", path);
    }
    status = keel_agree(world, status);
    return status ? status : tell_memory(trainer);
}

// Training does not end for what its monitor has lost.
static keel_status take_up_monitor(const keel_trainer *trainer) {
    const keel_status status =
        keel_probe_load(trainer->probe, trainer->resumed_step, trainer->monitor, trainer->monitor_bytes);
    if (status != KEEL_ERR_FORMAT) return status;
    keel_trainer_note(trainer, "the monitor's rules begin anew, since what the checkpoint has of them does not fit: %s",
                      keel_error());
    return KEEL_OK;
}

keel_status keel_trainer_run(keel_trainer *trainer) {
    const keel_runner_config *runner = &trainer->config->runner;
    const keel_comm *world = &trainer->mesh.world;
    keel_status status = keel_agree(world, world->rank == 0 ? keel_trainer_begin_folders(trainer) : KEEL_OK);
    if (!status && !trainer->new_run) status = keel_agree(world, take_up_monitor(trainer));
    if (status) return status;
    outcome out = {0};
    bool stopping = false;
    trainer->began = keel_seconds();
    while (!stopping && !keel_trainer_is_complete(trainer)) {
        status = run_step(trainer, &out);
        if (status) return status;
        if (trainer->progress.skipped_in_row >= (uint64_t)runner->stop_after_skipped) return diverged(trainer, &out);
        keel_trainer_judge_checkpoints(trainer);
        stopping = out.control[KEEL_CONTROL_STOP] > 0;
        if (checkpoint_due(trainer)) keel_trainer_save(trainer, out.control[KEEL_CONTROL_CRITICALS] > 0);
    }
    const bool by_monitor = out.control[KEEL_CONTROL_STOP] >= STOP_BY_MONITOR;
    status = finish_run(trainer, by_monitor, out.control[KEEL_CONTROL_CRITICALS] > 0);
    if (status || !by_monitor) return status;
    return keel_fail(KEEL_ERR_DIVERGED, "stopped after step %" PRIu64 " by the monitor: a critical incident is open",
                     trainer->progress.step);
}
