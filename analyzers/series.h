// The robust series: what every rule that looks at a history is built on. A value is scored against the history before
// it may join it; outliers and values that are not finite never join, so that neither a NaN nor a spike can blind the
// rule.
//
// Everything here is plain memory of fixed size without pointers: a state is saved and restored by copying its bytes.
#ifndef KEEL_ANALYZERS_SERIES_H
#define KEEL_ANALYZERS_SERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEEL_SERIES_WINDOW = 256, // residuals that the spread is taken from
    KEEL_SERIES_LEVEL = 32,   // values that the present level is taken from: short, so that a falling loss is followed
    KEEL_SERIES_WARMUP = 64,  // values before the first score
    KEEL_SERIES_ACCEPT = 64,  // records after which values outside are a new level
    KEEL_WINDOW_BLOCK = 16,
};

#define KEEL_SIGMA_OF_MAD 1.4826 // the standard deviation of a normal distribution in units of its MAD

// Ascending; VALUES hold no NaN.
void keel_sort_floats(float *values, size_t count);
void keel_sort_doubles(double *values, size_t count);

// ---- a window: the last CAPACITY values with their median and their median absolute deviation ----

// New values wait in the head until a block of them is complete (capacity / 4, at most KEEL_WINDOW_BLOCK) and are then
// put among the sorted ones together: most pushes touch nothing but the head, so that thousands of windows need not
// stay in the cache.
typedef struct keel_window {
    uint32_t capacity; // 16 to 256, a multiple of 8
    uint32_t block;
    uint32_t count;   // values in the sorted part, and in the ring
    uint32_t head;    // where the next value goes in the ring
    uint32_t pending; // of fresh
    uint32_t limit;   // values to hold at most now: capacity unless set lower, and never lowered again
    double median;    // of the sorted part; 0 while it is empty
    double mad;       // median of |value - median|
    double fresh[KEEL_WINDOW_BLOCK];
} keel_window;

// The doubles that a window of CAPACITY needs beside its head: sorted values, then the ring.
#define KEEL_WINDOW_STORE(capacity) (2 * (capacity))

void keel_window_init(keel_window *window, uint32_t capacity);
// VALUE must be finite. True if a block was merged: median and mad are new.
bool keel_window_push(keel_window *window, double *store, double value);
// The window holds these COUNT (at most its capacity) values and nothing else.
void keel_window_fill(keel_window *window, double *store, const double *values, uint32_t count);

// ---- the series ----

typedef struct keel_series_params {
    double floor_relative; // the spread is at least this share of |level|
    double floor_absolute; // and at least this
    double outlier;        // |z| from which a value does not join
    double early_share;    // of a short history, the latest share that the spread is taken from: below 1 where a run
                           // begins steeply
} keel_series_params;

typedef struct keel_series {
    keel_window level, residual;
    uint64_t joined;  // values that joined the history, all in all
    uint32_t outside; // records outside the history; falls again with each one inside
    uint32_t candidates;
    // How often a value lay on the same side of what was expected as the one before: of the last hundred or so.
    double same_side, pairs;
    int32_t side; // of the last value that joined: 1, -1; 0: none
    uint32_t reserved;
    double level_store[KEEL_WINDOW_STORE(KEEL_SERIES_LEVEL)];
    double residual_store[KEEL_WINDOW_STORE(KEEL_SERIES_WINDOW)];
    double candidate[KEEL_SERIES_ACCEPT]; // the values outside
} keel_series;

typedef struct keel_score {
    bool ready;      // false in warm-up: z is 0
    double z;        // (value - expected) / sigma; within +-KEEL_SCORE_LIMIT
    double expected; // level + median residual: follows a trend
    double sigma;    // 1.4826 MAD of the residuals, or the floor
} keel_score;

#define KEEL_SCORE_LIMIT 1e6

typedef enum keel_series_joined {
    KEEL_JOINED,        // the value is part of the history
    KEEL_OUTSIDE,       // an outlier: it is not
    KEEL_LEVEL_CHANGED, // the values outside became the new level with this one
} keel_series_joined;

void keel_series_init(keel_series *series);
// VALUE must be finite. The series is left as it is.
keel_score keel_series_score(const keel_series *series, const keel_series_params *params, double value);
// The score that a normal distribution would give a value as rare as Z, the spread being an estimate: Z is Student's t
// with as many degrees of freedom as the residuals give. These are fewer than the residuals, since the MAD uses 0.37 of
// what a normal sample tells (Rousseeuw and Croux 1993), and far fewer where neighbours are alike: a first-order
// autocorrelation r leaves (1 - r^2) / (1 + r^2) of them (Bartlett 1935, for variances), r by how often neighbours lie
// on the same side, 1/2 + asin(r) / pi of the time. Near Z in a long history, and much less in a young or a wandering
// one.
double keel_series_sure_z(const keel_series *series, double z);
// The same of a Z by the median and MAD of COUNT values that do not depend on one another.
double keel_sample_sure_z(size_t count, double z);
// SCORE: of this value, just taken. A level is accepted after KEEL_SERIES_ACCEPT records outside, less two for each one
// inside.
keel_series_joined keel_series_add(keel_series *series, const keel_series_params *params, double value,
                                   const keel_score *score);

// ---- the tail: how rare a score is by the series' own history ----

// Peaks over threshold: the share of scores above u = 3 and the mean of ln(z / u) among them (Hill, 1975) give the rate
// of scores beyond z as share * (z / u)^(-1 / mean). Heavy-tailed noise raises its own threshold by this, without
// calibration.
typedef struct keel_tail {
    double records, over, log_sum; // decayed, so that some 16,384 records count
    uint32_t since_decay;
} keel_tail;

void keel_tail_add(keel_tail *tail, double z);
double keel_tail_rate(const keel_tail *tail, double z); // expected share of scores at or beyond z > 3

#endif
