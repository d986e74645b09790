// keel_merge over MPI: one MPI_Ireduce of the whole frame as one element, on a communicator of its own. A reduction on
// MPI_BYTE would be called on pieces that cut records. Where ranks have different tables, each group of equal ones does
// so on a communicator of its own, and its lowest rank sends the result to rank 0, which merges group by group: one
// frame more on the way, and rank 0's time grows with the number of groups, not with that of ranks.
#ifndef KEEL_COLLECTORS_MPI_MERGE_MPI_H
#define KEEL_COLLECTORS_MPI_MERGE_MPI_H

#include <mpi.h>

#include "collectors/merge.h"

// COMM is duplicated. THREADED: MPI gave MPI_THREAD_MULTIPLE. Collective over COMM. MERGE is to be closed by its close,
// before MPI_Finalize; a monitor that takes it over does so. Errors of MPI come back as KEEL_ERR_COMM.
keel_status keel_merge_mpi_open(MPI_Comm comm, bool threaded, keel_merge *merge);

#endif
