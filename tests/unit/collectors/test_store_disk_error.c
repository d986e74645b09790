// A disk that fails under HDF5.
#include "tests/unit/collectors/store_rig.h"

#include <fcntl.h>

#include "tests/unit/collectors/captured_log.h"

// The descriptor that HDF5 writes FILE through.
static int find_descriptor(const char *file) {
    for (int fd = 3; fd < 100; fd++) {
        char link[64], target[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = '\0';
        if (strcmp(target, file) == 0) return fd;
    }
    fail_msg("%s is not open", file);
    return -1;
}

static void test_an_error_of_the_disk_costs_a_segment(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans, false);
    keel_sink sink = rig_sink(&r, 0, -1);
    capture_log();
    rig_write(&r, &sink, 1, 5, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/keel-0000.h5", r.directory);
    const int fd = find_descriptor(path), read_only = open(path, O_RDONLY);
    assert_true(read_only >= 0 && dup2(read_only, fd) == fd); // what is written from now on fails
    close(read_only);
    rig_write(&r, &sink, 6, 10, 0);
    assert_int_equal(captured_with("RECORDING PAUSES"), 1);
    assert_int_equal(captured_with("cannot write"), 1);
    usleep(1100000); // a new segment is tried once a second
    rig_write(&r, &sink, 11, 12, 0);
    assert_int_equal(captured_with("recording goes on. 0 steps"), 1);
    assert_ok(sink.flush(sink.context));
    sink.close(sink.context);
    keel_log_set(NULL, NULL);

    keel_store_reader *reader;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_segments(reader), 2);
    for (uint64_t step = 1; step <= 12; step++) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        rig_check_row(&r, row, step, 0, 0);
        assert_false(position.superseded || position.fork);
    }
    keel_store_close(reader);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_error_of_the_disk_costs_a_segment)};
    return cmocka_run_group_tests(tests, NULL, rig_no_handles_left);
}
