// Every kind of collective against what its definition says, for shares that do not come out even.
#include <math.h>

#include "tests/mpi/mpi_check.h"
#include "train/parallel/collective.h"

enum { MOST = 5000, ROUNDS = 3 };

typedef struct stage {
    keel_probe *probe;
    keel_taps *taps;
    keel_collectives *set;
    keel_mesh mesh;
} stage;

static void open_stage(stage *s) {
    const keel_parallel_config config = {.model_parallel = 1, .pipeline_stage = 1, .expert_parallel = 1};
    CHECK(keel_mesh_open(&config, MPI_COMM_WORLD, &s->mesh) == KEEL_OK);
    CHECK(keel_probe_open((uint32_t)check_rank, &s->probe) == KEEL_OK);
    CHECK(keel_taps_open(s->probe, (uint32_t)check_rank, NULL, 0, &s->taps) == KEEL_OK);
    CHECK(keel_collectives_open(s->taps, &s->set) == KEEL_OK);
}

static void close_stage(stage *s) {
    keel_collectives_close(s->set);
    keel_taps_close(s->taps);
    keel_mesh_close(&s->mesh);
    keel_probe_close(s->probe);
}

static keel_collective *add(stage *s, keel_collective_kind kind, size_t count, size_t share) {
    char name[64];
    snprintf(name, sizeof name, "kind_%d.%zu.%zu", (int)kind, count, share);
    keel_collective *made;
    CHECK(keel_collectives_add(s->set,
                               &(keel_collective_plan){.name = name,
                                                       .kind = kind,
                                                       .when = KEEL_EVERY_STEP,
                                                       .dtype = KEEL_F32,
                                                       .count = count,
                                                       .share = share,
                                                       .comm = &s->mesh.data_parallel,
                                                       .op = MPI_SUM},
                               &made) == KEEL_OK);
    return made;
}

// Sums of these are exact.
static float value(int rank, int round, size_t i) {
    return (float)((i * 7 + (size_t)rank * 3 + (size_t)round) % 97);
}

static float sum(int round, size_t i) {
    float total = 0;
    for (int r = 0; r < check_size; r++) total += value(r, round, i);
    return total;
}

static bool mine(size_t i, size_t share) {
    return i / share == (size_t)check_rank;
}

static void test_sharing(stage *s, size_t count, size_t share) {
    static float data[MOST];
    keel_collective *scatter = add(s, KEEL_REDUCE_SCATTER, count, share);
    keel_collective *gather = add(s, KEEL_ALL_GATHER, count, share);
    for (int round = 0; round < ROUNDS; round++)
        for (int start = 0; start < (check_size > 1 ? 2 : 1); start++) {
            for (size_t i = 0; i < count; i++) data[i] = value(check_rank, round, i);
            CHECK((start ? keel_reduce_scatter_start(scatter, data) : keel_reduce_scatter(scatter, data)) == KEEL_OK);
            CHECK(keel_collective_wait(scatter) == KEEL_OK);
            for (size_t i = 0; i < count; i++) {
                if (mine(i, share)) CHECK(data[i] == sum(round, i));
                if (!mine(i, share)) data[i] = -1;
            }
            CHECK((start ? keel_all_gather_start(gather, data) : keel_all_gather(gather, data)) == KEEL_OK);
            CHECK(keel_collective_wait(gather) == KEEL_OK);
            for (size_t i = 0; i < count; i++) CHECK(data[i] == sum(round, i));
        }
    if (check_size > 1) CHECK(scatter->calls == 2 * ROUNDS && gather->calls == 2 * ROUNDS);
}

// Two under way at once, completed out of order.
static void test_side_by_side(stage *s) {
    static float first[MOST], second[MOST];
    const size_t share = MOST / (size_t)check_size + 1;
    keel_collective *a = add(s, KEEL_REDUCE_SCATTER, MOST, share), *b = add(s, KEEL_REDUCE_SCATTER, MOST - 1, share);
    if (check_size == 1) return;
    for (size_t i = 0; i < MOST; i++) first[i] = value(check_rank, 0, i), second[i] = value(check_rank, 1, i);
    CHECK(keel_reduce_scatter_start(a, first) == KEEL_OK && keel_reduce_scatter_start(b, second) == KEEL_OK);
    CHECK(keel_collective_wait(b) == KEEL_OK && keel_collective_wait(a) == KEEL_OK);
    for (size_t i = 0; i + 1 < MOST; i++)
        if (mine(i, share)) CHECK(first[i] == sum(0, i) && second[i] == sum(1, i));
}

// Rank r sends to rank s (r + 2 s + round) mod 4 rows of three numbers that say whose they are.
static uint32_t rows_for(int from, int to, int round) {
    return (uint32_t)(from + 2 * to + round) % 4;
}

static void test_all_to_all(stage *s) {
    enum { ROW = 3, MOST_RANKS = 64 };
    static float send[MOST], get[MOST];
    uint32_t sent[MOST_RANKS], got[MOST_RANKS];
    keel_collective *made;
    CHECK(check_size <= MOST_RANKS);
    CHECK(keel_collectives_add(s->set,
                               &(keel_collective_plan){.name = "all_to_all",
                                                       .kind = KEEL_ALL_TO_ALL,
                                                       .when = KEEL_EVERY_STEP,
                                                       .dtype = KEEL_F32,
                                                       .count = 3 * (size_t)check_size * ROW,
                                                       .row = ROW,
                                                       .comm = &s->mesh.data_parallel},
                               &made) == KEEL_OK);
    for (int round = 0; round < ROUNDS && check_size > 1; round++) {
        float *put = send;
        for (int to = 0; to < check_size; to++) {
            sent[to] = rows_for(check_rank, to, round);
            got[to] = rows_for(to, check_rank, round);
            for (uint32_t i = 0; i < sent[to]; i++) {
                *put++ = (float)check_rank;
                *put++ = (float)to;
                *put++ = (float)i;
            }
        }
        memset(get, 0xff, sizeof get);
        CHECK(keel_all_to_all(made, send, sent, get, got) == KEEL_OK);
        const float *take = get;
        for (int from = 0; from < check_size; from++)
            for (uint32_t i = 0; i < got[from]; i++, take += ROW)
                CHECK(take[0] == (float)from && take[1] == (float)check_rank && take[2] == (float)i);
        CHECK(isnan(*take));
    }
    if (check_size > 1) CHECK(made->calls == ROUNDS && made->seconds > 0);
}

static void test_shares_must_suffice(stage *s) {
    keel_collective *made;
    const keel_collective_plan plan = {.name = "short",
                                       .kind = KEEL_ALL_GATHER,
                                       .dtype = KEEL_F32,
                                       .count = 10 * (size_t)check_size,
                                       .share = 9,
                                       .comm = &s->mesh.data_parallel};
    CHECK(keel_collectives_add(s->set, &plan, &made) == KEEL_ERR_USAGE);
    CHECK(strstr(keel_error(), "short: shares of 9"));
}

// MPI would take a count beyond an int for another, or for none.
static void test_counts_beyond_an_int_are_refused(stage *s) {
    keel_collective *made;
    keel_collective_plan plan = {.name = "huge",
                                 .kind = KEEL_ALL_REDUCE,
                                 .dtype = KEEL_F32,
                                 .count = ((size_t)1 << 32) + 4,
                                 .comm = &s->mesh.data_parallel,
                                 .op = MPI_SUM};
    if (check_size == 1) return;
    CHECK(keel_collectives_add(s->set, &plan, &made) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), "huge: 4294967300 elements are more than the 2147483647"));
    plan.kind = KEEL_SEND;
    CHECK(keel_collectives_add(s->set, &plan, &made) == KEEL_ERR_CONFIG);
    plan.kind = KEEL_BROADCAST; // goes in pieces
    CHECK(keel_collectives_add(s->set, &plan, &made) == KEEL_OK);
}

int main(void) {
    int provided;
    check_begin(&provided);
    stage s = {0};
    open_stage(&s);
    const size_t ranks = (size_t)check_size;
    test_sharing(&s, 64 * ranks, 64);
    test_sharing(&s, MOST, MOST / ranks + 16);
    test_sharing(&s, 20, ranks > 1 ? 16 : 20); // some ranks have nothing
    test_side_by_side(&s);
    test_all_to_all(&s);
    test_shares_must_suffice(&s);
    test_counts_beyond_an_int_are_refused(&s);
    close_stage(&s);
    check_say("shares");
    MPI_Finalize();
    return 0;
}
