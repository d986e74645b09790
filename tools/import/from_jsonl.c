// Objects with a loss, one in a line, whoever wrote them:
//     {"step": 1, "loss": 10.5, "lr": 4e-06}
//     2024-06-06 10:00:00 INFO {"iter": 20, "train/loss": 3.25, "optim": {"grad_norm": 0.31}}
#include "tools/import/import_json.h"
#include "tools/import/importer.h"

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, NULL, 0);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    return keel_import_json_line(context, line, false);
}

const keel_importer keel_importer_jsonl = {
    .name = "jsonl",
    .doc = "JSON lines with a step and a loss by any common name, or by --columns",
    .weight = 1,
    .sole = true,
    .whole = true,
    .columns = true,
    .open = open_state,
    .line = read_line,
};
