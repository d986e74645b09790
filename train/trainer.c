#include "train/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/cpu_wait.h"
#include "train/data/shards.h"
#include "train/optim/groups.h"
#include "train/pretrained.h"
#include "train/recovery.h"
#include "train/trainer_state.h"

enum { PROGRESS_FIELDS = sizeof(keel_progress) / sizeof(uint64_t) };

void keel_trainer_note(const keel_trainer *trainer, const char *format, ...) {
    if (!trainer->report.note) return;
    char *text;
    va_list args;
    va_start(args, format);
    const int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) return;
    trainer->report.note(trainer->report.context, text);
    free(text);
}

static void note_plain(void *trainer, const char *text) {
    keel_trainer_note(trainer, "%s", text);
}

// ---- data ----

static keel_status prepare_shards(keel_trainer *trainer) {
    const keel_dataset_config *dataset = &trainer->config->dataset;
    keel_shards_plan plan = {.text = dataset->text,
                             .text_count = dataset->text_count,
                             .folder = dataset->shards,
                             .shard_tokens = (uint64_t)dataset->shard_tokens,
                             .look = trainer->look};
    const keel_status status = keel_tokenizer_find("byte", &plan.tokenizer);
    if (status) return status;
    return keel_shards_prepare(&plan,
                               &(keel_shards_listener){.context = trainer->report.context,
                                                       .progress = trainer->report.progress,
                                                       .note = trainer->report.note},
                               &trainer->shards_hold);
}

static keel_status read_nothing(void *context, uint64_t index, uint32_t *tokens) {
    (void)context, (void)index, (void)tokens;
    return keel_fail(KEEL_ERR_USAGE, "no shards to read from");
}

// Shards that are still to be made, for a structure to be printed.
static const keel_sequences no_shards = {.count = UINT64_MAX / 2, .identity = "", .read = read_nothing};

static keel_status open_shards(keel_trainer *trainer, const keel_sequences **sequences) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    const bool may_lack = trainer->look && !trainer->replay_step && config->dataset.text_count > 0;
    const keel_status status = keel_agree(world, world->rank == 0 ? prepare_shards(trainer) : KEEL_OK);
    if (status == KEEL_ERR_NOT_FOUND && may_lack) {
        keel_trainer_note(trainer, "%s: no shards yet: they are made when the training begins", config->dataset.shards);
        *sequences = &no_shards;
        return KEEL_OK;
    }
    if (status) return status;
    *sequences = &trainer->own_sequences;
    return keel_sequences_open_shards(config->dataset.shards, (size_t)config->model.seq_length,
                                      (uint64_t)config->model.vocab_size, &trainer->own_sequences);
}

static keel_status open_data(keel_trainer *trainer, const keel_sequences *given) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    keel_status status = KEEL_OK;
    const size_t seq_length = (size_t)config->model.seq_length;
    if (!given) status = open_shards(trainer, &given);
    if (!status)
        status = keel_loader_init(&(keel_loader_plan){.sequences = given,
                                                      .seq_length = seq_length,
                                                      .batch_size = (size_t)config->runner.batch_size,
                                                      .accumulation = keel_train_micro_batches(config),
                                                      .dp_rank = (uint32_t)trainer->mesh.data_parallel.rank,
                                                      .dp_size = trainer->mesh.dp,
                                                      .seed = (uint64_t)config->runner.seed,
                                                      .shuffle = config->dataset.shuffle},
                                  &trainer->loader);
    if (!status) keel_facts_of(config, given->identity, trainer->mesh.dp, &trainer->facts);
    return keel_agree(world, status);
}

// ---- model, optimizer, collectives ----

static bool greater(double a, double b) {
    return isnan(a) ? !isnan(b) : a > b;
}

static void combine_control(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    const double *a = in;
    double *b = inout;
    for (int k = 0; k < *count; k++, a += KEEL_CONTROL_COUNT, b += KEEL_CONTROL_COUNT) {
        b[KEEL_CONTROL_LOSS_SUM] += a[KEEL_CONTROL_LOSS_SUM];
        const double x = a[KEEL_CONTROL_LOSS_MAX], y = b[KEEL_CONTROL_LOSS_MAX];
        if (greater(x, y) || (!greater(y, x) && a[KEEL_CONTROL_LOSS_RANK] < b[KEEL_CONTROL_LOSS_RANK])) {
            b[KEEL_CONTROL_LOSS_MAX] = x;
            b[KEEL_CONTROL_LOSS_RANK] = a[KEEL_CONTROL_LOSS_RANK];
        }
        for (int i = KEEL_CONTROL_NONFINITE; i < KEEL_CONTROL_COUNT; i++) b[i] = fmax(a[i], b[i]);
    }
}

static keel_status open_control(keel_trainer *trainer) {
    if (MPI_Op_create(combine_control, 1, &trainer->control_op) != MPI_SUCCESS) {
        trainer->control_op = MPI_OP_NULL;
        return keel_fail(KEEL_ERR_COMM, "MPI made no operation for the end of a step");
    }
    return keel_collectives_add(trainer->collectives,
                                &(keel_collective_plan){.name = "all_reduce.step",
                                                        .kind = KEEL_ALL_REDUCE,
                                                        .when = KEEL_EVERY_STEP,
                                                        .dtype = KEEL_F64,
                                                        .count = KEEL_CONTROL_COUNT,
                                                        .comm = &trainer->mesh.world,
                                                        .op = trainer->control_op,
                                                        .whole = true},
                                &trainer->control);
}

// The greatest and the least peak of a rank's memory, told at the end.
static keel_status open_memory(keel_trainer *trainer) {
    return keel_collectives_add(trainer->collectives,
                                &(keel_collective_plan){.name = "all_reduce.memory",
                                                        .kind = KEEL_ALL_REDUCE,
                                                        .when = KEEL_AT_END,
                                                        .dtype = KEEL_F64,
                                                        .count = 2,
                                                        .comm = &trainer->mesh.world,
                                                        .op = MPI_MAX},
                                &trainer->memory);
}

static keel_status add_scalars(keel_trainer *trainer) {
    static const struct {
        const char *name;
        keel_scalar_merge merge;
    } scalars[KEEL_SCALAR_TRAINER_COUNT] = {
        [KEEL_SCALAR_LOSS] = {"loss", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_LOSS_MAX] = {"loss_max", KEEL_SCALAR_MAX},
        [KEEL_SCALAR_PERPLEXITY] = {"perplexity", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_LR] = {"lr", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_GRAD_NORM] = {"grad_norm", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_CLIP_FACTOR] = {"clip_factor", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_TOKENS_PER_SECOND] = {"tokens_per_second", KEEL_SCALAR_FIRST},
        [KEEL_SCALAR_REDUCE_WAIT] = {"reduce_wait_seconds", KEEL_SCALAR_MAX},
        [KEEL_SCALAR_CPU_WAIT] = {"cpu_wait_seconds", KEEL_SCALAR_MAX},
        [KEEL_SCALAR_REDUCE_WAIT_LEAST] = {"reduce_wait_least_seconds", KEEL_SCALAR_MIN},
        [KEEL_SCALAR_RSS_PEAK] = {"rss_peak_bytes", KEEL_SCALAR_MAX},
        [KEEL_SCALAR_OFFLOAD_WAIT] = {"offload_wait_seconds", KEEL_SCALAR_MAX},
        [KEEL_SCALAR_LOSS_SCALE] = {"loss_scale", KEEL_SCALAR_FIRST}};
    const keel_train_config *config = trainer->config;
    keel_status status = KEEL_OK;
    for (keel_trainer_scalar i = 0; !status && i < KEEL_SCALAR_TRAINER_COUNT; i++) {
        if (i == KEEL_SCALAR_LOSS_SCALE && config->wrapper.scale_sense.type == KEEL_LOSS_SCALE_NONE) continue;
        if (i == KEEL_SCALAR_OFFLOAD_WAIT && !config->optimizer.offload.folder) continue;
        status = keel_scalar_add(trainer->probe, scalars[i].name, scalars[i].merge, &trainer->scalars[i]);
    }
    return status;
}

static keel_status open_model(keel_trainer *trainer) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    const size_t accumulation = keel_train_micro_batches(config);
    trainer->stage = keel_stage_of(config, (uint32_t)trainer->mesh.pipeline.rank);
    keel_probe_set_micro_count(trainer->probe, (uint32_t)accumulation);
    keel_status status =
        keel_taps_open(trainer->probe, (uint32_t)world->rank, config->faults, config->fault_count, &trainer->taps);
    if (!status) status = keel_collectives_open(trainer->taps, &trainer->collectives);
    if (!status)
        status = keel_model_open(&(keel_model_plan){.config = &config->model,
                                                    .micro_batch = (size_t)config->runner.batch_size,
                                                    .stage = &trainer->stage,
                                                    .slots = keel_pipeline_slots(&trainer->stage, accumulation),
                                                    .recompute = &config->recompute,
                                                    .mesh = &trainer->mesh,
                                                    .taps = trainer->taps,
                                                    .collectives = trainer->collectives},
                                 &trainer->model);
    if (!status)
        status = keel_zero_open(trainer->model, &trainer->mesh, (size_t)config->parallel.bucket_bytes,
                                config->parallel.enable_parallel_optimizer, &trainer->zero);
    if (!status)
        status = keel_buckets_open(&(keel_buckets_plan){.model = trainer->model,
                                                        .accumulation = accumulation,
                                                        .zero = &trainer->zero,
                                                        .precision = (keel_precision)config->parallel.grad_reduce_dtype,
                                                        .mesh = &trainer->mesh,
                                                        .taps = trainer->taps,
                                                        .collectives = trainer->collectives},
                                   &trainer->buckets);
    if (!status)
        status = keel_pipeline_open(&(keel_pipeline_plan){.model = trainer->model,
                                                          .stage = trainer->stage,
                                                          .layers = (size_t)config->model.num_layers,
                                                          .buckets = trainer->buckets,
                                                          .micro_batches = accumulation,
                                                          .mesh = &trainer->mesh,
                                                          .taps = trainer->taps,
                                                          .collectives = trainer->collectives},
                                    &trainer->pipeline);
    if (!status)
        status = keel_optimizer_open(&(keel_optimizer_plan){.config = &config->optimizer,
                                                            .model = trainer->model,
                                                            .taps = trainer->taps,
                                                            .zero = &trainer->zero,
                                                            .collectives = trainer->collectives},
                                     &trainer->optimizer);
    if (!status) status = open_control(trainer);
    if (!status)
        status = keel_reshard_open(&(keel_reshard_plan){.config = &config->model,
                                                        .model = trainer->model,
                                                        .optimizer = trainer->optimizer,
                                                        .zero = &trainer->zero,
                                                        .collectives = trainer->collectives},
                                   &trainer->reshard);
    size_t params = 0;
    if (!status) (void)keel_model_params(trainer->model, &params);
    for (size_t i = 0; i < params; i++)
        keel_buckets_pair(trainer->buckets, i, keel_optimizer_grad_tap(trainer->optimizer, i));
    if (!status) status = open_memory(trainer);
    if (!status) status = add_scalars(trainer);
    if (!status)
        status = keel_routing_report_open(&config->model, trainer->probe, &trainer->mesh, trainer->collectives,
                                          &trainer->routing);
    trainer->faults = (keel_faults){.config = config,
                                    .model = trainer->model,
                                    .mesh = &trainer->mesh,
                                    .rank = (uint32_t)world->rank,
                                    .ranks = (uint32_t)world->size,
                                    .shard = (uint32_t)trainer->mesh.data_parallel.rank};
    status = keel_agree(world, status);
    return status ? status : keel_trainer_check_names(trainer);
}

// ---- the first state ----

// What rank 0 finds before all ranks take their part of it.
typedef struct found {
    keel_checkpoint checkpoint;
    keel_pretrained *weights; // NULL: none are configured
} found;

static keel_status find_weights(keel_trainer *trainer, found *out) {
    const char *path = trainer->config->model.checkpoint_name_or_path;
    if (!path) return KEEL_OK;
    size_t ignored;
    const keel_status status = keel_pretrained_open(path, trainer->reshard, &out->weights, &ignored);
    if (status) return keel_fail(status, "model_config.checkpoint_name_or_path: %s", keel_error());
    keel_trainer_note(trainer, "weights from %s", path);
    if (ignored) keel_trainer_note(trainer, "%s: %zu tensors that the model lacks were left out", path, ignored);
    return KEEL_OK;
}

static keel_status find_state(keel_trainer *trainer, bool resume, found *out) {
    keel_status status = resume && !trainer->look ? keel_trainer_lock_output(trainer) : KEEL_OK;
    if (!status) status = keel_checkpoint_folder_open(trainer->config->runner.output_dir, &trainer->folder);
    if (status) return keel_fail(status, "runner_config.output_dir: %s", keel_error());
    if (!resume) return find_weights(trainer, out);
    if (trainer->replay_step)
        return keel_recover_before(&trainer->folder, trainer->replay_step, &trainer->facts, note_plain, trainer,
                                   &out->checkpoint);
    return keel_recover(&trainer->folder, &trainer->facts, trainer->look, note_plain, trainer, &out->checkpoint);
}

// All start with the same bits, whatever machine they run on.
static keel_status first_weights(keel_trainer *trainer, const keel_pretrained *weights) {
    const keel_train_config *config = trainer->config;
    keel_status status = KEEL_OK;
    if (config->model.checkpoint_name_or_path) {
        status = keel_pretrained_load(weights, trainer->reshard);
    } else {
        keel_model_init(trainer->model, (uint64_t)config->runner.seed);
        status = keel_reshard_level(trainer->reshard, 0);
    }
    if (!status) keel_faults_initial_weights(&trainer->faults);
    return status;
}

static keel_status share_progress(keel_trainer *trainer) {
    keel_collective *collective;
    double numbers[PROGRESS_FIELDS]; // their bytes
    memcpy(numbers, &trainer->progress, sizeof numbers);
    keel_status status = keel_collectives_add(trainer->collectives,
                                              &(keel_collective_plan){.name = "broadcast.progress",
                                                                      .kind = KEEL_BROADCAST,
                                                                      .when = KEEL_AT_START,
                                                                      .dtype = KEEL_F64,
                                                                      .count = PROGRESS_FIELDS,
                                                                      .comm = &trainer->mesh.world},
                                              &collective);
    status = keel_agree(&trainer->mesh.world, status);
    if (!status) status = keel_broadcast(collective, numbers);
    memcpy(&trainer->progress, numbers, sizeof numbers);
    trainer->resumed_step = trainer->saved_step = trainer->progress.step;
    trainer->loader.position = trainer->progress.samples;
    return status;
}

static keel_status resume_state(keel_trainer *trainer, keel_checkpoint *checkpoint) {
    trainer->progress = checkpoint->progress;
    trainer->monitor = checkpoint->monitor;
    trainer->monitor_bytes = checkpoint->monitor_bytes;
    const keel_status status = keel_agree(&trainer->mesh.world, keel_checkpoint_load(checkpoint));
    return status ? status : share_progress(trainer);
}

static keel_status first_state(keel_trainer *trainer, bool resume) {
    const keel_comm *world = &trainer->mesh.world;
    found it = {.checkpoint.reshard = trainer->reshard};
    keel_status status = keel_agree(world, world->rank == 0 ? find_state(trainer, resume, &it) : KEEL_OK);
    if (!status)
        status = keel_agree(world, resume ? resume_state(trainer, &it.checkpoint) : first_weights(trainer, it.weights));
    keel_checkpoint_close(&it.checkpoint);
    keel_pretrained_close(it.weights);
    return status;
}

// ---- open, close ----

// What is set and has no effect.
static void note_idle_settings(const keel_trainer *trainer) {
    const long long accumulation = trainer->config->runner.gradient_accumulation_steps;
    const keel_parallel_config *parallel = &trainer->config->parallel;
    const long long micro = parallel->micro_batch_num;
    if (parallel->pipeline_stage > 1 && accumulation > 1)
        keel_trainer_note(trainer,
                          "runner_config.gradient_accumulation_steps %lld has no effect of its own with pipeline_stage "
                          "%lld: a step is parallel_config.micro_batch_num %lld micro-batches",
                          accumulation, (long long)parallel->pipeline_stage, micro);
    if (parallel->enable_parallel_optimizer && trainer->mesh.dp == 1)
        keel_trainer_note(trainer, "parallel_config.enable_parallel_optimizer has no effect with one data-parallel "
                                   "rank: there is nobody to share the optimizer with");
    if (parallel->pipeline_stage == 1 && micro > 1)
        keel_trainer_note(trainer,
                          "parallel_config.micro_batch_num %lld has no effect with one pipeline stage: a step is "
                          "runner_config.gradient_accumulation_steps %lld micro-batches",
                          micro, accumulation);
    const keel_moe_config *moe = &trainer->config->model.moe;
    if (moe->expert_num > 1 && moe->num_experts_chosen == 1 && moe->norm_topk_prob)
        keel_trainer_note(trainer, "moe_config.norm_topk_prob with one expert chosen makes each weight 1: the router "
                                   "learns from its balance and z losses alone");
    if (moe->expert_num == 1 && (moe->capacity_factor > 0 || moe->enable_gmm_safe_tokens))
        keel_trainer_note(trainer, "moe_config has no effect with expert_num 1");
    const keel_lr_config *lr = &trainer->config->lr;
    if (lr->type == KEEL_LR_CONSTANT && lr->lr_end > 0)
        keel_trainer_note(trainer, "lr_schedule.lr_end %g has no effect on a constant learning rate", lr->lr_end);
}

static keel_status open_trainer(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                keel_probe *probe, bool resume, bool look, uint64_t replay_step,
                                const keel_trainer_report *report, keel_trainer **trainer) {
    keel_trainer *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the trainer");
    made->config = config;
    made->probe = probe;
    made->new_run = !resume;
    made->look = look;
    made->replay_step = replay_step;
    made->control_op = MPI_OP_NULL;
    made->cpu_wait = keel_cpu_wait_open();
    made->output_lock = made->shards_hold = -1;
    keel_status status = keel_mesh_open(&config->parallel, comm, &made->mesh);
    if (status) goto fail;
    const keel_comm *world = &made->mesh.world;
    if (world->rank == 0 && report) made->report = *report;
    note_idle_settings(made);
    status = open_data(made, sequences);
    if (!status) status = open_model(made);
    if (!status) status = first_state(made, resume);
    if (status) goto fail;
    keel_loss_scale_begin(&config->wrapper.scale_sense, &made->progress.loss_scale);
    *trainer = made;
    return KEEL_OK;
fail:
    keel_trainer_close(made);
    return status;
}

keel_status keel_trainer_open_with(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                   keel_probe *probe, bool resume, const keel_trainer_report *report,
                                   keel_trainer **trainer) {
    return open_trainer(config, sequences, comm, probe, resume, false, 0, report, trainer);
}

keel_status keel_trainer_open_before(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                     keel_probe *probe, uint64_t replay_step, const keel_trainer_report *report,
                                     keel_trainer **trainer) {
    return open_trainer(config, sequences, comm, probe, true, true, replay_step, report, trainer);
}

keel_status keel_trainer_open_structure(const keel_train_config *config, MPI_Comm comm, keel_probe *probe, bool resume,
                                        const keel_trainer_report *report, keel_trainer **trainer) {
    return open_trainer(config, NULL, comm, probe, resume, true, 0, report, trainer);
}

keel_status keel_trainer_open(const keel_train_config *config, MPI_Comm comm, keel_probe *probe, bool resume,
                              const keel_trainer_report *report, keel_trainer **trainer) {
    return keel_trainer_open_with(config, NULL, comm, probe, resume, report, trainer);
}

void keel_trainer_close(keel_trainer *trainer) {
    if (!trainer) return;
    free(trainer->monitor);
    keel_checkpoint_folder_close(&trainer->folder);
    keel_cpu_wait_close(trainer->cpu_wait);
    if (trainer->output_lock >= 0) close(trainer->output_lock);
    if (trainer->shards_hold >= 0) close(trainer->shards_hold);
    keel_faults_close(&trainer->faults);
    keel_sequences_close(&trainer->own_sequences);
    keel_reshard_close(trainer->reshard);
    keel_optimizer_close(trainer->optimizer);
    keel_routing_report_close(&trainer->routing);
    keel_pipeline_close(trainer->pipeline);
    keel_buckets_close(trainer->buckets);
    keel_zero_close(&trainer->zero);
    keel_collectives_close(trainer->collectives);
    if (trainer->control_op != MPI_OP_NULL) MPI_Op_free(&trainer->control_op);
    keel_model_close(trainer->model);
    keel_taps_close(trainer->taps);
    keel_mesh_close(&trainer->mesh);
    free(trainer);
}

void keel_trainer_stop(keel_trainer *trainer) {
    atomic_store(&trainer->stop, true);
}
