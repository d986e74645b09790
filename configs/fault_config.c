#include "configs/fault_config.h"

#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define MANY 0x1p53

enum { UNSET = -1 };

// Keys beside kind, as bits.
enum {
    STEP = 1 << 0,
    STEPS = 1 << 1,
    RANK = 1 << 2,
    SITE = 1 << 3,
    QUANTITY = 1 << 4,
    INDEX = 1 << 5,
    BIT = 1 << 6,
    LAYER = 1 << 7,
    BYTES = 1 << 8,
    FACTOR = 1 << 9,
    SHARE = 1 << 10,
    SECONDS = 1 << 11,
};
static const char *const keys[] = {"step", "steps", "rank",  "site",   "quantity", "index",
                                   "bit",  "layer", "bytes", "factor", "share",    "seconds"};

static const char *const names[KEEL_FAULT_KIND_COUNT + 1] = {
    "nan",       "garbage_batch", "corrupt_data", "repeat_batch", "learning_rate", "bit_flip",     "replica_skip",
    "straggler", "memory_leak",   "dead_layer",   "fake_float32", "initial_scale", "query_growth", NULL};

static const struct {
    unsigned required, optional;
    double steps; // unless set; MANY: to the end of the run
} kinds[KEEL_FAULT_KIND_COUNT] = {
    [KEEL_FAULT_NAN] = {STEP | SITE | QUANTITY, STEPS | RANK | INDEX, 1},
    [KEEL_FAULT_GARBAGE_BATCH] = {STEP, STEPS | RANK | SHARE, 1},
    [KEEL_FAULT_CORRUPT_DATA] = {STEP, STEPS | RANK | SHARE, MANY},
    [KEEL_FAULT_REPEAT_BATCH] = {STEP, STEPS, MANY},
    [KEEL_FAULT_LEARNING_RATE] = {STEP | FACTOR, STEPS, 1},
    [KEEL_FAULT_BIT_FLIP] = {STEP | SITE | BIT, RANK | INDEX, 1},
    [KEEL_FAULT_REPLICA_SKIP] = {STEP | RANK, STEPS, 1},
    [KEEL_FAULT_STRAGGLER] = {STEP | RANK | SECONDS, STEPS, MANY},
    [KEEL_FAULT_MEMORY_LEAK] = {STEP | BYTES, STEPS | RANK, MANY},
    [KEEL_FAULT_DEAD_LAYER] = {STEP | SITE, STEPS | RANK, MANY},
    [KEEL_FAULT_FAKE_FLOAT32] = {STEP | SITE, STEPS, MANY},
    [KEEL_FAULT_INITIAL_SCALE] = {SITE | FACTOR, 0, 1},
    [KEEL_FAULT_QUERY_GROWTH] = {STEP | LAYER | FACTOR, STEPS, MANY},
};

static const keel_yaml_field fields[] = {
    KEEL_YAML_ROW_ENUM(keel_fault_config, kind, names),
    KEEL_YAML_ROW_INT(keel_fault_config, step, 1, MANY),
    KEEL_YAML_ROW_INT(keel_fault_config, steps, 1, MANY),
    KEEL_YAML_ROW_INT(keel_fault_config, rank, -1, 1 << 20),
    KEEL_YAML_ROW_STRING(keel_fault_config, site),
    KEEL_YAML_ROW_STRING(keel_fault_config, quantity),
    KEEL_YAML_ROW_INT(keel_fault_config, index, 0, MANY),
    KEEL_YAML_ROW_INT(keel_fault_config, bit, 0, 31),
    KEEL_YAML_ROW_INT(keel_fault_config, layer, 0, 10000),
    KEEL_YAML_ROW_INT(keel_fault_config, bytes, 1, MANY),
    KEEL_YAML_ROW_DOUBLE(keel_fault_config, factor, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_fault_config, share, KEEL_YAML_POSITIVE, 1),
    KEEL_YAML_ROW_DOUBLE(keel_fault_config, seconds, KEEL_YAML_POSITIVE, 3600),
};

static keel_status check_keys(const keel_fault_config *fault) {
    for (size_t k = 0; k < COUNT(keys); k++) {
        const unsigned key = 1u << k;
        const keel_yaml_node *found = keel_yaml_get(fault->node, keys[k]);
        if (!found && kinds[fault->kind].required & key)
            return keel_yaml_fail_key(fault->node, keys[k], "missing, fault %s needs it", names[fault->kind]);
        if (found && !((kinds[fault->kind].required | kinds[fault->kind].optional) & key))
            return keel_yaml_fail(found, "fault %s has no such key", names[fault->kind]);
    }
    return KEEL_OK;
}

static keel_status read_one(const keel_yaml_node *node, keel_fault_config *fault) {
    *fault = (keel_fault_config){
        .kind = UNSET, .step = 1, .steps = UNSET, .rank = -1, .factor = 1, .share = 1, .node = node};
    keel_status status = keel_yaml_read(node, fields, COUNT(fields), fault);
    if (status) return status;
    if (fault->kind == UNSET) return keel_yaml_fail_key(node, "kind", "missing, such as %s", names[0]);
    status = check_keys(fault);
    if (fault->steps == UNSET) fault->steps = (int64_t)kinds[fault->kind].steps;
    if (!status && fault->kind == KEEL_FAULT_REPEAT_BATCH && fault->step < 2)
        return keel_yaml_fail(keel_yaml_get(node, "step"),
                              "must be at least 2: the batch of the step before is repeated");
    return status;
}

keel_status keel_fault_configs_read(const keel_yaml_node *list, keel_fault_config **faults, size_t *count) {
    const size_t size = keel_yaml_size(list);
    *faults = NULL;
    *count = 0;
    if (keel_yaml_kind_of(list) == KEEL_YAML_NULL) return KEEL_OK;
    if (keel_yaml_kind_of(list) != KEEL_YAML_LIST) return keel_yaml_fail_kind(list, "a list of faults");
    if (size == 0) return KEEL_OK;
    keel_fault_config *made = calloc(size, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "trainer configuration: out of memory");
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < size; i++) status = read_one(keel_yaml_item(list, i), &made[i]);
    if (status) {
        keel_fault_configs_free(made, size);
        return status;
    }
    *faults = made;
    *count = size;
    return KEEL_OK;
}

void keel_fault_configs_free(keel_fault_config *faults, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(faults[i].site);
        free(faults[i].quantity);
    }
    free(faults);
}

bool keel_fault_due(const keel_fault_config *fault, uint64_t step) {
    return step >= (uint64_t)fault->step && step - (uint64_t)fault->step < (uint64_t)fault->steps;
}

bool keel_fault_concerns(const keel_fault_config *fault, uint32_t rank) {
    return fault->rank < 0 || (uint64_t)fault->rank == rank;
}
