// kill -9 of a process that writes a store, at random moments: creation, rows, roll-over, packing. What is left opens
// as it is in our reader and in h5py, and in h5dump after h5clear; no step is missing whose row() had returned.
//
// KEEL_KILLS: how many kills (5); KEEL_SEED: of the moments.
#include "tests/unit/collectors/store_rig.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { SITES = 40, RUNS_IN_A_DIRECTORY = 5 };
#define OPS (UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans)

static _Atomic uint64_t *returned; // the last step whose row() returned, in memory shared with the writer

// Values that the Python script knows.
static const keel_row *plain_row(rig *r, uint64_t step) {
    keel_row_buffer_clear(r->row);
    keel_row_buffer_row(r->row)->step = (keel_step){.step = step, .time_unix = 1e9 + (double)step};
    for (uint32_t i = 0; i < RIG_SCALARS; i++) keel_row_buffer_set_scalar(r->row, i, (double)step + i);
    for (uint32_t s = 0; s < SITES; s++) {
        keel_row_buffer_f64(r->row, KEEL_OP_norm)[s] = (double)(1000 * step + s);
        keel_row_buffer_u64(r->row, KEEL_OP_nans)[s] = 1000 * step + s;
    }
    return keel_row_buffer_row(r->row);
}

static void write_forever(rig *r, uint64_t first) {
    keel_sink sink = rig_sink(r, 200 << 10, 60);
    for (uint64_t step = first;; step++) {
        if (sink.row(sink.context, plain_row(r, step)) != KEEL_OK) _exit(1);
        atomic_store(returned, step);
        if (step % 50 == 0) {
            const keel_incident incident = rig_incident((uint32_t)step, 1);
            if (sink.incident(sink.context, &incident) != KEEL_OK) _exit(1);
        }
        if (step % 4 == 0) usleep(100); // the packer gets its turn
    }
}

static void kill_a_writer(rig *r, uint64_t first, unsigned microseconds) {
    const pid_t writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) write_forever(r, first);
    // The moments are spread over its whole life, the creation of the store included.
    usleep(microseconds);
    int status;
    assert_int_equal(waitpid(writer, &status, WNOHANG), 0);
    kill(writer, SIGKILL);
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_true(WIFSIGNALED(status));
}

// Steps 1.. of all segments, none missing that was returned and at most one more. How many.
static uint64_t check_with_reader(rig *r) {
    keel_store_reader *reader;
    const keel_status status = keel_store_open(r->directory, &reader);
    if (status == KEEL_ERR_FORMAT && strstr(keel_error(), "no store") && atomic_load(returned) == 0) return 0;
    assert_ok(status);
    uint64_t rows = 0;
    const keel_row *row;
    keel_store_position position;
    for (;; rows++) {
        assert_ok(keel_store_next(reader, &row, &position));
        if (!row) break;
        const keel_row *want = plain_row(r, rows + 1);
        assert_int_equal(row->step.step, rows + 1);
        assert_same_cells(row->scalars, want->scalars, RIG_SCALARS);
        assert_same_cells(row->f64[KEEL_OP_norm], want->f64[KEEL_OP_norm], SITES);
        assert_same_cells(row->u64[KEEL_OP_nans], want->u64[KEEL_OP_nans], SITES);
    }
    keel_store_close(reader);
    if (rows < atomic_load(returned) || rows > atomic_load(returned) + 1)
        fail_msg("%llu rows, %llu steps had returned", (unsigned long long)rows,
                 (unsigned long long)atomic_load(returned));
    return rows;
}

static void run_command(const char *format, ...) KEEL_PRINTF(1, 2);
static void run_command(const char *format, ...) {
    char command[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    // A shell, for the pattern of file names; every word is ours.
    if (system(command) != 0) fail_msg("failed: %s", command); // NOLINT
}

static void check_with_others(const rig *r, uint64_t rows) {
    run_command("/usr/bin/python3 - '%s' %llu <<'END'\n"
                "import glob, sys\n"
                "import h5py, numpy as np\n"
                "step = 0\n"
                "for path in sorted(glob.glob(sys.argv[1] + '/keel-????.h5')):\n"
                "    with h5py.File(path, 'r', swmr=True) as f:\n"
                "        n = len(f['steps'])\n"
                "        steps = f['steps']['step']\n"
                "        assert (steps == step + 1 + np.arange(n)).all(), path\n"
                "        step += n\n"
                "        want = 1000 * steps[:, None] + np.arange(%d)\n"
                "        assert (f['stats/norm'][:n] == want).all() and (f['stats/nans'][:n] == want).all(), path\n"
                "        assert (f['scalars'][:n, 0] == steps).all(), path\n"
                "        assert all(len(f['stats'][op]) >= n for op in f['stats']), path\n"
                "assert step == int(sys.argv[2]), step\n"
                "END",
                r->directory, (unsigned long long)rows, SITES);
    run_command("for f in '%s'/keel-????.h5; do h5clear -s \"$f\" && h5dump \"$f\" >/dev/null || exit 1; done",
                r->directory);
}

static void test_kill(void **state) {
    (void)state;
    const char *kills_text = getenv("KEEL_KILLS"), *seed_text = getenv("KEEL_SEED");
    const long kills = kills_text ? strtol(kills_text, NULL, 10) : 5;
    const long seed = seed_text ? strtol(seed_text, NULL, 10) : (long)time(NULL);
    print_message("seed %ld\n", seed);
    srand48(seed);
    long stored = 0;
    for (long kill = 0; kill < kills;) {
        rig r;
        rig_open(&r, SITES, OPS, false);
        atomic_store(returned, 0);
        uint64_t rows = 0;
        for (int i = 0; i < RUNS_IN_A_DIRECTORY && kill < kills; i++, kill++) {
            kill_a_writer(&r, rows + 1, (unsigned)(drand48() * drand48() * 4e5));
            rows = check_with_reader(&r);
            atomic_store(returned, rows); // the last may not have
            if (rows == 0) continue;
            check_with_others(&r, rows);
            assert_int_equal(check_with_reader(&r), rows);
            stored++;
        }
        rig_close(&r);
    }
    assert_true(stored > kills / 2);
}

int main(void) {
    returned = mmap(NULL, sizeof *returned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (returned == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill)};
    return cmocka_run_group_tests(tests, NULL, rig_no_handles_left);
}
