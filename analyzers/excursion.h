// An excursion: a stretch of records in which a series stands outside its history, from the first record outside to the
// last. What the spike rules share.
#ifndef KEEL_ANALYZERS_EXCURSION_H
#define KEEL_ANALYZERS_EXCURSION_H

#include "analyzers/detector.h"
#include "analyzers/series.h"

typedef struct keel_excursion {
    uint32_t active;  // 1 from the record that raised the alarm
    uint32_t number;  // of this excursion, from 1: the finding's key
    uint32_t records; // outside, those before the alarm included
    uint32_t great;   // of them, those beyond what the rule calls great
    uint32_t quiet;   // records inside since the last outside
    uint32_t settled; // 1: the level was accepted as the new normal, which ended it
    uint64_t first_step, last_step, peak_step;
    double value, expected, score; // at the peak
} keel_excursion;

// One record: OUTSIDE its history (upward), worth an ALARM (implies outside), GREAT. True while the excursion is
// active, and once more for the record that ends it (then active is 0). It ends after KEEL_EXCURSION_QUIET records
// inside.
enum { KEEL_EXCURSION_QUIET = 3 };
typedef struct keel_excursion_record {
    uint64_t step;
    double value, expected, score;
    bool outside, alarm, great;
} keel_excursion_record;
bool keel_excursion_add(keel_excursion *excursion, const keel_excursion_record *record);
// The level was accepted: an active excursion ends. True if there was one.
bool keel_excursion_settle(keel_excursion *excursion);

// A level that was accepted without an alarm before, such as that of a loss which fell at once: a note.
typedef struct keel_level_shift {
    const char *series;
    uint32_t number;      // of this shift, from 1
    uint64_t since, step; // the first step outside, and the one with which it was accepted
    double level, expected, score;
} keel_level_shift;
void keel_excursion_note_shift(const keel_level_shift *shift, keel_findings *findings);

// The finding that tells of it; series, severity and clause are left to the rule.
keel_finding keel_excursion_finding(const keel_excursion *excursion);

#endif
