// What the monitor costs a training run: one run that alternates blocks of steps with the monitor on and off.
#ifndef KEEL_TOOLS_BENCH_OVERHEAD_H
#define KEEL_TOOLS_BENCH_OVERHEAD_H

#include "configs/monitor_config.h"
#include "configs/train_config.h"
#include "train/trainer.h"

typedef struct keel_bench_overhead_plan {
    const keel_train_config *train; // its steps and data are not used: random tokens, as many steps as the blocks need
    const keel_monitor_config *monitor; // with an output of its own
    uint32_t block_steps;               // steps of a block, at least 8
    uint32_t blocks;                    // of each kind
} keel_bench_overhead_plan;

typedef struct keel_bench_overhead_result {
    double seconds_on, seconds_off;         // median block / steps: queues are drained inside the block they belong to
    double overhead;                        // median over blocks of on / mean of the two off beside it, less one
    double cpu_seconds_on, cpu_seconds_off; // of all threads, per step, median block
    // Of each part of a step, per step: without the monitor, and what it adds (medians as for the overhead).
    double part_off[KEEL_TRAINER_PART_COUNT], part_added[KEEL_TRAINER_PART_COUNT];
} keel_bench_overhead_result;

// Collective over MPI_COMM_WORLD of one rank.
keel_status keel_bench_overhead(const keel_bench_overhead_plan *plan, keel_bench_overhead_result *out);

#endif
