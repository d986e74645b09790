// Matrices, heads and vocabulary shared out over tensor ranks, with and without the rows between the products: the
// trajectories of another framework, and what the single rank sees of every tensor.
#include "tests/mpi/frame_rig.h"
#include "tests/mpi/golden_rig.h"

typedef struct layout {
    int tp;
    bool sequence;
    int64_t accumulation;
    int pp;     // 0: 1
    bool again; // layers keep their input alone
} layout;

static const layout alone = {.tp = 1, .accumulation = 1};

static const char *describe(const char *name, const layout *l) {
    static char text[128];
    const int pp = l->pp ? l->pp : 1;
    snprintf(text, sizeof text, "%s: data_parallel %d x model_parallel %d x pipeline_stage %d, %lld micro-batches%s%s",
             name, check_size / l->tp / pp, l->tp, pp, (long long)l->accumulation,
             l->sequence ? ", sequence parallel" : "", l->again ? ", computed again" : "");
    return text;
}

static void lay_out(keel_train_config *config, const layout *l, int ranks) {
    config->parallel.model_parallel = l->tp;
    config->parallel.use_seq_parallel = l->sequence;
    const int pp = l->pp ? l->pp : 1;
    config->parallel.pipeline_stage = pp;
    if (pp > 1)
        config->parallel.micro_batch_num = l->accumulation;
    else
        config->runner.gradient_accumulation_steps = l->accumulation;
    config->runner.batch_size = 4 / (ranks / l->tp / pp) / l->accumulation;
}

// ---- golden trajectories ----

static void run_golden(const char *name, const layout *l) {
    keel_train_config config = rig_config("", 1);
    bool every[] = {true, true, true, true};
    lay_out(&config, l, check_size);
    config.parallel.bucket_bytes = 5000;
    golden_rig_run(name, &config.parallel, config.runner.gradient_accumulation_steps,
                   l->again ? &(keel_recompute_config){.full = every} : NULL);
}

// ---- the same statistics ----

typedef struct watched {
    frame_rig frames;
    rig rig;
    double loss, norm;
} watched;

// One step on COMM.
static void step_watched(const keel_train_config *config, MPI_Comm comm, watched *w) {
    const keel_backend backend = frame_rig_backend(&w->frames);
    const keel_sequences language = rig_language();
    CHECK(keel_probe_open((uint32_t)check_rank, &w->rig.probe) == KEEL_OK);
    keel_probe_set_backend(w->rig.probe, &backend);
    CHECK(keel_trainer_open_with(config, &language, comm, w->rig.probe, false, NULL, &w->rig.trainer) == KEEL_OK);
    CHECK(keel_probe_start(w->rig.probe) == KEEL_OK);
    CHECK(keel_trainer_step(w->rig.trainer, &w->loss, &w->norm) == KEEL_OK);
}

static void close_watched(watched *w) {
    rig_close(&w->rig);
    free(w->frames.frame);
}

static bool is_near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b)) || fabs(a - b) < 1e-9;
}

// A whole tensor in every layout, or each rank's sample or summand of it.
static bool is_comparable(const keel_site_info *site) {
    return site->quantity != KEEL_COLLECTIVE_IN && site->quantity != KEEL_COLLECTIVE_OUT &&
           site->quantity != KEEL_GRAD_UNREDUCED;
}

static void check_site(const keel_site_info *site, const keel_stats *one, const keel_stats *all, bool exact,
                       double tolerance) {
    const bool counts = one->n == all->n && one->nans == all->nans && all->replica_residual == 0;
    const bool values = is_near(one->sum_sq, all->sum_sq, tolerance) && is_near(one->min, all->min, tolerance) &&
                        is_near(one->max, all->max, tolerance);
    const bool same = !exact || (one->min == all->min && one->max == all->max && one->zeros == all->zeros &&
                                 one->abs_min == all->abs_min && one->checksum == all->checksum);
    if (!counts || !values || !same)
        fprintf(stderr, "%s %s: n %llu and %llu, squares %.9g and %.9g, min %.9g and %.9g, max %.9g and %.9g, %llx\n",
                site->name, keel_quantity_name(site->quantity), (unsigned long long)one->n, (unsigned long long)all->n,
                one->sum_sq, all->sum_sq, one->min, all->min, one->max, all->max,
                (unsigned long long)all->replica_residual);
    CHECK(counts && values && same);
}

// Learning rate 0: weights stay what they were drawn.
static void run_statistics(const char *name, const keel_train_config *given, const layout *l, double tolerance) {
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    watched one = {0}, all = {0};
    config.model = given->model;
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .total_steps = 30};
    lay_out(&config, &alone, 1);
    step_watched(&config, MPI_COMM_SELF, &one);
    lay_out(&config, l, check_size);
    config.parallel.expert_parallel = given->parallel.expert_parallel;
    step_watched(&config, MPI_COMM_WORLD, &all);
    CHECK(is_near(one.loss, all.loss, tolerance) && is_near(one.norm, all.norm, tolerance));
    size_t compared = 0;
    for (uint32_t i = 0; i < one.frames.sites; i++) {
        const keel_site_info *site = keel_probe_site_info(one.rig.probe, i);
        if (!is_comparable(site)) continue;
        const uint32_t at = frame_rig_site(&all.frames, site->name, site->quantity);
        const keel_stats merged = frame_rig_merged(&all.frames, at);
        if (site->quantity != KEEL_ADAM_RMS)
            check_site(site, &keel_frame_stats(one.frames.frame)[i], &merged, site->quantity == KEEL_WEIGHT, tolerance);
        compared++;
    }
    CHECK(compared > 60);
    close_watched(&one);
    close_watched(&all);
    rig_remove_folder(folder);
    char text[160];
    snprintf(text, sizeof text, "the same statistics, %s", describe(name, l));
    check_say(text);
}

// ---- what is refused, and what is shown ----

static void check_refused(const keel_train_config *config, const char *text) {
    const keel_sequences language = rig_language();
    rig r;
    CHECK(rig_open(config, &language, false, NULL, &r) == KEEL_ERR_CONFIG);
    if (!strstr(keel_error(), text)) fprintf(stderr, "%s\n", keel_error());
    CHECK(strstr(keel_error(), text));
    rig_close(&r);
}

static void test_refused(void) {
    char *folder = rig_folder(), text[96];
    keel_train_config config = rig_config(folder, 1);
    lay_out(&config, &(layout){.tp = 1, .sequence = true, .accumulation = 1}, check_size);
    check_refused(&config, "use_seq_parallel: needs model_parallel above 1, which is 1");
    if (check_size > 1) {
        lay_out(&config, &(layout){.tp = check_size, .accumulation = 1}, check_size);
        config.model.vocab_size = 33;
        snprintf(text, sizeof text, "model_parallel: %d does not divide vocab_size 33", check_size);
        if (check_size == 4) strcpy(text, "model_parallel: 4 does not divide n_kv_heads 2");
        check_refused(&config, text);
    }
    if (check_size == 4) {
        lay_out(&config, &(layout){.tp = 4, .sequence = true, .accumulation = 1}, 4);
        config.model.vocab_size = RIG_VOCAB;
        config.model.n_kv_heads = 4;
        config.model.seq_length = 15;
        config.runner.batch_size = 1;
        check_refused(&config,
                      "model_parallel 4 does not divide the 15 rows of a micro-batch, batch_size 1 x seq_length 15");
    }
    rig_remove_folder(folder);
    check_say("layouts that do not fit are refused");
}

static void check_listed(const keel_trainer *trainer, const char *const *names) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    CHECK(out != NULL);
    keel_trainer_print_structure(trainer, out);
    fclose(out);
    for (size_t i = 0; names[i] && check_rank == 0; i++) {
        if (!strstr(text, names[i])) fprintf(stderr, "not listed: %s\n%s\n", names[i], text);
        CHECK(strstr(text, names[i]));
    }
    free(text);
}

static void test_listed(const layout *l) {
    static const char *const whole[] = {"all_reduce.embedding ",
                                        "shared out over",
                                        "all_reduce.layers.1.attention.out ",
                                        "all_reduce.layers.0.mlp.down ",
                                        "all_reduce.layers.0.norm1.grad ",
                                        "all_reduce.final_norm.grad ",
                                        "all_reduce.head.greatest ",
                                        NULL};
    static const char *const rows[] = {"reduce_scatter.embedding ",
                                       "so are the rows between the products",
                                       "all_gather.layers.0.norm1 ",
                                       "reduce_scatter.layers.1.mlp.down ",
                                       "reduce_scatter.layers.1.norm2.grad ",
                                       "all_gather.layers.0.attention.out.grad ",
                                       "all_reduce.layers.0.norm2.parameters ",
                                       "all_gather.final_norm ",
                                       NULL};
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    const keel_sequences language = rig_language();
    rig r;
    lay_out(&config, l, check_size);
    CHECK(rig_open(&config, &language, false, NULL, &r) == KEEL_OK);
    check_listed(r.trainer, l->sequence ? rows : whole);
    rig_close(&r);
    rig_remove_folder(folder);
    check_say("every meeting of the tensor ranks is listed");
}

int main(void) {
    int provided;
    check_begin(&provided);
    test_refused();
    keel_train_config plain = rig_config("", 1), gpt2 = plain, half = plain, mixture = plain;
    gpt2.model.model_type = KEEL_MODEL_GPT2;
    gpt2.model.n_kv_heads = 0;
    gpt2.model.tie_word_embeddings = true;
    gpt2.model.layer_norm_epsilon = 1e-5;
    half.model.compute_dtype = half.model.head_compute_dtype = KEEL_BFLOAT16;
    mixture.model.moe = (keel_moe_config){.expert_num = 4,
                                          .num_experts_chosen = 2,
                                          .capacity_factor = 1.25,
                                          .aux_loss_factor = 0.01,
                                          .z_loss_factor = 0.001,
                                          .norm_topk_prob = true,
                                          .use_gmm = true,
                                          .use_fused_ops_permute = true};
    for (int tp = 2; tp <= check_size; tp *= 2)
        for (int sequence = 0; sequence <= 1; sequence++) {
            const layout l = {.tp = tp, .sequence = sequence, .accumulation = 1}, twice = {tp, sequence, 2, 1, true};
            if (4 % tp == 0) run_golden("gpt2-tiny", &l);
            if (2 % tp == 0) {
                run_golden("llama-tiny", &l);
                run_golden("llama-tiny", &twice);
                const layout stages = {tp, sequence, 2, 2, false};
                if (check_size == 2 * tp) run_golden("gpt2-tiny", &stages);
                run_statistics("llama", &plain, &l, 1e-5);
                run_statistics("mixture of experts", &mixture, &l, 1e-5);
                if (check_size == 2 * tp) {
                    mixture.parallel.expert_parallel = 2;
                    run_statistics("mixture of experts shared out", &mixture, &l, 1e-5);
                    mixture.parallel.expert_parallel = 1;
                }
                run_statistics("llama in bfloat16", &half, &l, 2e-2);
                test_listed(&l);
            }
            run_statistics("gpt2", &gpt2, &l, 1e-5);
        }
    MPI_Finalize();
    return 0;
}
