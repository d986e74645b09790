// How ranks share the cores of a node. Argument: what the test has asked of mpirun (default, bound), OpenMP (threads)
// or the configuration (pinned).
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "configs/affinity_config.h"
#include "tests/mpi/mpi_check.h"
#include "train/parallel/affinity.h"

static cpu_set_t mask_of(pid_t process) {
    cpu_set_t mask;
    CHECK(sched_getaffinity(process, sizeof mask, &mask) == 0);
    return mask;
}

static int cpus_of(pid_t process) {
    const cpu_set_t mask = mask_of(process);
    return CPU_COUNT(&mask);
}

// The number of the I-th processor of MASK; -1: it has not so many.
static int nth(const cpu_set_t *mask, int i) {
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, mask) && i-- == 0) return (int)cpu;
    return -1;
}

static bool is_only(const cpu_set_t *mask, int cpu) {
    return CPU_COUNT(mask) == 1 && CPU_ISSET((size_t)cpu, mask);
}

static keel_status share_by(const char *text, keel_affinity *affinity) {
    keel_yaml *doc;
    keel_affinity_config config = {0};
    CHECK(keel_yaml_parse("pin.yaml", text, strlen(text), &doc) == KEEL_OK);
    CHECK(keel_affinity_config_read(keel_yaml_get(keel_yaml_root(doc), "context"), &config) == KEEL_OK);
    const keel_status status = keel_affinity_share(MPI_COMM_WORLD, &config, affinity);
    keel_affinity_config_free(&config);
    keel_yaml_free(doc);
    return status;
}

// What rank 0 is after it was pinned: main to SECOND, one worker to FIRST.
static void check_pins(const keel_affinity *affinity, int first, int second) {
    CHECK(affinity->threads == 2); // main on its own processor, and one worker
    int wrong = 0;
#pragma omp parallel reduction(+ : wrong)
    {
        const cpu_set_t mine = mask_of(0);
        wrong += !is_only(&mine, omp_get_thread_num() == 0 ? second : first);
    }
    CHECK(wrong == 0);
    keel_affinity_enter(affinity, KEEL_CPU_WRITER);
    CHECK(cpus_of(0) == 2);
    keel_affinity_enter(affinity, KEEL_CPU_MAIN);
    CHECK(cpus_of(0) == 1);
    char text[512], expected[64];
    keel_affinity_describe(affinity, text, sizeof text);
    snprintf(expected, sizeof expected, "pinned: main %d, worker %d, writer ", second, first);
    CHECK(strstr(text, expected) && strstr(text, "2 threads"));
}

// Needs two processors; with one there is nothing to tell apart.
static void pin(void) {
    const cpu_set_t launcher = mask_of(getppid());
    const int first = nth(&launcher, 0), second = nth(&launcher, 1);
    if (second < 0) {
        check_say("one processor only: nothing to pin");
        return;
    }
    char text[512];
    keel_affinity affinity;
    const int missing = CPU_SETSIZE - 1;
    snprintf(text, sizeof text, "context: {affinity_config: {device_0: {affinity_cpu_list: [\"%d\"]}}}\n", missing);
    const keel_status refused = share_by(text, &affinity);
    if (check_rank == 0) {
        CHECK(refused == KEEL_ERR_CONFIG);
        CHECK(strstr(keel_error(), "pin.yaml:1:") &&
              strstr(keel_error(), "context.affinity_config.device_0.affinity_cpu_list"));
        CHECK(strstr(keel_error(), "processor 1023: there is none"));
    } else
        CHECK(refused == KEEL_OK && !affinity.pinned);

    // Rank 0 has two processors, one for itself and one for all else; others are left alone.
    snprintf(text, sizeof text,
             "context: {affinity_config: {device_0: {affinity_cpu_list: [\"%d\", \"%d\"],\n"
             "  module_to_cpu_dict: {main: [1], worker: [0], writer: [0, 1]}}}}\n",
             first, second);
    CHECK(share_by(text, &affinity) == KEEL_OK);
    CHECK(affinity.pinned == (check_rank == 0));
    if (check_rank == 0) check_pins(&affinity, first, second);
    check_say("pinned");
}
int main(int argc, char **argv) {
    int provided;
    check_begin(&provided);
    CHECK(argc == 2);
    if (strcmp(argv[1], "pinned") == 0) {
        pin();
        MPI_Finalize();
        return 0;
    }
    const int before = cpus_of(0), launcher = cpus_of(getppid());
    keel_affinity affinity;
    CHECK(keel_affinity_share(MPI_COMM_WORLD, NULL, &affinity) == KEEL_OK);
    const int after = cpus_of(0);
    CHECK(!affinity.pinned);
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
