// How fast the trainer is beside what the machine gives: products against BLAS's peak, the optimizer against copying.
#ifndef KEEL_TOOLS_BENCH_TRAIN_H
#define KEEL_TOOLS_BENCH_TRAIN_H

#include "train/model/model.h"

typedef struct keel_bench_train_result {
    int threads;
    double step_seconds;          // median of forward and backward together
    double tokens_per_second;     // of forward and backward
    double gflops;                // 1e9 floating-point operations a second of the model, forward and backward
    double sgemm_gflops;          // of square products by BLAS, median of measurements between the passes
    double utilisation;           // median over passes of gflops / the mean of sgemm_gflops before and after
    double part[KEEL_PART_COUNT]; // share of the time of forward and backward
    // An AdamW update with every tensor observed: 28 bytes an element read and written, over its seconds.
    double optimizer_gbps;       // with every field
    double optimizer_base_gbps;  // with the base fields
    double optimizer_plain_gbps; // nothing observed
    double copy_gbps;            // bytes read and written, the better of two ways to copy, between the updates
    double optimizer_ratio;      // median over updates of optimizer_gbps / the mean of copy_gbps before and after
    double optimizer_base_ratio; // the same of optimizer_base_gbps
    double norm_gbps;            // the gradient's norm with every field observed: 4 bytes an element
} keel_bench_train_result;

// STEPS forward and backward passes of BATCH sequences of SEQ random tokens, and STEPS updates, with the threads that
// OpenMP has now. MODEL's seq_length is not used. Prints nothing.
keel_status keel_bench_train(const keel_model_config *model, size_t batch, size_t seq, int steps,
                             keel_bench_train_result *out);

#endif
