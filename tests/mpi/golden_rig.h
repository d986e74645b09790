// Trajectories computed in float64 by another framework, by whole trainings in any layout.
#ifndef KEEL_TESTS_GOLDEN_RIG_H
#define KEEL_TESTS_GOLDEN_RIG_H

#include "tests/golden/golden_case.h"
#include "tests/mpi/trainer_rig.h"

// BUFFER: laid out as the weights, or (STATE) as the optimizer's states.
static inline void golden_rig_check(const golden_case *golden, const char *group, const rig *r, const float *buffer,
                                    bool state) {
    char name[KEEL_SITE_NAME_BYTES] = "";
    float *whole = rig_whole(r->trainer, buffer, state);
    const double distance = golden_distance(golden, group, r->trainer->model, whole, name);
    free(whole);
    if (!(distance <= 1e-4)) fprintf(stderr, "%s/%s: relative distance %.3g\n", group, name, distance);
    CHECK(distance <= 1e-4);
}

static inline void golden_rig_train(const golden_case *golden, keel_train_config *config,
                                    const keel_sequences *sequences, size_t steps, rig_record *record, rig *r) {
    config->runner.steps = (int64_t)steps;
    CHECK(rig_open(config, sequences, false, record, r) == KEEL_OK);
    CHECK(keel_trainer_run(r->trainer) == KEEL_OK);
    CHECK(golden->losses && golden->norms);
    for (size_t i = 0; i < steps && check_rank == 0; i++) {
        CHECK(golden_near(record->losses[i], golden->losses[i], 1e-5));
        CHECK(golden_near(record->norms[i], golden->norms[i], 1e-5));
        const size_t layers = golden->aux_losses ? (size_t)config->model.num_layers : 0;
        if (layers) CHECK(record->layers[i] == layers);
        if (layers) CHECK(golden_near(record->aux_losses[i], golden->aux_losses[i], 1e-5));
        for (size_t l = 0; l < layers; l++)
            CHECK(golden_near(record->drop_rates[i][l], golden->drop_rates[i * layers + l], 1e-12));
    }
}

// Trains the case over all ranks of the layout PARALLEL, with ACCUMULATION micro-batches of a step where there is no
// pipeline, and holds losses, norms, gradients, weights and states against it. RECOMPUTE: NULL for none.
static inline void golden_rig_run(const char *name, const keel_parallel_config *parallel, int64_t accumulation,
                                  const keel_recompute_config *recompute) {
    golden_case golden = golden_open(name);
    char *folder = rig_folder(), weights[512];
    snprintf(weights, sizeof weights, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    keel_train_config config = rig_config(folder, accumulation);
    config.parallel = *parallel;
    const int64_t micro = (int64_t)keel_train_micro_batches(&config);
    const int64_t dp = check_size / (parallel->model_parallel * parallel->pipeline_stage);
    config.runner.batch_size = 4 / dp / micro;
    config.model = golden_model_config(&golden);
    config.model.checkpoint_name_or_path = weights;
    config.optimizer = golden_optimizer_config(&golden);
    const double lr = golden_number(golden.optimizer, "lr");
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .learning_rate = lr, .total_steps = (int64_t)golden.steps};
    config.wrapper.max_grad_norm = golden_number(golden.optimizer, "max_grad_norm");
    config.dataset.shuffle = false;
    if (recompute) config.recompute = *recompute;
    rig_data data = {.tokens = golden.tokens, .width = golden.width};
    const keel_sequences sequences = {
        .context = &data, .count = golden.steps * golden.sequences, .identity = name, .read = rig_read};
    CHECK(golden.sequences == 4);

    static rig_record record;
    rig r;
    golden_rig_train(&golden, &config, &sequences, 1, &record, &r);
    golden_rig_check(&golden, "grad", &r, keel_buckets_gradient(r.trainer->buckets), false);
    rig_close(&r);

    golden_rig_train(&golden, &config, &sequences, golden.steps, &record, &r);
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r.trainer->optimizer, &count);
    CHECK(count == 2);
    golden_rig_check(&golden, "param_after", &r, keel_model_weights(r.trainer->model), false);
    golden_rig_check(&golden, "adam_m_after", &r, states[0].data, true);
    golden_rig_check(&golden, "adam_v_after", &r, states[1].data, true);
    rig_close(&r);
    golden_close(&golden);
    rig_remove_folder(folder);

    char text[256];
    snprintf(text, sizeof text,
             "%s, dp %lld, tp %lld, pp %lld, ep %lld, %lld micro-batches, buckets of %lld bytes%s%s%s", name,
             (long long)dp, (long long)parallel->model_parallel, (long long)parallel->pipeline_stage,
             (long long)parallel->expert_parallel, (long long)micro, (long long)parallel->bucket_bytes,
             parallel->use_seq_parallel ? ", sequence parallel" : "",
             parallel->enable_parallel_optimizer ? ", optimizer parallel" : "", recompute ? ", computed again" : "");
    check_say(text);
}

#endif
