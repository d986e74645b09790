#include "configs/affinity_config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const keel_yaml_field context_fields[] = {KEEL_YAML_ROW_SECTION(affinity_config)};
static const keel_yaml_field device_fields[] = {KEEL_YAML_ROW_SECTION(affinity_cpu_list),
                                                KEEL_YAML_ROW_SECTION(module_to_cpu_dict)};
static const keel_yaml_field module_fields[] = {KEEL_YAML_ROW_SECTION(main),    KEEL_YAML_ROW_SECTION(worker),
                                                KEEL_YAML_ROW_SECTION(writer),  KEEL_YAML_ROW_SECTION(data),
                                                KEEL_YAML_ROW_SECTION(runtime), KEEL_YAML_ROW_SECTION(minddata)};

static const char *const module_names[] = {
    [KEEL_CPU_MAIN] = "main", [KEEL_CPU_WORKER] = "worker", [KEEL_CPU_WRITER] = "writer", [KEEL_CPU_DATA] = "data"};
static const char *const other_names[KEEL_CPU_MODULE_COUNT] = {
    [KEEL_CPU_WORKER] = "runtime", [KEEL_CPU_DATA] = "minddata"};

const char *keel_cpu_module_name(keel_cpu_module module) {
    return module_names[module];
}

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "trainer configuration: out of memory");
}

static bool has(const keel_cpu_list *list, unsigned cpu) {
    for (size_t i = 0; i < list->count; i++)
        if (list->cpus[i] == cpu) return true;
    return false;
}

static bool parse_number(const char **at, unsigned *value) {
    if (!isdigit((unsigned char)**at)) return false;
    char *end;
    errno = 0;
    const unsigned long read = strtoul(*at, &end, 10);
    *at = end;
    *value = (unsigned)read;
    return !errno && read < KEEL_CPUS_MAX;
}

// "8-11" or "8".
static keel_status add_range(const keel_yaml_node *node, keel_cpu_list *list) {
    const char *text = keel_yaml_text(node), *at = text;
    unsigned first = 0, last;
    if (!text) return keel_yaml_fail_kind(node, "a range of processors, such as \"0-3\"");
    bool good = parse_number(&at, &first);
    last = first;
    if (good && *at == '-') {
        at++;
        good = parse_number(&at, &last);
    }
    if (!good || *at)
        return keel_yaml_fail(node, "expected a range of processors below %d, such as \"0-3\", found \"%.40s\"",
                              KEEL_CPUS_MAX, text);
    if (first > last) return keel_yaml_fail(node, "the range %.40s ends before it begins", text);
    for (unsigned cpu = first; cpu <= last; cpu++) {
        if (has(list, cpu)) return keel_yaml_fail(node, "processor %u is twice in the list", cpu);
        list->cpus[list->count++] = (uint16_t)cpu;
    }
    return KEEL_OK;
}

static keel_status read_cpus(const keel_yaml_node *node, keel_cpu_list *list) {
    if (keel_yaml_kind_of(node) != KEEL_YAML_LIST)
        return keel_yaml_fail_kind(node, "a list of ranges of processors, such as [\"0-3\", \"8-11\"]");
    if (keel_yaml_size(node) == 0) return keel_yaml_fail(node, "an empty list: leave the device out for no binding");
    list->cpus = calloc(KEEL_CPUS_MAX, sizeof *list->cpus);
    if (!list->cpus) return no_memory();
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < keel_yaml_size(node); i++) status = add_range(keel_yaml_item(node, i), list);
    return status;
}

static keel_status read_module(const keel_yaml_node *node, const keel_cpu_list *all, keel_cpu_list *list) {
    if (keel_yaml_kind_of(node) != KEEL_YAML_LIST)
        return keel_yaml_fail_kind(node, "a list of places in affinity_cpu_list, such as [0, 1]");
    const size_t size = keel_yaml_size(node);
    if (size == 0) return keel_yaml_fail(node, "an empty list: leave the module out for all processors of the device");
    list->cpus = calloc(size, sizeof *list->cpus);
    if (!list->cpus) return no_memory();
    for (size_t i = 0; i < size; i++) {
        const keel_yaml_node *item = keel_yaml_item(node, i);
        int64_t place;
        const keel_status status = keel_yaml_to_int(item, &place);
        if (status) return status;
        if (place < 0 || (size_t)place >= all->count)
            return keel_yaml_fail(item, "%lld is no place in affinity_cpu_list, which has %zu processor%s (0 to %zu)",
                                  (long long)place, all->count, all->count == 1 ? "" : "s", all->count - 1);
        if (has(list, all->cpus[place]))
            return keel_yaml_fail(item, "place %lld is twice in the list", (long long)place);
        list->cpus[list->count++] = all->cpus[place];
    }
    return KEEL_OK;
}

static keel_status read_modules(const keel_yaml_node *node, keel_device_affinity *device) {
    keel_status status = keel_yaml_read(node, module_fields, COUNT(module_fields), NULL);
    for (int m = 0; !status && m < KEEL_CPU_MODULE_COUNT; m++) {
        const keel_yaml_node *own = keel_yaml_get(node, module_names[m]);
        const keel_yaml_node *other = other_names[m] ? keel_yaml_get(node, other_names[m]) : NULL;
        if (own && other) return keel_yaml_fail(other, "the same as %s, which is given too", module_names[m]);
        if (own || other) status = read_module(own ? own : other, &device->all, &device->modules[m]);
    }
    return status;
}

static keel_status read_device(const keel_yaml_node *node, const char *key, keel_device_affinity *device) {
    static const char prefix[] = "device_";
    const char *at = key + sizeof prefix - 1;
    unsigned number = 0;
    if (strncmp(key, prefix, sizeof prefix - 1) != 0 || !parse_number(&at, &number) || *at)
        return keel_yaml_fail(node, "expected device_X with X the rank's number on its node, found %.40s", key);
    device->device = number;
    if (keel_yaml_kind_of(node) != KEEL_YAML_MAP)
        return keel_yaml_fail_kind(node, "a mapping with affinity_cpu_list and module_to_cpu_dict");
    keel_status status = keel_yaml_read(node, device_fields, COUNT(device_fields), NULL);
    device->node = keel_yaml_get(node, "affinity_cpu_list");
    if (!status && !device->node) return keel_yaml_fail_key(node, "affinity_cpu_list", "missing");
    if (!status) status = read_cpus(device->node, &device->all);
    const keel_yaml_node *modules = keel_yaml_get(node, "module_to_cpu_dict");
    return status || keel_yaml_kind_of(modules) == KEEL_YAML_NULL ? status : read_modules(modules, device);
}

// All devices are of one node, where no two ranks shall take a processor from one another.
static keel_status check_apart(const keel_affinity_config *config, size_t last) {
    const keel_device_affinity *device = &config->devices[last];
    for (size_t other = 0; other < last; other++) {
        if (config->devices[other].device == device->device)
            return keel_yaml_fail(device->node, "device %lld is configured twice", (long long)device->device);
        for (size_t i = 0; i < device->all.count; i++)
            if (has(&config->devices[other].all, device->all.cpus[i]))
                return keel_yaml_fail(device->node, "processor %u is device_%lld's already", device->all.cpus[i],
                                      (long long)config->devices[other].device);
    }
    return KEEL_OK;
}

keel_status keel_affinity_config_read(const keel_yaml_node *node, keel_affinity_config *config) {
    keel_status status = keel_yaml_read(node, context_fields, COUNT(context_fields), NULL);
    const keel_yaml_node *devices = keel_yaml_get(node, "affinity_config");
    if (status || keel_yaml_kind_of(devices) == KEEL_YAML_NULL) return status;
    if (keel_yaml_kind_of(devices) != KEEL_YAML_MAP)
        return keel_yaml_fail_kind(devices, "a mapping of device_0, device_1, ...");
    const size_t count = keel_yaml_size(devices);
    config->devices = calloc(count + 1, sizeof *config->devices);
    if (!config->devices) return no_memory();
    config->count = count;
    for (size_t i = 0; !status && i < count; i++) {
        status = read_device(keel_yaml_item(devices, i), keel_yaml_key(devices, i), &config->devices[i]);
        if (!status) status = check_apart(config, i);
    }
    return status;
}

void keel_affinity_config_free(keel_affinity_config *config) {
    for (size_t i = 0; i < config->count; i++) {
        free(config->devices[i].all.cpus);
        for (int m = 0; m < KEEL_CPU_MODULE_COUNT; m++) free(config->devices[i].modules[m].cpus);
    }
    free(config->devices);
    *config = (keel_affinity_config){0};
}

const keel_device_affinity *keel_affinity_config_of(const keel_affinity_config *config, int64_t device) {
    for (size_t i = 0; i < config->count; i++)
        if (config->devices[i].device == device) return &config->devices[i];
    return NULL;
}
