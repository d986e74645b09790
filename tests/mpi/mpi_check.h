// Checks for programs of several ranks: the first that fails says where and ends the whole job, since the others would
// wait for it.
#ifndef KEEL_TESTS_MPI_CHECK_H
#define KEEL_TESTS_MPI_CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/status.h"

static int check_rank, check_size;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d: %s:%d: %s: %s\n", check_rank, __FILE__, __LINE__, #condition, keel_error());     \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
            abort(); /* not reached: says so to those who read the code by machine */                                  \
        }                                                                                                              \
    } while (0)

static inline void check_begin(int *provided) {
    CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, provided) == MPI_SUCCESS);
    MPI_Comm_rank(MPI_COMM_WORLD, &check_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check_size);
}

static inline void check_say(const char *text) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (check_rank == 0) printf("ok: %s\n", text);
}

#endif
