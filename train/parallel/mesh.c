#include "train/parallel/mesh.h"

#include <stddef.h>

static keel_status check(const keel_parallel_config *config, int64_t world, int64_t *dp) {
    const int64_t tp = config->model_parallel, pp = config->pipeline_stage, ep = config->expert_parallel;
    const int64_t model = tp * pp;
    if (config->data_parallel == 0 && world % model)
        return keel_yaml_fail_key(
            config->node, tp > 1 ? "model_parallel" : "pipeline_stage",
            "model_parallel %lld x pipeline_stage %lld = %lld does not divide the job's %lld rank%s", (long long)tp,
            (long long)pp, (long long)model, (long long)world, world == 1 ? "" : "s");
    *dp = config->data_parallel ? config->data_parallel : world / model;
    const int64_t ranks = *dp * model;
    if (ranks != world)
        return keel_yaml_fail_key(config->node, "data_parallel",
                                  "data_parallel %lld x model_parallel %lld x pipeline_stage %lld = %lld ranks, "
                                  "but the job has %lld",
                                  (long long)*dp, (long long)tp, (long long)pp, (long long)ranks, (long long)world);
    if (config->use_seq_parallel && tp == 1)
        return keel_yaml_fail_key(config->node, "use_seq_parallel", "needs model_parallel above 1, which is %lld",
                                  (long long)tp);
    if (*dp % ep)
        return keel_yaml_fail_key(config->node, "expert_parallel", "%lld does not divide data_parallel %lld",
                                  (long long)ep, (long long)*dp);
    return KEEL_OK;
}

// The ranks of FROM with the same COLOR, in the order of KEY. MPI_UNDEFINED: this rank is alone.
static keel_status split(MPI_Comm from, const char *name, int color, uint32_t key, uint32_t size, keel_comm *comm) {
    keel_comm made = {.name = name, .mpi = MPI_COMM_NULL, .size = 1};
    if (size > 1 && MPI_Comm_split(from, color, (int)key, &made.mpi) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for %s", name);
    if (made.mpi != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(made.mpi, MPI_ERRORS_RETURN);
        MPI_Comm_set_name(made.mpi, name);
        MPI_Comm_rank(made.mpi, &made.rank);
        MPI_Comm_size(made.mpi, &made.size);
    }
    *comm = made;
    return KEEL_OK;
}

static keel_status open_world(MPI_Comm from, keel_comm *world) {
    keel_comm made = {.name = "world"};
    if (MPI_Comm_dup(from, &made.mpi) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for %s", made.name);
    MPI_Comm_set_errhandler(made.mpi, MPI_ERRORS_RETURN);
    MPI_Comm_set_name(made.mpi, made.name);
    MPI_Comm_rank(made.mpi, &made.rank);
    MPI_Comm_size(made.mpi, &made.size);
    *world = made;
    return KEEL_OK;
}

keel_status keel_mesh_open(const keel_parallel_config *config, MPI_Comm comm, keel_mesh *mesh) {
    int world;
    int64_t found = 1;
    MPI_Comm_size(comm, &world);
    keel_status status = check(config, world, &found);
    if (status) return status;
    const uint32_t dp = (uint32_t)found, tp = (uint32_t)config->model_parallel;
    const uint32_t pp = (uint32_t)config->pipeline_stage, ep = (uint32_t)config->expert_parallel;
    keel_mesh made = keel_mesh_alone();
    made.dp = dp, made.tp = tp, made.pp = pp, made.ep = ep;
    made.sequence = config->use_seq_parallel;
    made.settings = config->node;
    status = open_world(comm, &made.world);
    if (status) return status;
    const uint32_t rank = (uint32_t)made.world.rank;
    const uint32_t t = rank % tp, d = rank / tp % dp, p = rank / tp / dp, e = d % ep;
    const struct {
        keel_comm *comm;
        const char *name;
        int64_t color;
        uint32_t key, size;
        bool one_stage;
    } groups[] = {
        {&made.data_parallel, "data_parallel", p * tp + t, d, dp, true},
        {&made.model_parallel, "model_parallel", p * dp + d, t, tp, true},
        {&made.pipeline, "pipeline", d * tp + t, p, pp, false},
        {&made.expert_parallel, "expert_parallel", (p * (dp / ep) + d / ep) * tp + t, e, ep, true},
        {&made.expert_data_parallel, "expert_data_parallel", (p * ep + e) * tp + t, d / ep, dp / ep, true},
        {&made.ends, "ends", p > 0 && p + 1 < pp ? MPI_UNDEFINED : (int64_t)d * tp + t, p, pp, false},
        {&made.stage, "stage", p, d * tp + t, dp * tp, true},
        {&made.model, "model", d, p * tp + t, tp * pp, false},
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups && !status; i++) {
        status =
            split(made.world.mpi, groups[i].name, (int)groups[i].color, groups[i].key, groups[i].size, groups[i].comm);
        groups[i].comm->one_stage = pp > 1 && groups[i].one_stage;
        groups[i].comm->stage = (int32_t)p;
    }
    if (status)
        keel_mesh_close(&made);
    else
        *mesh = made;
    return status;
}

void keel_mesh_close(keel_mesh *mesh) {
    keel_comm *const comms[] = {&mesh->model,
                                &mesh->stage,
                                &mesh->ends,
                                &mesh->expert_data_parallel,
                                &mesh->expert_parallel,
                                &mesh->pipeline,
                                &mesh->model_parallel,
                                &mesh->data_parallel,
                                &mesh->world};
    for (size_t i = 0; i < sizeof comms / sizeof *comms; i++)
        if (comms[i]->name && comms[i]->mpi != MPI_COMM_NULL) MPI_Comm_free(&comms[i]->mpi);
    *mesh = (keel_mesh){0};
}

keel_mesh keel_mesh_alone(void) {
    return (keel_mesh){
        .dp = 1,
        .tp = 1,
        .pp = 1,
        .ep = 1,
        .world = {.mpi = MPI_COMM_NULL, .name = "world", .size = 1},
        .data_parallel = {.mpi = MPI_COMM_NULL, .name = "data_parallel", .size = 1},
        .model_parallel = {.mpi = MPI_COMM_NULL, .name = "model_parallel", .size = 1},
        .pipeline = {.mpi = MPI_COMM_NULL, .name = "pipeline", .size = 1},
        .expert_parallel = {.mpi = MPI_COMM_NULL, .name = "expert_parallel", .size = 1},
        .expert_data_parallel = {.mpi = MPI_COMM_NULL, .name = "expert_data_parallel", .size = 1},
        .ends = {.mpi = MPI_COMM_NULL, .name = "ends", .size = 1},
        .stage = {.mpi = MPI_COMM_NULL, .name = "stage", .size = 1},
        .model = {.mpi = MPI_COMM_NULL, .name = "model", .size = 1},
    };
}
