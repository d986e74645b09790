#include "tools/judge_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool has_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path), k = strlen(suffix);
    return n >= k && strcmp(path + n - k, suffix) == 0;
}

// A directory, a file named .h5, or one that begins as HDF5 does.
static bool is_store(const char *path) {
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    struct stat about;
    if (strcmp(path, "-") == 0) return false;
    if (has_suffix(path, ".h5")) return true;
    if (stat(path, &about) != 0) return false;
    if (S_ISDIR(about.st_mode)) return true;
    if (!S_ISREG(about.st_mode)) return false;
    FILE *file = fopen(path, "rb");
    unsigned char begin[sizeof signature];
    bool is =
        file && fread(begin, 1, sizeof begin, file) == sizeof begin && memcmp(begin, signature, sizeof begin) == 0;
    if (file) fclose(file);
    return is;
}

// Makes the text of the latest failure begin with PATH.
static keel_status name_path(keel_status status, const char *path) {
    const char *text = keel_error();
    if (strncmp(text, path, strlen(path)) == 0) return status;
    char *copy = strdup(text);
    status = keel_fail(status, "%s: %s", path, copy ? copy : keel_status_name(status));
    free(copy);
    return status;
}

static keel_status judge_log(const char *path, const keel_judge_options *options, keel_judged *judged) {
    keel_status status = keel_import_open(path, options->import, &judged->import);
    if (status) return status;
    size_t runs = keel_import_runs(judged->import), first = options->run ? options->run - 1 : 0;
    if (options->run > runs)
        return keel_fail(KEEL_ERR_USAGE, "%s: there is no run %zu, it holds %zu", path, options->run, runs);
    size_t count = options->run ? 1 : runs;
    judged->results = calloc(count, sizeof(keel_result *));
    if (!judged->results) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu runs", count);
    for (size_t run = first; !status && judged->count < count; run++) {
        keel_result **result = &judged->results[judged->count];
        status = keel_offline_rows(path, keel_import_run(judged->import, run), options->config, result);
        if (status) break;
        (*result)->run = run + 1;
        (*result)->runs = runs;
        judged->count++;
    }
    return status;
}

static keel_status judge_store(const char *path, const keel_judge_options *options, keel_judged *judged) {
    if (options->run > 1)
        return keel_fail(KEEL_ERR_USAGE, "%s: there is no run %zu, a store holds one", path, options->run);
    judged->results = calloc(1, sizeof(keel_result *));
    if (!judged->results) return keel_fail(KEEL_ERR_MEMORY, "no memory for a run");
    keel_status status = keel_offline_store(path, options->config, &judged->results[0]);
    judged->count = !status;
    return status;
}

keel_status keel_judge_path(const char *path, const keel_judge_options *options, keel_judged *out) {
    keel_judged judged = {.path = path};
    keel_status status = is_store(path) ? judge_store(path, options, &judged) : judge_log(path, options, &judged);
    if (status) {
        status = name_path(status, path);
        keel_judged_free(&judged);
        return status;
    }
    *out = judged;
    return KEEL_OK;
}

void keel_judged_free(keel_judged *judged) {
    for (size_t i = 0; i < judged->count; i++) keel_result_free(judged->results[i]);
    free(judged->results);
    keel_import_close(judged->import);
    *judged = (keel_judged){0};
}

const keel_result *keel_judged_worst(const keel_judged *judged) {
    const keel_result *worst = judged->results[0];
    for (size_t i = 1; i < judged->count; i++)
        if (keel_report_severity(judged->results[i]) > keel_report_severity(worst)) worst = judged->results[i];
    return worst;
}

int keel_judged_severity(const keel_judged *judged) {
    return keel_report_severity(keel_judged_worst(judged));
}
