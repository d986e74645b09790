// The peak rises with what is touched, and does not fall when that is given back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/memory_peak.h"

static void test_peak(void **state) {
    (void)state;
    enum { BYTES = 64 << 20 };
    const double before = keel_memory_peak();
    assert_true(before > 0);
    char *memory = malloc(BYTES);
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    const double at = keel_memory_peak();
    free(memory);
    assert_true(at >= before + 0.9 * BYTES);
    assert_true(keel_memory_peak() >= 0.99 * at); // the kernel counts in batches
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
