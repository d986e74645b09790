// modded-nanogpt, whose log begins with the whole source of the program (its earliest logs have llm.c's form):
//     step:17/5100 train_loss:8.4047 train_time:917ms step_avg:131.01ms
//     step:125/5100 val_loss:6.2858 train_time:14706ms step_avg:127.31ms
#include "tools/import/importer.h"

static keel_import_pattern train = {.source =
                                        "(?<![A-Za-z_])step:(\\d+)/\\d+\\s+train_loss:(" KEEL_IMPORT_NUMBER ")(?!\\S)"};
static keel_import_pattern val = {.source =
                                      "(?<![A-Za-z_])step:(\\d+)/\\d+\\s+val_loss:(" KEEL_IMPORT_NUMBER ")(?!\\S)"};

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    keel_status status = keel_import_each(context, line, &train, (const keel_import_field[]){KEEL_IMPORT_LOSS}, 1);
    if (!status) status = keel_import_each(context, line, &val, (const keel_import_field[]){KEEL_IMPORT_EVAL_LOSS}, 1);
    return status;
}

const keel_importer keel_importer_modded_nanogpt = {
    .name = "modded-nanogpt",
    .doc = "modded-nanogpt's log",
    .weight = 4,
    .line = read_line,
};
