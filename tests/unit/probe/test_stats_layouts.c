// One tensor of each dtype, cut over 1 to 8 ranks and held by 1 to 4 of them each: whatever the layout, the merge gives
// the counts, extremes and checksum of the whole to the bit; copies that differ are seen, others are not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "probe/stats.h"

enum { ROWS = 24, COLS = 210, ELEMENTS = ROWS * COLS, PIECES_MAX = 8, REPLICAS_MAX = 4 };

typedef struct tensor {
    keel_dtype dtype;
    union {
        float f32[ELEMENTS];
        double f64[ELEMENTS];
        uint16_t bits16[ELEMENTS];
    } values;
} tensor;

static uint64_t random_state = 11;

static uint64_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random_state ^ random_state >> 29;
}

// Values of many magnitudes, zeros and subnormals among them; SICK: NaN and infinities too.
static void make(tensor *t, keel_dtype dtype, bool sick) {
    t->dtype = dtype;
    for (size_t i = 0; i < ELEMENTS; i++) {
        const double uniform = (double)(random_bits() >> 11) * 0x1p-53 - 0.4;
        double value = uniform * exp2((double)(random_bits() % 60) - 40);
        if (random_bits() % 40 == 0) value = random_bits() % 2 ? -0.0 : 0.0;
        if (random_bits() % 50 == 0) value *= 1e-30;
        if (sick && random_bits() % 200 == 0) value = random_bits() % 2 ? (double)NAN : -(double)INFINITY;
        switch (dtype) {
        case KEEL_F32:
            t->values.f32[i] = (float)value;
            break;
        case KEEL_F64:
            t->values.f64[i] = value * 1.0000000001;
            break;
        case KEEL_F16:
            t->values.bits16[i] = keel_f16_from_f32((float)value);
            break;
        case KEEL_BF16:
            t->values.bits16[i] = keel_bf16_from_f32((float)value);
            break;
        case KEEL_DTYPE_COUNT:
            fail();
        }
    }
}

static const keel_stats_params all = {.fields = KEEL_FIELDS_ALL, .eps = 1e-6, .scale = 256};

// The first of N parts of LENGTH that the P-th piece does not hold; parts are unequal, and some may be empty.
static size_t cut(size_t length, unsigned p, unsigned pieces) {
    return length * p * (p + 1) / (pieces * (pieces + 1));
}

typedef enum manner { BY_ROWS, BY_COLUMNS, FLAT, HOW_COUNT } manner;

static void observe_piece(keel_stats *stats, const tensor *t, manner how, unsigned p, unsigned pieces) {
    const char *values = (const char *)&t->values;
    const size_t size = keel_dtype_size(t->dtype);
    keel_stats_clear(stats);
    if (how == BY_COLUMNS) {
        const size_t begin = cut(COLS, p, pieces), end = cut(COLS, p + 1, pieces);
        for (size_t row = 0; row < ROWS; row++)
            keel_stats_observe(stats, &all, t->dtype, values + (row * COLS + begin) * size, end - begin);
        return;
    }
    const size_t unit = how == BY_ROWS ? COLS : 1, length = ELEMENTS / unit;
    const size_t begin = cut(length, p, pieces) * unit, end = cut(length, p + 1, pieces) * unit;
    keel_stats_observe(stats, &all, t->dtype, values + begin * size, end - begin);
}

// The bits that say everything but the sums, which are compared by themselves.
static keel_stats exact_part(const keel_stats *stats) {
    keel_stats s = *stats;
    s.sum = s.sum_sq = s.m2 = 0;
    s.norm_low = s.norm_high = s.log_norm_sum = s.log_norm_sum_sq = 0;
    s.log_norm_ranks = s.rank_low = s.rank_high = s.rank_nonfinite = s.rank_parts = 0;
    s.exponent = 0;
    s.replica_residual = 0;
    return s;
}

static void check_merged(const keel_stats *merged, const keel_stats *whole, keel_dtype dtype) {
    const keel_stats a = exact_part(merged), b = exact_part(whole);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(merged->exponent, whole->exponent);
    const double tolerance = dtype == KEEL_F64 ? 1e-12 : 1e-6;
    const double magnitudes = sqrt((double)whole->n * whole->sum_sq);
    assert_true(fabs(merged->sum - whole->sum) <= tolerance * magnitudes);
    assert_true(fabs(merged->sum_sq - whole->sum_sq) <= tolerance * whole->sum_sq);
}

// Ranks in a shuffled order, as a tree of any shape may merge them. BAD: the rank whose copy has one bit flipped.
static void merge_layout(const tensor *t, manner how, unsigned pieces, unsigned replicas, unsigned bad,
                         keel_stats *merged) {
    const unsigned ranks = pieces * replicas;
    unsigned order[PIECES_MAX * REPLICAS_MAX] = {0};
    for (unsigned i = 0; i < ranks; i++) {
        const unsigned j = (unsigned)(random_bits() % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    keel_stats_clear(merged);
    for (unsigned i = 0; i < ranks; i++) {
        const unsigned rank = order[i];
        keel_stats part;
        if (rank == bad) {
            tensor copy = *t;
            for (size_t k = 0; k < sizeof copy.values; k += 97) ((char *)&copy.values)[k] ^= 1; // in every piece
            observe_piece(&part, &copy, how, rank % pieces, pieces);
        } else {
            observe_piece(&part, t, how, rank % pieces, pieces);
        }
        keel_stats_seal_rank(&part, rank, rank / pieces, replicas);
        keel_stats_merge(merged, &part);
    }
    assert_int_equal(merged->rank_parts, ranks);
}

static void check_layout(const tensor *t, const keel_stats *whole, manner how, unsigned pieces, unsigned replicas) {
    keel_stats merged;
    const unsigned ranks = pieces * replicas;
    merge_layout(t, how, pieces, replicas, ranks, &merged);
    check_merged(&merged, whole, t->dtype);
    assert_int_equal(keel_stats_view_count(&merged, KEEL_OP_replica_residual), 0);
    if (replicas == 1) return;
    for (unsigned bad = 0; bad < ranks; bad++) {
        keel_stats mine;
        observe_piece(&mine, t, how, bad % pieces, pieces);
        if (mine.n < 100) continue; // it may hold none of the bits that are flipped
        merge_layout(t, how, pieces, replicas, bad, &merged);
        assert_int_not_equal(keel_stats_view_count(&merged, KEEL_OP_replica_residual), 0);
        assert_int_equal(merged.n, ELEMENTS);
    }
}

static void test_every_layout_gives_the_whole(void **state) {
    (void)state;
    static tensor t;
    for (unsigned dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++) {
        for (int sick = 0; sick < 2; sick++) {
            make(&t, (keel_dtype)dtype, sick);
            keel_stats whole;
            keel_stats_clear(&whole);
            keel_stats_observe(&whole, &all, t.dtype, &t.values, ELEMENTS);
            assert_true((whole.nans + whole.neg_infs > 0) == (sick != 0) || dtype == KEEL_F16); // halves overflow
            for (unsigned how = 0; how < HOW_COUNT; how++)
                for (unsigned pieces = 1; pieces <= PIECES_MAX; pieces++)
                    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++)
                        check_layout(&t, &whole, (manner)how, pieces, replicas);
        }
    }
}

// A tensor that is sick only in a copy that does not count looks sick in the whole.
static void test_nan_in_a_later_copy(void **state) {
    (void)state;
    static tensor t;
    make(&t, KEEL_F32, false);
    keel_stats merged, part;
    keel_stats_clear(&merged);
    for (unsigned rank = 0; rank < 6; rank++) { // 3 pieces, 2 copies of each
        if (rank == 4) t.values.f32[ELEMENTS / 2] = NAN;
        observe_piece(&part, &t, FLAT, rank % 3, 3);
        keel_stats_seal_rank(&part, rank, rank / 3, 2);
        keel_stats_merge(&merged, &part);
    }
    assert_int_equal(merged.nans, 0);
    const uint32_t sick = ELEMENTS / 2 < cut(ELEMENTS, 2, 3) ? 4 : 5;
    assert_int_equal(keel_stats_view_count(&merged, KEEL_OP_rank_nonfinite), sick);
    assert_true(isnan(keel_stats_view(&merged, KEEL_OP_norm)));
    assert_int_not_equal(keel_stats_view_count(&merged, KEEL_OP_replica_residual), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout_gives_the_whole),
        cmocka_unit_test(test_nan_in_a_later_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
