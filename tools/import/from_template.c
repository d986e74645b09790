// How to add a log format. Copy this file to from_NAME.c, and put your importer into the table in importers.c; a
// fixture and a test beside the others (tests/unit/tools/test_import.c) show that it is read, and that no other
// importer takes its logs for its own.
//
// This one reads an invented trainer that prints
//     tick 12 | loss 3.4125 | norm 0.51
//     tick 12 | held-out 3.50
#include "tools/import/importer.h"

// A pattern is compiled at its first use and kept. Leave no way to match half a number: KEEL_IMPORT_END must follow the
// last one. Anchor at something that neither prose nor source code contains: programs print their own source into their
// logs.
static keel_import_pattern tick = {.source =
                                       "(?<!\\S)tick\\s+(\\d+)\\s\\|\\sloss\\s(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END
                                       "(?:\\s\\|\\snorm\\s(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END ")?+"};
static keel_import_pattern held_out = {.source = "(?<!\\S)tick\\s+(\\d+)\\s\\|\\sheld-out\\s(" KEEL_IMPORT_NUMBER
                                                 ")" KEEL_IMPORT_END};

// What must be remembered from line to line; all zeros at the start. Most formats need nothing (state_bytes 0).
typedef struct template_state {
    uint64_t lines;
} template_state;

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    template_state *s = state;
    s->lines++;
    keel_import_match *match = keel_import_matcher(context);
    keel_import_record record;
    keel_import_record_clear(&record);
    if (keel_import_find(match, &tick, line->text, line->size, 0)) {
        record.has_step = keel_import_group_step(match, 1, &record.step);
        keel_import_take(context, &record, KEEL_IMPORT_LOSS, 2);
        keel_import_take(context, &record, KEEL_IMPORT_GRAD_NORM, 3); // left unset where the group took no part
        return keel_import_emit(context, &record);
    }
    // Evaluation is a scalar of its own, never the training loss; it joins the record of its step by itself.
    if (keel_import_find(match, &held_out, line->text, line->size, 0)) {
        record.has_step = keel_import_group_step(match, 1, &record.step);
        keel_import_take(context, &record, KEEL_IMPORT_EVAL_LOSS, 2);
        return keel_import_emit(context, &record);
    }
    return KEEL_OK; // any other line is passed over
}

const keel_importer keel_importer_template = {
    .name = "template",
    .doc = "an invented trainer, to show how an importer is written",
    .weight = 4,
    .state_bytes = sizeof(template_state),
    .line = read_line,
};
