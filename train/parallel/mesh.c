#include "train/parallel/mesh.h"

static keel_status check(const keel_parallel_config *config, int64_t world) {
    if (config->model_parallel != 1 || config->pipeline_stage != 1)
        return keel_fail(KEEL_ERR_CONFIG,
                         "parallel_config: model_parallel %lld, pipeline_stage %lld: this trainer is data parallel, "
                         "both must be 1",
                         (long long)config->model_parallel, (long long)config->pipeline_stage);
    if (config->data_parallel != 0 && config->data_parallel != world)
        return keel_fail(
            KEEL_ERR_CONFIG,
            "parallel_config: data_parallel %lld x model_parallel %lld x pipeline_stage %lld = %lld ranks, "
            "but the job has %lld",
            (long long)config->data_parallel, (long long)config->model_parallel, (long long)config->pipeline_stage,
            (long long)config->data_parallel, (long long)world);
    return KEEL_OK;
}

static keel_status duplicate(MPI_Comm from, const char *name, keel_comm *comm) {
    keel_comm made = {.name = name};
    if (MPI_Comm_dup(from, &made.mpi) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for %s", name);
    MPI_Comm_set_errhandler(made.mpi, MPI_ERRORS_RETURN);
    MPI_Comm_set_name(made.mpi, name);
    MPI_Comm_rank(made.mpi, &made.rank);
    MPI_Comm_size(made.mpi, &made.size);
    *comm = made;
    return KEEL_OK;
}

keel_status keel_mesh_open(const keel_parallel_config *config, MPI_Comm comm, keel_mesh *mesh) {
    int world;
    MPI_Comm_size(comm, &world);
    keel_status status = check(config, world);
    if (status) return status;
    keel_mesh made = {.dp = (uint32_t)world, .tp = 1, .pp = 1};
    status = duplicate(comm, "world", &made.world);
    if (status) return status;
    status = duplicate(comm, "data_parallel", &made.data_parallel);
    if (status) {
        keel_mesh_close(&made);
        return status;
    }
    *mesh = made;
    return KEEL_OK;
}

void keel_mesh_close(keel_mesh *mesh) {
    if (mesh->data_parallel.name) MPI_Comm_free(&mesh->data_parallel.mpi);
    if (mesh->world.name) MPI_Comm_free(&mesh->world.mpi);
    *mesh = (keel_mesh){0};
}
