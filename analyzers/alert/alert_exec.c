// Alerts to a program of the user's: an argument list, never a shell. The message is on its standard input as JSON, and
// in variables of its environment. It runs on its own: a thread starts and watches it, kills its process group after
// the time limit, and never lets it delay a step, whatever it does. Standard input is a file in memory, output goes to
// /dev/null, so that nothing can block or break.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "analyzers/alert/alert.h"
#include "collectors/helper_thread.h"

enum { RUNNING = 4, WAITING = 16, VARIABLES = 16, VARIABLE_BYTES = 320 };
#define NAP_SECONDS 0.02

extern char **environ;

typedef struct job {
    keel_incident incident;
    bool digest;
    keel_severity severity;
    char *text, *json; // owned
} job;

typedef struct child {
    pid_t pid; // 0: none
    double deadline;
} child;

typedef struct exec_state {
    char **argv; // owned copies
    double limit;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;
    job waiting[WAITING];
    uint32_t first, count; // of waiting
    child running[RUNNING];
    bool told_start, told_exit, told_late, told_full; // each kind of failure is said once
} exec_state;

static void free_job(job *j) {
    free(j->text);
    free(j->json);
    *j = (job){0};
}

// ---- starting ----

typedef struct environment {
    char text[VARIABLES][VARIABLE_BYTES];
    int count;
} environment;

static void set(environment *e, const char *name, const char *value) {
    snprintf(e->text[e->count++], VARIABLE_BYTES, "KEEL_%s=%s", name, value);
}

static void set_number(environment *e, const char *name, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    set(e, name, text);
}

static void fill_environment(environment *e, const job *j) {
    e->count = 0;
    set(e, "SEVERITY", keel_severity_name(j->severity));
    set(e, "MESSAGE", j->digest ? j->text : j->incident.message);
    if (j->digest) {
        set(e, "DIGEST", "1");
        return;
    }
    const keel_incident *k = &j->incident;
    char value[32];
    set_number(e, "INCIDENT_ID", k->id);
    set_number(e, "REVISION", k->revision);
    set(e, "RULE", k->rule);
    set(e, "SERIES", k->series);
    set(e, "SITE", k->site);
    if (k->rank >= 0)
        set_number(e, "RANK", (uint64_t)k->rank);
    else
        set(e, "RANK", "");
    set_number(e, "FIRST_STEP", k->first_step);
    set_number(e, "PEAK_STEP", k->peak_step);
    set_number(e, "LAST_STEP", k->last_step);
    snprintf(value, sizeof value, "%.10g", k->value);
    set(e, "VALUE", value);
    set(e, "CAUSE", k->cause);
}

// The environment of this process, its own KEEL_ variables of these names replaced.
static char **merge_environment(environment *e) {
    size_t have = 0, n = 0;
    while (environ && environ[have]) have++;
    char **merged = malloc((have + VARIABLES + 1) * sizeof *merged);
    if (!merged) return NULL;
    for (size_t i = 0; i < have; i++) {
        size_t name = strcspn(environ[i], "=") + 1;
        bool replaced = false;
        for (int k = 0; !replaced && k < e->count; k++) replaced = strncmp(environ[i], e->text[k], name) == 0;
        if (!replaced) merged[n++] = environ[i];
    }
    for (int k = 0; k < e->count; k++) merged[n++] = e->text[k];
    merged[n] = NULL;
    return merged;
}

// A file in memory with TEXT, to be read from its beginning.
static int memory_file(const char *text) {
    int fd = memfd_create("keel-incident", MFD_CLOEXEC);
    if (fd < 0) return -1;
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t n = write(fd, text, left);
        if (n <= 0) break;
        text += n;
        left -= (size_t)n;
    }
    if (left == 0 && lseek(fd, 0, SEEK_SET) == 0) return fd;
    close(fd);
    return -1;
}

// Returns 0, or the error number.
static int spawn(const exec_state *s, char **variables, int input, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawn_file_actions_init(&actions);
    if (error) return error;
    if ((error = posix_spawnattr_init(&attributes))) {
        posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    error = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    if (!error) error = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!error) error = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (!error) error = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1); // the run's own files
    if (!error) error = posix_spawnp(pid, s->argv[0], &actions, &attributes, s->argv, variables);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static void start_job(exec_state *s, const job *j, child *c) {
    environment *e = malloc(sizeof *e);
    char **variables = NULL;
    int error = ENOMEM, input = -1;
    if (e) {
        fill_environment(e, j);
        variables = merge_environment(e);
    }
    if (variables) {
        input = memory_file(j->json);
        error = input < 0 ? errno : spawn(s, variables, input, &c->pid);
    }
    if (input >= 0) close(input);
    free(variables);
    free(e);
    if (error) {
        c->pid = 0;
        if (!s->told_start)
            keel_log(KEEL_LOG_WARNING, "alert hook %s cannot be started: %s", s->argv[0], strerror(error));
        s->told_start = true;
        return;
    }
    c->deadline = keel_seconds_now() + s->limit;
}

// ---- watching ----

static void tell_end(exec_state *s, int how) {
    if (s->told_exit || (WIFEXITED(how) && WEXITSTATUS(how) == 0)) return;
    s->told_exit = true;
    if (WIFEXITED(how))
        keel_log(KEEL_LOG_WARNING, "alert hook %s failed with exit code %d", s->argv[0], WEXITSTATUS(how));
    else
        keel_log(KEEL_LOG_WARNING, "alert hook %s was ended by signal %d", s->argv[0], WTERMSIG(how));
}

static void watch(exec_state *s, child *c, bool give_up) {
    int how;
    pid_t ended = waitpid(c->pid, &how, WNOHANG);
    if (ended == 0 && keel_seconds_now() < c->deadline && !give_up) return;
    if (ended == 0) {
        kill(-c->pid, SIGKILL);
        waitpid(c->pid, &how, 0);
        if (!s->told_late)
            keel_log(KEEL_LOG_WARNING, "alert hook %s took longer than %g seconds and was killed", s->argv[0],
                     s->limit);
        s->told_late = true;
    } else if (ended > 0)
        tell_end(s, how);
    c->pid = 0;
}

static uint32_t watch_all(exec_state *s, bool give_up) {
    uint32_t running = 0;
    for (int i = 0; i < RUNNING; i++) {
        if (s->running[i].pid) watch(s, &s->running[i], give_up);
        running += s->running[i].pid != 0;
    }
    return running;
}

// The lock is held, and let go while a program starts.
static void start_waiting(exec_state *s) {
    for (int i = 0; i < RUNNING && s->count > 0; i++) {
        if (s->running[i].pid) continue;
        job j = s->waiting[s->first];
        s->first = (s->first + 1) % WAITING;
        s->count--;
        pthread_mutex_unlock(&s->lock);
        start_job(s, &j, &s->running[i]);
        free_job(&j);
        pthread_mutex_lock(&s->lock);
    }
}

static void nap(exec_state *s) {
    const struct timespec until = keel_time_in(NAP_SECONDS);
    pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

static void *supervise(void *context) {
    exec_state *s = context;
    double end = INFINITY; // of all patience, once stopping
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->stopping && isinf(end)) end = keel_seconds_now() + s->limit;
        bool give_up = keel_seconds_now() >= end;
        pthread_mutex_unlock(&s->lock);
        uint32_t running = watch_all(s, give_up);
        pthread_mutex_lock(&s->lock);
        if (!give_up) start_waiting(s);
        for (int i = 0; i < RUNNING; i++) running += s->running[i].pid != 0;
        if (running == 0 && (s->count == 0 || give_up)) {
            if (s->stopping) break;
            pthread_cond_wait(&s->wake, &s->lock);
        } else
            nap(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// ---- channel ----

static void free_state(exec_state *s) {
    for (; s->count > 0; s->count--, s->first = (s->first + 1) % WAITING) free_job(&s->waiting[s->first]);
    for (size_t i = 0; s->argv && s->argv[i]; i++) free(s->argv[i]);
    free(s->argv);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static keel_status copy_arguments(exec_state *s, char **argv) {
    size_t n = 0;
    while (argv[n]) n++;
    s->argv = calloc(n + 1, sizeof *s->argv);
    for (size_t i = 0; s->argv && i < n; i++)
        if (!(s->argv[i] = strdup(argv[i]))) return keel_fail(KEEL_ERR_MEMORY, "no memory for the alert hook");
    return s->argv ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for the alert hook");
}

static keel_status open_exec(const keel_monitor_config *config, void **state) {
    *state = NULL;
    if (!config->exec_argv || !config->exec_argv[0]) return KEEL_OK;
    exec_state *s = calloc(1, sizeof *s);
    if (!s) return keel_fail(KEEL_ERR_MEMORY, "no memory for the alert hook");
    s->limit = config->exec_timeout_seconds;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &clock);
    pthread_condattr_destroy(&clock);
    keel_status status = copy_arguments(s, config->exec_argv);
    if (!status) status = keel_thread_start(&s->thread, "keel-alert", supervise, s);
    if (status)
        free_state(s);
    else
        *state = s;
    return status;
}

static void send_exec(void *state, const keel_alert_message *message) {
    exec_state *s = state;
    job j = {.digest = !message->incident,
             .severity = message->severity,
             .text = strdup(message->text),
             .json = strdup(message->json)};
    if (message->incident) j.incident = *message->incident;
    pthread_mutex_lock(&s->lock);
    bool full = !j.text || !j.json || s->count == WAITING, tell = full && !s->told_full;
    if (!full) s->waiting[(s->first + s->count++) % WAITING] = j;
    if (full) s->told_full = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (full) free_job(&j);
    if (tell) keel_log(KEEL_LOG_WARNING, "alert hook %s does not keep up: messages to it are dropped", s->argv[0]);
}

static void close_exec(void *state) {
    exec_state *s = state;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free_state(s);
}

const keel_alert_channel keel_alert_exec = {.name = "exec", .open = open_exec, .send = send_exec, .close = close_exec};
