// Where two series part.
//
// The difference of two values is |a - b| / max(|a|, |b|): 0 where both are 0 or both are not finite, infinite where
// one alone is not finite. Two series part at the first common record whose difference is beyond the tolerance, if that
// lasts: of the KEEL_LASTING_RECORDS records from there on at least KEEL_LASTING_BEYOND are beyond it; where the series
// end before that, all that are left. What is beyond KEEL_GREAT_DIFFERENCE times the tolerance need not last, and
// neither need any difference where the tolerance is 0.
//
// So a difference by rounding, which flickers, is none; one that grows out of it is found where it becomes lasting.
#ifndef KEEL_ANALYZERS_PARTING_H
#define KEEL_ANALYZERS_PARTING_H

#include <stdbool.h>
#include <stdint.h>

enum { KEEL_LASTING_RECORDS = 5, KEEL_LASTING_BEYOND = 4, KEEL_GREAT_DIFFERENCE = 10 };

typedef struct keel_parting {
    uint64_t step;   // 0: they do not part
    uint64_t before; // the common record before it; 0: there is none
    double a, b;     // the values; keel_not_collected() for one of which no more is known than that it is finite
} keel_parting;

typedef struct keel_parting_record {
    uint64_t step;
    double a, b;
    bool beyond;
} keel_parting_record;

// Records wait here until it is known whether their difference lasts. Zeros to begin with.
typedef struct keel_parting_window {
    keel_parting_record records[KEEL_LASTING_RECORDS]; // the oldest first
    unsigned count;
    uint64_t before; // step of the record that left the window last
} keel_parting_window;

// A value that was not collected counts as a finite one.
double keel_difference(double a, double b);
// The next record of both; sets *PARTING once.
void keel_parting_add(keel_parting_window *window, double tolerance, uint64_t step, double a, double b,
                      keel_parting *parting);
// No record follows.
void keel_parting_end(keel_parting_window *window, double tolerance, keel_parting *parting);

#endif
