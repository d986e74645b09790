// YAML as a document, as an assignment on it (whatever follows a zero byte), as the monitor's and as the trainer's
// configuration.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "configs/monitor_config.h"
#include "configs/train_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) abort();
}

// What was read can be written, and reads as the same again.
static void check_round_trip(const keel_yaml *doc) {
    char *first = NULL, *second = NULL;
    size_t first_size = 0, second_size = 0;
    require(keel_yaml_dump(doc, &first, &first_size) == KEEL_OK);
    if (first_size <= KEEL_YAML_MAX_BYTES) {
        keel_yaml *again = NULL;
        require(keel_yaml_parse("dump", first, first_size, &again) == KEEL_OK);
        require(keel_yaml_dump(again, &second, &second_size) == KEEL_OK);
        require(first_size == second_size && memcmp(first, second, first_size) == 0);
        keel_yaml_free(again);
    }
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t text_size = zero ? (size_t)(zero - data) : size;

    keel_yaml *doc = NULL;
    if (keel_yaml_parse("fuzz", text, text_size, &doc) == KEEL_OK) {
        if (zero) {
            char *assignment = strndup(text + text_size + 1, size - text_size - 1);
            require(assignment != NULL);
            if (keel_yaml_set(doc, assignment)) require(strchr(keel_error(), '\n') == NULL);
            free(assignment);
        }
        check_round_trip(doc);
        keel_monitor_config *monitor = NULL;
        if (keel_monitor_config_read(doc, &monitor) == KEEL_OK) keel_monitor_config_free(monitor);
    } else {
        require(doc == NULL && strchr(keel_error(), '\n') == NULL);
    }
    keel_train_config *train = NULL;
    if (keel_train_config_parse("fuzz", text, text_size, &train) == KEEL_OK) keel_train_config_free(train);
    return 0;
}
