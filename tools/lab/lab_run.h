// One training of the laboratory: a folder of its own, one process (or mpirun with its ranks) after another.
#ifndef KEEL_TOOLS_LAB_LAB_RUN_H
#define KEEL_TOOLS_LAB_LAB_RUN_H

#include <sys/types.h>

#include "tools/lab/lab_case.h"

typedef struct keel_lab_run {
    keel_lab_case *lab_case; // owned
    uint64_t number;         // of the case's runs, from 1
    uint64_t seed;           // below 2^53: the trainer's
    uint64_t steps;          // updates that are asked for in all
    char *dir;               // owned: train.yaml, log, run/ (the store), out/, shards/
    size_t stage, stages;    // processes, the first one and those that resume
    pid_t pid;               // of the process at work, and of its group; 0: none
} keel_lab_run;

// Loads the case of FOLDER by NAME as SEED has it.
keel_status keel_lab_run_open(const char *folder, const char *name, uint64_t seed, uint64_t number, keel_lab_run *run);
void keel_lab_run_close(keel_lab_run *run); // zeros are fine; the folder stays

// Gives the steps of the run, from the configurations of its stages. FOLDER holds base.yaml.
keel_status keel_lab_run_plan(keel_lab_run *run, const char *folder);
// The same, and makes the folder DIR, which must not exist, with the configurations.
keel_status keel_lab_run_prepare(keel_lab_run *run, const char *folder, const char *dir);
// Starts the next stage.
keel_status keel_lab_run_start(keel_lab_run *run, const char *trainer);
// The process ended with STATUS (of waitpid). *done: there is no further stage, the store can be judged. A training
// that did not end as one does is KEEL_ERR_IO with the last lines of its log.
keel_status keel_lab_run_ended(keel_lab_run *run, int status, bool *done);

#endif
