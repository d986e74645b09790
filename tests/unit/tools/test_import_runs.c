// What belongs together and what does not: ranks that repeat, torn lines, restarts, several runs in one file, skipped
// steps, placeholders for what a trainer does not measure.
#include <math.h>

#include "tests/unit/tools/import_rows.h"

// A log under construction.
typedef struct log_text {
    char text[256 << 10];
    size_t used;
} log_text;

static log_text scratch;

static void append(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(scratch.text + scratch.used, sizeof scratch.text - scratch.used, format, arguments);
    va_end(arguments);
    assert_true(n >= 0 && (size_t)n < sizeof scratch.text - scratch.used);
    scratch.used += (size_t)n;
}

static void banner(int lines) {
    for (int i = 0; i < lines; i++) append("loading module %d\n", i);
}

static double nth_loss(uint64_t step, double shift) {
    return 3 + shift + (double)(step * 7 % 11) / 16;
}

static void iterations(uint64_t from, uint64_t to, uint64_t every, double shift) {
    for (uint64_t step = from; step <= to; step += every)
        append("iter %llu: loss %.4f, time 1.0ms, mfu 1.0%%\n", (unsigned long long)step, nth_loss(step, shift));
}

static keel_import *open_scratch(size_t runs) {
    keel_import *import = open_text(scratch.text, NULL);
    scratch.used = 0;
    assert_int_equal(keel_import_runs(import), runs);
    return import;
}

// The next rows have the steps FROM, FROM + EVERY, ..., TO with their losses; the first is flagged FIRST, the others
// are not.
static void check_steps(const keel_row_source *source, uint64_t from, uint64_t to, uint64_t every, double shift,
                        uint32_t first) {
    const keel_row *row = NULL;
    for (uint64_t step = from; step <= to; step += every) {
        assert_int_equal(source->next(source->context, &row), KEEL_OK);
        assert_non_null(row);
        assert_int_equal(row->step.step, step);
        assert_int_equal(row->step.flags, step == from ? first : 0);
        int32_t loss = keel_run_scalar(source->info, "loss");
        assert_true(loss >= 0 && row->scalar_set[loss]);
        assert_true(fabs(row->scalars[loss] - nth_loss(step, shift)) < 1e-4);
    }
}

static void check_end(const keel_row_source *source) {
    const keel_row *row = NULL;
    assert_int_equal(source->next(source->context, &row), KEEL_OK);
    assert_null(row);
}

static void test_runs_appended_are_several(void **state) {
    (void)state;
    iterations(0, 500, 10, 0);
    banner(20);
    iterations(0, 300, 10, 1);
    iterations(0, 400, 10, 1); // at once, and with the same seed
    keel_import *import = open_scratch(3);
    static const uint64_t last[] = {500, 300, 400};
    for (size_t run = 0; run < 3; run++) {
        const keel_row_source *source = keel_import_run(import, run);
        check_steps(source, 0, last[run], 10, run ? 1 : 0, 0);
        check_end(source);
    }
    keel_import_close(import);
}

static void test_short_runs_appended_are_several(void **state) {
    (void)state;
    iterations(0, 50, 10, 0);
    banner(2);
    iterations(0, 50, 10, 0);
    keel_import *import = open_scratch(2);
    for (size_t run = 0; run < 2; run++) {
        const keel_row_source *source = keel_import_run(import, run);
        check_steps(source, 0, 50, 10, 0, 0);
        check_end(source);
    }
    keel_import_close(import);
}

static void test_a_restart_from_a_checkpoint_is_one_run(void **state) {
    (void)state;
    iterations(140000, 140500, 20, 0);
    banner(20);
    iterations(140260, 140700, 20, 0.5);
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 140000, 140500, 20, 0, 0);
    check_steps(source, 140260, 140700, 20, 0.5, KEEL_STEP_RESUMED);
    check_end(source);
    keel_import_close(import);
}

static void test_a_restart_at_the_end_of_a_growing_log(void **state) {
    (void)state;
    iterations(10, 500, 10, 0);
    banner(20);
    iterations(310, 310, 10, 0.5); // so far
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 10, 500, 10, 0, 0);
    check_steps(source, 310, 310, 10, 0.5, KEEL_STEP_RESUMED);
    check_end(source);
    keel_import_close(import);
}

static void test_a_restart_in_json_lines(void **state) {
    (void)state;
    for (int step = 1; step <= 100; step++)
        append("{\"step\": %d, \"loss\": %.4f}\n", step, nth_loss((uint64_t)step, 0));
    for (int step = 98; step <= 120; step++)
        append("{\"step\": %d, \"loss\": %.4f}\n", step, nth_loss((uint64_t)step, 1));
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 1, 100, 1, 0, 0);
    check_steps(source, 98, 120, 1, 1, KEEL_STEP_RESUMED);
    check_end(source);
    keel_import_close(import);
}

// Eight ranks print the same lines, each at its own pace.
static void test_ranks_that_repeat(void **state) {
    (void)state;
    for (uint64_t at = 0; at < 205; at++)
        for (uint64_t rank = 0; rank < 8; rank++) {
            uint64_t behind = rank * (at % 5) / 7; // at most 4
            if (at >= behind && at - behind <= 200) iterations(10 * (at - behind), 10 * (at - behind), 10, 0);
        }
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 0, 2000, 10, 0, 0);
    check_end(source);
    keel_import_close(import);
}

// Each rank prints its own loss; one is followed.
static void test_ranks_with_losses_of_their_own(void **state) {
    (void)state;
    for (uint64_t at = 0; at <= 203; at++)
        for (uint64_t rank = 0; rank < 4; rank++) {
            uint64_t behind = rank * (at / 8 % 2);
            if (at < behind || at - behind > 200) continue;
            append("[rank%llu]: ", (unsigned long long)rank);
            iterations(at - behind, at - behind, 1, (double)rank / 32);
        }
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 0, 200, 1, 0, 0);
    check_end(source);
    keel_import_close(import);
}

static void test_another_rank_prints_after_a_restart(void **state) {
    (void)state;
    for (uint64_t step = 1; step <= 50; step++)
        append("[default7]:iter %llu: loss %.4f, time 1ms\n", (unsigned long long)step, nth_loss(step, 0));
    banner(20);
    for (uint64_t step = 51; step <= 60; step++)
        append("[default3]:iter %llu: loss %.4f, time 1ms\n", (unsigned long long)step, nth_loss(step, 0));
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 1, 60, 1, 0, 0);
    check_end(source);
    keel_import_close(import);
}

static void test_torn_lines_give_no_values(void **state) {
    (void)state;
    iterations(100, 140, 10, 0);
    append("iter 15iter 150: loss %.4f, time 1.0ms\n", nth_loss(150, 0)); // a step cut short
    append("iter 160: loss 2.iter 170: loss 9.9");                        // a loss cut short
    append("\niter 160: loss %.4f, time 1.0ms\niter 170: loss %.4f, time 1.0ms\n", nth_loss(160, 0), nth_loss(170, 0));
    append("iter 17: loss 3.9, time 1.0ms\n");     // the first part of a step
    append("iter 180190: loss 3.8, time 1.0ms\n"); // two steps run together
    iterations(180, 300, 10, 0);
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 100, 300, 10, 0, 0);
    check_end(source);
    keel_import_close(import);
}

static void test_steps_that_begin_anew_in_every_epoch(void **state) {
    (void)state;
    for (uint64_t step = 0; step < 300; step++)
        append("{\"epoch\": %d, \"batch\": %d, \"loss\": %.4f}\n", (int)(step / 100), (int)(step % 100),
               nth_loss(step, 0));
    keel_import *import = open_scratch(1);
    const keel_row_source *source = keel_import_run(import, 0);
    check_steps(source, 0, 99, 1, 0, 0);
    check_steps(source, 100, 199, 1, 0, KEEL_STEP_EPOCH);
    check_steps(source, 200, 299, 1, 0, KEEL_STEP_EPOCH);
    check_end(source);
    keel_import_close(import);
}

static void test_records_without_steps_are_counted(void **state) {
    (void)state;
    check_text(
        "{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.5}\n{'loss': 2.25, 'learning_rate': 0.001, 'epoch': 1.0}\n"
        "{'eval_loss': 2.75, 'epoch': 1.0}\n{'loss': '2.0', 'learning_rate': '0.001', 'epoch': '1.5'}\n"
        "{'loss': 2.125, 'learning_rate': 0.001, 'epoch': 1.0}\n",
        "hugging-face",
        (const char *const[]){"1 - loss=2.5 lr=0.001", "2 V loss=2.25 lr=0.001 eval_loss=2.75", "3 E loss=2 lr=0.001",
                              "4 R loss=2.125 lr=0.001", NULL});
}

static void test_evaluations_alone_are_rows(void **state) {
    (void)state;
    check_text("step:0/200 val_loss:10.8310 train_time:212ms\nstep:100/200 val_loss:5.5000 train_time:212ms\n"
               "step:200/200 val_loss:4.2500 train_time:212ms\n",
               "modded-nanogpt",
               (const char *const[]){"0 - eval_loss=10.831", "100 - eval_loss=5.5", "200 - eval_loss=4.25", NULL});
}

// Skipped iterations: counted where a record stands for several, flagged where all were; a norm printed once more is
// none.
static void test_skipped_iterations(void **state) {
    (void)state;
    check_text(
        "iteration 10/ 100 | lm loss: 3.5 | loss scale: 1024.0 | grad norm: 1.5 | number of skipped iterations: 4 |\n"
        "iteration 20/ 100 | lm loss: 3.4 | loss scale: 1024.0 | grad norm: 1.4 | number of skipped iterations: 0 |\n"
        "iteration 30/ 100 | lm loss: 3.4 | loss scale: 512.0 | grad norm: 1.4 | number of skipped iterations: 10 |\n"
        "iteration 40/ 100 | lm loss: 3.3 | loss scale: 512.0 | grad norm: inf | number of skipped iterations: 10 |\n",
        "megatron",
        (const char *const[]){"10 - loss=3.5 grad_norm=1.5 loss_scale=1024 skipped_iterations=4",
                              "20 - loss=3.4 grad_norm=1.4 loss_scale=1024",
                              "30 SO loss=3.4 loss_scale=512 skipped_iterations=10",
                              "40 SO loss=3.3 grad_norm=inf loss_scale=512 skipped_iterations=10", NULL});
}

static void test_overflow_lines_of_every_rank_are_one(void **state) {
    (void)state;
    static const char line[] =
        "[deepspeed] OVERFLOW! Rank %d Skipping step. Attempted loss scale: %d, reducing to %d\n";
    append("steps: 1 loss: 3.5000 iter time (s): 0.5\n");
    for (int rank = 0; rank < 4; rank++) append(line, rank, 64, 32);
    append("steps: 2 loss: 3.4000 iter time (s): 0.5\n");
    for (int step = 0; step < 2; step++)
        for (int rank = 0; rank < 4; rank++) append(line, rank, 32, 32); // the least scale, twice
    append("steps: 9 loss: 3.3000 iter time (s): 0.5\n");
    keel_import *import = open_scratch(1);
    check_rows(import, 0,
               (const char *const[]){"1 - loss=3.5", "2 SO loss=3.4 loss_scale=32 skipped_iterations=1",
                                     "9 - loss=3.3 loss_scale=32 skipped_iterations=2", NULL});
    keel_import_close(import);
}

// What a trainer prints for want of a value is absent; the same among real values, or beside a collapsed loss, is not.
static void test_placeholders(void **state) {
    (void)state;
    check_text("{\"step\": 1, \"loss\": 3.5, \"grad_norm\": 0.0, \"loss_scale\": 1.0}\n{\"step\": 2, \"loss\": 3.25, "
               "\"grad_norm\": 0, \"loss_scale\": 1}\n",
               NULL, (const char *const[]){"1 - loss=3.5", "2 - loss=3.25", NULL});
    check_text("{\"step\": 1, \"loss\": 3.5, \"grad_norm\": NaN}\n{\"step\": 2, \"loss\": 3.25, \"grad_norm\": NaN}\n",
               NULL, (const char *const[]){"1 - loss=3.5", "2 - loss=3.25", NULL});
    check_text("{\"step\": 1, \"loss\": 3.5, \"grad_norm\": 0.5, \"loss_scale\": 2}\n{\"step\": 2, \"loss\": 3.25, "
               "\"grad_norm\": 0.0, \"loss_scale\": 1}\n",
               NULL,
               (const char *const[]){"1 - loss=3.5 grad_norm=0.5 loss_scale=2",
                                     "2 - loss=3.25 grad_norm=0 loss_scale=1", NULL});
    check_text("{\"step\": 1, \"loss\": 0.0, \"grad_norm\": NaN}\n{\"step\": 2, \"loss\": 0.0, \"grad_norm\": NaN}\n",
               NULL, (const char *const[]){"1 - loss=0 grad_norm=nan", "2 - loss=0 grad_norm=nan", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_appended_are_several),
        cmocka_unit_test(test_short_runs_appended_are_several),
        cmocka_unit_test(test_a_restart_from_a_checkpoint_is_one_run),
        cmocka_unit_test(test_a_restart_at_the_end_of_a_growing_log),
        cmocka_unit_test(test_a_restart_in_json_lines),
        cmocka_unit_test(test_ranks_that_repeat),
        cmocka_unit_test(test_ranks_with_losses_of_their_own),
        cmocka_unit_test(test_another_rank_prints_after_a_restart),
        cmocka_unit_test(test_torn_lines_give_no_values),
        cmocka_unit_test(test_steps_that_begin_anew_in_every_epoch),
        cmocka_unit_test(test_records_without_steps_are_counted),
        cmocka_unit_test(test_evaluations_alone_are_rows),
        cmocka_unit_test(test_skipped_iterations),
        cmocka_unit_test(test_overflow_lines_of_every_rank_are_one),
        cmocka_unit_test(test_placeholders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
