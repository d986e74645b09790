// Experts shared out over ranks: trajectories of another framework, and those of a single rank.
#include "tests/golden/golden_case.h"
#include "tests/mpi/trainer_rig.h"

typedef struct layout {
    int64_t ep, accumulation;
    bool shared; // the optimizer
} layout;

static void lay_out(keel_train_config *config, const layout *l, int ranks) {
    config->parallel.expert_parallel = l->ep;
    config->parallel.enable_parallel_optimizer = l->shared;
    config->runner.gradient_accumulation_steps = l->accumulation;
    config->runner.batch_size = 4 / ranks / l->accumulation;
}

static void say(const char *name, const layout *l) {
    char text[160];
    snprintf(text, sizeof text, "%s: %d ranks, expert_parallel %lld, accumulation %lld%s", name, check_size,
             (long long)l->ep, (long long)l->accumulation, l->shared ? ", optimizer parallel" : "");
    check_say(text);
}

// ---- golden trajectories ----

static void check_group(const golden_case *golden, const char *group, const rig *r, const float *flat) {
    char name[KEEL_SITE_NAME_BYTES] = "";
    const double distance = golden_distance(golden, group, r->trainer->model, flat, name);
    if (!(distance <= 1e-4)) fprintf(stderr, "%s/%s: relative distance %.3g\n", group, name, distance);
    CHECK(distance <= 1e-4);
}

static void run_golden(const char *name, const layout *l) {
    golden_case golden = golden_open(name);
    char *folder = rig_folder(), weights[512];
    snprintf(weights, sizeof weights, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    keel_train_config config = rig_config(folder, 1);
    lay_out(&config, l, check_size);
    config.model = golden_model_config(&golden);
    config.model.checkpoint_name_or_path = weights;
    config.optimizer = golden_optimizer_config(&golden);
    const double lr = golden_number(golden.optimizer, "lr");
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .learning_rate = lr, .total_steps = (int64_t)golden.steps};
    config.wrapper.max_grad_norm = golden_number(golden.optimizer, "max_grad_norm");
    config.parallel.bucket_bytes = 5000;
    config.dataset.shuffle = false;
    rig_data data = {.tokens = golden.tokens, .width = golden.width};
    const keel_sequences sequences = {
        .context = &data, .count = golden.steps * golden.sequences, .identity = name, .read = rig_read};

    static rig_record record;
    record = (rig_record){0};
    rig r;
    CHECK(rig_open(&config, &sequences, false, &record, &r) == KEEL_OK);
    for (size_t i = 0; i < golden.steps; i++) {
        double loss, norm;
        CHECK(keel_trainer_step(r.trainer, &loss, &norm) == KEEL_OK);
        CHECK(golden_near(loss, golden.losses[i], 1e-5));
        CHECK(golden_near(norm, golden.norms[i], 1e-5));
        const keel_routing_report *routing = &r.trainer->routing;
        double aux_loss = 0;
        for (size_t layer = 0; layer < routing->layers; layer++) {
            aux_loss += config.model.moe.aux_loss_factor * routing->totals[layer].balance +
                        config.model.moe.z_loss_factor * routing->totals[layer].z;
            CHECK(golden_near(routing->totals[layer].drop_rate, golden.drop_rates[i * routing->layers + layer], 1e-12));
        }
        CHECK(golden_near(aux_loss, golden.aux_losses[i], 1e-5));
        if (i == 0 && !l->shared) check_group(&golden, "grad", &r, keel_buckets_gradient(r.trainer->buckets));
    }
    check_group(&golden, "param_after", &r, keel_model_weights(r.trainer->model));
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r.trainer->optimizer, &count);
    CHECK(count == 2);
    if (!l->shared) {
        check_group(&golden, "adam_m_after", &r, states[0].data);
        check_group(&golden, "adam_v_after", &r, states[1].data);
    }
    rig_close(&r);
    golden_close(&golden);
    rig_remove_folder(folder);
    say(name, l);
}

// ---- a single rank ----

enum { STEPS = 8 };

static void train_on(MPI_Comm comm, const keel_train_config *config, double *losses, double *norms) {
    const keel_sequences language = rig_language();
    rig r = {0};
    CHECK(keel_probe_open((uint32_t)check_rank, &r.probe) == KEEL_OK);
    CHECK(keel_trainer_open_with(config, &language, comm, r.probe, false, NULL, &r.trainer) == KEEL_OK);
    CHECK(keel_probe_start(r.probe) == KEEL_OK);
    for (size_t i = 0; i < STEPS; i++) CHECK(keel_trainer_step(r.trainer, &losses[i], &norms[i]) == KEEL_OK);
    rig_close(&r);
}

static void run_beside_one(const char *name, const keel_moe_config *moe, const layout *l, bool starved) {
    char *folder = rig_folder();
    double one[2][STEPS], all[2][STEPS];
    keel_train_config config = rig_config(folder, 1);
    // Without logits the first experts get all tokens, and most ranks none.
    keel_fault_config faults[2];
    for (int i = 0; i < 2; i++)
        faults[i] = (keel_fault_config){.kind = KEEL_FAULT_INITIAL_SCALE,
                                        .site = i ? "layers.1.mlp.router.weight" : "layers.0.mlp.router.weight",
                                        .factor = 0,
                                        .rank = -1};
    if (starved) {
        config.faults = faults;
        config.fault_count = 2;
        config.lr.learning_rate = 0;
        config.lr.lr_end = 0;
    }
    config.model.moe = *moe;
    lay_out(&config, &(layout){.ep = 1, .accumulation = l->accumulation}, 1);
    train_on(MPI_COMM_SELF, &config, one[0], one[1]);
    lay_out(&config, l, check_size);
    train_on(MPI_COMM_WORLD, &config, all[0], all[1]);
    for (size_t i = 0; i < STEPS; i++) {
        CHECK(golden_near(all[0][i], one[0][i], 2e-5));
        CHECK(golden_near(all[1][i], one[1][i], 1e-4));
    }
    rig_remove_folder(folder);
    say(name, l);
}

// ---- what does not fit ----

static void test_refused(void) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    static rig_record record;
    rig r;
    config.parallel.expert_parallel = check_size;
    config.model.moe = (keel_moe_config){.expert_num = 2 * check_size - 1, .num_experts_chosen = 1};
    CHECK(rig_open(&config, &(keel_sequences){.count = 1000, .identity = "language", .read = rig_read_language}, false,
                   &record, &r) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), "does not divide"));
    rig_close(&r);
    rig_remove_folder(folder);
    check_say("experts that do not come out even");
}

int main(void) {
    int provided;
    check_begin(&provided);
    static const keel_moe_config dropless = {.expert_num = 4,
                                             .num_experts_chosen = 2,
                                             .aux_loss_factor = 0.02,
                                             .z_loss_factor = 0.001,
                                             .norm_topk_prob = true,
                                             .use_gmm = true,
                                             .use_fused_ops_permute = true};
    keel_moe_config capacity = dropless, plain = dropless, safe = dropless;
    capacity.capacity_factor = 1;
    plain.use_gmm = plain.use_fused_ops_permute = false;
    safe.enable_gmm_safe_tokens = true;
    for (int64_t ep = 2; ep <= check_size; ep *= 2) {
        const layout whole = {.ep = ep, .accumulation = 1}, shared = {.ep = ep, .accumulation = 1, .shared = true};
        run_golden("mixtral-tiny", &whole);
        run_golden("mixtral-capacity", &shared);
        run_golden("mixtral-capacity", &whole);
        for (int64_t accumulation = 1; accumulation * check_size <= 4; accumulation *= 2) {
            const layout l = {.ep = ep, .accumulation = accumulation};
            run_beside_one("dropless", &dropless, &l, false);
            run_beside_one("capacity", &capacity, &l, false);
        }
        run_beside_one("one expert after another", &plain, &whole, false);
        run_beside_one("experts without a token", &dropless, &whole, true);
        run_beside_one("experts without a token, one after another", &plain, &whole, true);
        run_beside_one("experts with a safe token", &safe, &whole, true);
    }
    if (check_size > 1) test_refused();
    MPI_Finalize();
    return 0;
}
