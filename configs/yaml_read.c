// Typed values out of nodes, and mappings into structs.
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "configs/yaml_node.h"

// Restricted Damerau-Levenshtein distance over the first MAX_NAME bytes.
enum { MAX_NAME = 63 };

static size_t edit_distance(const char *a, const char *b) {
    size_t m = strnlen(a, MAX_NAME), n = strnlen(b, MAX_NAME);
    size_t row[3][MAX_NAME + 1];
    for (size_t j = 0; j <= n; j++) row[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        const size_t *above = row[(i - 1) % 3], *two_above = row[(i + 1) % 3];
        size_t *here = row[i % 3];
        here[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (here[j - 1] + 1 < best) best = here[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && two_above[j - 2] + 1 < best) best = two_above[j - 2] + 1;
            here[j] = best;
        }
    }
    return row[m % 3][n];
}

typedef struct search {
    const char *text, *nearest;
    size_t least;
} search;

static void consider(search *s, const char *name) {
    size_t distance = edit_distance(s->text, name);
    if (s->nearest && distance >= s->least) return;
    s->least = distance;
    s->nearest = name;
}

const char *keel_yaml_nearest(const char *text, const char *const *names, size_t count) {
    search s = {.text = text};
    for (size_t i = 0; i < count; i++) consider(&s, names[i]);
    return s.nearest;
}

keel_status keel_yaml_fail_kind(const keel_yaml_node *node, const char *expected) {
    switch (keel_yaml_kind_of(node)) {
    case KEEL_YAML_NULL:
        return keel_yaml_fail(node, "expected %s, found nothing", expected);
    case KEEL_YAML_LIST:
        return keel_yaml_fail(node, "expected %s, found a list", expected);
    case KEEL_YAML_MAP:
        return keel_yaml_fail(node, "expected %s, found a mapping", expected);
    case KEEL_YAML_SCALAR:
        break;
    }
    const char *quote = node->quoted ? "\"" : "'";
    return keel_yaml_fail(node, "expected %s, found %s%.60s%s", expected, quote, node->text, quote);
}

static const char *plain_text(const keel_yaml_node *node) {
    const char *text = keel_yaml_text(node);
    return text && !node->quoted ? text : NULL;
}

keel_status keel_yaml_to_bool(const keel_yaml_node *node, bool *value) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    const char *text = plain_text(node);
    for (size_t i = 0; text && i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *value = i % 2 == 1;
        return KEEL_OK;
    }
    return keel_yaml_fail_kind(node, "true or false");
}

static const char *skip_digits(const char *c) {
    while (*c >= '0' && *c <= '9') c++;
    return c;
}

keel_status keel_yaml_to_int(const keel_yaml_node *node, int64_t *value) {
    const char *text = plain_text(node);
    if (!text) return keel_yaml_fail_kind(node, "an integer");
    const char *digits = text + (*text == '-' || *text == '+');
    const char *end = skip_digits(digits);
    // A leading zero means octal to some readers of YAML and nothing to others.
    bool octal = digits[0] == '0' && end - digits > 1;
    if (end == digits || *end || octal) return keel_yaml_fail_kind(node, "an integer");
    errno = 0;
    long long parsed = strtoll(text, NULL, 10);
    if (errno == ERANGE) return keel_yaml_fail(node, "%.60s does not fit in 64 bits", text);
    *value = parsed;
    return KEEL_OK;
}

static bool is_decimal(const char *text) {
    const char *c = text + (*text == '-' || *text == '+');
    const char *whole = c;
    c = skip_digits(c);
    bool digits = c > whole;
    if (*c == '.') {
        const char *fraction = ++c;
        c = skip_digits(c);
        digits = digits || c > fraction;
    }
    if (!digits) return false;
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '-' || *c == '+';
        const char *exponent = c;
        c = skip_digits(c);
        if (c == exponent) return false;
    }
    return *c == '\0';
}

keel_status keel_yaml_to_double(const keel_yaml_node *node, double *value) {
    const char *text = plain_text(node);
    if (!text) return keel_yaml_fail_kind(node, "a number");
    const char *unsigned_text = text + (*text == '-' || *text == '+');
    if (strcasecmp(unsigned_text, ".inf") == 0) {
        *value = *text == '-' ? -(double)INFINITY : (double)INFINITY;
        return KEEL_OK;
    }
    if (!is_decimal(text)) return keel_yaml_fail_kind(node, "a number");
    // The program around the library may have chosen a locale with a decimal comma.
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return keel_fail(KEEL_ERR_MEMORY, "no C locale: %s", strerror(errno));
    double parsed = strtod_l(text, NULL, c_locale);
    freelocale(c_locale);
    if (isinf(parsed)) return keel_yaml_fail(node, "%.60s is larger than a number can be", text);
    *value = parsed;
    return KEEL_OK;
}

void keel_yaml_free_strings(char **list) {
    for (char **s = list; s && *s; s++) free(*s);
    free(list);
}

keel_status keel_yaml_to_strings(const keel_yaml_node *node, char ***list, size_t *count) {
    bool single = keel_yaml_kind_of(node) == KEEL_YAML_SCALAR;
    if (!single && keel_yaml_kind_of(node) != KEEL_YAML_LIST) return keel_yaml_fail_kind(node, "a list of texts");
    size_t size = single ? 1 : node->size;
    char **strings = calloc(size + 1, sizeof *strings);
    if (!strings) return keel_yaml_no_memory(node->source);

    keel_status status = KEEL_OK;
    for (size_t i = 0; i < size; i++) {
        const keel_yaml_node *item = single ? node : node->items[i];
        const char *text = keel_yaml_text(item);
        if (!text) {
            status = keel_yaml_fail_kind(item, "a text");
            goto fail;
        }
        strings[i] = strdup(text);
        if (!strings[i]) {
            status = keel_yaml_no_memory(node->source);
            goto fail;
        }
    }
    *list = strings;
    *count = size;
    return KEEL_OK;

fail:
    keel_yaml_free_strings(strings);
    return status;
}

static keel_status check_range(const keel_yaml_node *node, const keel_yaml_field *field, double value) {
    if (field->min == 0 && field->max == 0) return KEEL_OK;
    if (value >= field->min && value <= field->max) return KEEL_OK;
    const char *found = node->text;
    if (isinf(value) && field->max == KEEL_YAML_FINITE) return keel_yaml_fail(node, "must be finite, found %s", found);
    bool low = value < field->min;
    if (field->min == field->max) return keel_yaml_fail(node, "must be %.15g, found %.60s", field->min, found);
    if (low && field->min == KEEL_YAML_POSITIVE)
        return keel_yaml_fail(node, "must be greater than 0, found %.60s", found);
    if (low) return keel_yaml_fail(node, "must be at least %.15g, found %.60s", field->min, found);
    return keel_yaml_fail(node, "must be at most %.15g, found %.60s", field->max, found);
}

static size_t name_count(const char *const *names) {
    size_t count = 0;
    while (names[count]) count++;
    return count;
}

static keel_status read_enum(const keel_yaml_node *node, const char *const *names, int *value) {
    const char *text = keel_yaml_text(node);
    if (!text) return keel_yaml_fail_kind(node, "a name");
    size_t count = name_count(names);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *value = (int)i;
        return KEEL_OK;
    }
    return keel_yaml_fail(node, "unknown value '%.60s'; nearest known: %s", text,
                          keel_yaml_nearest(text, names, count));
}

static keel_status read_string(const keel_yaml_node *node, char **value) {
    const char *text = keel_yaml_text(node);
    if (!text && keel_yaml_kind_of(node) != KEEL_YAML_NULL) return keel_yaml_fail_kind(node, "a text");
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) return keel_yaml_no_memory(node->source);
    free(*value);
    *value = copy;
    return KEEL_OK;
}

static keel_status read_field(const keel_yaml_node *node, const keel_yaml_field *field, void *target) {
    if (field->type == KEEL_YAML_SECTION) return KEEL_OK; // TARGET may be NULL
    void *slot = (char *)target + field->offset;
    keel_status status = KEEL_OK;
    switch (field->type) {
    case KEEL_YAML_BOOL:
        return keel_yaml_to_bool(node, slot);
    case KEEL_YAML_INT: {
        int64_t value = 0;
        status = keel_yaml_to_int(node, &value);
        if (!status) status = check_range(node, field, (double)value);
        if (!status) *(int64_t *)slot = value;
        return status;
    }
    case KEEL_YAML_DOUBLE: {
        double value = 0;
        status = keel_yaml_to_double(node, &value);
        if (!status) status = check_range(node, field, value);
        if (!status) *(double *)slot = value;
        return status;
    }
    case KEEL_YAML_STRING:
        return read_string(node, slot);
    case KEEL_YAML_ENUM:
        return read_enum(node, field->names, slot);
    case KEEL_YAML_NODE:
        *(const keel_yaml_node **)slot = node;
        return KEEL_OK;
    case KEEL_YAML_SECTION:
        break;
    }
    return KEEL_OK;
}

static keel_status fail_unknown_key(const keel_yaml_node *key, const keel_yaml_field *fields, size_t count) {
    search s = {.text = key->text};
    for (size_t i = 0; i < count; i++) consider(&s, fields[i].key);
    return keel_yaml_fail(key, "unknown key; nearest known: %s", s.nearest);
}

keel_status keel_yaml_read(const keel_yaml_node *node, const keel_yaml_field *fields, size_t count, void *target) {
    if (keel_yaml_kind_of(node) == KEEL_YAML_NULL) return KEEL_OK;
    if (node->kind != KEEL_YAML_MAP) return keel_yaml_fail_kind(node, "a mapping");
    for (size_t i = 0; i < node->size; i++) {
        const keel_yaml_field *field = fields;
        while (field < fields + count && strcmp(field->key, node->keys[i]->text) != 0) field++;
        keel_status status = field == fields + count ? fail_unknown_key(node->keys[i], fields, count)
                                                     : read_field(node->items[i], field, target);
        if (status) return status;
    }
    return KEEL_OK;
}
