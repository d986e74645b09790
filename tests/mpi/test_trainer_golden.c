// Trajectories computed in float64 by another framework, by whole trainings split over ranks and micro-batches.
#include "tests/golden/golden_case.h"
#include "tests/mpi/trainer_rig.h"

// BUFFER: laid out as the weights, or (STATE) as the optimizer's states.
static void check_group(const golden_case *golden, const char *group, const rig *r, const float *buffer, bool state) {
    char name[KEEL_SITE_NAME_BYTES] = "";
    float *whole = rig_whole(r->trainer, buffer, state);
    const double distance = golden_distance(golden, group, r->trainer->model, whole, name);
    free(whole);
    if (!(distance <= 1e-4)) fprintf(stderr, "%s/%s: relative distance %.3g\n", group, name, distance);
    CHECK(distance <= 1e-4);
}

static void train(const golden_case *golden, keel_train_config *config, const keel_sequences *sequences, size_t steps,
                  rig_record *record, rig *r) {
    config->runner.steps = (int64_t)steps;
    CHECK(rig_open(config, sequences, false, record, r) == KEEL_OK);
    CHECK(keel_trainer_run(r->trainer) == KEEL_OK);
    for (size_t i = 0; i < steps && check_rank == 0; i++) {
        CHECK(golden_near(record->losses[i], golden->losses[i], 1e-5));
        CHECK(golden_near(record->norms[i], golden->norms[i], 1e-5));
    }
}

static void run_case(const char *name, int64_t accumulation, int64_t bucket_bytes, bool shared) {
    golden_case golden = golden_open(name);
    char *folder = rig_folder(), weights[512];
    snprintf(weights, sizeof weights, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    keel_train_config config = rig_config(folder, accumulation);
    config.model = golden_model_config(&golden);
    config.model.checkpoint_name_or_path = weights;
    config.optimizer = golden_optimizer_config(&golden);
    const double lr = golden_number(golden.optimizer, "lr");
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .learning_rate = lr, .total_steps = (int64_t)golden.steps};
    config.wrapper.max_grad_norm = golden_number(golden.optimizer, "max_grad_norm");
    config.parallel.bucket_bytes = bucket_bytes;
    config.parallel.enable_parallel_optimizer = shared;
    config.dataset.shuffle = false;
    rig_data data = {.tokens = golden.tokens, .width = golden.width};
    const keel_sequences sequences = {
        .context = &data, .count = golden.steps * golden.sequences, .identity = name, .read = rig_read};
    CHECK(golden.sequences == 4);

    static rig_record record;
    rig r;
    train(&golden, &config, &sequences, 1, &record, &r);
    check_group(&golden, "grad", &r, keel_buckets_gradient(r.trainer->buckets), false);
    rig_close(&r);

    train(&golden, &config, &sequences, golden.steps, &record, &r);
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r.trainer->optimizer, &count);
    CHECK(count == 2);
    check_group(&golden, "param_after", &r, keel_model_weights(r.trainer->model), false);
    check_group(&golden, "adam_m_after", &r, states[0].data, true);
    check_group(&golden, "adam_v_after", &r, states[1].data, true);
    rig_close(&r);
    golden_close(&golden);
    rig_remove_folder(folder);

    char text[128];
    snprintf(text, sizeof text, "%s, %d ranks, accumulation %lld, buckets of %lld bytes%s", name, check_size,
             (long long)accumulation, (long long)bucket_bytes, shared ? ", optimizer parallel" : "");
    check_say(text);
}

int main(void) {
    int provided;
    check_begin(&provided);
    for (int64_t accumulation = 1; accumulation * check_size <= 4; accumulation *= 2) {
        run_case("gpt2-tiny", accumulation, 4 << 20, false);
        run_case("gpt2-tiny", accumulation, 1000, false);
        run_case("llama-tiny", accumulation, 4 << 20, false);
        run_case("llama-tiny", accumulation, 1000, false);
        if (check_size == 1) continue;
        run_case("gpt2-tiny", accumulation, 1000, true);
        run_case("llama-tiny", accumulation, 4 << 20, true);
    }
    // Their balance is that of the whole batch.
    run_case("mixtral-tiny", 1, 4 << 20, false);
    run_case("mixtral-capacity", 1, 1000, check_size > 1);
    MPI_Finalize();
    return 0;
}
