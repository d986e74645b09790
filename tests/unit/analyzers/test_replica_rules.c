// replica_divergence: copies of one tensor that part, and the copy that is the odd one.
#include "tests/unit/analyzers/tensor_run.h"

static int weight_of(const tensor_run *r) {
    return tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
}

// A run in which every rank has a copy of everything.
static tensor_run *begin_copies(uint32_t ranks) {
    tensor_run *r = tensor_open(ranks, tensor_plain);
    for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = ranks;
    tensor_begin(r);
    return r;
}

static void set_residuals(tensor_run *r, bool all, int odd) {
    for (uint32_t s = 0; s < r->info.site_count; s++) {
        if (r->sites[s].quantity != KEEL_WEIGHT) continue;
        r->sites[s].layout = KEEL_LAYOUT_REPLICA;
        r->sites[s].replica_count = r->info.world_size;
        double norm = r->f64[KEEL_OP_norm][s];
        tensor_set_ranks(r, (int)s, norm, norm, norm);
        r->u64[KEEL_OP_replica_residual][s] = all || (int)s == odd ? 12345 : 0;
    }
}

static void a_bit_flip_in_one_weight_of_one_rank_is_told_at_once(void **unused) {
    (void)unused;
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        tensor_run *r = begin_copies(ranks);
        const int odd = weight_of(r);
        for (int i = 0; i < 100; i++) {
            tensor_next(r);
            set_residuals(r, false, -1);
            tensor_judge(r);
        }
        assert_null(tensor_incident(r, "replica_divergence", KEEL_INFO));
        tensor_next(r);
        set_residuals(r, false, odd);
        tensor_set_ranks(r, odd, 20, 20, 400);
        tensor_judge(r);
        const keel_incident *k = tensor_expect_rank(r, "replica_divergence", (int)ranks - 1);
        assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        assert_string_equal(k->cause, "bit flip in a weight");
        tensor_end(r);
    }
}

// A loss that is high for long brings no bits to differ: that is an incident of its own, with its own beginning.
static void replicas_that_part_in_a_long_trouble_are_another_one(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(4);
    const int odd = weight_of(r);
    for (int i = 1; i <= 132; i++) {
        tensor_next(r);
        if (i > 100) r->scalars[T_LOSS] = 5;
        set_residuals(r, false, i >= 130 ? odd : -1);
        tensor_judge(r);
    }
    assert_int_equal(tensor_incident(r, "loss_spike", KEEL_WARNING)->first_step, 101);
    const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->first_step, 130);
    assert_string_equal(k->cause, "bit flip in a weight");
    tensor_end(r);
}

// Of two copies: the first one's sum and the sum of its update tell, however small the flip is. Of a few values such
// sums may be exact, of powers of two here.
static void of_two_copies_the_sum_of_the_update_tells_the_odd_one(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++) {
        const int odd_rank = way % 2;
        const bool exact = way / 2;
        tensor_run *r = begin_copies(2);
        const int weight = weight_of(r), update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        double mean = 0x1p-10, norm = 20;
        for (int i = 0; i < 50; i++) {
            bool flip = i == 49;
            tensor_next(r);
            set_residuals(r, false, flip ? weight : -1);
            double step = exact ? 0x1p-20 : 1e-6 * random_normal(&r->seed);
            mean += step;
            norm += 1e-3 * random_normal(&r->seed);
            r->f64[KEEL_OP_mean][update] = step;
            r->f64[KEEL_OP_mean][weight] =
                mean + (exact ? 0 : 1e-12) * random_normal(&r->seed) + (flip && odd_rank == 0 ? 1e-9 : 0);
            tensor_set_ranks(r, weight, norm, norm, flip ? norm + 1e-9 : norm);
            tensor_judge(r);
        }
        tensor_expect_rank(r, "replica_divergence", odd_rank);
        tensor_end(r);
    }
}

// Without a past it is not known; after one record the norm that jumps is.
static void of_two_young_copies_the_one_that_jumps_is_odd(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++) {
        const int odd_rank = way % 2, flip = way / 2;
        tensor_run *r = begin_copies(2);
        const int weight = weight_of(r);
        for (int i = 0; i <= flip; i++) {
            const double norm = 20 + 1e-3 * i, odd = i == flip ? 25 : norm;
            tensor_next(r);
            set_residuals(r, false, i == flip ? weight : -1);
            tensor_set_ranks(r, weight, odd_rank ? norm : odd, norm, odd_rank ? odd : norm);
            tensor_judge(r);
        }
        tensor_expect_rank(r, "replica_divergence", flip ? odd_rank : -1);
        tensor_end(r);
    }
}

// The copy whose norm is to the bit what it was has missed the update.
static void of_two_copies_the_one_that_stood_still_is_out_of_step(void **unused) {
    (void)unused;
    for (int odd_rank = 0; odd_rank < 2; odd_rank++) {
        tensor_run *r = tensor_begun(2);
        double norm = 20, before = 20;
        for (int i = 0; i < 50; i++) {
            tensor_next(r);
            set_residuals(r, i == 49, -1);
            before = norm;
            norm += 1e-3;
            for (uint32_t s = 0; s < r->info.site_count; s++)
                if (r->sites[s].quantity == KEEL_WEIGHT)
                    tensor_set_ranks(r, (int)s, i == 49 && odd_rank == 0 ? before : norm, norm,
                                     i == 49 && odd_rank == 1 ? before : norm);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_expect_rank(r, "replica_divergence", odd_rank);
        assert_string_equal(k->cause, "replica out of step");
        tensor_end(r);
    }
}

// Parts of tensors, four ranks: norms of parts tell nothing of copies. The checksums that the ranks were asked for do,
// where most tell; of two copies they say which two ranks, and the mean says which of them.
static void of_a_part_of_a_tensor_the_checksums_tell_the_odd_one(void **unused) {
    (void)unused;
    enum { MOST_TELL, FIRST_ODD, SECOND_ODD, NOT_ASKED, WAYS };
    for (int way = 0; way < WAYS; way++) {
        tensor_run *r = tensor_begun(way == MOST_TELL ? 6 : 4);
        const int weight = weight_of(r), update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        double mean = 0.001;
        for (int i = 0; i < 50; i++) {
            bool flip = i == 49;
            tensor_next(r);
            set_residuals(r, false, flip ? weight : -1);
            for (uint32_t s = 0; s < r->info.site_count; s++) {
                r->sites[s].layout = KEEL_LAYOUT_SHARD;
                r->sites[s].replica_count = r->info.world_size / 2;
            }
            double step = 1e-6 * random_normal(&r->seed);
            mean += step;
            r->f64[KEEL_OP_mean][update] = step;
            r->f64[KEEL_OP_mean][weight] =
                mean + 1e-12 * random_normal(&r->seed) + (flip && way == FIRST_ODD ? 1e-9 : 0);
            tensor_set_ranks(r, weight, 10, 14, flip ? 14.5 : 15);
            if (flip && way != NOT_ASKED) {
                r->u64[KEEL_OP_replica_rank][weight] = way == MOST_TELL ? 4 : 1;
                r->u64[KEEL_OP_replica_peer][weight] = way == MOST_TELL ? 4 : 3;
            }
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        static const int expected[WAYS] = {[MOST_TELL] = 4, [FIRST_ODD] = 1, [SECOND_ODD] = 3, [NOT_ASKED] = -1};
        assert_int_equal(k->rank, expected[way]);
        tensor_end(r);
    }
}

// Each rank updates a part of the weights and gives it to the others: no copy differs, but rank 2 has changed nothing.
static void a_rank_that_misses_the_update_of_its_parts_is_told(void **unused) {
    (void)unused;
    enum { MISSED, SKIPPED_BY_ALL, ELSEWHERE_MOVED, WAYS };
    for (int way = 0; way < WAYS; way++) {
        tensor_run *r = tensor_begun(3);
        for (int i = 1; i <= 30; i++) {
            tensor_next(r);
            for (uint32_t s = 0; s < r->info.site_count; s++) {
                if (r->sites[s].quantity != KEEL_UPDATE) continue;
                const bool own = r->sites[s].layer > 1; // a part of rank 2
                tensor_set_ranks(r, (int)s, 0.2, 0.2, i == 30 && own ? 0 : 0.1);
                if (!own) r->u64[KEEL_OP_rank_low][s] = way == ELSEWHERE_MOVED ? 2 : 1;
                if (way == SKIPPED_BY_ALL && i == 30) tensor_set_ranks(r, (int)s, 0, 0, 0);
            }
            if (way == SKIPPED_BY_ALL && i == 30) r->row.step.flags = KEEL_STEP_SKIPPED;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_int_equal(k != NULL, way == MISSED);
        if (k) assert_int_equal(k->first_step, 30);
        if (k) assert_int_equal(k->rank, 2);
        if (k) assert_string_equal(k->cause, "replica out of step");
        tensor_end(r);
    }
}

static void a_replica_out_of_step_has_all_its_weights_different(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(2);
    for (int i = 0; i < 22; i++) {
        tensor_next(r);
        set_residuals(r, i >= 20, -1);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_CRITICAL);
    assert_non_null(k);
    assert_string_equal(k->cause, "replica out of step");
    assert_int_equal(k->rank, -1);
    tensor_end(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bit_flip_in_one_weight_of_one_rank_is_told_at_once),
        cmocka_unit_test(replicas_that_part_in_a_long_trouble_are_another_one),
        cmocka_unit_test(of_two_copies_the_sum_of_the_update_tells_the_odd_one),
        cmocka_unit_test(of_two_young_copies_the_one_that_jumps_is_odd),
        cmocka_unit_test(of_two_copies_the_one_that_stood_still_is_out_of_step),
        cmocka_unit_test(of_a_part_of_a_tensor_the_checksums_tell_the_odd_one),
        cmocka_unit_test(a_rank_that_misses_the_update_of_its_parts_is_told),
        cmocka_unit_test(a_replica_out_of_step_has_all_its_weights_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
