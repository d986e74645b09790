// Optimizer states that lie in a file: the same bits, and no more of them in memory than the limit says.
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/mpi/trainer_rig.h"
#include "train/optim/offload.h"

enum { PAGE = 4096 };

static keel_sequences language;

// ---- what of the states is in memory, looked at all the time ----

typedef struct sampler {
    const float *states[2];
    size_t bytes; // of one
    atomic_bool stop;
    size_t most, samples;
    pthread_t thread;
} sampler;

// Pages in memory, of this process or of the system's cache of the file.
static size_t resident(const void *data, size_t bytes) {
    static unsigned char pages[1 << 16];
    const size_t count = (bytes + PAGE - 1) / PAGE;
    CHECK(count <= sizeof pages && (uintptr_t)data % PAGE == 0);
    CHECK(mincore((void *)data, bytes, pages) == 0);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) found += pages[i] & 1;
    return found * PAGE;
}

static void *sample(void *context) {
    sampler *s = context;
    while (!atomic_load(&s->stop)) {
        const size_t now = resident(s->states[0], s->bytes) + resident(s->states[1], s->bytes);
        if (now > s->most) s->most = now;
        s->samples++;
        usleep(200);
    }
    return NULL;
}

static void begin_sampling(const rig *r, sampler *s) {
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r->trainer->optimizer, &count);
    *s = (sampler){.states = {states[0].data, states[1].data}, .bytes = r->trainer->zero.own_numel * sizeof(float)};
    CHECK(pthread_create(&s->thread, NULL, sample, s) == 0);
}

static void end_sampling(sampler *s) {
    atomic_store(&s->stop, true);
    CHECK(pthread_join(s->thread, NULL) == 0);
}

// ---- a disk that fails ----

static atomic_int writes_left = -1; // before this rank's disk fails; -1: it does not

// In place of the C library's.
int sync_file_range(int file, off_t at, off_t size, unsigned flags) {
    if (atomic_load(&writes_left) == 0) {
        errno = EIO;
        return -1;
    }
    if (atomic_load(&writes_left) > 0) atomic_fetch_sub(&writes_left, 1);
    return (int)syscall(SYS_sync_file_range, file, at, size, flags);
}

// ---- the tests ----

// Of so many parameters that their states are several times the least limit.
static keel_train_config big_config(char *folder, bool shared) {
    keel_train_config config = rig_config(folder, 1);
    config.model.hidden_size = 96;
    config.model.intermediate_size = 200;
    config.lr.learning_rate = 3e-3;
    config.runner.steps = 6;
    config.checkpoint.save_interval = 6;
    config.parallel.enable_parallel_optimizer = shared;
    config.parallel.bucket_bytes = 100000;
    return config;
}

static void test_same_bits(bool shared) {
    static rig_record plain, record;
    static char name[] = "layers.1.mlp.down.weight", quantity[] = "grad_unreduced";
    keel_fault_config fault = {
        .kind = KEEL_FAULT_NAN, .site = name, .quantity = quantity, .step = 3, .steps = 1, .rank = -1};
    char *folder = rig_folder(), path[512], where[512];
    memset(&plain, 0, sizeof plain);
    memset(&record, 0, sizeof record);
    snprintf(where, sizeof where, "%s", folder);
    snprintf(path, sizeof path, "%s/plain", folder);
    keel_train_config config = big_config(path, shared);
    config.faults = &fault; // a step that is skipped looks at all states, too
    config.fault_count = 1;
    rig r;
    CHECK(rig_open(&config, &language, false, &plain, &r) == KEEL_OK);
    const size_t bytes = 2 * r.trainer->zero.own_numel * sizeof(float);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    float *weights = rig_whole(r.trainer, keel_model_weights(r.trainer->model), false);
    const size_t numel = keel_model_numel(r.trainer->model);
    rig_close(&r);

    snprintf(path, sizeof path, "%s/offloaded", folder);
    config.optimizer.offload = (keel_offload_config){.folder = where, .memory_limit = (int64_t)bytes / 3 - 1};
    sampler s;
    CHECK(rig_open(&config, &language, false, &record, &r) == KEEL_OK);
    CHECK(keel_optimizer_disk(r.trainer->optimizer) > bytes / 2);
    begin_sampling(&r, &s);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    end_sampling(&s);
    if (!(s.samples > 12 && s.most <= bytes / 3))
        fprintf(stderr, "%zu samples, at most %zu of %zu bytes in memory\n", s.samples, s.most, bytes);
    CHECK(s.samples > 12 && s.most > bytes / 10 && s.most <= bytes / 3);
    CHECK(keel_optimizer_waited(r.trainer->optimizer) > 0);
    float *again = rig_whole(r.trainer, keel_model_weights(r.trainer->model), false);
    CHECK(memcmp(weights, again, numel * sizeof *weights) == 0);
    rig_close(&r);
    rig_check_same(&plain, &record, 1, 2);
    rig_check_same(&plain, &record, 4, 7);
    if (check_rank == 0) {
        CHECK(record.count == 7 && record.steps[2].flags & KEEL_STEP_SKIPPED);
        CHECK(strstr(record.notes, "optimizer.offload: an update reads and writes "));
    }

    // Its checkpoint goes on as the other one would.
    memset(&record, 0, sizeof record);
    config.checkpoint.save_interval = 0;
    config.runner.steps = 9;
    CHECK(rig_train(&config, &language, true, &record) == KEEL_OK);
    memset(&plain, 0, sizeof plain);
    snprintf(path, sizeof path, "%s/plain", folder);
    config.optimizer.offload.folder = NULL;
    CHECK(rig_train(&config, &language, true, &plain) == KEEL_OK);
    rig_check_same(&plain, &record, 8, 10);
    if (check_rank == 0) CHECK(plain.count == 3 && record.count == 3);
    free(weights);
    free(again);
    rig_remove_folder(folder);
}

static void check_lost(const char *where) {
    char wanted[600];
    snprintf(wanted, sizeof wanted, "optimizer.offload.folder: %s: states could not be written: Input/output error",
             where);
    CHECK(strcmp(keel_error(), wanted) == 0);
}

// What one rank's disk loses, after WRITES of its writes, ends the run on all ranks alike.
static void test_failing_disk(bool shared, int writes, const char *what) {
    static rig_record record;
    static char name[] = "layers.1.mlp.down.weight", quantity[] = "grad_unreduced";
    keel_fault_config fault = {
        .kind = KEEL_FAULT_NAN, .site = name, .quantity = quantity, .step = 1, .steps = 1, .rank = -1};
    char *folder = rig_folder(), where[512];
    memset(&record, 0, sizeof record);
    snprintf(where, sizeof where, "%s", folder);
    keel_train_config config = big_config(folder, shared);
    config.optimizer.offload = (keel_offload_config){.folder = where, .memory_limit = 90000};
    config.faults = &fault; // the first step is skipped
    config.fault_count = 1;
    const bool here = check_rank == check_size - 1;
    atomic_store(&writes_left, here ? writes : -1);
    CHECK(rig_train(&config, &language, false, &record) == KEEL_ERR_IO);
    CHECK(!here || atomic_load(&writes_left) == 0);
    atomic_store(&writes_left, -1);
    check_lost(where);
    rig_remove_folder(folder);
    check_say(what);
}

// Where states are lost while a checkpoint is made, there is none.
static void test_failing_checkpoint(bool shared) {
    static rig_record record;
    char *folder = rig_folder(), where[512], path[600];
    memset(&record, 0, sizeof record);
    snprintf(where, sizeof where, "%s", folder);
    keel_train_config config = big_config(folder, shared);
    config.optimizer.offload = (keel_offload_config){.folder = where, .memory_limit = 90000};
    const bool all_write = shared || check_size == 1, here = check_rank == check_size - 1;
    double loss, norm;
    rig r;
    CHECK(rig_open(&config, &language, false, &record, &r) == KEEL_OK);
    CHECK(keel_trainer_step(r.trainer, &loss, &norm) == KEEL_OK);
    atomic_store(&writes_left, here ? 0 : -1);
    keel_trainer_save(r.trainer, false);
    snprintf(path, sizeof path, "%s/checkpoints/step-0000000001.safetensors", where);
    if (check_rank == 0) {
        CHECK((access(path, F_OK) == 0) == !all_write);
        CHECK((strstr(record.notes, "checkpoint at step 1 failed, training goes on: optimizer.offload") != NULL) ==
              all_write);
    }
    CHECK(keel_trainer_step(r.trainer, &loss, &norm) == KEEL_ERR_IO);
    check_lost(where);
    atomic_store(&writes_left, -1);
    rig_close(&r);
    rig_remove_folder(folder);
    check_say("a disk that fails under a checkpoint");
}

static void expect_refused(keel_offload_config config, const char *text) {
    keel_offload *offload;
    CHECK(keel_offload_open(&config, 1 << 20, &offload) == KEEL_ERR_CONFIG);
    if (!strstr(keel_error(), text)) fprintf(stderr, "not in it: %s\n", text);
    CHECK(strstr(keel_error(), text) != NULL && offload == NULL);
}

static void test_refusals(void) {
    char *folder = rig_folder(), lacking[512], memory[] = "/dev/shm";
    snprintf(lacking, sizeof lacking, "%s/lacking", folder);
    expect_refused((keel_offload_config){.folder = folder, .memory_limit = 1000}, "1000 bytes, at least 81920");
    expect_refused((keel_offload_config){.folder = lacking, .memory_limit = 1 << 20},
                   "lacking: No such file or directory");
    if (access(memory, W_OK) == 0)
        expect_refused((keel_offload_config){.folder = memory, .memory_limit = 1 << 20}, "/dev/shm lies in memory");
    struct rlimit old, small; // as a disk that is full
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old;
    small.rlim_cur = 1 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    expect_refused((keel_offload_config){.folder = folder, .memory_limit = 1 << 20}, "bytes cannot be reserved: ");
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, handler);
    // What fits needs no file.
    keel_offload *offload = NULL;
    CHECK(keel_offload_open(&(keel_offload_config){.folder = folder, .memory_limit = 8 << 20}, 1 << 20, &offload) ==
          KEEL_OK);
    CHECK(offload == NULL);
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    test_refusals();
    check_say("what is refused");
    test_same_bits(false);
    check_say("the same bits");
    if (check_size > 1) test_same_bits(true);
    check_say("the same bits with optimizer parallel");
    for (int shared = 0; shared < (check_size > 1 ? 2 : 1); shared++) {
        test_failing_disk(shared, 0, "a disk that fails in a skipped step");
        test_failing_disk(shared, 100, "a disk that fails later");
        test_failing_checkpoint(shared);
    }
    MPI_Finalize();
    return 0;
}
