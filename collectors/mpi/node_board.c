#include "collectors/mpi/node_board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

// What one rank says to the others of its node.
typedef struct offer {
    int error; // errno; 0: the memory is there
    char name[NAME_BYTES];
} offer;

static void make_memory(offer *made, size_t bytes) {
    snprintf(made->name, sizeof made->name, "/keel-beats-%d", (int)getpid());
    shm_unlink(made->name); // of a process that had this number and was killed at the wrong moment
    const int fd = shm_open(made->name, O_CREAT | O_EXCL | O_RDWR, 0600);
    // Space is taken now: a full one would end the process at the first touch.
    made->error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (fd < 0) return;
    close(fd);
    if (made->error) shm_unlink(made->name);
}

static void *map_memory(const char *name, size_t bytes, int *error) {
    const int fd = shm_open(name, O_RDWR, 0);
    void *table = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *error = table == MAP_FAILED ? errno : 0;
    if (fd >= 0) close(fd);
    return table == MAP_FAILED ? NULL : table;
}

keel_status keel_node_board_open(MPI_Comm comm, keel_beat_board *board) {
    MPI_Comm node;
    int world_rank, rank, count, worst;
    MPI_Comm_rank(comm, &world_rank);
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return keel_fail(KEEL_ERR_COMM, "MPI gave no communicator for this node");
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &count);
    const size_t bytes = keel_beat_table_bytes((uint32_t)count);
    offer made = {0};
    if (rank == 0) make_memory(&made, bytes);
    MPI_Bcast(&made, (int)sizeof made, MPI_BYTE, 0, node);
    int error = made.error;
    void *table = error ? NULL : map_memory(made.name, bytes, &error);
    MPI_Allreduce(&error, &worst, 1, MPI_INT, MPI_MAX, node);
    if (rank == 0 && !made.error) shm_unlink(made.name);
    keel_status status = KEEL_OK;
    if (worst == 0) {
        keel_beat_board_join(board, table, (uint32_t)count, (uint32_t)rank, world_rank);
        MPI_Barrier(node); // all have said who they are
    } else {
        if (table) munmap(table, bytes);
        if (rank == 0)
            keel_log(KEEL_LOG_WARNING,
                     "no memory can be shared by the ranks of this node (%s): they do not watch one another",
                     strerror(worst));
        status = keel_beat_board_alone(world_rank, board);
    }
    MPI_Comm_free(&node);
    return status;
}
