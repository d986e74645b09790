// The monitor among several ranks: what rank 0 announces, what the others do about it, and what happens when an
// operation never ends. The other ranks are played by a table of functions.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "collectors/helper_thread.h"
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/collectors/monitor_rig.h"

enum { ORDERS_MAX = 256 };

typedef struct played {
    keel_merge table;
    atomic_bool stuck;          // no operation ends any more
    atomic_bool stuck_reducing; // no reduction does
    atomic_bool stuck_gathering;
    atomic_uint tests_each; // how many looks an operation takes
    keel_status fails;      // what the next reduction answers
    keel_frame *other;      // of rank 1, for rank 0: joins every reduction
    bool agreed, compares;
    keel_copy copies[2], asked; // of both ranks; rank 1's is made up
    keel_copy **gathered;
    atomic_uint gathers;
    // Of rank 0: what it announced. Of others: what they are told, as far as GIVEN.
    keel_merge_order orders[ORDERS_MAX];
    atomic_uint given;
    atomic_uint taken; // by others
    keel_merge_order *waiting;
    uint32_t looks;
    bool busy;
    keel_step reduced[ORDERS_MAX];  // headers as this rank gave them
    uint64_t reduced_n[ORDERS_MAX]; // values of RIG_WEIGHT in them
    atomic_uint reductions, announcements;
    bool closed, closed_abandoned;
} played;

static keel_status play_agree(void *context, const keel_rank_table *table, keel_whole_table *whole) {
    played *p = context;
    p->agreed = table != NULL;
    if (!table) return KEEL_ERR_COMM;
    const keel_status status = p->table.rank == 0 ? keel_whole_table_open(table, &(uint32_t){0}, 1, whole) : KEEL_OK;
    whole->compares = p->compares;
    return status;
}

static keel_status play_confirm(void *context, bool ready) {
    (void)context;
    return ready ? KEEL_OK : KEEL_ERR_COMM;
}

static void begin_operation(played *p) {
    assert_false(p->busy); // one at a time
    p->busy = true;
    p->looks = 0;
}

static keel_status play_announce(void *context, keel_merge_order *order) {
    played *p = context;
    begin_operation(p);
    p->announcements++;
    p->waiting = order;
    if (p->table.rank == 0) {
        assert_true(p->given < ORDERS_MAX);
        p->orders[p->given] = *order;
        p->given++;
    }
    return KEEL_OK;
}

static keel_status play_reduce(void *context, keel_frame *frame, keel_frame *whole) {
    played *p = context;
    begin_operation(p);
    assert_null(whole);
    p->reduced[p->reductions] = frame->step;
    p->reduced_n[p->reductions] = keel_frame_stats(frame)[RIG_WEIGHT].n;
    p->reductions++;
    if (p->fails) return keel_fail(p->fails, "the network is gone");
    if (p->table.rank == 0 && p->other) {
        p->other->step.step = 999; // rank 0 must find its own again
        keel_frame_merge(frame, p->other);
        frame->step.step = 999;
    }
    return KEEL_OK;
}

static keel_status play_gather(void *context, const keel_copy *mine, keel_copy **all) {
    played *p = context;
    begin_operation(p);
    p->gathers++;
    p->asked = *mine;
    p->copies[0] = *mine;
    p->copies[1] = (keel_copy){.print = ~mine->print, .rank = 1, .replica_index = 1, .held = true};
    p->gathered = all;
    return KEEL_OK;
}

static keel_status play_test(void *context, bool *done) {
    played *p = context;
    *done = !p->stuck && !(p->stuck_reducing && !p->waiting) && !(p->stuck_gathering && p->gathered) &&
            ++p->looks > p->tests_each;
    if (*done && p->waiting && p->table.rank != 0) {
        *done = p->taken < p->given;
        if (*done) *p->waiting = p->orders[p->taken++];
    }
    if (!*done) return KEEL_OK;
    if (p->gathered) *p->gathered = p->copies;
    p->gathered = NULL;
    p->waiting = NULL;
    p->busy = false;
    return KEEL_OK;
}

static void play_close(void *context, bool abandoned) {
    played *p = context;
    p->closed = true;
    p->closed_abandoned = abandoned;
}

static void play(played *p, uint32_t rank, bool threaded) {
    *p = (played){.tests_each = 1};
    p->table = (keel_merge){.context = p,
                            .rank = rank,
                            .size = 2,
                            .threaded = threaded,
                            .agree = play_agree,
                            .confirm = play_confirm,
                            .announce = play_announce,
                            .reduce = play_reduce,
                            .gather = play_gather,
                            .test = play_test,
                            .close = play_close};
}

static void tell(played *p, keel_merge_action action, uint64_t sequence) {
    p->orders[p->given] = (keel_merge_order){action, sequence, sequence};
    p->given++;
}

static const char usual[] = "{queue_depth: 2, select: [{ops: [max, zeros, replica_residual]}]}";
enum { FRAMES = 2 + 3 };

// A rank with the usual monitor, started.
static void begin(played *p, rig *r, uint32_t rank, bool threaded) {
    play(p, rank, threaded);
    rig_open(r, &p->table, usual);
    rig_start(r);
}

// Step NUMBER, until it is merged, or given up.
static void step_and_drain(rig *r, uint64_t number) {
    rig_step(r, number);
    assert_int_equal(keel_probe_drain(r->probe), KEEL_OK);
}

// Lets a rank that is not driven by a thread get on.
static void poll_often(rig *r) {
    for (int i = 0; i < 200; i++) keel_poll(r->probe);
}

static void wait_for(atomic_uint *counter, uint32_t value) {
    for (int i = 0; i < 5000 && *counter < value; i++) keel_nap(1000000);
    assert_true(*counter >= value);
}

// What rank 1 would send: a frame shaped as rank 0's.
static keel_frame *frame_of_rank_1(double value, bool replica_differs) {
    rig r;
    played p;
    play(&p, 1, false);
    rig_open(&r, &p.table, usual);
    const uint32_t scalars = keel_probe_scalar_count(r.probe);
    keel_frame *frame = keel_frame_init(malloc(keel_frame_bytes(scalars, RIG_SITES, 1, 0)), scalars, RIG_SITES, 1, 0);
    for (uint32_t i = 0; i < scalars; i++)
        keel_frame_scalars(frame)[i].merge = (uint32_t)keel_probe_scalar_merge(r.probe, i);
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .scale = 1};
    for (uint32_t s = 0; s < RIG_SITES; s++) {
        const float values[2] = {(float)value + (s == RIG_REPLICA && replica_differs ? 1 : 0), 0};
        keel_stats *stats = &keel_frame_stats(frame)[s];
        keel_stats_observe(stats, &params, KEEL_F32, values, s == RIG_OUT ? 2 : 1);
        const keel_site_info *info = keel_site_get_info(r.sites[s]);
        keel_stats_seal_rank(stats, 1, info->replica_index, info->replica_count);
    }
    keel_frame_scalars(frame)[r.loss] = (keel_scalar_value){.value = 77, .owner = 1, .merge = KEEL_SCALAR_MAX};
    tell(&p, KEEL_MERGE_CLOSE, 0);
    assert_int_equal(rig_close(&r), KEEL_OK);
    return frame;
}

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
        cmocka_unit_test(test_merge_that_never_ends_is_abandoned),
        cmocka_unit_test(test_rank_0_that_is_gone_is_not_waited_for),
        cmocka_unit_test(test_error_of_the_network_abandons),
        cmocka_unit_test(test_ranks_that_do_not_agree_part_quietly),
        cmocka_unit_test(test_only_rank_0_has_sinks),
        cmocka_unit_test(test_whole_tensor_on_two_ranks_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
