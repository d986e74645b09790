#include "tools/judge_path.h"

#include <stdlib.h>

#include "tools/run_path.h"

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
        (*result)->left_out = keel_import_left_out(judged->import);
        judged->count++;
    }
    return status;
}

static keel_status judge_store(const char *path, const keel_judge_options *options, keel_judged *judged) {
    if (options->run > 1)
        return keel_fail(KEEL_ERR_USAGE, "%s: there is no run %zu, a store holds one", path, options->run);
    judged->results = calloc(1, sizeof(keel_result *));
    if (!judged->results) return keel_fail(KEEL_ERR_MEMORY, "no memory for a run");
    keel_status status = keel_path_holds_run(path);
    if (!status) status = keel_offline_store(path, options->config, &judged->results[0]);
    judged->count = !status;
    return status;
}

keel_status keel_judge_path(const char *path, const keel_judge_options *options, keel_judged *out) {
    keel_judged judged = {.path = path};
    keel_status status =
        keel_path_is_store(path) ? judge_store(path, options, &judged) : judge_log(path, options, &judged);
    if (status) {
        status = keel_name_path(status, path);
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
