#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <linux/magic.h>
#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/store/writer.h"
#include "collectors/watch/process.h"
#include "probe/stats.h"
#include "tools/commands.h"
#include "train/parallel/affinity.h"
#include "train/tensor/blas.h"
#include "train/tensor/cpu.h"

enum { PROBLEM = 1, USAGE = 2, MPI_SECONDS = 20 };

static const char usage[] = "usage: keel doctor [DIR]\n\n"
                            "Says what this machine gives: processor and statistics kernels, cores, BLAS, MPI, HDF5, "
                            "how ranks see one another;\n"
                            "and of the file system of DIR whether a store can be kept there. A line that begins with "
                            "\"problem\" says what to do about it.\n\n"
                            "exit: 0 nothing wrong, 1 a problem, 2 bad usage or DIR cannot be read\n";

static bool sick;

static void problem(const char *format, ...) KEEL_PRINTF(1, 2);
static void problem(const char *format, ...) {
    sick = true;
    fputs("  problem: ", stdout);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void examine_processor(void) {
    char line[256], model[128] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", model) == 1) break;
    if (file) fclose(file);
    printf("processor: %s; statistics kernels: %s\n", model, keel_isa_name(keel_isa_best()));
    if (keel_cpu_check()) problem("%s", keel_error());
}

static void examine_cores(void) {
    cpu_set_t set;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        printf("cores: %ld online\n", online);
        return;
    }
    char cores[128];
    keel_cpus_describe(&set, cores, sizeof cores);
    printf("cores: %d of %ld usable by this process (%s)\n", CPU_COUNT(&set), online, cores);
}

static void examine_blas(void) {
    char *text = keel_blas_describe();
    printf("blas: %s\n", text ? text : keel_error());
    free(text);
    const char *core = keel_blas_core(), *expected = keel_blas_core_expected();
    if (keel_blas_is_below(core, expected))
        printf("  OpenBLAS takes this processor for an older one; keel-train starts itself again with "
               "OPENBLAS_CORETYPE=%s,\n  for other programs set that yourself\n",
               expected);
    if (keel_blas_check()) problem("%s", keel_error());
}

static const char *thread_level(int level) {
    switch (level) {
    case MPI_THREAD_MULTIPLE:
        return "multiple: frames are merged on a thread";
    case MPI_THREAD_SERIALIZED:
        return "serialized: frames are merged at layer borders";
    case MPI_THREAD_FUNNELED:
        return "funneled: frames are merged at layer borders";
    default:
        return "single: frames are merged at layer borders";
    }
}

// In a process of its own: an MPI that does not start ends the process that asked it, or waits for ever.
static void try_mpi(int out) {
    int provided, length = 0;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) _exit(1);
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = '\0';
    dprintf(out, "%s, thread level %s", library, thread_level(provided));
    MPI_Finalize();
    _exit(0);
}

static bool read_answer(int in, char *text, size_t size) {
    size_t used = 0;
    for (struct pollfd ready = {.fd = in, .events = POLLIN};
         used + 1 < size && poll(&ready, 1, MPI_SECONDS * 1000) > 0;) {
        const ssize_t got = read(in, text + used, size - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    text[used] = '\0';
    return used > 0;
}

static void examine_mpi(void) {
    int ends[2];
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 128];
    fflush(stdout);
    const pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        printf("mpi: not tried: %s\n", strerror(errno));
        return;
    }
    if (child == 0) {
        close(ends[0]);
        try_mpi(ends[1]);
    }
    close(ends[1]);
    const bool answered = read_answer(ends[0], text, sizeof text);
    close(ends[0]);
    if (!answered) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    printf("mpi: %s\n", answered ? text : "does not start");
    if (!answered)
        problem("MPI_Init_thread gave no answer in %d s; what it said, if anything, is above", MPI_SECONDS);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        problem("MPI starts but does not end");
}

static void examine_hdf5(void) {
    unsigned major = 0, minor = 0, release = 0;
    hbool_t safe = 0;
    H5get_libversion(&major, &minor, &release);
    H5is_library_threadsafe(&safe);
    printf("hdf5: %u.%u.%u, %s\n", major, minor, release, safe ? "thread-safe" : "not thread-safe");
    if (!safe) problem("the store is written on one thread while another reads token shards: HDF5 must be thread-safe");
}

// 0: the ranks of a node can share memory; else errno.
static int try_shared_memory(void) {
    enum { BYTES = 1 << 16 };
    char name[64];
    snprintf(name, sizeof name, "/keel-doctor-%d", (int)getpid());
    const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0) return errno;
    const int error = posix_fallocate(fd, 0, BYTES);
    close(fd);
    shm_unlink(name);
    return error;
}

static void examine_watch(void) {
    const int memory = try_shared_memory(), handle = keel_process_handle(getpid());
    const int refused = handle < 0 ? errno : 0;
    if (handle >= 0) close(handle);
    const bool seen = keel_process_state(getppid()) != 0;
    printf("ranks watch one another: %s; a death is seen %s\n", memory ? "not here" : "through shared memory",
           !refused ? "at once (pidfd)"
           : seen   ? "by looking once a second"
                    : "as silence only");
    if (memory) problem("no shared memory (%s): /dev/shm must be writable and have room", strerror(memory));
    if (refused && !seen) problem("neither pidfd (%s) nor /proc tells of other processes", strerror(refused));
}

static const char *file_system_name(long magic) {
    static const struct {
        long magic;
        const char *name;
    } known[] = {{EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"}, {BTRFS_SUPER_MAGIC, "btrfs"},
                 {TMPFS_MAGIC, "tmpfs"},     {NFS_SUPER_MAGIC, "nfs"}, {OVERLAYFS_SUPER_MAGIC, "overlay"},
                 {SMB2_SUPER_MAGIC, "smb"},  {0x65735546, "fuse"},     {0x0BD00BD3, "lustre"},
                 {0x47504653, "gpfs"},       {0x2FC12FC1, "zfs"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].magic == magic) return known[i].name;
    return "another file system";
}

// A file of no name in DIRECTORY; -1 with errno.
static int open_scratch(const char *directory) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    char path[4096];
    if (snprintf(path, sizeof path, "%s/.keel-doctor-XXXXXX", directory) >= (int)sizeof path) return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

static void examine_scratch(int fd, bool shared) {
    const bool reserves = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 16) == 0;
    printf("  space is %s\n",
           reserves ? "reserved ahead (fallocate)" : "only counted ahead: it cannot be reserved here");
    const bool locks = flock(fd, LOCK_EX | LOCK_NB) == 0;
    const char *why = locks ? "" : strerror(errno);
    if (locks && !shared)
        printf("  files can be locked: a store is read live\n");
    else
        printf("  %s%s%s: a store is written aside, and readers get copies\n",
               locks ? "other machines see writes in another order" : "files cannot be locked (", why,
               locks ? "" : ")");
}

static void examine_directory(const char *directory) {
    struct statfs system;
    struct statvfs space;
    if (statfs(directory, &system) != 0 || statvfs(directory, &space) != 0) {
        printf("store: %s\n", directory);
        problem("its file system does not answer: %s", strerror(errno));
        return;
    }
    const double free_gib = (double)space.f_bavail * (double)space.f_frsize / 0x1p30;
    printf("store: %s: %s, %.1f GiB free\n", directory, file_system_name((long)system.f_type), free_gib);
    if (free_gib < 1) problem("less than 1 GiB is free; a full segment takes monitor.segment_bytes");
    const int fd = open_scratch(directory);
    if (fd < 0) {
        problem("nothing can be written there: %s", strerror(errno));
        return;
    }
    examine_scratch(fd, keel_store_shared_file_system(directory) != NULL);
    close(fd);
}

static int refuse(const char *what, const char *why) {
    fprintf(stderr, "keel doctor: %s: %s\n", what, why);
    return USAGE;
}

int keel_cmd_doctor(int argc, char **argv) {
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc > 2) return refuse(argv[2], "one directory at most; keel doctor --help");
    const char *directory = argc == 2 ? argv[1] : NULL;
    if (directory && directory[0] == '-') return refuse(directory, "no such option; keel doctor --help");
    struct stat about;
    if (directory && stat(directory, &about) != 0) return refuse(directory, strerror(errno));
    if (directory && !S_ISDIR(about.st_mode)) return refuse(directory, strerror(ENOTDIR));
    if (directory && access(directory, R_OK | X_OK) != 0) return refuse(directory, strerror(errno));

    sick = false;
    printf("keel %s\n", KEEL_VERSION);
    examine_processor();
    examine_cores();
    examine_blas();
    examine_mpi();
    examine_hdf5();
    examine_watch();
    if (directory)
        examine_directory(directory);
    else
        printf("store: not looked at; keel doctor DIR does\n");
    return sick ? PROBLEM : 0;
}
