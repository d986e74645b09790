// context.affinity_config: what it says, and how it is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "configs/affinity_config.h"

static keel_yaml *doc;

static keel_status read_text(const char *text, keel_affinity_config *config) {
    assert_int_equal(keel_yaml_parse("a.yaml", text, strlen(text), &doc), KEEL_OK);
    *config = (keel_affinity_config){0};
    return keel_affinity_config_read(keel_yaml_get(keel_yaml_root(doc), "context"), config);
}

static void end(keel_affinity_config *config) {
    keel_affinity_config_free(config);
    keel_yaml_free(doc);
}

static void assert_cpus(const keel_cpu_list *list, size_t count, const int *cpus) {
    assert_int_equal(list->count, count);
    for (size_t i = 0; i < count; i++) assert_int_equal(list->cpus[i], cpus[i]);
}

static void test_lists_and_places(void **state) {
    (void)state;
    keel_affinity_config config;
    assert_int_equal(read_text("context:\n"
                               "  affinity_config:\n"
                               "    device_0:\n"
                               "      affinity_cpu_list: [\"0-3\", \"8-11\"]\n"
                               "      module_to_cpu_dict: {main: [0], worker: [1, 2, 7], minddata: [4]}\n"
                               "    device_2: {affinity_cpu_list: [\"12\", 14-15], module_to_cpu_dict: {}}\n",
                               &config),
                     KEEL_OK);
    assert_int_equal(config.count, 2);
    const keel_device_affinity *first = keel_affinity_config_of(&config, 0),
                               *last = keel_affinity_config_of(&config, 2);
    assert_null(keel_affinity_config_of(&config, 1));
    assert_cpus(&first->all, 8, (int[]){0, 1, 2, 3, 8, 9, 10, 11});
    assert_cpus(&first->modules[KEEL_CPU_MAIN], 1, (int[]){0});
    assert_cpus(&first->modules[KEEL_CPU_WORKER], 3, (int[]){1, 2, 11}); // places, not numbers
    assert_cpus(&first->modules[KEEL_CPU_DATA], 1, (int[]){8});
    assert_null(first->modules[KEEL_CPU_WRITER].cpus);
    assert_cpus(&last->all, 3, (int[]){12, 14, 15});
    end(&config);
}

static void test_nothing_is_fine(void **state) {
    (void)state;
    static const char *const texts[] = {"", "context: {}\n", "context:\n  affinity_config:\n",
                                        "context: {affinity_config: {}}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        keel_affinity_config config;
        assert_int_equal(read_text(texts[i], &config), KEEL_OK);
        assert_int_equal(config.count, 0);
        end(&config);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *device, *message;
    } cases[] = {
        {"device_0: {affinity_cpu_list: [\"3-0\"]}", "affinity_cpu_list.0: the range 3-0 ends before it begins"},
        {"device_0: {affinity_cpu_list: [\"0-3\", \"2-5\"]}", "affinity_cpu_list.1: processor 2 is twice in the list"},
        {"device_0: {affinity_cpu_list: [\"0-\"]}", "expected a range of processors below 1024"},
        {"device_0: {affinity_cpu_list: [\"-1\"]}", "expected a range of processors below 1024"},
        {"device_0: {affinity_cpu_list: [\"0-2000\"]}", "expected a range of processors below 1024"},
        {"device_0: {affinity_cpu_list: [\"a\"]}", "found \"a\""},
        {"device_0: {affinity_cpu_list: [[1]]}", "expected a range of processors"},
        {"device_0: {affinity_cpu_list: 3}", "expected a list of ranges"},
        {"device_0: {affinity_cpu_list: []}", "an empty list"},
        {"device_0: {module_to_cpu_dict: {main: [0]}}", "device_0.affinity_cpu_list: missing"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {main: [4]}}",
         "module_to_cpu_dict.main.0: 4 is no place in affinity_cpu_list, which has 4 processors (0 to 3)"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {main: [-1]}}", "-1 is no place"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {main: [1, 1]}}", "place 1 is twice"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {main: []}}", "an empty list"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {main: 1}}", "expected a list of places"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {mian: [1]}}", "nearest known: main"},
        {"device_0: {affinity_cpu_list: [\"0-3\"], module_to_cpu_dict: {worker: [1], runtime: [2]}}",
         "runtime: the same as worker, which is given too"},
        {"device_0: {affinity_cpu_lst: [\"0-3\"]}", "nearest known: affinity_cpu_list"},
        {"device_x: {affinity_cpu_list: [\"0-3\"]}", "expected device_X"},
        {"device_0: [1]", "expected a mapping with affinity_cpu_list"},
        {"device_0: {affinity_cpu_list: [\"0-3\"]}, device_1: {affinity_cpu_list: [\"3-5\"]}",
         "device_1.affinity_cpu_list: processor 3 is device_0's already"},
        {"device_0: {affinity_cpu_list: [\"0\"]}, device_00: {affinity_cpu_list: [\"1\"]}",
         "device 0 is configured twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, "context: {affinity_config: {%s}}\n", cases[i].device);
        keel_affinity_config config;
        assert_int_equal(read_text(text, &config), KEEL_ERR_CONFIG);
        assert_non_null(strstr(keel_error(), "a.yaml:1:"));
        if (!strstr(keel_error(), cases[i].message)) fail_msg("%s\nis not\n%s", keel_error(), cases[i].message);
        end(&config);
    }
    keel_affinity_config config;
    assert_int_equal(read_text("context: {mode: 0}\n", &config), KEEL_ERR_CONFIG);
    end(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_and_places),
        cmocka_unit_test(test_nothing_is_fine),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
