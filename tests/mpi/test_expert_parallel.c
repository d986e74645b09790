// Experts shared out over ranks, in pipelines, cut over tensor ranks and computed again too: trajectories of another
// framework, and those of a single rank.
#include "tests/mpi/golden_rig.h"

typedef struct layout {
    int64_t ep, pp, tp, accumulation;
    bool shared;   // the optimizer
    bool sequence; // rows over the tensor ranks
    bool again;    // layers are computed again, one in full and one by selection
} layout;

static bool full[] = {true, false}, selected[] = {false, true};
static const keel_recompute_config again = {.full = full, .select = selected};

static keel_parallel_config parallel_of(const layout *l) {
    return (keel_parallel_config){.model_parallel = l->tp,
                                  .use_seq_parallel = l->sequence,
                                  .pipeline_stage = l->pp,
                                  .micro_batch_num = l->accumulation,
                                  .expert_parallel = l->ep,
                                  .bucket_bytes = 5000,
                                  .enable_parallel_optimizer = l->shared};
}

static void lay_out(keel_train_config *config, const layout *l, int ranks) {
    config->parallel = parallel_of(l);
    config->runner.gradient_accumulation_steps = l->accumulation;
    config->runner.batch_size = 4 / (ranks / (l->pp * l->tp)) / l->accumulation;
    if (l->again) config->recompute = again;
}

static void say(const char *name, const layout *l) {
    char text[200];
    snprintf(text, sizeof text,
             "%s: %d ranks, expert_parallel %lld, pipeline_stage %lld, model_parallel %lld, %lld micro-batches%s%s%s",
             name, check_size, (long long)l->ep, (long long)l->pp, (long long)l->tp, (long long)l->accumulation,
             l->shared ? ", optimizer parallel" : "", l->sequence ? ", sequence parallel" : "",
             l->again ? ", computed again" : "");
    check_say(text);
}

static void run_golden(const char *name, const layout *l) {
    const keel_parallel_config parallel = parallel_of(l);
    golden_rig_run(name, &parallel, l->accumulation, l->again ? &again : NULL);
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
    lay_out(&config, &(layout){.ep = 1, .pp = 1, .tp = 1, .accumulation = l->accumulation}, 1);
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
        const layout whole = {.ep = ep, .pp = 1, .tp = 1, .accumulation = 1};
        const layout shared = {.ep = ep, .pp = 1, .tp = 1, .accumulation = 1, .shared = true, .again = true};
        run_golden("mixtral-tiny", &whole);
        run_golden("mixtral-capacity", &shared);
        run_golden("mixtral-capacity", &whole);
        for (int64_t accumulation = 1; accumulation * check_size <= 4; accumulation *= 2) {
            const layout l = {.ep = ep, .pp = 1, .tp = 1, .accumulation = accumulation};
            run_beside_one("dropless", &dropless, &l, false);
            run_beside_one("capacity", &capacity, &l, false);
        }
        run_beside_one("capacity", &capacity, &shared, false);
        run_beside_one("one expert after another", &plain, &shared, false);
        run_beside_one("experts without a token", &dropless, &whole, true);
        run_beside_one("experts without a token, one after another", &plain, &whole, true);
        run_beside_one("experts with a safe token", &safe, &shared, true);
    }
    for (int64_t ep = 1; 2 * ep <= check_size; ep *= 2) {
        const layout stages = {.ep = ep, .pp = 2, .tp = 1, .accumulation = 1};
        const layout micro = {.ep = ep, .pp = 2, .tp = 1, .accumulation = 2, .again = true};
        run_golden("mixtral-tiny", &stages);
        run_golden("mixtral-capacity", &stages);
        run_beside_one("capacity", &capacity, &micro, false);
        const layout cut = {.ep = ep, .pp = 1, .tp = 2, .accumulation = 1};
        const layout rows = {
            .ep = ep, .pp = 1, .tp = 2, .accumulation = 1, .sequence = true, .shared = true, .again = true};
        run_golden("mixtral-tiny", &rows);
        run_golden("mixtral-capacity", &cut);
        run_beside_one("capacity", &capacity, &rows, false);
        run_beside_one("experts without a token", &safe, &cut, true);
    }
    if (check_size > 1) test_refused();
    MPI_Finalize();
    return 0;
}
