// A disk that is full before, during or until the end of a run: a small tmpfs in a mount namespace of our own.
#include "tests/unit/collectors/store_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "collectors/store/reserve.h"
#include "tests/unit/collectors/captured_log.h"

enum { DISK_BYTES = 24 << 20, SITES = 500 };
#define OPS (UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_max | UINT64_C(1) << KEEL_OP_nans)

static char disk[] = "/tmp/keel-disk-XXXXXX";
static bool mounted;

static int mount_disk(void **state) {
    (void)state;
    char size[32];
    snprintf(size, sizeof size, "size=%d", DISK_BYTES);
    if (!mkdtemp(disk)) return -1;
    mounted = (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
              mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("tmpfs", disk, "tmpfs", 0, size) == 0;
    if (!mounted)
        fprintf(stderr, "SKIPPED: no leave to mount a small tmpfs (%s): what a full disk does is not tested here\n",
                strerror(errno));
    return 0;
}

static int unmount_disk(void **state) {
    if (mounted) umount(disk);
    rmdir(disk);
    return rig_no_handles_left(state);
}

static void open_with(rig *r, uint64_t ops) {
    if (!mounted) skip();
    rig_open(r, SITES, ops, false);
    rmdir(r->directory);
    snprintf(r->directory, sizeof r->directory, "%s/run", disk);
    capture_log();
}

static void open_on_disk(rig *r) {
    open_with(r, OPS);
}

static void ballast_path(char path[64]) {
    snprintf(path, 64, "%s/ballast", disk);
}

// Takes all but LEFT bytes.
static void fill(uint64_t left) {
    char path[64];
    ballast_path(path);
    struct statvfs volume;
    assert_int_equal(statvfs(disk, &volume), 0);
    const uint64_t available = (uint64_t)volume.f_bavail * volume.f_frsize;
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    if (available > left) assert_int_equal(posix_fallocate(fd, 0, (off_t)(available - left)), 0);
    close(fd);
}

static void make_space(void) {
    char path[64];
    ballast_path(path);
    unlink(path);
}

// Rows of rising steps up to LAST, each as it was written; where some are missing, the next one counts them. How many.
static uint64_t check_stored(rig *r, uint64_t last) {
    keel_store_reader *reader;
    assert_ok(keel_store_open(r->directory, &reader));
    assert_int_equal(keel_store_segments(reader), 1);
    uint64_t next = 1, rows = 0;
    const keel_row *row;
    keel_store_position position;
    for (;; rows++) {
        assert_ok(keel_store_next(reader, &row, &position));
        if (!row) break;
        const uint64_t step = row->step.step;
        uint64_t dropped_before = 0; // by the run itself, of the rows that were lost
        for (uint64_t lost = next; lost < step; lost++) dropped_before += 1 + rig_row(r, lost, 0)->dropped_frames;
        rig_check_row(r, row, step, 0, dropped_before);
        next = step + 1;
    }
    if (last > 0) assert_int_equal(next, last + 1);
    keel_store_close(reader);
    return rows;
}

static void assert_never_met_by_hdf5(void) {
    assert_int_equal(captured_with("HDF5"), 0);
    assert_int_equal(captured_with("cannot"), 0);
}

static void test_recording_goes_on_with_space(void **state) {
    (void)state;
    rig r;
    open_on_disk(&r);
    keel_sink sink = rig_sink(&r, 0, -1);
    rig_write(&r, &sink, 1, 10, 0);
    assert_int_equal(captured_with("PAUSES"), 0);
    fill(0);
    rig_write(&r, &sink, 11, 3000, 0); // more than chunks that have their blocks, and than memory may hold
    assert_int_equal(captured_with("no space"), 1);
    assert_int_equal(captured_with("PAUSES"), 1);
    assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO);
    const keel_incident incident = rig_incident(1, 1);
    assert_ok(sink.incident(sink.context, &incident));
    make_space();
    rig_write(&r, &sink, 3001, 3003, 0);
    assert_int_equal(captured_with("recording goes on"), 1);
    assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO); // step 3001 pushed one more out
    assert_ok(sink.flush(sink.context));
    rig_write(&r, &sink, 3004, 3010, 0);
    sink.close(sink.context);
    assert_never_met_by_hdf5();
    const uint64_t rows = check_stored(&r, 3010);
    assert_true(rows > 500 && rows < 3010);
    keel_store_reader *reader;
    keel_incident *incidents;
    size_t count;
    assert_ok(keel_store_open(r.directory, &reader));
    assert_ok(keel_store_incidents(reader, &incidents, &count));
    assert_int_equal(count, 1);
    free(incidents);
    keel_store_close(reader);
    rig_close(&r);
}

static void test_full_to_the_end(void **state) {
    (void)state;
    // Whatever the last bytes are needed for: chunks, their indexes, the record of steps.
    const uint64_t left[] = {0, 4096, 100 << 10, 300 << 10, 700 << 10, 1 << 20, 3 << 20};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        rig r;
        open_on_disk(&r);
        keel_sink sink = rig_sink(&r, 0, 60);
        rig_write(&r, &sink, 1, 5, 0);
        fill(left[i]);
        rig_write(&r, &sink, 6, 1500, 0);
        assert_int_equal(captured_with("PAUSES"), 1);
        assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO);
        sink.close(sink.context);
        assert_int_equal(captured_with("could not be written"), 1);
        assert_never_met_by_hdf5();
        assert_true(check_stored(&r, 0) >= 5);
        make_space();
        rig_close(&r);
    }
}

static void test_full_from_the_start(void **state) {
    (void)state;
    // No file; a file, and no row.
    const uint64_t left[] = {64 << 10, 2 << 20}, ops[] = {OPS, (UINT64_C(1) << KEEL_OP_COUNT) - 1};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        rig r;
        open_with(&r, ops[i]);
        fill(left[i]);
        keel_sink sink = rig_sink(&r, 0, 60);
        assert_int_equal(captured_with("RECORDING PAUSES, no space is left"), 1);
        struct stat file;
        char path[96];
        snprintf(path, sizeof path, "%s/keel-0000.h5", r.directory);
        assert_int_equal(stat(path, &file), i ? 0 : -1);
        rig_write(&r, &sink, 1, 20, 0);
        make_space();
        usleep(1100000); // a new segment is tried once a second
        rig_write(&r, &sink, 21, 30, 0);
        sink.close(sink.context);
        assert_int_equal(captured_with("PAUSES"), 1);
        assert_int_equal(captured_with("recording goes on"), 1);
        assert_int_equal(check_stored(&r, 30), 30);
        rig_close(&r);
    }
}

static bool is_packing(const rig *r) {
    DIR *dir = opendir(r->directory);
    bool found = false;
    for (const struct dirent *entry; (entry = readdir(dir));) found = found || strstr(entry->d_name, ".packed");
    closedir(dir);
    return found;
}

static void test_packing_gives_way_to_rows(void **state) {
    (void)state;
    rig r;
    open_on_disk(&r);
    keel_sink sink = rig_sink(&r, 1 << 20, -1);
    uint64_t step = 1;
    while (!is_packing(&r)) assert_ok(sink.row(sink.context, rig_row(&r, step++, 0)));
    fill(256 << 10); // most of what is left is the copy's
    while (captured_with("PAUSES") == 0) assert_ok(sink.row(sink.context, rig_row(&r, step++, 0)));
    assert_false(is_packing(&r));
    assert_int_equal(captured_with("no space left to pack it"), 1);
    make_space();
    rig_write(&r, &sink, step, step + 5, 0);
    sink.close(sink.context);
    rig_close(&r);
}

static void test_space_that_cannot_be_reserved_is_counted(void **state) {
    (void)state;
    if (!mounted) skip();
    char path[64];
    snprintf(path, sizeof path, "%s/file", disk);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    keel_reserve reserve = {.fd = fd, .counted = true};
    assert_ok(keel_reserve_until(&reserve, path, 1 << 20, 0));
    assert_int_equal(keel_reserve_until(&reserve, path, DISK_BYTES, 0), KEEL_ERR_LIMIT);
    assert_int_equal(keel_reserve_until(&reserve, path, 1 << 20, DISK_BYTES), KEEL_ERR_LIMIT);
    close(fd);
    unlink(path);
}

static void test_reserved_blocks_are_given_back(void **state) {
    (void)state;
    rig r;
    rig_open(&r, SITES, OPS, false);
    keel_sink sink = rig_sink(&r, 0, -1);
    rig_write(&r, &sink, 1, 100, 0);
    sink.close(sink.context);
    char path[96];
    snprintf(path, sizeof path, "%s/keel-0000.h5", r.directory);
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_true(512 * file.st_blocks <= file.st_size + (64 << 10));
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recording_goes_on_with_space),
        cmocka_unit_test(test_full_to_the_end),
        cmocka_unit_test(test_full_from_the_start),
        cmocka_unit_test(test_packing_gives_way_to_rows),
        cmocka_unit_test(test_space_that_cannot_be_reserved_is_counted),
        cmocka_unit_test(test_reserved_blocks_are_given_back),
    };
    return cmocka_run_group_tests(tests, mount_disk, unmount_disk);
}
