// Which ranks work together on what: world = data_parallel x model_parallel x pipeline_stage.
#ifndef KEEL_TRAIN_PARALLEL_MESH_H
#define KEEL_TRAIN_PARALLEL_MESH_H

#include <mpi.h>
#include <stdint.h>

#include "configs/train_config.h"

typedef struct keel_comm {
    MPI_Comm mpi;
    const char *name; // "world", "data_parallel"
    int rank, size;
} keel_comm;

typedef struct keel_mesh {
    uint32_t dp, tp, pp;     // sizes
    keel_comm world;         // all ranks of the trainer
    keel_comm data_parallel; // the ranks that hold the same part of the model, each with other data
} keel_mesh;

// Makes communicators of its own over the ranks of COMM. KEEL_ERR_CONFIG, with the numbers, if the mesh is not the
// world's size. Collective.
keel_status keel_mesh_open(const keel_parallel_config *config, MPI_Comm comm, keel_mesh *mesh);
void keel_mesh_close(keel_mesh *mesh); // a mesh of zeros is fine

#endif
