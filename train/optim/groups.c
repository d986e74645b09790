#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/optim/groups.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { UNASSIGNED = -1 };

// Puts the parameters without a group whose name holds the pattern into group G.
static keel_status assign(const keel_param_group_config *config, const keel_param *params, size_t count, size_t g,
                          double decay, keel_groups *groups) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *pattern = pcre2_compile((PCRE2_SPTR)config->params, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    if (!pattern) {
        PCRE2_UCHAR text[160];
        pcre2_get_error_message(code, text, sizeof text);
        return keel_yaml_fail_key(config->node, "params", "'%s': %s at character %zu", config->params,
                                  (const char *)text, (size_t)at + 1);
    }
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    keel_status status = match ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory to match '%s'", config->params);
    for (size_t i = 0; status == KEEL_OK && i < count; i++) {
        if (groups->of_param[i] != (size_t)UNASSIGNED) continue;
        const char *name = params[i].name;
        int found = pcre2_match(pattern, (PCRE2_SPTR)name, strlen(name), 0, 0, match, NULL);
        if (found == PCRE2_ERROR_NOMATCH) continue;
        if (found < 0) {
            status = keel_yaml_fail_key(config->node, "params", "'%s' cannot be matched against %s (PCRE2 error %d)",
                                        config->params, name, found);
            break;
        }
        groups->used[g] = true;
        groups->of_param[i] = g;
        if (!isnan(decay)) groups->decay[i] = decay;
    }
    pcre2_match_data_free(match);
    pcre2_code_free(pattern);
    return status;
}

keel_status keel_group_fail_unused(const keel_param_group_config *config) {
    return keel_yaml_fail_key(config->node, "params", "'%s' matches no parameter that is in no earlier group",
                              config->params);
}

keel_status keel_groups_open(const keel_optimizer_config *config, const keel_param *params, size_t count, bool part,
                             keel_groups *groups) {
    keel_groups g = {.count = config->group_count + 1};
    g.list = calloc(g.count, sizeof *g.list);
    g.of_param = calloc(count, sizeof *g.of_param);
    g.decay = calloc(count, sizeof *g.decay);
    g.used = calloc(g.count, sizeof *g.used);
    if (!g.list || !g.of_param || !g.decay || !g.used) {
        keel_groups_close(&g);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for parameter groups");
    }
    keel_status status = KEEL_OK;
    for (size_t i = 0; i < count; i++) {
        g.of_param[i] = (size_t)UNASSIGNED;
        g.decay[i] = params[i].decay ? config->weight_decay : 0;
    }
    for (size_t k = 0; status == KEEL_OK && k < config->group_count; k++) {
        const keel_param_group_config *from = &config->groups[k];
        g.list[k] = (keel_group){.lr_scale = from->lr_scale, .max_grad_norm = from->max_grad_norm};
        status = assign(from, params, count, k, from->weight_decay, &g);
        if (status == KEEL_OK && !g.used[k] && !part) status = keel_group_fail_unused(from);
    }
    if (status != KEEL_OK) {
        keel_groups_close(&g);
        return status;
    }
    g.list[g.count - 1] = (keel_group){.lr_scale = 1, .max_grad_norm = NAN};
    for (size_t i = 0; i < count; i++)
        if (g.of_param[i] == (size_t)UNASSIGNED) g.of_param[i] = g.count - 1;
    *groups = g;
    return KEEL_OK;
}

void keel_groups_close(keel_groups *groups) {
    free(groups->list);
    free(groups->of_param);
    free(groups->decay);
    free(groups->used);
    *groups = (keel_groups){0};
}
