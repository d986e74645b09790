// What a log holds that cannot be read: it is left out, counted, and said once with its first line.
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/tools/import_rows.h"
#include "tools/import/importer.h"

#define TABLE "step,loss,lr\n1,3.5,0.1\n2,3.4,0.1\n"
#define LINES "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"loss\": 3.4}\n{\"step\": 3, \"loss\": 3.3}\n"
#define LAST  "{\"step\": 9, \"loss\": 3.1}\n"

typedef struct expected {
    const char *text;
    keel_left_out left_out;
    const char *said; // NULL: nothing
} expected;

static const expected logs[] = {
    // Tables.
    {TABLE, {0}, NULL},
    {TABLE "3,garbage,0.1\n4,3.2,0.1\n",
     {.values = 1, .first_line = 4},
     "in line 4: loss is \"garbage\", which is no number"},
    {TABLE "3,garbage,junk\n4,3.2,0.1\n", {.rows = 1, .first_line = 4}, "in line 4: loss is \"garbage\""},
    {TABLE "x,3.3,0.1\n4,3.2,0.1\n-5,3.1,0.1\n",
     {.rows = 2, .first_line = 4},
     "2 rows; the first in line 4: step is \"x\""},
    {TABLE "1.5,3.3,0.1\n", {.rows = 1, .first_line = 4}, "step is \"1.5\""},
    {TABLE "3,3.3\n4,3.2,0.1,7\n5,3.1,0.1\n", {.rows = 2, .first_line = 4}, "2 cells, and the table has 3 columns"},
    {TABLE ",3.3,0.1\n", {.rows = 1, .first_line = 4}, "its step is empty"},
    {TABLE "3,,0.1\n4,None,0.1\n5, n/a ,null\n6,-,NaN\n7,3.1,0.1\n", {0}, NULL}, // absent, which is nothing wrong
    {TABLE "step,loss,lr\n# a remark\n\n3,3.3,0.1\n", {0}, NULL},
    {TABLE "\x01\x02\xff\xfe\n3,3.3,0.1\n", {.rows = 1, .first_line = 4}, "1 row; the first in line 4"},
    // JSON lines.
    {LINES LAST, {0}, NULL},
    {LINES "{\"step\": 4, \"loss\": \"bad\", \"lr\": 0.1}\n" LAST, {.values = 1, .first_line = 4}, "loss is \"bad\""},
    {LINES "{\"step\": 4, \"loss\": 3.\n{\"step\": 5, \"lo\n" LAST,
     {.lines = 2, .first_line = 4},
     "2 lines; the first in line 4: it is no whole JSON object"},
    {LINES "{\"step\": \"x\", \"loss\": 3.2}\n" LAST, {.rows = 1, .first_line = 4}, "step is \"x\", which is no step"},
    {LINES "{\"step\": -4, \"loss\": 3.2}\n" LAST, {.rows = 1, .first_line = 4}, "step is \"-4\""},
    {LINES "some words\n{\"seed\": 7}\n{\"step\": 4, \"loss\": null}\n" LAST, {0}, NULL},
    // Documents.
    {"{\"log_history\": [\n{\"step\": 1, \"loss\": 3.5},\n{\"step\": 2, \"loss\": \"bad\"},\n{\"step\": 3, \"loss\": "
     "3.3}]}",
     {.rows = 1, .first_line = 3},
     "in line 3: loss is \"bad\""},
    {"[{\"step\": 1, \"loss\": 3.5},\n{\"step\": 2, \"loss\" 3.4},\n{\"step\": 3, \"loss\": 3.3}]",
     {.rows = 1, .first_line = 2},
     "in line 2: it is no JSON object"},
    // Text.
    {"iter 10: loss 3.25, time 1ms\niter 99999999999999999999: loss 3.2, time 1ms\niter 20: loss 3.125, time 1ms\n",
     {.rows = 1, .first_line = 2},
     "no step can be so large"},
    {"{'loss': 3.5, 'epoch': 0.1}\n{'loss': 3.4, 'epo\n{'model': <object at 0x7f>}\n{'loss': 3.3, 'epoch': 0.3}\n",
     {.lines = 1, .first_line = 2},
     "it is no whole object"},
};

static void test_what_cannot_be_read_is_counted_and_said_once(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        capture_log();
        keel_import *import = open_text(logs[i].text, NULL);
        const keel_left_out is = keel_import_left_out(import), *wanted = &logs[i].left_out;
        if (memcmp(&is, wanted, sizeof is) != 0)
            fail_msg("log %zu: %llu lines, %llu rows, %llu values, %llu misplaced, line %llu", i,
                     (unsigned long long)is.lines, (unsigned long long)is.rows, (unsigned long long)is.values,
                     (unsigned long long)is.misplaced, (unsigned long long)is.first_line);
        assert_int_equal(captured.count, logs[i].said ? 1 : 0);
        if (logs[i].said && !captured_with(logs[i].said)) fail_msg("log %zu: %s", i, captured.lines[0]);
        if (logs[i].said) assert_int_equal(captured_with(scratch_log()), 1); // the file
        keel_import_close(import);
    }
    keel_log_set(NULL, NULL);
}

static void test_the_rest_of_a_row_is_kept(void **state) {
    (void)state;
    keel_import *import = open_text(TABLE "3,3.3,junk\nx,9.9,0.3\n5,3.1,0.4\n", NULL);
    check_rows(import, 0,
               (const char *const[]){"1 - loss=3.5 lr=0.1", "2 - loss=3.4 lr=0.1", "3 - loss=3.3",
                                     "5 - loss=3.1 lr=0.4", NULL});
    keel_import_close(import);
}

static void test_lines_that_are_too_long(void **state) {
    (void)state;
    enum { SIZE = KEEL_IMPORT_LINE_BYTES + 4096 };
    static char text[2 * SIZE];
    for (int open = 0; open < 2; open++) { // in the middle; at the end, without a line end
        strcpy(text, LINES);
        const size_t used = strlen(text);
        memset(text + used, 'x', SIZE);
        strcpy(text + used + SIZE, open ? "" : "\n" LAST);
        keel_import *import = open_text(text, NULL);
        const keel_left_out is = keel_import_left_out(import);
        assert_int_equal(is.lines, 1);
        assert_int_equal(is.first_line, 4);
        keel_import_close(import);
    }
}

static void test_an_element_of_a_document_that_is_too_long(void **state) {
    (void)state;
    enum { SIZE = 2 << 20 };
    static char text[SIZE + 4096];
    strcpy(text, "[{\"step\": 1, \"loss\": 3.5},\n{\"step\": 2, \"loss\": 3.4, \"note\": \"");
    const size_t used = strlen(text);
    memset(text + used, 'x', SIZE);
    strcpy(text + used + SIZE, "\"},\n{\"step\": 3, \"loss\": 3.3}]");
    capture_log();
    keel_import *import = open_text(text, NULL);
    assert_int_equal(keel_import_left_out(import).rows, 1);
    assert_int_equal(captured_with("1 row; the first in line 2: it is longer than 1048576 bytes"), 1);
    keel_log_set(NULL, NULL);
    check_rows(import, 0, (const char *const[]){"1 - loss=3.5", "3 - loss=3.3", NULL});
    keel_import_close(import);
}

static void test_a_damaged_event(void **state) {
    (void)state;
    char path[PATH_BYTES], bytes[16 << 10];
    snprintf(path, sizeof path, "%s/events.tfevents", KEEL_TEST_DATA);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    bytes[size - 5] ^= 1; // the last byte before its checksum
    write_log(scratch_log(), bytes, size);
    capture_log();
    keel_import *import = NULL;
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    assert_int_equal(keel_import_left_out(import).rows, 1);
    assert_int_equal(captured_with("has another checksum than it says"), 1);
    keel_log_set(NULL, NULL);
    keel_import_close(import);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_read_is_counted_and_said_once),
        cmocka_unit_test(test_the_rest_of_a_row_is_kept),
        cmocka_unit_test(test_lines_that_are_too_long),
        cmocka_unit_test(test_an_element_of_a_document_that_is_too_long),
        cmocka_unit_test(test_a_damaged_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
