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
    MPI_Comm_size(same, &affinity->sharers);
    MPI_Comm_free(&same);
    MPI_Comm_free(&node);
    return KEEL_OK;
}

keel_status keel_affinity_share(MPI_Comm comm, keel_affinity *affinity) {
    keel_affinity made = {0};
    keel_status status = widen(&made.widened);
    if (status) return status;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        return keel_fail(KEEL_ERR_IO, "this process's cores are not known: %s", strerror(errno));
    status = count_sharers(comm, &mask, &made);
    if (status) return status;
    made.cores = count_cores(&mask);
    made.user_threads = is_set("OMP_NUM_THREADS");
    if (!made.user_threads) {
        const int share = made.cores / made.sharers;
        omp_set_num_threads(share > 1 ? share : 1);
    }
    made.threads = omp_get_max_threads();
    openblas_set_num_threads(made.threads);
    *affinity = made;
    return KEEL_OK;
}

void keel_affinity_describe(const keel_affinity *affinity, char *text, size_t size) {
    const char *cores = affinity->cores == 1 ? "core" : "cores";
    const char *threads = affinity->threads == 1 ? "thread" : "threads";
    const char *why = affinity->user_threads ? " (OMP_NUM_THREADS)" : "";
    const char *undone = affinity->widened ? "; mpirun's binding to one core undone" : "";
    if (affinity->ranks == 1)
        snprintf(text, size, "1 rank on this node, %d %s, %d %s%s%s", affinity->cores, cores, affinity->threads,
                 threads, why, undone);
    else if (affinity->sharers == affinity->ranks)
        snprintf(text, size, "%d ranks on this node share %d %s, %d %s each%s%s", affinity->ranks, affinity->cores,
                 cores, affinity->threads, threads, why, undone);
    else
        snprintf(text, size, "%d ranks on this node, %d %s for this one, %d %s%s%s", affinity->ranks, affinity->cores,
                 cores, affinity->threads, threads, why, undone);
}
