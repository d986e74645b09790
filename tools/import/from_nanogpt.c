// nanoGPT, and llama2.c, which was made of it:
//     iter 3010: loss 4.2490, time 1019.95ms, mfu 14.12%
//     3010 | loss 4.2490 | lr 5.000000e-04 | 1019.95ms | mfu 14.12%
//     step 3000: train loss 4.0390, val loss 4.0427
#include "tools/import/importer.h"

static keel_import_pattern iteration = {.source = "(?<![A-Za-z_])iter\\s+(\\d+):\\s+loss\\s+(" KEEL_IMPORT_NUMBER "),"};
static keel_import_pattern evaluation = {.source =
                                             "(?<![A-Za-z_])step\\s+(\\d+):\\s+train\\s+loss\\s+(?:" KEEL_IMPORT_NUMBER
                                             "),\\s+val\\s+loss\\s+(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END};

static keel_import_pattern llama2c = {.source = "^(\\d+) \\| loss (" KEEL_IMPORT_NUMBER ") \\| lr (" KEEL_IMPORT_NUMBER
                                                ") \\| [\\d.]+ms \\|"};

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    keel_status status = keel_import_each(context, line, &iteration, (const keel_import_field[]){KEEL_IMPORT_LOSS}, 1);
    if (!status)
        status = keel_import_each(context, line, &evaluation, (const keel_import_field[]){KEEL_IMPORT_EVAL_LOSS}, 1);
    if (!status)
        status =
            keel_import_each(context, line, &llama2c, (const keel_import_field[]){KEEL_IMPORT_LOSS, KEEL_IMPORT_LR}, 2);
    return status;
}

const keel_importer keel_importer_nanogpt = {
    .name = "nanogpt",
    .doc = "nanoGPT's or llama2.c's standard output",
    .weight = 4,
    .line = read_line,
};
