#include "train/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/cpu_wait.h"
#include "train/data/shards.h"
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

static keel_status prepare_shards(const keel_trainer *trainer) {
    const keel_dataset_config *dataset = &trainer->config->dataset;
    keel_shards_plan plan = {.text = dataset->text,
                             .text_count = dataset->text_count,
                             .folder = dataset->shards,
                             .shard_tokens = (uint64_t)dataset->shard_tokens};
    const keel_status status = keel_tokenizer_find("byte", &plan.tokenizer);
    if (status) return status;
    return keel_shards_prepare(&plan, &(keel_shards_listener){.context = trainer->report.context,
                                                              .progress = trainer->report.progress,
                                                              .note = trainer->report.note});
}

static keel_status open_data(keel_trainer *trainer, const keel_sequences *given) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    keel_status status = KEEL_OK;
    const size_t seq_length = (size_t)config->model.seq_length;
    if (!given) {
        status = keel_agree(world, world->rank == 0 ? prepare_shards(trainer) : KEEL_OK);
        if (status) return status;
        status = keel_sequences_open_shards(config->dataset.shards, seq_length, (uint64_t)config->model.vocab_size,
                                            &trainer->own_sequences);
        given = &trainer->own_sequences;
    }
    if (!status)
        status =
            keel_loader_init(&(keel_loader_plan){.sequences = given,
                                                 .seq_length = seq_length,
                                                 .batch_size = (size_t)config->runner.batch_size,
                                                 .accumulation = (size_t)config->runner.gradient_accumulation_steps,
                                                 .dp_rank = (uint32_t)trainer->mesh.data_parallel.rank,
                                                 .dp_size = trainer->mesh.dp,
                                                 .seed = (uint64_t)config->runner.seed,
                                                 .shuffle = config->dataset.shuffle},
                             &trainer->loader);
    if (!status) {
        trainer->tokens = calloc((size_t)config->runner.batch_size * (seq_length + 1), sizeof *trainer->tokens);
        if (!trainer->tokens) status = keel_fail(KEEL_ERR_MEMORY, "no memory for a batch");
    }
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
        [KEEL_SCALAR_LOSS_SCALE] = {"loss_scale", KEEL_SCALAR_FIRST}};
    const bool scaled = trainer->config->wrapper.scale_sense.type != KEEL_LOSS_SCALE_NONE;
    const size_t count = scaled ? KEEL_SCALAR_TRAINER_COUNT : KEEL_SCALAR_LOSS_SCALE;
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < count; i++)
        status = keel_scalar_add(trainer->probe, scalars[i].name, scalars[i].merge, &trainer->scalars[i]);
    return status;
}

static keel_status open_model(keel_trainer *trainer) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    const size_t accumulation = (size_t)config->runner.gradient_accumulation_steps;
    keel_probe_set_micro_count(trainer->probe, (uint32_t)accumulation);
    keel_status status =
        keel_taps_open(trainer->probe, (uint32_t)world->rank, config->faults, config->fault_count, &trainer->taps);
    if (!status) status = keel_collectives_open(trainer->taps, &trainer->collectives);
    if (!status)
        status = keel_model_open(&(keel_model_plan){.config = &config->model,
                                                    .micro_batch = (size_t)config->runner.batch_size,
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
        status = keel_optimizer_open(&(keel_optimizer_plan){.config = &config->optimizer,
                                                            .model = trainer->model,
                                                            .taps = trainer->taps,
                                                            .zero = &trainer->zero,
                                                            .collectives = trainer->collectives},
                                     &trainer->optimizer);
    if (!status) status = open_control(trainer);
    size_t params = 0;
    if (!status) (void)keel_model_params(trainer->model, &params);
    for (size_t i = 0; i < params; i++)
        keel_buckets_pair(trainer->buckets, i, keel_optimizer_grad_tap(trainer->optimizer, i));
    if (!status) status = add_scalars(trainer);
    if (!status)
        status = keel_routing_report_open(&config->model, trainer->probe, &trainer->mesh, trainer->collectives,
                                          &trainer->routing);
    trainer->faults = (keel_faults){
        .config = config, .model = trainer->model, .rank = (uint32_t)world->rank, .ranks = (uint32_t)world->size};
    if (!status) status = keel_faults_check(&trainer->faults);
    if (!status) status = keel_taps_check(trainer->taps);
    return keel_agree(world, status);
}

// ---- the first state ----

static keel_status first_weights(keel_trainer *trainer) {
    const char *path = trainer->config->model.checkpoint_name_or_path;
    if (!path) {
        keel_model_init(trainer->model, (uint64_t)trainer->config->runner.seed);
        return KEEL_OK;
    }
    size_t ignored;
    const keel_status status = keel_pretrained_load(path, trainer->model, &ignored);
    if (status) return status;
    keel_trainer_note(trainer, "weights from %s", path);
    if (ignored) keel_trainer_note(trainer, "%s: %zu tensors that the model lacks were left out", path, ignored);
    return KEEL_OK;
}

static keel_status first_state(keel_trainer *trainer, bool resume) {
    keel_status status = keel_checkpoint_folder_open(trainer->config->runner.output_dir, &trainer->folder);
    if (status) return status;
    if (!resume) {
        status = first_weights(trainer);
        if (!status) keel_faults_initial_weights(&trainer->faults);
        return status;
    }
    keel_checkpoint checkpoint = {.model = trainer->model, .optimizer = trainer->optimizer};
    if (trainer->replay_step)
        status = keel_recover_before(&trainer->folder, trainer->replay_step, &trainer->facts, note_plain, trainer,
                                     &checkpoint);
    else
        status = keel_recover(&trainer->folder, &trainer->facts, note_plain, trainer, &checkpoint);
    if (status) return status;
    trainer->progress = checkpoint.progress;
    trainer->monitor = checkpoint.monitor;
    trainer->monitor_bytes = checkpoint.monitor_bytes;
    return KEEL_OK;
}

static keel_status broadcast(keel_trainer *trainer, const char *what, keel_dtype dtype, void *data, size_t count) {
    char name[64];
    snprintf(name, sizeof name, "broadcast.%s", what);
    keel_collective *collective;
    const keel_status status = keel_collectives_add(trainer->collectives,
                                                    &(keel_collective_plan){.name = name,
                                                                            .kind = KEEL_BROADCAST,
                                                                            .when = KEEL_AT_START,
                                                                            .dtype = dtype,
                                                                            .count = count,
                                                                            .comm = &trainer->mesh.data_parallel},
                                                    &collective);
    return status ? status : keel_broadcast(collective, data);
}

// Rank 0 has the state; the others take it over, so that all start with the same bits whatever machine they run on.
static keel_status share_state(keel_trainer *trainer, bool resume) {
    const size_t numel = keel_model_numel(trainer->model);
    keel_status status = broadcast(trainer, "weights", KEEL_F32, keel_model_weights(trainer->model), numel);
    if (status || !resume) return status;
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(trainer->optimizer, &count);
    for (size_t i = 0; !status && i < count; i++)
        status = broadcast(trainer, states[i].name, KEEL_F32, states[i].data, numel);
    double numbers[PROGRESS_FIELDS]; // their bytes
    memcpy(numbers, &trainer->progress, sizeof numbers);
    if (!status) status = broadcast(trainer, "progress", KEEL_F64, numbers, PROGRESS_FIELDS);
    memcpy(&trainer->progress, numbers, sizeof numbers);
    trainer->resumed_step = trainer->saved_step = trainer->progress.step;
    trainer->loader.position = trainer->progress.samples;
    return status;
}

// ---- open, close ----

static keel_status open_trainer(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                keel_probe *probe, bool resume, uint64_t replay_step, const keel_trainer_report *report,
                                keel_trainer **trainer) {
    keel_trainer *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the trainer");
    made->config = config;
    made->probe = probe;
    made->new_run = !resume;
    made->replay_step = replay_step;
    made->control_op = MPI_OP_NULL;
    made->cpu_wait = keel_cpu_wait_open();
    made->output_lock = -1;
    keel_status status = keel_mesh_open(&config->parallel, comm, &made->mesh);
    if (status) goto fail;
    const keel_comm *world = &made->mesh.world;
    if (world->rank == 0 && report) made->report = *report;
    status = open_data(made, sequences);
    if (!status) status = open_model(made);
    if (!status) status = keel_agree(world, world->rank == 0 ? first_state(made, resume) : KEEL_OK);
    if (!status) status = keel_agree(world, share_state(made, resume));
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
    return open_trainer(config, sequences, comm, probe, resume, 0, report, trainer);
}

keel_status keel_trainer_open_before(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                     keel_probe *probe, uint64_t replay_step, const keel_trainer_report *report,
                                     keel_trainer **trainer) {
    return open_trainer(config, sequences, comm, probe, true, replay_step, report, trainer);
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
    keel_faults_close(&trainer->faults);
    free(trainer->tokens);
    keel_sequences_close(&trainer->own_sequences);
    keel_optimizer_close(trainer->optimizer);
    keel_routing_report_close(&trainer->routing);
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

uint64_t keel_trainer_resumed_step(const keel_trainer *trainer) {
    return trainer->resumed_step;
}
