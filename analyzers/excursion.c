#include "analyzers/excursion.h"

#include <inttypes.h>
#include <stdio.h>

static void begin(keel_excursion *e, const keel_excursion_record *r) {
    uint32_t number = e->number;
    *e = (keel_excursion){.number = number + 1, .first_step = r->step, .score = r->score};
}

bool keel_excursion_add(keel_excursion *e, const keel_excursion_record *r) {
    bool was_active = e->active;
    if (!r->outside) {
        if (e->records == 0 || ++e->quiet < KEEL_EXCURSION_QUIET) return was_active;
        e->active = e->records = 0;
        return was_active;
    }
    if (e->records == 0) begin(e, r);
    e->records++;
    e->quiet = 0;
    if (r->alarm) e->active = 1;
    if (r->great) e->great++;
    e->last_step = r->step;
    if (e->records == 1 || r->value > e->value) {
        e->peak_step = r->step;
        e->value = r->value;
        e->expected = r->expected;
        e->score = r->score;
    }
    return e->active;
}

bool keel_excursion_settle(keel_excursion *e) {
    bool was_active = e->active;
    e->active = e->records = 0;
    e->settled = was_active;
    return was_active;
}

keel_finding keel_excursion_finding(const keel_excursion *e) {
    return (keel_finding){.key = e->number,
                          .closed = !e->active,
                          .site = -1,
                          .rank = -1,
                          .first_step = e->first_step,
                          .peak_step = e->peak_step,
                          .last_step = e->last_step,
                          .value = e->value,
                          .expected = e->expected,
                          .score = e->score};
}

void keel_excursion_note_shift(const keel_level_shift *shift, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "%s is at a new level of %.4g since step %" PRIu64 " (%.4g before)", shift->series,
             shift->level, shift->since, shift->expected);
    keel_finding f = {.series = shift->series,
                      .severity = KEEL_INFO,
                      .key = UINT32_MAX - shift->number, // apart from the numbers of excursions
                      .closed = true,
                      .at_once = true,
                      .site = -1,
                      .rank = -1,
                      .first_step = shift->since,
                      .peak_step = shift->step,
                      .last_step = shift->step,
                      .value = shift->level,
                      .expected = shift->expected,
                      .score = shift->score,
                      .clause = clause};
    keel_findings_add(findings, &f);
}
