// build-nanogpt, its standard output and its log file:
//     step     9 | loss: 9.961243 | lr 8.3916e-06 | norm: 4.5938 | dt: 415.49ms | tok/sec: 1261848.43
//     validation loss: 10.9522
//     9 train 9.961243
//     250 val 6.9107
#include "tools/import/importer.h"

static keel_import_pattern step = {.source = "(?<![A-Za-z_])step\\s+(\\d+)\\s*+\\|\\s*+loss:\\s*+(" KEEL_IMPORT_NUMBER
                                             ")\\s*+(?:\\||$)"
                                             "(?:\\s*+lr:?\\s*+(" KEEL_IMPORT_NUMBER ")\\s*+(?:\\||$))?+"
                                             "(?:\\s*+norm:\\s*+(" KEEL_IMPORT_NUMBER ")\\s*+(?:\\||$))?+"};
static keel_import_pattern validation = {.source =
                                             "^\\s*+()validation loss:\\s*+(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END};
static keel_import_pattern file_train = {.source = "^(\\d+) train (" KEEL_IMPORT_NUMBER ")\\s*+$"};
static keel_import_pattern file_val = {.source = "^(\\d+) val (" KEEL_IMPORT_NUMBER ")\\s*+$"};

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    static const keel_import_field training[] = {KEEL_IMPORT_LOSS, KEEL_IMPORT_LR, KEEL_IMPORT_GRAD_NORM};
    static const keel_import_field evaluation[] = {KEEL_IMPORT_EVAL_LOSS};
    keel_status status = keel_import_each(context, line, &step, training, 3);
    if (!status) status = keel_import_each(context, line, &validation, evaluation, 1);
    if (!status) status = keel_import_each(context, line, &file_train, training, 1);
    if (!status) status = keel_import_each(context, line, &file_val, evaluation, 1);
    return status;
}

const keel_importer keel_importer_build_nanogpt = {
    .name = "build-nanogpt",
    .doc = "build-nanogpt's standard output, or its log file",
    .weight = 4,
    .line = read_line,
};
