// What is written is read, bit by bit: values, tables, segments, packed ones, incidents, series.
#include "tests/unit/collectors/store_rig.h"

#include "collectors/store/schema.h"
#include "tests/unit/collectors/captured_log.h"

#define ALL_OPS ((UINT64_C(1) << KEEL_OP_COUNT) - 1)

static keel_store_reader *open_store(const char *path) {
    keel_store_reader *reader;
    assert_ok(keel_store_open(path, &reader));
    return reader;
}

// All rows are steps FIRST..LAST, none superseded.
static void check_rows(rig *r, uint64_t first, uint64_t last) {
    keel_store_reader *reader = open_store(r->directory);
    assert_int_equal(keel_store_rows(reader), last - first + 1);
    const keel_row *row;
    keel_store_position position;
    for (uint64_t step = first; step <= last; step++) {
        assert_ok(keel_store_next(reader, &row, &position));
        rig_check_row(r, row, step, 0, 0);
        assert_false(position.superseded);
        assert_false(position.fork);
    }
    assert_ok(keel_store_next(reader, &row, &position));
    assert_null(row);
    keel_store_close(reader);
}

static bool is_packed(const char *directory, unsigned number) {
    char path[128];
    snprintf(path, sizeof path, "%s/keel-%04u.h5", directory, number);
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) return false; // being written
    const bool packed = H5Aexists(file, KEEL_ATTRIBUTE_RISING) > 0;
    H5Fclose(file);
    return packed;
}

static void test_round_trip(void **state) {
    (void)state;
    const struct {
        uint64_t sites, ops, steps;
        bool micro;
    } cases[] = {
        {0, 0, 5, false},         {1, ALL_OPS, 1, false},    {3, ALL_OPS, 300, true},
        {17, ALL_OPS, 130, true}, {600, ALL_OPS, 70, false}, {1030, 1U << KEEL_OP_norm | 1U << KEEL_OP_nans, 300, true},
        {40, ALL_OPS, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_open(&r, (uint32_t)cases[i].sites, cases[i].ops, cases[i].micro);
        for (int packed = 0; packed < 2; packed++) {
            keel_sink sink = rig_sink(&r, 0, packed ? 60 : -1);
            rig_write(&r, &sink, 1, cases[i].steps, 0);
            sink.close(sink.context);
            assert_int_equal(is_packed(r.directory, 0), packed && cases[i].sites > 0);
            check_rows(&r, 1, cases[i].steps);
            char path[128];
            snprintf(path, sizeof path, "%s/keel-0000.h5", r.directory);
            assert_int_equal(unlink(path), 0);
        }
        rig_close(&r);
    }
}

static void test_tables(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 20, ALL_OPS & ~(UINT64_C(1) << KEEL_OP_rms), true);
    rig_job(&r, 0, 1, 3, 0);
    keel_store_reader *reader = open_store(r.directory);
    assert_int_equal(keel_store_segments(reader), 1);
    const keel_run_info *info = keel_store_info(reader, 0);
    assert_string_equal(info->run_id, r.info.run_id);
    assert_string_equal(info->created_utc, r.info.created_utc);
    assert_string_equal(info->host, r.info.host);
    assert_string_equal(info->command, r.info.command);
    assert_string_equal(info->config_yaml, r.info.config_yaml);
    assert_int_equal(info->world_size, 4);
    assert_int_equal(info->dp * 1000 + info->tp * 100 + info->pp * 10 + info->ep, 2211);
    assert_int_equal(info->micro_count, RIG_MICROS);
    assert_int_equal(info->micro_site_count, 2);
    assert_int_equal(info->micro_sites[1], 19);
    assert_int_equal(info->rank_series_count, 3);
    assert_memory_equal(info->rank_series, r.rank_series, sizeof r.rank_series);
    assert_memory_equal(info->rank_op_stored, r.info.rank_op_stored, sizeof info->rank_op_stored);
    assert_int_equal(info->scalar_count, RIG_SCALARS);
    for (int i = 0; i < RIG_SCALARS; i++) assert_string_equal(info->scalar_names[i], rig_scalar_names[i]);
    assert_memory_equal(info->op_stored, r.info.op_stored, sizeof info->op_stored);
    assert_int_equal(info->site_count, 20);
    for (uint32_t s = 0; s < 20; s++) assert_memory_equal(&info->sites[s], &r.sites[s], sizeof *r.sites);
    assert_int_equal(keel_store_state_of(reader), KEEL_STORE_CLOSED);
    keel_store_close(reader);
    rig_close(&r);
}

static void test_segments_roll_over_and_are_packed(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 200, ALL_OPS, false);
    // A segment takes at least the rows of its first chunks.
    rig_job(&r, 8 << 20, 1, 900, 0);
    keel_store_reader *reader = open_store(r.directory);
    const uint32_t segments = keel_store_segments(reader);
    assert_true(segments >= 3);
    for (uint32_t s = 0; s < segments; s++) {
        assert_true(keel_store_segment_rows(reader, s) > 0);
    }
    keel_store_close(reader);
    for (uint32_t s = 0; s < segments; s++) assert_true(is_packed(r.directory, s));
    check_rows(&r, 1, 900);
    rig_close(&r);
}

static void test_a_missing_segment_is_said(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 200, ALL_OPS, false);
    rig_job(&r, 8 << 20, 1, 900, 0);
    keel_store_reader *reader = open_store(r.directory);
    const uint32_t segments = keel_store_segments(reader);
    assert_true(segments >= 3);
    const uint64_t lost = keel_store_segment_rows(reader, 1);
    keel_store_close(reader);
    char path[128];
    snprintf(path, sizeof path, "%s/keel-0001.h5", r.directory);
    assert_int_equal(unlink(path), 0);
    capture_log();
    reader = open_store(r.directory);
    assert_int_equal(keel_store_rows(reader), 900 - lost);
    assert_int_equal(captured_with("keel-0001.h5 is missing"), 1);
    assert_int_equal(captured.count, 1);
    keel_store_close(reader);
    keel_log_set(NULL, NULL);
    rig_close(&r);
}

static void test_packing_goes_on_between_rows(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 200, ALL_OPS, false);
    keel_sink sink = rig_sink(&r, 4 << 20, -1);
    char second[128];
    snprintf(second, sizeof second, "%s/keel-0001.h5", r.directory);
    uint64_t step = 0;
    do { // the helper has the lowest priority: give it time, as training does
        assert_ok(sink.row(sink.context, rig_row(&r, ++step, 0)));
        if (access(second, F_OK) == 0) usleep(2000);
    } while (!is_packed(r.directory, 0) && step < 10000);
    assert_true(step < 10000);
    sink.close(sink.context);
    check_rows(&r, 1, step);
    rig_close(&r);
}

static void test_what_a_killed_packer_leaves_is_removed(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 10, ALL_OPS, false);
    keel_sink sink = rig_sink(&r, 0, -1);
    rig_write(&r, &sink, 1, 20, 0);
    sink.close(sink.context);
    const char *const leftovers[] = {"keel-0000.h5.packed", "keel-0001.h5.new"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", r.directory, leftovers[i]);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("half a file", file);
        fclose(file);
    }
    check_rows(&r, 1, 20); // a reader does not look at them
    assert_false(is_packed(r.directory, 0));
    rig_job(&r, 0, 21, 30, 0); // packs what the first job left
    assert_true(is_packed(r.directory, 0) && is_packed(r.directory, 1));
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", r.directory, leftovers[i]);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    rig_close(&r);
}

// Steps, attempt by attempt, whether they are superseded, and where a run was resumed.
static void check_attempts(rig *r, const uint64_t (*want)[4], size_t count) {
    keel_store_reader *reader = open_store(r->directory);
    assert_int_equal(keel_store_rows(reader), count);
    for (size_t i = 0; i < count; i++) {
        const keel_row *row;
        keel_store_position position;
        assert_ok(keel_store_next(reader, &row, &position));
        rig_check_row(r, row, want[i][0], want[i][1], 0);
        if (position.superseded != want[i][2] || position.fork != want[i][3])
            fail_msg("row %zu: step %d, superseded %d, fork %d", i, (int)want[i][0], position.superseded,
                     position.fork);
    }
    keel_store_close(reader);
}

static void test_a_resume_supersedes(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        rig r;
        rig_open(&r, 4, ALL_OPS, false);
        const uint64_t jobs[][3] = {{1, 6, 0}, {4, 8, 1}, {6, 6, 2}, {7, 9, 3}};
        for (size_t i = 0; i < 4; i++) {
            keel_sink sink = rig_sink(&r, 0, packed ? 60 : -1);
            rig_write(&r, &sink, jobs[i][0], jobs[i][1], jobs[i][2]);
            sink.close(sink.context);
        }
        const uint64_t want[][4] = {{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 1, 0}, {5, 0, 1, 0},
                                    {6, 0, 1, 0}, {4, 1, 0, 1}, {5, 1, 0, 0}, {6, 1, 1, 0}, {7, 1, 1, 0},
                                    {8, 1, 1, 0}, {6, 2, 0, 1}, {7, 3, 0, 1}, {8, 3, 0, 0}, {9, 3, 0, 0}};
        check_attempts(&r, want, sizeof want / sizeof *want);

        keel_store_reader *reader = open_store(r.directory);
        uint64_t *steps;
        double *values;
        size_t count;
        assert_ok(keel_store_series(reader, "loss", NULL, &steps, &values, &count));
        size_t k = 0;
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            const keel_row *row = rig_row(&r, want[i][0], want[i][1]);
            if (want[i][2] || !row->scalar_set[0]) continue;
            assert_int_equal(steps[k], want[i][0]);
            assert_memory_equal(&values[k], &row->scalars[0], sizeof(double));
            k++;
        }
        assert_int_equal(k, count);
        free(steps);
        free(values);
        keel_store_close(reader);
        rig_close(&r);
    }
}

static void test_a_rollback_within_a_segment(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, ALL_OPS, false);
    keel_sink sink = rig_sink(&r, 0, 60);
    rig_write(&r, &sink, 1, 4, 0);
    rig_write(&r, &sink, 3, 5, 1);
    sink.close(sink.context);
    const uint64_t want[][4] = {{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 1, 0}, {4, 0, 1, 0},
                                {3, 1, 0, 1}, {4, 1, 0, 0}, {5, 1, 0, 0}};
    check_attempts(&r, want, sizeof want / sizeof *want);
    rig_close(&r);
}

static void test_series_of_sites(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 530, ALL_OPS, false);
    rig_job(&r, 4 << 20, 1, 400, 0);
    keel_store_reader *reader = open_store(r.directory);
    const struct {
        const char *op, *site;
        keel_op id;
        uint32_t index;
    } wanted[] = {{"norm", "layers.0.weight:weight", KEEL_OP_norm, 0},
                  {"nans", "layers.529.weight:grad_unreduced", KEEL_OP_nans, 529}};
    for (size_t w = 0; w < 2; w++) {
        uint64_t *steps;
        double *values;
        size_t count, k = 0;
        assert_ok(keel_store_series(reader, wanted[w].op, wanted[w].site, &steps, &values, &count));
        for (uint64_t step = 1; step <= 400; step++) {
            const double value = keel_row_value(rig_row(&r, step, 0), wanted[w].id, wanted[w].index);
            if (keel_is_not_collected(value)) continue;
            assert_true(k < count);
            assert_int_equal(steps[k], step);
            assert_true(values[k] == value || (isnan(values[k]) && isnan(value)));
            k++;
        }
        assert_int_equal(k, count);
        free(steps);
        free(values);
    }
    uint64_t *steps;
    double *values;
    size_t count;
    const char *const missing[][2] = {{"norm", "layers.0.weight:update"},
                                      {"norm", "layers.0.weight"},
                                      {"size", "layers.0.weight:weight"},
                                      {"losses", NULL}};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(keel_store_series(reader, missing[i][0], missing[i][1], &steps, &values, &count),
                         KEEL_ERR_NOT_FOUND);
    keel_store_close(reader);
    rig_close(&r);
}

static void test_a_cursor_reads_what_is_wanted(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 30, ALL_OPS, true);
    rig_job(&r, 0, 1, 10, 0);
    keel_store_reader *reader = open_store(r.directory);
    const keel_row *row;
    keel_store_position position;
    assert_ok(keel_store_next(reader, &row, &position));
    bool ops[KEEL_OP_COUNT] = {[KEEL_OP_std] = true};
    keel_store_want(reader, ops, false);
    for (uint64_t step = 1; step <= 10; step++) {
        assert_ok(keel_store_next(reader, &row, &position));
        assert_int_equal(row->step.step, step);
        const keel_row *want = rig_row(&r, step, 0);
        assert_memory_equal(row->f64[KEEL_OP_std], want->f64[KEEL_OP_std], 30 * sizeof(double));
        assert_null(row->f64[KEEL_OP_norm]);
        assert_null(row->micro_f64[KEEL_OP_std]);
    }
    assert_ok(keel_store_rewind(reader));
    assert_ok(keel_store_next(reader, &row, &position));
    assert_int_equal(row->step.step, 1);
    keel_store_close(reader);
    rig_close(&r);
}

static void test_incidents(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        rig r;
        rig_open(&r, 4, ALL_OPS, false);
        const uint32_t writes[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 1, 2}, {1, 2, 2}, {1, 3, 1}}; // job, id, revision
        for (uint32_t job = 0; job < 2; job++) {
            keel_sink sink = rig_sink(&r, 0, packed ? 60 : -1);
            rig_write(&r, &sink, 1 + 10 * job, 10 + 10 * job, 0);
            for (size_t i = 0; i < 5; i++) {
                const keel_incident incident = rig_incident(writes[i][1], writes[i][2]);
                if (writes[i][0] == job) assert_ok(sink.incident(sink.context, &incident));
            }
            sink.close(sink.context);
        }
        keel_store_reader *reader = open_store(r.directory);
        keel_incident *incidents;
        size_t count;
        assert_ok(keel_store_incidents(reader, &incidents, &count));
        assert_int_equal(count, 3);
        const uint32_t last[] = {2, 2, 1};
        for (uint32_t i = 0; i < 3; i++) {
            const keel_incident want = rig_incident(i + 1, last[i]);
            assert_memory_equal(&incidents[i], &want, sizeof want);
        }
        free(incidents);
        keel_store_close(reader);
        rig_close(&r);
    }
}

static void test_two_writers_are_refused(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, ALL_OPS, false);
    keel_sink first = rig_sink(&r, 0, -1), second;
    assert_int_equal(keel_store_sink_open(r.directory, &(keel_store_options){0}, &second), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), r.directory));
    rig_write(&r, &first, 1, 3, 0);
    first.close(first.context);
    assert_ok(keel_store_sink_open(r.directory, &(keel_store_options){0}, &second));
    second.close(second.context);
    check_rows(&r, 1, 3);
    rig_close(&r);
}

static void test_directories_are_made_or_refused(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, ALL_OPS, false);
    keel_sink sink;
    char path[160];
    snprintf(path, sizeof path, "%s/a/b/", r.directory);
    assert_ok(keel_store_sink_open(path, &(keel_store_options){0}, &sink));
    assert_int_equal(access(path, F_OK), 0);
    sink.close(sink.context); // of a run that never began nothing is left
    snprintf(path, sizeof path, "%s/a", r.directory);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(r.directory, F_OK), 0);

    assert_int_equal(keel_store_sink_open("", &(keel_store_options){0}, &sink), KEEL_ERR_USAGE);
    snprintf(path, sizeof path, "%s/file", r.directory);
    FILE *file = fopen(path, "w");
    fclose(file);
    assert_int_equal(keel_store_sink_open(path, &(keel_store_options){0}, &sink), KEEL_ERR_IO);
    assert_non_null(strstr(keel_error(), path));

    const uid_t user = geteuid(), nobody = 65534;
    assert_int_equal(chmod(r.directory, 0555), 0);
    if (user == 0) assert_int_equal(seteuid(nobody), 0); // root may write anywhere
    assert_int_equal(keel_store_sink_open(r.directory, &(keel_store_options){0}, &sink), KEEL_ERR_IO);
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_non_null(strstr(keel_error(), "cannot write there"));
    chmod(r.directory, 0755);
    rig_close(&r);
}

static size_t stored_incidents(const rig *r) {
    keel_store_reader *reader;
    keel_incident *incidents;
    size_t count;
    assert_ok(keel_store_open(r->directory, &reader));
    assert_ok(keel_store_incidents(reader, &incidents, &count));
    free(incidents);
    keel_store_close(reader);
    return count;
}

static void test_an_incident_waits_for_no_row(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, ALL_OPS, false);
    keel_sink sink = rig_sink(&r, 0, -1);
    capture_log();
    rig_write(&r, &sink, 1, 5, 0);
    rig_remove_directory(r.directory);
    const keel_incident first = rig_incident(1, 1), second = rig_incident(2, 1);
    assert_ok(sink.incident(sink.context, &first));
    assert_int_equal(captured_with("RECORDING PAUSES"), 1);
    assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO);
    assert_non_null(strstr(keel_error(), "0 steps and 1 incidents wait"));
    usleep(1100000);
    sink.idle(sink.context); // nothing else comes
    assert_ok(sink.flush(sink.context));
    assert_int_equal(stored_incidents(&r), 1);
    rig_remove_directory(r.directory);
    assert_ok(sink.incident(sink.context, &second));
    char path[96];
    snprintf(path, sizeof path, "%s", r.directory);
    FILE *file = fopen(path, "w"); // no directory can be made there
    fclose(file);
    sink.close(sink.context);
    assert_int_equal(captured_with("the last 0 steps and 1 incidents could not be written"), 1);
    keel_log_set(NULL, NULL);
    unlink(path);
    rig_close(&r);
}

static void test_a_deleted_directory_pauses_recording(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 4, ALL_OPS, false);
    keel_sink sink = rig_sink(&r, 0, 60);
    capture_log();
    rig_write(&r, &sink, 1, 5, 0);
    rig_remove_directory(r.directory);
    rig_write(&r, &sink, 6, 40, 0);
    const keel_incident incident = rig_incident(1, 1);
    assert_ok(sink.incident(sink.context, &incident));
    assert_int_equal(captured_with("RECORDING PAUSES"), 1);
    assert_int_equal(captured_with("deleted"), 1);
    assert_int_equal(sink.flush(sink.context), KEEL_ERR_IO);
    usleep(1100000); // it is tried again once a second, and made again
    assert_ok(sink.flush(sink.context));
    assert_int_equal(captured_with("recording goes on. 0 steps and 0 incidents were lost"), 1);
    rig_write(&r, &sink, 41, 42, 0);
    assert_ok(sink.flush(sink.context));
    keel_sink other; // the new directory is locked as well
    assert_int_equal(keel_store_sink_open(r.directory, &(keel_store_options){0}, &other), KEEL_ERR_USAGE);
    sink.close(sink.context);
    keel_log_set(NULL, NULL);
    check_rows(&r, 6, 42);
    rig_close(&r);
}

// ---- what is no store ----

static void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void assert_refused(const char *path, keel_status status, const char *what) {
    keel_store_reader *reader;
    const keel_status got = keel_store_open(path, &reader);
    if (got != status || !strstr(keel_error(), what) || !strstr(keel_error(), path))
        fail_msg("%s: %s: %s; expected %s", path, keel_status_name(got), keel_error(), what);
}

static void test_what_is_no_store(void **state) {
    (void)state;
    rig r;
    rig_open(&r, 40, ALL_OPS, false);
    char path[128], cut[128];
    snprintf(path, sizeof path, "%s/none", r.directory);
    assert_refused(path, KEEL_ERR_NOT_FOUND, "No such file");
    assert_refused(r.directory, KEEL_ERR_FORMAT, "no keel-NNNN.h5");
    snprintf(path, sizeof path, "%s/keel-0000.h5", r.directory);
    write_file(path, "loss: 3\n", 8);
    assert_refused(path, KEEL_ERR_FORMAT, "not an HDF5 file");
    write_file(path, "", 0);
    assert_refused(path, KEEL_ERR_FORMAT, "not an HDF5 file");
    unlink(path);

    rig_job(&r, 0, 1, 100, 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(size);
    assert_int_equal(fread(bytes, 1, size, file), size);
    fclose(file);
    snprintf(cut, sizeof cut, "%s/cut.h5", r.directory);
    const size_t lengths[] = {size - 1, size / 2, 100, 48, 20, 9};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_file(cut, bytes, lengths[i]);
        assert_refused(cut, KEEL_ERR_FORMAT, "truncated");
    }
    // Any single byte of the first pages may be wrong: one clear failure or the right rows, and no crash.
    for (size_t i = 0; i < size && i < 20000; i += 61) {
        bytes[i] = (char)(bytes[i] ^ 0x55);
        write_file(cut, bytes, size);
        bytes[i] = (char)(bytes[i] ^ 0x55);
        keel_store_reader *reader;
        if (keel_store_open(cut, &reader) != KEEL_OK) {
            assert_non_null(strstr(keel_error(), cut));
            continue;
        }
        const keel_row *row;
        keel_store_position position;
        while (keel_store_next(reader, &row, &position) == KEEL_OK && row) {
        }
        keel_store_close(reader);
    }
    free(bytes);
    rig_close(&r);
}

// The fuzzer's seeds are what they should be: stores, of this schema.
static void test_the_corpus_opens(void **state) {
    (void)state;
    const struct {
        const char *name;
        uint64_t rows;
        keel_store_state state;
        bool ranks; // the others are from before there were series of single ranks
    } seeds[] = {{"closed.h5", 4, KEEL_STORE_CLOSED, false},
                 {"packed.h5", 4, KEEL_STORE_CLOSED, false},
                 {"killed.h5", 4, KEEL_STORE_KILLED, false},
                 {"rollback.h5", 7, KEEL_STORE_CLOSED, false},
                 {"ranks.h5", 4, KEEL_STORE_CLOSED, true}};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        rig r;
        rig_open(&r, 3, UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans, true);
        if (!seeds[i].ranks) rig_forget_ranks(&r);
        char path[512];
        snprintf(path, sizeof path, KEEL_SOURCE_DIR "/tests/fuzz/corpus/store/%s", seeds[i].name);
        keel_store_reader *reader = open_store(path);
        assert_int_equal(keel_store_rows(reader), seeds[i].rows);
        assert_int_equal(keel_store_state_of(reader), seeds[i].state);
        if (seeds[i].rows == 4) {
            const keel_row *row;
            keel_store_position position;
            assert_ok(keel_store_next(reader, &row, &position));
            rig_check_row(&r, row, 1, 0, 0);
        }
        keel_store_close(reader);
        rig_close(&r);
    }
}

// HDF5 1.10 leaks what it had of a damaged object.
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5";
}
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void) {
    return "print_suppressions=0";
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_segments_roll_over_and_are_packed),
        cmocka_unit_test(test_a_missing_segment_is_said),
        cmocka_unit_test(test_packing_goes_on_between_rows),
        cmocka_unit_test(test_what_a_killed_packer_leaves_is_removed),
        cmocka_unit_test(test_a_resume_supersedes),
        cmocka_unit_test(test_a_rollback_within_a_segment),
        cmocka_unit_test(test_series_of_sites),
        cmocka_unit_test(test_a_cursor_reads_what_is_wanted),
        cmocka_unit_test(test_incidents),
        cmocka_unit_test(test_two_writers_are_refused),
        cmocka_unit_test(test_directories_are_made_or_refused),
        cmocka_unit_test(test_an_incident_waits_for_no_row),
        cmocka_unit_test(test_a_deleted_directory_pauses_recording),
        cmocka_unit_test(test_what_is_no_store),
        cmocka_unit_test(test_the_corpus_opens),
    };
    return cmocka_run_group_tests(tests, NULL, rig_no_handles_left);
}
