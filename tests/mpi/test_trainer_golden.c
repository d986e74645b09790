// Golden trajectories by trainings split over data-parallel ranks and micro-batches.
#include "tests/mpi/golden_rig.h"

static void run_case(const char *name, int64_t accumulation, int64_t bucket_bytes, bool shared) {
    const keel_parallel_config parallel = {.model_parallel = 1,
                                           .pipeline_stage = 1,
                                           .micro_batch_num = 1,
                                           .expert_parallel = 1,
                                           .bucket_bytes = bucket_bytes,
                                           .enable_parallel_optimizer = shared};
    golden_rig_run(name, &parallel, accumulation, NULL);
}

int main(void) {
    int provided;
    check_begin(&provided);
    for (int64_t accumulation = 1; accumulation * check_size <= 4; accumulation *= 2) {
        run_case("gpt2-tiny", accumulation, 4 << 20, false);
        run_case("gpt2-tiny", accumulation, 1000, false);
        run_case("llama-tiny", accumulation, 4 << 20, false);
        run_case("llama-tiny", accumulation, 1000, false);
        if (check_size == 1) continue;
        run_case("gpt2-tiny", accumulation, 1000, true);
        run_case("llama-tiny", accumulation, 4 << 20, true);
    }
    // Their balance is that of the whole batch.
    run_case("mixtral-tiny", 1, 4 << 20, false);
    run_case("mixtral-capacity", 1, 1000, check_size > 1);
    MPI_Finalize();
    return 0;
}
