#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "configs/monitor_config.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define PRESET(name) KEEL_SOURCE_DIR "/configs/" name

static keel_monitor_config *read_text(const char *text) {
    keel_yaml *doc = NULL;
    keel_monitor_config *config = NULL;
    if (keel_yaml_parse("m.yaml", text, strlen(text), &doc) || keel_monitor_config_read(doc, &config))
        fail_msg("%s", keel_error());
    return config;
}

static void assert_strings(char **list, size_t count, const char *expected) {
    char joined[256] = "";
    for (size_t i = 0; i < count; i++) {
        strcat(joined, list[i]);
        strcat(joined, " ");
    }
    assert_string_equal(joined, expected);
    assert_null(list[count]);
}

static void assert_select_equal(const keel_select_config *a, const keel_select_config *b) {
    assert_int_equal(a->quantity_count, b->quantity_count);
    for (size_t i = 0; i < a->quantity_count; i++) assert_string_equal(a->quantities[i], b->quantities[i]);
    assert_int_equal(a->op_count, b->op_count);
    for (size_t i = 0; i < a->op_count; i++) assert_string_equal(a->ops[i], b->ops[i]);
    assert_true((a->sites == NULL) == (b->sites == NULL));
    assert_int_equal(a->start, b->start);
    assert_int_equal(a->every, b->every);
    assert_int_equal(a->count, b->count);
    assert_true(a->eps == b->eps);
    assert_int_equal(a->per_micro_batch, b->per_micro_batch);
    assert_int_equal(a->all_ranks, b->all_ranks);
    assert_int_equal(a->rank_count, b->rank_count);
    assert_int_equal(a->enabled, b->enabled);
}

static void test_default_is_the_shipped_preset(void **state) {
    (void)state;
    keel_monitor_config *built_in = NULL, *preset = NULL;
    assert_int_equal(keel_monitor_config_default(&built_in), KEEL_OK);
    if (keel_monitor_config_load(PRESET("monitor.yaml"), NULL, 0, &preset)) fail_msg("%s", keel_error());
    assert_int_equal(built_in->enabled, preset->enabled);
    assert_null(built_in->output);
    assert_null(preset->output);
    assert_int_equal(built_in->select_count, preset->select_count);
    for (size_t i = 0; i < preset->select_count; i++) {
        assert_select_equal(&built_in->select[i], &preset->select[i]);
        assert_null(built_in->select[i].node);
        assert_non_null(preset->select[i].node);
    }
    assert_int_equal(built_in->queue_depth, preset->queue_depth);
    assert_int_equal(built_in->segment_bytes, preset->segment_bytes);
    assert_true(built_in->merge_timeout_seconds == preset->merge_timeout_seconds);
    assert_int_equal(preset->param_count, 0);
    assert_int_equal(built_in->alert_log, preset->alert_log);
    assert_int_equal(built_in->alert_min_severity, preset->alert_min_severity);
    assert_null(preset->exec_argv);
    assert_int_equal(built_in->stop_on_critical, preset->stop_on_critical);
    keel_monitor_config_free(built_in);
    keel_monitor_config_free(preset);
}

static void test_full_preset(void **state) {
    (void)state;
    keel_monitor_config *config = NULL;
    if (keel_monitor_config_load(PRESET("monitor-full.yaml"), NULL, 0, &config)) fail_msg("%s", keel_error());
    for (size_t i = 0; i < config->select_count; i++) {
        assert_strings(config->select[i].ops, config->select[i].op_count, "all ");
        assert_int_equal(config->select[i].every, 1);
    }
    assert_int_equal(config->select[0].quantity_count, 0);
    assert_null(config->select[0].sites);
    keel_monitor_config_free(config);
}

static void test_every_key(void **state) {
    (void)state;
    keel_monitor_config *config =
        read_text("monitor:\n"
                  "  enabled: false\n"
                  "  output: runs/x\n"
                  "  queue_depth: 3\n"
                  "  segment_bytes: 1048576\n"
                  "  merge_timeout_seconds: 2.5\n"
                  "  select:\n"
                  "    - quantities: [weight, update]\n"
                  "      sites: 'layers\\.0\\.'\n"
                  "      ops: [norm, mean]\n"
                  "      start: 2\n"
                  "      every: 10\n"
                  "      count: 5\n"
                  "      eps: 1.0e-6\n"
                  "      per_micro_batch: true\n"
                  "      enabled: false\n"
                  "    - {quantities: activation, ops: [], ranks: [7, 0, 3]}\n"
                  "    - {ops: all, every: 0, ranks: all}\n"
                  "    - {}\n"
                  "  rules: {loss_spike: {z: 8, enabled: false}, plateau: , hang: {min_seconds: "
                  "5, on: yes}}\n"
                  "  alerts: {log: false, min_severity: critical,\n"
                  "    exec: {command: [/bin/mail, -s, trouble], timeout_seconds: 2}}\n"
                  "  stop_on_critical: true\n");
    assert_false(config->enabled);
    assert_string_equal(config->output, "runs/x");
    assert_int_equal(config->queue_depth, 3);
    assert_int_equal(config->segment_bytes, 1 << 20);
    assert_true(config->merge_timeout_seconds == 2.5);
    assert_int_equal(config->select_count, 4);
    const keel_select_config *s = config->select;
    assert_strings(s[0].quantities, s[0].quantity_count, "weight update ");
    assert_string_equal(s[0].sites, "layers\\.0\\.");
    assert_strings(s[0].ops, s[0].op_count, "norm mean ");
    assert_int_equal(s[0].start, 2);
    assert_int_equal(s[0].every, 10);
    assert_int_equal(s[0].count, 5);
    assert_true(s[0].eps == 1e-6);
    assert_true(s[0].per_micro_batch);
    assert_false(s[0].enabled);
    assert_strings(s[1].quantities, s[1].quantity_count, "activation ");
    assert_strings(s[1].ops, s[1].op_count, "");
    assert_int_equal(s[1].rank_count, 3);
    assert_true(s[1].ranks[0] == 0 && s[1].ranks[1] == 3 && s[1].ranks[2] == 7 && !s[1].all_ranks);
    assert_true(s[2].all_ranks && s[2].rank_count == 0 && !s[0].all_ranks && s[0].rank_count == 0);
    assert_strings(s[2].ops, s[2].op_count, "all ");
    assert_int_equal(s[2].every, 0);
    assert_strings(s[3].ops, s[3].op_count, "norm max min zeros ");
    assert_int_equal(s[3].start, 1);
    assert_int_equal(s[3].every, 1);
    assert_int_equal(s[3].count, 0);
    assert_true(s[3].eps == 1e-8);
    assert_true(s[3].enabled);
    // The nodes are where consumers put their own errors.
    assert_int_equal(keel_yaml_fail(keel_yaml_item(keel_yaml_get(s[0].node, "quantities"), 1), "odd"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "m.yaml:8:28: monitor.select.0.quantities.1: odd");

    static const struct {
        const char *rule, *key;
        double value;
    } params[] = {{"loss_spike", "z", 8}, {"loss_spike", "enabled", 0}, {"hang", "min_seconds", 5}, {"hang", "on", 1}};
    assert_int_equal(config->param_count, COUNT(params));
    for (size_t i = 0; i < COUNT(params); i++) {
        assert_string_equal(config->params[i].rule, params[i].rule);
        assert_string_equal(config->params[i].key, params[i].key);
        assert_true(config->params[i].value == params[i].value);
    }
    assert_int_equal(keel_yaml_fail(config->params[2].node, "odd"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "m.yaml:20:78: monitor.rules.hang.min_seconds: odd");

    assert_false(config->alert_log);
    assert_int_equal(config->alert_min_severity, 2);
    assert_strings(config->exec_argv, 3, "/bin/mail -s trouble ");
    assert_true(config->exec_timeout_seconds == 2);
    assert_true(config->stop_on_critical);
    keel_monitor_config_free(config);
}

static void test_nothing_selected(void **state) {
    (void)state;
    keel_monitor_config *config = read_text("monitor: {select: []}\n");
    assert_int_equal(config->select_count, 0);
    keel_monitor_config_free(config);
    config = read_text("monitor:\n");
    assert_int_equal(config->select_count, 2);
    keel_monitor_config_free(config);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"moniter: {}\n", "m.yaml:1:1: moniter: unknown key; nearest known: monitor"},
        {"runner_config: {}\n", "m.yaml:1:1: monitor: missing"},
        {"just text\n", "m.yaml:1:1: expected a mapping, found 'just text'"},
        {"- 1\n", "m.yaml:1:1: expected a mapping, found a list"},
        {"monitor: 3\n", "m.yaml:1:10: monitor: expected a mapping, found '3'"},
        {"monitor:\n  ouput: x\n", "m.yaml:2:3: monitor.ouput: unknown key; nearest known: output"},
        {"monitor:\n  output: ''\n", "m.yaml:2:11: monitor.output: a directory without a name"},
        {"monitor: {queue_depth: 0}\n", "m.yaml:1:24: monitor.queue_depth: must be at least 1, found 0"},
        {"monitor: {queue_depth: 2.5}\n", "m.yaml:1:24: monitor.queue_depth: expected an integer, found '2.5'"},
        {"monitor: {segment_bytes: -1}\n", "m.yaml:1:26: monitor.segment_bytes: must be at least 65536, found -1"},
        {"monitor: {merge_timeout_seconds: .inf}\n",
         "m.yaml:1:34: monitor.merge_timeout_seconds: must be finite, found .inf"},
        {"monitor: {select: {ops: all}}\n",
         "m.yaml:1:19: monitor.select: expected a list of selections, found a mapping"},
        {"monitor: {select: [all]}\n",
         "m.yaml:1:20: monitor.select.0: expected a mapping with quantities, sites, ops, every, ..., found 'all'"},
        {"monitor: {select: [{op: all}]}\n", "m.yaml:1:21: monitor.select.0.op: unknown key; nearest known: ops"},
        {"monitor: {select: [{every: -5}]}\n", "m.yaml:1:28: monitor.select.0.every: must be at least 0, found -5"},
        {"monitor: {select: [{start: 0}]}\n", "m.yaml:1:28: monitor.select.0.start: must be at least 1, found 0"},
        {"monitor: {select: [{quantities: []}]}\n",
         "m.yaml:1:33: monitor.select.0.quantities: an empty list: leave the key out for all"},
        {"monitor: {select: [{ranks: some}]}\n",
         "m.yaml:1:28: monitor.select.0.ranks: expected all or a list of ranks, found 'some'"},
        {"monitor: {select: [{ranks: []}]}\n",
         "m.yaml:1:28: monitor.select.0.ranks: an empty list: leave the key out for none"},
        {"monitor: {select: [{ranks: [0, -1]}]}\n", "m.yaml:1:32: monitor.select.0.ranks.1: not a rank"},
        {"monitor: {select: [{ops: {a: 1}}]}\n",
         "m.yaml:1:26: monitor.select.0.ops: expected a list of texts, found a mapping"},
        {"monitor: {rules: [a]}\n", "m.yaml:1:18: monitor.rules: expected a mapping of rules, found a list"},
        {"monitor: {rules: {plateau: 3}}\n",
         "m.yaml:1:28: monitor.rules.plateau: expected a mapping of the rule's parameters, found '3'"},
        {"monitor: {rules: {plateau: {z: many}}}\n",
         "m.yaml:1:32: monitor.rules.plateau.z: expected a number, true or false, found 'many'"},
        {"monitor: {rules: {plateau: {z: [1]}}}\n",
         "m.yaml:1:32: monitor.rules.plateau.z: expected a number, true or false, found a list"},
        {"monitor: {alerts: {min_severity: info}}\n",
         "m.yaml:1:34: monitor.alerts.min_severity: unknown value 'info'; nearest known: warning"},
        {"monitor: {alerts: {exec: {}}}\n",
         "m.yaml:1:26: monitor.alerts.exec.command: missing: a list of the program and its arguments"},
        {"monitor: {alerts: {exec: {command: rm -rf x}}}\n",
         "m.yaml:1:36: monitor.alerts.exec.command: expected a list of the program and its arguments (no shell is "
         "used), "
         "found 'rm -rf x'"},
        {"monitor: {alerts: {exec: {command: []}}}\n",
         "m.yaml:1:36: monitor.alerts.exec.command: an empty list: a program is needed"},
        {"monitor: {alerts: {exec: {command: ['']}}}\n",
         "m.yaml:1:37: monitor.alerts.exec.command.0: a program without a name"},
        {"monitor: {alerts: {exec: {command: [a], timeout_seconds: 0}}}\n",
         "m.yaml:1:58: monitor.alerts.exec.timeout_seconds: must be greater than 0, found 0"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        keel_yaml *doc = NULL;
        keel_monitor_config *config = NULL;
        assert_int_equal(keel_yaml_parse("m.yaml", cases[i].text, strlen(cases[i].text), &doc), KEEL_OK);
        assert_int_equal(keel_monitor_config_read(doc, &config), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_null(config);
    }
}

static void test_overrides(void **state) {
    (void)state;
    const char *const good[] = {"monitor.output=runs/y", "monitor.select.1.every=7",
                                "monitor.rules.hang.min_seconds=5"};
    keel_monitor_config *config = NULL;
    if (keel_monitor_config_load(PRESET("monitor.yaml"), good, COUNT(good), &config)) fail_msg("%s", keel_error());
    assert_string_equal(config->output, "runs/y");
    assert_int_equal(config->select[1].every, 7);
    assert_true(config->params[0].value == 5);
    keel_monitor_config_free(config);

    assert_int_equal(keel_monitor_config_load(NULL, good, 1, &config), KEEL_OK);
    assert_string_equal(config->output, "runs/y");
    assert_int_equal(config->select_count, 2);
    keel_monitor_config_free(config);

    static const struct {
        const char *assignment, *message;
    } bad[] = {
        {"runner_config.steps=3", "--set:2:1: runner_config.steps=3: not monitor.KEY=VALUE"},
        {"monitoring.x=3", "--set:2:1: monitoring.x=3: not monitor.KEY=VALUE"},
        {"monitor.ouput=x", "--set:2:9: monitor.ouput: unknown key; nearest known: output"},
        {"monitor.queue_depth=-4", "--set:2:21: monitor.queue_depth: must be at least 1, found -4"},
        {"monitor.select.5.every=1",
         "--set:2:16: monitor.select.5.every: '5' is no item of this list of 2, counted from 0"},
        {"monitor=3", "--set:2:9: monitor: expected a mapping, found '3'"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        const char *const sets[] = {"monitor.enabled=true", bad[i].assignment};
        config = NULL;
        assert_int_equal(keel_monitor_config_load(PRESET("monitor.yaml"), sets, 2, &config), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), bad[i].message);
        assert_null(config);
    }
    assert_int_equal(keel_monitor_config_load("/nonexistent.yaml", NULL, 0, &config), KEEL_ERR_IO);
}

static void test_beside_the_trainer(void **state) {
    (void)state;
    keel_monitor_config *config = read_text("runner_config: {whatever: 1}\nmonitor: {queue_depth: 2}\n");
    assert_int_equal(config->queue_depth, 2);
    keel_monitor_config *section = NULL;
    const keel_yaml_node *node = keel_yaml_get(keel_yaml_root(config->doc), "monitor");
    assert_int_equal(keel_monitor_config_section(node, &section), KEEL_OK);
    assert_int_equal(section->queue_depth, 2);
    assert_null(section->doc);
    keel_monitor_config_free(section);
    keel_monitor_config_free(config);
    keel_monitor_config_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_is_the_shipped_preset),
        cmocka_unit_test(test_full_preset),
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_nothing_selected),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_beside_the_trainer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
