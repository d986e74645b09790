// A file system without locks: one writer by a file that says so, readers that see whole copies, and nothing lost but
// what a killed writer had in hand.
#include "tests/unit/collectors/store_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "tests/unit/collectors/captured_log.h"

enum { SITES = 20 };
#define OPS (UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans)

// In the place of the C library's.
int flock(int fd, int operation) {
    (void)fd;
    (void)operation;
    errno = ENOLCK;
    return -1;
}

static keel_status open_sink(rig *r, double show_seconds, keel_sink *sink) {
    const keel_status status = keel_store_sink_open(
        r->directory, &(keel_store_options){.pack_seconds = -1, .show_seconds = show_seconds}, sink);
    if (!status) assert_ok(sink->start(sink->context, &r->info));
    return status;
}

static bool exists(const rig *r, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", r->directory, name);
    return access(path, F_OK) == 0;
}

static void test_it_is_said_and_written_aside(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    capture_log();
    keel_sink sink;
    assert_ok(open_sink(&r, 1000, &sink));
    assert_int_equal(captured_with("the file system has no locks: live reading is not safe there"), 1);
    rig_write(&r, &sink, 1, 30, 0);
    keel_store_reader *reader;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 1); // the first is shown at once
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_LIVE);
    assert_ok(sink.flush(sink.context));
    assert_ok(keel_store_refresh(reader));
    assert_int_equal(keel_store_rows(reader), 30);
    rig_write(&r, &sink, 31, 40, 0);
    const keel_incident incident = rig_incident(1, 1);
    assert_ok(sink.incident(sink.context, &incident));
    assert_ok(keel_store_refresh(reader));
    assert_int_equal(keel_store_rows(reader), 40);
    for (uint64_t step = 1; step <= 40; step++) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        rig_check_row(&r, row, step, 0, 0);
    }
    rig_write(&r, &sink, 41, 50, 0);
    assert_true(exists(&r, "keel-0000.h5.new"));
    sink.close(sink.context);
    assert_false(exists(&r, "keel-0000.h5.new"));
    assert_false(exists(&r, "keel-0000.h5.copy"));
    assert_false(exists(&r, "keel.lock"));
    keel_store_close(reader);
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 50);
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_CLOSED);
    keel_store_close(reader);
    rig_close(&r);
}

// A process that writes STEPS and waits to be killed.
static pid_t start_writer(rig *r, double show_seconds, uint64_t steps) {
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        keel_sink sink;
        if (open_sink(r, show_seconds, &sink)) _exit(1);
        rig_write(r, &sink, 1, steps, 0);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void test_a_second_writer_is_refused_and_a_dead_one_is_not_in_the_way(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    const pid_t writer = start_writer(&r, 1000, 25);
    keel_sink sink;
    assert_int_equal(open_sink(&r, 1000, &sink), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "another process records a run there"));
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);

    keel_store_reader *reader;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 1); // what the last copy held
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_KILLED);
    keel_store_close(reader);

    assert_ok(open_sink(&r, 1000, &sink)); // and finds what was written since
    rig_write(&r, &sink, 26, 30, 0);
    sink.close(sink.context);
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 30);
    for (uint64_t step = 1; step <= 30; step++) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        assert_int_equal(row->step.step, step);
    }
    keel_store_close(reader);
    rig_close(&r);
}

static void test_what_a_dead_host_left_torn_is_not_taken(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    const pid_t writer = start_writer(&r, 1000, 25);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    char path[256];
    snprintf(path, sizeof path, "%s/keel-0000.h5.new", r.directory);
    assert_int_equal(truncate(path, 5000), 0);
    capture_log();
    keel_sink sink;
    assert_ok(open_sink(&r, 1000, &sink));
    assert_int_equal(captured_with("keel-0000.h5.new: torn"), 1);
    sink.close(sink.context);
    keel_store_reader *reader;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 1);
    keel_store_close(reader);
    rig_close(&r);
}

static void lock_path(const rig *r, char path[256]) {
    snprintf(path, 256, "%s/keel.lock", r->directory);
}

static void set_age(const char *path, time_t seconds) {
    const struct timespec old[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

static void test_a_writer_of_another_host_counts_while_it_touches_the_lock(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    char path[256];
    lock_path(&r, path);
    mkdir(r.directory, 0777);
    FILE *file = fopen(path, "w");
    fputs("elsewhere 17 12345 67890\n", file);
    fclose(file);
    keel_sink sink;
    assert_int_equal(open_sink(&r, 0, &sink), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "elsewhere, process 17"));
    set_age(path, 300);
    assert_ok(open_sink(&r, 0, &sink));
    sink.close(sink.context);
    rig_close(&r);
}

// A process number comes again: what counts is the process that had it then.
static void test_a_lock_of_a_process_that_had_this_number_before_is_not_in_the_way(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    char path[256], host[64];
    int pid;
    unsigned long long began, space;
    lock_path(&r, path);
    keel_sink sink, second;
    assert_ok(open_sink(&r, 0, &sink));
    FILE *file = fopen(path, "r");
    assert_int_equal(fscanf(file, "%63s %d %llu %llu", host, &pid, &began, &space), 4);
    fclose(file);
    assert_int_equal(pid, getpid());
    assert_true(began > 0);
    assert_int_equal(open_sink(&r, 0, &second), KEEL_ERR_USAGE);
    sink.close(sink.context);
    file = fopen(path, "w");
    fprintf(file, "%s %d %llu %llu\n", host, pid, began - 1, space);
    fclose(file);
    assert_ok(open_sink(&r, 0, &sink));
    sink.close(sink.context);
    rig_close(&r);
}

static void test_a_writer_without_rows_touches_its_lock(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    keel_sink sink;
    char path[256];
    struct stat about;
    lock_path(&r, path);
    assert_ok(open_sink(&r, 0, &sink));
    set_age(path, 300);
    sink.idle(sink.context);
    assert_int_equal(stat(path, &about), 0);
    assert_true(time(NULL) - about.st_mtime < 100);
    sink.close(sink.context);
    rig_close(&r);
}

// A host that took this writer for dead has the run: nothing more goes into it, and its lock is left alone.
static void test_a_lock_that_another_has_taken_is_seen(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    keel_sink sink;
    char path[256];
    lock_path(&r, path);
    assert_ok(open_sink(&r, 0, &sink));
    capture_log();
    FILE *file = fopen(path, "w");
    fputs("elsewhere 17 12345 67890\n", file);
    fclose(file);
    rig_write(&r, &sink, 1, 3, 0);
    assert_int_equal(captured_with("another process has taken its lock"), 1);
    usleep(1100000);
    rig_write(&r, &sink, 4, 4, 0);
    assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO);
    sink.close(sink.context);
    assert_int_equal(captured_with("the last 4 steps and 0 incidents could not be written"), 1);
    assert_true(exists(&r, "keel.lock"));
    keel_store_reader *reader;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_int_equal(keel_store_rows(reader), 0);
    keel_store_close(reader);
    keel_log_set(NULL, NULL);
    rig_close(&r);
}

static void test_a_live_reader_sees_whole_rows_only(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    enum { STEPS = 800, LOOKS = 3 };
    int go_on[2]; // half way the writer waits until the reader has looked for more
    assert_int_equal(pipe(go_on), 0);
    const pid_t writer = fork();
    if (writer == 0) {
        keel_sink sink;
        char byte;
        if (open_sink(&r, 1e-3, &sink)) _exit(1);
        rig_write(&r, &sink, 1, STEPS / 2, 0);
        if (read(go_on[0], &byte, 1) != 1) _exit(1);
        rig_write(&r, &sink, STEPS / 2 + 1, STEPS, 0);
        sink.close(sink.context);
        _exit(0);
    }
    keel_store_reader *reader = NULL;
    for (int i = 0; i < 2000 && keel_store_open(r.directory, &reader) != KEEL_OK; i++) usleep(5000);
    assert_non_null(reader);
    uint64_t seen = 0, looks = 0;
    for (const time_t until = time(NULL) + 60; seen < STEPS && time(NULL) < until;) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        if (row) {
            rig_check_row(&r, row, ++seen, 0, 0);
            continue;
        }
        if (++looks == LOOKS) assert_int_equal(write(go_on[1], "x", 1), 1);
        usleep(500);
        assert_ok(keel_store_refresh(reader));
    }
    assert_int_equal(seen, STEPS);
    close(go_on[0]);
    close(go_on[1]);
    int how;
    assert_int_equal(waitpid(writer, &how, 0), writer);
    assert_int_equal(how, 0);
    keel_store_close(reader);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_said_and_written_aside),
        cmocka_unit_test(test_a_second_writer_is_refused_and_a_dead_one_is_not_in_the_way),
        cmocka_unit_test(test_what_a_dead_host_left_torn_is_not_taken),
        cmocka_unit_test(test_a_writer_of_another_host_counts_while_it_touches_the_lock),
        cmocka_unit_test(test_a_lock_of_a_process_that_had_this_number_before_is_not_in_the_way),
        cmocka_unit_test(test_a_writer_without_rows_touches_its_lock),
        cmocka_unit_test(test_a_lock_that_another_has_taken_is_seen),
        cmocka_unit_test(test_a_live_reader_sees_whole_rows_only),
    };
    return cmocka_run_group_tests(tests, NULL, rig_no_handles_left);
}
