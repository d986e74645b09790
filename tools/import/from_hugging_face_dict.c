// What the Hugging Face Trainer prints, among progress bars that tell the step (without them records are counted):
//       1%|1         | 10/1000 [00:12<20:11,  1.22s/it]{'loss': 2.2538, 'grad_norm': 0.601, 'learning_rate': 0.0002,
//       'epoch': 0.01}
//     {'eval_loss': 2.1017, 'eval_runtime': 12.3, 'epoch': 1.0}
#include <string.h>

#include "tools/import/hugging_face.h"
#include "tools/import/import_json.h"

// The bar of the training has no name before it; downloads and preprocessing have.
static keel_import_pattern bar = {.source = "^\\s*+\\d+%\\|[^|]*+\\|\\s*+(\\d+)/(\\d+)\\s\\["};

typedef struct dict_state {
    bool has_bar;
    uint64_t at, total;      // of the latest bar
    uint64_t training_total; // of the bars that records followed; 0: none yet
    uint64_t step;           // of the latest record
} dict_state;

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_hugging_face_names(context);
}

static void read_bar(keel_import_context *context, dict_state *state, const keel_import_line *line) {
    keel_import_match *match = keel_import_matcher(context);
    if (!keel_import_find(match, &bar, line->text, line->size, 0)) return;
    uint64_t at, total;
    if (!keel_import_group_step(match, 1, &at) || !keel_import_group_step(match, 2, &total)) return;
    if (state->training_total && total != state->training_total && at > 0 && total < state->training_total)
        return; // evaluation
    state->has_bar = true;
    state->at = at;
    state->total = total;
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    dict_state *s = state;
    if (memchr(line->text, '%', line->size)) read_bar(context, s, line);
    const char *brace = memmem(line->text, line->size, "{'", 2);
    if (!brace) return KEEL_OK;
    keel_import_draft draft;
    keel_import_names *names = keel_import_context_names(context);
    size_t size = line->size - (size_t)(brace - line->text);
    const keel_import_json_found found =
        keel_import_json_find(keel_import_matcher(context), names, &draft, brace, size);
    // Models and their settings are printed as such objects too.
    if (found == KEEL_IMPORT_JSON_OBJECT) keel_import_leave_draft(context, &draft, 0);
    if (found == KEEL_IMPORT_JSON_NOTHING && !line->open && memmem(brace, size, "'loss':", 7))
        keel_import_leave_out(context, KEEL_IMPORT_LINES, 1, 0, "it is no whole object");
    if (found != KEEL_IMPORT_JSON_RECORD) return KEEL_OK;
    keel_import_record *record = &draft.record;
    bool trained = (record->set & KEEL_IMPORT_BIT(KEEL_IMPORT_LOSS)) != 0;
    if (!trained && !(record->set & KEEL_IMPORT_EVALUATION)) return KEEL_OK;
    if (trained && s->has_bar && !record->has_step) {
        s->training_total = s->total;
        record->has_step = true;
        record->step = s->step = s->at;
    }
    return keel_import_emit_draft(context, &draft, 0);
}

const keel_importer keel_importer_hugging_face_dict = {
    .name = "hugging-face",
    .doc = "what the Hugging Face Trainer prints: {'loss': ..., 'epoch': ...}",
    .weight = 4,
    .whole = true,
    .columns = true,
    .state_bytes = sizeof(dict_state),
    .open = open_state,
    .line = read_line,
};
