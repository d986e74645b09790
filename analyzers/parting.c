#include "analyzers/parting.h"

#include <math.h>
#include <string.h>

#include "collectors/row.h"

double keel_difference(double a, double b) {
    const bool sick_a = !isfinite(a) && !keel_is_not_collected(a), sick_b = !isfinite(b) && !keel_is_not_collected(b);
    if (sick_a || sick_b) return sick_a && sick_b ? 0 : (double)INFINITY;
    const double scale = fmax(fabs(a), fabs(b));
    return scale > 0 ? fabs(a - b) / scale : 0;
}

static bool lasts(const keel_parting_window *w, double tolerance, bool at_end) {
    const keel_parting_record *first = &w->records[0];
    if (!first->beyond) return false;
    if (keel_difference(first->a, first->b) > KEEL_GREAT_DIFFERENCE * tolerance) return true;
    unsigned beyond = 0;
    for (unsigned i = 0; i < w->count; i++) beyond += w->records[i].beyond;
    return at_end ? beyond == w->count : beyond >= KEEL_LASTING_BEYOND;
}

// Judges the oldest record and lets it go.
static void settle(keel_parting_window *w, double tolerance, bool at_end, keel_parting *parting) {
    const keel_parting_record *first = &w->records[0];
    if (!parting->step && lasts(w, tolerance, at_end))
        *parting = (keel_parting){.step = first->step, .before = w->before, .a = first->a, .b = first->b};
    w->before = first->step;
    w->count--;
    memmove(w->records, w->records + 1, w->count * sizeof *w->records);
}

void keel_parting_add(keel_parting_window *w, double tolerance, uint64_t step, double a, double b,
                      keel_parting *parting) {
    const bool beyond = keel_difference(a, b) > tolerance;
    w->records[w->count++] = (keel_parting_record){.step = step, .a = a, .b = b, .beyond = beyond};
    if (w->count == KEEL_LASTING_RECORDS) settle(w, tolerance, false, parting);
}

void keel_parting_end(keel_parting_window *w, double tolerance, keel_parting *parting) {
    while (w->count) settle(w, tolerance, true, parting);
}
