// The board of beats of the ranks of each node, in shared memory that MPI brings together once: after this call nothing
// of it needs MPI.
#ifndef KEEL_COLLECTORS_MPI_NODE_BOARD_H
#define KEEL_COLLECTORS_MPI_NODE_BOARD_H

#include <mpi.h>

#include "collectors/watch/beat_board.h"

// Ranks are those of COMM. The memory has no name any more when this returns, and goes with the last process. Where a
// node has no shared memory to give, each of its ranks gets a board of its own, said in one line by its lowest.
// Collective over COMM.
keel_status keel_node_board_open(MPI_Comm comm, keel_beat_board *board);

#endif
