// Which ranks work together on what: world = data_parallel x model_parallel x pipeline_stage; expert_parallel divides
// data_parallel.
//
// Ranks are numbered with the tensor group innermost, so that it lies within a node, and stages outermost:
//     world rank = (pp_rank * dp + dp_rank) * tp + tp_rank,    ep_rank = dp_rank mod ep
#ifndef KEEL_TRAIN_PARALLEL_MESH_H
#define KEEL_TRAIN_PARALLEL_MESH_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "configs/train_config.h"

typedef struct keel_comm {
    MPI_Comm mpi; // MPI_COMM_NULL where SIZE is 1
    const char *name;
    int rank, size;
    bool one_stage; // its ranks are all of one pipeline stage, STAGE, where there are several
    int32_t stage;
} keel_comm;

typedef struct keel_mesh {
    uint32_t dp, tp, pp, ep;        // sizes
    bool sequence;                  // rows between the products are shared out over model_parallel
    const keel_yaml_node *settings; // parallel_config, for error messages; NULL: none
    keel_comm world;                // all ranks of the trainer; its communicator exists with one rank too
    keel_comm data_parallel;        // dp ranks: the same part of the model, each with other data
    keel_comm model_parallel;       // tp ranks: the same data, each with its part of every cut matrix
    keel_comm pipeline;             // pp ranks, one of each stage, in the order of the stages
    keel_comm expert_parallel;      // ep ranks: the experts of a layer are shared out among them
    keel_comm expert_data_parallel; // dp / ep ranks: the same experts, each with other data
    keel_comm ends;                 // 2 ranks, of the first and the last stage; 1 on those between
    keel_comm stage;                // dp * tp ranks of one pipeline stage
    keel_comm model;                // tp * pp ranks that hold one copy of the dense model together
} keel_mesh;

// Makes communicators of its own over the ranks of COMM. KEEL_ERR_CONFIG, with the numbers, if the mesh is not the
// world's size, expert_parallel does not divide data_parallel, or rows are to be shared out over one tensor rank.
// Collective.
keel_status keel_mesh_open(const keel_parallel_config *config, MPI_Comm comm, keel_mesh *mesh);
void keel_mesh_close(keel_mesh *mesh); // a mesh of zeros is fine

// One rank, without MPI.
keel_mesh keel_mesh_alone(void);

#endif
