// One reduction of a frame over MPI: a tensor in parts merges to the statistics of the whole, whatever the number of
// ranks.
#include <math.h>
#include <stdlib.h>

#include "collectors/helper_thread.h"
#include "collectors/mpi/merge_mpi.h"
#include "tests/mpi/mpi_check.h"

static keel_merge merge;

static uint64_t random_state;

static uint64_t next_random(void) { // xorshift64, Marsaglia 2003: the same values on every rank
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void make_tensor(float *values, size_t n, uint64_t seed) {
    random_state = 88172645463325252u + seed;
    for (size_t i = 0; i < n; i++) {
        const double uniform = (double)(next_random() >> 11) * 0x1p-53;
        values[i] = (float)((uniform - 0.4) * exp2((double)(next_random() % 40) - 20));
        if (next_random() % 50 == 0) values[i] = 0;
    }
}

static keel_frame *new_frame(uint32_t scalars, uint32_t sites) {
    void *memory = aligned_alloc(64, (keel_frame_bytes(scalars, sites, 0, 0) + 63) / 64 * 64);
    CHECK(memory);
    return keel_frame_init(memory, scalars, sites, 0, 0);
}

static void drive(void) {
    for (bool done = false; !done;) {
        CHECK(merge.test(merge.context, &done) == KEEL_OK);
        if (!done) keel_nap(50000);
    }
}

static void reduce(keel_frame *frame) {
    CHECK(merge.reduce(merge.context, frame, NULL) == KEEL_OK);
    drive();
}

static const keel_stats_params everything = {.fields = KEEL_FIELDS_ALL, .eps = 1e-4, .scale = 1024};

static void observe_part(keel_frame *frame, uint32_t site, const float *values, size_t n) {
    keel_stats *stats = &keel_frame_stats(frame)[site];
    keel_stats_observe(stats, &everything, KEEL_F32, values, n);
    keel_stats_seal_rank(stats, (uint32_t)check_rank, 0, 1);
}

// Counts and extremes are EXPECTED's to the bit, sums within TOLERANCE of the sum of MAGNITUDES.
static void check_record(const keel_stats *merged, const keel_stats *expected, double magnitudes, double tolerance) {
    CHECK(merged->n == expected->n && merged->zeros == expected->zeros && merged->near_zeros == expected->near_zeros);
    CHECK(merged->nans == expected->nans && merged->pos_infs == expected->pos_infs);
    CHECK(merged->neg_infs == expected->neg_infs && merged->subnormals == expected->subnormals);
    CHECK(merged->min == expected->min && merged->max == expected->max && merged->abs_min == expected->abs_min);
    CHECK(merged->fp16_flush == expected->fp16_flush && merged->fp16_subnormal == expected->fp16_subnormal);
    CHECK(merged->fp16_overflow == expected->fp16_overflow && merged->not_bf16 == expected->not_bf16);
    CHECK(merged->not_fp16 == expected->not_fp16 && merged->not_tf32 == expected->not_tf32);
    CHECK(merged->checksum == expected->checksum && merged->fields == expected->fields);
    const double scale = ldexp(1, merged->exponent), of = ldexp(1, expected->exponent);
    CHECK(fabs(merged->sum * scale - expected->sum * of) <= tolerance * magnitudes);
    const double squares = expected->sum_sq * of * of;
    CHECK(fabs(merged->sum_sq * scale * scale - squares) <= tolerance * squares);
    CHECK(fabs(merged->m2 * scale * scale - expected->m2 * of * of) <= tolerance * squares);
}

// Parts of unequal length, among them empty ones.
static size_t cut(size_t n, int rank) {
    return n * (size_t)(rank * rank) / (size_t)(check_size * check_size);
}

enum { SITES = 3000, N_MAX = 5000 }; // a frame of several times any eager or pipeline limit

// One tensor of the test: of float at even sites, of double at odd ones.
typedef struct tensor {
    union {
        float f32[N_MAX];
        double f64[N_MAX];
    } values;
    size_t n;
    keel_dtype dtype;
} tensor;

static void make_site(tensor *t, uint32_t site) {
    static float values[N_MAX];
    t->n = site % 100 < 2 ? N_MAX : site % 37;
    t->dtype = site % 2 ? KEEL_F64 : KEEL_F32;
    make_tensor(values, t->n, site);
    if (site % 7 == 3 && t->n > 10) values[t->n / 2] = NAN;
    if (site % 11 == 3 && t->n > 10) values[t->n - 1] = -INFINITY;
    for (size_t i = 0; i < t->n; i++)
        if (t->dtype == KEEL_F64)
            t->values.f64[i] = 1.0000001 * (double)values[i];
        else
            t->values.f32[i] = values[i];
}

static void observe_range(keel_stats *stats, const tensor *t, size_t begin, size_t end) {
    const char *at = (const char *)&t->values + begin * keel_dtype_size(t->dtype);
    keel_stats_observe(stats, &everything, t->dtype, at, end - begin);
}

static void check_site(const keel_stats *merged, const tensor *t) {
    double magnitudes = 0;
    for (size_t i = 0; i < t->n; i++) {
        const double value = t->dtype == KEEL_F64 ? t->values.f64[i] : (double)t->values.f32[i];
        if (isfinite(value)) magnitudes += fabs(value);
    }
    keel_stats whole, parts;
    keel_stats_clear(&whole);
    observe_range(&whole, t, 0, t->n);
    keel_stats_clear(&parts);
    for (int r = 0; r < check_size; r++) {
        keel_stats part;
        keel_stats_clear(&part);
        observe_range(&part, t, cut(t->n, r), cut(t->n, r + 1));
        keel_stats_merge(&parts, &part);
    }
    check_record(merged, &parts, magnitudes, 1e-12);
    // Kernels may sum float tensors in float within short groups, which the cut moves.
    check_record(merged, &whole, magnitudes, t->dtype == KEEL_F64 ? 1e-12 : 3e-7);
    CHECK(merged->rank_parts == (uint32_t)check_size);
}

static void test_parts_merge_to_the_whole(void) {
    static tensor t;
    keel_frame *frame = new_frame(0, SITES);
    for (int round = 0; round < 3; round++) {
        keel_frame_clear(frame);
        for (uint32_t s = 0; s < SITES; s++) {
            make_site(&t, s);
            keel_stats *stats = &keel_frame_stats(frame)[s];
            observe_range(stats, &t, cut(t.n, check_rank), cut(t.n, check_rank + 1));
            keel_stats_seal_rank(stats, (uint32_t)check_rank, 0, 1);
        }
        reduce(frame);
        for (uint32_t s = 0; check_rank == 0 && s < SITES; s++) {
            make_site(&t, s);
            check_site(&keel_frame_stats(frame)[s], &t);
        }
    }
    free(frame);
    check_say("parts merge to the whole");
}

static void test_owners(void) {
    enum { EQUAL, RISING, SICK, OWNED };
    keel_frame *frame = new_frame(0, OWNED);
    const float one = 1, rising = (float)(check_rank + 1), sick = check_rank > 0 ? NAN : 1;
    observe_part(frame, EQUAL, &one, 1);
    observe_part(frame, RISING, &rising, 1);
    observe_part(frame, SICK, &sick, 1);
    reduce(frame);
    if (check_rank == 0) {
        const keel_stats *stats = keel_frame_stats(frame);
        CHECK(stats[EQUAL].rank_low == 0 && stats[EQUAL].rank_high == 0); // ties: the lowest
        CHECK(stats[RISING].rank_low == 0 && stats[RISING].rank_high == (uint32_t)check_size - 1);
        CHECK(stats[RISING].norm_low == 1 && stats[RISING].norm_high == check_size);
        CHECK(stats[RISING].log_norm_ranks == (uint32_t)check_size);
        CHECK(stats[SICK].rank_nonfinite == (check_size > 1 ? 1 : KEEL_RANK_NONE));
        CHECK(stats[SICK].nans == (uint64_t)check_size - 1);
        CHECK(stats[EQUAL].rank_nonfinite == KEEL_RANK_NONE);
    }
    free(frame);
    check_say("owners, ties to the lowest rank");
}

// Every rank holds a copy; that of BAD (-1: none) has one bit flipped.
static void check_replicas(int bad) {
    enum { N = 1000 };
    float values[N];
    make_tensor(values, N, 5);
    keel_frame *frame = new_frame(0, 1);
    keel_stats *stats = keel_frame_stats(frame);
    uint32_t bits;
    memcpy(&bits, &values[700], sizeof bits);
    bits ^= check_rank == bad;
    memcpy(&values[700], &bits, sizeof bits);
    keel_stats_observe(stats, &everything, KEEL_F32, values, N);
    keel_stats_seal_rank(stats, (uint32_t)check_rank, (uint32_t)check_rank, (uint32_t)check_size);
    reduce(frame);
    if (check_rank == 0) {
        CHECK(stats->n == N);
        keel_stats copy;
        keel_stats_clear(&copy);
        keel_stats_observe(&copy, &everything, KEEL_F32, values, N);
        check_record(stats, &copy, 0, 0); // of rank 0 alone, to the bit
        CHECK((stats->replica_residual != 0) == (bad >= 0 && check_size > 1));
    }
    free(frame);
}

static void test_replicas_count_once(void) {
    for (int bad = -1; bad < check_size; bad++) check_replicas(bad);
    check_say("replicas count once, one that differs is seen");
}

// A tensor of each dtype in PIECES, each held by all the ranks that there are for it; BAD as above.
static void check_layout(int pieces, int bad) {
    enum { N = 4096 };
    static float values[N];
    static union {
        float f32[N];
        double f64[N];
        uint16_t bits[N];
    } typed;
    keel_frame *frame = new_frame(0, KEEL_DTYPE_COUNT);
    keel_stats whole[KEEL_DTYPE_COUNT];
    for (int d = 0; d < KEEL_DTYPE_COUNT; d++) {
        const keel_dtype dtype = (keel_dtype)d;
        make_tensor(values, N, 40 + (uint64_t)d);
        for (int i = 0; i < N; i++) {
            if (dtype == KEEL_F64)
                typed.f64[i] = 1.000000001 * (double)values[i];
            else if (dtype == KEEL_F32)
                typed.f32[i] = values[i];
            else
                typed.bits[i] = dtype == KEEL_F16 ? keel_f16_from_f32(values[i]) : keel_bf16_from_f32(values[i]);
        }
        keel_stats_clear(&whole[d]);
        keel_stats_observe(&whole[d], &everything, dtype, &typed, N);
        const size_t size = keel_dtype_size(dtype), piece = (size_t)(check_rank % pieces);
        const size_t begin = N * piece / (size_t)pieces, end = N * (piece + 1) / (size_t)pieces;
        char *mine = (char *)&typed + begin * size;
        if (check_rank == bad) mine[0] ^= 1;
        keel_stats *stats = &keel_frame_stats(frame)[d];
        keel_stats_observe(stats, &everything, dtype, mine, end - begin);
        keel_stats_seal_rank(stats, (uint32_t)check_rank, (uint32_t)(check_rank / pieces),
                             (uint32_t)(check_size / pieces));
    }
    reduce(frame);
    for (int d = 0; check_rank == 0 && d < KEEL_DTYPE_COUNT; d++) {
        const keel_stats *merged = &keel_frame_stats(frame)[d];
        CHECK(merged->rank_parts == (uint32_t)check_size);
        CHECK((merged->replica_residual != 0) == (bad >= 0 && check_size > pieces));
        // The sum of magnitudes is at most this.
        const double magnitudes = ldexp(sqrt(N * whole[d].sum_sq), whole[d].exponent);
        if (bad < 0) check_record(merged, &whole[d], magnitudes, d == KEEL_F64 ? 1e-12 : 1e-6);
    }
    free(frame);
}

static void test_layouts_give_the_whole(void) {
    for (int pieces = 1; pieces <= check_size; pieces++)
        if (check_size % pieces == 0)
            for (int bad = -1; bad < check_size; bad++) check_layout(pieces, bad);
    check_say("every layout gives the whole, copies of a part that differ are seen");
}

static void test_scalars_and_flags(void) {
    enum { FIRST, MAX, SUM, LAST_RANK_ONLY, SCALARS };
    keel_frame *frame = new_frame(SCALARS, 0);
    keel_scalar_value *scalars = keel_frame_scalars(frame);
    const uint32_t rank = (uint32_t)check_rank, size = (uint32_t)check_size;
    scalars[FIRST] = (keel_scalar_value){10.0 + rank, rank, KEEL_SCALAR_FIRST};
    scalars[MAX] = (keel_scalar_value){rank == size - 1 ? (double)NAN : rank, rank, KEEL_SCALAR_MAX};
    scalars[SUM] = (keel_scalar_value){1, rank, KEEL_SCALAR_SUM};
    scalars[LAST_RANK_ONLY].merge = KEEL_SCALAR_FIRST;
    if (rank == size - 1) scalars[LAST_RANK_ONLY] = (keel_scalar_value){3, rank, KEEL_SCALAR_FIRST};
    frame->step.flags = rank == size - 1 ? KEEL_STEP_DROPPED : 0;
    frame->step.seconds = rank;
    reduce(frame);
    if (rank == 0) {
        CHECK(scalars[FIRST].value == 10 && scalars[FIRST].owner == 0);
        CHECK(isnan(scalars[MAX].value) && scalars[MAX].owner == size - 1);
        CHECK(scalars[SUM].value == size);
        CHECK(scalars[LAST_RANK_ONLY].value == 3 && scalars[LAST_RANK_ONLY].owner == size - 1);
        CHECK(frame->step.flags == KEEL_STEP_DROPPED && frame->step.seconds == size - 1);
    }
    free(frame);
    check_say("scalars and flags");
}

static void test_orders_reach_everyone(void) {
    for (uint64_t i = 1; i <= 100; i++) {
        keel_merge_order order = {0};
        if (check_rank == 0) order = (keel_merge_order){KEEL_MERGE_SKIP, i, 1000 * i};
        CHECK(merge.announce(merge.context, &order) == KEEL_OK);
        drive();
        CHECK(order.action == KEEL_MERGE_SKIP && order.sequence == i && order.step == 1000 * i);
    }
    check_say("orders reach everyone");
}

enum { AGREE_SITES = 200 };

// What the last rank does otherwise than the others.
typedef enum oddity { NONE, NAME, SHAPE, ONE_MORE, ONE_LESS, PLAN, SCALAR, SCALAR_MERGE, MICROS, NOT_STARTED } oddity;

static keel_status agree_with(oddity last, keel_whole_table *whole) {
    const oddity mine = check_rank == check_size - 1 ? last : NONE;
    keel_probe *probe;
    CHECK(keel_probe_open((uint32_t)check_rank, &probe) == KEEL_OK);
    const uint32_t sites = mine == ONE_MORE ? AGREE_SITES + 1 : mine == ONE_LESS ? AGREE_SITES - 1 : AGREE_SITES;
    for (uint32_t s = 0; s < sites; s++) {
        keel_site_info info = {.ndim = 2, .shape = {4, 8}, .phase = KEEL_PHASE_OPTIMIZER};
        info.layout = KEEL_LAYOUT_REPLICA; // its index may differ
        info.replica_index = (uint32_t)check_rank;
        info.replica_count = (uint32_t)check_size;
        snprintf(info.name, sizeof info.name, "layers.%u.weight%s", s, mine == NAME && s == 77 ? "s" : "");
        if (mine == SHAPE && s >= 78) info.shape[1] = 9;
        keel_site *site;
        CHECK(keel_site_add(probe, &info, &site) == KEEL_OK);
    }
    uint32_t id;
    CHECK(keel_scalar_add(probe, mine == SCALAR ? "los" : "loss",
                          mine == SCALAR_MERGE ? KEEL_SCALAR_MAX : KEEL_SCALAR_FIRST, &id) == KEEL_OK);
    if (mine == MICROS) keel_probe_set_micro_count(probe, 3);
    static keel_site_plan plans[AGREE_SITES + 1];
    memset(plans, 0, sizeof plans);
    if (mine == PLAN) plans[12].schedule.every = 7;
    keel_rank_table table = {0};
    if (mine == NOT_STARTED)
        keel_fail(KEEL_ERR_CONFIG, "its own reason");
    else
        CHECK(keel_rank_table_open(probe, plans, &table) == KEEL_OK);
    *whole = (keel_whole_table){0};
    const keel_status status = merge.agree(merge.context, mine == NOT_STARTED ? NULL : &table, whole);
    keel_rank_table_close(&table);
    keel_probe_close(probe);
    return status;
}

static void check_disagreement(oddity last, const char *theirs, const char *of_0) {
    keel_whole_table whole;
    const keel_status status = agree_with(last, &whole);
    CHECK((status == KEEL_OK && check_rank == 0) == (whole.group_count > 0));
    keel_whole_table_close(&whole);
    if (check_size == 1) return;
    CHECK(status == KEEL_ERR_USAGE);
    char start[64];
    snprintf(start, sizeof start, "rank %d registered %s", check_size - 1, theirs);
    CHECK(strncmp(keel_error(), start, strlen(start)) == 0);
    CHECK(strstr(keel_error(), of_0));
}

static void check_agreement(oddity last, uint32_t groups, uint32_t sites, uint32_t scalars) {
    keel_whole_table whole;
    CHECK(agree_with(last, &whole) == KEEL_OK);
    if (check_rank == 0 && check_size > 1) {
        CHECK(whole.group_count == groups && whole.table.site_count == sites && whole.table.scalar_count == scalars);
        for (uint32_t s = 0; s < sites; s++) CHECK(whole.table.sites[s].id == s);
    }
    keel_whole_table_close(&whole);
}

static void test_agreement_names_the_difference(void) {
    check_agreement(NONE, 1, AGREE_SITES, 1);
    check_disagreement(SHAPE, "site layers.78.weight (weight, float32 [4x9]",
                       "where rank 0 registered site layers.78.weight (weight, float32 [4x8]");
    check_disagreement(PLAN, "site layers.12.weight", "every 0");
    check_disagreement(SCALAR_MERGE, "scalar loss (merge 1)", "where rank 0 registered scalar loss (merge 0)");
    check_disagreement(MICROS, "3 micro-batches", "where rank 0 registered 1");
    // What only some ranks have is no contradiction.
    check_agreement(NAME, 2, AGREE_SITES + 1, 1);
    check_agreement(ONE_MORE, 2, AGREE_SITES + 1, 1);
    check_agreement(ONE_LESS, 2, AGREE_SITES, 1);
    check_agreement(SCALAR, 2, AGREE_SITES, 2);
    if (check_size > 1) {
        keel_whole_table whole;
        CHECK(agree_with(NOT_STARTED, &whole) == KEEL_ERR_COMM);
        char expected[96];
        snprintf(expected, sizeof expected, "rank %d cannot start its monitor", check_size - 1);
        CHECK(strstr(keel_error(), check_rank == check_size - 1 ? "its own reason" : expected));
    }
    check_agreement(NONE, 1, AGREE_SITES, 1); // a disagreement leaves nothing behind
    CHECK(merge.confirm(merge.context, true) == KEEL_OK);
    CHECK((merge.confirm(merge.context, check_rank != check_size - 1) == KEEL_OK) == false);
    check_say("agreement names the difference");
}

int main(void) {
    int provided;
    check_begin(&provided);
    CHECK(keel_merge_mpi_open(MPI_COMM_WORLD, provided == MPI_THREAD_MULTIPLE, &merge) == KEEL_OK);
    CHECK(merge.rank == (uint32_t)check_rank && merge.size == (uint32_t)check_size);
    test_parts_merge_to_the_whole();
    test_owners();
    test_replicas_count_once();
    test_layouts_give_the_whole();
    test_scalars_and_flags();
    test_orders_reach_everyone();
    test_agreement_names_the_difference();
    merge.close(merge.context, false);
    MPI_Finalize();
    return 0;
}
