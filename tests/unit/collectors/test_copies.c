// Which copy differs: every tensor cut over 1 to 4 ranks and held 2 to 5 times, with each rank the odd one in turn.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collectors/copies.h"

enum { PIECES_MAX = 4, REPLICAS_MAX = 5, RANKS_MAX = PIECES_MAX * REPLICAS_MAX, N = 64 };

typedef struct trial {
    unsigned pieces, replicas;
    bool alike;          // all pieces hold the same values
    unsigned odd, odd_2; // ranks whose copy has a bit changed; RANKS_MAX: none
} trial;

// What each rank answers, and what the merge says.
static uint64_t answers(const trial *t, keel_copy *all) {
    const keel_stats_params params = {.fields = KEEL_FIELDS_CHECKSUM, .scale = 1};
    keel_stats merged;
    keel_stats_clear(&merged);
    for (unsigned rank = 0; rank < t->pieces * t->replicas; rank++) {
        const unsigned piece = rank % t->pieces, index = rank / t->pieces;
        float values[N];
        for (int i = 0; i < N; i++) values[i] = (float)(t->alike ? i : 1000 * (int)piece + i);
        if (rank == t->odd || rank == t->odd_2) values[7] += (float)(1 + rank); // each in a way of its own
        keel_stats stats;
        keel_stats_clear(&stats);
        keel_stats_observe(&stats, &params, KEEL_F32, values, N);
        keel_stats_seal_rank(&stats, rank, index, t->replicas);
        all[rank] = (keel_copy){.print = keel_stats_replica_print(&stats, index, t->replicas),
                                .rank = rank,
                                .replica_index = index,
                                .held = true};
        keel_stats_merge(&merged, &stats);
    }
    return merged.replica_residual;
}

static void check_odd(trial t) {
    keel_copy all[RANKS_MAX + 1];
    uint32_t ranks = t.pieces * t.replicas, rank = 99, peer = 99;
    assert_true((answers(&t, all) == 0) == (t.odd == RANKS_MAX));
    all[ranks] = (keel_copy){.rank = ranks}; // one that has no such site
    const bool told = keel_copies_vote(all, ranks + 1, t.replicas, &rank, &peer);
    if (t.odd == RANKS_MAX || (t.replicas == 2 && t.alike && t.pieces > 1)) {
        // Of alike parts with two copies each it may still be clear; if not, nothing is said.
        if (t.odd == RANKS_MAX) assert_false(told);
        return;
    }
    assert_true(told);
    if (t.replicas > 2) {
        assert_int_equal(rank, t.odd);
        assert_int_equal(peer, t.odd);
    } else {
        assert_int_equal(rank, t.odd % t.pieces); // the copy that counts comes first
        assert_int_equal(peer, t.pieces + t.odd % t.pieces);
    }
}

static void test_the_odd_copy_is_found(void **state) {
    (void)state;
    for (unsigned pieces = 1; pieces <= PIECES_MAX; pieces++)
        for (unsigned replicas = 2; replicas <= REPLICAS_MAX; replicas++)
            for (int alike = 0; alike < 2; alike++) {
                check_odd((trial){pieces, replicas, alike, RANKS_MAX, RANKS_MAX});
                for (unsigned odd = 0; odd < pieces * replicas; odd++)
                    check_odd((trial){pieces, replicas, alike, odd, RANKS_MAX});
            }
}

static void test_of_two_odd_copies_the_lower_rank_is_named(void **state) {
    (void)state;
    keel_copy all[RANKS_MAX];
    uint32_t rank, peer;
    answers(&(trial){.pieces = 2, .replicas = 5, .odd = 7, .odd_2 = 4}, all);
    assert_true(keel_copies_vote(all, 10, 5, &rank, &peer));
    assert_int_equal(rank, 4);
    assert_int_equal(peer, 4);
    // Of three copies none of which agree nobody is in the right: the first is named, since all differ from most.
    answers(&(trial){.pieces = 1, .replicas = 3, .odd = 1, .odd_2 = 2}, all);
    assert_true(keel_copies_vote(all, 3, 3, &rank, &peer));
    assert_int_equal(rank, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_odd_copy_is_found),
        cmocka_unit_test(test_of_two_odd_copies_the_lower_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
