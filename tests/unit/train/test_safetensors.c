#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "tests/unit/temp_folder.h"
#include "tests/unit/train/tensor_file.h"
#include "train/atomic_file.h"
#include "train/safetensors.h"

// A file of HEADER and SIZE data bytes 0, 1, 2, ...
static char *make_file(const char *dir, const char *header, size_t size) {
    char *path = temp_path(dir, "x.safetensors");
    const size_t length = strlen(header);
    uint8_t *bytes = calloc(1, 8 + length + size);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < size; i++) bytes[8 + length + i] = (uint8_t)i;
    temp_write(path, bytes, 8 + length + size);
    free(bytes);
    return path;
}

static void expect_refused(const char *path, keel_status status, const char *text) {
    keel_safetensors *file = NULL;
    assert_int_equal(keel_safetensors_open(path, &file), status);
    assert_null(file);
    if (!strstr(keel_error(), text)) fail_msg("\"%s\" is not in \"%s\"", text, keel_error());
    assert_non_null(strstr(keel_error(), path));
}

static keel_status read_whole(const keel_safetensors *file, const keel_safetensor *tensor, float *out) {
    return keel_safetensors_read_f32(file, tensor, 0, tensor->numel, out);
}

static void test_written_files_come_back(void **state) {
    const char *path = temp_path(*state, "w.safetensors");
    const float a[6] = {1, -2, 0.5f, 3e38f, 1e-45f, 0}, b = 7;
    const uint8_t c[3] = {1, 2, 3};
    const keel_safetensors_item items[] = {
        {"a", "F32", 2, {2, 3}}, {"\"b\"", "F32", 0, {0}}, {"c", "U8", 1, {3}}, {"none", "F32", 1, {0}}};
    const void *const data[] = {a, &b, c, NULL};
    const keel_safetensors_text texts[] = {{"format", "pt"}, {"key", "value \"quoted\""}};
    for (int checksum = 0; checksum < 2; checksum++) {
        assert_int_equal(
            tensor_file_write(
                path,
                &(keel_safetensors_content){
                    .items = items, .item_count = 4, .texts = texts, .text_count = 2, .checksum = checksum == 1},
                data),
            KEEL_OK);
        keel_safetensors *file = NULL;
        assert_int_equal(keel_safetensors_open(path, &file), KEEL_OK);
        size_t count;
        keel_safetensors_list(file, &count);
        assert_int_equal(count, 4 + checksum);
        float read[6];
        const keel_safetensor *tensor = keel_safetensors_find(file, "a");
        assert_int_equal(keel_safetensors_expect_shape(file, tensor, 2, items[0].shape), KEEL_OK);
        assert_int_equal(read_whole(file, tensor, read), KEEL_OK);
        assert_memory_equal(read, a, sizeof a);
        tensor = keel_safetensors_find(file, "\"b\"");
        assert_int_equal(tensor->ndim, 0);
        assert_int_equal(read_whole(file, tensor, read), KEEL_OK);
        assert_true(read[0] == b);
        uint8_t bytes[3];
        tensor = keel_safetensors_find(file, "c");
        assert_int_equal(keel_safetensors_read_bytes(file, tensor, bytes), KEEL_OK);
        assert_memory_equal(bytes, c, sizeof c);
        assert_int_equal(read_whole(file, tensor, read), KEEL_ERR_FORMAT);
        assert_non_null(strstr(keel_error(), "tensor c: dtype U8"));
        assert_null(keel_safetensors_find(file, "d"));
        assert_string_equal(keel_safetensors_metadata(file, "key"), texts[1].value);
        assert_null(keel_safetensors_metadata(file, "absent"));
        assert_int_equal(keel_safetensors_verify(file), checksum ? KEEL_OK : KEEL_ERR_FORMAT);
        keel_safetensors_close(file);
    }
}

static void test_every_flipped_byte_is_found(void **state) {
    const char *path = temp_path(*state, "w.safetensors");
    const float a[4] = {1, 2, 3, 4};
    const keel_safetensors_item item = {"a", "F32", 1, {4}};
    const void *const data[] = {a};
    const keel_safetensors_content content = {.items = &item, .item_count = 1, .checksum = true};
    assert_int_equal(tensor_file_write(path, &content, data), KEEL_OK);
    const size_t size = temp_size(path);
    for (size_t at = 0; at < size; at++) {
        temp_flip(path, (long)at);
        keel_safetensors *file = NULL;
        keel_status status = keel_safetensors_open(path, &file);
        if (!status) status = keel_safetensors_verify(file);
        assert_int_equal(status, KEEL_ERR_FORMAT);
        keel_safetensors_close(file);
        temp_flip(path, (long)at);
    }
    for (size_t left = 0; left < size; left++) {
        assert_int_equal(tensor_file_write(path, &content, data), KEEL_OK);
        assert_int_equal(truncate(path, (off_t)left), 0);
        expect_refused(path, KEEL_ERR_FORMAT, "");
    }
}

static void test_narrow_and_wide_floats(void **state) {
    // 1, -2, Inf, least subnormal in each format.
    static const uint16_t f16[4] = {0x3c00, 0xc000, 0x7c00, 0x0001}, bf16[4] = {0x3f80, 0xc000, 0x7f80, 0x0001};
    static const double f64[4] = {1, -2, 0.1, 1e300};
    const char *header = "{\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,16]},"
                         "\"d\":{\"dtype\":\"F64\",\"shape\":[4],\"data_offsets\":[16,48]}}";
    char *path = make_file(*state, header, 48);
    FILE *out = fopen(path, "r+b");
    fseek(out, -48, SEEK_END);
    fwrite(f16, 1, 8, out);
    fwrite(bf16, 1, 8, out);
    fwrite(f64, 1, 32, out);
    fclose(out);
    keel_safetensors *file = NULL;
    assert_int_equal(keel_safetensors_open(path, &file), KEEL_OK);
    float read[4];
    assert_int_equal(read_whole(file, keel_safetensors_find(file, "h"), read), KEEL_OK);
    assert_true(read[0] == 1 && read[1] == -2 && isinf(read[2]) && read[3] == 0x1p-24f);
    assert_int_equal(read_whole(file, keel_safetensors_find(file, "b"), read), KEEL_OK);
    assert_true(read[0] == 1 && read[1] == -2 && isinf(read[2]) && read[3] == 0x1p-133f);
    assert_int_equal(read_whole(file, keel_safetensors_find(file, "d"), read), KEEL_OK);
    assert_true(read[0] == 1 && read[1] == -2 && read[2] == 0.1f && isinf(read[3]));
    const size_t wrong[] = {4};
    assert_int_equal(keel_safetensors_expect_shape(file, keel_safetensors_find(file, "b"), 1, wrong), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "tensor b has shape [2, 2], the model needs [4]"));
    keel_safetensors_close(file);
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void test_bad_headers_name_the_tensor(void **state) {
    static const struct {
        const char *header;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "header"},
        {"{", 0, "header"},
        {"[1]", 0, "not a JSON object"},
        {"{\"a\":1}", 0, "entry a"},
        {"{\"a\":{}}", 0, "tensor a: no text \"dtype\""},
        {"{" T("a", "F33", "[1]", 0, 4) "}", 4, "tensor a: unknown dtype \"F33\""},
        {"{" T("a", "F32", "1", 0, 4) "}", 4, "tensor a: no list \"shape\""},
        {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, "tensor a: dimension 0"},
        {"{" T("a", "F32", "[1.5]", 0, 4) "}", 4, "tensor a: dimension 0"},
        {"{" T("a", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, "tensor a: its shape overflows"},
        {"{" T("a", "F32", "[4611686018427387904]", 0, 0) "}", 0, "tensor a: 0 bytes"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "tensor a: 9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "tensor a: \"data_offsets\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,-4]}}", 4, "tensor a: \"data_offsets\""},
        {"{" T("a", "F32", "[1]", 4, 0) "}", 4, "tensor a: bytes 4 to 0"},
        {"{" T("a", "F32", "[2]", 0, 8) "}", 4, "tensor a: bytes 0 to 8 lie outside the 4 bytes"},
        {"{" T("a", "F32", "[2]", 0, 4) "}", 4, "tensor a: 4 bytes, but 2 elements"},
        {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 4, 12) "}", 12, "tensor b lies over tensor a"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12, "tensor b: 4 bytes before it"},
        {"{" T("a", "F32", "[1]", 0, 4) "}", 12, "8 bytes after the last tensor"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 0, 4) "}", 4, "duplicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(make_file(*state, cases[i].header, cases[i].size), KEEL_ERR_FORMAT, cases[i].message);
}

static void test_files_that_are_none(void **state) {
    const char *dir = *state, *path = temp_path(dir, "f");
    expect_refused(temp_path(dir, "absent"), KEEL_ERR_NOT_FOUND, "No such file");
    expect_refused(dir, KEEL_ERR_FORMAT, "not a regular file");
    temp_write(path, "1234567", 7);
    expect_refused(path, KEEL_ERR_FORMAT, "7 bytes, too short");
    temp_write(path, "\x7f\x45LF\x02\x01\x01\x00 and so on", 18);
    expect_refused(path, KEEL_ERR_FORMAT, "a header of");
    temp_write(path, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    expect_refused(path, KEEL_ERR_FORMAT, "a header of");
    temp_write(path, "\x10\0\0\0\0\0\0\0{}", 10);
    expect_refused(path, KEEL_ERR_FORMAT, "10 bytes, but its header alone has 16");
    temp_write(path, "\x02\0\0\0\0\0\0\0{}", 10);
    keel_safetensors *file = NULL;
    assert_int_equal(keel_safetensors_open(path, &file), KEEL_OK); // empty, but one
    keel_safetensors_close(file);
}

static void test_a_failed_write_leaves_the_old_file(void **state) {
    const char *path = temp_path(*state, "w");
    temp_write(path, "old", 3);
    keel_atomic_file *file = NULL;
    assert_int_equal(keel_atomic_open(path, &file), KEEL_OK);
    assert_int_equal(keel_atomic_write(file, "newer", 5), KEEL_OK);
    assert_int_equal(temp_size(path), 3);
    keel_atomic_abort(file);
    assert_int_equal(temp_size(path), 3);
    assert_int_equal(access(temp_path(*state, "w" KEEL_PARTIAL_SUFFIX), F_OK), -1);
    assert_int_equal(keel_atomic_write_file(path, "newer", 5), KEEL_OK);
    assert_int_equal(temp_size(path), 5);
    assert_int_equal(keel_atomic_write_file(temp_path(*state, "no/such/folder"), "x", 1), KEEL_ERR_IO);
    assert_int_equal(keel_atomic_write_file("/dev/full/x", "x", 1), KEEL_ERR_IO);
    assert_int_equal(keel_make_folders(temp_path(*state, "no/such/folder")), KEEL_OK);
    assert_int_equal(keel_make_folders(temp_path(*state, "no/such/folder")), KEEL_OK);
    assert_int_equal(keel_make_folders(path), KEEL_ERR_IO);
    assert_int_equal(keel_make_folders(temp_path(*state, "w/below")), KEEL_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, temp_folder_make, temp_folder_remove)
        TEST(test_written_files_come_back), TEST(test_every_flipped_byte_is_found),
        TEST(test_narrow_and_wide_floats),  TEST(test_bad_headers_name_the_tensor),
        TEST(test_files_that_are_none),     TEST(test_a_failed_write_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
