// What the tests of YAML share: texts that parse, texts that are refused.
#ifndef KEEL_TESTS_YAML_RIG_H
#define KEEL_TESTS_YAML_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "configs/yaml.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline keel_yaml *parse(const char *text) {
    keel_yaml *doc = NULL;
    keel_status status = keel_yaml_parse("f.yaml", text, strlen(text), &doc);
    if (status) fail_msg("%s", keel_error());
    return doc;
}

static inline void assert_refused(const char *text, size_t size, const char *message) {
    keel_yaml *doc = NULL;
    assert_int_equal(keel_yaml_parse("f.yaml", text, size, &doc), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), message);
    assert_null(doc);
}

static inline const char *text_at(const keel_yaml_node *node, const char *key) {
    return keel_yaml_text(keel_yaml_get(node, key));
}

#endif
