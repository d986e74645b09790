// fairseq, in its three ways of writing:
//   json     {"epoch": 1, "update": 0.416, "loss": "9.276", ..., "num_updates": "200", "lr": "3.125e-06", "gnorm":
//   "1.421", "loss_scale": "128"} hydra    [2022-04-08 18:48:05,372][train_inner][INFO] - {the same} simple   | epoch
//   001:    100 / 1000 loss=10.256, nll_loss=9.98, ppl=1012, ..., num_updates=100, lr=1.2e-05, gnorm=2.31,
//   loss_scale=128 tqdm     epoch 001:  10%|#   | 100/1000 [00:51<07:40,  1.95it/s, loss=10.256, ..., num_updates=100,
//   lr=1.2e-05, gnorm=2.31]
// and at an epoch's end, as json or
//     | epoch 001 | loss 9.871 | nll_loss 9.5 | ppl 724 | ... | num_updates 1000 | lr 0.000125 | gnorm 1.9 | ...
//     | epoch 001 | valid on 'valid' subset | valid_loss 8.30118 | valid_ppl 142.39 | num_updates 1000
// The averages of an epoch are records only where the log has no others. Losses are in bits, as fairseq prints them.
#include <string.h>

#include "tools/import/import_json.h"
#include "tools/import/importer.h"

static const keel_import_name json_names[] = {
    {"num_updates", KEEL_IMPORT_STEP},
    {"train_num_updates", KEEL_IMPORT_STEP},
    {"valid_num_updates", KEEL_IMPORT_STEP},
    {"epoch", KEEL_IMPORT_EPOCH},
    {"loss", KEEL_IMPORT_LOSS},
    {"train_loss", KEEL_IMPORT_LOSS},
    {"gnorm", KEEL_IMPORT_GRAD_NORM},
    {"train_gnorm", KEEL_IMPORT_GRAD_NORM},
    {"lr", KEEL_IMPORT_LR},
    {"train_lr", KEEL_IMPORT_LR},
    {"loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"train_loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"ppl", KEEL_IMPORT_PERPLEXITY},
    {"train_ppl", KEEL_IMPORT_PERPLEXITY},
    {"valid_loss", KEEL_IMPORT_EVAL_LOSS},
    {"valid_ppl", KEEL_IMPORT_EVAL_PERPLEXITY},
};

// "epoch 001:" begins what is printed within an epoch, "epoch 001 |" the averages at its end.
static keel_import_pattern heading = {.source = "(?<![A-Za-z_])epoch\\s+(\\d+)\\s*+(:|\\|)(?:\\s*+(valid) on )?+"};
static keel_import_pattern value = {
    .source = "(?<![\\w])(valid_|train_)?+(loss|num_updates|lr|gnorm|loss_scale|ppl)(?:=|\\s)(" KEEL_IMPORT_NUMBER
              ")(?=[\\s,\\]|]|$)"};

typedef struct fairseq_state {
    bool within_epochs; // records from within an epoch have been seen
} fairseq_state;

static keel_status open_state(keel_import_context *context, void *state) {
    (void)state;
    return keel_import_use_names(context, json_names, sizeof json_names / sizeof *json_names);
}

// False: an average of what other records tell.
static bool is_wanted(fairseq_state *state, const keel_import_record *record, bool average) {
    if (average && state->within_epochs) return false;
    if (!average && (record->set & ~KEEL_IMPORT_EVALUATION)) state->within_epochs = true;
    return true;
}

static keel_status read_json(keel_import_context *context, fairseq_state *state, const keel_import_line *line) {
    keel_import_draft draft;
    keel_import_names *names = keel_import_context_names(context);
    const keel_import_json_found found =
        keel_import_json_find(keel_import_matcher(context), names, &draft, line->text, line->size);
    if (found == KEEL_IMPORT_JSON_OBJECT) keel_import_leave_draft(context, &draft, 0);
    if (found == KEEL_IMPORT_JSON_NOTHING && !line->open)
        keel_import_leave_out(context, KEEL_IMPORT_LINES, 1, 0, "it is no whole JSON object");
    if (found != KEEL_IMPORT_JSON_RECORD) return KEEL_OK;
    bool average = memmem(line->text, line->size, "\"train_num_updates\"", 19) != NULL;
    if (!draft.record.has_step && !draft.bad_step) return KEEL_OK;
    return is_wanted(state, &draft.record, average) ? keel_import_emit_draft(context, &draft, 0) : KEEL_OK;
}

static void take(keel_import_context *context, keel_import_record *record, bool validation) {
    static const struct {
        const char *name;
        keel_import_field field, in_validation;
    } fields[] = {
        {"loss", KEEL_IMPORT_LOSS, KEEL_IMPORT_EVAL_LOSS},
        {"ppl", KEEL_IMPORT_PERPLEXITY, KEEL_IMPORT_EVAL_PERPLEXITY},
        {"lr", KEEL_IMPORT_LR, KEEL_IMPORT_NOTHING},
        {"gnorm", KEEL_IMPORT_GRAD_NORM, KEEL_IMPORT_NOTHING},
        {"loss_scale", KEEL_IMPORT_LOSS_SCALE, KEEL_IMPORT_NOTHING},
    };
    const keel_import_match *match = keel_import_matcher(context);
    keel_import_slice name = keel_import_group(match, 2);
    if (name.size == strlen("num_updates") && memcmp(name.text, "num_updates", name.size) == 0) {
        record->has_step = keel_import_group_step(match, 3, &record->step);
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (name.size != strlen(fields[i].name) || memcmp(name.text, fields[i].name, name.size) != 0) continue;
        keel_import_field field = validation ? fields[i].in_validation : fields[i].field;
        if (field != KEEL_IMPORT_NOTHING) keel_import_take(context, record, field, 3);
    }
}

static keel_status read_text(keel_import_context *context, fairseq_state *state, const keel_import_line *line) {
    keel_import_match *match = keel_import_matcher(context);
    if (!keel_import_find(match, &heading, line->text, line->size, 0)) return KEEL_OK;
    bool average = *keel_import_group(match, 2).text == '|', validation = keel_import_group(match, 3).text != NULL;
    keel_import_record record;
    keel_import_record_clear(&record);
    double epoch;
    if (keel_import_group_number(match, 1, &epoch)) record.epoch = epoch;
    for (size_t at = keel_import_match_end(match); keel_import_find(match, &value, line->text, line->size, at);) {
        at = keel_import_match_end(match);
        take(context, &record, validation);
    }
    if (!record.has_step || !is_wanted(state, &record, average && !validation)) return KEEL_OK;
    return keel_import_emit(context, &record);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    if (memmem(line->text, line->size, "num_updates\"", 12)) return read_json(context, state, line);
    if (memmem(line->text, line->size, "num_updates", 11)) return read_text(context, state, line);
    return KEEL_OK;
}

const keel_importer keel_importer_fairseq = {
    .name = "fairseq",
    .doc = "fairseq's log: json, hydra's json, simple or tqdm text",
    .weight = 4,
    .state_bytes = sizeof(fairseq_state),
    .open = open_state,
    .line = read_line,
};
