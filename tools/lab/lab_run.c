#include "tools/lab/lab_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { TRAINED = 0, STOPPED_BY_ITS_RULES = 1 };

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for a run of the laboratory");
}

KEEL_PRINTF(1, 2) static char *format_text(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    return length < 0 ? NULL : text;
}

// ---- the configuration ----

keel_status keel_lab_run_open(const char *folder, const char *name, uint64_t seed, uint64_t number, keel_lab_run *run) {
    char *path = format_text("%s/%s.yaml", folder, name);
    if (!path) return no_memory();
    *run = (keel_lab_run){.number = number, .seed = seed >> 11};
    const keel_status status = keel_lab_case_load(path, seed, &run->lab_case);
    free(path);
    if (!status) run->stages = 1 + keel_yaml_size(run->lab_case->resume);
    return status;
}

void keel_lab_run_close(keel_lab_run *run) {
    keel_lab_case_free(run->lab_case);
    free(run->dir);
    *run = (keel_lab_run){0};
}

static keel_status set_places(const keel_lab_run *run, keel_yaml *doc) {
    char seed[64];
    snprintf(seed, sizeof seed, "runner_config.seed=%llu", (unsigned long long)run->seed);
    const char *sets[] = {seed, "runner_config.output_dir=out", "monitor.output=run", "train_dataset.shards=shards"};
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < sizeof sets / sizeof *sets; i++) status = keel_yaml_set(doc, sets[i]);
    return status;
}

static keel_status write_text(const char *path, const char *text, size_t size) {
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(text, 1, size, file) == size;
    if (file && fclose(file)) written = false;
    return written ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static char *stage_name(size_t stage) {
    return stage == 0 ? format_text("train.yaml") : format_text("resume-%zu.yaml", stage);
}

// The base, the case, and the resumed stages up to STAGE, one over the other. *doc is set where that succeeds.
static keel_status make_stage(keel_lab_run *run, const char *folder, size_t stage, keel_yaml **doc) {
    keel_yaml *made = NULL;
    char *base = format_text("%s/base.yaml", folder);
    keel_status status = base ? keel_yaml_load(base, &made) : no_memory();
    free(base);
    if (!status) status = keel_yaml_overlay(made, run->lab_case->train);
    for (size_t i = 0; !status && i < stage; i++)
        status = keel_yaml_overlay(made, keel_yaml_item(run->lab_case->resume, i));
    if (!status) status = set_places(run, made);
    if (status) {
        keel_yaml_free(made);
        return status;
    }
    *doc = made;
    return KEEL_OK;
}

keel_status keel_lab_run_plan(keel_lab_run *run, const char *folder) {
    keel_yaml *doc = NULL;
    int64_t steps = 0;
    keel_status status = make_stage(run, folder, run->stages - 1, &doc);
    if (status) return status;
    status = keel_yaml_to_int(keel_yaml_get(keel_yaml_get(keel_yaml_root(doc), "runner_config"), "steps"), &steps);
    keel_yaml_free(doc);
    if (!status) run->steps = (uint64_t)steps;
    return status;
}

static keel_status write_training_text(const keel_lab_run *run, const keel_yaml *doc) {
    char *path = format_text("%s/text.txt", run->dir);
    if (!path) return no_memory();
    const keel_yaml_node *files = keel_yaml_get(keel_yaml_get(keel_yaml_root(doc), "train_dataset"), "text");
    const keel_status status = keel_lab_text_write(&run->lab_case->text, files, path);
    free(path);
    return status;
}

static keel_status write_stage(keel_lab_run *run, const char *folder, size_t stage) {
    keel_yaml *doc = NULL;
    char *text = NULL, *name = stage_name(stage), *path = name ? format_text("%s/%s", run->dir, name) : NULL;
    size_t size = 0;
    keel_status status = path ? make_stage(run, folder, stage, &doc) : no_memory();
    if (!status && stage == 0) status = write_training_text(run, doc);
    if (!status) status = keel_yaml_set(doc, "train_dataset.text=[text.txt]");
    if (!status) status = keel_yaml_dump(doc, &text, &size);
    if (!status) status = write_text(path, text, size);
    keel_yaml_free(doc);
    free(text);
    free(name);
    free(path);
    return status;
}

keel_status keel_lab_run_prepare(keel_lab_run *run, const char *folder, const char *dir) {
    run->dir = strdup(dir);
    keel_status status = run->dir ? keel_lab_run_plan(run, folder) : no_memory();
    if (!status && mkdir(dir, 0777)) status = keel_fail(KEEL_ERR_IO, "%s: cannot be made: %s", dir, strerror(errno));
    for (size_t stage = 0; !status && stage < run->stages; stage++) status = write_stage(run, folder, stage);
    return status;
}

// ---- the process ----

// As the caller's, with one thread a rank, and what mpirun needs in containers: root, no process_vm_readv, and ranks
// that wait without spinning where there are fewer cores.
static char **make_environment(void) {
    static char *const sets[] = {"OMP_NUM_THREADS=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                 "OMPI_MCA_btl_vader_single_copy_mechanism=none", "OMPI_MCA_mpi_yield_when_idle=1"};
    enum { SETS = sizeof sets / sizeof *sets };
    size_t count = 0;
    while (environ[count]) count++;
    char **made = calloc(count + SETS + 1, sizeof *made);
    size_t used = 0;
    for (size_t i = 0; made && i < count; i++) {
        bool ours = false;
        for (size_t k = 0; k < SETS; k++) ours |= strncmp(environ[i], sets[k], strcspn(sets[k], "=") + 1) == 0;
        if (!ours) made[used++] = environ[i];
    }
    for (size_t k = 0; made && k < SETS; k++) made[used++] = sets[k];
    return made;
}

static keel_status spawn(keel_lab_run *run, char *const *argv) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char **environment = make_environment();
    if (!environment || posix_spawn_file_actions_init(&actions)) {
        free(environment);
        return no_memory();
    }
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawn_file_actions_addchdir_np(&actions, run->dir);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "log", O_WRONLY | O_CREAT | O_APPEND, 0666);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    const int failed = posix_spawnp(&run->pid, argv[0], &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    if (!failed) return KEEL_OK;
    run->pid = 0;
    return keel_fail(KEEL_ERR_IO, "%s: cannot be started: %s", argv[0], strerror(failed));
}

keel_status keel_lab_run_start(keel_lab_run *run, const char *trainer) {
    char *config = stage_name(run->stage), *program = strdup(trainer), ranks[24];
    if (!config || !program) {
        free(config);
        free(program);
        return no_memory();
    }
    snprintf(ranks, sizeof ranks, "%lld", (long long)run->lab_case->ranks);
    char *argv[10];
    size_t used = 0;
    if (run->lab_case->ranks > 1) {
        char *const start[] = {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks};
        for (size_t i = 0; i < sizeof start / sizeof *start; i++) argv[used++] = start[i];
    }
    argv[used++] = program;
    argv[used++] = config;
    if (run->stage > 0) argv[used++] = "--resume";
    argv[used] = NULL;
    const keel_status status = spawn(run, argv);
    free(config);
    free(program);
    return status;
}

// The last lines of the log, on one line.
static void read_tail(const keel_lab_run *run, char *tail, size_t size) {
    char *path = format_text("%s/log", run->dir);
    FILE *file = path ? fopen(path, "rb") : NULL;
    size_t n = 0;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        const long length = ftell(file), from = length > (long)size - 1 ? length - (long)size + 1 : 0;
        if (fseek(file, from, SEEK_SET) == 0) n = fread(tail, 1, size - 1, file);
    }
    tail[n] = '\0';
    for (char *at = tail; *at; at++)
        if (*at == '\n') *at = at[1] ? '|' : '\0';
    if (file) fclose(file);
    free(path);
}

keel_status keel_lab_run_ended(keel_lab_run *run, int status, bool *done) {
    char tail[600];
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    run->pid = 0;
    run->stage++;
    // Only a disturbed run may be stopped by its own rules.
    const bool fine = code == TRAINED || (code == STOPPED_BY_ITS_RULES && run->lab_case->faulty);
    if (!fine) {
        read_tail(run, tail, sizeof tail);
        return keel_fail(KEEL_ERR_IO, "%s: the training failed (%s %d): %s", run->dir,
                         code < 0 ? "signal" : "exit code", code < 0 ? WTERMSIG(status) : code, tail);
    }
    *done = run->stage == run->stages || code != TRAINED;
    return KEEL_OK;
}
