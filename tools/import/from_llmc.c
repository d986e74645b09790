// llm.c, its log file (a form that early modded-nanogpt kept) and its standard output, new and old:
//     s:17 trl:9.6366 lr:0.000015 norm:2.22
//     s:250 tel:6.4611
//     step   17/19560 | loss 9.636634 (+0.44z)| norm 2.2243 (-0.12z)| lr 1.54e-05 | 401.12 ms | 41.4% bf16 MFU |
//     1306540 tok/s step   17/74: train loss 4.367631 (80.1 ms, 51000 tok/s) val loss 3.284500
#include "tools/import/importer.h"

static keel_import_pattern file_train = {.source = "(?<![A-Za-z_])s:(\\d+)\\s+trl:(" KEEL_IMPORT_NUMBER ")(?!\\S)"
                                                   "(?:\\s+lr:(" KEEL_IMPORT_NUMBER ")(?!\\S))?+"
                                                   "(?:\\s+norm:(" KEEL_IMPORT_NUMBER ")(?!\\S))?+"};
static keel_import_pattern file_val = {.source = "(?<![A-Za-z_])s:(\\d+)\\s+tel:(" KEEL_IMPORT_NUMBER ")(?!\\S)"};
#define Z_SCORE "\\s*+(?:\\([^)]*+\\))?+\\s*+(?:\\||$)"
static keel_import_pattern train = {
    .source = "(?<![A-Za-z_])step\\s+(\\d+)/\\d+\\s*+\\|\\s*+(?:train\\s+)?loss\\s+(" KEEL_IMPORT_NUMBER ")" Z_SCORE
              "(?:\\s*+norm\\s+(" KEEL_IMPORT_NUMBER ")" Z_SCORE ")?+"
              "(?:\\s*+lr\\s+(" KEEL_IMPORT_NUMBER ")" Z_SCORE ")?+"};
static keel_import_pattern old_train = {
    .source = "(?<![A-Za-z_])step\\s+(\\d+)(?:/\\d+)?:\\s+train\\s+loss\\s+(" KEEL_IMPORT_NUMBER ")(?=\\s|$)"
              "(?:\\s+norm\\s+(" KEEL_IMPORT_NUMBER ")(?=\\s|$))?+"
              "(?:\\s+lr\\s+(" KEEL_IMPORT_NUMBER ")(?=\\s|$))?+"};
static keel_import_pattern val = {.source = "^\\s*+()val\\s+loss:?\\s+(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END};

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    static const keel_import_field file[] = {KEEL_IMPORT_LOSS, KEEL_IMPORT_LR, KEEL_IMPORT_GRAD_NORM};
    static const keel_import_field output[] = {KEEL_IMPORT_LOSS, KEEL_IMPORT_GRAD_NORM, KEEL_IMPORT_LR};
    static const keel_import_field evaluation[] = {KEEL_IMPORT_EVAL_LOSS};
    keel_status status = keel_import_each(context, line, &file_train, file, 3);
    if (!status) status = keel_import_each(context, line, &file_val, evaluation, 1);
    if (!status) status = keel_import_each(context, line, &train, output, 3);
    if (!status) status = keel_import_each(context, line, &old_train, output, 3);
    if (!status) status = keel_import_each(context, line, &val, evaluation, 1);
    return status;
}

const keel_importer keel_importer_llmc = {
    .name = "llm.c",
    .doc = "llm.c's main.log, or its standard output",
    .weight = 4,
    .line = read_line,
};
