// How the ranks of a node share its cores.
#ifndef KEEL_TRAIN_PARALLEL_AFFINITY_H
#define KEEL_TRAIN_PARALLEL_AFFINITY_H

#include <mpi.h>
#include <sched.h>
#include <stdbool.h>

#include "configs/affinity_config.h"
#include "probe/status.h"

typedef struct keel_affinity {
    int ranks;                                // of this job on this node
    int most_ranks;                           // of this job on one node
    int cores;                                // that this rank may use, alone or with the ranks below
    int sharers;                              // ranks of this node that may use the same cores, this one included
    int threads;                              // OpenMP's and OpenBLAS's, of this rank
    bool widened;                             // mpirun's default binding to one core was undone
    bool user_threads;                        // OMP_NUM_THREADS decided
    bool pinned;                              // context.affinity_config has this rank's number on its node
    cpu_set_t modules[KEEL_CPU_MODULE_COUNT]; // where it is pinned
} keel_affinity;

// To be called once, right after MPI_Init and before anything that makes threads or sizes itself by their number. Open
// MPI binds each rank of a small job to one core, and every helper thread with it: unless the user has asked for a
// binding (mpirun's options, OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), the rank gets the cores that mpirun itself
// may use. Then, unless OMP_NUM_THREADS is set, OpenMP and OpenBLAS get this rank's share of the cores (cores, not
// hardware threads). Collective over COMM.
//
// A rank for whose number on its node CONFIG (NULL: nothing) has processors is pinned instead: the calling thread to
// those of "main", OpenMP's others to those of "worker", of which there are as many as processors (and one more where
// main has its own). KEEL_ERR_CONFIG, with the place, for a processor that does not exist or that this process may not
// use.
keel_status keel_affinity_share(MPI_Comm comm, const keel_affinity_config *config, keel_affinity *affinity);

// A device of CONFIG for which no node has a rank; NULL: there is none.
const keel_device_affinity *keel_affinity_idle(const keel_affinity *affinity, const keel_affinity_config *config);

// The calling thread, and all that it makes from now on, runs where MODULE is pinned. Nothing where the rank is not.
void keel_affinity_enter(const keel_affinity *affinity, keel_cpu_module module);

// "0-3,8"
void keel_cpus_describe(const cpu_set_t *set, char *text, size_t size);

// One line: "2 ranks on this node, pinned: main 0, worker 1-3, writer 4, data 0-4; 4 threads", or "2 ranks on this node
// share 8 cores, 4 threads each; mpirun's binding to one core undone". TEXT [size].
void keel_affinity_describe(const keel_affinity *affinity, char *text, size_t size);

#endif
