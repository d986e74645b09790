// What a replayed step is taken for, by made-up numbers: each verdict, and what keeps it from being another.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tools/replay_record.h"

enum { STEP = 50, CHECKPOINT = 40, SHARDS_MOST = 4, ROWS = KEEL_REPLAY_PASSES + KEEL_REPLAY_NEIGHBOURS, RECORDS = 60 };

typedef struct made_up {
    keel_replay replay;
    keel_replay_value at_checkpoint[ROWS * SHARDS_MOST], at_step[ROWS * SHARDS_MOST], steps[STEP - CHECKPOINT];
    keel_recorded recorded;
    uint64_t record_steps[RECORDS];
    keel_replay_value records[RECORDS];
} made_up;

static double wobble(uint64_t i) {
    return 0.02 * sin((double)i * 12.9898);
}

static keel_replay_value sound(uint64_t i) {
    return (keel_replay_value){3 + wobble(i), 0.5 + wobble(i + 7)};
}

static const keel_replay_value bad = {6, 4}, sick = {(double)NAN, (double)NAN};

static void make_reading(keel_replay_reading *reading, keel_replay_value *values, uint32_t shards, uint64_t step) {
    *reading = (keel_replay_reading){.step = step,
                                     .shards = shards,
                                     .tp = 1,
                                     .pp = 1,
                                     .passes = shards > 1 ? KEEL_REPLAY_PASSES : 2,
                                     .neighbours = KEEL_REPLAY_NEIGHBOURS,
                                     .values = values};
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t shard = 0; shard < shards; shard++) // of all passes the same
            values[row * shards + shard] = sound(row < KEEL_REPLAY_PASSES ? shard : row * shards + shard);
}

// A run in which nothing is wrong, and its replay.
static void make(made_up *m, uint32_t shards) {
    memset(m, 0, sizeof *m);
    m->replay =
        (keel_replay){.step = STEP, .checkpoint_step = CHECKPOINT, .steps = m->steps, .step_count = STEP - CHECKPOINT};
    make_reading(&m->replay.at_checkpoint, m->at_checkpoint, shards, CHECKPOINT);
    make_reading(&m->replay.at_step, m->at_step, shards, STEP - 1);
    m->recorded = (keel_recorded){.steps = m->record_steps, .values = m->records, .count = RECORDS};
    for (uint64_t i = 0; i < RECORDS; i++) {
        m->record_steps[i] = i + 1;
        m->records[i] = sound(i + 1);
    }
    for (uint64_t i = 0; i < STEP - CHECKPOINT; i++) m->steps[i] = m->records[CHECKPOINT + i];
}

// SHARD has VALUE on whichever rank.
static void spoil_shard(keel_replay_value *values, uint32_t shards, uint32_t shard, keel_replay_value value) {
    for (uint32_t pass = 0; pass < KEEL_REPLAY_PASSES; pass++) values[pass * shards + shard] = value;
}

// RANK has VALUE whatever it computes, neighbours included.
static void break_rank(keel_replay_value *values, uint32_t shards, uint32_t rank, keel_replay_value value) {
    for (uint32_t row = 0; row < ROWS; row++) {
        const bool rotated = row == 2 || row == 3;
        values[row * shards + (rotated ? (rank + shards - 1) % shards : rank)] = value;
    }
}

static keel_replay_verdict judge(const made_up *m) {
    keel_replay_verdict verdict;
    keel_replay_judge(&m->replay, &m->recorded, &verdict);
    return verdict;
}

static void bad_data_is_bad_on_every_rank(void **state) {
    (void)state;
    for (uint32_t shards = 2; shards <= SHARDS_MOST; shards++)
        for (uint32_t shard = 0; shard < shards; shard++)
            for (int k = 0; k < 2; k++) {
                made_up m;
                make(&m, shards);
                spoil_shard(m.at_checkpoint, shards, shard, k ? bad : sick);
                assert_true(keel_replay_decides(&m.replay.at_checkpoint));
                const keel_replay_verdict verdict = judge(&m);
                assert_int_equal(verdict.cause, KEEL_REPLAY_BAD_DATA);
                assert_int_equal(verdict.shard, shard);
                assert_int_equal(verdict.rank, -1);
            }
}

static void bad_at_the_parameters_of_the_step_only_is_bad_data_too(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    spoil_shard(m.at_step, 2, 1, bad);
    assert_false(keel_replay_decides(&m.replay.at_checkpoint));
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA);
}

static void a_broken_rank_is_named(void **state) {
    (void)state;
    for (uint32_t shards = 2; shards <= SHARDS_MOST; shards++)
        for (uint32_t rank = 0; rank < shards; rank++)
            for (int k = 0; k < 2; k++) {
                made_up m;
                make(&m, shards);
                break_rank(m.at_checkpoint, shards, rank, k ? bad : sick);
                assert_true(keel_replay_decides(&m.replay.at_checkpoint));
                const keel_replay_verdict verdict = judge(&m);
                assert_int_equal(verdict.cause, KEEL_REPLAY_HARDWARE);
                assert_int_equal(verdict.rank, rank);
            }
}

static void ranks_that_hold_the_model_together_are_named_together(void **state) {
    (void)state;
    made_up m;
    make(&m, 3);
    break_rank(m.at_checkpoint, 3, 1, sick);
    m.replay.at_checkpoint.tp = 2;
    assert_non_null(strstr(judge(&m).reason, "; data-parallel rank 1 is ranks 2 to 3"));
    m.replay.at_checkpoint.pp = 2;
    assert_non_null(strstr(judge(&m).reason, "; data-parallel rank 1 is ranks 2 to 3, 8 to 9"));
    m.replay.at_checkpoint.tp = 1;
    assert_non_null(strstr(judge(&m).reason, "; data-parallel rank 1 is ranks 1, 4"));
}

static void a_rank_that_does_not_repeat_is_broken_even_alone(void **state) {
    (void)state;
    for (uint32_t shards = 1; shards <= SHARDS_MOST; shards++)
        for (uint32_t pass = 0; pass < (shards > 1 ? 4u : 2u); pass++) {
            made_up m;
            make(&m, shards);
            m.at_checkpoint[pass * shards].loss += 0.01; // of shard 0
            const keel_replay_verdict verdict = judge(&m);
            assert_int_equal(verdict.cause, KEEL_REPLAY_HARDWARE);
            assert_int_equal(verdict.rank, pass < 2 ? 0 : 1);
            assert_non_null(strstr(verdict.reason, "does not give the same twice"));
        }
}

static void what_does_not_come_again_was_transient(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        made_up m;
        make(&m, 2);
        m.records[STEP - 1] = k ? bad : sick;
        assert_int_equal(judge(&m).cause, KEEL_REPLAY_TRANSIENT);
        assert_null(strstr(judge(&m).reason, "another way"));
        m.records[STEP - 3] = bad; // the run had left its way before
        assert_int_equal(judge(&m).cause, KEEL_REPLAY_TRANSIENT);
        assert_non_null(strstr(judge(&m).reason, "another way already at step 48"));
    }
}

static void a_run_that_is_not_the_same_tells_nothing(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    for (size_t i = 0; i < STEP - CHECKPOINT; i++) m.steps[i].loss += 0.05;
    m.records[STEP - 1] = bad;
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_UNKNOWN);
    assert_non_null(strstr(judge(&m).reason, "does not follow the run from its first step, 41"));
}

static void what_comes_again_with_any_batch_is_neither(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    m.records[STEP - 1] = m.steps[STEP - CHECKPOINT - 1] = bad;
    for (size_t i = 0; i < ROWS * 2; i++) m.at_step[i] = (keel_replay_value){6 + wobble(i % 2), 4};
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_UNKNOWN);
    assert_non_null(strstr(judge(&m).reason, "comes again as it was"));
    for (size_t i = 0; i < ROWS * 2; i++) m.at_step[i] = sick;
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_UNKNOWN);
    assert_non_null(strstr(judge(&m).reason, "not finite either"));
}

static void bad_only_after_the_reduction_points_to_the_collectives(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    m.records[STEP - 1] = bad;
    m.steps[STEP - CHECKPOINT - 1] = sick;
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_UNKNOWN);
    assert_non_null(strstr(judge(&m).reason, "collectives"));
}

static void a_sound_step_is_said_to_be_one(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_HEALTHY);
    assert_non_null(strstr(judge(&m).reason, "nothing stands out at step 50"));
}

// However few records there are to hold it against.
static void a_step_that_is_not_finite_is_never_sound(void **state) {
    (void)state;
    for (uint32_t shards = 1; shards <= 2; shards++) {
        made_up m;
        make(&m, shards);
        m.records[STEP - 1] = m.steps[STEP - CHECKPOINT - 1] = sick;
        m.recorded = (keel_recorded){.steps = &m.record_steps[STEP - 1], .values = &m.records[STEP - 1], .count = 1};
        assert_int_equal(judge(&m).cause, KEEL_REPLAY_UNKNOWN); // it comes again
        m.steps[STEP - CHECKPOINT - 1] = sound(STEP);
        assert_int_equal(judge(&m).cause, shards > 1 ? KEEL_REPLAY_TRANSIENT : KEEL_REPLAY_NOT_DATA);
    }
}

static void an_unusual_batch_of_a_step_that_the_rules_find_sound_is_healthy(void **state) {
    (void)state;
    made_up m;
    for (uint32_t shards = 1; shards <= SHARDS_MOST; shards++)
        for (int later = 0; later < 2; later++) {
            make(&m, shards);
            spoil_shard(later ? m.at_step : m.at_checkpoint, shards, shards - 1, (keel_replay_value){3.1, 2.8});
            assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA); // no history to say otherwise
            m.recorded.judged = true;
            assert_int_equal(judge(&m).cause, KEEL_REPLAY_HEALTHY);
            assert_non_null(strstr(judge(&m).reason, "is an unusual one, with loss 3.1, gradient norm 2.8 against "));
            m.recorded.sick = true;
            assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA);
        }
    make(&m, 2); // what is far from any batch is bad, however little of it the whole step shows
    m.recorded.judged = true;
    spoil_shard(m.at_checkpoint, 2, 1, bad);
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA);
    spoil_shard(m.at_checkpoint, 2, 1, sick);
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA);
}

static void few_neighbours_make_no_certainty(void **state) {
    (void)state;
    made_up m;
    make(&m, 1); // log sigma of the neighbours about 0.05
    spoil_shard(m.at_checkpoint, 1, 0, (keel_replay_value){3, 1.2});
    assert_false(keel_replay_decides(&m.replay.at_checkpoint));
    spoil_shard(m.at_checkpoint, 1, 0, (keel_replay_value){3, 3});
    assert_true(keel_replay_decides(&m.replay.at_checkpoint));
}

// A norm that comes twofold now and then, as of real text; at SPIKE tenfold.
static keel_recorded make_history(uint64_t *steps, keel_replay_value *values, size_t count, uint64_t spike) {
    uint64_t random = 1;
    for (size_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const double noise = (double)(random >> 40) / (double)(1 << 24) - 0.5;
        steps[i] = i + 1;
        values[i] = (keel_replay_value){3 + 0.1 * noise, 0.5 * exp(noise)};
    }
    if (spike) values[spike - 1].grad_norm = 8;
    return (keel_recorded){.steps = steps, .values = values, .count = count};
}

static void the_rules_judge_the_step_by_the_history_of_the_run(void **state) {
    (void)state;
    enum { COUNT = 200 };
    uint64_t steps[COUNT];
    keel_replay_value values[COUNT];
    keel_recorded recorded = make_history(steps, values, COUNT, 150);
    assert_int_equal(keel_replay_record_judge("run", 150, &recorded), KEEL_OK);
    assert_true(recorded.judged && recorded.sick);
    assert_int_equal(keel_replay_record_judge("run", 140, &recorded), KEEL_OK);
    assert_true(recorded.judged && !recorded.sick);
    assert_int_equal(keel_replay_record_judge("run", 30, &recorded), KEEL_OK);
    assert_false(recorded.judged);
}

static void one_rank_tells_data_from_the_rest(void **state) {
    (void)state;
    made_up m;
    make(&m, 1);
    spoil_shard(m.at_checkpoint, 1, 0, bad);
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_BAD_DATA);
    assert_non_null(strstr(judge(&m).reason, "with one rank"));
    make(&m, 1);
    m.records[STEP - 1] = sick;
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_NOT_DATA);
    make(&m, 1);
    for (size_t i = 0; i < ROWS; i++) m.at_checkpoint[i] = m.at_step[i] = sick;
    assert_int_equal(judge(&m).cause, KEEL_REPLAY_NOT_DATA);
}

static void rounding_is_no_disagreement(void **state) {
    (void)state;
    made_up m;
    make(&m, 2);
    for (size_t i = 2 * 2; i < 4 * 2; i++)
        m.at_checkpoint[i].loss *= 1 + 1e-6; // the other rank has another BLAS kernel
    assert_false(keel_replay_decides(&m.replay.at_checkpoint));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_data_is_bad_on_every_rank),
        cmocka_unit_test(bad_at_the_parameters_of_the_step_only_is_bad_data_too),
        cmocka_unit_test(a_broken_rank_is_named),
        cmocka_unit_test(ranks_that_hold_the_model_together_are_named_together),
        cmocka_unit_test(a_rank_that_does_not_repeat_is_broken_even_alone),
        cmocka_unit_test(what_does_not_come_again_was_transient),
        cmocka_unit_test(a_run_that_is_not_the_same_tells_nothing),
        cmocka_unit_test(what_comes_again_with_any_batch_is_neither),
        cmocka_unit_test(bad_only_after_the_reduction_points_to_the_collectives),
        cmocka_unit_test(a_sound_step_is_said_to_be_one),
        cmocka_unit_test(a_step_that_is_not_finite_is_never_sound),
        cmocka_unit_test(an_unusual_batch_of_a_step_that_the_rules_find_sound_is_healthy),
        cmocka_unit_test(few_neighbours_make_no_certainty),
        cmocka_unit_test(the_rules_judge_the_step_by_the_history_of_the_run),
        cmocka_unit_test(one_rank_tells_data_from_the_rest),
        cmocka_unit_test(rounding_is_no_disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
