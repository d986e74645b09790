#include "tools/replay_verdict.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/series.h"

#define SURE_Z 5.2

enum { RECORDED_MOST = 16, RECORDED_LEAST = 4, TEXT = 64 };

const char *keel_replay_cause_name(keel_replay_cause cause) {
    static const char *const names[] = {[KEEL_REPLAY_BAD_DATA] = "bad data",     [KEEL_REPLAY_HARDWARE] = "hardware",
                                        [KEEL_REPLAY_TRANSIENT] = "transient",   [KEEL_REPLAY_HEALTHY] = "healthy",
                                        [KEEL_REPLAY_NOT_DATA] = "not the data", [KEEL_REPLAY_UNKNOWN] = "cannot tell"};
    return names[cause];
}

// ---- values ----

static bool is_finite(const keel_replay_value *value) {
    return isfinite(value->loss) && isfinite(value->grad_norm);
}

static bool near(double a, double b) {
    if (!isfinite(a) || !isfinite(b)) return !isfinite(a) && !isfinite(b);
    return fabs(a - b) <= KEEL_REPLAY_AGREE * fmax(fabs(a), fabs(b));
}

static bool agree(const keel_replay_value *a, const keel_replay_value *b) {
    return near(a->loss, b->loss) && near(a->grad_norm, b->grad_norm);
}

static const keel_replay_value *value_of(const keel_replay_reading *reading, uint32_t pass, uint32_t shard) {
    return &reading->values[(size_t)pass * reading->shards + shard];
}

static double median_of(double *values, size_t count) {
    if (count == 0) return (double)NAN;
    keel_sort_doubles(values, count);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

// ---- what is usual ----

typedef struct usual {
    double loss, loss_sigma;
    double grad_norm, log_sigma;
    size_t count; // finite values that this rests on
    bool sick;    // most are not finite
} usual;

static double spread_of(double *values, size_t count, double centre) {
    for (size_t i = 0; i < count; i++) values[i] = fabs(values[i] - centre);
    return KEEL_SIGMA_OF_MAD * median_of(values, count);
}

// False: no memory.
static bool find_usual(const keel_replay_value *values, size_t count, usual *out) {
    double *losses = malloc((count + 1) * sizeof *losses), *logs = malloc((count + 1) * sizeof *logs);
    *out = (usual){0};
    if (losses && logs) {
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            if (!is_finite(&values[i])) continue;
            losses[n] = values[i].loss;
            logs[n++] = log(fmax(values[i].grad_norm, 1e-30));
        }
        out->count = n;
        out->sick = 2 * n < count;
        out->loss = median_of(losses, n);
        const double centre = median_of(logs, n);
        out->grad_norm = exp(centre);
        out->loss_sigma = fmax(spread_of(losses, n, out->loss), 0.002 * fabs(out->loss));
        out->log_sigma = fmax(spread_of(logs, n, centre), 0.05);
    }
    const bool done = losses && logs;
    free(losses);
    free(logs);
    return done;
}

// SURE: small rises must be rarer than what a spread from so few values tells.
static bool stands_out(const keel_replay_value *value, const usual *u, bool sure) {
    if (u->sick || u->count < RECORDED_LEAST) return false;
    if (!is_finite(value)) return true;
    const double rise = value->loss - u->loss, loss_z = rise / u->loss_sigma;
    if (loss_z >= 8 && rise >= fmax(0.1, 0.03 * fabs(u->loss)) &&
        (!sure || rise >= 0.2 * fabs(u->loss) || keel_sample_sure_z(u->count, loss_z) >= SURE_Z))
        return true;
    const double ratio = value->grad_norm / u->grad_norm, norm_z = log(ratio) / u->log_sigma;
    return ratio >= 2 && norm_z >= 6 && (!sure || ratio >= 5 || keel_sample_sure_z(u->count, norm_z) >= SURE_Z);
}

static void usual_neighbours(const keel_replay_reading *reading, usual *u) {
    const keel_replay_value *first = value_of(reading, KEEL_REPLAY_PASSES, 0);
    if (!find_usual(first, (size_t)reading->neighbours * reading->shards, u)) *u = (usual){.sick = true};
}

double keel_replay_usual(const keel_replay_reading *reading, bool loss) {
    usual u;
    usual_neighbours(reading, &u);
    return u.sick ? (double)NAN : loss ? u.loss : u.grad_norm;
}

static const char *text_of(char text[TEXT], const keel_replay_value *value) {
    snprintf(text, TEXT, "loss %.4g, gradient norm %.4g", value->loss, value->grad_norm);
    return text;
}

// ---- a rank whose results are others ----

// Who has a shard: one rank, or several that compute it together.
static const char *holder(const keel_replay_reading *reading) {
    return reading->tp * reading->pp > 1 ? "data-parallel rank" : "rank";
}

// Which ranks of the job these are: a run of neighbours on each stage (train/parallel/mesh.h).
static void name_holders(const keel_replay_reading *reading, uint32_t shard, char *text, size_t bytes) {
    const uint32_t tp = reading->tp, pp = reading->pp;
    size_t used = strlen(text);
    if (tp * pp == 1) return;
    used += (size_t)snprintf(text + used, bytes - used, "; data-parallel rank %" PRIu32 " is rank", shard);
    for (uint32_t stage = 0; stage < pp && used < bytes; stage++) {
        const uint32_t first = (stage * reading->shards + shard) * tp;
        used += (size_t)snprintf(text + used, bytes - used, "%s %" PRIu32, stage ? "," : "s", first);
        if (tp > 1 && used < bytes) used += (size_t)snprintf(text + used, bytes - used, " to %" PRIu32, first + tp - 1);
    }
}

typedef struct suspect {
    int32_t rank; // -1: nobody
    bool repeats; // it gives the same again
    uint32_t shard;
    keel_replay_value here, elsewhere; // of that shard; where it does not repeat: the first and the second time
} suspect;

// How bad what RANK computed is: values that are not finite count for more than any loss.
static double badness(const keel_replay_reading *reading, uint32_t rank) {
    double sum = 0;
    for (uint32_t pass = 0; pass < reading->passes; pass++) {
        const uint32_t shard = pass < 2 ? rank : (rank + reading->shards - 1) % reading->shards;
        const keel_replay_value *value = value_of(reading, pass, shard);
        sum += is_finite(value) ? value->loss + value->grad_norm : 1e30;
    }
    return sum;
}

// One that does not give the same twice is worse than one that differs from its neighbours.
static uint32_t votes_against(const keel_replay_reading *reading, uint32_t rank) {
    const uint32_t n = reading->shards, before = (rank + n - 1) % n;
    uint32_t votes = agree(value_of(reading, 0, rank), value_of(reading, 1, rank)) ? 0 : 8;
    if (reading->passes < KEEL_REPLAY_PASSES) return votes;
    votes += agree(value_of(reading, 2, before), value_of(reading, 3, before)) ? 0 : 8;
    votes += !agree(value_of(reading, 0, rank), value_of(reading, 2, rank));
    votes += !agree(value_of(reading, 0, before), value_of(reading, 2, before));
    return votes;
}

static suspect find_suspect(const keel_replay_reading *reading) {
    suspect found = {.rank = -1};
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < reading->shards; rank++) {
        const uint32_t votes = votes_against(reading, rank);
        if (votes == 0 || votes < most) continue;
        if (votes == most && badness(reading, rank) <= badness(reading, (uint32_t)found.rank)) continue;
        most = votes;
        found.rank = (int32_t)rank;
    }
    if (found.rank < 0) return found;
    const uint32_t rank = (uint32_t)found.rank;
    found.repeats = most < 8;
    found.shard = rank;
    uint32_t pass = 0, other = found.repeats ? 2 : 1;
    if (!found.repeats && agree(value_of(reading, 0, rank), value_of(reading, 1, rank))) {
        found.shard = (rank + reading->shards - 1) % reading->shards;
        pass = 2;
        other = 3;
    }
    found.here = *value_of(reading, pass, found.shard);
    found.elsewhere = *value_of(reading, other, found.shard);
    return found;
}

static bool judge_suspect(const keel_replay_reading *reading, keel_replay_verdict *verdict) {
    const suspect found = find_suspect(reading);
    if (found.rank < 0) return false;
    char here[TEXT], elsewhere[TEXT];
    const char *rank = holder(reading);
    verdict->cause = KEEL_REPLAY_HARDWARE;
    verdict->rank = found.rank;
    if (!found.repeats)
        snprintf(verdict->reason, sizeof verdict->reason,
                 "%s %" PRId32 " does not give the same twice: the batch of %s %" PRIu32 " has %s there, and then %s",
                 rank, found.rank, rank, found.shard, text_of(here, &found.here), text_of(elsewhere, &found.elsewhere));
    else
        snprintf(verdict->reason, sizeof verdict->reason,
                 "always on %s %" PRId32 ": its batch has %s there, twice, and %s on %s %" PRIu32
                 "; the batch of %s %" PRIu32 " is bad on %s %" PRId32 " too",
                 rank, found.rank, text_of(here, &found.here), text_of(elsewhere, &found.elsewhere), rank,
                 (found.shard + 1) % reading->shards, rank, (found.shard + reading->shards - 1) % reading->shards, rank,
                 found.rank);
    name_holders(reading, (uint32_t)found.rank, verdict->reason, sizeof verdict->reason);
    return true;
}

// ---- a batch that stands out ----

static const keel_replay_value *recorded_at(const keel_recorded *recorded, uint64_t step) {
    for (size_t i = 0; i < recorded->count; i++)
        if (recorded->steps[i] == step) return &recorded->values[i];
    return NULL;
}

static int32_t find_bad_shard(const keel_replay_reading *reading, usual *u) {
    usual_neighbours(reading, u);
    int32_t worst = -1;
    for (uint32_t shard = 0; shard < reading->shards; shard++) {
        const keel_replay_value *value = value_of(reading, 0, shard);
        if (!stands_out(value, u, true)) continue;
        const keel_replay_value *now = worst < 0 ? NULL : value_of(reading, 0, (uint32_t)worst);
        if (!now || (is_finite(now) && (!is_finite(value) || value->loss > now->loss))) worst = (int32_t)shard;
    }
    return worst;
}

static bool judge_batch(const keel_replay_reading *reading, keel_replay_verdict *verdict) {
    usual u;
    const int32_t shard = find_bad_shard(reading, &u);
    if (shard < 0) return false;
    char text[TEXT], where[128];
    const char *rank = holder(reading);
    if (reading->passes < KEEL_REPLAY_PASSES)
        snprintf(where, sizeof where, "twice; with one %s a part that fails on this batch only would look the same",
                 rank);
    else
        snprintf(where, sizeof where, "on two %ss, twice each", rank);
    verdict->cause = KEEL_REPLAY_BAD_DATA;
    verdict->shard = shard;
    snprintf(verdict->reason, sizeof verdict->reason,
             "the batch of %s %" PRId32 " has %s, against %.4g and %.4g of %" PRIu32
             " batches beside it, at the parameters of step %" PRIu64 ", %s",
             rank, shard, text_of(text, value_of(reading, 0, (uint32_t)shard)), u.loss, u.grad_norm,
             reading->neighbours, reading->step, where);
    return true;
}

// The batch is an unusual one in a step that the rules find sound: true, with the verdict.
static bool judge_unusual(const keel_replay *replay, const keel_recorded *recorded, const keel_replay_reading *reading,
                          keel_replay_verdict *verdict) {
    usual u;
    if (!recorded->judged || recorded->sick) return false;
    const int32_t shard = find_bad_shard(reading, &u);
    if (shard < 0) return false;
    const keel_replay_value *value = value_of(reading, 0, (uint32_t)shard);
    if (!is_finite(value) || value->loss >= (1 + KEEL_REPLAY_FAR) * u.loss) return false;
    char was[TEXT], text[TEXT];
    verdict->cause = KEEL_REPLAY_HEALTHY;
    snprintf(verdict->reason, sizeof verdict->reason,
             "step %" PRIu64 " recorded %s, which the rules find usual for this run; the batch of %s %" PRId32
             " is an unusual one, with %s against %.4g and %.4g of %" PRIu32 " batches beside it, and did no harm",
             replay->step, text_of(was, recorded_at(recorded, replay->step)), holder(reading), shard,
             text_of(text, value), u.loss, u.grad_norm, reading->neighbours);
    return true;
}

bool keel_replay_decides(const keel_replay_reading *reading) {
    keel_replay_verdict verdict;
    return judge_suspect(reading, &verdict) || judge_batch(reading, &verdict);
}

// ---- against what was recorded ----

// By the rules; where they have no history, by the records before STEP, and where there are hardly any, by those
// behind.
static bool was_bad(const keel_recorded *recorded, uint64_t step, usual *u) {
    const keel_replay_value *was = recorded_at(recorded, step);
    if (!is_finite(was)) return true;
    if (recorded->judged) return recorded->sick;
    size_t at = 0;
    while (at < recorded->count && recorded->steps[at] < step) at++;
    const size_t begin = at > RECORDED_MOST ? at - RECORDED_MOST : 0;
    if (at - begin >= RECORDED_LEAST) {
        if (!find_usual(recorded->values + begin, at - begin, u)) return false;
    } else if (!find_usual(recorded->values + at + 1, recorded->count - at - 1, u)) {
        return false;
    }
    return stands_out(was, u, false);
}

// The first step of the replay whose numbers are not the recorded ones; 0: none.
static uint64_t first_other(const keel_replay *replay, const keel_recorded *recorded) {
    for (uint64_t i = 0; i < replay->step_count; i++) {
        const keel_replay_value *was = recorded_at(recorded, replay->checkpoint_step + 1 + i);
        if (was && !agree(was, &replay->steps[i])) return replay->checkpoint_step + 1 + i;
    }
    return 0;
}

static void cannot_tell(keel_replay_verdict *verdict, const char *format, uint64_t step, const char *was,
                        const char *now) {
    verdict->cause = KEEL_REPLAY_UNKNOWN;
    snprintf(verdict->reason, sizeof verdict->reason, format, step, was, now);
}

static void judge_again(const keel_replay *replay, const keel_recorded *recorded, keel_replay_verdict *verdict) {
    const char *rank = holder(&replay->at_checkpoint);
    const uint32_t ranks = replay->at_checkpoint.shards;
    const keel_replay_value *was = recorded_at(recorded, replay->step), *now = &replay->steps[replay->step_count - 1];
    const uint64_t other = first_other(replay, recorded);
    char was_text[TEXT], now_text[TEXT];
    text_of(was_text, was);
    text_of(now_text, now);
    usual u;
    const bool bad = was_bad(recorded, replay->step, &u);
    if (!bad && (!other || replay->step_count == 1)) {
        verdict->cause = KEEL_REPLAY_HEALTHY;
        snprintf(verdict->reason, sizeof verdict->reason,
                 "nothing stands out at step %" PRIu64 ": %s was recorded, the same batch now has %s", replay->step,
                 was_text, now_text);
    } else if (!other) {
        cannot_tell(verdict,
                    "step %" PRIu64 " comes again as it was, %s, and now %s, but its batch does not stand out of those "
                    "beside it: neither the data nor a machine, but the parameters or the settings; look at what came "
                    "before",
                    replay->step, was_text, now_text);
    } else if (!is_finite(now)) {
        cannot_tell(verdict,
                    "step %" PRIu64 " recorded %s and now has %s, although every rank's own gradient is sound: look at "
                    "the collectives, and at the loss scale where there is one",
                    replay->step, was_text, now_text);
    } else if (other == replay->checkpoint_step + 1 && other < replay->step) {
        cannot_tell(
            verdict,
            "the replay does not follow the run from its first step, %" PRIu64
            ", on: have settings, data or the number of ranks changed? At the bad step %s was recorded, the same "
            "batch now has %s",
            other, was_text, now_text);
    } else {
        verdict->cause = ranks > 1 ? KEEL_REPLAY_TRANSIENT : KEEL_REPLAY_NOT_DATA;
        snprintf(verdict->reason, sizeof verdict->reason,
                 "step %" PRIu64 " recorded %s; the same batch at the same parameters now has %s%s%s%s", replay->step,
                 was_text, now_text, ranks > 1 ? ", on every " : "; with one ", rank,
                 ranks > 1 ? "" : " a fault that struck once and a part that fails at times look alike");
        const size_t used = strlen(verdict->reason);
        if (other < replay->step)
            snprintf(verdict->reason + used, sizeof verdict->reason - used,
                     "; the run went another way already at step %" PRIu64, other);
    }
}

static bool judge_reading(const keel_replay *replay, const keel_recorded *recorded, const keel_replay_reading *reading,
                          keel_replay_verdict *verdict) {
    return judge_suspect(reading, verdict) || judge_unusual(replay, recorded, reading, verdict) ||
           judge_batch(reading, verdict);
}

void keel_replay_judge(const keel_replay *replay, const keel_recorded *recorded, keel_replay_verdict *verdict) {
    *verdict = (keel_replay_verdict){.cause = KEEL_REPLAY_UNKNOWN, .rank = -1, .shard = -1};
    const keel_replay_reading *first = &replay->at_checkpoint, *last = &replay->at_step;
    if (judge_reading(replay, recorded, first, verdict)) return;
    if (last->values && judge_reading(replay, recorded, last, verdict)) return;
    usual u;
    usual_neighbours(last->values ? last : first, &u);
    if (u.sick) {
        verdict->cause = first->shards > 1 ? KEEL_REPLAY_UNKNOWN : KEEL_REPLAY_NOT_DATA;
        snprintf(verdict->reason, sizeof verdict->reason,
                 "the batches beside that of step %" PRIu64 " are not finite either%s%s%s", replay->step,
                 first->shards > 1 ? ", on every " : "; with one ", holder(first),
                 first->shards > 1 ? ": look at the parameters and the settings"
                                   : " a broken machine and broken parameters look alike");
        return;
    }
    judge_again(replay, recorded, verdict);
}
