#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "train/data/tokenizer.h"

static void test_bytes_come_back(void **state) {
    (void)state;
    const keel_tokenizer *tokenizer = NULL;
    assert_int_equal(keel_tokenizer_find("byte", &tokenizer), KEEL_OK);
    uint8_t text[255], back[255];
    uint32_t tokens[255];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)(i + 1);
    assert_int_equal(tokenizer->encode(text, sizeof text, tokens), sizeof text);
    for (size_t i = 0; i < sizeof text; i++) assert_true(tokens[i] == i + 1 && tokens[i] < tokenizer->vocab_size);
    assert_int_equal(tokenizer->decode(tokens, sizeof text, back, sizeof back), sizeof text);
    assert_memory_equal(text, back, sizeof text);
}

static void test_decode_never_writes_beyond_its_room(void **state) {
    (void)state;
    const keel_tokenizer *tokenizer = NULL;
    assert_int_equal(keel_tokenizer_find("byte", &tokenizer), KEEL_OK);
    const uint32_t tokens[] = {'k', tokenizer->end_of_text, 'e', 'e', 'l'};
    uint8_t text[4] = "....";
    assert_int_equal(tokenizer->decode(tokens, 5, text, 2), 4);
    assert_memory_equal(text, "ke..", 4);
}

static void test_unknown_name(void **state) {
    (void)state;
    const keel_tokenizer *tokenizer = NULL;
    assert_int_equal(keel_tokenizer_find("bpe", &tokenizer), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "\"bpe\""));
    assert_null(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_decode_never_writes_beyond_its_room),
        cmocka_unit_test(test_unknown_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
