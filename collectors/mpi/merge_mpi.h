// keel_merge over MPI: one MPI_Ireduce of the whole frame as one element, on a communicator of its own.
#ifndef KEEL_COLLECTORS_MPI_MERGE_MPI_H
#define KEEL_COLLECTORS_MPI_MERGE_MPI_H

#include <mpi.h>

#include "collectors/merge.h"

// COMM is duplicated. THREADED: MPI gave MPI_THREAD_MULTIPLE. Collective over COMM.
keel_status keel_merge_mpi_open(MPI_Comm comm, bool threaded, keel_merge *merge);

#endif
