#include "configs/monitor_config.h"

#include <stdlib.h>
#include <string.h>

#include "configs/train_config.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const keel_yaml_field top_fields[] = {KEEL_YAML_ROW_SECTION(monitor), KEEL_TRAIN_SECTION_ROWS};

static const keel_yaml_field monitor_fields[] = {
    KEEL_YAML_ROW_BOOL(keel_monitor_config, enabled),
    KEEL_YAML_ROW_STRING(keel_monitor_config, output),
    KEEL_YAML_ROW_SECTION(select),
    KEEL_YAML_ROW_INT(keel_monitor_config, queue_depth, 1, 1024),
    KEEL_YAML_ROW_INT(keel_monitor_config, segment_bytes, 1 << 16, 0x1p50),
    KEEL_YAML_ROW_DOUBLE(keel_monitor_config, merge_timeout_seconds, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_monitor_config, hang_timeout_seconds, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_SECTION(rules),
    KEEL_YAML_ROW_SECTION(alerts),
    KEEL_YAML_ROW_BOOL(keel_monitor_config, stop_on_critical),
};

static const keel_yaml_field select_fields[] = {
    KEEL_YAML_ROW_SECTION(quantities),
    KEEL_YAML_ROW_STRING(keel_select_config, sites),
    KEEL_YAML_ROW_SECTION(ops),
    KEEL_YAML_ROW_INT(keel_select_config, start, 1, 0x1p53),
    KEEL_YAML_ROW_INT(keel_select_config, every, 0, 0x1p53),
    KEEL_YAML_ROW_INT(keel_select_config, count, 0, 0x1p53),
    KEEL_YAML_ROW_DOUBLE(keel_select_config, eps, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_BOOL(keel_select_config, per_micro_batch),
    KEEL_YAML_ROW_SECTION(ranks),
    KEEL_YAML_ROW_BOOL(keel_select_config, enabled),
};

static const char *const severities[] = {"warning", "critical", NULL};
enum { FIRST_SEVERITY = 1 };

typedef struct alerts {
    bool log;
    int severity; // index into severities
} alerts;

static const keel_yaml_field alerts_fields[] = {
    KEEL_YAML_ROW_BOOL(alerts, log),
    {.key = "min_severity", .type = KEEL_YAML_ENUM, .offset = offsetof(alerts, severity), .names = severities},
    KEEL_YAML_ROW_SECTION(exec),
};

static const keel_yaml_field exec_fields[] = {
    KEEL_YAML_ROW_SECTION(command),
    {.key = "timeout_seconds",
     .type = KEEL_YAML_DOUBLE,
     .offset = offsetof(keel_monitor_config, exec_timeout_seconds),
     .min = KEEL_YAML_POSITIVE,
     .max = 3600},
};

static keel_status no_memory(void) {
    keel_fail(KEEL_ERR_MEMORY, "monitor configuration: out of memory");
    return KEEL_ERR_MEMORY;
}

// Replaces the list by a copy of SIZE texts.
static keel_status set_strings(const char *const *from, size_t size, char ***list, size_t *count) {
    char **strings = calloc(size + 1, sizeof *strings);
    if (!strings) return no_memory();
    for (size_t i = 0; i < size; i++) {
        strings[i] = strdup(from[i]);
        if (!strings[i]) {
            keel_yaml_free_strings(strings);
            return no_memory();
        }
    }
    keel_yaml_free_strings(*list);
    *list = strings;
    *count = size;
    return KEEL_OK;
}

static const char *const default_ops[] = {"norm", "max", "min", "zeros"};

static keel_status init_select(keel_select_config *select) {
    *select = (keel_select_config){.start = 1, .every = 1, .eps = 1e-8, .enabled = true};
    keel_status status = set_strings(NULL, 0, &select->quantities, &select->quantity_count);
    if (!status) status = set_strings(default_ops, COUNT(default_ops), &select->ops, &select->op_count);
    return status;
}

static keel_status replace_strings(const keel_yaml_node *node, char ***list, size_t *count) {
    char **read = NULL;
    keel_status status = keel_yaml_to_strings(node, &read, count);
    if (status) return status;
    keel_yaml_free_strings(*list);
    *list = read;
    return KEEL_OK;
}

static int compare_ranks(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

// `all`, or a list of ranks.
static keel_status read_ranks(const keel_yaml_node *node, keel_select_config *select) {
    if (keel_yaml_kind_of(node) != KEEL_YAML_LIST) {
        if (!keel_yaml_text(node) || strcmp(keel_yaml_text(node), "all") != 0)
            return keel_yaml_fail_kind(node, "all or a list of ranks");
        select->all_ranks = true;
        return KEEL_OK;
    }
    const size_t count = keel_yaml_size(node);
    if (count == 0) return keel_yaml_fail(node, "an empty list: leave the key out for none");
    if (!(select->ranks = calloc(count, sizeof *select->ranks))) return no_memory();
    for (size_t i = 0; i < count; i++) {
        const keel_status status = keel_yaml_to_int(keel_yaml_item(node, i), &select->ranks[i]);
        if (status) return status;
        if (select->ranks[i] < 0 || select->ranks[i] > INT32_MAX)
            return keel_yaml_fail(keel_yaml_item(node, i), "not a rank");
    }
    qsort(select->ranks, count, sizeof *select->ranks, compare_ranks);
    select->rank_count = count;
    return KEEL_OK;
}

static keel_status read_select_entry(const keel_yaml_node *node, keel_select_config *select) {
    keel_status status = init_select(select);
    if (status) return status;
    select->node = node;
    if (keel_yaml_kind_of(node) != KEEL_YAML_MAP)
        return keel_yaml_fail_kind(node, "a mapping with quantities, sites, ops, every, ...");
    status = keel_yaml_read(node, select_fields, COUNT(select_fields), select);
    if (status) return status;

    const keel_yaml_node *quantities = keel_yaml_get(node, "quantities");
    if (quantities) {
        status = replace_strings(quantities, &select->quantities, &select->quantity_count);
        if (status) return status;
        // An empty list means "all" in the struct, and nothing to whoever writes it.
        if (select->quantity_count == 0) return keel_yaml_fail(quantities, "an empty list: leave the key out for all");
    }
    const keel_yaml_node *ranks = keel_yaml_get(node, "ranks");
    if (ranks && (status = read_ranks(ranks, select))) return status;
    const keel_yaml_node *ops = keel_yaml_get(node, "ops");
    return ops ? replace_strings(ops, &select->ops, &select->op_count) : KEEL_OK;
}

static keel_status allocate_select(keel_monitor_config *config, size_t count) {
    config->select = calloc(count ? count : 1, sizeof *config->select);
    if (!config->select) return no_memory();
    config->select_count = count;
    return KEEL_OK;
}

static keel_status read_select(const keel_yaml_node *list, keel_monitor_config *config) {
    if (keel_yaml_kind_of(list) != KEEL_YAML_LIST) return keel_yaml_fail_kind(list, "a list of selections");
    size_t count = keel_yaml_size(list);
    keel_status status = allocate_select(config, count);
    for (size_t i = 0; !status && i < count; i++)
        status = read_select_entry(keel_yaml_item(list, i), &config->select[i]);
    return status;
}

// As configs/monitor.yaml: flags on everything at every step, the usual four of what the optimizer sees and does now
// and then.
static keel_status default_select(keel_monitor_config *config) {
    static const char *const quantities[] = {"weight", "grad_reduced", "update"};
    keel_status status = allocate_select(config, 2);
    for (size_t i = 0; !status && i < 2; i++) status = init_select(&config->select[i]);
    if (status) return status;

    keel_select_config *flags = &config->select[0], *usual = &config->select[1];
    usual->every = 5;
    status = set_strings(NULL, 0, &flags->ops, &flags->op_count);
    if (!status) status = set_strings(quantities, COUNT(quantities), &usual->quantities, &usual->quantity_count);
    return status;
}

static keel_status read_param(const keel_yaml_node *node, const char *rule, const char *key, keel_rule_param *param) {
    bool flag = false;
    double value = 0;
    keel_status status = keel_yaml_to_double(node, &value);
    if (status) {
        status = keel_yaml_to_bool(node, &flag);
        if (status) return keel_yaml_fail_kind(node, "a number, true or false");
        value = flag ? 1 : 0;
    }
    char *names[2] = {strdup(rule), strdup(key)};
    if (!names[0] || !names[1]) {
        free(names[0]);
        free(names[1]);
        return no_memory();
    }
    *param = (keel_rule_param){.rule = names[0], .key = names[1], .value = value, .node = node};
    return KEEL_OK;
}

static keel_status read_rules(const keel_yaml_node *rules, keel_monitor_config *config) {
    if (keel_yaml_kind_of(rules) == KEEL_YAML_NULL) return KEEL_OK;
    if (keel_yaml_kind_of(rules) != KEEL_YAML_MAP) return keel_yaml_fail_kind(rules, "a mapping of rules");
    size_t count = 0;
    for (size_t i = 0; i < keel_yaml_size(rules); i++) {
        const keel_yaml_node *rule = keel_yaml_item(rules, i);
        keel_yaml_kind kind = keel_yaml_kind_of(rule);
        if (kind != KEEL_YAML_MAP && kind != KEEL_YAML_NULL)
            return keel_yaml_fail_kind(rule, "a mapping of the rule's parameters");
        count += keel_yaml_size(rule);
    }
    if (count == 0) return KEEL_OK;
    config->params = calloc(count, sizeof *config->params);
    if (!config->params) return no_memory();
    for (size_t i = 0; i < keel_yaml_size(rules); i++) {
        const keel_yaml_node *rule = keel_yaml_item(rules, i);
        for (size_t j = 0; j < keel_yaml_size(rule); j++) {
            keel_status status = read_param(keel_yaml_item(rule, j), keel_yaml_key(rules, i), keel_yaml_key(rule, j),
                                            &config->params[config->param_count]);
            if (status) return status;
            config->param_count++;
        }
    }
    return KEEL_OK;
}

static keel_status read_exec(const keel_yaml_node *exec, keel_monitor_config *config) {
    keel_status status = keel_yaml_read(exec, exec_fields, COUNT(exec_fields), config);
    if (status || keel_yaml_kind_of(exec) == KEEL_YAML_NULL) return status;
    const keel_yaml_node *command = keel_yaml_get(exec, "command");
    if (!command) return keel_yaml_fail_key(exec, "command", "missing: a list of the program and its arguments");
    // A text would look like a shell's line, which this is not.
    if (keel_yaml_kind_of(command) != KEEL_YAML_LIST)
        return keel_yaml_fail_kind(command, "a list of the program and its arguments (no shell is used)");
    if (keel_yaml_size(command) == 0) return keel_yaml_fail(command, "an empty list: a program is needed");
    size_t count = 0;
    status = keel_yaml_to_strings(command, &config->exec_argv, &count);
    if (!status && config->exec_argv[0][0] == '\0')
        status = keel_yaml_fail(keel_yaml_item(command, 0), "a program without a name");
    return status;
}

static keel_status read_alerts(const keel_yaml_node *node, keel_monitor_config *config) {
    alerts read = {.log = config->alert_log, .severity = config->alert_min_severity - FIRST_SEVERITY};
    keel_status status = keel_yaml_read(node, alerts_fields, COUNT(alerts_fields), &read);
    if (status) return status;
    config->alert_log = read.log;
    config->alert_min_severity = read.severity + FIRST_SEVERITY;
    return read_exec(keel_yaml_get(node, "exec"), config);
}

static keel_status read_monitor(const keel_yaml_node *monitor, keel_monitor_config *config) {
    keel_status status = keel_yaml_read(monitor, monitor_fields, COUNT(monitor_fields), config);
    if (status) return status;
    if (config->output && config->output[0] == '\0')
        return keel_yaml_fail(keel_yaml_get(monitor, "output"), "a directory without a name");
    const keel_yaml_node *select = keel_yaml_get(monitor, "select");
    status = select ? read_select(select, config) : default_select(config);
    if (!status) status = read_rules(keel_yaml_get(monitor, "rules"), config);
    if (!status) status = read_alerts(keel_yaml_get(monitor, "alerts"), config);
    return status;
}

keel_status keel_monitor_config_section(const keel_yaml_node *monitor, keel_monitor_config **config) {
    keel_monitor_config *made = malloc(sizeof *made);
    if (!made) return no_memory();
    *made = (keel_monitor_config){
        .enabled = true,
        .queue_depth = 8,
        .segment_bytes = 1 << 30,
        .merge_timeout_seconds = 300,
        .hang_timeout_seconds = 1800,
        .alert_log = true,
        .exec_timeout_seconds = 10,
        .alert_min_severity = FIRST_SEVERITY,
    };
    keel_status status = read_monitor(monitor, made);
    if (status) {
        keel_monitor_config_free(made);
        return status;
    }
    *config = made;
    return KEEL_OK;
}

keel_status keel_monitor_config_read(keel_yaml *doc, keel_monitor_config **config) {
    keel_monitor_config *made = NULL;
    const keel_yaml_node *root = keel_yaml_root(doc);
    const keel_yaml_node *monitor = keel_yaml_get(root, "monitor");
    keel_status status = keel_yaml_read(root, top_fields, COUNT(top_fields), NULL);
    if (!status && root && !monitor) status = keel_yaml_fail_key(root, "monitor", "missing");
    if (!status) status = keel_monitor_config_section(monitor, &made);
    if (status) {
        keel_yaml_free(doc);
        return status;
    }
    made->doc = doc;
    *config = made;
    return KEEL_OK;
}

static keel_status apply_override(keel_yaml *doc, const char *assignment, size_t number) {
    static const char key[] = "monitor";
    const char *rest = assignment + sizeof key - 1;
    if (strncmp(assignment, key, sizeof key - 1) != 0 || (*rest != '.' && *rest != '='))
        return keel_fail(KEEL_ERR_CONFIG, "--set:%zu:1: %.100s: not monitor.KEY=VALUE", number, assignment);
    return keel_yaml_set(doc, assignment);
}

keel_status keel_monitor_config_load(const char *path, const char *const *overrides, size_t count,
                                     keel_monitor_config **config) {
    keel_yaml *doc = NULL;
    keel_status status = path ? keel_yaml_load(path, &doc) : keel_yaml_parse("built-in defaults", "", 0, &doc);
    for (size_t i = 0; !status && i < count; i++) status = apply_override(doc, overrides[i], i + 1);
    if (status) {
        keel_yaml_free(doc);
        return status;
    }
    return keel_monitor_config_read(doc, config);
}

keel_status keel_monitor_config_default(keel_monitor_config **config) {
    return keel_monitor_config_load(NULL, NULL, 0, config);
}

void keel_monitor_config_free(keel_monitor_config *config) {
    if (!config) return;
    for (size_t i = 0; i < config->select_count; i++) {
        keel_yaml_free_strings(config->select[i].quantities);
        keel_yaml_free_strings(config->select[i].ops);
        free(config->select[i].ranks);
        free(config->select[i].sites);
    }
    free(config->select);
    for (size_t i = 0; i < config->param_count; i++) {
        free(config->params[i].rule);
        free(config->params[i].key);
    }
    free(config->params);
    keel_yaml_free_strings(config->exec_argv);
    free(config->output);
    keel_yaml_free(config->doc);
    free(config);
}
