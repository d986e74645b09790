// Rules on ranks, replicas and the machine: who differs, who is waited for, what grows, what stands still.
#include "tests/unit/analyzers/tensor_run.h"

static const char plain[] = "model_config: {vocab_size: 256}\n"
                            "optimizer: {betas: [0.9, 0.95]}\n"
                            "lr_schedule: {learning_rate: 0.001, warmup_steps: 20}\n"
                            "runner_config: {steps: 1000}\n";

// ---- rank_outlier ----

static void make_rank_odd(tensor_run *r, bool last, double factor) {
    for (uint32_t s = 0; s < r->info.site_count; s++) {
        if (r->sites[s].quantity != KEEL_GRAD_UNREDUCED && r->sites[s].quantity != KEEL_ACTIVATION) continue;
        double norm = r->f64[KEEL_OP_norm][s];
        tensor_set_ranks(r, (int)s, last ? norm : factor * norm, norm, last ? factor * norm : norm);
    }
}

static void the_odd_rank_is_named(void **unused) {
    (void)unused;
    static const struct {
        uint32_t ranks;
        bool last;
        double factor;
    } cases[] = {{2, true, 4}, {2, false, 4}, {2, true, 0.2}, {4, true, 4}, {4, false, 0.2}, {3, false, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(cases[i].ranks, plain);
        tensor_begin(r);
        tensor_quiet(r, 100);
        for (int n = 0; n < 3; n++) {
            tensor_next(r);
            make_rank_odd(r, cases[i].last, cases[i].factor);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, cases[i].last ? (int)cases[i].ranks - 1 : 0);
        assert_int_equal(k->first_step, 101);
        assert_string_equal(k->site, "layers.0.mlp.down:activation");
        assert_string_equal(k->cause, "corrupt data on one rank");
        tensor_end(r);
    }
}

static void a_rank_that_was_odd_from_the_start_is_found(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int n = 0; n < 60; n++) {
        tensor_next(r);
        make_rank_odd(r, true, 1.5);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, 3);
    tensor_end(r);
}

// The batch of two of four ranks is bad, as of all tensor ranks with the same data: the mean lies in the middle.
static void of_two_odd_ranks_of_four_one_is_named(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++) {
        const bool last = way % 2;
        const double factor = way / 2 ? 0.2 : 4;
        tensor_run *r = tensor_open(4, plain);
        tensor_begin(r);
        tensor_quiet(r, 100);
        for (int n = 0; n < 3; n++) {
            tensor_next(r);
            make_rank_odd(r, last, factor);
            for (uint32_t s = 0; s < r->info.site_count; s++)
                r->f64[KEEL_OP_log_norm_mean][s] =
                    (log(r->f64[KEEL_OP_norm_low][s]) + log(r->f64[KEEL_OP_norm_high][s])) / 2;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, last ? 3 : 0);
        tensor_end(r);
    }
}

// Nothing is looked at any more: nothing more is said, least of all of a site that is none.
static void where_no_site_is_left_the_odd_rank_is_not_told_of_again(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int n = 0; n < 60; n++) {
        tensor_next(r);
        make_rank_odd(r, true, 1.5);
        tensor_judge(r);
    }
    r->info.site_count = 0;
    r->info.sites = NULL;
    assert_int_equal(keel_analysis_start(r->analysis, &r->info), KEEL_OK);
    tensor_quiet(r, 20);
    assert_int_equal(tensor_incident(r, "rank_outlier", KEEL_WARNING)->last_step, 60);
    tensor_end(r);
}

// Records that look at no site are none of the three of which two must show it, nor do they end it.
static void an_odd_rank_is_found_whatever_the_schedule(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int n = 1; n <= 500; n++) {
        tensor_next(r);
        if (n > 450) make_rank_odd(r, true, 4);
        for (uint32_t s = 0; n % 5 && s < r->info.site_count; s++)
            r->f64[KEEL_OP_norm_low][s] = r->f64[KEEL_OP_norm_high][s] = keel_not_collected();
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, 3);
    assert_int_equal(k->first_step, 455);
    assert_int_equal(k->last_step, 500);
    assert_int_equal(k->open, 1);
    tensor_end(r);
}

static void one_odd_site_is_no_odd_rank(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    for (int n = 0; n < 3; n++) {
        tensor_next(r);
        tensor_set_ranks(r, tensor_find(r, "layers.0.mlp.down", KEEL_ACTIVATION), 50, 50, 500);
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "rank_outlier", KEEL_INFO));
    tensor_end(r);
}

static void a_local_loss_that_stands_out_names_its_rank(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int i = 0; i < 103; i++) {
        tensor_next(r);
        r->scalars[T_LOSS_MAX] = r->scalars[T_LOSS] * (i < 100 ? 1.02 : 1.9);
        r->scalars[T_LOSS_MAX_RANK] = i < 100 ? i % 4 : 2;
        r->set[T_LOSS_MAX] = r->set[T_LOSS_MAX_RANK] = true;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, 2);
    tensor_end(r);
}

// ---- replica_divergence ----

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
        tensor_run *r = tensor_open(ranks, plain);
        int odd = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = ranks;
        tensor_begin(r);
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
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, (int)ranks - 1);
        assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        assert_string_equal(k->cause, "bit flip in a weight");
        tensor_end(r);
    }
}

// A loss that is high for long brings no bits to differ: that is an incident of its own, with its own beginning.
static void replicas_that_part_in_a_long_trouble_are_another_one(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    const int odd = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
    tensor_begin(r);
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
        tensor_run *r = tensor_open(2, plain);
        int weight = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        int update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = 2;
        tensor_begin(r);
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
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, odd_rank);
        tensor_end(r);
    }
}

// Without a past it is not known; after one record the norm that jumps is.
static void of_two_young_copies_the_one_that_jumps_is_odd(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++) {
        const int odd_rank = way % 2, flip = way / 2;
        tensor_run *r = tensor_open(2, plain);
        int weight = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = 2;
        tensor_begin(r);
        for (int i = 0; i <= flip; i++) {
            const double norm = 20 + 1e-3 * i, odd = i == flip ? 25 : norm;
            tensor_next(r);
            set_residuals(r, false, i == flip ? weight : -1);
            tensor_set_ranks(r, weight, odd_rank ? norm : odd, norm, odd_rank ? odd : norm);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, flip ? odd_rank : -1);
        tensor_end(r);
    }
}

// The copy whose norm is to the bit what it was has missed the update.
static void of_two_copies_the_one_that_stood_still_is_out_of_step(void **unused) {
    (void)unused;
    for (int odd_rank = 0; odd_rank < 2; odd_rank++) {
        tensor_run *r = tensor_open(2, plain);
        tensor_begin(r);
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
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, odd_rank);
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
        tensor_run *r = tensor_open(way == MOST_TELL ? 6 : 4, plain);
        int weight = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        int update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        tensor_begin(r);
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
        tensor_run *r = tensor_open(3, plain);
        tensor_begin(r);
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
    tensor_run *r = tensor_open(2, plain);
    tensor_begin(r);
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

// ---- what ranks the machine has ----

static void a_leak_is_told_with_its_rank(void **unused) {
    (void)unused;
    for (int leak = 0; leak < 2; leak++) {
        tensor_run *r = tensor_open(2, plain);
        r->names[T_EXTRA] = "rss_growth_bytes";
        r->names[T_EXTRA_RANK] = "rss_growth_bytes_rank";
        r->names[T_MORE] = "rss_anon_bytes";
        tensor_begin(r);
        for (int i = 0; i < 300; i++) {
            tensor_next(r);
            // Without a leak: bursts that are given back, and a cache that fills up.
            r->scalars[T_EXTRA] = leak ? 524288.0 * i : 4e6 * (i % 50) + 2e7 * (1 - exp(-i / 60.0));
            r->scalars[T_EXTRA_RANK] = 1;
            r->scalars[T_MORE] = 2e8 + r->scalars[T_EXTRA];
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = true;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "memory_growth", KEEL_WARNING);
        assert_int_equal(k != NULL, leak);
        if (k) assert_int_equal(k->rank, 1);
        if (k) assert_string_equal(k->cause, "memory leak");
        tensor_end(r);
    }
}

static void the_rank_that_others_wait_for_is_named(void **unused) {
    (void)unused;
    enum { BURST, SHORT, STARVED, SLOW, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        tensor_run *r = tensor_open(4, plain);
        r->names[T_EXTRA] = "reduce_wait_seconds";
        r->names[T_MORE] = "reduce_wait_least_seconds";
        r->names[T_EXTRA_RANK] = "reduce_wait_least_seconds_rank";
        r->names[T_LOSS_MAX] = "cpu_wait_seconds";
        tensor_begin(r);
        for (int i = 0; i < 200; i++) {
            tensor_next(r);
            // Noise: waits of any length, for any rank, a burst of 20 steps for one. Then a rank that is waited for:
            // for 80 steps of two milliseconds; or since it has no processor; or since it is slow.
            bool burst = i >= 100 && (kind != BURST || i < 120) && (kind != SHORT || i < 180);
            r->scalars[T_EXTRA] = burst ? 0.05 : 0.04 * random_uniform(&r->seed);
            r->scalars[T_MORE] = 0.001;
            r->scalars[T_EXTRA_RANK] = burst ? 2 : (int)(4 * random_uniform(&r->seed));
            r->scalars[T_LOSS_MAX] = kind == STARVED && burst ? 0.045 : 0;
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = r->set[T_LOSS_MAX] = true;
            if (kind == SHORT) {
                r->scalars[T_EXTRA] *= 0.02;
                r->scalars[T_MORE] *= 0.02;
                r->row.step.seconds *= 0.02;
            }
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "straggler", KEEL_WARNING);
        assert_int_equal(k != NULL, kind == SLOW);
        if (k) assert_int_equal(k->rank, 2);
        if (k) assert_in_range(k->first_step, 90, 101);
        if (k) assert_string_equal(k->cause, "straggler");
        tensor_end(r);
    }
}

static void ranks_of_unequal_work_are_measured_by_their_past(void **unused) {
    (void)unused;
    enum { HEALTHY, SAME, OTHER, KINDS }; // the last stage always has more to do; then it, or the first, is slow
    for (int kind = 0; kind < 2 * KINDS; kind++) {
        tensor_run *r = tensor_open(2, plain);
        if (kind < KINDS)
            r->info.dp = 1, r->info.pp = 2;
        else
            r->info.ep = 2;
        const int what = kind % KINDS;
        r->names[T_EXTRA] = "reduce_wait_seconds";
        r->names[T_MORE] = "reduce_wait_least_seconds";
        r->names[T_EXTRA_RANK] = "reduce_wait_least_seconds_rank";
        tensor_begin(r);
        for (int i = 0; i < 260; i++) {
            tensor_next(r);
            const bool slow = what != HEALTHY && i >= 160;
            r->scalars[T_EXTRA_RANK] = slow && what == OTHER ? 0 : 1;
            r->scalars[T_EXTRA] = (slow && what == SAME ? 0.75 : slow ? 0.3 : 0.4) * r->row.step.seconds;
            r->scalars[T_MORE] = 0;
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = true;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "straggler", KEEL_WARNING);
        assert_int_equal(k != NULL, what != HEALTHY);
        if (k) assert_int_equal(k->rank, what == SAME);
        tensor_end(r);
    }
}

static void a_step_that_does_not_end_is_told_while_it_lasts(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(2, plain);
    tensor_begin(r);
    assert_int_equal(keel_analysis_watch(r->analysis, 1000, NULL), KEEL_OK); // the first step may take its time
    tensor_quiet(r, 20);
    size_t changed;
    assert_int_equal(keel_analysis_watch(r->analysis, 299, NULL), KEEL_OK);
    assert_null(tensor_incident(r, "hang", KEEL_INFO));
    assert_int_equal(keel_analysis_watch(r->analysis, 301, NULL), KEEL_OK);
    keel_analysis_changed(r->analysis, &changed);
    assert_int_equal(changed, 1);
    const keel_incident *k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_int_equal(k->open, 1);
    assert_int_equal(k->first_step, 21);
    assert_string_equal(k->cause, "hang");
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 1);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_int_equal(k->open, 0);
    assert_true(k->value == 400);
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 0);
    const keel_incident live = *k;
    tensor_end(r);

    // Afterwards, from the rows alone.
    r = tensor_open(2, plain);
    tensor_begin(r);
    tensor_quiet(r, 20);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_string_equal(k->message, live.message);
    assert_int_equal(k->first_step, live.first_step);
    tensor_end(r);
}

static void a_hang_names_the_rank_that_others_wait_for(void **unused) {
    (void)unused;
    const keel_host_event silent = {
        .kind = KEEL_HOST_SILENT, .rank = 1, .step = 21, .seconds = 310, .how = "stopped by a signal"};
    for (int live = 0; live < 2; live++) {
        tensor_run *r = tensor_open(2, plain);
        tensor_begin(r);
        tensor_quiet(r, 20);
        if (live) { // whoever has seen it writes it down first; of what nobody writes down it is told later
            assert_int_equal(keel_analysis_watch(r->analysis, 310, &silent), KEEL_OK);
            assert_null(tensor_incident(r, "hang", KEEL_CRITICAL));
            assert_int_equal(keel_analysis_watch(r->analysis, 380, &silent), KEEL_OK);
        } else {
            assert_int_equal(keel_analysis_event(r->analysis, &silent), KEEL_OK);
        }
        const keel_incident *k = tensor_incident(r, "hang", KEEL_CRITICAL);
        assert_non_null(k);
        assert_int_equal(k->rank, 1);
        assert_int_equal(k->first_step, 21);
        assert_int_equal(k->open, 1);
        char message[128];
        snprintf(message, sizeof message, "step 21 has gone on for %d s, waiting for rank 1 (stopped by a signal)",
                 live ? 380 : 310);
        assert_non_null(strstr(k->message, message));
        tensor_next(r);
        r->row.step.seconds = 400;
        tensor_judge(r);
        k = tensor_incident(r, "hang", KEEL_CRITICAL);
        assert_int_equal(k->open, 0);
        assert_int_equal(k->rank, 1);
        tensor_end(r);
    }
}

static void a_dead_rank_is_an_incident_until_the_run_goes_on(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    tensor_quiet(r, 20);
    const double died = r->row.step.time_unix + 1;
    const keel_host_event dead = {.kind = KEEL_HOST_GONE,
                                  .rank = 2,
                                  .step = 21,
                                  .time_unix = died,
                                  .pid = 77,
                                  .host = "here",
                                  .how = "it was killed or has crashed"};
    assert_int_equal(keel_analysis_event(r->analysis, &dead), KEEL_OK);
    keel_host_event later = dead; // what the launcher ends
    later.rank = 0;
    later.time_unix += 2;
    assert_int_equal(keel_analysis_event(r->analysis, &later), KEEL_OK);
    size_t count;
    const keel_incident *k = keel_analysis_incidents(r->analysis, &count);
    assert_int_equal(count, 1);
    assert_string_equal(k->rule, "dead_rank");
    assert_string_equal(k->cause, "dead rank");
    assert_int_equal(k->severity, KEEL_CRITICAL);
    assert_int_equal(k->rank, 2);
    assert_int_equal(k->open, 1);
    assert_string_equal(k->message, "rank 2 (process 77 on here) is gone in step 21: it was killed or has crashed");
    tensor_next(r);
    r->row.step.time_unix = died - 0.5; // was on its way when that rank died
    tensor_judge(r);
    assert_int_equal(tensor_incident(r, "dead_rank", KEEL_CRITICAL)->open, 1);
    tensor_next(r);
    r->row.step.time_unix = died + 100;
    tensor_judge(r);
    k = tensor_incident(r, "dead_rank", KEEL_CRITICAL);
    assert_int_equal(k->open, 0);
    assert_int_equal(k->rank, 2);
    assert_non_null(strstr(k->message, "the run has gone on since"));
    tensor_end(r);
}

static void a_resume_on_other_ranks_is_a_note(void **unused) {
    (void)unused;
    for (int same = 0; same < 2; same++) {
        tensor_run *r = tensor_open(2, plain);
        tensor_begin(r);
        for (int i = 0; i < 40; i++) {
            tensor_next(r);
            r->row.step.first_batch = r->row.step.last_batch = r->step;
            tensor_judge(r);
        }
        if (!same) r->info.world_size = 4;
        assert_int_equal(keel_analysis_start(r->analysis, &r->info), KEEL_OK);
        tensor_next(r);
        r->row.step.flags = KEEL_STEP_RESUMED;
        r->row.step.first_batch = r->row.step.last_batch = 7;
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "resume_discontinuity", KEEL_INFO);
        assert_non_null(k);
        assert_int_equal(k->severity, same ? KEEL_WARNING : KEEL_INFO);
        assert_int_equal(strstr(k->message, "on 4 ranks instead of 2") != NULL, !same);
        tensor_end(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_odd_rank_is_named),
        cmocka_unit_test(a_rank_that_was_odd_from_the_start_is_found),
        cmocka_unit_test(of_two_odd_ranks_of_four_one_is_named),
        cmocka_unit_test(where_no_site_is_left_the_odd_rank_is_not_told_of_again),
        cmocka_unit_test(an_odd_rank_is_found_whatever_the_schedule),
        cmocka_unit_test(one_odd_site_is_no_odd_rank),
        cmocka_unit_test(a_local_loss_that_stands_out_names_its_rank),
        cmocka_unit_test(a_bit_flip_in_one_weight_of_one_rank_is_told_at_once),
        cmocka_unit_test(replicas_that_part_in_a_long_trouble_are_another_one),
        cmocka_unit_test(of_two_copies_the_sum_of_the_update_tells_the_odd_one),
        cmocka_unit_test(of_two_young_copies_the_one_that_jumps_is_odd),
        cmocka_unit_test(of_two_copies_the_one_that_stood_still_is_out_of_step),
        cmocka_unit_test(of_a_part_of_a_tensor_the_checksums_tell_the_odd_one),
        cmocka_unit_test(a_rank_that_misses_the_update_of_its_parts_is_told),
        cmocka_unit_test(a_replica_out_of_step_has_all_its_weights_different),
        cmocka_unit_test(a_leak_is_told_with_its_rank),
        cmocka_unit_test(the_rank_that_others_wait_for_is_named),
        cmocka_unit_test(ranks_of_unequal_work_are_measured_by_their_past),
        cmocka_unit_test(a_step_that_does_not_end_is_told_while_it_lasts),
        cmocka_unit_test(a_hang_names_the_rank_that_others_wait_for),
        cmocka_unit_test(a_dead_rank_is_an_incident_until_the_run_goes_on),
        cmocka_unit_test(a_resume_on_other_ranks_is_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
