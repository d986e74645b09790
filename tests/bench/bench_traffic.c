// A monitored run of STEPS steps whose messages MPI counts: tests/bench/traffic.py runs it twice and takes the
// difference.
//     mpirun -n RANKS --mca pml_monitoring_enable 2 ... bench_traffic [SITES] [STEPS] [STAGES]
// SITES in the whole run, each observed on every step; the stages share them out, and have one more in common. Prints
// one line of JSON: the largest frame of a rank in bytes, and the seconds that it takes to merge two such frames.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectors/monitor.h"
#include "collectors/mpi/merge_mpi.h"

enum { ELEMENTS = 16 };

static int rank, size;

static void give_up(const char *why) {
    fprintf(stderr, "bench_traffic: rank %d: %s\n", rank, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void need(keel_status status) {
    if (status) give_up(keel_error());
}

typedef struct bench {
    keel_probe *probe;
    keel_monitor *monitor;
    keel_monitor_config *config;
    keel_merge merge;
    keel_site **sites;
    int site_count;
} bench;

static void open_monitor(bench *b, int sites, int stages) {
    static const char yaml[] = "monitor: {select: [{ops: [norm, max, min, zeros]}]}";
    keel_yaml *doc;
    const int stage = rank * stages / size, first = sites * stage / stages, end = sites * (stage + 1) / stages;
    need(keel_yaml_parse("bench", yaml, strlen(yaml), &doc));
    need(keel_monitor_config_read(doc, &b->config));
    need(keel_merge_mpi_open(MPI_COMM_WORLD, true, &b->merge));
    need(keel_probe_open((uint32_t)rank, &b->probe));
    b->sites = calloc((size_t)(end - first) + 1, sizeof(keel_site *));
    if (!b->sites) give_up("no memory");
    for (int s = first; s <= end; s++) {
        keel_site_info info = {.layout = KEEL_LAYOUT_SHARD, .phase = KEEL_PHASE_OPTIMIZER};
        if (s == end)
            snprintf(info.name, sizeof info.name, "embedding.weight");
        else
            snprintf(info.name, sizeof info.name, "layers.%d.weight", s);
        need(keel_site_add(b->probe, &info, &b->sites[b->site_count++]));
    }
    need(keel_monitor_open(&(keel_monitor_options){.config = b->config, .merge = &b->merge}, &b->monitor));
    need(keel_monitor_attach(b->monitor, b->probe));
    need(keel_probe_start(b->probe));
}

static void run_step(bench *b, uint64_t step) {
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) values[i] = (float)i + 1;
    keel_step_begin(b->probe, step);
    for (int s = 0; s < b->site_count; s++) keel_observe(b->sites[s], values, ELEMENTS);
    keel_step_end(b->probe, &(keel_step){.step = step});
    need(keel_probe_drain(b->probe));
}

// Seconds that rank 0 takes to merge two frames of SITES sites.
static double merge_seconds(uint32_t sites) {
    enum { ROUNDS = 20 };
    keel_frame *frames[2];
    for (int i = 0; i < 2; i++) {
        void *memory = aligned_alloc(64, (keel_frame_bytes(0, sites, 1, 0) + 63) / 64 * 64);
        if (!memory) give_up("no memory");
        frames[i] = keel_frame_init(memory, 0, sites, 1, 0);
        const float values[2] = {1, 2};
        for (uint32_t s = 0; s < sites; s++)
            keel_stats_observe(&keel_frame_stats(frames[i])[s],
                               &(keel_stats_params){.fields = KEEL_FIELDS_BASE, .scale = 1}, KEEL_F32, values, 2);
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int i = 0; i < ROUNDS; i++) keel_frame_merge(frames[0], frames[1]);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    free(frames[0]);
    free(frames[1]);
    return ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / ROUNDS;
}

static void print_result(const bench *b) {
    struct {
        double frame_bytes, merge_seconds;
    } mine = {(double)keel_frame_bytes(keel_probe_scalar_count(b->probe), (uint32_t)b->site_count, 1, 0),
              merge_seconds((uint32_t)b->site_count)},
      most;
    MPI_Reduce(&mine, &most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("{\"frame_bytes\": %.0f, \"merge_seconds\": %.3g}\n", most.frame_bytes, most.merge_seconds);
}

int main(int argc, char **argv) {
    const int sites = argc > 1 ? atoi(argv[1]) : 1000, steps = argc > 2 ? atoi(argv[2]) : 20;
    const int stages = argc > 3 ? atoi(argv[3]) : 1;
    int provided;
    bench b = {.site_count = 0};
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (sites < 1 || steps < 1 || stages < 1 || stages > size)
        give_up("SITES, STEPS and STAGES are at least 1, and STAGES at most the ranks");
    open_monitor(&b, sites, stages);
    for (int i = 1; i <= steps; i++) run_step(&b, (uint64_t)i);
    print_result(&b);
    need(keel_monitor_close(b.monitor));
    keel_probe_close(b.probe);
    keel_monitor_config_free(b.config);
    free(b.sites);
    MPI_Finalize();
    return 0;
}
