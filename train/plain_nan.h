// A NaN has a sign, which says nothing and would be printed.
#ifndef KEEL_TRAIN_PLAIN_NAN_H
#define KEEL_TRAIN_PLAIN_NAN_H

#include <math.h>

static inline double keel_plain(double x) {
    return isnan(x) ? (double)NAN : x;
}

#endif
