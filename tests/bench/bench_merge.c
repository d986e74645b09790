// What the monitor costs at a step's end and what a merge takes, with sites of 16 elements that all are due on every
// step:
//     mpirun -n RANKS bench_merge [SITES] [STEPS] [thread|poll]
// Latencies are of steps that are drained one by one; the cost of the other threads is of steps of 20 ms of computing,
// not drained.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectors/monitor.h"
#include "collectors/mpi/merge_mpi.h"

enum { ELEMENTS = 16, POLLS = 10, POLL_MS = 2 };

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(keel_status status) {
    if (!status) return;
    fprintf(stderr, "bench_merge: %s\n", keel_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static keel_status count_start(void *context, const keel_run_info *info) {
    (void)context;
    (void)info;
    return KEEL_OK;
}

static keel_status count_row(void *context, const keel_row *row) {
    (void)row;
    ++*(long *)context;
    return KEEL_OK;
}

static void count_close(void *context) {
    (void)context;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

typedef struct bench {
    keel_probe *probe;
    keel_site **sites;
    int site_count, step_count;
    uint64_t step;
    double *end, *drain;
} bench;

static void observe_all(bench *b) {
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) values[i] = (float)i + 1;
    keel_step_begin(b->probe, ++b->step);
    for (int s = 0; s < b->site_count; s++) keel_observe(b->sites[s], values, ELEMENTS);
}

// The thread's own time: other programs on the machine do not count.
static double end_step(bench *b) {
    const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    keel_step_end(b->probe, &(keel_step){.step = b->step});
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
}

static void run_drained(bench *b) {
    for (int i = 0; i < b->step_count; i++) {
        observe_all(b);
        MPI_Barrier(MPI_COMM_WORLD);
        b->end[i] = end_step(b);
        const double begin = seconds_of(CLOCK_MONOTONIC);
        need(keel_probe_drain(b->probe));
        b->drain[i] = seconds_of(CLOCK_MONOTONIC) - begin;
    }
}

static void compute(bench *b) {
    for (int p = 0; p < POLLS; p++) {
        const double until = seconds_of(CLOCK_THREAD_CPUTIME_ID) + 1e-3 * POLL_MS;
        while (seconds_of(CLOCK_THREAD_CPUTIME_ID) < until) {
        }
        keel_poll(b->probe);
    }
}

// Processor seconds of all other threads, per step.
static double run_overlapped(bench *b) {
    const double all = seconds_of(CLOCK_PROCESS_CPUTIME_ID), own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < b->step_count; i++) {
        observe_all(b);
        compute(b);
        MPI_Barrier(MPI_COMM_WORLD);
        b->end[i] = end_step(b);
    }
    need(keel_probe_drain(b->probe));
    const double others = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - all - (seconds_of(CLOCK_THREAD_CPUTIME_ID) - own);
    return others / b->step_count;
}

int main(int argc, char **argv) {
    static const char yaml[] = "monitor: {select: [{ops: [norm, max, min, zeros]}]}";
    bench b = {.site_count = argc > 1 ? atoi(argv[1]) : 5000, .step_count = argc > 2 ? atoi(argv[2]) : 200};
    int provided, rank, size;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const bool threaded = provided == MPI_THREAD_MULTIPLE && !(argc > 3 && strcmp(argv[3], "poll") == 0);
    b.sites = calloc((size_t)b.site_count, sizeof(keel_site *));
    b.end = calloc((size_t)b.step_count, sizeof *b.end);
    b.drain = calloc((size_t)b.step_count, sizeof *b.drain);
    if (b.site_count < 1 || b.step_count < 1 || !b.sites || !b.end || !b.drain) MPI_Abort(MPI_COMM_WORLD, 2);

    keel_yaml *doc;
    keel_monitor_config *config;
    keel_merge merge;
    keel_monitor *monitor;
    long rows = 0;
    need(keel_yaml_parse("bench", yaml, strlen(yaml), &doc));
    need(keel_monitor_config_read(doc, &config));
    if (size > 1) need(keel_merge_mpi_open(MPI_COMM_WORLD, threaded, &merge));
    need(keel_probe_open((uint32_t)rank, &b.probe));
    for (int s = 0; s < b.site_count; s++) {
        keel_site_info info = {.layout = KEEL_LAYOUT_SHARD, .phase = KEEL_PHASE_OPTIMIZER};
        snprintf(info.name, sizeof info.name, "layers.%d.weight", s);
        need(keel_site_add(b.probe, &info, &b.sites[s]));
    }
    need(keel_monitor_open(&(keel_monitor_options){.config = config, .merge = size > 1 ? &merge : NULL}, &monitor));
    if (rank == 0)
        need(keel_monitor_add_sink(
            monitor,
            &(keel_sink){
                .context = &rows, .name = "count", .start = count_start, .row = count_row, .close = count_close}));
    need(keel_monitor_attach(monitor, b.probe));
    need(keel_probe_start(b.probe));

    run_drained(&b);
    const double latency = median(b.drain, b.step_count);
    const double others = run_overlapped(&b);
    if (rank == 0)
        printf(
            "%d ranks, %s: step_end %.1f us of the training thread; merged and recorded after %.2f ms; other threads "
            "%.2f ms of a core a step; %ld of %d steps recorded\n",
            size, keel_monitor_describe(monitor), 1e6 * median(b.end, b.step_count), 1e3 * latency, 1e3 * others, rows,
            2 * b.step_count);
    need(keel_monitor_close(monitor));
    keel_probe_close(b.probe);
    keel_monitor_config_free(config);
    free(b.sites);
    free(b.end);
    free(b.drain);
    MPI_Finalize();
    return 0;
}
