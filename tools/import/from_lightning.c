// Lightning's CSVLogger: every record fills the cells of what it logged, other cells are empty. Steps count from 0.
//     epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss
//     0,,49,,9.44,
//     0,,99,,,9.12
// A loss per step is preferred to its mean over the epoch, which is read where there is no other.
#include <string.h>

#include "tools/import/import_table.h"

static const keel_import_name names[] = {
    {"step", KEEL_IMPORT_STEP},
    {"epoch", KEEL_IMPORT_EPOCH},
    {"train_loss_step", KEEL_IMPORT_LOSS},
    {"training_loss_step", KEEL_IMPORT_LOSS},
    {"loss_step", KEEL_IMPORT_LOSS},
    {"train_loss", KEEL_IMPORT_LOSS},
    {"training_loss", KEEL_IMPORT_LOSS},
    {"loss", KEEL_IMPORT_LOSS},
    {"train_loss_epoch", KEEL_IMPORT_LOSS},
    {"loss_epoch", KEEL_IMPORT_LOSS},
    {"grad_norm_step", KEEL_IMPORT_GRAD_NORM},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"train_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"grad_2_0_norm_total", KEEL_IMPORT_GRAD_NORM},
    {"lr_adam_w", KEEL_IMPORT_LR}, // lr-AdamW, and one per group of parameters where there are several
    {"lr_adam_w_pg1", KEEL_IMPORT_LR},
    {"lr_adam", KEEL_IMPORT_LR},
    {"lr_adam_pg1", KEEL_IMPORT_LR},
    {"lr_sgd", KEEL_IMPORT_LR},
    {"lr_sgd_pg1", KEEL_IMPORT_LR},
    {"lr", KEEL_IMPORT_LR},
    {"learning_rate", KEEL_IMPORT_LR},
    {"train_perplexity_step", KEEL_IMPORT_PERPLEXITY},
    {"train_perplexity", KEEL_IMPORT_PERPLEXITY},
    {"train_ppl_step", KEEL_IMPORT_PERPLEXITY},
    {"train_ppl", KEEL_IMPORT_PERPLEXITY},
    {"val_loss", KEEL_IMPORT_EVAL_LOSS},
    {"val_loss_epoch", KEEL_IMPORT_EVAL_LOSS},
    {"valid_loss", KEEL_IMPORT_EVAL_LOSS},
    {"valid_loss_epoch", KEEL_IMPORT_EVAL_LOSS},
    {"validation_loss", KEEL_IMPORT_EVAL_LOSS},
    {"val_perplexity", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"val_ppl", KEEL_IMPORT_EVAL_PERPLEXITY},
};

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, names, sizeof names / sizeof *names);
}

static void close_state(void *state) {
    keel_import_table_free(state);
}

static bool is_cell(keel_import_slice cell, const char *text) {
    return cell.size == strlen(text) && memcmp(cell.text, text, cell.size) == 0;
}

static bool ends_with(keel_import_slice cell, const char *text) {
    size_t size = strlen(text);
    return cell.size > size && memcmp(cell.text + cell.size - size, text, size) == 0;
}

// It always writes "epoch" and "step"; what tells it from other tables with these two is how it names what is logged by
// step and by epoch, or the learning rate.
static bool is_lightning(const keel_import_slice *cells, size_t count) {
    bool epoch = false, step = false, own = false;
    for (size_t i = 0; i < count; i++) {
        epoch |= is_cell(cells[i], "epoch");
        step |= is_cell(cells[i], "step");
        own |= ends_with(cells[i], "_step") || ends_with(cells[i], "_epoch") ||
               (cells[i].size > 3 && memcmp(cells[i].text, "lr-", 3) == 0);
    }
    return epoch && step && own;
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    return keel_import_table_line(context, state, line, is_lightning);
}

const keel_importer keel_importer_lightning = {
    .name = "lightning",
    .doc = "Lightning's CSVLogger, with empty cells",
    .weight = 4,
    .sole = true,
    .whole = true,
    .columns = true,
    .state_bytes = sizeof(keel_import_table),
    .open = open_state,
    .close = close_state,
    .line = read_line,
};
