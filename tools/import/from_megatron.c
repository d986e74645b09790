// Megatron-LM, Megatron-DeepSpeed and GPT-NeoX: fields between bars, in an order of their own, with whatever before
// them.
//     [default7]: iteration 31214/ 115311 | consumed samples: 47768496 | ... | learning rate: 5.279E-05 | lm
//     loss: 2.198845E+00 | loss scale: 65536.0 | grad norm: 0.242 | number of skipped iterations: 0 | number of nan
//     iterations: 0 |      (one line) validation loss at iteration 1000 | lm loss value: 2.345678E+00 | lm loss
//     PPL: 1.044047E+01 |
#include <string.h>

#include "tools/import/importer.h"

static keel_import_pattern iteration = {.source = "(?<![A-Za-z_])iteration\\s+(\\d+)\\s*+/\\s*+\\d+\\s*+\\|"};
static keel_import_pattern validation = {.source = "(?<![A-Za-z_])validation loss at iteration\\s+(\\d+)\\b[^|]*+\\|"};

static bool is_named(keel_import_slice key, const char *name) {
    return key.size == strlen(name) && memcmp(key.text, name, key.size) == 0;
}

static bool ends_with(keel_import_slice key, const char *end) {
    size_t size = strlen(end);
    return key.size >= size && memcmp(key.text + key.size - size, end, size) == 0;
}

static keel_import_slice trim(const char *text, const char *end) {
    while (text < end && *text == ' ') text++;
    while (text < end && end[-1] == ' ') end--;
    return (keel_import_slice){text, (size_t)(end - text)};
}

static keel_import_field field_of(keel_import_slice key) {
    static const struct {
        const char *name;
        keel_import_field field;
    } names[] = {
        {"lm loss", KEEL_IMPORT_LOSS},
        {"loss", KEEL_IMPORT_LOSS},
        {"mlm loss", KEEL_IMPORT_LOSS},
        {"total loss", KEEL_IMPORT_LOSS},
        {"grad norm", KEEL_IMPORT_GRAD_NORM},
        {"learning rate", KEEL_IMPORT_LR},
        {"loss scale", KEEL_IMPORT_LOSS_SCALE},
        {"load_balancing_loss", KEEL_IMPORT_AUX_LOSS},
        {"moe loss", KEEL_IMPORT_AUX_LOSS},
        {"z_loss", KEEL_IMPORT_Z_LOSS},
        {"number of skipped iterations", KEEL_IMPORT_SKIPPED},
        {"lm loss value", KEEL_IMPORT_EVAL_LOSS},
        {"lm loss PPL", KEEL_IMPORT_EVAL_PERPLEXITY},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_named(key, names[i].name)) return names[i].field;
    return KEEL_IMPORT_NOTHING;
}

// The fields "name: value |" between AT and END. Each must be closed by its bar: a torn line does not give half a
// value.
static keel_status read_fields(keel_import_context *context, keel_import_record *record, const char *at,
                               const char *end) {
    bool tells_skipped = false, names_loss = false;
    for (const char *bar; (bar = memchr(at, '|', (size_t)(end - at))); at = bar + 1) {
        const char *colon = memchr(at, ':', (size_t)(bar - at));
        if (!colon) continue;
        keel_import_slice key = trim(at, colon);
        keel_import_field field = field_of(key);
        tells_skipped |= field == KEEL_IMPORT_SKIPPED;
        names_loss |= field == KEEL_IMPORT_LOSS || ends_with(key, " loss");
        double value;
        if (field != KEEL_IMPORT_NOTHING &&
            keel_import_number((keel_import_slice){colon + 1, (size_t)(bar - colon - 1)}, &value))
            keel_import_record_set(record, field, value);
    }
    // The loss is averaged over the updates that were applied; none was, and the norm is an old one.
    if (!names_loss && tells_skipped) record->flags |= KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
    if (!record->has_step) return KEEL_OK;
    if (!names_loss && !tells_skipped) record->set &= ~KEEL_IMPORT_BIT(KEEL_IMPORT_GRAD_NORM); // cut short
    return keel_import_emit(context, record);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    keel_import_match *match = keel_import_matcher(context);
    keel_import_record record;
    keel_import_record_clear(&record);
    bool found = keel_import_find(match, &iteration, line->text, line->size, 0);
    if (!found) {
        if (!keel_import_find(match, &validation, line->text, line->size, 0)) return KEEL_OK;
        record.has_step = keel_import_group_step(match, 1, &record.step);
        return read_fields(context, &record, line->text + keel_import_match_end(match), line->text + line->size);
    }
    while (found) { // a line torn between ranks holds two
        size_t from = keel_import_match_end(match);
        keel_import_record_clear(&record);
        record.has_step = keel_import_group_step(match, 1, &record.step);
        found = keel_import_find(match, &iteration, line->text, line->size, from);
        keel_import_slice next = keel_import_group(match, 0);
        keel_status status =
            read_fields(context, &record, line->text + from, found ? next.text : line->text + line->size);
        if (status) return status;
        // Handing a record on uses the matcher.
        if (found) found = keel_import_find(match, &iteration, line->text, line->size, from);
    }
    return KEEL_OK;
}

const keel_importer keel_importer_megatron = {
    .name = "megatron",
    .doc = "Megatron-LM, Megatron-DeepSpeed and GPT-NeoX text",
    .weight = 4,
    .line = read_line,
};
