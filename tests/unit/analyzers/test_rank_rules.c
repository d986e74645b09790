// rank_outlier: the rank that differs from the others is named.
#include "tests/unit/analyzers/tensor_run.h"

static void make_rank_odd(tensor_run *r, bool last, double factor) {
    for (uint32_t s = 0; s < r->info.site_count; s++) {
        if (r->sites[s].quantity != KEEL_GRAD_UNREDUCED && r->sites[s].quantity != KEEL_ACTIVATION) continue;
        double norm = r->f64[KEEL_OP_norm][s];
        tensor_set_ranks(r, (int)s, last ? norm : factor * norm, norm, last ? factor * norm : norm);
    }
}

static void odd_steps(tensor_run *r, int steps, bool last, double factor) {
    for (int i = 0; i < steps; i++) {
        tensor_next(r);
        make_rank_odd(r, last, factor);
        tensor_judge(r);
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
        tensor_run *r = tensor_begun(cases[i].ranks);
        tensor_quiet(r, 100);
        odd_steps(r, 3, cases[i].last, cases[i].factor);
        const keel_incident *k = tensor_expect_rank(r, "rank_outlier", cases[i].last ? (int)cases[i].ranks - 1 : 0);
        assert_int_equal(k->first_step, 101);
        assert_string_equal(k->site, "layers.0.mlp.down:activation");
        assert_string_equal(k->cause, "corrupt data on one rank");
        tensor_end(r);
    }
}

static void a_rank_that_was_odd_from_the_start_is_found(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(4);
    odd_steps(r, 60, true, 1.5);
    tensor_expect_rank(r, "rank_outlier", 3);
    tensor_end(r);
}

// The batch of two of four ranks is bad, as of all tensor ranks with the same data: the mean lies in the middle.
static void of_two_odd_ranks_of_four_one_is_named(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++) {
        const bool last = way % 2;
        const double factor = way / 2 ? 0.2 : 4;
        tensor_run *r = tensor_begun(4);
        tensor_quiet(r, 100);
        for (int n = 0; n < 3; n++) {
            tensor_next(r);
            make_rank_odd(r, last, factor);
            for (uint32_t s = 0; s < r->info.site_count; s++)
                r->f64[KEEL_OP_log_norm_mean][s] =
                    (log(r->f64[KEEL_OP_norm_low][s]) + log(r->f64[KEEL_OP_norm_high][s])) / 2;
            tensor_judge(r);
        }
        tensor_expect_rank(r, "rank_outlier", last ? 3 : 0);
        tensor_end(r);
    }
}

// Nothing is looked at any more: nothing more is said, least of all of a site that is none.
static void where_no_site_is_left_the_odd_rank_is_not_told_of_again(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(4);
    odd_steps(r, 60, true, 1.5);
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
    tensor_run *r = tensor_begun(4);
    for (int n = 1; n <= 500; n++) {
        tensor_next(r);
        if (n > 450) make_rank_odd(r, true, 4);
        for (uint32_t s = 0; n % 5 && s < r->info.site_count; s++)
            r->f64[KEEL_OP_norm_low][s] = r->f64[KEEL_OP_norm_high][s] = keel_not_collected();
        tensor_judge(r);
    }
    const keel_incident *k = tensor_expect_rank(r, "rank_outlier", 3);
    assert_int_equal(k->first_step, 455);
    assert_int_equal(k->last_step, 500);
    assert_int_equal(k->open, 1);
    tensor_end(r);
}

static void one_odd_site_is_no_odd_rank(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(4);
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
    tensor_run *r = tensor_begun(4);
    for (int i = 0; i < 103; i++) {
        tensor_next(r);
        r->scalars[T_LOSS_MAX] = r->scalars[T_LOSS] * (i < 100 ? 1.02 : 1.9);
        r->scalars[T_LOSS_MAX_RANK] = i < 100 ? i % 4 : 2;
        r->set[T_LOSS_MAX] = r->set[T_LOSS_MAX_RANK] = true;
        tensor_judge(r);
    }
    tensor_expect_rank(r, "rank_outlier", 2);
    tensor_end(r);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
