#include "analyzers/series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_float(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void keel_sort_floats(float *values, size_t count) {
    qsort(values, count, sizeof *values, by_float);
}

void keel_sort_doubles(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_double);
}

// ---- window ----

void keel_window_init(keel_window *window, uint32_t capacity) {
    memset(window, 0, sizeof *window);
    window->capacity = window->limit = capacity;
    window->block = capacity / 4 < KEEL_WINDOW_BLOCK ? capacity / 4 : KEEL_WINDOW_BLOCK;
}

typedef double pair __attribute__((vector_size(16)));
typedef int64_t pair_mask __attribute__((vector_size(16))); // -1 where true

// How many of the COUNT sorted values are less than VALUE: by the last of each sixteen, then among sixteen. The
// comparisons do not wait for one another, which a bisection's do.
static uint32_t rank_of(const double *sorted, uint32_t count, double value) {
    enum { STRIDE = 16 };
    uint32_t strides = count / STRIDE, i = 0;
    const pair wanted = {value, value};
    pair_mask less = {0, 0};
    for (; i + 2 <= strides; i += 2) {
        const pair last = {sorted[i * STRIDE + STRIDE - 1], sorted[i * STRIDE + 2 * STRIDE - 1]};
        less -= last < wanted;
    }
    uint32_t before = (uint32_t)(less[0] + less[1]);
    if (i < strides) before += sorted[i * STRIDE + STRIDE - 1] < value;

    const double *rest = sorted + before * STRIDE;
    uint32_t left = count - before * STRIDE, rank = 0;
    if (left < STRIDE) {
        for (uint32_t k = 0; k < left; k++) rank += rest[k] < value;
        return before * STRIDE + rank;
    }
    less = (pair_mask){0, 0};
    for (uint32_t k = 0; k < STRIDE; k += 2) {
        pair two;
        memcpy(&two, rest + k, sizeof two);
        less -= two < wanted;
    }
    return before * STRIDE + (uint32_t)(less[0] + less[1]);
}

static void insert(double *sorted, uint32_t count, double value) {
    uint32_t at = rank_of(sorted, count, value);
    memmove(sorted + at + 1, sorted + at, (count - at) * sizeof *sorted);
    sorted[at] = value;
}

static void replace(double *sorted, uint32_t count, double old, double value) {
    uint32_t from = rank_of(sorted, count, old), to = rank_of(sorted, count, value);
    if (to > from) {
        to--;
        memmove(sorted + from, sorted + from + 1, (to - from) * sizeof *sorted);
    } else
        memmove(sorted + to + 1, sorted + to, (from - to) * sizeof *sorted);
    sorted[to] = value;
}

static double midpoint(double low, double high) {
    return low + (high - low) / 2;
}

// Median, and the MAD without a second sort: the k values nearest to the median are neighbours in sorted order, so that
// their place is found by bisection.
static void measure(keel_window *w, const double *sorted) {
    uint32_t n = w->count;
    double m = n % 2 ? sorted[n / 2] : midpoint(sorted[n / 2 - 1], sorted[n / 2]);
    uint32_t k =
        n / 2; // the k least deviations; for even n the MAD lies between the k-th and the next, else it is the next
    uint32_t low = 0, high = n - k;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (m - sorted[mid] > sorted[mid + k] - m)
            low = mid + 1;
        else
            high = mid;
    }
    double next = INFINITY;
    if (low > 0) next = m - sorted[low - 1];
    if (low + k < n && sorted[low + k] - m < next) next = sorted[low + k] - m;
    double kth = 0;
    if (k > 0) kth = fmax(m - sorted[low], sorted[low + k - 1] - m);
    w->median = m;
    w->mad = n % 2 ? next : midpoint(kth, next);
}

static void merge(keel_window *w, double *store) {
    double *sorted = store, *ring = store + w->capacity;
    for (uint32_t i = 0; i < w->pending; i++) {
        if (w->count < w->limit)
            insert(sorted, w->count++, w->fresh[i]);
        else
            replace(sorted, w->count, ring[w->head >= w->count ? w->head - w->count : w->head + w->capacity - w->count],
                    w->fresh[i]);
        ring[w->head] = w->fresh[i];
        if (++w->head == w->capacity) w->head = 0;
    }
    w->pending = 0;
    measure(w, sorted);
}

bool keel_window_push(keel_window *w, double *store, double value) {
    w->fresh[w->pending++] = value;
    if (w->pending < w->block && w->count > 0) return false;
    merge(w, store);
    return true;
}

void keel_window_fill(keel_window *w, double *store, const double *values, uint32_t count) {
    keel_window_init(w, w->capacity);
    for (uint32_t i = 0; i < count; i++) keel_window_push(w, store, values[i]);
    if (w->pending) merge(w, store);
}

// ---- series ----

void keel_series_init(keel_series *series) {
    memset(series, 0, sizeof *series);
    keel_window_init(&series->level, KEEL_SERIES_LEVEL);
    keel_window_init(&series->residual, KEEL_SERIES_WINDOW);
}

keel_score keel_series_score(const keel_series *s, const keel_series_params *p, double value) {
    keel_score score = {.expected = value};
    if (s->residual.count == 0) return score;
    score.expected = s->level.median + s->residual.median;
    score.sigma = KEEL_SIGMA_OF_MAD * s->residual.mad;
    double floor = fmax(p->floor_relative * fabs(s->level.median), p->floor_absolute);
    if (score.sigma < floor) score.sigma = floor;
    score.ready = s->joined >= KEEL_SERIES_WARMUP;
    if (!score.ready) return score;
    double distance = value - score.expected;
    if (distance != 0) score.z = score.sigma > 0 ? distance / score.sigma : copysign(KEEL_SCORE_LIMIT, distance);
    if (fabs(score.z) > KEEL_SCORE_LIMIT) score.z = copysign(KEEL_SCORE_LIMIT, score.z);
    return score;
}

#define MAD_EFFICIENCY 0.37
#define SIDES_MEMORY   128.0 // pairs

static double degrees_of_freedom(const keel_series *s) {
    double same = s->pairs > 0 ? s->same_side / s->pairs : 0.5;
    double r = sin(M_PI * (fmax(same, 0.5) - 0.5)), shrink = (1 - r * r) / (1 + r * r);
    return MAD_EFFICIENCY * s->residual.count * shrink;
}

// Wallace's approximation (1959) of the normal deviate with the tail of Student's t, close for any degrees of freedom.
static double normal_of_t(double t, double freedom) {
    const double n = fmax(1, freedom);
    return copysign((8 * n + 1) / (8 * n + 3) * sqrt(n * log1p(t * t / n)), t);
}

double keel_series_sure_z(const keel_series *s, double z) {
    return normal_of_t(z, degrees_of_freedom(s));
}

double keel_sample_sure_z(size_t count, double z) {
    return normal_of_t(z, MAD_EFFICIENCY * (double)count);
}

static void note_side(keel_series *s, double distance) {
    int32_t side = (distance > 0) - (distance < 0);
    if (side && s->side) {
        double keep = 1 - 1 / SIDES_MEMORY;
        s->pairs = keep * s->pairs + 1;
        s->same_side = keep * s->same_side + (side == s->side);
    }
    s->side = side;
}

// The values outside become the history: level and spread are taken from them alone, since noise often grows with the
// level.
static void accept_level(keel_series *s) {
    uint32_t n = s->candidates;
    double residual[KEEL_SERIES_ACCEPT];
    keel_window_fill(&s->level, s->level_store, s->candidate + (n > KEEL_SERIES_LEVEL ? n - KEEL_SERIES_LEVEL : 0),
                     n > KEEL_SERIES_LEVEL ? KEEL_SERIES_LEVEL : n);
    for (uint32_t i = 0; i < n; i++) residual[i] = s->candidate[i] - s->level.median;
    keel_window_fill(&s->residual, s->residual_store, residual, n);
    s->joined = KEEL_SERIES_WARMUP;
    s->outside = s->candidates = 0;
    s->side = 0;
}

keel_series_joined keel_series_add(keel_series *s, const keel_series_params *p, double value, const keel_score *score) {
    if (score->ready && fabs(score->z) >= p->outlier) {
        if (s->candidates == KEEL_SERIES_ACCEPT) {
            memmove(s->candidate, s->candidate + 1, (KEEL_SERIES_ACCEPT - 1) * sizeof *s->candidate);
            s->candidates--;
        }
        s->candidate[s->candidates++] = value;
        if (++s->outside < KEEL_SERIES_ACCEPT) return KEEL_OUTSIDE;
        accept_level(s);
        return KEEL_LEVEL_CHANGED;
    }
    if (s->outside) {
        s->outside -= s->outside > 1 ? 2 : 1;
        if (s->outside == 0) s->candidates = 0;
    }
    note_side(s, value - score->expected);
    const double share = p->early_share * (double)s->joined;
    s->residual.limit = (uint32_t)fmax(p->early_share * KEEL_SERIES_WARMUP, fmin(KEEL_SERIES_WINDOW, share));
    if (s->level.count) keel_window_push(&s->residual, s->residual_store, value - s->level.median);
    keel_window_push(&s->level, s->level_store, value);
    s->joined++;
    return KEEL_JOINED;
}

// ---- tail ----

#define TAIL_FROM     3.0
#define TAIL_CAP      12.0 // one great spike says little of the noise
#define TAIL_MEMORY   16384
#define TAIL_DECAY    256    // records between two decays
#define PRIOR_RECORDS 4096.0 // a history to begin with: a little heavier than normal
#define PRIOR_OVER    8.0
#define PRIOR_LOG_SUM 0.8

void keel_tail_add(keel_tail *tail, double z) {
    tail->records += 1;
    if (z > TAIL_FROM) {
        tail->over += 1;
        tail->log_sum += log(fmin(z, TAIL_CAP) / TAIL_FROM);
    }
    if (++tail->since_decay < TAIL_DECAY) return;
    tail->since_decay = 0;
    double keep = 1.0 - (double)TAIL_DECAY / TAIL_MEMORY;
    tail->records *= keep;
    tail->over *= keep;
    tail->log_sum *= keep;
}

double keel_tail_rate(const keel_tail *tail, double z) {
    double over = tail->over + PRIOR_OVER;
    double index = over / (tail->log_sum + PRIOR_LOG_SUM);
    return over / (tail->records + PRIOR_RECORDS) * pow(z / TAIL_FROM, -index);
}
