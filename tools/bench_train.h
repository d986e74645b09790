// How fast the trainer is beside what the machine gives: products against BLAS's peak, the optimizer against copying.
#ifndef KEEL_TOOLS_BENCH_TRAIN_H
#define KEEL_TOOLS_BENCH_TRAIN_H

#include "train/model/model.h"

typedef struct keel_bench_train_result {
    int threads;
    double step_seconds;          // median of forward and backward together
    double tokens_per_second;     // of forward and backward
    double gflops;                // 1e9 floating-point operations a second of the model, forward and backward
    double sgemm_gflops;          // of square products by BLAS, median of measurements between the steps
    double utilisation;           // gflops / sgemm_gflops
    double part[KEEL_PART_COUNT]; // share of the time of forward and backward
    double optimizer_gbps; // 28 bytes an element / median seconds of an AdamW update, every tensor observed with every
                           // field
    double optimizer_plain_gbps; // the same, nothing observed
    double copy_gbps; // bytes read and written, best of the ways to copy, median of measurements between the updates
    double optimizer_ratio; // optimizer_gbps / copy_gbps
    double norm_gbps;       // of the gradient norm with its observation: 4 bytes an element
} keel_bench_train_result;

// STEPS forward and backward passes of BATCH sequences of SEQ random tokens, and STEPS updates, with the threads that
// OpenMP has now. MODEL's seq_length is not used. Prints nothing.
keel_status keel_bench_train(const keel_model_config *model, size_t batch, size_t seq, int steps,
                             keel_bench_train_result *out);

#endif
