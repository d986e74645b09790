// Trainings in bfloat16 and float16 on several ranks.
#include <math.h>

#include "tests/mpi/trainer_rig.h"

static rig_record first, second;

// A monitor that sees everything, and adds up what float16 makes of gradients.
typedef struct watcher {
    keel_probe *probe;
    keel_frame *frame;
    uint32_t sites, scalars;
    uint64_t flushed, nonzero;         // activation_grad of the layers' inner sites
    uint64_t sums, not_bf16, not_fp16; // values before and after the sums over ranks
    double scale;                      // the scalar, last seen; NaN: none
} watcher;

static keel_status start(void *context, keel_probe *probe, keel_site_plan *plans) {
    watcher *w = context;
    w->probe = probe;
    w->sites = keel_probe_site_count(probe);
    w->scalars = keel_probe_scalar_count(probe);
    w->scale = NAN;
    for (uint32_t i = 0; i < w->sites; i++)
        plans[i] = (keel_site_plan){.fields = KEEL_FIELDS_ALL, .schedule = {.start = 1, .every = 1}, .eps = 1e-8};
    w->frame = aligned_alloc(64, (keel_frame_bytes(w->scalars, w->sites, 0, 0) + 63) / 64 * 64);
    CHECK(w->frame != NULL);
    return KEEL_OK;
}

static keel_frame *frame_begin(void *context, uint64_t step) {
    (void)step;
    const watcher *w = context;
    return keel_frame_init(w->frame, w->scalars, w->sites, 0, 0);
}

static void frame_end(void *context, keel_frame *frame, const keel_step *step) {
    (void)step;
    watcher *w = context;
    for (uint32_t i = 0; i < w->sites; i++) {
        const keel_site_info *site = keel_probe_site_info(w->probe, i);
        const keel_stats *stats = &keel_frame_stats(frame)[i];
        if (site->dtype == KEEL_F32 &&
            (site->quantity == KEEL_COLLECTIVE_IN || site->quantity == KEEL_COLLECTIVE_OUT)) {
            w->sums += stats->n;
            w->not_bf16 += stats->not_bf16;
            w->not_fp16 += stats->not_fp16;
        }
        if (site->quantity != KEEL_ACTIVATION_GRAD || site->layer < 0) continue;
        w->flushed += stats->fp16_flush;
        w->nonzero += stats->n - stats->zeros;
    }
    for (uint32_t i = 0; i < w->scalars; i++)
        if (strcmp(keel_probe_scalar_name(w->probe, i), "loss_scale") == 0)
            w->scale = keel_frame_scalars(frame)[i].value;
}

// The mean loss of the last five steps.
static double final_loss(const rig_record *record) {
    double sum = 0;
    for (uint64_t i = record->count - 5; i < record->count; i++) sum += record->losses[i];
    return sum / 5;
}

static void train(const keel_train_config *config, rig_record *record) {
    const keel_sequences language = rig_language();
    *record = (rig_record){0};
    CHECK(rig_train(config, &language, false, record) == KEEL_OK);
}

// The loss in bfloat16 stays near that of float32 and is not the same; the same run again gives the same bits.
static void test_bfloat16_stays_near(const char *folder, int64_t accumulation) {
    keel_train_config config = rig_config((char *)folder, accumulation);
    train(&config, &first);
    config.model.compute_dtype = KEEL_BFLOAT16;
    train(&config, &second);
    for (uint64_t i = 0; i < second.count; i++) {
        CHECK(first.losses[i] != second.losses[i]);
        CHECK(fabs(first.losses[i] - second.losses[i]) < 0.02 * first.losses[i]);
    }
    train(&config, &first);
    rig_check_same(&first, &second, 1, 30);
}

static double size_of(const rig *r, const char *name) {
    size_t count;
    const keel_param *params = keel_model_params(r->trainer->model, &count);
    double squares = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; strcmp(params[i].name, name) == 0 && k < params[i].numel; k++)
            squares += pow((double)keel_model_weights(r->trainer->model)[params[i].offset + k], 2);
    return sqrt(squares);
}

// As train, watched by W. *SIZE: norm of a parameter at the end.
static keel_status train_watched(const keel_train_config *config, rig_record *record, watcher *w, const char *param,
                                 double *size) {
    const keel_sequences language = rig_language();
    const keel_backend backend = {.context = w, .start = start, .frame_begin = frame_begin, .frame_end = frame_end};
    rig r;
    *record = (rig_record){0};
    *w = (watcher){0};
    keel_status status = rig_open_with(config, &language, false, record, &backend, &r);
    if (!status) status = keel_trainer_run(r.trainer);
    if (!status) *size = size_of(&r, param);
    rig_close(&r);
    free(w->frame);
    return status;
}

// With one rank there is no sum over ranks: the bits are those of float32. With more they differ, and are the same in
// every run.
static void test_gradient_sums(const char *folder) {
    keel_train_config config = rig_config((char *)folder, 1);
    for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
        config.parallel.grad_reduce_dtype = KEEL_FLOAT32;
        train(&config, &first);
        config.parallel.grad_reduce_dtype = precision;
        watcher w;
        double size;
        CHECK(train_watched(&config, &second, &w, "head.weight", &size) == KEEL_OK);
        CHECK((w.sums > 0) == (check_size > 1));
        CHECK((precision == KEEL_BFLOAT16 ? w.not_bf16 : w.not_fp16) == 0);
        if (check_size > 1) CHECK((precision == KEEL_BFLOAT16 ? w.not_fp16 : w.not_bf16) > 0);
        if (check_rank == 0) {
            CHECK((first.norms[0] == second.norms[0]) == (check_size == 1));
            CHECK(fabs(final_loss(&first) - final_loss(&second)) < 0.05 * final_loss(&first));
        }
        train(&config, &first);
        rig_check_same(&first, &second, 1, 30);
    }
}

static void test_watching_changes_no_bit(const char *folder) {
    keel_train_config config = rig_config((char *)folder, 1);
    watcher w;
    double size;
    for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
        config.model.compute_dtype = precision;
        config.parallel.grad_reduce_dtype = precision;
        config.wrapper.scale_sense = (keel_loss_scale_config){
            .type = KEEL_LOSS_SCALE_DYNAMIC, .loss_scale_value = 0x1p20, .scale_factor = 2, .scale_window = 5};
        train(&config, &first);
        CHECK(train_watched(&config, &second, &w, "head.weight", &size) == KEEL_OK);
        CHECK(first.count == second.count);
        if (first.count > 0) rig_check_same(&first, &second, 1, first.count);
        CHECK(w.scale >= 1);
    }
}

// Weights so small that what comes down through an activation is below what float16 holds: the only ones that may learn
// do not, as they do in float32 and with a scale.
static void test_float16_needs_a_scale(const char *folder) {
    keel_train_config config = rig_config((char *)folder, 1);
    keel_param_group_config groups[] = {{.params = "gate_up", .lr_scale = 1, .weight_decay = 0, .max_grad_norm = NAN},
                                        {.params = ".", .lr_scale = 0, .weight_decay = 0, .max_grad_norm = NAN}};
    config.model.initializer_range = 1e-4;
    config.optimizer.groups = groups;
    config.optimizer.group_count = 2;
    watcher full, without, with;
    double sizes[3] = {0};
    CHECK(train_watched(&config, &first, &full, "layers.0.mlp.gate_up.weight", &sizes[0]) == KEEL_OK);
    config.model.compute_dtype = KEEL_FLOAT16;
    CHECK(train_watched(&config, &second, &without, "layers.0.mlp.gate_up.weight", &sizes[1]) == KEEL_OK);
    CHECK(isnan(without.scale));
    config.wrapper.scale_sense = (keel_loss_scale_config){
        .type = KEEL_LOSS_SCALE_DYNAMIC, .loss_scale_value = 65536, .scale_factor = 2, .scale_window = 10};
    CHECK(train_watched(&config, &second, &with, "layers.0.mlp.gate_up.weight", &sizes[2]) == KEEL_OK);
    const double a = (double)without.flushed / (double)without.nonzero, b = (double)with.flushed / (double)with.nonzero;
    CHECK(a > 0.3 && b < 0.6 * a);
    CHECK(sizes[1] < 0.25 * sizes[0] && fabs(sizes[2] - sizes[0]) < 0.05 * sizes[0]);
}

static keel_train_config float16_config(const char *folder, double scale) {
    keel_train_config config = rig_config((char *)folder, 1);
    config.model.compute_dtype = KEEL_FLOAT16;
    config.wrapper.scale_sense = (keel_loss_scale_config){
        .type = KEEL_LOSS_SCALE_DYNAMIC, .loss_scale_value = scale, .scale_factor = 2, .scale_window = 6};
    return config;
}

// The search for the scale from far above: more overflows in a row than would stop a run, each with half the scale of
// the one before, then a training as in float32.
static void test_search(const char *folder) {
    keel_train_config config = rig_config((char *)folder, 1);
    train(&config, &first);
    config = float16_config(folder, 0x1p40);
    train(&config, &second);
    if (check_rank != 0) return;
    const uint32_t both = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
    uint64_t overflows = 0, clean = 0;
    for (uint64_t i = 0; i < second.count; i++) {
        const bool overflow = second.steps[i].flags & KEEL_STEP_OVERFLOW;
        CHECK((second.steps[i].flags & both) == (overflow ? both : 0));
        CHECK(isfinite(second.norms[i]) == !overflow && isfinite(second.losses[i]));
        const double factor = overflow ? 0.5 : ++clean == 6 ? 2 : 1;
        if (factor != 1) clean = 0;
        if (i + 1 < second.count) CHECK(second.scales[i + 1] == factor * second.scales[i]);
        overflows += overflow;
    }
    CHECK(second.scales[0] == 0x1p40 && overflows > 10 && second.count == 30 + overflows);
    CHECK(final_loss(&second) < 1.2 * final_loss(&first)); // of other batches: those of skipped steps are gone
}

// What no lower scale mends does stop the run: a scale that is fixed, and a loss that is not finite.
static void test_scale_does_not_hide(const char *folder) {
    keel_train_config config = float16_config(folder, 0x1p40);
    const keel_sequences language = rig_language();
    config.wrapper.scale_sense.type = KEEL_LOSS_SCALE_FIXED;
    first = second = (rig_record){0};
    CHECK(rig_train(&config, &language, false, &first) == KEEL_ERR_DIVERGED);
    CHECK(strstr(keel_error(), "at the loss scale 1.09951e+12, and the last 3 updates were skipped"));
    keel_fault_config fault = {.kind = KEEL_FAULT_NAN,
                               .step = 4,
                               .steps = 9,
                               .rank = check_size - 1,
                               .site = "layers.1.mlp.down",
                               .quantity = "activation"};
    config = float16_config(folder, 65536);
    config.faults = &fault;
    config.fault_count = 1;
    CHECK(rig_train(&config, &language, false, &second) == KEEL_ERR_DIVERGED);
    CHECK(strstr(keel_error(), "stopped at step 6: the loss was not finite"));
    if (check_rank != 0) return;
    CHECK(first.count == 3 && second.count == 6);
    CHECK((first.steps[2].flags & (KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW)) == KEEL_STEP_SKIPPED);
    CHECK((second.steps[5].flags & (KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW)) == KEEL_STEP_SKIPPED);
}

// The scale and its window are part of a checkpoint.
static void test_resume(const char *folder) {
    const keel_sequences language = rig_language();
    char whole[128], cut[128];
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(cut, sizeof cut, "%s/cut", folder);
    keel_train_config config = float16_config(whole, 0x1p26);
    config.checkpoint.save_interval = 100;
    train(&config, &first);
    config.runner.output_dir = cut;
    config.runner.steps = 14;
    train(&config, &second);
    const uint64_t steps = second.count;
    config.runner.steps = 30;
    CHECK(rig_train(&config, &language, true, &second) == KEEL_OK);
    if (check_rank != 0) return;
    CHECK(!strstr(second.notes, "bit for bit"));
    CHECK(first.count == second.count && steps > 14 && (steps - 14) % 6 != 0);
    rig_check_same(&first, &second, 1, first.count);
    bool changed = false;
    for (uint64_t i = 0; i < first.count; i++) {
        CHECK(first.scales[i] == second.scales[i]);
        changed |= i > steps && first.scales[i] != first.scales[steps];
    }
    CHECK(changed);
}

int main(void) {
    int provided;
    check_begin(&provided);
    const char *folder = rig_folder();
    test_bfloat16_stays_near(folder, 1);
    if (check_size < 4) test_bfloat16_stays_near(folder, 2);
    check_say("bfloat16");
    test_gradient_sums(folder);
    check_say("sums of gradients in 16 bits");
    test_watching_changes_no_bit(folder);
    check_say("watched or not");
    test_float16_needs_a_scale(folder);
    check_say("float16 with a loss scale");
    test_search(folder);
    test_scale_does_not_hide(folder);
    check_say("the search for the scale");
    test_resume(folder);
    check_say("resume of the scale");
    rig_remove_folder(folder);
    MPI_Finalize();
    return 0;
}
