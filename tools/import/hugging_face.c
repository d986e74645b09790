#include "tools/import/hugging_face.h"

static const keel_import_name names[] = {
    {"step", KEEL_IMPORT_STEP},
    {"global_step", KEEL_IMPORT_STEP},
    {"global_step_max_steps", KEEL_IMPORT_STEP}, // ms-swift: "10/1000"
    {"epoch", KEEL_IMPORT_EPOCH},
    {"loss", KEEL_IMPORT_LOSS},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"learning_rate", KEEL_IMPORT_LR},
    {"lr", KEEL_IMPORT_LR},
    {"loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"eval_loss", KEEL_IMPORT_EVAL_LOSS},
    {"eval_perplexity", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"train_runtime", KEEL_IMPORT_SUMMARY}, // the last record: train_loss is the mean over the run
};

keel_status keel_import_use_hugging_face_names(keel_import_context *context) {
    return keel_import_use_names(context, names, sizeof names / sizeof *names);
}
