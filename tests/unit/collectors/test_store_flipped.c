// Flipped bits anywhere in a segment, live or packed: a reader gives what was written, or one error that names the
// file.
#include <string.h>

#include "collectors/store/checksum.h"
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/collectors/store_rig.h"

enum { SITES = 40, STEPS = 70, PLACES = 300, INCIDENTS = 3 };
#define OPS ((UINT64_C(1) << KEEL_OP_norm) | (UINT64_C(1) << KEEL_OP_max) | (UINT64_C(1) << KEEL_OP_nans))

static char segment[128];

static void write_run(rig *r, bool packed) {
    rig_open(r, SITES, OPS, true);
    keel_sink sink = rig_sink(r, 0, packed ? 60 : -1);
    rig_write(r, &sink, 1, STEPS, 0);
    for (uint32_t i = 1; i <= INCIDENTS; i++) {
        const keel_incident incident = rig_incident(1, i);
        assert_ok(sink.incident(sink.context, &incident));
    }
    assert_ok(sink.flush(sink.context));
    sink.close(sink.context);
    snprintf(segment, sizeof segment, "%s/keel-0000.h5", r->directory);
}

static keel_status check_rows(rig *r, keel_store_reader *reader) {
    for (uint64_t step = 1;; step++) {
        const keel_row *row;
        keel_store_position position;
        const keel_status status = keel_store_next(reader, &row, &position);
        if (status) return status;
        if (!row) {
            assert_int_equal(step, STEPS + 1);
            return KEEL_OK;
        }
        rig_check_row(r, row, step, 0, 0);
    }
}

static keel_status check_series(keel_store_reader *reader, const char *name, uint32_t site) {
    uint64_t *steps;
    double *values;
    size_t count;
    char key[KEEL_SITE_NAME_BYTES + 32];
    snprintf(key, sizeof key, "layers.%u.weight:%s", site, keel_quantity_name((keel_quantity)site));
    const keel_status status = keel_store_series(reader, name, key, &steps, &values, &count);
    if (status) return status;
    assert_true(count > STEPS / 2);
    for (size_t i = 0; i < count; i++) assert_true(values[i] == (double)rig_u64(steps[i], KEEL_OP_nans, site));
    free(steps);
    free(values);
    return KEEL_OK;
}

static keel_status check_incidents(keel_store_reader *reader) {
    keel_incident *incidents;
    size_t count;
    const keel_status status = keel_store_incidents(reader, &incidents, &count);
    if (status) return status;
    const keel_incident wanted = rig_incident(1, INCIDENTS);
    assert_int_equal(count, 1);
    assert_int_equal(incidents[0].revision, INCIDENTS);
    assert_true(incidents[0].value == wanted.value && incidents[0].last_step == wanted.last_step);
    assert_string_equal(incidents[0].message, wanted.message);
    free(incidents);
    return KEEL_OK;
}

static void check_tables(const rig *r, const keel_run_info *info) {
    assert_string_equal(info->run_id, r->info.run_id);
    assert_string_equal(info->command, r->info.command);
    assert_string_equal(info->config_yaml, r->info.config_yaml);
    assert_int_equal(info->world_size, r->info.world_size);
    assert_int_equal(info->site_count, SITES);
    for (uint32_t s = 0; s < SITES; s++) {
        assert_string_equal(info->sites[s].name, r->sites[s].name);
        assert_int_equal(info->sites[s].numel, r->sites[s].numel);
    }
    for (uint32_t i = 0; i < RIG_SCALARS; i++) assert_string_equal(info->scalar_names[i], rig_scalar_names[i]);
}

// All that a reader gives, by each of its ways, is what was written; else the first failure.
static keel_status read_all(rig *r) {
    keel_store_reader *reader;
    keel_status status = keel_store_open(r->directory, &reader);
    if (status) return status;
    check_tables(r, keel_store_info(reader, 0));
    status = check_rows(r, reader);
    if (!status) status = check_series(reader, "nans", 3);
    if (!status) status = check_incidents(reader);
    keel_store_close(reader);
    return status;
}

static void flip(long place, int bit) {
    FILE *file = fopen(segment, "r+b");
    assert_non_null(file);
    fseek(file, place, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, place, SEEK_SET);
    fputc(byte ^ 1 << bit, file);
    fclose(file);
}

static void test_a_flipped_bit_is_an_error_or_nothing(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        rig r;
        write_run(&r, packed);
        assert_ok(read_all(&r));
        struct stat about;
        assert_int_equal(stat(segment, &about), 0);
        size_t found = 0;
        for (int i = 0; i < PLACES; i++) {
            const long place = (long)((double)about.st_size * (i + 0.37) / PLACES);
            flip(place, i % 8);
            if (read_all(&r)) {
                found++;
                if (!strstr(keel_error(), segment)) fail_msg("byte %ld: %s", place, keel_error());
            }
            flip(place, i % 8);
        }
        assert_ok(read_all(&r));
        assert_true(found > PLACES / 10); // the rest is what a segment has not filled yet
        rig_close(&r);
    }
}

// Where the bytes of one value of DATASET lie, as the file is written: its first chunk.
static long place_of_value(const char *dataset, size_t row_bytes, uint64_t row) {
    const hid_t file = H5Fopen(segment, H5F_ACC_RDONLY, H5P_DEFAULT), set = H5Dopen2(file, dataset, H5P_DEFAULT),
                space = H5Dget_space(set);
    haddr_t address = 0;
    hsize_t bytes, offset[3];
    unsigned mask;
    assert_true(H5Dget_chunk_info(set, space, 0, offset, &mask, &address, &bytes) >= 0);
    H5Sclose(space);
    H5Dclose(set);
    H5Fclose(file);
    return (long)(address + row * row_bytes);
}

static void test_the_error_names_dataset_and_row(void **state) {
    (void)state;
    rig r;
    write_run(&r, false);
    static const struct {
        const char *dataset;
        size_t row_bytes;
    } sets[] = {
        {"/steps", 72}, {"/scalars", 8 * RIG_SCALARS}, {"/stats/max", 8 * SITES}, {"/micro/nans", 8 * 2 * RIG_MICROS}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const long place = place_of_value(sets[i].dataset, sets[i].row_bytes, 17);
        char wanted[192];
        snprintf(wanted, sizeof wanted, "%s: %s row 17 is damaged: its checksum is another", segment, sets[i].dataset);
        flip(place, 3);
        assert_int_equal(read_all(&r), KEEL_ERR_FORMAT);
        assert_string_equal(keel_error(), wanted);
        flip(place, 3);
    }
    rig_close(&r);
    write_run(&r, true);
    const long place = place_of_value("/stats/max", 0, 0) + 20;
    flip(place, 3);
    assert_int_equal(read_all(&r), KEEL_ERR_FORMAT);
    if (!strstr(keel_error(),
                "/keel-0000.h5: cannot read /stats/max (HDF5: data error detected by Fletcher32 checksum"))
        fail_msg("%s", keel_error());
    flip(place, 3);
    rig_close(&r);
}

// A checksum over damaged values would vouch for them.
static void test_what_is_damaged_is_not_packed(void **state) {
    (void)state;
    static const char *const datasets[] = {"/stats/norm", "/micro/max", "/steps"};
    for (size_t i = 0; i < sizeof datasets / sizeof *datasets; i++) {
        rig r;
        write_run(&r, false);
        flip(place_of_value(datasets[i], 0, 0) + 100, 5);
        capture_log();
        rig_job(&r, 0, STEPS + 1, STEPS + 2, 0); // packs what it finds as well
        assert_int_equal(captured_with("stays uncompressed: "), 1);
        assert_int_equal(captured_with("is damaged: its checksum is another"), 1);
        keel_log_set(NULL, NULL);
        rig_close(&r);
    }
}

static void test_sums_of_pieces_and_of_chunks(void **state) {
    (void)state;
    unsigned char bytes[1001], sum[KEEL_CHUNK_CHECKSUM_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37);
    const uint32_t whole = keel_row_checksum(0, bytes, sizeof bytes);
    assert_int_equal(keel_row_checksum(keel_row_checksum(0, bytes, 400), bytes + 400, 601), whole);
    assert_int_equal(
        keel_row_checksum_join(keel_row_checksum(0, bytes, 400), keel_row_checksum(0, bytes + 400, 601), 601), whole);
    keel_chunk_checksum((const unsigned char *)"abcde", 5, sum); // 6162 + 6364 + 6500, by hand
    assert_memory_equal(sum, "\xc7\x29\xf0\x4f", 4);
    memset(bytes, 0xff, sizeof bytes);
    keel_chunk_checksum(bytes, 2, sum); // 65535, which is not 0
    assert_memory_equal(sum, "\xff\xff\xff\xff", 4);
    memset(bytes, 0, sizeof bytes);
    keel_chunk_checksum(bytes, sizeof bytes, sum);
    assert_memory_equal(sum, "\0\0\0\0", 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_flipped_bit_is_an_error_or_nothing, rig_no_handles_left),
        cmocka_unit_test_teardown(test_the_error_names_dataset_and_row, rig_no_handles_left),
        cmocka_unit_test_teardown(test_what_is_damaged_is_not_packed, rig_no_handles_left),
        cmocka_unit_test(test_sums_of_pieces_and_of_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
