#include "train/parallel/affinity.h"

#include <cblas.h>
#include <errno.h>
#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

// Open MPI says that it bound this process; what the user asked for reaches the process as MCA variables.
static bool bound_by_default(void) {
    static const char *const asked[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                        "OMPI_MCA_hwloc_base_cpu_set",
                                        "OMPI_MCA_hwloc_base_slot_list",
                                        "OMPI_MCA_rmaps_base_mapping_policy",
                                        "OMPI_MCA_rmaps_base_cpus_per_rank",
                                        "OMPI_MCA_orte_rankfile",
                                        "OMPI_MCA_rmaps_rank_file_path",
                                        "OMP_PROC_BIND",
                                        "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY"};
    const char *bound = getenv("OMPI_MCA_orte_bound_at_launch");
    if (!bound || strcmp(bound, "1") != 0) return false;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        if (is_set(asked[i])) return false;
    return true;
}

// The launcher is not bound itself: its mask is what the user, a batch system or a container allows. *WIDENED: this
// rank's mask has grown to it.
static keel_status widen(bool *widened) {
    cpu_set_t own, launcher;
    *widened = false;
    if (!bound_by_default() || sched_getaffinity(getppid(), sizeof launcher, &launcher) != 0 ||
        sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&launcher) <= CPU_COUNT(&own))
        return KEEL_OK;
    if (sched_setaffinity(0, sizeof launcher, &launcher) != 0)
        return keel_fail(KEEL_ERR_IO, "the binding to one core cannot be undone: %s", strerror(errno));
    *widened = true;
    return KEEL_OK;
}

// The lowest of the hardware threads that share CPU's core; CPU itself where the system does not say.
static size_t core_of(size_t cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    char text[16] = "";
    if (file) {
        if (!fgets(text, sizeof text, file)) text[0] = '\0';
        fclose(file);
    }
    char *end;
    const unsigned long first = strtoul(text, &end, 10);
    return end == text ? cpu : first;
}

static int count_cores(const cpu_set_t *mask) {
    int cores = 0;
    cpu_set_t seen;
    CPU_ZERO(&seen);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, mask)) continue;
        const size_t core = core_of(cpu);
        if (core >= CPU_SETSIZE || CPU_ISSET(core, &seen)) continue;
        CPU_SET(core, &seen);
        cores++;
    }
    return cores;
}

// Ranks of this node, and those of them with the same mask.
static keel_status count_sharers(MPI_Comm comm, const cpu_set_t *mask, keel_affinity *affinity) {
    MPI_Comm node, same;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for this node");
    const int color = (int)(crc32(0, (const Bytef *)mask, sizeof *mask) & INT_MAX);
    if (MPI_Comm_split(node, color, 0, &same) != MPI_SUCCESS) {
        MPI_Comm_free(&node);
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for ranks with the same cores");
    }
    MPI_Comm_size(node, &affinity->ranks);
    MPI_Allreduce(&affinity->ranks, &affinity->most_ranks, 1, MPI_INT, MPI_MAX, comm);
    MPI_Comm_size(same, &affinity->sharers);
    MPI_Comm_free(&same);
    MPI_Comm_free(&node);
    return KEEL_OK;
}

// ---- pinning ----

static keel_status number_on_node(MPI_Comm comm, int *number) {
    MPI_Comm node;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for this node");
    MPI_Comm_rank(node, number);
    MPI_Comm_free(&node);
    return KEEL_OK;
}

void keel_cpus_describe(const cpu_set_t *set, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t cpu = 0; cpu < CPU_SETSIZE && used < size; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        const size_t first = cpu;
        while (cpu + 1 < CPU_SETSIZE && CPU_ISSET(cpu + 1, set)) cpu++;
        used += (size_t)snprintf(text + used, size - used, cpu > first ? "%s%zu-%zu" : "%s%zu", used ? "," : "", first,
                                 cpu);
    }
}

static cpu_set_t set_of(const keel_cpu_list *list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < list->count; i++) CPU_SET(list->cpus[i], &set);
    return set;
}

// What the user or the system has left to this process: a binding that nobody asked for does not count.
static keel_status allowed_cpus(cpu_set_t *allowed) {
    if (bound_by_default() && sched_getaffinity(getppid(), sizeof *allowed, allowed) == 0) return KEEL_OK;
    if (sched_getaffinity(0, sizeof *allowed, allowed) == 0) return KEEL_OK;
    return keel_fail(KEEL_ERR_IO, "this process's cores are not known: %s", strerror(errno));
}

static keel_status pin(const keel_device_affinity *device, keel_affinity *affinity) {
    cpu_set_t allowed, missing;
    const cpu_set_t all = set_of(&device->all);
    const keel_status status = allowed_cpus(&allowed);
    if (status) return status;
    CPU_AND(&missing, &all, &allowed);
    CPU_XOR(&missing, &missing, &all);
    if (CPU_COUNT(&missing) > 0) {
        char wrong[128], right[128];
        keel_cpus_describe(&missing, wrong, sizeof wrong);
        keel_cpus_describe(&allowed, right, sizeof right);
        return keel_yaml_fail(
            device->node, "processor %s: there is none, or this process may not use it; it may use %s", wrong, right);
    }
    if (sched_setaffinity(0, sizeof all, &all) != 0)
        return keel_yaml_fail(device->node, "the system refuses these processors: %s", strerror(errno));
    for (int m = 0; m < KEEL_CPU_MODULE_COUNT; m++)
        affinity->modules[m] = device->modules[m].cpus ? set_of(&device->modules[m]) : all;
    affinity->pinned = true;
    return KEEL_OK;
}

static int pinned_threads(const keel_affinity *affinity) {
    cpu_set_t common;
    CPU_AND(&common, &affinity->modules[KEEL_CPU_MAIN], &affinity->modules[KEEL_CPU_WORKER]);
    return count_cores(&affinity->modules[KEEL_CPU_WORKER]) + (CPU_COUNT(&common) == 0);
}

void keel_affinity_enter(const keel_affinity *affinity, keel_cpu_module module) {
    if (affinity->pinned) sched_setaffinity(0, sizeof affinity->modules[module], &affinity->modules[module]);
}

// The pool's threads are made here, and live as long as the process.
static void pin_workers(const keel_affinity *affinity) {
#pragma omp parallel
    if (omp_get_thread_num() > 0) keel_affinity_enter(affinity, KEEL_CPU_WORKER);
    keel_affinity_enter(affinity, KEEL_CPU_MAIN);
}

// ---- all of it ----

keel_status keel_affinity_share(MPI_Comm comm, const keel_affinity_config *config, keel_affinity *affinity) {
    keel_affinity made = {0};
    int number = 0;
    keel_status status = number_on_node(comm, &number);
    const keel_device_affinity *device = config ? keel_affinity_config_of(config, number) : NULL;
    // Those that fail go on: what follows is collective.
    const keel_status placed = device ? pin(device, &made) : widen(&made.widened);
    char reason[1024];
    if (placed) snprintf(reason, sizeof reason, "%s", keel_error());
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
    if (!status) status = count_sharers(comm, &mask, &made);
    if (placed) return keel_fail(placed, "%s", reason);
    if (status) return status;
    made.cores = count_cores(&mask);
    if (made.cores == 0) return keel_fail(KEEL_ERR_IO, "this process's cores are not known");
    made.user_threads = is_set("OMP_NUM_THREADS");
    if (!made.user_threads) {
        const int share = made.pinned ? pinned_threads(&made) : made.cores / made.sharers;
        omp_set_num_threads(share > 1 ? share : 1);
    }
    made.threads = omp_get_max_threads();
    openblas_set_num_threads(made.threads);
    if (made.pinned) pin_workers(&made);
    *affinity = made;
    return KEEL_OK;
}

static void describe_pins(const keel_affinity *affinity, const char *threads, const char *why, char *text,
                          size_t size) {
    size_t used = (size_t)snprintf(text, size, "%d rank%s on this node, pinned:", affinity->ranks,
                                   affinity->ranks == 1 ? "" : "s");
    for (int m = 0; m < KEEL_CPU_MODULE_COUNT && used < size; m++) {
        char cpus[128];
        keel_cpus_describe(&affinity->modules[m], cpus, sizeof cpus);
        used += (size_t)snprintf(text + used, size - used, "%s %s %s", m ? "," : "",
                                 keel_cpu_module_name((keel_cpu_module)m), cpus);
    }
    if (used < size) snprintf(text + used, size - used, "; %d %s%s", affinity->threads, threads, why);
}

const keel_device_affinity *keel_affinity_idle(const keel_affinity *affinity, const keel_affinity_config *config) {
    for (size_t i = 0; i < config->count; i++)
        if (config->devices[i].device >= affinity->most_ranks) return &config->devices[i];
    return NULL;
}

void keel_affinity_describe(const keel_affinity *affinity, char *text, size_t size) {
    const char *cores = affinity->cores == 1 ? "core" : "cores";
    const char *threads = affinity->threads == 1 ? "thread" : "threads";
    const char *why = affinity->user_threads ? " (OMP_NUM_THREADS)" : "";
    const char *undone = affinity->widened ? "; mpirun's binding to one core undone" : "";
    if (affinity->pinned)
        describe_pins(affinity, threads, why, text, size);
    else if (affinity->ranks == 1)
        snprintf(text, size, "1 rank on this node, %d %s, %d %s%s%s", affinity->cores, cores, affinity->threads,
                 threads, why, undone);
    else if (affinity->sharers == affinity->ranks)
        snprintf(text, size, "%d ranks on this node share %d %s, %d %s each%s%s", affinity->ranks, affinity->cores,
                 cores, affinity->threads, threads, why, undone);
    else
        snprintf(text, size, "%d ranks on this node, %d %s for this one, %d %s%s%s", affinity->ranks, affinity->cores,
                 cores, affinity->threads, threads, why, undone);
}
