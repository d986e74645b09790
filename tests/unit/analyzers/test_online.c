// The rules behind a monitor: while the recorder's thread is busy with them, a save waits and nothing else does.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "analyzers/online.h"
#include "collectors/helper_thread.h"
#include "tests/unit/collectors/monitor_rig.h"

static sem_t told, go_on;
static atomic_bool saved;

static keel_status slow_start(void *context, const keel_run_info *info) {
    (void)context;
    (void)info;
    return KEEL_OK;
}

static keel_status slow_row(void *context, const keel_row *row) {
    (void)context;
    (void)row;
    return KEEL_OK;
}

static keel_status slow_incident(void *context, const keel_incident *incident) {
    (void)context;
    (void)incident;
    sem_post(&told);
    sem_wait(&go_on);
    return KEEL_OK;
}

static void slow_close(void *context) {
    (void)context;
}

static void *save(void *context) {
    void *bytes;
    size_t size;
    if (keel_probe_save(context, &bytes, &size) == KEEL_OK) free(bytes);
    atomic_store(&saved, true);
    return NULL;
}

static void test_a_save_waits_while_a_hang_is_told(void **state) {
    (void)state;
    rig r;
    keel_analysis *analysis;
    keel_judge judge;
    const keel_sink slow = {
        .name = "slow", .start = slow_start, .row = slow_row, .incident = slow_incident, .close = slow_close};
    rig_open(&r, NULL, "{rules: {hang: {min_seconds: 0.1}}}");
    assert_int_equal(keel_analysis_open(r.config, &analysis), KEEL_OK);
    assert_int_equal(keel_online_judge(analysis, r.monitor, &judge), KEEL_OK);
    assert_int_equal(keel_monitor_add_judge(r.monitor, &judge), KEEL_OK);
    assert_int_equal(keel_monitor_add_sink(r.monitor, &slow), KEEL_OK);
    sem_init(&told, 0, 0);
    sem_init(&go_on, 0, 0);
    rig_start(&r);
    for (uint64_t step = 1; step <= 3; step++) rig_step(&r, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    keel_step_begin(r.probe, 4);
    keel_semaphore_wait(&told);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, save, r.probe), 0);
    keel_nap(100000000);
    assert_false(atomic_load(&saved));
    assert_int_equal(keel_probe_health(r.probe).open_criticals, 1); // at once
    for (int i = 0; i < 8; i++) sem_post(&go_on);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&saved));
    keel_step_end(r.probe, &(keel_step){.step = 4});
    assert_int_equal(rig_close(&r), KEEL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_save_waits_while_a_hang_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
