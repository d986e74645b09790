// Tables with a header that names a loss by any common name:
//     step,train/loss,lr,grad_norm
//     1,10.5,4e-06,3.25
#include "tools/import/import_table.h"

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, NULL, 0);
}

static void close_state(void *state) {
    keel_import_table_free(state);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    return keel_import_table_line(context, state, line, NULL);
}

const keel_importer keel_importer_csv = {
    .name = "csv",
    .doc = "CSV or TSV with a header: a step and a loss by any common name, or by --columns",
    .weight = 1,
    .sole = true,
    .whole = true,
    .columns = true,
    .state_bytes = sizeof(keel_import_table),
    .open = open_state,
    .close = close_state,
    .line = read_line,
};
