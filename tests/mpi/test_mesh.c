// The groups of every mesh that divides the job, and what is said of one that does not.
#include "tests/mpi/mpi_check.h"
#include "train/parallel/mesh.h"

static void check_group(const keel_comm *comm, int size, int rank) {
    CHECK(comm->size == size);
    CHECK(comm->rank == rank);
    if (size == 1) return;
    int least = check_rank;
    CHECK(MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, comm->mpi) == MPI_SUCCESS);
    CHECK((least == check_rank) == (rank == 0));
}

static void check_mesh(int dp, int tp, int pp, int ep) {
    const keel_parallel_config config = {
        .data_parallel = dp, .model_parallel = tp, .pipeline_stage = pp, .expert_parallel = ep};
    keel_mesh mesh;
    CHECK(keel_mesh_open(&config, MPI_COMM_WORLD, &mesh) == KEEL_OK);
    const int t = check_rank % tp, d = check_rank / tp % dp, p = check_rank / tp / dp;
    check_group(&mesh.world, check_size, check_rank);
    check_group(&mesh.data_parallel, dp, d);
    check_group(&mesh.model_parallel, tp, t);
    check_group(&mesh.pipeline, pp, p);
    check_group(&mesh.expert_parallel, ep, d % ep);
    check_group(&mesh.expert_data_parallel, dp / ep, d / ep);
    check_group(&mesh.stage, dp * tp, d * tp + t);
    check_group(&mesh.model, tp * pp, p * tp + t);
    keel_mesh_close(&mesh);
}

static void check_refused(keel_parallel_config config, const char *text) {
    keel_mesh mesh;
    CHECK(keel_mesh_open(&config, MPI_COMM_WORLD, &mesh) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), text) != NULL);
}

int main(void) {
    int provided;
    check_begin(&provided);
    for (int tp = 1; tp <= check_size; tp++)
        for (int pp = 1; pp <= check_size; pp++) {
            if (check_size % (tp * pp)) continue;
            const int dp = check_size / (tp * pp);
            for (int ep = 1; ep <= dp; ep++)
                if (dp % ep == 0) check_mesh(dp, tp, pp, ep);
        }
    check_refused((keel_parallel_config){.model_parallel = 3, .pipeline_stage = 5, .expert_parallel = 1},
                  "model_parallel 3 x pipeline_stage 5 = 15 does not divide");
    check_refused(
        (keel_parallel_config){
            .data_parallel = check_size, .model_parallel = 2, .pipeline_stage = 1, .expert_parallel = 1},
        "but the job has");
    check_refused((keel_parallel_config){.model_parallel = 1, .pipeline_stage = 1, .expert_parallel = 3},
                  "expert_parallel: 3 does not divide data_parallel");
    check_say("every mesh of these ranks");
    MPI_Finalize();
    return 0;
}
