// The trainer as its monitor sees it: every site is observed whole, and the monitor's word on checkpoints counts.
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/mpi/trainer_rig.h"

static keel_sequences language;

// A monitor that keeps the last frame, and says of its health what the test wants.
typedef struct watcher {
    keel_probe *probe;
    keel_frame *frame;
    uint32_t sites, scalars;
    uint64_t frames, drains, saves, loads, loaded_step;
    keel_health health;
} watcher;

static const char saved_state[] = "the state of all detectors";

static keel_status start(void *context, keel_probe *probe, keel_site_plan *plans) {
    watcher *w = context;
    w->probe = probe;
    w->sites = keel_probe_site_count(probe);
    w->scalars = keel_probe_scalar_count(probe);
    for (uint32_t i = 0; i < w->sites; i++)
        plans[i] = (keel_site_plan){.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = {1, 1, 0}};
    const size_t bytes = keel_frame_bytes(w->scalars, w->sites, 0, 0);
    w->frame = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(w->frame != NULL);
    return KEEL_OK;
}

static keel_frame *frame_begin(void *context, uint64_t step) {
    (void)step;
    watcher *w = context;
    return keel_frame_init(w->frame, w->scalars, w->sites, 0, 0);
}

static void frame_end(void *context, keel_frame *frame, const keel_step *step) {
    watcher *w = context;
    CHECK(frame == w->frame && step->step >= ++w->frames);
    w->health.judged_step = step->step;
}

static keel_health health(void *context) {
    return ((watcher *)context)->health;
}

static keel_status drain(void *context) {
    ((watcher *)context)->drains++;
    return KEEL_OK;
}

static keel_status save(void *context, void **bytes, size_t *size) {
    ((watcher *)context)->saves++;
    *bytes = malloc(sizeof saved_state);
    if (!*bytes) return keel_fail(KEEL_ERR_MEMORY, "no memory for the state");
    memcpy(*bytes, saved_state, sizeof saved_state);
    *size = sizeof saved_state;
    return KEEL_OK;
}

static keel_status load(void *context, uint64_t step, const void *bytes, size_t size) {
    watcher *w = context;
    w->loads++;
    w->loaded_step = step;
    if (check_rank == 0)
        CHECK(size == sizeof saved_state && memcmp(bytes, saved_state, size) == 0);
    else
        CHECK(bytes == NULL && size == 0);
    return KEEL_OK;
}

// As rig_train, watched by W.
static keel_status train_watched(const keel_train_config *config, bool resume, rig_record *record, watcher *w, rig *r) {
    const keel_backend backend = {.context = w,
                                  .start = start,
                                  .frame_begin = frame_begin,
                                  .frame_end = frame_end,
                                  .health = health,
                                  .drain = drain,
                                  .save = save,
                                  .load = load};
    keel_status status = rig_open_with(config, &language, resume, record, &backend, r);
    return status ? status : keel_trainer_run(r->trainer);
}

static void end(rig *r, watcher *w) {
    rig_close(r);
    free(w->frame);
    *w = (watcher){0};
}

// In the last step every site was observed, each micro-batch once where it is of one.
static void check_sites(const watcher *w, uint64_t accumulation) {
    for (uint32_t i = 0; i < w->sites; i++) {
        const keel_site_info *site = keel_probe_site_info(w->probe, i);
        const bool micro = site->quantity == KEEL_ACTIVATION || site->quantity == KEEL_ACTIVATION_GRAD ||
                           site->quantity == KEEL_GRAD_UNREDUCED;
        const uint64_t wanted = site->numel * (micro ? accumulation : 1);
        const keel_stats *stats = &keel_frame_stats(w->frame)[i];
        // A frame that is over is sealed: of replicas the first one alone keeps its counts.
        if (site->layout == KEEL_LAYOUT_REPLICA && check_rank != 0) continue;
        const double norm = keel_stats_view(stats, KEEL_OP_norm);
        if (stats->n != wanted || !isfinite(norm))
            fprintf(stderr, "%s %s: %llu of %llu values, norm %g\n", site->name, keel_quantity_name(site->quantity),
                    (unsigned long long)stats->n, (unsigned long long)wanted, norm);
        CHECK(stats->n == wanted && isfinite(norm));
    }
}

static double scalar(const watcher *w, const char *name) {
    for (uint32_t i = 0; i < w->scalars; i++)
        if (strcmp(keel_probe_scalar_name(w->probe, i), name) == 0) return keel_frame_scalars(w->frame)[i].value;
    CHECK(name == NULL); // there is none of this name
    return NAN;
}

// Replicas: the residuals of all ranks add up to zero exactly where every copy has the same bits.
static void check_replicas(const watcher *w) {
    for (uint32_t i = 0; i < w->sites; i++) {
        if (keel_probe_site_info(w->probe, i)->layout != KEEL_LAYOUT_REPLICA) continue;
        uint64_t residual = keel_frame_stats(w->frame)[i].replica_residual;
        MPI_Allreduce(MPI_IN_PLACE, &residual, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        CHECK(residual == 0);
    }
}

static void check_collectives(const rig *r, uint64_t steps) {
    size_t gradients = 0, every_step = 0;
    const keel_collective *collective;
    for (size_t i = 0; (collective = keel_collectives_get(r->trainer->collectives, i)); i++) {
        CHECK(collective->waited <= collective->seconds + 1e-9);
        if (collective->plan.when != KEEL_EVERY_STEP) continue;
        if (check_size > 1) CHECK(collective->calls == steps && collective->seconds > 0);
        every_step++;
        if (collective->plan.dtype == KEEL_F32) gradients += collective->plan.count;
    }
    CHECK(every_step > 0 && gradients == (check_size > 1 ? keel_model_numel(r->trainer->model) : 0));
}

static void test_every_site(int64_t accumulation) {
    static rig_record plain, watched;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, accumulation);
    watcher w = {0};
    rig r;
    CHECK(rig_train(&config, &language, false, &plain) == KEEL_OK);
    CHECK(train_watched(&config, false, &watched, &w, &r) == KEEL_OK);
    rig_check_same(&plain, &watched, 1, 30);
    CHECK(w.frames == 30);
    check_sites(&w, (uint64_t)accumulation);
    check_replicas(&w);
    check_collectives(&r, 30);
    if (check_rank == 0) {
        CHECK(scalar(&w, "loss") == watched.losses[29] && scalar(&w, "perplexity") == exp(watched.losses[29]));
        CHECK(scalar(&w, "grad_norm") == watched.norms[29] && scalar(&w, "lr") == watched.rates[29]);
        CHECK(scalar(&w, "clip_factor") == fmin(1, 1 / (watched.norms[29] + 1e-6)));
    }
    double greatest = scalar(&w, "loss_max"), loss = scalar(&w, "loss");
    MPI_Allreduce(MPI_IN_PLACE, &greatest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    CHECK(greatest >= loss * (1 - 1e-12) && greatest < 3 * loss);
    end(&r, &w);
    rig_remove_folder(folder);
}

static bool exists(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void test_state_of_the_monitor(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 10;
    watcher w = {0};
    rig r;
    CHECK(train_watched(&config, false, &record, &w, &r) == KEEL_OK);
    CHECK(w.drains == 3 && w.loads == 0 && w.saves == (check_rank == 0 ? 3 : 0));
    end(&r, &w);
    config.runner.steps = 35;
    CHECK(train_watched(&config, true, &record, &w, &r) == KEEL_OK);
    CHECK(w.loads == 1 && w.loaded_step == 30);
    end(&r, &w);
    rig_remove_folder(folder);
}

static void test_no_checkpoint_while_critical(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 10;
    watcher w = {.health.open_criticals = check_rank == 0};
    rig r;
    CHECK(train_watched(&config, false, &record, &w, &r) == KEEL_OK);
    CHECK(w.drains == 0 && w.saves == 0); // all ranks knew before
    if (check_rank == 0) {
        CHECK(strstr(record.notes, "no checkpoint at step 10: a critical incident is open"));
        CHECK(strstr(record.notes, "no checkpoint at step 30: a critical incident is open"));
        CHECK(!exists(folder, "checkpoints"));
    }
    end(&r, &w);
    rig_remove_folder(folder);
}

static void test_the_monitor_ends_the_run(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 10;
    watcher w = {.health = {.open_criticals = check_rank == 0, .stop = check_rank == 0}};
    rig r;
    CHECK(train_watched(&config, false, &record, &w, &r) == KEEL_ERR_DIVERGED);
    CHECK(strstr(keel_error(), "stopped after step 1 by the monitor"));
    CHECK(w.frames == 1);
    if (check_rank == 0) CHECK(!exists(folder, "checkpoints") && !exists(folder, "model.safetensors"));
    CHECK(!strstr(record.notes, "stopped") && !strstr(record.notes, "no checkpoint")); // the error says it all
    end(&r, &w);
    rig_remove_folder(folder);
}

static void test_marks(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 10;
    config.checkpoint.keep = 1;
    config.checkpoint.keep_healthy = 1;
    watcher w = {.health.quiet_steps = 1000};
    rig r;
    CHECK(train_watched(&config, false, &record, &w, &r) == KEEL_OK);
    if (check_rank == 0) {
        CHECK(!exists(folder, "checkpoints/step-0000000020.safetensors"));
        CHECK(exists(folder, "checkpoints/step-0000000030.safetensors"));
        w.health.judged_step = 230;
        keel_trainer_judge_checkpoints(r.trainer);
        CHECK(exists(folder, "checkpoints/step-0000000030.healthy.safetensors"));
    }
    end(&r, &w);
    config.runner.steps = 50;
    CHECK(train_watched(&config, true, &record, &w, &r) == KEEL_OK);
    if (check_rank == 0) {
        CHECK(exists(folder, "checkpoints/step-0000000030.healthy.safetensors"));
        CHECK(!exists(folder, "checkpoints/step-0000000040.safetensors"));
        CHECK(exists(folder, "checkpoints/step-0000000050.safetensors"));
    }
    end(&r, &w);
    rig_remove_folder(folder);
}

// Writes are refused, as on a full disk: training goes on to its end, and the earlier checkpoint is whole.
static void test_full_disk(void) {
    static rig_record plain, record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 10;
    CHECK(rig_train(&config, &language, false, &plain) == KEEL_OK);
    config.runner.steps = 10;
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    config.runner.steps = 30;

    struct rlimit old, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old;
    small.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const keel_status status = rig_train(&config, &language, true, &record);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, handler);
    CHECK(status == KEEL_ERR_IO && strstr(keel_error(), "model.safetensors")); // the result itself could not be written
    rig_check_same(&plain, &record, 1, 30);
    if (check_rank == 0) {
        CHECK(record.count == 30);
        CHECK(strstr(record.notes, "checkpoint at step 20 failed, training goes on: "));
        CHECK(exists(folder, "checkpoints/step-0000000010.safetensors"));
        CHECK(!exists(folder, "checkpoints/step-0000000020.safetensors"));
        CHECK(!exists(folder, "checkpoints/step-0000000020.safetensors.partial"));
        CHECK(exists(folder, "earlier.1/checkpoints/step-0000000030.safetensors"));
    }
    CHECK(rig_train(&config, &language, true, &record) == KEEL_OK);
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    test_every_site(1);
    if (check_size <= 2) test_every_site(2);
    check_say("every site");
    test_state_of_the_monitor();
    test_no_checkpoint_while_critical();
    test_the_monitor_ends_the_run();
    test_marks();
    check_say("checkpoints and health");
    test_full_disk();
    check_say("full disk");
    MPI_Finalize();
    return 0;
}
