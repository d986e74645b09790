#include "analyzers/series.h"

#include <math.h>
#include <string.h>

#define SIGMA_OF_MAD 1.4826 // the standard deviation of a normal distribution in units of its MAD

// ---- window ----

void keel_window_init(keel_window *window, uint32_t capacity) {
    memset(window, 0, sizeof *window);
    window->capacity = capacity;
    window->block = capacity / 8 < KEEL_WINDOW_BLOCK ? capacity / 8 : KEEL_WINDOW_BLOCK;
}

static void sort(double *values, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        double v = values[i];
        uint32_t j = i;
        for (; j > 0 && values[j - 1] > v; j--) values[j] = values[j - 1];
        values[j] = v;
    }
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
    double fresh[KEEL_WINDOW_BLOCK + 1], gone[KEEL_WINDOW_BLOCK + 1], out[KEEL_SERIES_WINDOW];
    uint32_t m = w->pending, k = w->leaving_count;
    for (uint32_t i = 0; i < m; i++) fresh[i] = ring[(w->head + w->capacity - m + i) % w->capacity];
    memcpy(gone, w->leaving, k * sizeof *gone);
    sort(fresh, m);
    sort(gone, k);
    fresh[m] = INFINITY; // sentinels: values are finite, and NaN equals nothing
    gone[k] = NAN;
    const double *f = fresh, *g = gone;
    uint32_t o = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        double v = sorted[i];
        if (v == *g) {
            g++;
            continue;
        }
        while (*f < v) out[o++] = *f++;
        out[o++] = v;
    }
    while (f < fresh + m) out[o++] = *f++;
    memcpy(sorted, out, o * sizeof *out);
    w->count = o;
    w->pending = w->leaving_count = 0;
    measure(w, sorted);
}

bool keel_window_push(keel_window *w, double *store, double value) {
    double *ring = store + w->capacity;
    if (w->count + w->pending - w->leaving_count == w->capacity) w->leaving[w->leaving_count++] = ring[w->head];
    ring[w->head] = value;
    if (++w->head == w->capacity) w->head = 0;
    if (++w->pending < w->block && w->count > 0) return false;
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
    score.sigma = SIGMA_OF_MAD * s->residual.mad;
    double floor = fmax(p->floor_relative * fabs(s->level.median), p->floor_absolute);
    if (score.sigma < floor) score.sigma = floor;
    score.ready = s->joined >= KEEL_SERIES_WARMUP;
    if (!score.ready) return score;
    double distance = value - score.expected;
    if (distance != 0) score.z = score.sigma > 0 ? distance / score.sigma : copysign(KEEL_SCORE_LIMIT, distance);
    if (fabs(score.z) > KEEL_SCORE_LIMIT) score.z = copysign(KEEL_SCORE_LIMIT, score.z);
    return score;
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
}

keel_joined keel_series_add(keel_series *s, const keel_series_params *p, double value, const keel_score *score) {
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
