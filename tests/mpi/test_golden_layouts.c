// Trajectories computed in float64 by another framework, by models that are cut over ranks in every way.
#include "tests/mpi/golden_rig.h"

typedef struct layout {
    int dp, tp, pp, ep, micro;
    bool seq_parallel, optimizer_parallel;
} layout;

static const layout layouts[] = {
    {1, 2, 1, 1, 1, false, false}, {1, 2, 1, 1, 2, true, false},  {1, 1, 2, 1, 1, false, false},
    {1, 1, 2, 1, 4, false, false}, {2, 1, 1, 1, 1, false, true},  {2, 1, 1, 2, 1, false, false},
    {2, 1, 1, 2, 1, false, true},  {2, 2, 1, 1, 1, true, true},   {2, 1, 2, 1, 2, false, true},
    {1, 2, 2, 1, 4, true, false},  {1, 2, 2, 1, 1, false, false}, {4, 1, 1, 4, 1, false, true},
    {4, 1, 1, 2, 1, false, false}, {2, 2, 1, 2, 1, true, true},   {2, 1, 2, 2, 1, false, false},
};

static void run_layout(const char *name, const layout *l) {
    const keel_parallel_config parallel = {.data_parallel = l->dp,
                                           .model_parallel = l->tp,
                                           .pipeline_stage = l->pp,
                                           .expert_parallel = l->ep,
                                           .micro_batch_num = l->pp > 1 ? l->micro : 1,
                                           .bucket_bytes = 4096,
                                           .use_seq_parallel = l->seq_parallel,
                                           .enable_parallel_optimizer = l->optimizer_parallel};
    golden_rig_run(name, &parallel, l->pp > 1 ? 1 : l->micro, NULL);
}

int main(void) {
    static const char *const names[] = {"gpt2-tiny", "llama-tiny", "mixtral-tiny", "mixtral-capacity"};
    int provided;
    check_begin(&provided);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            const layout *l = &layouts[i];
            const bool experts = n >= 2;
            if (l->dp * l->tp * l->pp != check_size || (l->ep > 1 && !experts)) continue;
            if (experts && l->micro > 1) continue; // their balance is that of a micro-batch of all ranks
            run_layout(names[n], l);
        }
    MPI_Finalize();
    return 0;
}
