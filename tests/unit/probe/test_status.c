// The log: a handler is called with the context that was set with it, also while another thread sets others.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "probe/status.h"

static atomic_int mixed, heard;
static atomic_bool stop;
static char first_context, second_context;

static void first(void *context, keel_log_level level, const char *text) {
    (void)level;
    (void)text;
    mixed += context != &first_context;
    heard++;
}

static void second(void *context, keel_log_level level, const char *text) {
    (void)level;
    (void)text;
    mixed += context != &second_context;
    heard++;
}

static void *set_by_turns(void *unused) {
    (void)unused;
    while (!atomic_load(&stop)) {
        keel_log_set(first, &first_context);
        keel_log_set(second, &second_context);
    }
    return NULL;
}

static void test_handler_and_context_belong_together(void **state) {
    (void)state;
    pthread_t thread;
    keel_log_set(first, &first_context);
    assert_int_equal(pthread_create(&thread, NULL, set_by_turns, NULL), 0);
    for (int i = 0; i < 100000; i++) keel_log(KEEL_LOG_INFO, "%d", i);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    keel_log_set(NULL, NULL);
    keel_log(KEEL_LOG_INFO, "nobody hears this");
    assert_int_equal(mixed, 0);
    assert_int_equal(heard, 100000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_handler_and_context_belong_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
