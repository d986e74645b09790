// context.affinity_config of the trainer's YAML: which processors the threads of a rank may use. Keys are those of
// MindSpore Transformers; so are the names of modules where they are the same thing.
//
//     context:
//       affinity_config:
//         device_0:                            # the rank's number on its node
//           affinity_cpu_list: ["0-3", "8-11"]
//           module_to_cpu_dict: {main: [0], worker: [1, 2, 3], writer: [4]}   # places in that list
#ifndef KEEL_CONFIGS_AFFINITY_CONFIG_H
#define KEEL_CONFIGS_AFFINITY_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "configs/yaml.h"

typedef enum keel_cpu_module {
    KEEL_CPU_MAIN,
    KEEL_CPU_WORKER, // OpenMP's and BLAS's threads; "runtime" too
    KEEL_CPU_WRITER, // the monitor's
    KEEL_CPU_DATA,   // what prepares data; "minddata" too
    KEEL_CPU_MODULE_COUNT
} keel_cpu_module;
const char *keel_cpu_module_name(keel_cpu_module module);

enum { KEEL_CPUS_MAX = 1024 }; // as in a cpu_set_t

typedef struct keel_cpu_list {
    uint16_t *cpus; // in the order given; NULL: not given
    size_t count;
} keel_cpu_list;

typedef struct keel_device_affinity {
    int64_t device;
    keel_cpu_list all;
    keel_cpu_list modules[KEEL_CPU_MODULE_COUNT]; // numbers of processors, some of ALL's
    const keel_yaml_node *node;                   // affinity_cpu_list, for error messages
} keel_device_affinity;

typedef struct keel_affinity_config {
    keel_device_affinity *devices;
    size_t count;
} keel_affinity_config;

// NODE: the value of `context`; NULL: nothing. A range that is none, a processor twice in a list or in the lists of two
// devices, a place beyond the list are KEEL_ERR_CONFIG with the place. What of it is filled is to be freed also on
// failure.
keel_status keel_affinity_config_read(const keel_yaml_node *node, keel_affinity_config *config);
void keel_affinity_config_free(keel_affinity_config *config);
// NULL where none is configured for it.
const keel_device_affinity *keel_affinity_config_of(const keel_affinity_config *config, int64_t device);

#endif
