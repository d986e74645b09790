// Trainings through pipeline stages: golden trajectories, one rank that computes the same on its own, what a rank that
// fails leaves to the others, and layers that are computed again.
#include "tests/mpi/golden_rig.h"
#include "train/step_replay.h"

enum { STEPS = 20 };

static keel_sequences language;

static void test_golden(const char *name) {
    for (int64_t stages = 2; stages <= 2 && stages <= check_size; stages++)
        for (int64_t micro = 1; micro <= 4 * stages / check_size; micro *= 2) {
            const keel_parallel_config parallel = {.model_parallel = 1,
                                                   .pipeline_stage = stages,
                                                   .micro_batch_num = micro,
                                                   .expert_parallel = 1,
                                                   .bucket_bytes = 1000};
            golden_rig_run(name, &parallel, 1, NULL);
        }
}

// Four sequences a step over all ranks, in MICRO micro-batches through STAGES. A group of parameters is clipped by
// itself that only the first stage has any of.
static keel_train_config pipeline_config(char *folder, int64_t stages, int64_t micro, int64_t layers, bool gpt2) {
    static char pattern[] = "^layers\\.0\\.";
    static keel_param_group_config group = {
        .params = pattern, .lr_scale = 0.5, .weight_decay = NAN, .max_grad_norm = 0.05};
    keel_train_config config = rig_config(folder, 1);
    config.optimizer.groups = &group;
    config.optimizer.group_count = 1;
    config.runner.steps = STEPS;
    config.runner.batch_size = 4 * stages / check_size / micro;
    config.model.num_layers = layers;
    config.parallel.pipeline_stage = stages;
    config.parallel.micro_batch_num = micro;
    config.parallel.bucket_bytes = 1000;
    if (!gpt2) return config;
    config.model.model_type = KEEL_MODEL_GPT2;
    config.model.max_position_embeddings = RIG_SEQ;
    config.model.n_kv_heads = config.model.num_heads;
    config.model.layer_norm_epsilon = 1e-5;
    config.model.tie_word_embeddings = true;
    return config;
}

// By rank 0 alone, while the others wait.
static void train_alone(int64_t layers, bool gpt2, rig_record *record) {
    char *folder = rig_folder();
    memset(record, 0, sizeof *record);
    if (check_rank == 0) {
        keel_train_config config = pipeline_config(folder, 1, 1, layers, gpt2);
        config.runner.batch_size = 4;
        keel_probe *probe;
        keel_trainer *trainer;
        const keel_trainer_report report = {.context = record, .step = rig_step, .note = rig_note};
        CHECK(keel_probe_open(0, &probe) == KEEL_OK);
        CHECK(keel_trainer_open_with(&config, &language, MPI_COMM_SELF, probe, false, &report, &trainer) == KEEL_OK);
        CHECK(keel_probe_start(probe) == KEEL_OK && keel_trainer_run(trainer) == KEEL_OK);
        keel_trainer_close(trainer);
        keel_probe_close(probe);
    }
    rig_remove_folder(folder);
}

static void train(const keel_train_config *config, rig_record *record) {
    memset(record, 0, sizeof *record);
    CHECK(rig_train(config, &language, false, record) == KEEL_OK);
    CHECK(check_rank != 0 || record->count == STEPS);
}

static void check_near(const rig_record *a, const rig_record *b, const char *text) {
    for (size_t i = 0; check_rank == 0 && i < STEPS; i++) {
        const bool near = golden_near(a->losses[i], b->losses[i], 2e-5) && golden_near(a->norms[i], b->norms[i], 1e-4);
        if (!near)
            fprintf(stderr, "step %zu: loss %.9g and %.9g, norm %.9g and %.9g\n", i + 1, a->losses[i], b->losses[i],
                    a->norms[i], b->norms[i]);
        CHECK(near);
    }
    check_say(text);
}

// LAYERS do not divide: each count of stages has some with one more.
static void test_uneven(int64_t layers, bool gpt2) {
    static rig_record alone, record;
    train_alone(layers, gpt2, &alone);
    for (int64_t stages = 2; stages <= check_size && stages <= layers; stages *= 2)
        for (int64_t micro = 1; micro <= 4 * stages / check_size; micro *= 2) {
            char *folder = rig_folder(), text[128];
            const keel_train_config config = pipeline_config(folder, stages, micro, layers, gpt2);
            train(&config, &record);
            snprintf(text, sizeof text, "%s, %lld layers in %lld stages, %lld micro-batches", gpt2 ? "gpt2" : "llama",
                     (long long)layers, (long long)stages, (long long)micro);
            check_near(&record, &alone, text);
            rig_remove_folder(folder);
        }
}

// ---- layers given, and computed again ----

static void test_given_layers(void) {
    static rig_record alone, record;
    int64_t layers[] = {1, 2, 1, 1};
    const int64_t count = check_size == 2 ? 3 : 5;
    char *folder = rig_folder();
    keel_train_config config = pipeline_config(folder, check_size, 2, count, true);
    config.parallel.pipeline_layers = layers;
    config.runner.gradient_accumulation_steps = 8;
    train_alone(count, true, &alone);
    train(&config, &record);
    CHECK(check_rank != 0 || strstr(record.notes, "gradient_accumulation_steps 8 has no effect"));
    CHECK(check_rank != 0 || strstr(record.notes, "micro_batch_num 2"));
    CHECK(check_rank != 0 || strstr(record.notes, "peak memory of a rank"));
    check_near(&record, &alone, "layers as they are given");
    rig_remove_folder(folder);
}

static void test_recompute(bool gpt2) {
    static rig_record kept, again;
    bool all[] = {true, true, true, true, true}, some[] = {true, false, false, true, false};
    char *folder = rig_folder();
    keel_train_config config = pipeline_config(folder, check_size, 4, 5, gpt2);
    train(&config, &kept);
    const keel_recompute_config ways[] = {{.full = all}, {.select = all}, {.full = some, .select = all}};
    for (size_t i = 0; i < 3; i++) {
        config.recompute = ways[i];
        train(&config, &again);
        rig_check_same(&kept, &again, 1, STEPS);
    }
    rig_remove_folder(folder);
    check_say("computed again, the same bits");
}

// ---- a rank that fails ----

static uint64_t lost; // sequence, on the rank of one stage; a step takes four
static bool fails_here;

static keel_status read_or_fail(void *context, uint64_t index, uint32_t *tokens) {
    if (fails_here && index == lost)
        return keel_fail(KEEL_ERR_IO, "sequence %d of stage %d is lost", (int)lost, check_rank);
    return rig_read_language(context, index, tokens);
}

static const keel_sequences lossy = {.count = 1000, .identity = "lossy", .read = read_or_fail};

static void check_lost(int stage) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "sequence %d of stage %d is lost", (int)lost, stage);
    CHECK(strcmp(keel_error(), wanted) == 0);
    check_say(wanted);
}

static void test_failure(int stage) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = pipeline_config(folder, check_size, 4, 5, true);
    config.dataset.shuffle = false;
    lost = 6;
    fails_here = check_rank == stage;
    memset(&record, 0, sizeof record);
    CHECK(rig_train(&config, &lossy, false, &record) == KEEL_ERR_IO);
    check_lost(stage);
    CHECK(check_rank != 0 || record.count == 1);
    rig_remove_folder(folder);
}

static bool is_enough(const keel_replay_reading *reading) {
    (void)reading;
    return false;
}

// A step that is taken again: what is lost is of its own batch, of one beside it, of the steps that lead there.
static void test_failing_replay(int stage) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = pipeline_config(folder, check_size, 4, 5, true);
    config.dataset.shuffle = false;
    config.runner.steps = 12;
    config.checkpoint.save_interval = 8;
    fails_here = false;
    CHECK(rig_train(&config, &lossy, false, &record) == KEEL_OK);
    const uint64_t places[] = {42, 6, 34};
    lost = places[stage % 3];
    fails_here = check_rank == stage;
    keel_probe *probe;
    keel_trainer *trainer;
    keel_replay replay;
    CHECK(keel_probe_open((uint32_t)check_rank, &probe) == KEEL_OK);
    CHECK(keel_replay_open(&config, &lossy, MPI_COMM_WORLD, probe, 11, NULL, &trainer) == KEEL_OK);
    CHECK(keel_probe_start(probe) == KEEL_OK);
    CHECK(keel_replay_run(trainer, is_enough, &replay) == KEEL_ERR_IO);
    check_lost(stage);
    keel_trainer_close(trainer);
    keel_probe_close(probe);
    rig_remove_folder(folder);
}

// Of the loss, by way of the last stage; of a gradient, on another: every stage skips the update.
static void test_nan(char *site, char *quantity) {
    static rig_record record;
    keel_fault_config fault = {
        .kind = KEEL_FAULT_NAN, .step = 8, .steps = 1, .rank = -1, .site = site, .quantity = quantity};
    char *folder = rig_folder();
    keel_train_config config = pipeline_config(folder, check_size, 2, 5, true);
    config.faults = &fault;
    config.fault_count = 1;
    memset(&record, 0, sizeof record);
    rig r;
    CHECK(rig_open(&config, &language, false, &record, &r) == KEEL_OK);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    CHECK(r.trainer->progress.step == STEPS + 1 && r.trainer->progress.update == STEPS);
    for (size_t i = 0; i < keel_model_numel(r.trainer->model); i++)
        CHECK(isfinite(keel_model_weights(r.trainer->model)[i]));
    rig_close(&r);
    CHECK(check_rank != 0 || record.steps[7].flags & KEEL_STEP_SKIPPED);
    rig_remove_folder(folder);
    check_say(quantity);
}

// Rank 0 prints what every stage has.
static void test_structure(void) {
    static rig_record record;
    char *folder = rig_folder(), *text = NULL, wanted[64];
    size_t size;
    const keel_train_config config = pipeline_config(folder, check_size, 2, 5, true);
    FILE *out = check_rank == 0 ? open_memstream(&text, &size) : NULL;
    rig r;
    CHECK(rig_open(&config, &language, false, &record, &r) == KEEL_OK);
    CHECK(keel_trainer_print_structure(r.trainer, out) == KEEL_OK);
    rig_close(&r);
    if (check_rank == 0) {
        fclose(out);
        for (int stage = 0; stage < check_size; stage++) {
            snprintf(wanted, sizeof wanted, "stage %d of %d, from 0: layers ", stage, check_size);
            CHECK(strstr(text, wanted));
        }
        const int border = (int)keel_stage_of(&config, 0).layers - 1;
        snprintf(wanted, sizeof wanted, "send.layers.%d ", border);
        CHECK(strstr(text, wanted));
        snprintf(wanted, sizeof wanted, "receive.layers.%d ", border);
        CHECK(strstr(text, wanted));
        CHECK(strstr(text, "all_reduce.embedding.weight") && strstr(text, "layers.4"));
    }
    free(text);
    rig_remove_folder(folder);
    check_say("the structure of all stages");
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    test_golden("gpt2-tiny");
    test_golden("llama-tiny");
    test_uneven(check_size == 2 ? 3 : 5, true);
    test_uneven(check_size == 2 ? 3 : 5, false);
    test_given_layers();
    test_recompute(true);
    test_recompute(false);
    for (int stage = 0; stage < check_size; stage++) test_failure(stage);
    for (int stage = 0; stage < check_size; stage++) test_failing_replay(stage);
    test_structure();
    test_nan("layers.0.mlp.down", "activation");
    test_nan("layers.4.attention.qkv.weight", "grad_unreduced");
    MPI_Finalize();
    return 0;
}
