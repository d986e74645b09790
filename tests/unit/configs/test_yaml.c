// YAML as it is read: the tree, what is refused and how it is said, scalars, structs filled by a table.
#include "tests/unit/configs/yaml_rig.h"

static void test_tree(void **state) {
    (void)state;
    keel_yaml *doc = parse("a: 1\nb: [x, 'y z', null]\nc:\n  d: \"q\\n\"\n  e: ~\n");
    const keel_yaml_node *root = keel_yaml_root(doc);
    assert_int_equal(keel_yaml_kind_of(root), KEEL_YAML_MAP);
    assert_int_equal(keel_yaml_size(root), 3);
    assert_string_equal(keel_yaml_key(root, 1), "b");
    assert_string_equal(text_at(root, "a"), "1");
    const keel_yaml_node *b = keel_yaml_get(root, "b");
    assert_int_equal(keel_yaml_kind_of(b), KEEL_YAML_LIST);
    assert_int_equal(keel_yaml_size(b), 3);
    assert_string_equal(keel_yaml_text(keel_yaml_item(b, 1)), "y z");
    assert_int_equal(keel_yaml_kind_of(keel_yaml_item(b, 2)), KEEL_YAML_NULL);
    assert_null(keel_yaml_text(keel_yaml_item(b, 2)));
    const keel_yaml_node *c = keel_yaml_get(root, "c");
    assert_string_equal(text_at(c, "d"), "q\n");
    assert_int_equal(keel_yaml_kind_of(keel_yaml_get(c, "e")), KEEL_YAML_NULL);
    assert_null(keel_yaml_get(root, "absent"));
    assert_null(keel_yaml_get(NULL, "a"));
    assert_null(keel_yaml_get(b, "a"));
    assert_int_equal(keel_yaml_size(NULL), 0);
    assert_int_equal(keel_yaml_kind_of(NULL), KEEL_YAML_NULL);
    keel_yaml_free(doc);
    keel_yaml_free(NULL);
}

static void test_empty(void **state) {
    (void)state;
    const char *const empty[] = {"", "\n\n", "# a comment\n", "---\n", "~", "\xEF\xBB\xBF"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        keel_yaml *doc = parse(empty[i]);
        assert_null(keel_yaml_root(doc));
        char *text = NULL;
        size_t size = 1;
        assert_int_equal(keel_yaml_dump(doc, &text, &size), KEEL_OK);
        assert_string_equal(text, "");
        assert_int_equal(size, 0);
        free(text);
        keel_yaml_free(doc);
    }
}

static void test_byte_order_mark_shifts_nothing(void **state) {
    (void)state;
    keel_yaml *doc = parse("\xEF\xBB\xBF"
                           "a: b\n");
    assert_int_equal(keel_yaml_fail(keel_yaml_get(keel_yaml_root(doc), "a"), "wrong"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:1:4: a: wrong");
    keel_yaml_free(doc);
}

static void test_aliases_and_merges(void **state) {
    (void)state;
    keel_yaml *doc = parse("base: &base {x: 1, y: 2}\n"
                           "other: &other {y: 3, z: 4}\n"
                           "one: {<<: *base, x: 5}\n"
                           "two:\n"
                           "  <<: [*base, *other]\n"
                           "copy: *base\n"
                           "text: '<<'\n"
                           "again: &base 7\n"
                           "last: *base\n");
    const keel_yaml_node *root = keel_yaml_root(doc);
    const keel_yaml_node *one = keel_yaml_get(root, "one");
    assert_int_equal(keel_yaml_size(one), 2);
    assert_string_equal(text_at(one, "x"), "5");
    assert_string_equal(text_at(one, "y"), "2");
    const keel_yaml_node *two = keel_yaml_get(root, "two");
    assert_int_equal(keel_yaml_size(two), 3);
    assert_string_equal(text_at(two, "y"), "2");
    assert_string_equal(text_at(two, "z"), "4");
    assert_string_equal(text_at(root, "last"), "7");
    // A value from an alias: the place where it is written, the path on which it is used.
    assert_int_equal(keel_yaml_fail(keel_yaml_get(keel_yaml_get(root, "copy"), "y"), "wrong"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:1:23: copy.y: wrong");
    assert_int_equal(keel_yaml_fail(keel_yaml_get(two, "z"), "wrong"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:2:25: two.z: wrong");
    keel_yaml_free(doc);
}

static void test_refused_texts(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a:\n\tb: 1\n", "f.yaml:2:1: a tab in the indentation: use spaces"},
        {"a: b\n\tc: d\n", "f.yaml:2:1: a tab in the indentation: use spaces"},
        {"a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: duplicate key, first on line 1"},
        {"a: {b: 1,\n  b: 2}\n", "f.yaml:2:3: a.b: duplicate key, first on line 1"},
        {"b: &b {}\na:\n  <<: *b\n  <<: *b\n", "f.yaml:4:3: a.<<: duplicate key, first on line 3"},
        {"a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document: one is allowed"},
        {"a: &a [1, *a]\n", "f.yaml:1:11: a.1: alias *a stands inside the value that it names"},
        {"a: &a {b: {c: *a}}\n", "f.yaml:1:15: a.b.c: alias *a stands inside the value that it names"},
        {"a: *b\n", "f.yaml:1:4: a: alias *b has no anchor &b before it"},
        {"a: {<<: 3}\n", "f.yaml:1:9: a.<<: only a mapping, or a list of them, can be merged"},
        {"[1]: 2\n", "f.yaml:1:1: a key must be a name"},
        {"a: {'': 2}\n", "f.yaml:1:5: a: a key without a name"},
        {"a: !!int 3\n", "f.yaml:1:4: a: tag tag:yaml.org,2002:int is not supported"},
        {"a: !python/tuple [3]\n", "f.yaml:1:4: a: tag !python/tuple is not supported"},
        {"a: \"\\0\"\n", "f.yaml:1:4: a: a zero byte in a text"},
        {"a: [1, 2\nb: 3\n",
         "f.yaml:2:2: did not find expected ',' or ']', while parsing a flow sequence that begins on "
         "line 1"},
        {"a: b: c\n", "f.yaml:1:5: mapping values are not allowed in this context"},
        {"a: 'b\n", "f.yaml:2:1: found unexpected end of stream, while scanning a quoted scalar that begins on line 1"},
        {"ok: 1\n\xC3\xA9: \xFF\n", "f.yaml:2:4: not UTF-8 text: invalid leading UTF-8 octet"},
        {"ok: 1\n\xC3\xA9: \x01\n", "f.yaml:2:4: not UTF-8 text: control characters are not allowed"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) assert_refused(cases[i].text, strlen(cases[i].text), cases[i].message);
    assert_refused("a: \0b\n", 6, "f.yaml:1:4: not UTF-8 text: control characters are not allowed");
}

static void test_depth_is_bounded(void **state) {
    (void)state;
    char text[KEEL_YAML_MAX_DEPTH + 3];
    memset(text, '[', sizeof text);
    memset(text + KEEL_YAML_MAX_DEPTH, ']', 3);
    char closed[2 * KEEL_YAML_MAX_DEPTH];
    memset(closed, '[', KEEL_YAML_MAX_DEPTH);
    memset(closed + KEEL_YAML_MAX_DEPTH, ']', KEEL_YAML_MAX_DEPTH);
    keel_yaml *doc = NULL;
    assert_int_equal(keel_yaml_parse("f.yaml", closed, sizeof closed, &doc), KEEL_OK);
    keel_yaml_free(doc);
    doc = NULL;
    memset(text, '[', sizeof text);
    assert_int_equal(keel_yaml_parse("f.yaml", text, sizeof text, &doc), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "f.yaml:1:66: 0.0.0.0"));
    assert_non_null(strstr(keel_error(), ": nested more than 64 deep"));

    // By aliases: each level 40 deep, two of them too much.
    char deep[256] = "a: &a ";
    memset(deep + 6, '[', 40);
    memset(deep + 46, ']', 40);
    strcpy(deep + 86, "\nb: ");
    memset(deep + 90, '[', 40);
    strcpy(deep + 130, "*a");
    memset(deep + 132, ']', 40);
    assert_int_equal(keel_yaml_parse("f.yaml", deep, strlen(deep), &doc), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), ": nested more than 64 deep"));
}

static void test_billion_laughs(void **state) {
    (void)state;
    char text[1024] = "a0: &a0 [l, o, l, l, o, l, l, o, l, s]\n";
    for (int i = 1; i < 10; i++) {
        char line[96];
        snprintf(line, sizeof line, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1,
                 i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
        strcat(text, line);
    }
    keel_yaml *doc = NULL;
    assert_int_equal(keel_yaml_parse("f.yaml", text, strlen(text), &doc), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), ": more than 10000 values, aliases expanded"));
}

static void test_size_is_bounded(void **state) {
    (void)state;
    char *text = malloc(KEEL_YAML_MAX_BYTES + 1);
    assert_non_null(text);
    memset(text, '#', KEEL_YAML_MAX_BYTES + 1);
    assert_refused(text, KEEL_YAML_MAX_BYTES + 1, "f.yaml:1:1: more than 1048576 bytes");
    keel_yaml *doc = NULL;
    assert_int_equal(keel_yaml_parse("f.yaml", text, KEEL_YAML_MAX_BYTES, &doc), KEEL_OK);
    keel_yaml_free(doc);
    free(text);
}

static void test_files(void **state) {
    (void)state;
    keel_yaml *doc = NULL;
    assert_int_equal(keel_yaml_load("/nonexistent/x.yaml", &doc), KEEL_ERR_IO);
    assert_string_equal(keel_error(), "/nonexistent/x.yaml: No such file or directory");
    assert_int_equal(keel_yaml_load("/tmp", &doc), KEEL_ERR_IO);
    assert_string_equal(keel_error(), "/tmp: Is a directory");

    char path[] = "/tmp/keel-test-yaml-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a: 1\n", 5), 5);
    close(fd);
    assert_int_equal(keel_yaml_load(path, &doc), KEEL_OK);
    assert_string_equal(keel_yaml_name(doc), path);
    assert_string_equal(text_at(keel_yaml_root(doc), "a"), "1");
    keel_yaml_free(doc);
    unlink(path);
}

static void test_messages_are_one_line(void **state) {
    (void)state;
    keel_yaml *doc = parse("\"a\\nb\\e[31m\": 1\n");
    assert_int_equal(keel_yaml_fail(keel_yaml_item(keel_yaml_root(doc), 0), "x%sy", "\n"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:1:15: a?b?[31m: x?y");
    assert_int_equal(keel_yaml_fail_key(keel_yaml_root(doc), "c.d", "missing"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:1:1: c.d: missing");
    assert_int_equal(keel_yaml_fail(NULL, "odd"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "built-in defaults: odd");
    keel_yaml_free(doc);
}

static void test_long_paths_are_cut(void **state) {
    (void)state;
    char key[100], text[700];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    snprintf(text, sizeof text, "%s: {%s: {%s: {%s: {%s: 1}}}}", key, key, key, key, key);
    keel_yaml *doc = parse(text);
    const keel_yaml_node *node = keel_yaml_root(doc);
    while (keel_yaml_kind_of(node) == KEEL_YAML_MAP) node = keel_yaml_item(node, 0);
    assert_int_equal(keel_yaml_fail(node, "deep down"), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), ": deep down"));
    keel_yaml_free(doc);
}

static void test_scalars(void **state) {
    (void)state;
    keel_yaml *doc = parse("[true, False, YES, off, 12, -3, +4, 0, 1e3, 1.e-8, .5, 3., -.inf, 9223372036854775807]");
    const keel_yaml_node *list = keel_yaml_root(doc);
    const bool flags[] = {true, false, true, false};
    for (size_t i = 0; i < COUNT(flags); i++) {
        bool flag = !flags[i];
        assert_int_equal(keel_yaml_to_bool(keel_yaml_item(list, i), &flag), KEEL_OK);
        assert_int_equal(flag, flags[i]);
    }
    const int64_t integers[] = {12, -3, 4, 0};
    for (size_t i = 0; i < COUNT(integers); i++) {
        int64_t value = 99;
        assert_int_equal(keel_yaml_to_int(keel_yaml_item(list, 4 + i), &value), KEEL_OK);
        assert_int_equal(value, integers[i]);
    }
    const double numbers[] = {12, -3, 4, 0, 1e3, 1e-8, 0.5, 3, -(double)INFINITY};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        double value = 99;
        assert_int_equal(keel_yaml_to_double(keel_yaml_item(list, 4 + i), &value), KEEL_OK);
        assert_true(value == numbers[i]);
    }
    int64_t greatest = 0;
    assert_int_equal(keel_yaml_to_int(keel_yaml_item(list, 13), &greatest), KEEL_OK);
    assert_true(greatest == INT64_MAX);
    keel_yaml_free(doc);
}

static void test_refused_scalars(void **state) {
    (void)state;
    static const struct {
        const char *text, *as_bool, *as_int, *as_double;
    } cases[] = {
        {"'1'", "expected true or false, found \"1\"", "expected an integer, found \"1\"",
         "expected a number, found \"1\""},
        {"!!str 1", "expected true or false, found \"1\"", "expected an integer, found \"1\"",
         "expected a number, found \"1\""},
        {"1x", "expected true or false, found '1x'", "expected an integer, found '1x'",
         "expected a number, found '1x'"},
        {".nan", "expected true or false, found '.nan'", "expected an integer, found '.nan'",
         "expected a number, found '.nan'"},
        {"nan", "expected true or false, found 'nan'", "expected an integer, found 'nan'",
         "expected a number, found 'nan'"},
        {"-", "expected true or false, found a list", "expected an integer, found a list",
         "expected a number, found a list"},
        {"0x1p3", "expected true or false, found '0x1p3'", "expected an integer, found '0x1p3'",
         "expected a number, found '0x1p3'"},
        {"1e", "expected true or false, found '1e'", "expected an integer, found '1e'",
         "expected a number, found '1e'"},
        {".", "expected true or false, found '.'", "expected an integer, found '.'", "expected a number, found '.'"},
        {"{}", "expected true or false, found a mapping", "expected an integer, found a mapping",
         "expected a number, found a mapping"},
        {"", "expected true or false, found nothing", "expected an integer, found nothing",
         "expected a number, found nothing"},
        {"9223372036854775808", "expected true or false, found '9223372036854775808'",
         "9223372036854775808 does not fit in 64 bits", NULL},
        {"010", "expected true or false, found '010'", "expected an integer, found '010'", NULL},
        {"1e999", "expected true or false, found '1e999'", "expected an integer, found '1e999'",
         "1e999 is larger than a number can be"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[64];
        snprintf(text, sizeof text, cases[i].text[0] == '-' ? "a:\n- 1\n" : "a: %s\n", cases[i].text);
        keel_yaml *doc = parse(text);
        const keel_yaml_node *node = keel_yaml_get(keel_yaml_root(doc), "a");
        bool flag = false;
        int64_t integer = 7;
        double number = 7;
        assert_int_equal(keel_yaml_to_bool(node, &flag), KEEL_ERR_CONFIG);
        assert_string_equal(strrchr(keel_error(), ':') + 2, cases[i].as_bool);
        assert_int_equal(keel_yaml_to_int(node, &integer), KEEL_ERR_CONFIG);
        assert_string_equal(strrchr(keel_error(), ':') + 2, cases[i].as_int);
        assert_int_equal(integer, 7);
        keel_status status = keel_yaml_to_double(node, &number);
        if (cases[i].as_double) {
            assert_int_equal(status, KEEL_ERR_CONFIG);
            assert_string_equal(strrchr(keel_error(), ':') + 2, cases[i].as_double);
            assert_true(number == 7);
        } else {
            assert_int_equal(status, KEEL_OK);
        }
        keel_yaml_free(doc);
    }
}

static void test_strings(void **state) {
    (void)state;
    keel_yaml *doc = parse("list: [a, 1]\none: b\nnone: []\nbad: [a, [b]]\nempty:\n");
    const keel_yaml_node *root = keel_yaml_root(doc);
    char **list = NULL;
    size_t count = 0;
    assert_int_equal(keel_yaml_to_strings(keel_yaml_get(root, "list"), &list, &count), KEEL_OK);
    assert_int_equal(count, 2);
    assert_string_equal(list[1], "1");
    assert_null(list[2]);
    keel_yaml_free_strings(list);
    assert_int_equal(keel_yaml_to_strings(keel_yaml_get(root, "one"), &list, &count), KEEL_OK);
    assert_int_equal(count, 1);
    assert_string_equal(list[0], "b");
    keel_yaml_free_strings(list);
    assert_int_equal(keel_yaml_to_strings(keel_yaml_get(root, "none"), &list, &count), KEEL_OK);
    assert_int_equal(count, 0);
    assert_null(list[0]);
    keel_yaml_free_strings(list);
    keel_yaml_free_strings(NULL);
    assert_int_equal(keel_yaml_to_strings(keel_yaml_get(root, "bad"), &list, &count), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:4:10: bad.1: expected a text, found a list");
    assert_int_equal(keel_yaml_to_strings(keel_yaml_get(root, "empty"), &list, &count), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "f.yaml:5:7: empty: expected a list of texts, found nothing");
    keel_yaml_free(doc);
}

static void test_nearest(void **state) {
    (void)state;
    const char *const names[] = {"learning_rate", "lr_end", "warmup_steps"};
    assert_string_equal(keel_yaml_nearest("lr_edn", names, 3), "lr_end");
    assert_string_equal(keel_yaml_nearest("learnig_rate", names, 3), "learning_rate");
    assert_string_equal(keel_yaml_nearest("warmup", names, 3), "lr_end"); // five edits against six
    assert_string_equal(keel_yaml_nearest("", names, 3), "lr_end");
    assert_null(keel_yaml_nearest("x", names, 0));
    // A swap of neighbours is one edit.
    const char *const swaps[] = {"ax", "ba"};
    assert_string_equal(keel_yaml_nearest("ab", swaps, 2), "ax");
    const char *const near[] = {"abXY", "bacd"};
    assert_string_equal(keel_yaml_nearest("abcd", near, 2), "bacd");
}

typedef struct target {
    bool flag;
    int64_t integer;
    double number, share;
    char *text;
    int choice;
    const keel_yaml_node *node;
} target;

static const char *const choices[] = {"linear", "cosine", NULL};

static const keel_yaml_field fields[] = {
    KEEL_YAML_ROW_BOOL(target, flag),
    KEEL_YAML_ROW_INT(target, integer, 1, 10),
    KEEL_YAML_ROW_DOUBLE(target, number, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(target, share, 0, 0),
    KEEL_YAML_ROW_STRING(target, text),
    KEEL_YAML_ROW_ENUM(target, choice, choices),
    KEEL_YAML_ROW_NODE(target, node),
    KEEL_YAML_ROW_SECTION(section),
};

static void test_read(void **state) {
    (void)state;
    keel_yaml *doc = parse("flag: yes\ninteger: 10\nnumber: 1e-3\nshare: .inf\ntext: new\nchoice: cosine\nnode: [1]\n"
                           "section: {any: thing}\n");
    target t = {.text = strdup("old")};
    assert_int_equal(keel_yaml_read(keel_yaml_root(doc), fields, COUNT(fields), &t), KEEL_OK);
    assert_true(t.flag);
    assert_int_equal(t.integer, 10);
    assert_true(t.number == 1e-3);
    assert_true(isinf(t.share));
    assert_string_equal(t.text, "new");
    assert_int_equal(t.choice, 1);
    assert_int_equal(keel_yaml_size(t.node), 1);
    keel_yaml_free(doc);

    doc = parse("text: ~\n");
    assert_int_equal(keel_yaml_read(keel_yaml_root(doc), fields, COUNT(fields), &t), KEEL_OK);
    assert_null(t.text);
    assert_int_equal(t.integer, 10);
    assert_int_equal(keel_yaml_read(NULL, fields, COUNT(fields), &t), KEEL_OK);
    assert_int_equal(keel_yaml_read(keel_yaml_get(keel_yaml_root(doc), "text"), fields, COUNT(fields), &t), KEEL_OK);
    keel_yaml_free(doc);
}

static void test_read_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a:\n  intger: 3\n", "f.yaml:2:3: a.intger: unknown key; nearest known: integer"},
        {"a:\n  integer: -8\n", "f.yaml:2:12: a.integer: must be at least 1, found -8"},
        {"a:\n  integer: 11\n", "f.yaml:2:12: a.integer: must be at most 10, found 11"},
        {"a: {integer: 1.5}\n", "f.yaml:1:14: a.integer: expected an integer, found '1.5'"},
        {"a: {number: 0}\n", "f.yaml:1:13: a.number: must be greater than 0, found 0"},
        {"a: {number: .inf}\n", "f.yaml:1:13: a.number: must be finite, found .inf"},
        {"a: {number: many}\n", "f.yaml:1:13: a.number: expected a number, found 'many'"},
        {"a: {flag: 1}\n", "f.yaml:1:11: a.flag: expected true or false, found '1'"},
        {"a: {text: [b]}\n", "f.yaml:1:11: a.text: expected a text, found a list"},
        {"a: {choice: cosin}\n", "f.yaml:1:13: a.choice: unknown value 'cosin'; nearest known: cosine"},
        {"a: {choice: }\n", "f.yaml:1:13: a.choice: expected a name, found nothing"},
        {"a: [1]\n", "f.yaml:1:4: a: expected a mapping, found a list"},
        {"a: text\n", "f.yaml:1:4: a: expected a mapping, found 'text'"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        keel_yaml *doc = parse(cases[i].text);
        target t = {.integer = 5, .number = 5};
        const keel_yaml_node *a = keel_yaml_get(keel_yaml_root(doc), "a");
        assert_int_equal(keel_yaml_read(a, fields, COUNT(fields), &t), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_int_equal(t.integer, 5);
        assert_true(t.number == 5);
        keel_yaml_free(doc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_byte_order_mark_shifts_nothing),
        cmocka_unit_test(test_aliases_and_merges),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_billion_laughs),
        cmocka_unit_test(test_size_is_bounded),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_messages_are_one_line),
        cmocka_unit_test(test_long_paths_are_cut),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_refused_scalars),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_read_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
