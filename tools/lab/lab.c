#include "tools/lab/lab.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/lab/lab_run.h"
#include "train/mix.h"

enum { NAP_MS = 5, MERCY_MS = 5000, RUNS_MAX = 100000 };

typedef struct lab {
    const keel_lab_options *options;
    keel_lab_report *report;
    keel_lab_run *runs; // owned: those of faults, then the healthy ones
    size_t count, capacity;
    size_t started, ended;
    int cores, busy; // busy: those that runs at work take
    char *work;      // owned: the folder of the runs' folders
} lab;

static volatile sig_atomic_t stop_signal;

static void take_signal(int number) {
    stop_signal = number;
}

int keel_lab_stop_signal(void) {
    return stop_signal;
}

static void nap(long milliseconds) {
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for the laboratory");
}

// ---- what is to be run ----

static uint64_t seed_of(const lab *l, const char *name, uint64_t number) {
    uint64_t seed = l->options->seed;
    for (; *name; name++) seed = keel_mix(seed, (unsigned char)*name);
    return keel_mix(seed, number);
}

static keel_status add_run(lab *l, const char *name, uint64_t number) {
    if (l->count == RUNS_MAX) return keel_fail(KEEL_ERR_LIMIT, "more than %d runs", RUNS_MAX);
    if (l->count == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 64;
        keel_lab_run *grown = realloc(l->runs, capacity * sizeof *grown);
        if (!grown) return no_memory();
        l->runs = grown;
        l->capacity = capacity;
    }
    l->runs[l->count] = (keel_lab_run){0};
    const keel_status status =
        keel_lab_run_open(l->options->folder, name, seed_of(l, name, number), number, &l->runs[l->count]);
    l->count++; // also where it failed: it is closed with the others
    return status;
}

static keel_status add_fault(lab *l, const char *name) {
    keel_lab_tally *grown = realloc(l->report->faults, (l->report->fault_count + 1) * sizeof *grown);
    if (!grown) return no_memory();
    l->report->faults = grown;
    keel_lab_tally *tally = &grown[l->report->fault_count++];
    *tally = (keel_lab_tally){.name = strdup(name), .latencies = calloc(l->options->runs, sizeof(double))};
    if (!tally->name || !tally->latencies) return no_memory();
    keel_status status = KEEL_OK;
    for (uint64_t number = 1; !status && number <= l->options->runs; number++) status = add_run(l, name, number);
    if (status) return status;
    const keel_lab_case *first = l->runs[l->count - 1].lab_case;
    tally->about = strdup(first->about);
    tally->sudden = first->find.sudden;
    tally->has_site = first->find.site != NULL;
    tally->has_rank = first->find.rank >= 0;
    return tally->about ? KEEL_OK : no_memory();
}

static bool wanted(const keel_lab_options *options, const char *name) {
    for (size_t i = 0; i < options->fault_count; i++)
        if (strcmp(options->faults[i], name) == 0) return true;
    return options->fault_count == 0;
}

static keel_status check_names(const keel_lab_options *options, char *const *names, size_t count) {
    for (size_t i = 0; i < options->fault_count; i++) {
        bool known = false;
        for (size_t k = 0; k < count; k++) known |= strcmp(options->faults[i], names[k]) == 0;
        if (!known)
            return keel_fail(KEEL_ERR_NOT_FOUND, "no fault \"%s\" in %s; the nearest is \"%s\"", options->faults[i],
                             options->folder,
                             count ? keel_yaml_nearest(options->faults[i], (const char *const *)names, count) : "");
    }
    return KEEL_OK;
}

// Healthy kinds by turns, each time with another seed, until they make the steps that are wanted.
static keel_status add_healthy(lab *l, char *const *names, const bool *healthy, size_t count) {
    keel_status status = KEEL_OK;
    uint64_t steps = 0;
    for (uint64_t number = 1; !status && steps < l->options->healthy; number++) {
        const uint64_t before = steps;
        for (size_t i = 0; !status && i < count && steps < l->options->healthy; i++) {
            if (!healthy[i]) continue;
            status = add_run(l, names[i], number);
            if (!status) status = keel_lab_run_plan(&l->runs[l->count - 1], l->options->folder);
            if (!status) steps += l->runs[l->count - 1].steps;
        }
        if (!status && steps == before) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no healthy case", l->options->folder);
    }
    return status;
}

static keel_status plan(lab *l) {
    char **names = NULL;
    size_t count = 0;
    keel_status status = keel_lab_case_names(l->options->folder, &names, &count);
    if (status) return status;
    bool *healthy = calloc(count + 1, sizeof *healthy);
    if (!healthy) {
        keel_yaml_free_strings(names);
        return no_memory();
    }
    status = check_names(l->options, names, count);
    for (size_t i = 0; !status && i < count; i++) {
        keel_lab_run probe = {0};
        status = keel_lab_run_open(l->options->folder, names[i], l->options->seed, 0, &probe);
        healthy[i] = !status && !probe.lab_case->faulty;
        keel_lab_run_close(&probe);
        if (!status && !healthy[i] && wanted(l->options, names[i])) status = add_fault(l, names[i]);
        if (healthy[i] && l->options->fault_count && wanted(l->options, names[i]))
            status = keel_fail(KEEL_ERR_USAGE,
                               "\"%s\" is a healthy case and no fault: --healthy STEPS takes all of them by turns",
                               names[i]);
    }
    if (!status) status = add_healthy(l, names, healthy, count);
    free(healthy);
    keel_yaml_free_strings(names);
    return status;
}

// ---- folders ----

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *walk) {
    (void)about, (void)type, (void)walk;
    return remove(path);
}

static void remove_folder(const char *path) {
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static keel_status make_work(lab *l) {
    const char *output = l->options->output, *temporary = getenv("TMPDIR");
    if (output) {
        l->work = strdup(output);
        if (!l->work) return no_memory();
        if (mkdir(output, 0777) && errno != EEXIST)
            return keel_fail(KEEL_ERR_IO, "%s: cannot be made: %s", output, strerror(errno));
        return KEEL_OK;
    }
    if (asprintf(&l->work, "%s/keel-lab-XXXXXX", temporary && *temporary ? temporary : "/tmp") < 0) {
        l->work = NULL;
        return no_memory();
    }
    if (mkdtemp(l->work)) return KEEL_OK;
    const keel_status status = keel_fail(KEEL_ERR_IO, "%s: cannot be made: %s", l->work, strerror(errno));
    free(l->work);
    l->work = NULL;
    return status;
}

// ---- running ----

static int cores_of(const lab *l, const keel_lab_run *run) {
    return run->lab_case->alone || run->lab_case->ranks > l->cores ? l->cores : (int)run->lab_case->ranks;
}

static keel_status start_run(lab *l, keel_lab_run *run) {
    char *dir;
    if (asprintf(&dir, "%s/%s-%" PRIu64, l->work, run->lab_case->name, run->number) < 0) return no_memory();
    keel_status status = keel_lab_run_prepare(run, l->options->folder, dir);
    free(dir);
    return status ? status : keel_lab_run_start(run, l->options->trainer);
}

static keel_lab_tally *tally_of(lab *l, const keel_lab_run *run) {
    for (size_t i = 0; i < l->report->fault_count; i++)
        if (strcmp(l->report->faults[i].name, run->lab_case->name) == 0) return &l->report->faults[i];
    return NULL;
}

static void add_rule(keel_lab_tally *tally, const char *rule) {
    const size_t used = strlen(tally->found_by);
    if (strstr(tally->found_by, rule)) return;
    snprintf(tally->found_by + used, sizeof tally->found_by - used, "%s%s", used ? ", " : "", rule);
}

static void count_fault(const keel_lab_run *run, const keel_lab_outcome *outcome, keel_lab_tally *tally) {
    tally->runs++;
    tally->early += outcome->early;
    if (!outcome->found) return;
    tally->latencies[tally->found++] = (double)outcome->alert_step - (double)run->lab_case->find.onset;
    add_rule(tally, outcome->incident.rule);
    tally->site_right += outcome->site_right;
    tally->rank_right += outcome->rank_right;
    tally->cause_first += outcome->cause_first;
}

static void tell(const lab *l, const keel_lab_run *run, const keel_lab_outcome *o) {
    char line[1400];
    const keel_lab_find *find = &run->lab_case->find;
    char rank[16] = "-";
    if (o->incident.rank >= 0) snprintf(rank, sizeof rank, "%d", o->incident.rank);
    size_t n = (size_t)snprintf(line, sizeof line, "[%zu/%zu] %s %" PRIu64 ": ", l->ended, l->count,
                                run->lab_case->name, run->number);
    if (!run->lab_case->faulty)
        snprintf(line + n, sizeof line - n,
                 "healthy, %" PRIu64 " steps, %" PRIu64 " critical, %" PRIu64 " warnings%s%s", o->steps, o->criticals,
                 o->warnings, o->other[0] ? ": " : "", o->other);
    else if (!o->found)
        snprintf(line + n, sizeof line - n, "MISSED, onset at step %lld of %" PRIu64 "%s%s", (long long)find->onset,
                 o->steps, o->other[0] ? "; instead: " : "", o->other);
    else
        snprintf(line + n, sizeof line - n,
                 "found at step %" PRIu64 ", onset %lld, %s %s%s rank %s%s, cause %s%s%s%s%s", o->alert_step,
                 (long long)find->onset, o->incident.rule, o->incident.site[0] ? o->incident.site : "-",
                 o->site_right ? "" : " (WRONG SITE)", rank, o->rank_right ? "" : " (WRONG RANK)", o->incident.cause,
                 o->cause_first ? "" : " (WRONG CAUSE)", o->early ? ", EARLY ALERTS" : "",
                 o->other[0] ? "; also: " : "", o->other);
    l->options->progress(l->options->context, line);
}

static keel_status judge_run(lab *l, keel_lab_run *run) {
    char *store;
    keel_lab_outcome outcome;
    if (asprintf(&store, "%s/run", run->dir) < 0) return no_memory();
    const keel_status status = keel_lab_judge(store, run->lab_case, &outcome);
    free(store);
    if (status) return status;
    l->ended++;
    if (run->lab_case->faulty) {
        count_fault(run, &outcome, tally_of(l, run));
    } else {
        l->report->healthy_runs++;
        l->report->healthy_steps += outcome.steps;
        l->report->criticals += outcome.criticals;
        l->report->warnings += outcome.warnings;
    }
    if (l->options->progress) tell(l, run, &outcome);
    if (!l->options->output) remove_folder(run->dir);
    return KEEL_OK;
}

// What became of the run's process, if it has ended.
static keel_status look_after(lab *l, keel_lab_run *run) {
    int status;
    if (waitpid(run->pid, &status, WNOHANG) != run->pid) return KEEL_OK;
    bool done;
    keel_status ended = keel_lab_run_ended(run, status, &done);
    if (!ended && !done) return keel_lab_run_start(run, l->options->trainer);
    l->busy -= cores_of(l, run);
    return ended ? ended : judge_run(l, run);
}

static keel_status run_all(lab *l) {
    keel_status status = KEEL_OK;
    while (!status && !stop_signal && (l->started < l->count || l->busy > 0)) {
        for (size_t i = 0; !status && i < l->started; i++)
            if (l->runs[i].pid) status = look_after(l, &l->runs[i]);
        // In their order: one that needs more cores than are free waits until they are.
        while (!status && l->started < l->count && l->busy + cores_of(l, &l->runs[l->started]) <= l->cores) {
            keel_lab_run *run = &l->runs[l->started++];
            status = start_run(l, run);
            if (!status) l->busy += cores_of(l, run);
        }
        nap(NAP_MS);
    }
    if (!status && stop_signal) return keel_fail(KEEL_ERR_IO, "stopped: %s", strsignal(stop_signal));
    return status;
}

// Ends what still runs, gently at first.
static void end_children(lab *l) {
    for (long waited = 0;; waited += NAP_MS) {
        bool any = false;
        for (size_t i = 0; i < l->started; i++) {
            keel_lab_run *run = &l->runs[i];
            if (!run->pid) continue;
            if (waited == 0) kill(-run->pid, SIGTERM);
            if (waited == MERCY_MS) kill(-run->pid, SIGKILL);
            if (waitpid(run->pid, NULL, WNOHANG) == 0)
                any = true;
            else
                run->pid = 0;
        }
        if (!any) return;
        nap(NAP_MS);
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

keel_status keel_lab(const keel_lab_options *options, keel_lab_report *report) {
    *report = (keel_lab_report){0};
    lab l = {.options = options, .report = report};
    cpu_set_t set;
    l.cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    struct sigaction action = {.sa_handler = take_signal}, old_interrupt, old_end;
    sigaction(SIGINT, &action, &old_interrupt);
    sigaction(SIGTERM, &action, &old_end);
    keel_status status = plan(&l);
    if (!status) status = make_work(&l);
    if (!status) status = run_all(&l);
    end_children(&l);
    if (l.work && !options->output) remove_folder(l.work);
    sigaction(SIGINT, &old_interrupt, NULL);
    sigaction(SIGTERM, &old_end, NULL);
    for (size_t i = 0; i < l.count; i++) keel_lab_run_close(&l.runs[i]);
    free(l.runs);
    free(l.work);
    if (status) {
        keel_lab_report_free(report);
        return status;
    }
    for (size_t i = 0; i < report->fault_count; i++)
        qsort(report->faults[i].latencies, report->faults[i].found, sizeof(double), by_size);
    return KEEL_OK;
}

void keel_lab_report_free(keel_lab_report *report) {
    for (size_t i = 0; i < report->fault_count; i++) {
        free(report->faults[i].name);
        free(report->faults[i].about);
        free(report->faults[i].latencies);
    }
    free(report->faults);
    *report = (keel_lab_report){0};
}

double keel_lab_median(const double *sorted, size_t count) {
    if (count == 0) return NAN;
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

// The share of Poisson(MEAN) at or below COUNT.
static double poisson_below(uint64_t count, double mean) {
    double term = exp(-mean), sum = term;
    for (uint64_t k = 1; k <= count; k++) sum += term *= mean / (double)k;
    return sum;
}

double keel_lab_bound(uint64_t count, uint64_t steps) {
    double low = (double)count, high = 3 * (double)count + 10;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (poisson_below(count, middle) > 0.05)
            low = middle;
        else
            high = middle;
    }
    return high / (double)steps;
}
