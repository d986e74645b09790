#include "tools/import/import_overflow.h"

#include <math.h>
#include <string.h>

// apex:      Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 256.0
// DeepSpeed: [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
//            ... Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1
// fairseq:   NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0
static keel_import_pattern overflow = {
    .source = "(?i)overflow\\b(?:.*?\\brank\\s(\\d{1,6}))?+.*?\\b(?:"
              "(?:reducing|setting|reduced|set)(?:\\sloss\\sscale)?\\sto:?\\s(" KEEL_IMPORT_NUMBER ")"
              "|loss\\sscale:?\\s(" KEEL_IMPORT_NUMBER "),\\sbut\\shysteresis)"};

keel_status keel_import_overflow_line(keel_import_context *context, const keel_import_line *line) {
    if (!memmem(line->text, line->size, "verflow", 7) && !memmem(line->text, line->size, "OVERFLOW", 8)) return KEEL_OK;
    keel_import_match *match = keel_import_matcher(context);
    if (!keel_import_find(match, &overflow, line->text, line->size, 0)) return KEEL_OK;
    double scale = (double)NAN, number;
    if (keel_import_group_number(match, 2, &number) || keel_import_group_number(match, 3, &number)) scale = number;
    int32_t rank = keel_import_group_number(match, 1, &number) ? (int32_t)number : -1;
    return keel_import_emit_overflow(context, scale, rank);
}
