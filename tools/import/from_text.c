// Any text whose lines name a step and a loss, as most trainers of one's own print them:
//     step:  1  loss:  8.1309  grad_norm:  1.5103  memory: 41.2GiB
//     INFO - loss: 6.9813, learning_rate: 3e-06, global_step: 10, interval_runtime: 1.2
//     { Epoch:[  1/  2], step:[    2/ 6500], loss: 10.622, per_step_time: 2334ms, lr: 1.5e-06, loss_scale: 1.0,
//     global_norm: [5.2] } Step 12 | loss=3.25 lr=0.0002
// Prose and source code may hold such a line too: a log is recognised by three.
#include "tools/import/importer.h"

// Values follow ":" or "="; a step may follow its name alone.
static keel_import_pattern pair = {
    .source = "(?<![\\w/.-])((?:(?i:learning|grad|gradient|train|training|loss|global|total|lm)\\s)?+[A-Za-z][\\w/"
              ".]{0,40}+)(?:\\(train\\))?+"
              "(?:\\s*+[:=]\\s*+\\[?+\\s*+|(?<=step|Step|STEP|iter|Iter|iteration|Iteration|\\))\\s++\\[?+\\s*+)"
              "(" KEEL_IMPORT_NUMBER ")(?=[\\s,;|)\\]}/:]|$)"};

static const keel_import_name names[] = {
    {"global_step", KEEL_IMPORT_STEP},
    {"step", KEEL_IMPORT_STEP},
    {"steps", KEEL_IMPORT_STEP},
    {"train_step", KEEL_IMPORT_STEP},
    {"training_step", KEEL_IMPORT_STEP},
    {"iteration", KEEL_IMPORT_STEP},
    {"iter", KEEL_IMPORT_STEP},
    {"num_updates", KEEL_IMPORT_STEP},
    {"epoch", KEEL_IMPORT_EPOCH},
    {"loss", KEEL_IMPORT_LOSS},
    {"train_loss", KEEL_IMPORT_LOSS},
    {"training_loss", KEEL_IMPORT_LOSS},
    {"total_loss", KEEL_IMPORT_LOSS},
    {"lm_loss", KEEL_IMPORT_LOSS},
    {"loss_train", KEEL_IMPORT_LOSS},
    {"reduced_train_loss", KEEL_IMPORT_LOSS},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"gradient_norm", KEEL_IMPORT_GRAD_NORM},
    {"global_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"global_norm", KEEL_IMPORT_GRAD_NORM},
    {"gnorm", KEEL_IMPORT_GRAD_NORM},
    {"norm", KEEL_IMPORT_GRAD_NORM},
    {"lr", KEEL_IMPORT_LR},
    {"learning_rate", KEEL_IMPORT_LR},
    {"loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"ppl", KEEL_IMPORT_PERPLEXITY},
    {"perplexity", KEEL_IMPORT_PERPLEXITY},
    {"aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"val_loss", KEEL_IMPORT_EVAL_LOSS},
    {"valid_loss", KEEL_IMPORT_EVAL_LOSS},
    {"validation_loss", KEEL_IMPORT_EVAL_LOSS},
    {"eval_loss", KEEL_IMPORT_EVAL_LOSS},
};

enum { LINES_TO_BE_SURE = 3 };

typedef struct text_state {
    uint32_t lines;
} text_state;

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, names, sizeof names / sizeof *names);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    text_state *s = state;
    keel_import_match *match = keel_import_matcher(context);
    keel_import_names *known = keel_import_context_names(context);
    keel_import_draft draft;
    keel_import_draft_begin(&draft);
    for (size_t at = 0; keel_import_find(match, &pair, line->text, line->size, at); at = keel_import_match_end(match)) {
        int32_t key = keel_import_names_key(known, keel_import_group(match, 1));
        if (keel_import_names_field(known, key) != KEEL_IMPORT_NOTHING)
            keel_import_draft_text(known, &draft, key, keel_import_group(match, 2));
    }
    const uint64_t losses = KEEL_IMPORT_BIT(KEEL_IMPORT_LOSS) | KEEL_IMPORT_BIT(KEEL_IMPORT_EVAL_LOSS);
    if (!draft.record.has_step || !keel_import_draft_end(known, &draft) || !(draft.record.set & losses)) return KEEL_OK;
    if (keel_import_is_counting(context) && ++s->lines < LINES_TO_BE_SURE) return KEEL_OK;
    return keel_import_emit(context, &draft.record);
}

const keel_importer keel_importer_text = {
    .name = "text",
    .doc = "any text whose lines name a step and a loss: step=10 loss=3.25",
    .weight = 1,
    .columns = true,
    .state_bytes = sizeof(text_state),
    .open = open_state,
    .line = read_line,
};
