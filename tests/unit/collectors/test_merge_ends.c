// Merges among several ranks that do not come to an end, and ranks that part: nothing hangs, nothing is freed that MPI
// holds.
#include "tests/unit/collectors/played_ranks.h"

// A frame in reduction cannot be had back, one that was only announced can.
static void run_abandoned_on_rank_0(bool threaded, bool reducing) {
    played p;
    rig r;
    play(&p, 0, threaded);
    rig_open(&r, &p.table, "{queue_depth: 2, merge_timeout_seconds: 0.05, select: [{ops: [max, replica_residual]}]}");
    rig_start(&r);
    step_and_drain(&r, 1);
    p.stuck = !reducing;
    p.stuck_reducing = reducing;
    step_and_drain(&r, 2); // bounded
    assert_int_equal(captured_with("abandoned at step 2: not all ranks took part within 0.05 s"), 1);
    assert_int_equal(captured_with("only what rank 0 itself observes is recorded"), 1);
    for (uint64_t step = 3; step <= 12; step++) {
        step_and_drain(&r, step);
    }
    assert_int_equal(rig_close(&r), KEEL_ERR_COMM);
    assert_true(p.closed_abandoned);
    assert_int_equal(r.sink.closes, 1);
    assert_int_equal(r.sink.count, reducing ? 11 : 12);
    assert_int_equal(r.sink.rows[0].step.flags, 0);
    assert_int_equal(r.sink.rows[1].dropped, reducing);
    for (uint32_t i = 1; i < r.sink.count; i++) {
        assert_int_equal(r.sink.rows[i].step.step, i + (reducing ? 2 : 1));
        assert_int_equal(r.sink.rows[i].step.flags, KEEL_STEP_DROPPED);
        assert_true(r.sink.rows[i].max == (double)r.sink.rows[i].step.step);
        // One copy alone is no disagreement.
        assert_true(r.sink.rows[i].residual == KEEL_NOT_COLLECTED);
    }
}

static void test_merge_that_never_ends_is_abandoned(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) run_abandoned_on_rank_0(i & 1, i & 2);
}

static void run_abandoned_elsewhere(bool threaded) {
    played p;
    rig r;
    play(&p, 1, threaded);
    rig_open(&r, &p.table, "{queue_depth: 2, merge_timeout_seconds: 0.05, select: [{ops: [max]}]}");
    rig_start(&r);
    step_and_drain(&r, 1); // rank 0 never says anything
    assert_int_equal(captured_with("nothing of this rank is recorded"), 1);
    for (uint64_t step = 2; step <= 30; step++) rig_step(&r, step);
    assert_int_equal(p.announcements, 1);
    assert_int_equal(rig_close(&r), KEEL_ERR_COMM);
    assert_string_equal(keel_error(), "the merge over ranks was abandoned");
}

static void test_rank_0_that_is_gone_is_not_waited_for(void **state) {
    (void)state;
    run_abandoned_elsewhere(true);
    run_abandoned_elsewhere(false);
}

static void test_error_of_the_network_abandons(void **state) {
    (void)state;
    played p;
    rig r;
    begin(&p, &r, 0, true);
    p.fails = KEEL_ERR_COMM;
    step_and_drain(&r, 1);
    assert_int_equal(captured_with("abandoned at step 1: the network is gone"), 1);
    rig_step(&r, 2);
    assert_int_equal(rig_close(&r), KEEL_ERR_COMM);
    assert_int_equal(r.sink.count, 1);
}

static void test_ranks_that_do_not_agree_part_quietly(void **state) {
    (void)state;
    played p;
    rig r;
    play(&p, 0, true);
    rig_open(&r, &p.table, usual);
    rig_add_contradiction(&r);
    assert_int_equal(keel_probe_start(r.probe), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "site odd"));
    assert_false(p.agreed); // the others are told that this rank could not start
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(p.announcements, 0);
    assert_true(p.closed && !p.closed_abandoned);
}

static void test_only_rank_0_has_sinks(void **state) {
    (void)state;
    played p;
    rig r;
    play(&p, 1, false);
    rig_open(&r, &p.table, usual);
    test_sink extra = {.name = "extra"};
    const keel_sink sink = test_sink_of(&extra);
    assert_int_equal(keel_monitor_add_sink(r.monitor, &sink), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "sink extra: only rank 0 has rows");
    assert_int_equal(extra.closes, 1);
    rig_start(&r);
    tell(&p, KEEL_MERGE_CLOSE, 0);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

static void test_whole_tensor_on_two_ranks_is_said(void **state) {
    (void)state;
    played p;
    rig r;
    keel_frame *other = frame_of_rank_1(10, false);
    play(&p, 0, true);
    p.other = other;
    rig_open(&r, &p.table, usual);
    keel_site *whole;
    assert_int_equal(
        keel_site_add(r.probe, &(keel_site_info){.name = "norm.weight", .phase = KEEL_PHASE_OPTIMIZER}, &whole),
        KEEL_OK);
    keel_frame *wider = keel_frame_init(malloc(keel_frame_bytes(other->scalar_count, RIG_SITES + 1, 1, 0)),
                                        other->scalar_count, RIG_SITES + 1, 1, 0);
    for (uint32_t i = 0; i < other->scalar_count; i++) keel_frame_scalars(wider)[i] = keel_frame_scalars(other)[i];
    for (uint32_t s = 0; s < RIG_SITES; s++) keel_frame_stats(wider)[s] = keel_frame_stats(other)[s];
    keel_frame_stats(wider)[RIG_SITES] = keel_frame_stats(other)[RIG_WEIGHT];
    p.other = wider;
    rig_start(&r);
    for (uint64_t step = 1; step <= 3; step++) {
        const float one = 1;
        keel_step_begin(r.probe, step);
        keel_observe(whole, &one, 1);
        keel_step_end(r.probe, &(keel_step){.step = step});
    }
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(
        captured_with("site norm.weight (weight) is registered as held by one rank, but 2 ranks observed it"), 1);
    free(other);
    free(wider);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_that_never_ends_is_abandoned),
        cmocka_unit_test(test_rank_0_that_is_gone_is_not_waited_for),
        cmocka_unit_test(test_error_of_the_network_abandons),
        cmocka_unit_test(test_ranks_that_do_not_agree_part_quietly),
        cmocka_unit_test(test_only_rank_0_has_sinks),
        cmocka_unit_test(test_whole_tensor_on_two_ranks_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
