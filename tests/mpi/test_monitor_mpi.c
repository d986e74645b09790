// Whole monitors over MPI: what rank 0 records of a run of several ranks. Arguments: thread, poll, slow, stop thread or
// stop poll; and a number of stages, each with a site of its own, 1 unless given.
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/monitor.h"
#include "collectors/mpi/merge_mpi.h"
#include "tests/mpi/mpi_check.h"

enum {
    STEPS = 60,
    PARTED = 55, // the last rank's copy differs from that step on
    ELEMENTS = 64,
    MICROS = 2
};
enum { SHARD, REPLICA, SAMPLE, STAGE, SITES };
enum { STAGES_MAX = 4, RANKS_MAX = 8 };
static const char *const site_names[STAGE] = {"weight", "norm.weight", "out"};

typedef struct memory {
    const keel_run_info *info;
    uint32_t ids[STAGE], stage_ids[STAGES_MAX];
    double stage_norms[STEPS + 1][STAGES_MAX];
    double rank_norms[STEPS + 1][STAGE][RANKS_MAX]; // of single ranks, by the sites above; the last: of stages
    double rank_max[STEPS + 1];                     // of rank 0's sample
    uint32_t rank_series;
    uint64_t steps[STEPS + 1], dropped[STEPS + 1], residual[STEPS + 1];
    uint64_t odd[STEPS + 1], peer[STEPS + 1];
    uint32_t flags[STEPS + 1];
    double norm[STEPS + 1], zeros[STEPS + 1], ranks[STEPS + 1], slowest[STEPS + 1];
    double micro_max[STEPS + 1][MICROS];
    uint32_t count;
} memory;

static uint32_t stages = 1;

static uint32_t stage_of(int rank) {
    return (uint32_t)rank * stages / (uint32_t)check_size;
}

static uint32_t find_site(const keel_run_info *info, const char *name) {
    uint32_t s = 0;
    while (s < info->site_count && strcmp(info->sites[s].name, name) != 0) s++;
    CHECK(s < info->site_count);
    return s;
}

static keel_status remember_start(void *context, const keel_run_info *info) {
    memory *m = context;
    m->info = info;
    CHECK(info->site_count == STAGE + stages);
    for (int s = 0; s < STAGE; s++) m->ids[s] = find_site(info, site_names[s]);
    for (uint32_t k = 0; k < stages; k++) {
        char name[24];
        snprintf(name, sizeof name, "stage.%u", k);
        m->stage_ids[k] = find_site(info, name);
        CHECK(info->sites[m->stage_ids[k]].stage == (int32_t)k);
    }
    return KEEL_OK;
}

static keel_status remember_row(void *context, const keel_row *row) {
    memory *m = context;
    const uint32_t i = m->count++;
    CHECK(i <= STEPS);
    m->steps[i] = row->step.step;
    m->flags[i] = row->step.flags;
    m->dropped[i] = row->dropped_frames;
    m->norm[i] = keel_row_value(row, KEEL_OP_norm, m->ids[SHARD]);
    m->zeros[i] = keel_row_value(row, KEEL_OP_zeros, m->ids[SAMPLE]);
    m->residual[i] = row->u64[KEEL_OP_replica_residual] ? row->u64[KEEL_OP_replica_residual][m->ids[REPLICA]] : 0;
    m->odd[i] = row->u64[KEEL_OP_replica_rank] ? row->u64[KEEL_OP_replica_rank][m->ids[REPLICA]] : 0;
    m->peer[i] = row->u64[KEEL_OP_replica_peer] ? row->u64[KEEL_OP_replica_peer][m->ids[REPLICA]] : 0;
    m->rank_series = m->info->rank_series_count;
    for (uint32_t j = 0; j < m->rank_series; j++) {
        const keel_rank_series *series = &m->info->rank_series[j];
        if (series->site == m->ids[SAMPLE]) {
            CHECK(series->rank == 0 && keel_is_not_collected(keel_row_rank_value(row, KEEL_OP_norm, j)));
            m->rank_max[i] = keel_row_rank_value(row, KEEL_OP_max, j);
            continue;
        }
        const int which = series->site == m->ids[SHARD] ? SHARD : series->site == m->ids[REPLICA] ? REPLICA : SAMPLE;
        m->rank_norms[i][which][series->rank] = keel_row_rank_value(row, KEEL_OP_norm, j);
    }
    for (uint32_t k = 0; k < stages; k++) m->stage_norms[i][k] = keel_row_value(row, KEEL_OP_norm, m->stage_ids[k]);
    for (int k = 0; k < MICROS; k++)
        m->micro_max[i][k] = row->micro_f64[KEEL_OP_max] ? row->micro_f64[KEEL_OP_max][k] : 0;
    m->ranks[i] = row->scalars[keel_run_scalar(m->info, "ranks")];
    m->slowest[i] = row->scalars[keel_run_scalar(m->info, "step_seconds_rank")];
    return KEEL_OK;
}

static void remember_close(void *context) {
    (void)context;
}

static keel_merge merge;
static keel_monitor_config *config;
static keel_probe *probe;
static keel_monitor *monitor;
static keel_site *sites[SITES];
static uint32_t ranks_scalar;
static memory seen;

static void print_message(void *context, keel_log_level level, const char *text) {
    (void)context;
    fprintf(stderr, "rank %d: [%d] %s\n", check_rank, (int)level, text);
}

static void open_monitor(bool threaded, const char *yaml) {
    keel_log_set(print_message, NULL);
    seen = (memory){.count = 0};
    CHECK(keel_merge_mpi_open(MPI_COMM_WORLD, threaded, &merge) == KEEL_OK);
    keel_yaml *doc;
    CHECK(keel_yaml_parse("m.yaml", yaml, strlen(yaml), &doc) == KEEL_OK);
    CHECK(keel_monitor_config_read(doc, &config) == KEEL_OK);
    CHECK(keel_probe_open(merge.rank, &probe) == KEEL_OK);
    keel_site_info infos[SITES] = {
        [SHARD] = {.name = "weight", .layout = KEEL_LAYOUT_SHARD, .phase = KEEL_PHASE_OPTIMIZER},
        [REPLICA] = {.name = "norm.weight",
                     .layout = KEEL_LAYOUT_REPLICA,
                     .phase = KEEL_PHASE_OPTIMIZER,
                     .replica_index = merge.rank,
                     .replica_count = merge.size},
        [SAMPLE] = {.name = "out",
                    .quantity = KEEL_ACTIVATION,
                    .layout = KEEL_LAYOUT_SAMPLE,
                    .phase = KEEL_PHASE_FORWARD},
        [STAGE] = {.layout = KEEL_LAYOUT_SHARD,
                   .phase = KEEL_PHASE_OPTIMIZER,
                   .order = 5,
                   .stage = (int32_t)stage_of(check_rank)},
    };
    snprintf(infos[STAGE].name, sizeof infos[STAGE].name, "stage.%u", stage_of(check_rank));
    for (int s = 0; s < SITES; s++) CHECK(keel_site_add(probe, &infos[s], &sites[s]) == KEEL_OK);
    CHECK(keel_scalar_add(probe, "ranks", KEEL_SCALAR_SUM, &ranks_scalar) == KEEL_OK);
    keel_probe_set_micro_count(probe, MICROS);
    CHECK(keel_monitor_open(&(keel_monitor_options){.config = config, .merge = &merge}, &monitor) == KEEL_OK);
    if (merge.rank == 0)
        CHECK(keel_monitor_add_sink(monitor, &(keel_sink){.context = &seen,
                                                          .name = "memory",
                                                          .start = remember_start,
                                                          .row = remember_row,
                                                          .close = remember_close}) == KEEL_OK);
    CHECK(keel_monitor_attach(monitor, probe) == KEEL_OK);
    CHECK(keel_probe_start(probe) == KEEL_OK);
}

static void step(uint64_t number, double seconds) {
    float values[ELEMENTS];
    keel_step_begin(probe, number);
    for (int i = 0; i < ELEMENTS; i++) values[i] = (float)number;
    keel_observe(sites[SHARD], values, (size_t)check_rank + 1); // rank r holds r + 1 elements
    values[9] += number >= PARTED && check_rank == check_size - 1;
    keel_observe(sites[REPLICA], values, ELEMENTS);
    keel_observe(sites[STAGE], values, 1);
    keel_poll(probe);
    values[0] = 0;
    for (uint32_t m = 0; m < MICROS; m++) {
        keel_micro_begin(probe, m);
        values[1] = (float)(100 * m + merge.rank);
        keel_observe(sites[SAMPLE], values, 2);
    }
    keel_scalar_set(probe, ranks_scalar, 1);
    keel_step_end(probe, &(keel_step){.step = number, .seconds = seconds});
    keel_poll(probe);
}

static void close_monitor(keel_status expected) {
    CHECK(keel_monitor_close(monitor) == expected);
    keel_probe_close(probe);
    keel_monitor_config_free(config);
}

static const char usual[] = "monitor: {queue_depth: 80, select: [{ops: [norm, replica_residual], ranks: all}, "
                            "{quantities: [activation], ops: [max, zeros], per_micro_batch: true, ranks: [0]}]}";

// What each rank itself has seen: also of copies that do not count, and of its stage's own site.
static void check_ranks(uint32_t i) {
    const double step = i + 1;
    CHECK(seen.rank_series == 3 * (uint32_t)check_size + 1);
    CHECK(seen.rank_max[i] == 100 * (MICROS - 1));
    for (int r = 0; r < check_size; r++) {
        const double odd = step >= PARTED && r == check_size - 1;
        const double copy = sqrt((ELEMENTS - 1) * step * step + (step + odd) * (step + odd));
        CHECK(fabs(seen.rank_norms[i][SHARD][r] - step * sqrt(r + 1)) <= 1e-12 * seen.rank_norms[i][SHARD][r]);
        CHECK(fabs(seen.rank_norms[i][REPLICA][r] - copy) <= 1e-6 * copy);
        CHECK(seen.rank_norms[i][SAMPLE][r] == step);
    }
}

static void check_rows(uint32_t count) {
    if (check_rank != 0) return;
    const double elements = check_size * (check_size + 1) / 2.0;
    CHECK(seen.count == count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(seen.steps[i] == i + 1 && seen.dropped[i] == 0 && seen.flags[i] == 0);
        CHECK(fabs(seen.norm[i] - (i + 1) * sqrt(elements)) <= 1e-12 * seen.norm[i]);
        CHECK(seen.zeros[i] * 4 * check_size == 2 * check_size + 1); // rank 0 has one more in micro-batch 0
        CHECK(seen.ranks[i] == check_size);
        for (int m = 0; m < MICROS; m++) CHECK(seen.micro_max[i][m] == 100 * m + check_size - 1);
        const bool parted = check_size > 1 && i + 1 >= PARTED;
        const uint64_t last = (uint64_t)check_size - 1;
        CHECK(check_size == 1 || (seen.residual[i] != 0) == parted);
        CHECK(check_size == 1 || seen.odd[i] == (!parted ? KEEL_NOT_COLLECTED : check_size == 2 ? 0 : last));
        CHECK(check_size == 1 || seen.peer[i] == (!parted ? KEEL_NOT_COLLECTED : last));
        check_ranks(i);
        for (uint32_t k = 0; k < stages; k++) {
            int ranks = 0;
            for (int r = 0; r < check_size; r++) ranks += stage_of(r) == k;
            CHECK(fabs(seen.stage_norms[i][k] - (i + 1) * sqrt(ranks)) <= 1e-12 * seen.stage_norms[i][k]);
        }
        CHECK(seen.slowest[i] == check_size - 1);
    }
}

// Ranks in step, as a training that reduces its gradients holds them.
static void run_in_step(bool threaded) {
    open_monitor(threaded, usual);
    for (uint64_t i = 1; i <= STEPS; i++) {
        step(i, check_rank + 1);
        MPI_Barrier(MPI_COMM_WORLD);
        if (i == STEPS / 2) {
            CHECK(keel_probe_drain(probe) == KEEL_OK);
            if (check_rank == 0) CHECK(seen.count == STEPS / 2);
        }
    }
    close_monitor(KEEL_OK);
    check_rows(STEPS);
    check_say(threaded ? "merge on a thread" : "merge by polling");
}

// One rank takes its time and nothing holds the others: nothing is lost while frames last.
static void run_slow_rank(void) {
    open_monitor(true, usual);
    for (uint64_t i = 1; i <= STEPS; i++) {
        if (check_rank == check_size - 1 && i % 8 == 0) keel_nap(20000000);
        step(i, check_rank + 1);
    }
    close_monitor(KEEL_OK);
    check_rows(STEPS);
    check_say("a slow rank");
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// The last rank stops for good; the others end in bounded time, and rank 0 keeps what it has.
static void run_stopped_rank(bool threaded) {
    open_monitor(threaded, "monitor: {queue_depth: 80, merge_timeout_seconds: 1, select: [{quantities: [weight], ops: "
                           "[norm], ranks: all}]}");
    for (uint64_t i = 1; i <= 5; i++) {
        step(i, 1);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK(keel_probe_drain(probe) == KEEL_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == check_size - 1) raise(SIGSTOP);
    const double begin = now_seconds();
    for (uint64_t i = 6; i <= 20; i++) {
        step(i, 1);
        keel_nap(1000000);
    }
    CHECK(keel_probe_drain(probe) == KEEL_OK);
    close_monitor(KEEL_ERR_COMM);
    CHECK(now_seconds() - begin < 20);
    if (check_rank == 0) {
        CHECK(seen.count >= 19);
        for (uint32_t i = 5; i < seen.count; i++) {
            CHECK(seen.flags[i] == KEEL_STEP_DROPPED && seen.ranks[i] == 1);
            CHECK(seen.stage_norms[i][0] == (double)seen.steps[i]); // its own alone
            for (int r = 0; r < check_size; r++) CHECK(keel_is_not_collected(seen.rank_norms[i][SHARD][r]) == (r > 0));
            for (uint32_t k = 1; k < stages; k++) CHECK(isnan(seen.stage_norms[i][k]));
        }
        CHECK(seen.steps[seen.count - 1] == 20);
        printf("ok: a stopped rank, %s\n", threaded ? "threaded" : "polled");
        fflush(stdout);
    } else {
        sleep(3); // the first that leaves takes the others with it
    }
    _exit(0);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int provided;
    check_begin(&provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    const char *last = argv[argc - 1];
    if (*last >= '1' && *last <= '4') stages = (uint32_t)(*last - '0');
    CHECK(stages <= (uint32_t)check_size);
    if (strcmp(mode, "thread") == 0)
        run_in_step(true);
    else if (strcmp(mode, "poll") == 0)
        run_in_step(false);
    else if (strcmp(mode, "slow") == 0)
        run_slow_rank();
    else
        run_stopped_rank(argc < 3 || strcmp(argv[2], "poll") != 0);
    MPI_Finalize();
    return 0;
}
