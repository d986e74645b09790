// The watch over ranks: processes of this test beat on one board, and are killed, stopped, or fall silent.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/watch/process.h"
#include "collectors/watch/rank_watch.h"
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/temp_folder.h"

enum { RANKS = 3 };
static char directory[64];

static int make_directory(void **unused) {
    (void)unused;
    strcpy(directory, "/tmp/keel-watch-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **unused) {
    (void)unused;
    return temp_remove(directory);
}

static keel_beat_table *share_table(void) {
    void *table = mmap(NULL, keel_beat_table_bytes(RANKS), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(table, MAP_FAILED);
    return table;
}

static keel_rank_watch *watch_as(keel_beat_table *table, uint32_t own) {
    keel_rank_watch_options options = {.board = {.table = table, .count = RANKS, .own = own},
                                       .directory = directory,
                                       .hang_times = 2,
                                       .hang_seconds = 0.5};
    keel_rank_watch *watch;
    return keel_rank_watch_open(&options, &watch) ? NULL : watch;
}

// What a rank does after three steps.
typedef enum fate { GO_ON, STOPPING, WAIT, LEAVE, EXIT, FALL_SILENT } fate;

// Another process, as rank OWN, that has joined; its watch begins when all have.
static pid_t start_rank(keel_beat_table *table, uint32_t own, fate then) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    keel_beat_board board;
    keel_beat_board_join(&board, table, RANKS, own, 10 + (int32_t)own);
    for (uint32_t i = 0; i < RANKS; i++)
        while (table->beats[i].pid == 0) keel_nap(1000000);
    keel_rank_watch *watch = watch_as(table, own);
    uint64_t step = 1;
    for (; step <= 3; step++) {
        keel_rank_watch_step(watch, step, true);
        keel_nap(5000000);
        keel_rank_watch_step(watch, step, false);
    }
    if (then == LEAVE) {
        keel_rank_watch_close(watch);
        _exit(0);
    }
    if (then == EXIT) exit(3);
    keel_rank_watch_step(watch, step, true);
    if (then == WAIT) keel_rank_watch_wait(watch, true);
    if (then == STOPPING) keel_rank_watch_stopping(watch);
    for (;;) {
        keel_nap(5000000);
        if (then == GO_ON || then == STOPPING) keel_rank_watch_sign(watch);
    }
}

typedef struct job {
    keel_beat_table *table;
    pid_t pids[RANKS];
} job;

static job start_job(const fate fates[RANKS]) {
    job j = {.table = share_table()};
    for (uint32_t i = 0; i < RANKS; i++) j.pids[i] = start_rank(j.table, i, fates[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        while (atomic_load(&j.table->beats[i].step) < 3) keel_nap(1000000);
    return j;
}

static void end_job(job *j) {
    for (int i = 0; i < RANKS; i++) kill(j->pids[i], SIGKILL);
    for (int i = 0; i < RANKS; i++) waitpid(j->pids[i], NULL, 0);
    munmap(j->table, keel_beat_table_bytes(RANKS));
}

// The events of the job, once there is one and time for another has passed.
static size_t events_of(keel_host_event **events) {
    size_t count = 0;
    for (int tries = 0; count == 0 && tries < 600; tries++) {
        keel_nap(10000000);
        assert_int_equal(keel_host_events_read(directory, events, &count), KEEL_OK);
    }
    keel_nap(700000000);
    free(*events);
    assert_int_equal(keel_host_events_read(directory, events, &count), KEEL_OK);
    return count;
}

static void expect_event(keel_host_event_kind kind, int32_t rank, const char *how) {
    keel_host_event *events = NULL;
    assert_int_equal(events_of(&events), 1);
    assert_int_equal(events[0].kind, kind);
    assert_int_equal(events[0].rank, rank);
    assert_string_equal(events[0].how, how);
    assert_true(events[0].step == 3 || events[0].step == 4);
    free(events);
}

static void a_killed_rank_is_told_once(void **unused) {
    (void)unused;
    for (int victim = 0; victim < RANKS; victim++) {
        make_directory(NULL);
        job j = start_job((fate[]){GO_ON, GO_ON, GO_ON});
        kill(j.pids[victim], SIGKILL);
        expect_event(KEEL_HOST_GONE, 10 + victim, "it was killed or has crashed");
        end_job(&j);
        if (victim < RANKS - 1) remove_directory(NULL);
    }
}

static void a_rank_that_exits_is_told_with_its_status(void **unused) {
    (void)unused;
    job j = start_job((fate[]){GO_ON, EXIT, GO_ON});
    expect_event(KEEL_HOST_GONE, 11, "it has called exit with status 3");
    end_job(&j);
}

static void a_death_after_a_request_to_stop_is_told_as_such(void **unused) {
    (void)unused;
    job j = start_job((fate[]){STOPPING, STOPPING, STOPPING});
    keel_nap(900000000);
    kill(j.pids[1], SIGKILL);
    expect_event(KEEL_HOST_GONE, 11, "it was killed or has crashed after a request to stop");
    end_job(&j);
}

static void a_stopped_rank_is_told_by_another(void **unused) {
    (void)unused;
    job j = start_job((fate[]){GO_ON, WAIT, WAIT});
    kill(j.pids[0], SIGSTOP);
    expect_event(KEEL_HOST_SILENT, 10, "stopped by a signal");
    end_job(&j);
}

static void a_silent_rank_that_others_wait_for_is_told(void **unused) {
    (void)unused;
    job j = start_job((fate[]){WAIT, WAIT, FALL_SILENT});
    expect_event(KEEL_HOST_SILENT, 12, "in no collective");
    end_job(&j);
}

static void ranks_that_all_wait_name_none(void **unused) {
    (void)unused;
    job j = start_job((fate[]){WAIT, WAIT, WAIT});
    expect_event(KEEL_HOST_SILENT, -1, "none of this host's ranks goes on");
    end_job(&j);
}

static void ranks_that_go_on_or_have_left_are_not_told(void **unused) {
    (void)unused;
    job j = start_job((fate[]){GO_ON, LEAVE, WAIT}); // who waits does so for one that is slow, not silent
    int how;
    assert_int_equal(waitpid(j.pids[1], &how, 0), j.pids[1]);
    assert_int_equal(how, 0);
    keel_nap(900000000);
    keel_nap(900000000);
    keel_host_event *events = NULL;
    size_t count = 1;
    assert_int_equal(keel_host_events_read(directory, &events, &count), KEEL_OK);
    assert_int_equal(count, 0);
    assert_null(events);
    kill(j.pids[0], SIGKILL);
    kill(j.pids[2], SIGKILL);
    waitpid(j.pids[0], NULL, 0);
    waitpid(j.pids[2], NULL, 0);
    munmap(j.table, keel_beat_table_bytes(RANKS));
}

static void count_end(void *context) {
    ++*(atomic_int *)context;
}

static keel_rank_watch *watch_alone(atomic_int *ends) {
    keel_rank_watch_options options = {.directory = directory,
                                       .hang_times = 2,
                                       .hang_seconds = 0.3,
                                       .end_seconds = 0.4,
                                       .context = ends,
                                       .end_job = ends ? count_end : NULL};
    keel_rank_watch *watch;
    assert_int_equal(keel_beat_board_alone(0, &options.board), KEEL_OK);
    assert_int_equal(keel_rank_watch_open(&options, &watch), KEEL_OK);
    for (uint64_t step = 1; step <= 3; step++) {
        keel_rank_watch_step(watch, step, true);
        if (step < 3) keel_rank_watch_step(watch, step, false);
    }
    return watch;
}

// Three ranks within a step, of which one observes something now and then. This process is still there at the end.
static void a_job_is_ended_once_and_only_by_who_knows_how(void **unused) {
    (void)unused;
    atomic_int ends = 0, ends_of_busy = 0;
    keel_rank_watch *silent = watch_alone(&ends), *unable = watch_alone(NULL), *busy = watch_alone(&ends_of_busy);
    bool *observed = keel_rank_watch_observed(busy);
    for (int i = 0; i < 45; i++) {
        __atomic_store_n(observed, true, __ATOMIC_RELAXED);
        keel_nap(90000000);
    }
    assert_int_equal(ends, 1);
    assert_int_equal(ends_of_busy, 0);
    keel_rank_watch_close(silent);
    keel_rank_watch_close(unable);
    keel_rank_watch_close(busy);
}

static void torn_lines_are_said_and_left_out(void **unused) {
    (void)unused;
    keel_host_event event = {.kind = KEEL_HOST_GONE, .rank = 5, .step = 7, .pid = 99, .how = "x"};
    keel_host_event_here(&event);
    assert_int_equal(keel_host_event_write(directory, &event), KEEL_OK);
    char path[160];
    snprintf(path, sizeof path, "%s/hosts/other.jsonl", directory);
    FILE *file = fopen(path, "w");
    fputs("{\"event\":\"silent\",\"rank\":2,\"step\":6,\"time_unix\":1,\"seconds\":3,\"pid\":1,\"host\":\"other\","
          "\"how\":\"y\"}\n"
          "{\"event\":\"asleep\",\"rank\":2,\"step\":6,\"time_unix\":1,\"seconds\":3,\"pid\":1,\"host\":\"other\","
          "\"how\":\"y\"}\n"
          "{\"event\":\"gone\",\"ra",
          file);
    fclose(file);
    capture_log();
    keel_host_event *events;
    size_t count;
    assert_int_equal(keel_host_events_read(directory, &events, &count), KEEL_OK);
    assert_int_equal(count, 2);
    assert_int_equal(captured_with("other.jsonl:2: not an event"), 1);
    assert_int_equal(captured_with("other.jsonl:3: not an event"), 1);
    assert_int_equal(events[0].rank, 2); // the earlier one
    assert_int_equal(events[1].rank, 5);
    assert_string_equal(events[1].host, event.host);
    free(events);
}

static void the_system_tells_of_processes(void **unused) {
    (void)unused;
    const pid_t pid = fork();
    if (pid == 0)
        for (;;) pause();
    while (keel_process_state(pid) != 'S') keel_nap(1000000);
    kill(pid, SIGSTOP);
    while (keel_process_state(pid) != 'T') keel_nap(1000000);
    const int handle = keel_process_handle(pid);
    kill(pid, SIGKILL);
    while (keel_process_state(pid) != 0) keel_nap(1000000); // also as long as nobody waits for it
    waitpid(pid, NULL, 0);
    assert_int_equal(keel_process_state(pid), 0);
    if (handle >= 0) close(handle);
    assert_true(keel_process_space() != 0);
}

int main(void) {
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_killed_rank_is_told_once, remove_directory),
        IN_DIRECTORY(a_rank_that_exits_is_told_with_its_status),
        IN_DIRECTORY(a_death_after_a_request_to_stop_is_told_as_such),
        IN_DIRECTORY(a_stopped_rank_is_told_by_another),
        IN_DIRECTORY(a_silent_rank_that_others_wait_for_is_told),
        IN_DIRECTORY(ranks_that_all_wait_name_none),
        IN_DIRECTORY(ranks_that_go_on_or_have_left_are_not_told),
        IN_DIRECTORY(a_job_is_ended_once_and_only_by_who_knows_how),
        IN_DIRECTORY(torn_lines_are_said_and_left_out),
        cmocka_unit_test(the_system_tells_of_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
