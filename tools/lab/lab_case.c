#include "tools/lab/lab_case.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/mix.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MANY         0x1p53

typedef struct case_values {
    char *about;
    int64_t ranks;
    bool alone;
    const keel_yaml_node *text, *draw, *train, *resume, *find;
} case_values;

static const keel_yaml_field case_fields[] = {
    KEEL_YAML_ROW_STRING(case_values, about), KEEL_YAML_ROW_INT(case_values, ranks, 1, 64),
    KEEL_YAML_ROW_BOOL(case_values, alone),   KEEL_YAML_ROW_NODE(case_values, text),
    KEEL_YAML_ROW_NODE(case_values, draw),    KEEL_YAML_ROW_NODE(case_values, train),
    KEEL_YAML_ROW_NODE(case_values, resume),  KEEL_YAML_ROW_NODE(case_values, find),
};

static const keel_yaml_field text_fields[] = {
    KEEL_YAML_ROW_INT(keel_lab_text, small, 0, MANY),
    KEEL_YAML_ROW_INT(keel_lab_text, capitals, 0, MANY),
};

static const keel_yaml_field find_fields[] = {
    KEEL_YAML_ROW_SECTION(rules),
    KEEL_YAML_ROW_INT(keel_lab_find, onset, 1, MANY),
    KEEL_YAML_ROW_BOOL(keel_lab_find, sudden),
    KEEL_YAML_ROW_STRING(keel_lab_find, site),
    KEEL_YAML_ROW_INT(keel_lab_find, rank, 0, 1 << 20),
    KEEL_YAML_ROW_STRING(keel_lab_find, cause),
};

static keel_status no_memory(const char *path) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
}

// ---- drawing ----

enum { DRAWS = 16, NAME = 32, VALUE = 64 };

typedef struct draws {
    size_t count;
    char names[DRAWS][NAME], values[DRAWS][VALUE];
} draws;

static keel_status draw_range(const keel_yaml_node *range, uint64_t random, char value[VALUE]) {
    const keel_yaml_node *low = keel_yaml_item(range, 0), *high = keel_yaml_item(range, 1);
    int64_t a, b;
    if (keel_yaml_to_int(low, &a) == KEEL_OK && keel_yaml_to_int(high, &b) == KEEL_OK) {
        if (b < a) return keel_yaml_fail(range, "the greater number comes first");
        snprintf(value, VALUE, "%" PRId64, a + (int64_t)(random % ((uint64_t)b - (uint64_t)a + 1)));
        return KEEL_OK;
    }
    double x, y;
    keel_status status = keel_yaml_to_double(low, &x);
    if (!status) status = keel_yaml_to_double(high, &y);
    if (status) return status;
    if (!(x > 0 && y >= x)) return keel_yaml_fail(range, "expected two positive numbers, the lesser first");
    snprintf(value, VALUE, "%.6e", x * pow(y / x, (double)(random >> 11) * 0x1p-53));
    return KEEL_OK;
}

static keel_status draw_one(const keel_yaml_node *spec, uint64_t random, char value[VALUE]) {
    if (keel_yaml_kind_of(spec) == KEEL_YAML_LIST && keel_yaml_size(spec) == 2) return draw_range(spec, random, value);
    const keel_yaml_node *of = keel_yaml_get(spec, "of");
    const size_t count = keel_yaml_size(of);
    if (keel_yaml_kind_of(of) != KEEL_YAML_LIST || count == 0 || keel_yaml_size(spec) != 1)
        return keel_yaml_fail(spec, "expected [LOW, HIGH] or {of: [...]}");
    const char *text = keel_yaml_text(keel_yaml_item(of, random % count));
    if (!text || strlen(text) >= VALUE) return keel_yaml_fail(of, "expected short values");
    strcpy(value, text);
    return KEEL_OK;
}

static uint64_t hash(const char *text) {
    uint64_t h = 0;
    for (; *text; text++) h = keel_mix(h, (unsigned char)*text);
    return h;
}

static keel_status draw_all(const keel_yaml_node *draw, uint64_t seed, draws *d) {
    if (draw && keel_yaml_kind_of(draw) != KEEL_YAML_MAP) return keel_yaml_fail_kind(draw, "a mapping");
    if (keel_yaml_size(draw) > DRAWS) return keel_yaml_fail(draw, "more than %d values", DRAWS);
    keel_status status = KEEL_OK;
    for (d->count = 0; !status && d->count < keel_yaml_size(draw); d->count++) {
        const char *name = keel_yaml_key(draw, d->count);
        if (strlen(name) >= NAME) return keel_yaml_fail(keel_yaml_item(draw, d->count), "a shorter name is needed");
        strcpy(d->names[d->count], name);
        status = draw_one(keel_yaml_item(draw, d->count), keel_mix(seed, hash(name)), d->values[d->count]);
    }
    return status;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// TEXT with the values of D in place of their names.
static keel_status fill_in(const char *path, const char *text, const draws *d, char **out) {
    char *made = NULL;
    size_t size = 0, line = 1;
    FILE *to = open_memstream(&made, &size);
    if (!to) return no_memory(path);
    keel_status status = KEEL_OK;
    while (*text && !status) {
        if (*text == '\n') line++;
        if (*text != '$' || !is_name(text[1])) {
            fputc(*text++, to);
            continue;
        }
        size_t length = 0, i = 0;
        while (is_name(text[1 + length])) length++;
        while (i < d->count && (strlen(d->names[i]) != length || strncmp(d->names[i], text + 1, length) != 0)) i++;
        if (i == d->count)
            status =
                keel_fail(KEEL_ERR_CONFIG, "%s:%zu: $%.*s: draw has no such name", path, line, (int)length, text + 1);
        else
            fputs(d->values[i], to);
        text += 1 + length;
    }
    if (fclose(to) && !status) status = no_memory(path);
    if (status) {
        free(made);
        return status;
    }
    *out = made;
    return KEEL_OK;
}

// ---- the file ----

static keel_status read_text(const char *path, char **text) {
    FILE *file = fopen(path, "rb");
    if (!file) return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    char *read = calloc(1, KEEL_YAML_MAX_BYTES + 1);
    if (read) (void)!fread(read, 1, KEEL_YAML_MAX_BYTES, file);
    fclose(file);
    if (!read) return no_memory(path);
    *text = read;
    return KEEL_OK;
}

static keel_status parse_drawn(const char *path, uint64_t seed, keel_yaml **doc) {
    char *text = NULL, *filled = NULL;
    keel_yaml *plain = NULL;
    draws d = {0};
    keel_status status = read_text(path, &text);
    if (!status) status = keel_yaml_parse(path, text, strlen(text), &plain);
    if (!status) status = draw_all(keel_yaml_get(keel_yaml_root(plain), "draw"), seed, &d);
    if (!status) status = fill_in(path, text, &d, &filled);
    if (!status) status = keel_yaml_parse(path, filled, strlen(filled), doc);
    keel_yaml_free(plain);
    free(text);
    free(filled);
    return status;
}

static keel_status read_find(const keel_yaml_node *node, int64_t ranks, keel_lab_find *find) {
    size_t count = 0;
    keel_status status = keel_yaml_read(node, find_fields, COUNT(find_fields), find);
    if (!status && !keel_yaml_get(node, "rules")) return keel_yaml_fail_key(node, "rules", "missing");
    if (!status && !find->cause) return keel_yaml_fail_key(node, "cause", "missing");
    if (!status && find->rank >= ranks)
        return keel_yaml_fail_key(node, "rank", "%lld, but there are %lld ranks, from 0", (long long)find->rank,
                                  (long long)ranks);
    return status ? status : keel_yaml_to_strings(keel_yaml_get(node, "rules"), &find->rules, &count);
}

static keel_status read_case(const char *path, keel_lab_case *made) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    made->name = strndup(file, strcspn(file, "."));
    if (!made->name) return no_memory(path);
    const keel_yaml_node *root = keel_yaml_root(made->doc);
    if (!root) return keel_fail(KEEL_ERR_CONFIG, "%s:1:1: about: missing, the file is empty", path);
    case_values values = {.ranks = 1};
    keel_status status = keel_yaml_read(root, case_fields, COUNT(case_fields), &values);
    made->about = values.about;
    made->ranks = values.ranks;
    made->alone = values.alone;
    made->train = values.train;
    made->resume = values.resume;
    made->faulty = values.find != NULL;
    if (status) return status;
    if (!made->about) return keel_yaml_fail_key(root, "about", "missing");
    if (made->resume && keel_yaml_kind_of(made->resume) != KEEL_YAML_LIST)
        return keel_yaml_fail_kind(made->resume, "a list of mappings");
    status = keel_yaml_read(values.text, text_fields, COUNT(text_fields), &made->text);
    if (!status && made->faulty) status = read_find(values.find, made->ranks, &made->find);
    return status;
}

keel_status keel_lab_case_load(const char *path, uint64_t seed, keel_lab_case **out) {
    keel_lab_case *made = calloc(1, sizeof *made);
    if (!made) return no_memory(path);
    made->find = (keel_lab_find){.onset = 1, .rank = -1};
    keel_status status = parse_drawn(path, seed, &made->doc);
    if (!status) status = read_case(path, made);
    if (status) {
        keel_lab_case_free(made);
        return status;
    }
    *out = made;
    return KEEL_OK;
}

void keel_lab_case_free(keel_lab_case *lab_case) {
    if (!lab_case) return;
    keel_yaml_free_strings(lab_case->find.rules);
    free(lab_case->find.site);
    free(lab_case->find.cause);
    free(lab_case->name);
    free(lab_case->about);
    keel_yaml_free(lab_case->doc);
    free(lab_case);
}

// ---- a folder ----

static int is_case(const struct dirent *entry) {
    const char *name = entry->d_name;
    const size_t n = strlen(name);
    return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".yaml") == 0 && strcmp(name, "base.yaml") != 0;
}

keel_status keel_lab_case_names(const char *folder, char ***names, size_t *count) {
    struct dirent **entries;
    const int found = scandir(folder, &entries, is_case, alphasort);
    if (found < 0) return keel_fail(KEEL_ERR_IO, "%s: cannot be read: %s", folder, strerror(errno));
    char **list = calloc((size_t)found + 1, sizeof *list);
    bool complete = list != NULL;
    for (int i = 0; i < found; i++) {
        if (list) list[i] = strndup(entries[i]->d_name, strlen(entries[i]->d_name) - 5);
        complete = complete && list[i];
        free(entries[i]);
    }
    free(entries);
    if (!complete) {
        for (int i = 0; list && i < found; i++) free(list[i]);
        free(list);
        return no_memory(folder);
    }
    *names = list;
    *count = (size_t)found;
    return KEEL_OK;
}
