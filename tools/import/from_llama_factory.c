// LLaMA-Factory's trainer_log.jsonl:
//     {"current_steps": 5, "total_steps": 8712, "loss": 1.7484, "eval_loss": null, "learning_rate": 5e-05, "epoch":
//     0.0, ...}
#include "tools/import/import_json.h"
#include "tools/import/importer.h"

static const keel_import_name names[] = {
    {"current_steps", KEEL_IMPORT_STEP},  {"epoch", KEEL_IMPORT_EPOCH},      {"loss", KEEL_IMPORT_LOSS},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM}, {"learning_rate", KEEL_IMPORT_LR}, {"lr", KEEL_IMPORT_LR},
    {"eval_loss", KEEL_IMPORT_EVAL_LOSS},
};

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, names, sizeof names / sizeof *names);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    return keel_import_json_line(context, line, true);
}

const keel_importer keel_importer_llama_factory = {
    .name = "llama-factory",
    .doc = "LLaMA-Factory's trainer_log.jsonl",
    .weight = 4,
    .sole = true,
    .whole = true,
    .columns = true,
    .open = open_state,
    .line = read_line,
};
