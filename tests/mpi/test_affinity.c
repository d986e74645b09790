// How ranks share the cores of a node. Argument: what the test has asked of mpirun (default, bound) or OpenMP
// (threads).
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/mpi/mpi_check.h"
#include "train/parallel/affinity.h"

static int cpus_of(pid_t process) {
    cpu_set_t mask;
    CHECK(sched_getaffinity(process, sizeof mask, &mask) == 0);
    return CPU_COUNT(&mask);
}

int main(int argc, char **argv) {
    int provided;
    check_begin(&provided);
    CHECK(argc == 2);
    const int before = cpus_of(0), launcher = cpus_of(getppid());
    keel_affinity affinity;
    CHECK(keel_affinity_share(MPI_COMM_WORLD, &affinity) == KEEL_OK);
    const int after = cpus_of(0);
    CHECK(affinity.ranks == check_size && affinity.sharers >= 1 && affinity.cores >= 1 && affinity.cores <= after);
    CHECK(omp_get_max_threads() == affinity.threads);

    if (strcmp(argv[1], "bound") == 0) {
        CHECK(!affinity.widened && after == before);
    } else {
        CHECK(after == launcher && affinity.widened == (before < after) && affinity.sharers == check_size);
    }
    if (strcmp(argv[1], "threads") == 0) {
        CHECK(affinity.user_threads && affinity.threads == 3);
    } else {
        const int share = affinity.cores / affinity.sharers;
        CHECK(!affinity.user_threads && affinity.threads == (share > 1 ? share : 1));
    }

    // A thread that is made now may use what the rank may use.
    int seen = 0;
#pragma omp parallel reduction(+ : seen)
    seen += cpus_of(0) == after;
    CHECK(seen == affinity.threads);

    char text[256];
    keel_affinity_describe(&affinity, text, sizeof text);
    CHECK((strstr(text, "undone") != NULL) == affinity.widened);
    check_say(text);
    MPI_Finalize();
    return 0;
}
