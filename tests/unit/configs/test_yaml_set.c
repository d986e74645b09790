// YAML that is changed and written: values set by path, documents laid over others, what comes out again.
#include "tests/unit/configs/yaml_rig.h"

static void set(keel_yaml *doc, const char *assignment) {
    keel_status status = keel_yaml_set(doc, assignment);
    if (status) fail_msg("%s", keel_error());
}

static void assert_dump(const keel_yaml *doc, const char *expected) {
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(keel_yaml_dump(doc, &text, &size), KEEL_OK);
    assert_string_equal(text, expected);
    assert_int_equal(size, strlen(expected));
    free(text);
}

static void test_set(void **state) {
    (void)state;
    keel_yaml *doc = parse("a: {b: 1}\nlist:\n- {x: 1}\n- {x: 2}\nempty:\n");
    set(doc, "a.b=[1, 2]");
    set(doc, "a.c.d=text with = sign");
    set(doc, "list.1.x=3");
    set(doc, "list.0=plain");
    set(doc, "empty.k=0.1");
    set(doc, "new=");
    set(doc, "more.deep.er={q: \"1\"}");
    assert_dump(doc, "a:\n  b:\n  - 1\n  - 2\n  c:\n    d: text with = sign\nlist:\n- plain\n- x: 3\nempty:\n  k: 0.1\n"
                     "new: null\nmore:\n  deep:\n    er:\n      q: '1'\n");
    const keel_yaml_node *q = keel_yaml_get(keel_yaml_root(doc), "more");
    q = keel_yaml_get(keel_yaml_get(keel_yaml_get(q, "deep"), "er"), "q");
    assert_int_equal(keel_yaml_fail(q, "wrong"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "--set:7:18: more.deep.er.q: wrong");
    keel_yaml_free(doc);

    doc = parse("");
    set(doc, "a.b=1");
    assert_dump(doc, "a:\n  b: 1\n");
    keel_yaml_free(doc);
}

static void test_set_refuses(void **state) {
    (void)state;
    static const struct {
        const char *assignment, *message;
    } cases[] = {
        {"a.b", "--set:2:1: expected key.path=value, found 'a.b'"},
        {"=3", "--set:2:1: expected key.path=value, found '=3'"},
        {"", "--set:2:1: expected key.path=value, found ''"},
        {"a..b=3", "--set:2:3: a..b: a key without a name"},
        {".a=3", "--set:2:1: .a: a key without a name"},
        {"a.=3", "--set:2:3: a.: a key without a name"},
        {"a.\xFF=3", "--set:2:3: a.\xFF: a key must be of printable ASCII characters"},
        {"a. b=3", "--set:2:3: a. b: a key must be of printable ASCII characters"},
        {"new..x=3", "--set:2:5: new..x: a key without a name"},
        {"a.b.c=3", "--set:2:5: a.b.c: '1' is a single value, it has no key 'c'"},
        {"list.2=3", "--set:2:6: list.2: '2' is no item of this list of 2, counted from 0"},
        {"list.x.y=3", "--set:2:6: list.x.y: 'x' is no item of this list of 2, counted from 0"},
        {"list.-1=3", "--set:2:6: list.-1: '-1' is no item of this list of 2, counted from 0"},
        {"a.b=[1", "--set:2:7: a.b: did not find expected ',' or ']'"},
        {"a.b={c: *d}", "--set:2:9: a.b.c: alias *d has no anchor &d before it"},
        {"n.m={c: 1, c: 2}", "--set:2:12: n.m.c: duplicate key, first on line 2"},
        {"a.b=\xFF", "--set:2:5: a.b: not UTF-8 text: invalid leading UTF-8 octet"},
    };
    keel_yaml *doc = parse("a: {b: 0}\nlist: [1, 2]\n");
    set(doc, "a.b=1");
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(keel_yaml_set(doc, cases[i].assignment), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_dump(doc, "a:\n  b: 1\nlist:\n- 1\n- 2\n");
    }
    char deep[2 * KEEL_YAML_MAX_DEPTH + 8] = "";
    for (int i = 0; i < KEEL_YAML_MAX_DEPTH; i++) strcat(deep, "x.");
    strcat(deep, "x=");
    assert_int_equal(keel_yaml_set(doc, deep), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "nested more than 64 deep"));
    assert_dump(doc, "a:\n  b: 1\nlist:\n- 1\n- 2\n");
    keel_yaml_free(doc);
}

static void test_overlay(void **state) {
    (void)state;
    keel_yaml *doc = parse("a: {b: 1, c: {d: 2}}\ne: [1, 2]\nf: 3\n");
    keel_yaml *over = NULL;
    const char text[] = "a: {c: {d: 4, g: '5'}, h: {i: 6}}\ne: [7]\nf: {j: [8, {k: 9}]}\n";
    assert_int_equal(keel_yaml_parse("over.yaml", text, sizeof text - 1, &over), KEEL_OK);
    assert_int_equal(keel_yaml_overlay(doc, NULL), KEEL_OK);
    assert_int_equal(keel_yaml_overlay(doc, keel_yaml_root(over)), KEEL_OK);
    assert_dump(doc, "a:\n  b: 1\n  c:\n    d: 4\n    g: '5'\n  h:\n    i: 6\ne:\n- 7\nf:\n  j:\n  - 8\n  - k: 9\n");
    const keel_yaml_node *j = keel_yaml_get(keel_yaml_get(keel_yaml_root(doc), "f"), "j");
    assert_int_equal(keel_yaml_fail(keel_yaml_get(keel_yaml_item(j, 1), "k"), "odd"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "over.yaml:3:16: f.j.1.k: odd");
    assert_int_equal(keel_yaml_overlay(doc, j), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "expected a mapping, found a list"));
    keel_yaml_free(doc);

    doc = parse("");
    assert_int_equal(keel_yaml_overlay(doc, keel_yaml_get(keel_yaml_root(over), "a")), KEEL_OK);
    assert_dump(doc, "c:\n  d: 4\n  g: '5'\nh:\n  i: 6\n");
    keel_yaml_free(doc);
    keel_yaml_free(over);
}

static void test_take(void **state) {
    (void)state;
    keel_yaml *doc = parse("a: {b: 1, c: 2}\nd: 3\n"), *from = parse("x: 1\na: {b: 4}\ne: 5\n"), *empty = parse("");
    assert_int_equal(keel_yaml_take(doc, from, "a"), KEEL_OK);
    assert_int_equal(keel_yaml_take(doc, from, "e"), KEEL_OK);
    assert_int_equal(keel_yaml_take(doc, from, "none"), KEEL_OK);
    assert_int_equal(keel_yaml_take(doc, empty, "d"), KEEL_OK);
    assert_dump(doc, "a:\n  b: 4\nd: null\ne: 5\n");
    assert_int_equal(keel_yaml_take(empty, from, "a"), KEEL_OK);
    assert_dump(empty, "a:\n  b: 4\n");
    keel_yaml_free(doc);
    doc = parse("[1]");
    assert_int_equal(keel_yaml_take(doc, from, "a"), KEEL_ERR_CONFIG);
    keel_yaml_free(doc);
    keel_yaml_free(empty);
    keel_yaml_free(from);
}

static void test_dump_round_trip(void **state) {
    (void)state;
    // Whatever needs quotes to stay a text, or to be read at all.
    keel_yaml *doc =
        parse("{'1': '1', b: 1, t: 'true', n: '', m: ~, \"l\\n2\": \"a\\nb\\t\", u: caf\xC3\xA9, c: 'a: b # c', "
              "e: [], f: {}, 'true': 'null', null: 'x', g: \"\\u0001\", h: ' lead', i: a   b, 'q uote': \"it's\"}");
    char *first = NULL, *second = NULL;
    size_t size = 0;
    assert_int_equal(keel_yaml_dump(doc, &first, &size), KEEL_OK);
    keel_yaml *again = parse(first);
    const keel_yaml_node *a = keel_yaml_root(doc), *b = keel_yaml_root(again);
    assert_int_equal(keel_yaml_size(a), keel_yaml_size(b));
    for (size_t i = 0; i < keel_yaml_size(a); i++) {
        const keel_yaml_node *x = keel_yaml_item(a, i), *y = keel_yaml_item(b, i);
        assert_string_equal(keel_yaml_key(a, i), keel_yaml_key(b, i));
        assert_int_equal(keel_yaml_kind_of(x), keel_yaml_kind_of(y));
        if (keel_yaml_kind_of(x) != KEEL_YAML_SCALAR) continue;
        assert_string_equal(keel_yaml_text(x), keel_yaml_text(y));
        int64_t value = 0;
        assert_int_equal(keel_yaml_to_int(x, &value), keel_yaml_to_int(y, &value));
    }
    assert_int_equal(keel_yaml_dump(again, &second, &size), KEEL_OK);
    assert_string_equal(first, second);
    free(first);
    free(second);
    keel_yaml_free(doc);
    keel_yaml_free(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),  cmocka_unit_test(test_set_refuses),     cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_take), cmocka_unit_test(test_dump_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
