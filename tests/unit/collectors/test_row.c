#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "collectors/incident.h"
#include "collectors/row.h"

enum { SITES = 70, MICROS = 2, MICRO_SITES = 1 };

// A frame of three scalars, of which the second merges by max.
typedef struct fixture {
    keel_frame *frame;
    keel_site_info sites[SITES];
    uint64_t op_mask[SITES];
    uint32_t micro_sites[MICRO_SITES];
    keel_run_info info;
    keel_row_buffer *buffer;
    const keel_row *row;
} fixture;

static const keel_rank_series rank_series[] = {{0, 3}, {1, 3}, {1, 69}};
enum { RANK_SERIES = sizeof rank_series / sizeof *rank_series };
static const uint64_t rank_ops[RANK_SERIES] = {
    UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans,
    UINT64_C(1) << KEEL_OP_norm | UINT64_C(1) << KEEL_OP_nans,
    UINT64_C(1) << KEEL_OP_max,
};

static const char *const names[] = {"loss", "loss_max", "lr", "loss_max_rank"};

static void open_fixture(fixture *f, const uint64_t *op_mask) {
    memset(f, 0, sizeof *f);
    f->frame = keel_frame_init(aligned_alloc(64, (keel_frame_bytes(3, SITES, MICROS, MICRO_SITES) + 63) / 64 * 64), 3,
                               SITES, MICROS, MICRO_SITES);
    keel_frame_scalars(f->frame)[1].merge = KEEL_SCALAR_MAX;
    f->micro_sites[0] = 69;
    f->info = (keel_run_info){.micro_count = MICROS,
                              .site_count = SITES,
                              .sites = f->sites,
                              .scalar_count = 4,
                              .scalar_names = names,
                              .op_mask = op_mask,
                              .micro_site_count = MICRO_SITES,
                              .micro_sites = f->micro_sites,
                              .rank_series_count = RANK_SERIES,
                              .rank_series = rank_series,
                              .rank_op_mask = rank_ops};
    f->info.rank_op_stored[KEEL_OP_norm] = f->info.rank_op_stored[KEEL_OP_nans] = true;
    f->info.rank_op_stored[KEEL_OP_max] = true;
    for (int op = 0; op < KEEL_OP_COUNT; op++) f->info.op_stored[op] = true;
    f->info.op_stored[KEEL_OP_rms] = false;
    assert_int_equal(keel_row_buffer_open(&f->info, &f->buffer), KEEL_OK);
    f->row = keel_row_buffer_row(f->buffer);
}

static void close_fixture(fixture *f) {
    keel_row_buffer_close(f->buffer);
    free(f->frame);
}

static void observe(keel_stats *stats, uint32_t fields, const float *data, size_t n) {
    keel_stats_observe(stats, &(keel_stats_params){.fields = fields, .eps = 1e-8, .scale = 1}, KEEL_F32, data, n);
    keel_stats_seal_rank(stats, 0, 0, 1);
}

static void assert_bits(double value, uint64_t bits) {
    uint64_t got;
    memcpy(&got, &value, sizeof got);
    assert_int_equal(got, bits);
}

static void test_absence_differs_from_nan(void **state) {
    (void)state;
    assert_true(isnan(keel_not_collected()));
    assert_true(keel_is_not_collected(keel_not_collected()));
    assert_false(keel_is_not_collected(NAN));
    assert_false(keel_is_not_collected(-NAN));
    assert_false(keel_is_not_collected(0));
}

static void test_fill_takes_every_view(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    const float data[] = {3, -4, 0, 1e-9F};
    const float sick[] = {1, NAN, INFINITY};
    observe(&keel_frame_stats(f.frame)[1], KEEL_FIELDS_ALL, data, 4);
    observe(&keel_frame_stats(f.frame)[69], KEEL_FIELDS_BASE, sick, 3);
    observe(keel_frame_micro(f.frame, 1, 0), KEEL_FIELDS_BASE, data, 4);
    f.frame->step = (keel_step){.step = 7, .update = 6, .flags = KEEL_STEP_SKIPPED};
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 3);

    assert_int_equal(f.row->step.step, 7);
    assert_int_equal(f.row->step.flags, KEEL_STEP_SKIPPED);
    assert_int_equal(f.row->dropped_frames, 3);
    assert_true(fabs(f.row->f64[KEEL_OP_norm][1] - 5) < 1e-12);
    assert_true(f.row->f64[KEEL_OP_max][1] == 3 && f.row->f64[KEEL_OP_min][1] == -4);
    assert_true(f.row->f64[KEEL_OP_zeros][1] == 0.25 && f.row->f64[KEEL_OP_near_zero][1] == 0.5);
    assert_int_equal(f.row->u64[KEEL_OP_nans][1], 0);
    assert_int_equal(f.row->u64[KEEL_OP_rank_nonfinite][1], KEEL_NOT_COLLECTED);
    // A sick tensor: measured, not absent, and the same NaN wherever it came from.
    assert_bits(f.row->f64[KEEL_OP_norm][69], UINT64_C(0x7ff8000000000000));
    assert_int_equal(f.row->u64[KEEL_OP_nans][69], 1);
    assert_int_equal(f.row->u64[KEEL_OP_infs][69], 1);
    assert_int_equal(f.row->u64[KEEL_OP_rank_nonfinite][69], 0);
    // Its half group was not observed.
    assert_bits(f.row->f64[KEEL_OP_underflow][69], KEEL_NOT_COLLECTED_BITS);
    assert_int_equal(f.row->u64[KEEL_OP_not_bf16][69], KEEL_NOT_COLLECTED);
    // Nothing was observed here.
    assert_bits(f.row->f64[KEEL_OP_norm][0], KEEL_NOT_COLLECTED_BITS);
    assert_int_equal(f.row->u64[KEEL_OP_nans][0], KEEL_NOT_COLLECTED);
    assert_null(f.row->f64[KEEL_OP_rms]);

    assert_bits(f.row->micro_f64[KEEL_OP_max][0], KEEL_NOT_COLLECTED_BITS);
    assert_true(f.row->micro_f64[KEEL_OP_max][1] == 3);
    assert_true(keel_row_value(f.row, KEEL_OP_nans, 69) == 1);
    assert_true(keel_is_not_collected(keel_row_value(f.row, KEEL_OP_nans, 0)));
    assert_true(keel_is_not_collected(keel_row_value(f.row, KEEL_OP_rms, 1)));
    close_fixture(&f);
}

static void test_flags_alone(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    const float sick[] = {1, NAN};
    observe(&keel_frame_stats(f.frame)[2], KEEL_FIELDS_FLAGS, sick, 2);
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 0);
    assert_int_equal(f.row->u64[KEEL_OP_nans][2], 1);
    assert_int_equal(f.row->u64[KEEL_OP_infs][2], 0);
    assert_bits(f.row->f64[KEEL_OP_norm][2], KEEL_NOT_COLLECTED_BITS);
    close_fixture(&f);
}

static void test_mask_keeps_what_was_asked(void **state) {
    (void)state;
    fixture f;
    uint64_t mask[SITES] = {[1] = UINT64_C(1) << KEEL_OP_max, [69] = UINT64_C(1) << KEEL_OP_nans};
    open_fixture(&f, mask);
    const float data[] = {3, -4};
    observe(&keel_frame_stats(f.frame)[1], KEEL_FIELDS_ALL, data, 2);
    observe(keel_frame_micro(f.frame, 0, 0), KEEL_FIELDS_ALL, data, 2);
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 0);
    assert_true(f.row->f64[KEEL_OP_max][1] == 3);
    assert_bits(f.row->f64[KEEL_OP_norm][1], KEEL_NOT_COLLECTED_BITS);
    assert_int_equal(f.row->u64[KEEL_OP_nans][1], KEEL_NOT_COLLECTED);
    // Only what a site with micro-batches keeps has a place there.
    assert_null(f.row->micro_f64[KEEL_OP_max]);
    assert_int_equal(f.row->micro_u64[KEEL_OP_nans][0], 0);
    close_fixture(&f);
}

static void test_scalars_and_their_owners(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    keel_scalar_value *values = keel_frame_scalars(f.frame);
    values[0] = (keel_scalar_value){.value = NAN, .owner = 0, .merge = KEEL_SCALAR_FIRST};
    values[1] = (keel_scalar_value){.value = 8.5, .owner = 3, .merge = KEEL_SCALAR_MAX};
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 0);
    assert_true(f.row->scalar_set[0]);
    assert_bits(f.row->scalars[0], UINT64_C(0x7ff8000000000000));
    assert_true(f.row->scalars[1] == 8.5 && f.row->scalars[3] == 3);
    assert_false(f.row->scalar_set[2]);
    assert_bits(f.row->scalars[2], KEEL_NOT_COLLECTED_BITS);
    assert_int_equal(keel_run_scalar(&f.info, "loss_max_rank"), 3);
    assert_int_equal(keel_run_scalar(&f.info, "nothing"), -1);
    // The next step forgets them.
    values[0].owner = values[1].owner = KEEL_RANK_NONE;
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 0);
    assert_false(f.row->scalar_set[0] || f.row->scalar_set[1] || f.row->scalar_set[3]);
    close_fixture(&f);
}

static void test_copy_is_the_same_row(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    const float data[] = {3, -4};
    observe(&keel_frame_stats(f.frame)[1], KEEL_FIELDS_ALL, data, 2);
    observe(keel_frame_micro(f.frame, 1, 0), KEEL_FIELDS_ALL, data, 2);
    f.frame->step.step = 9;
    keel_row_buffer_fill(f.buffer, f.frame, NULL, 5);
    keel_row_buffer_set_scalar(f.buffer, 2, 0.5);
    keel_row_buffer *copy;
    assert_int_equal(keel_row_buffer_open(&f.info, &copy), KEEL_OK);
    keel_row_buffer_copy(copy, f.row);
    const keel_row *row = keel_row_buffer_row(copy);
    assert_int_equal(row->step.step, 9);
    assert_int_equal(row->dropped_frames, 5);
    assert_true(row->scalars[2] == 0.5 && row->scalar_set[2] && !row->scalar_set[0]);
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        if (f.row->f64[op]) assert_memory_equal(row->f64[op], f.row->f64[op], SITES * sizeof(double));
        if (f.row->u64[op]) assert_memory_equal(row->u64[op], f.row->u64[op], SITES * sizeof(uint64_t));
        if (f.row->micro_f64[op]) assert_memory_equal(row->micro_f64[op], f.row->micro_f64[op], 2 * sizeof(double));
    }
    keel_row_buffer_close(copy);
    close_fixture(&f);
}

static void test_buffers_of_other_kind_are_null(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    assert_non_null(keel_row_buffer_f64(f.buffer, KEEL_OP_norm));
    assert_null(keel_row_buffer_u64(f.buffer, KEEL_OP_norm));
    assert_null(keel_row_buffer_f64(f.buffer, KEEL_OP_nans));
    assert_null(keel_row_buffer_f64(f.buffer, KEEL_OP_rms));
    close_fixture(&f);
}

static void test_text_is_cut_between_characters(void **state) {
    (void)state;
    char text[8];
    assert_true(keel_text_fit(text, sizeof text, "sevenxx"));
    assert_string_equal(text, "sevenxx");
    assert_false(keel_text_fit(text, sizeof text, "eight888"));
    assert_string_equal(text, "eigh...");
    assert_false(keel_text_fit(text, sizeof text,
                               "abc\xc3\xa4"
                               "efg")); // a character of two bytes at the cut
    assert_string_equal(text, "abc...");
    assert_false(keel_text_fit(text, sizeof text,
                               "ab\xe2\x80\x94"
                               "efg")); // three
    assert_string_equal(text, "ab...");
    assert_false(keel_text_fit(text, sizeof text,
                               "\xf0\x9f\x98\x80"
                               "efgh")); // four, all before it
    assert_string_equal(text, "\xf0\x9f\x98\x80...");
    assert_true(keel_text_fit(text, sizeof text, ""));
    assert_string_equal(text, "");
}

static void test_severities_have_names(void **state) {
    (void)state;
    keel_severity severity;
    for (int i = KEEL_INFO; i <= KEEL_CRITICAL; i++) {
        assert_true(keel_severity_find(keel_severity_name((keel_severity)i), &severity));
        assert_int_equal(severity, i);
    }
    assert_false(keel_severity_find("fatal", &severity));
}

static void test_values_of_single_ranks(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, NULL);
    const float data[] = {3, -4}, sick[] = {NAN};
    keel_stats healthy, ill;
    keel_stats_clear(&healthy);
    keel_stats_clear(&ill);
    observe(&healthy, KEEL_FIELDS_BASE, data, 2);
    observe(&ill, KEEL_FIELDS_FLAGS, sick, 1); // not due: flags alone
    // As the ranks send them: series by series, the ops of each in order.
    const keel_op ops[] = {KEEL_OP_norm, KEEL_OP_nans};
    const uint64_t values[] = {keel_op_bits(&healthy, ops[0]), keel_op_bits(&healthy, ops[1]),
                               keel_op_bits(&ill, ops[0]), keel_op_bits(&ill, ops[1]), keel_op_absent(KEEL_OP_max)};
    keel_row_buffer_fill(f.buffer, f.frame, values, 0);
    assert_true(keel_row_rank_value(f.row, KEEL_OP_norm, 0) == 5);
    assert_int_equal(f.row->rank_u64[KEEL_OP_nans][0], 0);
    assert_true(keel_is_not_collected(keel_row_rank_value(f.row, KEEL_OP_max, 0)));
    assert_true(keel_is_not_collected(f.row->rank_f64[KEEL_OP_norm][1]));
    assert_int_equal(f.row->rank_u64[KEEL_OP_nans][1], 1);
    assert_true(keel_is_not_collected(f.row->rank_f64[KEEL_OP_max][2]));
    assert_int_equal(f.row->rank_u64[KEEL_OP_nans][2], KEEL_NOT_COLLECTED);
    assert_null(f.row->rank_f64[KEEL_OP_min]);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_of_single_ranks),         cmocka_unit_test(test_absence_differs_from_nan),
        cmocka_unit_test(test_fill_takes_every_view),          cmocka_unit_test(test_flags_alone),
        cmocka_unit_test(test_mask_keeps_what_was_asked),      cmocka_unit_test(test_scalars_and_their_owners),
        cmocka_unit_test(test_copy_is_the_same_row),           cmocka_unit_test(test_buffers_of_other_kind_are_null),
        cmocka_unit_test(test_text_is_cut_between_characters), cmocka_unit_test(test_severities_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
