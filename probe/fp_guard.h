// Private to the probe: a program may treat subnormals as zero, round elsewhere than to nearest or trap; none of it may
// change what is measured, or end the program in the midst of it. To change the control word costs as much as some
// hundred elements, so that it is left where it is as good.
#ifndef KEEL_PROBE_FP_GUARD_H
#define KEEL_PROBE_FP_GUARD_H

#include <immintrin.h>

#define KEEL_FP_DEFAULT 0x1f80u // nearest even, no traps, subnormals kept

// Puts WANTED in force and returns what was before, for keel_fp_leave.
static inline unsigned keel_fp_enter(unsigned wanted) {
    const unsigned control = _mm_getcsr();
    if ((control & ~(unsigned)_MM_EXCEPT_MASK) != wanted) _mm_setcsr(wanted);
    return control;
}

static inline void keel_fp_leave(unsigned control, unsigned wanted) {
    if ((control & ~(unsigned)_MM_EXCEPT_MASK) != wanted) _mm_setcsr(control);
}

#endif
