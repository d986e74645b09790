// Each configured fault beside NaNs, garbage batches and learning rates disturbs what it says, when it says, where it
// says, and nothing else.
#include <math.h>
#include <unistd.h>

#include "tests/mpi/trainer_rig.h"
#include "train/faults/fault_weights.h"

static keel_sequences language;
static keel_train_config config; // of the latest training
static rig_record plain, faulty;

// Trains with FAULT and leaves R open.
static void train(const keel_fault_config *fault, rig *r, char *folder) {
    config = rig_config(folder, 1);
    config.faults = (keel_fault_config *)fault;
    config.fault_count = fault ? 1 : 0;
    memset(&faulty, 0, sizeof faulty);
    CHECK(rig_open(&config, &language, false, &faulty, r) == KEEL_OK);
    CHECK(keel_trainer_run(r->trainer) == KEEL_OK);
}

static void train_and_close(const keel_fault_config *fault) {
    char *folder = rig_folder();
    rig r;
    train(fault, &r, folder);
    rig_close(&r);
    rig_remove_folder(folder);
}

static bool weights_agree(const rig *r) {
    const size_t numel = keel_model_numel(r->trainer->model);
    float *first = malloc(numel * sizeof *first);
    CHECK(first != NULL);
    memcpy(first, keel_model_weights(r->trainer->model), numel * sizeof *first);
    MPI_Bcast(first, (int)numel, MPI_FLOAT, 0, MPI_COMM_WORLD);
    int same = memcmp(first, keel_model_weights(r->trainer->model), numel * sizeof *first) == 0, all;
    MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    free(first);
    return all;
}

// The steps from FIRST to LAST, and no others, are flagged.
static void check_flags(uint64_t first, uint64_t last) {
    for (uint64_t s = 1; check_rank == 0 && s <= 30; s++)
        CHECK(!!(faulty.steps[s - 1].flags & KEEL_STEP_FAULT) == (s >= first && s <= last));
}

static void test_corrupt_data(void) {
    const keel_fault_config fault = {
        .kind = KEEL_FAULT_CORRUPT_DATA, .step = 20, .steps = 1000, .rank = check_size - 1, .share = 1};
    train_and_close(&fault);
    rig_check_same(&plain, &faulty, 1, 19);
    check_flags(20, 30);
    for (size_t i = 19; check_rank == 0 && i < 30; i++) CHECK(faulty.losses[i] > plain.losses[i] + 0.2 / check_size);
}

static void test_share(void) {
    keel_fault_config fault = {
        .kind = KEEL_FAULT_GARBAGE_BATCH, .step = 25, .steps = 1, .rank = check_size - 1, .share = 0.2};
    train_and_close(&fault);
    const double some = faulty.losses[24];
    fault.share = 1;
    train_and_close(&fault);
    if (check_rank == 0) CHECK(some > plain.losses[24] && some < faulty.losses[24]);
}

static void test_repeat_batch(void) {
    const keel_fault_config fault = {.kind = KEEL_FAULT_REPEAT_BATCH, .step = 10, .steps = 1000, .rank = -1};
    train_and_close(&fault);
    rig_check_same(&plain, &faulty, 1, 9);
    check_flags(10, 30);
    if (check_rank != 0) return;
    for (size_t i = 9; i < 30; i++) {
        CHECK(faulty.steps[i].first_batch == plain.steps[8].first_batch);
        CHECK(faulty.steps[i].last_batch == plain.steps[8].last_batch);
    }
    CHECK(faulty.losses[29] < plain.losses[29]); // it is learned by heart
}

static void test_bit_flip(void) {
    char *folder = rig_folder();
    const keel_fault_config fault = {.kind = KEEL_FAULT_BIT_FLIP,
                                     .step = 12,
                                     .steps = 1,
                                     .rank = check_size - 1,
                                     .site = (char[]){"layers.1.mlp.down.weight"},
                                     .index = 5,
                                     .bit = 25};
    rig r;
    train(&fault, &r, folder);
    rig_check_same(&plain, &faulty, 1, 11);
    check_flags(12, 12);
    if (check_rank == 0) CHECK(faulty.losses[11] != plain.losses[11]);
    CHECK(weights_agree(&r) == (check_size == 1));

    // One bit of one weight, and another time brings it back.
    keel_model *model = r.trainer->model;
    const size_t bytes = keel_model_numel(model) * sizeof(float);
    float *before = malloc(bytes);
    CHECK(before != NULL);
    memcpy(before, keel_model_weights(model), bytes);
    keel_fault_flip_bit(model, &fault);
    size_t changed = 0;
    for (size_t i = 0; i < bytes / sizeof *before; i++) {
        uint32_t a, b;
        memcpy(&a, &before[i], sizeof a);
        memcpy(&b, &keel_model_weights(model)[i], sizeof b);
        changed += a != b;
        CHECK(a == b || (a ^ b) == UINT32_C(1) << 25);
    }
    CHECK(changed == 1);
    keel_fault_flip_bit(model, &fault);
    CHECK(memcmp(before, keel_model_weights(model), bytes) == 0);
    free(before);
    rig_close(&r);
    rig_remove_folder(folder);
}

static void test_replica_skip(void) {
    char *folder = rig_folder();
    const keel_fault_config fault = {.kind = KEEL_FAULT_REPLICA_SKIP, .step = 12, .steps = 1, .rank = check_size - 1};
    rig r;
    train(&fault, &r, folder);
    CHECK(weights_agree(&r) == (check_size == 1));
    rig_close(&r);
    rig_remove_folder(folder);
    rig_check_same(&plain, &faulty, 1, 12);
    check_flags(12, 12);
    if (check_rank == 0) CHECK(faulty.losses[12] != plain.losses[12]);
}

static void test_straggler(void) {
    const keel_fault_config fault = {
        .kind = KEEL_FAULT_STRAGGLER, .step = 21, .steps = 1000, .rank = check_size - 1, .seconds = 0.03};
    train_and_close(&fault);
    rig_check_same(&plain, &faulty, 1, 30);
    // The last rank sleeps ten times after rank 0 has begun step 20, and before it ends step 30; a single step of rank
    // 0 may be shorter, where it was late itself.
    const keel_step *last_quiet = &faulty.steps[19], *last = &faulty.steps[29];
    if (check_rank == 0)
        CHECK(last->time_unix - (last_quiet->time_unix - last_quiet->seconds) >= 10 * fault.seconds - 1e-3);
}

static size_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    size_t all, resident = 0;
    CHECK(file && fscanf(file, "%zu %zu", &all, &resident) == 2);
    if (file) fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void test_memory_leak(void) {
    enum { STEP_BYTES = 4 << 20, STEPS = 21 };
    char *folder = rig_folder();
    const keel_fault_config fault = {
        .kind = KEEL_FAULT_MEMORY_LEAK, .step = 10, .steps = 1000, .rank = check_size - 1, .bytes = STEP_BYTES};
    rig r;
    const size_t before = resident_bytes();
    train(&fault, &r, folder);
    const size_t grown = resident_bytes() - before;
    CHECK((grown > (size_t)STEPS * STEP_BYTES / 2) == (check_rank == check_size - 1));
    rig_close(&r);
    rig_remove_folder(folder);
    rig_check_same(&plain, &faulty, 1, 30);
}

static void test_initial_scale(void) {
    char *folder = rig_folder();
    config = rig_config(folder, 1);
    keel_fault_config fault = {.kind = KEEL_FAULT_INITIAL_SCALE,
                               .step = 1,
                               .steps = 1,
                               .rank = -1,
                               .site = (char[]){"layers.0.attention.out.weight"},
                               .factor = 8};
    rig healthy, r;
    CHECK(rig_open(&config, &language, false, &plain, &healthy) == KEEL_OK);
    config.faults = &fault;
    config.fault_count = 1;
    CHECK(rig_open(&config, &language, false, &faulty, &r) == KEEL_OK);
    size_t count;
    const keel_param *params = keel_model_params(r.trainer->model, &count);
    for (size_t p = 0; p < count; p++) {
        const float factor = strcmp(params[p].name, fault.site) == 0 ? 8 : 1;
        for (size_t i = params[p].offset; i < params[p].offset + params[p].numel; i++)
            CHECK(keel_model_weights(r.trainer->model)[i] == factor * keel_model_weights(healthy.trainer->model)[i]);
    }
    rig_close(&r);
    rig_close(&healthy);
    rig_remove_folder(folder);
}

// The scores of a layer, which are linear in its queries, grow by the factor: rows of the queries alone change.
static void test_query_growth(void) {
    char *folder = rig_folder();
    keel_fault_config fault = {
        .kind = KEEL_FAULT_QUERY_GROWTH, .step = 6, .steps = 1000, .rank = -1, .layer = 1, .factor = 1.25};
    rig r;
    train(&fault, &r, folder);
    CHECK(weights_agree(&r));
    rig_check_same(&plain, &faulty, 1, 5);
    check_flags(6, 30);
    if (check_rank == 0) CHECK(faulty.losses[5] != plain.losses[5]);

    keel_model *model = r.trainer->model;
    const size_t numel = keel_model_numel(model), hidden = (size_t)config.model.hidden_size;
    float *before = malloc(numel * sizeof *before);
    CHECK(before != NULL);
    memcpy(before, keel_model_weights(model), numel * sizeof *before);
    keel_fault_scale_queries(&config.model, model, &fault);
    size_t count, param_count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    const keel_param *params = keel_model_params(model, &param_count);
    size_t queries = 0;
    for (size_t t = 0; t < count; t++)
        if (strcmp(tensors[t].name, "model.layers.1.self_attn.q_proj.weight") == 0)
            queries = params[tensors[t].param].offset; // its first rows
    CHECK(queries > 0);
    for (size_t i = 0; i < numel; i++) {
        const bool query = i >= queries && i < queries + hidden * hidden;
        CHECK(keel_model_weights(model)[i] == before[i] * (query ? 1.25f : 1.0f));
    }
    free(before);
    rig_close(&r);
    rig_remove_folder(folder);
}

static void check_refused_in(int64_t stages, bool shared, const keel_fault_config *fault, const char *text) {
    char *folder = rig_folder();
    config = rig_config(folder, 1);
    config.parallel.pipeline_stage = stages;
    config.parallel.enable_parallel_optimizer = shared;
    config.faults = (keel_fault_config *)fault;
    config.fault_count = 1;
    rig r;
    CHECK(rig_open(&config, &language, false, &faulty, &r) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), text));
    rig_close(&r);
    rig_remove_folder(folder);
}

static void check_refused(const keel_fault_config *fault, const char *text) {
    check_refused_in(1, false, fault, text);
}

static void test_refused(void) {
    keel_fault_config fault = {.kind = KEEL_FAULT_BIT_FLIP, .step = 1, .steps = 1, .rank = -1, .bit = 3};
    fault.site = (char[]){"layers.1.mlp.dwn.weight"};
    check_refused(&fault, "no parameter 'layers.1.mlp.dwn.weight'; the nearest is 'layers.1.mlp.down.weight'");
    fault.site = (char[]){"final_norm.weight"};
    fault.index = 32;
    check_refused(&fault, "final_norm.weight has 32 elements");
    fault = (keel_fault_config){.kind = KEEL_FAULT_QUERY_GROWTH, .step = 1, .steps = 1, .rank = -1, .layer = 2};
    check_refused(&fault, "layer 2, but the model has 2, from 0");
    fault = (keel_fault_config){.kind = KEEL_FAULT_STRAGGLER, .step = 1, .steps = 1, .rank = check_size, .seconds = 1};
    check_refused(&fault, "but the job has");
}

// One error on all ranks, from what all stages have; and none of a fault that would strike nothing.
static void test_refused_in_layouts(void) {
    keel_fault_config fault = {.kind = KEEL_FAULT_BIT_FLIP, .step = 1, .steps = 1, .rank = -1, .bit = 3};
    if (check_size == 1) return;
    fault.site = (char[]){"layers.1.mlp.dwn.weight"};
    check_refused_in(2, false, &fault,
                     "no parameter 'layers.1.mlp.dwn.weight'; the nearest is 'layers.1.mlp.down.weight'");
    fault.site = (char[]){"layers.1.mlp.down.weight"};
    fault.rank = 0;
    check_refused_in(2, false, &fault, "layers.1.mlp.down.weight is of pipeline stage 1, and rank 0 of stage 0");
    fault.kind = KEEL_FAULT_NAN;
    fault.rank = -1;
    fault.site = (char[]){"layers.1.mlp.ac"};
    fault.quantity = (char[]){"activation"};
    check_refused_in(2, false, &fault,
                     "no site 'layers.1.mlp.ac' with the quantity activation; the nearest is 'layers.1.mlp.act'");
    fault.rank = 0; // the last parameter is the last rank's
    fault.site = (char[]){"final_norm.weight"};
    fault.quantity = (char[]){"exp_avg"};
    fault.index = 0;
    check_refused_in(1, true, &fault, "with parallel_config.enable_parallel_optimizer element 0 of final_norm.weight");
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    train_and_close(NULL);
    plain = faulty;
    check_flags(31, 30);
    test_corrupt_data();
    test_share();
    test_repeat_batch();
    check_say("data");
    test_bit_flip();
    test_replica_skip();
    test_initial_scale();
    test_query_growth();
    check_say("weights");
    test_straggler();
    test_memory_leak();
    check_say("time and memory");
    test_refused();
    test_refused_in_layouts();
    check_say("errors");
    MPI_Finalize();
    return 0;
}
