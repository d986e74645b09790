// detectron2's metrics.json, one object in a line:
//     {"data_time": 0.0145, "eta_seconds": 2121.9, "iteration": 19, "loss_cls": 2.6052, "lr": 1.998e-05,
//     "total_loss": 4.6373}
#include "tools/import/import_json.h"
#include "tools/import/importer.h"

static const keel_import_name names[] = {
    {"iteration", KEEL_IMPORT_STEP},
    {"total_loss", KEEL_IMPORT_LOSS},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"lr", KEEL_IMPORT_LR},
    {"validation_loss", KEEL_IMPORT_EVAL_LOSS},
    {"val_loss", KEEL_IMPORT_EVAL_LOSS},
    {"total_val_loss", KEEL_IMPORT_EVAL_LOSS},
};

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, names, sizeof names / sizeof *names);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    return keel_import_json_line(context, line, true);
}

const keel_importer keel_importer_detectron2 = {
    .name = "detectron2",
    .doc = "detectron2's metrics.json",
    .weight = 4,
    .sole = true,
    .whole = true,
    .columns = true,
    .open = open_state,
    .line = read_line,
};
