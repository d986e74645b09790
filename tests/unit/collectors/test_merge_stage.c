// The monitor among several ranks: what rank 0 announces, what the others do about it, what is recorded of it.
#include "tests/unit/collectors/played_ranks.h"

static void check_merged_row(const test_sink *sink, uint32_t i, double expected_max, bool replica_differs) {
    const seen_row *row = &sink->rows[i];
    assert_int_equal(row->step.step, i + 1);
    assert_true(row->max == expected_max);
    assert_true(row->out_zeros == 0.5);
    assert_true(row->loss == 77 && row->loss_owner == 1);
    assert_true((row->residual != 0) == replica_differs);
}

static void run_merged(bool threaded, bool replica_differs) {
    played p;
    rig r;
    keel_frame *other = frame_of_rank_1(10, replica_differs);
    play(&p, 0, threaded);
    p.other = other;
    rig_open(&r, &p.table, usual);
    rig_start(&r);
    assert_true(p.agreed);
    for (uint64_t step = 1; step <= 3; step++) {
        keel_step_begin(r.probe, step);
        rig_observe(&r, 10);
        keel_step_end(r.probe, &(keel_step){.step = step, .update = step});
        if (!threaded) poll_often(&r);
    }
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(r.sink.count, 3);
    for (uint32_t i = 0; i < 3; i++) check_merged_row(&r.sink, i, 10, replica_differs);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(p.given, 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(p.orders[i].action, KEEL_MERGE_STEP);
        assert_int_equal(p.orders[i].sequence, i + 1);
    }
    assert_int_equal(p.orders[3].action, KEEL_MERGE_CLOSE);
    assert_true(p.closed && !p.closed_abandoned);
    assert_int_equal(captured.count, 0);
    free(other);
}

static void test_rank_0_merges_on_a_thread(void **state) {
    (void)state;
    run_merged(true, false);
}

static void test_rank_0_merges_when_polled(void **state) {
    (void)state;
    run_merged(false, false);
}

static void test_replica_that_differs_is_seen(void **state) {
    (void)state;
    run_merged(true, true);
}

// Where copies differ, rank 0 asks whose; the row names them.
static void run_asked(bool threaded, bool differs) {
    played p;
    rig r;
    keel_frame *other = frame_of_rank_1(10, differs);
    play(&p, 0, threaded);
    p.other = other;
    p.compares = true;
    rig_open(&r, &p.table, usual);
    rig_start(&r);
    for (uint64_t step = 1; step <= 3; step++) {
        keel_step_begin(r.probe, step);
        rig_observe(&r, 10);
        keel_step_end(r.probe, &(keel_step){.step = step, .update = step});
        assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    }
    assert_int_equal(r.sink.count, 3);
    assert_int_equal(p.gathers, differs ? 3 : 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(r.sink.rows[i].step.step, i + 1);
        assert_true((r.sink.rows[i].residual != 0) == differs);
        assert_true(r.sink.rows[i].replica_rank == (differs ? 0 : KEEL_NOT_COLLECTED));
        assert_true(r.sink.rows[i].replica_peer == (differs ? 1 : KEEL_NOT_COLLECTED));
        assert_int_equal(p.orders[2 * i].action, KEEL_MERGE_STEP);
        assert_int_equal(p.orders[2 * i + 1].action, differs ? KEEL_MERGE_ASK : KEEL_MERGE_AGREED);
    }
    if (differs) {
        assert_true(p.asked.held && p.asked.replica_index == 0);
        assert_true(p.orders[1].sequence == keel_site_hash(keel_site_get_info(r.sites[RIG_REPLICA])));
    }
    assert_int_equal(rig_close(&r), KEEL_OK);
    free(other);
}

static void test_ranks_are_asked_whose_copy_differs(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) run_asked(i & 1, i & 2);
}

static void test_other_ranks_answer_when_asked(void **state) {
    (void)state;
    played p;
    rig r;
    play(&p, 1, true);
    p.compares = true;
    rig_open(&r, &p.table, usual);
    rig_start(&r);
    for (uint64_t step = 1; step <= 3; step++) {
        tell(&p, KEEL_MERGE_STEP, step);
        const uint64_t asked = step == 2   ? keel_site_hash(keel_site_get_info(r.sites[RIG_REPLICA]))
                               : step == 3 ? 12345
                                           : 0;
        tell(&p, asked ? KEEL_MERGE_ASK : KEEL_MERGE_AGREED, asked);
        step_and_drain(&r, step);
        assert_int_equal(p.reductions, step);
        assert_int_equal(p.gathers, step - 1);
        if (asked) assert_true(p.asked.held == (step == 2)); // it has no site of the other name
    }
    assert_int_equal(p.asked.rank, 1);
    tell(&p, KEEL_MERGE_CLOSE, 3);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(captured.count, 0);
}

// A step that is merged is recorded, whatever comes of the question who differs.
static void test_merged_step_outlives_an_abandoned_question(void **state) {
    (void)state;
    played p;
    rig r;
    keel_frame *other = frame_of_rank_1(10, true);
    play(&p, 0, true);
    p.other = other;
    p.compares = true;
    p.stuck_gathering = true;
    rig_open(&r, &p.table, "{queue_depth: 2, merge_timeout_seconds: 1, select: [{ops: [max, replica_residual]}]}");
    rig_start(&r);
    step_and_drain(&r, 1);
    assert_int_equal(captured_with("abandoned after step 1: not all ranks took part"), 1);
    assert_int_equal(r.sink.count, 1);
    assert_int_equal(r.sink.rows[0].step.flags, 0);
    assert_int_not_equal(r.sink.rows[0].residual, 0);
    assert_true(r.sink.rows[0].replica_rank == KEEL_NOT_COLLECTED);
    assert_int_equal(rig_close(&r), KEEL_ERR_COMM);
    free(other);
}

static void test_polled_merge_moves_only_when_polled(void **state) {
    (void)state;
    played p;
    rig r;
    begin(&p, &r, 0, false);
    p.tests_each = 1000;
    rig_step(&r, 1);
    uint32_t looks = p.looks;
    assert_true(looks > 0); // the step's end has looked
    for (int polls = 0; p.reductions == 0; polls++) {
        assert_true(polls < 1000);
        keel_nap(1000000); // nothing happens by itself
        assert_int_equal(p.looks, looks);
        keel_poll(r.probe);
        assert_true(p.looks > looks || p.reductions == 1);
        looks = p.looks;
    }
    assert_int_equal(r.sink.count, 0);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.count, 1);
}

// Training goes on while a merge takes its time; what finds no frame is skipped on all ranks, and counted.
static void run_behind(bool threaded) {
    enum { STEPS = 40 };
    played p;
    rig r;
    begin(&p, &r, 0, threaded);
    p.stuck = true;
    for (uint64_t step = 1; step <= STEPS; step++) rig_step(&r, step);
    assert_int_equal(captured_with("step 6 is not recorded"), 1);
    p.stuck = false;
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(p.given, FRAMES + 1);
    assert_int_equal(p.orders[FRAMES].action, KEEL_MERGE_SKIP);
    assert_int_equal(p.orders[FRAMES].sequence, STEPS);
    rig_step(&r, STEPS + 1);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.count, FRAMES + 1);
    assert_int_equal(r.sink.rows[FRAMES].step.step, STEPS + 1);
    assert_int_equal(r.sink.rows[FRAMES].dropped, STEPS - FRAMES);
    assert_int_equal(captured_with("35 of 41 steps were not recorded"), 1);
    assert_int_equal(captured.count, 2);
}

static void test_slow_merge_skips_steps(void **state) {
    (void)state;
    run_behind(true);
    run_behind(false);
}

static void run_told(bool threaded) {
    played p;
    rig r;
    begin(&p, &r, 1, threaded);
    tell(&p, KEEL_MERGE_STEP, 1);
    step_and_drain(&r, 1);
    assert_int_equal(p.reductions, 1);
    rig_step(&r, 2);
    rig_step(&r, 3);
    rig_step(&r, 4);
    tell(&p, KEEL_MERGE_STEP, 3); // rank 0 had no frame for 2
    tell(&p, KEEL_MERGE_SKIP, 4);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(p.reductions, 2);
    assert_int_equal(p.reduced[1].step, 3);
    assert_int_equal(p.reduced_n[1], 1);
    for (uint64_t step = 5; step <= 20; step++) { // more than there are frames: all come back
        rig_step(&r, step);
        tell(&p, step % 2 ? KEEL_MERGE_STEP : KEEL_MERGE_SKIP, step);
        assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    }
    assert_int_equal(p.reductions, 10);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(p.reduced[i].flags, 0);
    tell(&p, KEEL_MERGE_CLOSE, 20);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_true(p.closed && !p.closed_abandoned);
    assert_int_equal(captured.count, 0);
}

static void test_other_ranks_do_as_they_are_told(void **state) {
    (void)state;
    run_told(true);
    run_told(false);
}

static void test_rank_without_a_frame_gives_an_empty_one(void **state) {
    (void)state;
    played p;
    rig r;
    begin(&p, &r, 1, true);
    for (uint64_t step = 1; step <= FRAMES + 2; step++) rig_step(&r, step); // rank 0 says nothing yet
    for (uint64_t step = 1; step <= FRAMES + 2; step++) tell(&p, KEEL_MERGE_STEP, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(p.reductions, FRAMES + 2);
    for (uint32_t i = 0; i < FRAMES + 2; i++) {
        assert_int_equal(p.reduced[i].step, i + 1);
        assert_int_equal(p.reduced[i].flags, i < FRAMES ? 0 : KEEL_STEP_DROPPED);
        assert_int_equal(p.reduced_n[i], i < FRAMES);
    }
    tell(&p, KEEL_MERGE_CLOSE, 0);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(captured_with("step 6: this rank's values are missing from the merge (no frame was free)"), 1);
    assert_int_equal(captured_with("this rank's values are missing from 2 of 7 steps"), 1);
    assert_int_equal(captured.count, 2);
}

static void test_rank_that_is_behind_comes_to_the_step(void **state) {
    (void)state;
    played p;
    rig r;
    begin(&p, &r, 1, true);
    tell(&p, KEEL_MERGE_STEP, 3); // rank 0 is two steps ahead
    step_and_drain(&r, 1);        // step 1 is given up, not waited for
    rig_step(&r, 2);
    assert_int_equal(p.reductions, 0);
    rig_step(&r, 3);
    wait_for(&p.reductions, 1);
    assert_int_equal(p.reduced[0].step, 3);
    assert_int_equal(p.reduced[0].flags, 0);
    tell(&p, KEEL_MERGE_STEP, 5);
    rig_step(&r, 4);
    tell(&p, KEEL_MERGE_CLOSE, 5);
    assert_int_equal(rig_close(&r), KEEL_OK); // stops before step 5: rank 0 is not left waiting
    assert_int_equal(p.reductions, 2);
    assert_int_equal(p.reduced[1].flags, KEEL_STEP_DROPPED);
    assert_int_equal(captured_with("(it stopped before that step ended)"), 1);
}

static void test_ranks_that_count_differently_do_not_mix(void **state) {
    (void)state;
    played p;
    rig r;
    begin(&p, &r, 1, true);
    tell(&p, KEEL_MERGE_STEP, 1); // of step 1
    step_and_drain(&r, 8);
    assert_int_equal(p.reduced[0].flags, KEEL_STEP_DROPPED);
    assert_int_equal(p.reduced_n[0], 0);
    tell(&p, KEEL_MERGE_CLOSE, 1);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(captured_with("it counts its steps otherwise than rank 0"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_0_merges_on_a_thread),
        cmocka_unit_test(test_rank_0_merges_when_polled),
        cmocka_unit_test(test_replica_that_differs_is_seen),
        cmocka_unit_test(test_ranks_are_asked_whose_copy_differs),
        cmocka_unit_test(test_other_ranks_answer_when_asked),
        cmocka_unit_test(test_merged_step_outlives_an_abandoned_question),
        cmocka_unit_test(test_polled_merge_moves_only_when_polled),
        cmocka_unit_test(test_slow_merge_skips_steps),
        cmocka_unit_test(test_other_ranks_do_as_they_are_told),
        cmocka_unit_test(test_rank_without_a_frame_gives_an_empty_one),
        cmocka_unit_test(test_rank_that_is_behind_comes_to_the_step),
        cmocka_unit_test(test_ranks_that_count_differently_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
