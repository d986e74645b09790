// The assembly: what a run that a program monitors leaves behind is judged as it was live.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "analyzers/offline.h"
#include "tests/unit/temp_folder.h"
#include "tools/assemble.h"

static const char *run, *yaml;

static int make_folder(void **state) {
    if (temp_folder_make(state)) return -1;
    run = temp_path(*state, "run");
    yaml = temp_path(*state, "monitor.yaml");
    return 0;
}

// A loss that jumps at step 150, monitored by MONITOR (NULL: the defaults), of a program with SETTINGS of its own.
static void watch_a_spike(const char *monitor, const char *settings) {
    keel_assembly *assembly;
    uint32_t loss;
    if (monitor) temp_write(yaml, monitor, strlen(monitor));
    const keel_assembly_options options = {
        .output = run, .monitor_path = monitor ? yaml : NULL, .config_yaml = settings};
    assert_int_equal(keel_assembly_open(&options, &assembly), KEEL_OK);
    keel_probe *probe = keel_assembly_probe(assembly);
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &loss), KEEL_OK);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    for (uint64_t step = 1; step <= 160; step++) {
        keel_step_begin(probe, step);
        keel_scalar_set(probe, loss, step >= 150 ? 9 : 2 + 0.01 * (double)(step % 7));
        keel_step_end(probe, &(keel_step){.step = step, .update = step});
        assert_int_equal(keel_probe_drain(probe), KEEL_OK);
    }
    assert_int_equal(keel_assembly_close(assembly), KEEL_OK);
}

static void assert_found(bool found, const char *settings) {
    keel_result *result;
    assert_int_equal(keel_offline_store(run, NULL, &result), KEEL_OK);
    assert_int_equal(result->incident_count > 0, found);
    assert_string_equal(result->info->config_yaml, settings);
    keel_result_free(result);
}

#define QUIET                                                                                                          \
    "monitor: {rules: {loss_spike: {enabled: false}, loss_divergence: {enabled: false}}, alerts: {log: false}}\n"
#define QUIET_STORED                                                                                                   \
    "monitor:\n  rules:\n    loss_spike:\n      enabled: false\n    loss_divergence:\n      enabled: false\n"          \
    "  alerts:\n    log: false\n"

static void a_monitor_of_its_own_judges_it_later(void **unused) {
    (void)unused;
    watch_a_spike(QUIET, NULL);
    assert_found(false, QUIET_STORED);
}

// Not what else stands in the monitor's file, nor what the program's settings say of a monitor.
static void the_programs_settings_stand_beside_the_monitors(void **unused) {
    (void)unused;
    watch_a_spike(QUIET "optimizer: {eps: 1}\n", "lr_schedule: {learning_rate: 2}\nmonitor: {rules: {}}\n");
    assert_found(false, "lr_schedule:\n  learning_rate: 2\n" QUIET_STORED);
}

static void the_monitors_defaults_are_no_settings_of_the_program(void **unused) {
    (void)unused;
    watch_a_spike(NULL, QUIET);
    assert_found(true, "monitor: null\n");
}

static void settings_that_are_no_mapping_are_refused(void **unused) {
    (void)unused;
    keel_assembly *assembly;
    const keel_assembly_options options = {.output = run, .config_yaml = "a: [1\n"};
    assert_int_equal(keel_assembly_open(&options, &assembly), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "config_yaml:2:1"));
    const keel_assembly_options list = {.output = run, .config_yaml = "[1, 2]"};
    assert_int_equal(keel_assembly_open(&list, &assembly), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "expected a mapping"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, temp_folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_monitor_of_its_own_judges_it_later),
        TEST(the_programs_settings_stand_beside_the_monitors),
        TEST(the_monitors_defaults_are_no_settings_of_the_program),
        TEST(settings_that_are_no_mapping_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
