// Whole trainings of a small model, for programs of several ranks: a configuration, sequences from memory, and what the
// trainer reported.
#ifndef KEEL_TESTS_TRAINER_RIG_H
#define KEEL_TESTS_TRAINER_RIG_H

#include <stdlib.h>
#include <unistd.h>

#include "tests/mpi/mpi_check.h"
#include "tests/unit/temp_folder.h"
#include "train/trainer_state.h"

enum { RIG_STEPS = 100, RIG_LAYERS = 8, RIG_SEQ = 16, RIG_VOCAB = 32 };

// ---- sequences ----

typedef struct rig_data {
    const uint32_t *tokens; // [count, width]
    size_t width;
} rig_data;

static inline keel_status rig_read(void *context, uint64_t index, uint32_t *tokens) {
    const rig_data *data = context;
    memcpy(tokens, data->tokens + index * data->width, data->width * sizeof *tokens);
    return KEEL_OK;
}

// A language with something to learn: each token follows from the one before it, but for some noise.
static inline keel_status rig_read_language(void *context, uint64_t index, uint32_t *tokens) {
    (void)context;
    uint64_t state = index * UINT64_C(0x9e3779b97f4a7c15) + 1;
    uint32_t token = (uint32_t)(index % RIG_VOCAB);
    for (size_t t = 0; t <= RIG_SEQ; t++) {
        tokens[t] = token;
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        token = state >> 61 ? (token * 5 + 3) % RIG_VOCAB : (uint32_t)(state >> 40) % RIG_VOCAB;
    }
    return KEEL_OK;
}

static inline keel_sequences rig_language(void) {
    return (keel_sequences){.count = 1000, .identity = "language", .read = rig_read_language};
}

// ---- configuration ----

// A folder of all ranks, made by rank 0.
static inline char *rig_folder(void) {
    static char folder[64];
    strcpy(folder, "/tmp/keel-test-XXXXXX");
    if (check_rank == 0) CHECK(mkdtemp(folder) != NULL);
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    return folder;
}

static inline void rig_remove_folder(const char *folder) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == 0) CHECK(temp_remove(folder) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

// A global batch of four sequences, in ACCUMULATION micro-batches on each rank.
static inline keel_train_config rig_config(char *output_dir, int64_t accumulation) {
    return (keel_train_config){
        .runner = {.steps = 30,
                   .batch_size = 4 / check_size / accumulation,
                   .gradient_accumulation_steps = accumulation,
                   .seed = 5,
                   .output_dir = output_dir,
                   .log_interval = 1,
                   .stop_after_skipped = 3},
        .wrapper = {.use_clip_grad = true, .max_grad_norm = 1},
        .model = {.model_type = KEEL_MODEL_LLAMA,
                  .vocab_size = RIG_VOCAB,
                  .seq_length = RIG_SEQ,
                  .hidden_size = 32,
                  .num_layers = 2,
                  .num_heads = 4,
                  .n_kv_heads = 2,
                  .intermediate_size = 48,
                  .rms_norm_eps = 1e-6,
                  .theta = 10000,
                  .initializer_range = 0.02},
        .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .lr = {.type = KEEL_LR_COSINE, .learning_rate = 1e-2, .lr_end = 1e-3, .warmup_steps = 5, .total_steps = 30},
        .parallel = {.model_parallel = 1,
                     .pipeline_stage = 1,
                     .micro_batch_num = 1,
                     .expert_parallel = 1,
                     .bucket_bytes = 4096},
        .dataset = {.shuffle = true},
        .checkpoint = {.keep = 3, .keep_healthy = 3}};
}

// ---- what was reported ----

typedef struct rig_record { // on rank 0
    uint64_t count;         // of steps
    keel_step steps[RIG_STEPS];
    double losses[RIG_STEPS], norms[RIG_STEPS], rates[RIG_STEPS], scales[RIG_STEPS]; // of attempt i + 1
    size_t layers[RIG_STEPS];                                                        // with experts
    double aux_losses[RIG_STEPS];                                                    // both of their losses
    double drop_rates[RIG_STEPS][RIG_LAYERS];
    char notes[8192];
} rig_record;

static inline void rig_step(void *context, const keel_step *step, double loss, double grad_norm, double lr,
                            double tokens_per_second, double loss_scale) {
    rig_record *record = context;
    CHECK(step->step >= 1 && step->step <= RIG_STEPS && tokens_per_second > 0);
    const uint64_t i = step->step - 1;
    record->steps[i] = *step;
    record->losses[i] = loss;
    record->norms[i] = grad_norm;
    record->rates[i] = lr;
    record->scales[i] = loss_scale;
    record->count++;
}

// Comes before rig_step.
static inline void rig_routing(void *context, const keel_step *step, double aux_loss, double z_loss,
                               const double *rates, size_t stride, size_t layers) {
    rig_record *record = context;
    const uint64_t i = step->step - 1;
    CHECK(i < RIG_STEPS && layers <= RIG_LAYERS);
    record->layers[i] = layers;
    record->aux_losses[i] = aux_loss + z_loss;
    for (size_t l = 0; l < layers; l++) record->drop_rates[i][l] = rates[l * stride];
}

static inline void rig_note(void *context, const char *text) {
    rig_record *record = context;
    const size_t used = strlen(record->notes);
    snprintf(record->notes + used, sizeof record->notes - used, "%s\n", text);
}

typedef struct rig {
    keel_probe *probe;
    keel_trainer *trainer;
} rig;

// On the ranks of COMM. BACKEND: a monitor, or NULL.
static inline keel_status rig_open_on(MPI_Comm comm, const keel_train_config *config, const keel_sequences *sequences,
                                      bool resume, rig_record *record, const keel_backend *backend, rig *r) {
    *r = (rig){0};
    CHECK(keel_probe_open((uint32_t)check_rank, &r->probe) == KEEL_OK);
    if (backend) keel_probe_set_backend(r->probe, backend);
    const keel_trainer_report report = {.context = record, .step = rig_step, .routing = rig_routing, .note = rig_note};
    const keel_status status = keel_trainer_open_with(config, sequences, comm, r->probe, resume, &report, &r->trainer);
    if (!status) CHECK(keel_probe_start(r->probe) == KEEL_OK);
    return status;
}

static inline keel_status rig_open_with(const keel_train_config *config, const keel_sequences *sequences, bool resume,
                                        rig_record *record, const keel_backend *backend, rig *r) {
    return rig_open_on(MPI_COMM_WORLD, config, sequences, resume, record, backend, r);
}

static inline keel_status rig_open(const keel_train_config *config, const keel_sequences *sequences, bool resume,
                                   rig_record *record, rig *r) {
    return rig_open_with(config, sequences, resume, record, NULL, r);
}

static inline void rig_close(rig *r) {
    keel_trainer_close(r->trainer);
    keel_probe_close(r->probe);
    *r = (rig){0};
}

// Opens, trains, closes.
static inline keel_status rig_train(const keel_train_config *config, const keel_sequences *sequences, bool resume,
                                    rig_record *record) {
    rig r;
    keel_status status = rig_open(config, sequences, resume, record, &r);
    if (!status) status = keel_trainer_run(r.trainer);
    rig_close(&r);
    return status;
}

// What all ranks that hold the same weights own together, laid out as the weights, malloc'ed: BUFFER is laid out so
// too, or (STATE) as the optimizer's states.
static inline float *rig_whole(const keel_trainer *trainer, const float *buffer, bool state) {
    const size_t numel = keel_model_numel(trainer->model);
    float *whole = calloc(numel, sizeof *whole);
    CHECK(whole != NULL);
    for (size_t s = 0; s < trainer->zero.span_count; s++) {
        const keel_zero_span *span = &trainer->zero.spans[s];
        memcpy(whole + span->offset, buffer + (state ? span->at : span->offset), span->count * sizeof *whole);
    }
    for (size_t b = 0; b < trainer->zero.count; b++) {
        const keel_zero_bucket *bucket = &trainer->zero.buckets[b];
        if (bucket->comm->size == 1) continue;
        MPI_Allreduce(MPI_IN_PLACE, whole + bucket->begin, (int)bucket->count, MPI_UINT32_T, MPI_BOR,
                      bucket->comm->mpi);
    }
    return whole;
}

// The losses of two records agree to the bit from step FIRST to step LAST.
static inline void rig_check_same(const rig_record *a, const rig_record *b, uint64_t first, uint64_t last) {
    if (check_rank != 0) return;
    const size_t bytes = (last - first + 1) * sizeof(double);
    CHECK(memcmp(&a->losses[first - 1], &b->losses[first - 1], bytes) == 0);
    CHECK(memcmp(&a->norms[first - 1], &b->norms[first - 1], bytes) == 0);
}

#endif
