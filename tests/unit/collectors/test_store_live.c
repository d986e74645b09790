// A reader that follows a writer in another process sees whole rows only, in order, across segments that are closed and
// packed under it.
#include "tests/unit/collectors/store_rig.h"

#include <sys/wait.h>
#include <time.h>

enum { STEPS = 1500, SITES = 60 };
#define OPS (UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_max | UINT64_C(1) << KEEL_OP_nans)

static void write_slowly(rig *r) {
    keel_sink sink = rig_sink(r, 1 << 20, 60);
    for (uint64_t step = 1; step <= STEPS; step++) {
        assert_ok(sink.row(sink.context, rig_row(r, step, 0)));
        if (step == 20 || step == 40) {
            const keel_incident incident = rig_incident(1, (uint32_t)step / 20);
            assert_ok(sink.incident(sink.context, &incident));
        }
        if (step % 8 == 0) usleep(500);
    }
    sink.close(sink.context);
}

static keel_store_reader *wait_for_store(const char *directory) {
    keel_store_reader *reader = NULL;
    for (int i = 0; i < 2000; i++) {
        if (keel_store_open(directory, &reader) == KEEL_OK) return reader;
        usleep(5000);
    }
    fail_msg("%s", keel_error());
    return NULL;
}

static void test_a_reader_follows(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, true);
    const pid_t writer = fork();
    if (writer == 0) {
        write_slowly(&r);
        _exit(0);
    }
    keel_store_reader *reader = wait_for_store(r.directory);
    assert_int_not_equal(keel_store_state_of(reader), KEEL_STORE_CLOSED);
    uint64_t seen = 0;
    const time_t until = time(NULL) + 120;
    while (seen < STEPS && time(NULL) < until) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        if (row) {
            rig_check_row(&r, row, ++seen, 0, 0);
            assert_false(position.superseded || position.fork);
            continue;
        }
        usleep(200);
        assert_ok(keel_store_refresh(reader));
    }
    assert_int_equal(seen, STEPS);
    int status;
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_int_equal(status, 0);
    assert_true(keel_store_segments(reader) > 2);
    keel_incident *incidents;
    size_t count;
    assert_ok(keel_store_incidents(reader, &incidents, &count));
    assert_int_equal(count, 1);
    assert_int_equal(incidents[0].revision, 2);
    free(incidents);
    keel_store_close(reader);

    reader = wait_for_store(r.directory);
    assert_int_equal(keel_store_rows(reader), STEPS);
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_CLOSED);
    keel_store_close(reader);
    rig_close(&r);
}

static void test_a_killed_writer_is_told_from_a_living_one(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t writer = fork();
    if (writer == 0) {
        keel_sink sink = rig_sink(&r, 0, -1);
        rig_write(&r, &sink, 1, 5, 0);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    keel_store_reader *reader = wait_for_store(r.directory);
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_LIVE);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_KILLED);
    assert_int_equal(keel_store_rows(reader), 5);
    keel_store_close(reader);
    close(ready[0]);
    close(ready[1]);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reader_follows),
        cmocka_unit_test(test_a_killed_writer_is_told_from_a_living_one),
    };
    return cmocka_run_group_tests(tests, NULL, rig_no_handles_left);
}
