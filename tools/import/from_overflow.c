// A log that tells of its loss scale and little else: the overflow lines of DeepSpeed, apex and fairseq
// (import_overflow.h reads those of every text log), with what says where the training was:
//     0: TRAIN [0][170/1938]	Time 0.170 (0.152)	Data 1.6e-04 (2.7e-03)	Loss/tok 6.7466 (8.4090)
//     LR 9.572e-04 Epoch: [0][ 170/5005]	Time  0.170 ( 0.152)	Loss 6.7466e+00 (6.9e+00)	Acc@1   0.39 (
//     0.15) [2022-01-19 13:09:13,305] [INFO] [logging.py:69:log_dist] [Rank 0] step=10, skipped=3, lr=[1e-05, 1e-05],
//     mom=[(0.9, 0.95)] steps: 10 loss: 6.7466 iter time (s): 0.170 samples/sec: 94.1
#include "tools/import/importer.h"

static keel_import_pattern meter = {
    .source = "\\[(\\d+)\\]\\[\\s*+(\\d+)/(\\d+)\\]\\s(?:[^\\[]*?\\s)?(?i:loss)(?:/tok)?:?\\s++(" KEEL_IMPORT_NUMBER
              ")" KEEL_IMPORT_END "(?:.*?\\b(?i:lr):?\\s++(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END ")?"};
static keel_import_pattern held_out = {.source = "\\b(?i:test|val(?:id(?:ation)?)?)\\b[^\\[]*+\\["};
static keel_import_pattern deepspeed_step = {
    .source = "(?<![A-Za-z_])step=(\\d+),\\s*+skipped=\\d+,\\s*+lr=\\[(" KEEL_IMPORT_NUMBER ")" KEEL_IMPORT_END};
static keel_import_pattern deepspeed_pipe = {
    .source = "(?<![A-Za-z_])steps:\\s*+(\\d+)\\s+loss:\\s*+(" KEEL_IMPORT_NUMBER ")\\s+iter time"};

static keel_status read_meter(keel_import_context *context, const keel_import_line *line) {
    keel_import_match *match = keel_import_matcher(context);
    if (keel_import_find(match, &held_out, line->text, line->size, 0)) return KEEL_OK;
    if (!keel_import_find(match, &meter, line->text, line->size, 0)) return KEEL_OK;
    uint64_t epoch, at, count;
    if (!keel_import_group_step(match, 1, &epoch) || !keel_import_group_step(match, 2, &at) ||
        !keel_import_group_step(match, 3, &count))
        return KEEL_OK;
    keel_import_record record;
    keel_import_record_clear(&record);
    record.has_step = keel_import_step_from((double)epoch * (double)count + (double)at, &record.step);
    record.epoch = (double)epoch;
    keel_import_take(context, &record, KEEL_IMPORT_LOSS, 4);
    keel_import_take(context, &record, KEEL_IMPORT_LR, 5);
    return keel_import_emit(context, &record);
}

static keel_status read_line(keel_import_context *context, void *state, const keel_import_line *line) {
    (void)state;
    keel_status status = read_meter(context, line);
    if (!status)
        status = keel_import_each(context, line, &deepspeed_pipe, (const keel_import_field[]){KEEL_IMPORT_LOSS}, 1);
    if (!status)
        status = keel_import_each(context, line, &deepspeed_step, (const keel_import_field[]){KEEL_IMPORT_LR}, 1);
    return status;
}

const keel_importer keel_importer_overflow = {
    .name = "overflow",
    .doc = "overflow lines of DeepSpeed, apex or fairseq, with a progress meter or DeepSpeed's steps",
    .weight = 0,
    .line = read_line,
};
