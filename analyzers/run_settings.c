#include "analyzers/run_settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "configs/yaml.h"

double keel_run_setting(const keel_run_info *info, const char *section, const char *key, double fallback) {
    keel_yaml *doc = NULL;
    double value = fallback;
    if (!info->config_yaml || !info->config_yaml[0]) return fallback;
    if (keel_yaml_parse("config_yaml", info->config_yaml, strlen(info->config_yaml), &doc)) return fallback;
    const keel_yaml_node *node = keel_yaml_get(keel_yaml_get(keel_yaml_root(doc), section), key);
    const char *text = node ? keel_yaml_text(node) : NULL;
    if (text) {
        char *end;
        double parsed = strtod(text, &end);
        if (end != text && *end == 0 && isfinite(parsed)) value = parsed;
    }
    keel_yaml_free(doc);
    return value;
}
