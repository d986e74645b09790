// What goes wrong on one rank is treated alike on all.
#include <math.h>

#include "tests/mpi/trainer_rig.h"

static keel_sequences language;
static rig_record plain, faulty;

static bool weights_agree(const rig *r) {
    const size_t numel = keel_model_numel(r->trainer->model);
    float *first = malloc(numel * sizeof *first);
    CHECK(first != NULL);
    memcpy(first, keel_model_weights(r->trainer->model), numel * sizeof *first);
    MPI_Bcast(first, (int)numel, MPI_FLOAT, 0, MPI_COMM_WORLD);
    const bool same = memcmp(first, keel_model_weights(r->trainer->model), numel * sizeof *first) == 0;
    free(first);
    return same;
}

static keel_fault_config nan_fault(char *site, char *quantity, int64_t step, int64_t steps) {
    return (keel_fault_config){.kind = KEEL_FAULT_NAN,
                               .step = step,
                               .steps = steps,
                               .rank = check_size - 1,
                               .site = site,
                               .quantity = quantity,
                               .index = 3};
}

static void train_plain(void) {
    char *folder = rig_folder();
    const keel_train_config config = rig_config(folder, 1);
    CHECK(rig_train(&config, &language, false, &plain) == KEEL_OK);
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_OK);
    rig_check_same(&plain, &faulty, 1, 30);
    rig_remove_folder(folder);
}

// A NaN on the last rank: every rank skips that update and no other, and what follows is finite and the same
// everywhere.
static void test_nan_is_skipped(char *site, char *quantity, int64_t accumulation) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, accumulation);
    keel_fault_config fault = nan_fault(site, quantity, 12, 1);
    config.faults = &fault;
    config.fault_count = 1;
    memset(&faulty, 0, sizeof faulty);
    rig r;
    CHECK(rig_open(&config, &language, false, &faulty, &r) == KEEL_OK);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    CHECK(r.trainer->progress.step == 31 && r.trainer->progress.update == 30);
    CHECK(weights_agree(&r));
    for (size_t i = 0; i < keel_model_numel(r.trainer->model); i++)
        CHECK(isfinite(keel_model_weights(r.trainer->model)[i]));
    rig_close(&r);
    if (check_rank == 0) {
        for (size_t i = 0; i < 31; i++) {
            const uint32_t wanted = i == 11 ? KEEL_STEP_SKIPPED | KEEL_STEP_FAULT : 0;
            CHECK((faulty.steps[i].flags & (KEEL_STEP_SKIPPED | KEEL_STEP_FAULT)) == wanted);
            CHECK(faulty.steps[i].update == (i < 11 ? i + 1 : i));
            // What comes out of a reduction on one rank alone is not seen by the others, but they skip with it.
            if (strcmp(quantity, "collective_out") != 0) CHECK(isfinite(faulty.norms[i]) == (i != 11));
        }
        CHECK(faulty.losses[30] < plain.losses[0]);
    }
    if (accumulation == 1) rig_check_same(&plain, &faulty, 1, 11);
    rig_remove_folder(folder);
    check_say(quantity);
}

static void test_divergence_stops_all(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    keel_fault_config faults[] = {nan_fault("layers.1.mlp.down", "activation", 5, 1),
                                  nan_fault("layers.1.mlp.down", "activation", 7, 10)};
    config.faults = faults;
    config.fault_count = 2;
    config.checkpoint.save_interval = 8;
    memset(&faulty, 0, sizeof faulty);
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_ERR_DIVERGED);
    char wanted[128];
    snprintf(wanted, sizeof wanted,
             "stopped at step 9: the loss was not finite, first on rank %d, and the last 3 updates", check_size - 1);
    CHECK(strstr(keel_error(), wanted));
    if (check_rank == 0) CHECK(faulty.count == 9);
    rig_remove_folder(folder);
}

static void test_garbage_batch(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    keel_fault_config fault = {
        .kind = KEEL_FAULT_GARBAGE_BATCH, .step = 25, .steps = 1, .rank = check_size - 1, .share = 1};
    config.faults = &fault;
    config.fault_count = 1;
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_OK);
    rig_check_same(&plain, &faulty, 1, 24);
    if (check_rank == 0) {
        CHECK(faulty.steps[24].flags & KEEL_STEP_FAULT);
        CHECK(faulty.losses[24] > plain.losses[24] + 0.3 / check_size);
        CHECK(faulty.losses[25] != plain.losses[25] && isfinite(faulty.losses[29]));
    }
    rig_remove_folder(folder);
}

static void test_learning_rate(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    keel_fault_config fault = {.kind = KEEL_FAULT_LEARNING_RATE, .step = 10, .steps = 2, .rank = -1, .factor = 100};
    config.faults = &fault;
    config.fault_count = 1;
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_OK);
    rig_check_same(&plain, &faulty, 1, 10); // its loss belongs to the weights before the update
    if (check_rank == 0) {
        for (size_t i = 0; i < 30; i++) CHECK(faulty.rates[i] == plain.rates[i] * (i == 9 || i == 10 ? 100 : 1));
        CHECK(faulty.losses[10] > 1.5 * plain.losses[10]);
    }
    rig_remove_folder(folder);
}

static void test_faults_that_never_happen(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    keel_fault_config fault = nan_fault("layers.1.mlp.down", "activation", 5, 1);
    config.faults = &fault;
    config.fault_count = 1;
    fault.rank = check_size;
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_ERR_CONFIG);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "rank %d, but the job has %d", check_size, check_size);
    CHECK(strstr(keel_error(), wanted));
    fault = nan_fault("layers.1.mlp.dwn", "activation", 5, 1);
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), "layers.1.mlp.down"));
    rig_remove_folder(folder);
}

static keel_status read_broken(void *context, uint64_t index, uint32_t *tokens) {
    (void)context;
    if (check_rank == check_size - 1 && index % 16 == 7) return keel_fail(KEEL_ERR_IO, "shard 7: the disk is gone");
    return rig_read_language(NULL, index, tokens);
}

static keel_status read_foreign(void *context, uint64_t index, uint32_t *tokens) {
    const keel_status status = rig_read_language(context, index, tokens);
    if (check_rank == check_size - 1 && index % 16 == 7) tokens[3] = RIG_VOCAB;
    return status;
}

// A rank that cannot go on must not leave the others waiting.
static void test_bad_data_on_one_rank(void) {
    char *folder = rig_folder();
    for (int64_t accumulation = 1; accumulation * check_size <= 4; accumulation *= 2) {
        const keel_train_config config = rig_config(folder, accumulation);
        keel_sequences sequences = language;
        sequences.read = read_broken;
        CHECK(rig_train(&config, &sequences, false, &faulty) == KEEL_ERR_IO);
        CHECK(strstr(keel_error(), "shard 7: the disk is gone"));
        sequences.read = read_foreign;
        CHECK(rig_train(&config, &sequences, false, &faulty) == KEEL_ERR_FORMAT);
        sequences = language;
        sequences.count = 3;
        CHECK(rig_train(&config, &sequences, false, &faulty) == KEEL_ERR_CONFIG);
        CHECK(strstr(keel_error(), "too little text"));
    }
    rig_remove_folder(folder);
}

static void test_mesh(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.parallel.data_parallel = check_size + 1;
    CHECK(rig_train(&config, &language, false, &faulty) == KEEL_ERR_CONFIG);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "= %d ranks, but the job has %d", check_size + 1, check_size);
    CHECK(strstr(keel_error(), wanted));
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    train_plain();
    check_say("the same run twice gives the same bits");
    test_nan_is_skipped("layers.1.mlp.down", "activation", 1);
    test_nan_is_skipped("layers.0.attention.qkv", "activation_grad", 1);
    test_nan_is_skipped("layers.0.attention.qkv.weight", "grad_unreduced", 1);
    if (check_size <= 2) test_nan_is_skipped("layers.0.attention.qkv.weight", "grad_unreduced", 2);
    if (check_size > 1) {
        test_nan_is_skipped("all_reduce.gradient.2", "collective_in", 1);
        test_nan_is_skipped("all_reduce.gradient.2", "collective_out", 1);
    }
    test_divergence_stops_all();
    check_say("divergence");
    test_garbage_batch();
    test_learning_rate();
    check_say("garbage batch and learning rate");
    test_faults_that_never_happen();
    test_bad_data_on_one_rank();
    test_mesh();
    check_say("errors");
    MPI_Finalize();
    return 0;
}
