// The optimizer shared out over the data-parallel ranks: the same training, the same statistics, less memory.
#include <math.h>

#include "tests/mpi/frame_rig.h"

static keel_sequences language;

static bool near(double a, double b, double tolerance) {
    return fabs(a - b) <= tolerance * fabs(b);
}

static void check_alike(const rig_record *a, const rig_record *b) {
    if (check_rank != 0) return;
    CHECK(a->count == 30 && b->count == 30);
    for (size_t i = 0; i < 30; i++) {
        if (!near(a->losses[i], b->losses[i], 2e-5) || !near(a->norms[i], b->norms[i], 1e-4))
            fprintf(stderr, "step %zu: loss %.9g and %.9g, norm %.9g and %.9g\n", i + 1, a->losses[i], b->losses[i],
                    a->norms[i], b->norms[i]);
        CHECK(near(a->losses[i], b->losses[i], 2e-5) && near(a->norms[i], b->norms[i], 1e-4));
    }
    CHECK(a->losses[29] < 0.8 * a->losses[0]);
}

// Groups with rates, decays and a clipping of their own among them.
static void test_same_training(int64_t accumulation, int64_t bucket_bytes, bool grouped) {
    static rig_record whole, shared;
    static char norms[] = "norm", layer[] = "^layers\\.1\\..*weight$";
    static keel_param_group_config groups[] = {
        {.params = norms, .lr_scale = 0.5, .weight_decay = 0.2, .max_grad_norm = NAN},
        {.params = layer, .lr_scale = 2, .weight_decay = NAN, .max_grad_norm = 0.05},
    };
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, accumulation);
    memset(&whole, 0, sizeof whole);
    memset(&shared, 0, sizeof shared);
    if (grouped) config.optimizer.groups = groups, config.optimizer.group_count = 2;
    config.parallel.bucket_bytes = bucket_bytes;
    CHECK(rig_train(&config, &language, false, &whole) == KEEL_OK);
    config.parallel.enable_parallel_optimizer = true;
    CHECK(rig_train(&config, &language, false, &shared) == KEEL_OK);
    check_alike(&shared, &whole);
    if (check_size == 1) rig_check_same(&shared, &whole, 1, 30);
    rig_remove_folder(folder);
}

// ---- statistics ----

// WHOLE is of all parameters.
static void check_whole(const frame_rig *f, const keel_param *param, keel_quantity quantity, const float *whole) {
    keel_stats seen, *expected = &seen;
    keel_stats_clear(expected);
    keel_stats_observe(expected, &(keel_stats_params){.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .eps = 1e-8},
                       KEEL_F32, whole + param->offset, param->numel);
    const uint32_t site = frame_rig_site(f, param->name, quantity);
    const keel_site_info *info = keel_probe_site_info(f->probe, site);
    const keel_stats merged = frame_rig_merged(f, site);
    const double norm = keel_stats_view(&merged, KEEL_OP_norm);
    CHECK(info->layout == (check_size > 1 ? KEEL_LAYOUT_SHARD : KEEL_LAYOUT_REPLICA));
    CHECK(merged.n == info->numel && merged.n == expected->n);
    CHECK(merged.min == expected->min && merged.max == expected->max && merged.zeros == expected->zeros);
    CHECK(merged.checksum == expected->checksum && merged.replica_residual == 0);
    CHECK(near(norm, keel_stats_view(expected, KEEL_OP_norm), 1e-6));
}

static void check_numbers(const frame_rig *f, const char *name, keel_quantity quantity, size_t numel) {
    const keel_stats merged = frame_rig_merged(f, frame_rig_site(f, name, quantity));
    CHECK(merged.n == numel && isfinite(keel_stats_view(&merged, KEEL_OP_norm)));
}

// What is gathered or summed of a tensor comes behind it in the data flow, and is not to blame for it.
static void check_order(const frame_rig *f, const char *param) {
    if (check_size == 1) return;
    const struct {
        keel_quantity quantity;
        const char *behind;
    } cases[] = {{KEEL_WEIGHT, "all_gather.weights.0"}, {KEEL_GRAD_REDUCED, "all_reduce.grad_norm"}};
    for (size_t i = 0; i < 2; i++) {
        const uint32_t tensor = frame_rig_site(f, param, cases[i].quantity);
        const uint32_t collective = frame_rig_site(f, cases[i].behind, KEEL_COLLECTIVE_IN);
        CHECK(keel_site_compare(keel_probe_site_info(f->probe, tensor), keel_probe_site_info(f->probe, collective)) <
              0);
    }
}

static double rms_of(const frame_rig *f, const char *name) {
    const keel_stats merged = frame_rig_merged(f, frame_rig_site(f, name, KEEL_ADAM_RMS));
    CHECK(merged.n == 1 && merged.replica_residual == 0);
    return (double)merged.max;
}

static void train_seen(keel_train_config *config, bool shared, frame_rig *f, rig *r) {
    static rig_record record;
    config->parallel.enable_parallel_optimizer = shared;
    const keel_backend backend = frame_rig_backend(f);
    CHECK(rig_open_with(config, &language, false, &record, &backend, r) == KEEL_OK);
    CHECK(keel_trainer_run(r->trainer) == KEEL_OK);
}

static void test_same_statistics(int64_t bucket_bytes) {
    char *folder = rig_folder();
    frame_rig whole = {0}, shared = {0};
    rig a, b;
    keel_train_config config = rig_config(folder, 1);
    config.runner.steps = 5;
    config.parallel.bucket_bytes = bucket_bytes;
    train_seen(&config, false, &whole, &a);
    char other[80];
    snprintf(other, sizeof other, "%s/shared", folder);
    config.runner.output_dir = other;
    train_seen(&config, true, &shared, &b);
    size_t count, states_count;
    const keel_param *params = keel_model_params(b.trainer->model, &count);
    const keel_optimizer_state *states = keel_optimizer_states(b.trainer->optimizer, &states_count);
    const struct {
        keel_quantity quantity;
        float *whole;
    } seen[] = {{KEEL_WEIGHT, rig_whole(b.trainer, keel_model_weights(b.trainer->model), false)},
                {KEEL_GRAD_REDUCED, rig_whole(b.trainer, keel_buckets_gradient(b.trainer->buckets), false)},
                {KEEL_EXP_AVG, rig_whole(b.trainer, states[0].data, true)},
                {KEEL_EXP_AVG_SQ, rig_whole(b.trainer, states[1].data, true)}};
    for (size_t i = 0; i < count; i++) {
        const char *name = params[i].name;
        for (size_t k = 0; k < 4; k++) check_whole(&shared, &params[i], seen[k].quantity, seen[k].whole);
        check_order(&shared, name);
        check_numbers(&shared, name, KEEL_UPDATE, params[i].numel);
        check_numbers(&shared, name, KEEL_ADAM_DIRECTION, params[i].numel);
        CHECK(near(rms_of(&shared, name), rms_of(&whole, name), 1e-4));
    }
    for (size_t k = 0; k < 4; k++) free(seen[k].whole);
    const float *weights = keel_model_weights(b.trainer->model), *others = keel_model_weights(a.trainer->model);
    for (size_t i = 0; i < keel_model_numel(b.trainer->model); i++) CHECK(fabsf(weights[i] - others[i]) < 1e-4f);
    // Every rank has come to the same bits, those of other owners too.
    float *first = malloc(keel_model_numel(b.trainer->model) * sizeof *first);
    CHECK(first != NULL);
    memcpy(first, weights, keel_model_numel(b.trainer->model) * sizeof *first);
    MPI_Bcast(first, (int)keel_model_numel(b.trainer->model), MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(memcmp(first, weights, keel_model_numel(b.trainer->model) * sizeof *first) == 0);
    free(first);
    // What a thread keeps beside the states does not shrink.
    const size_t all = keel_optimizer_bytes(a.trainer->optimizer), own = keel_optimizer_bytes(b.trainer->optimizer);
    const size_t saved = 2 * sizeof(float) * (keel_model_numel(b.trainer->model) - b.trainer->zero.own_numel);
    CHECK(own <= all - saved + 16384);
    if (check_size > 1)
        CHECK((double)b.trainer->zero.own_numel < 1.1 * (double)keel_model_numel(b.trainer->model) / check_size);
    rig_close(&a);
    rig_close(&b);
    free(whole.frame);
    free(shared.frame);
    rig_remove_folder(folder);
}

// ---- steps that go wrong ----

// A gradient that is not finite on one rank alone, in what another one owns; and a rank that skips an update.
static void test_faults(void) {
    static rig_record record;
    static char site[] = "layers.1.mlp.down.weight", quantity[] = "grad_unreduced";
    keel_fault_config faults[] = {
        {.kind = KEEL_FAULT_NAN, .site = site, .quantity = quantity, .step = 3, .steps = 1, .rank = check_size - 1},
        {.kind = KEEL_FAULT_REPLICA_SKIP, .step = 5, .steps = 1, .rank = check_size - 1},
    };
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.parallel.enable_parallel_optimizer = true;
    config.faults = faults;
    config.fault_count = 2;
    frame_rig f = {0};
    rig r;
    const keel_backend backend = frame_rig_backend(&f);
    CHECK(rig_open_with(&config, &language, false, &record, &backend, &r) == KEEL_OK);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    if (check_rank == 0) {
        CHECK(record.count == 31);
        for (size_t i = 0; i < 31; i++) CHECK(!(record.steps[i].flags & KEEL_STEP_SKIPPED) == (i != 2));
        CHECK(isnan(record.norms[2]) && isfinite(record.losses[30]));
    }
    rig_close(&r);
    free(f.frame);
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    test_same_training(1, 4096, false);
    test_same_training(1, 1000, true);
    if (check_size <= 2) test_same_training(2, 4 << 20, false);
    check_say("the same training");
    test_same_statistics(4096);
    test_same_statistics(1000);
    test_same_statistics(4 << 20);
    check_say("the same statistics");
    test_faults();
    check_say("faults");
    MPI_Finalize();
    return 0;
}
