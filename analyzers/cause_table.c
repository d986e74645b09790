#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "analyzers/cause.h"

#define FIND(rule) keel_case_find(c, rule)

static void quote(keel_verdict *v, const keel_trouble *t) {
    if (t && t->clause[0]) keel_verdict_line(v, "%.*s", KEEL_EVIDENCE_BYTES - 1, t->clause);
}

static bool at_weight(const keel_trouble *t) {
    static const char end[] = ":weight";
    size_t n = strlen(t->site);
    return n >= sizeof end - 1 && strcmp(t->site + n - (sizeof end - 1), end) == 0;
}

// The loss or the gradient norm has left its course, or values are lost: what a wrong setting leads to.
static const keel_trouble *symptom(const keel_case *c) {
    static const char *const rules[] = {"loss_divergence", "nonfinite", "loss_spike", "grad_norm_spike"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const keel_trouble *t = FIND(rules[i]);
        if (t && t->severity >= KEEL_WARNING) return t;
    }
    return NULL;
}

// ---- one number or tensor at fault ----

static double nonfinite_tensor(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("nonfinite");
    (void)v;
    if (!t || !t->site[0]) return 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->troubles[i].first_step < t->first_step && c->troubles[i].severity >= KEEL_WARNING) return 0.4;
    return 0.9;
}

static double bit_flip(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = keel_case_find_series(c, "replica_divergence", "replica_residual");
    v->culprit = t;
    if (t) {
        keel_verdict_line(v, "%.0f of %.0f weights differ between their replicas", t->value, t->expected);
        return t->value <= 0 ? 0 : t->value <= 1 ? 0.9 : t->value <= 0.1 * t->expected ? 0.6 : 0;
    }
    t = keel_case_find_series(c, "tensor_jump", "weight");
    if (t) {
        v->culprit = t;
        quote(v, t);
        return 0.95;
    }
    t = FIND("tensor_jump");
    if (!t || !at_weight(t) || t->first_step > c->first_step || FIND("lr_jump")) return 0;
    keel_verdict_line(v, "a weight jumped to %.4g (expected %.4g) while no update and no gradient had done so before",
                      t->value, t->expected);
    return 0.7;
}

static double replica_out_of_step(const keel_case *c, keel_verdict *v) {
    const keel_trouble *missed = keel_case_find_series(c, "replica_divergence", "update");
    if (missed) {
        v->culprit = missed;
        quote(v, missed);
        return 0.9;
    }
    const keel_trouble *t = keel_case_find_series(c, "replica_divergence", "replica_residual");
    if (!t || t->value < 2) return 0;
    keel_verdict_line(v, "%.0f of %.0f weights differ between their replicas", t->value, t->expected);
    return t->value >= 0.5 * t->expected ? 0.9 : t->value > 0.1 * t->expected ? 0.6 : 0;
}

static const char *low(keel_computed dtype) {
    return dtype == KEEL_COMPUTED_FLOAT32 ? NULL : keel_computed_name(dtype);
}

// T is of gradients that the run's settings have summed in a short format.
static bool summed_low(const keel_case *c, const keel_trouble *t) {
    return low(c->run->settings->grad_reduce) && strstr(t->site, ":grad_reduced");
}

static double fake_float32(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("fake_float32");
    if (!t || t->severity < KEEL_WARNING || summed_low(c, t)) return 0;
    v->culprit = t;
    quote(v, t);
    return 0.9;
}

static double dead_layer(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("dead_unit"), *jump = FIND("tensor_jump");
    quote(v, t);
    if (t && jump && jump->first_step < t->first_step) return 0.3; // what has jumped has killed it
    v->culprit = t;
    return t ? 0.85 : 0;
}

// ---- precision ----

static double softmax_low(const keel_case *c, keel_verdict *v) {
    const char *dtype = low(c->run->settings->softmax);
    if (!dtype) return 0;
    const keel_trouble *policy = keel_case_find_series(c, "precision_policy", "softmax_compute_dtype");
    const keel_trouble *growth = FIND("attention_logit_growth"), *bad = FIND("nonfinite"), *other = symptom(c);
    keel_verdict_line(v, "softmax is computed in %s", dtype);
    quote(v, growth);
    if (policy) return 0.9;
    if (bad && strstr(bad->site, "attention")) return 0.95;
    return growth ? 0.85 : other ? 0.55 : 0;
}

static double gradients_low(const keel_case *c, keel_verdict *v) {
    const char *dtype = low(c->run->settings->grad_reduce);
    const keel_trouble *policy = keel_case_find_series(c, "precision_policy", "grad_reduce_dtype");
    const keel_trouble *other = symptom(c);
    const keel_trouble *fake = FIND("fake_float32");
    if (policy) quote(v, policy);
    if (policy) return 0.9;
    if (fake && summed_low(c, fake)) {
        keel_verdict_line(v, "gradients of %" PRIu32 " ranks are summed in %s", c->run->info->world_size, dtype);
        quote(v, fake);
        return 0.9;
    }
    if (!dtype || c->run->info->world_size < 2 || !other) return 0;
    keel_verdict_line(v, "gradients of %" PRIu32 " ranks are summed in %s", c->run->info->world_size, dtype);
    quote(v, other);
    return 0.55;
}

static double fp16_underflow(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("fp16_underflow");
    const keel_trouble *policy = keel_case_find_series(c, "precision_policy", "scale_sense");
    quote(v, t ? t : policy);
    return t ? 0.85 : policy ? 0.8 : 0;
}

static double loss_scale_large(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = keel_case_find_series(c, "fp16_overflow", "loss_scale");
    if (!t) t = keel_case_find_series(c, "fp16_overflow", "headroom");
    if (!t || t->severity < KEEL_WARNING) return 0;
    quote(v, t);
    return strcmp(t->series, "loss_scale") == 0 ? 0.95 : 0.6;
}

// ---- the optimizer's settings ----

static double lr_jump(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("lr_jump");
    quote(v, t);
    return !t ? 0 : symptom(c) ? 0.92 : 1.0;
}

// Loss and gradient norm jump in one record and are back within two: the batch was bad, not the parameters.
static double bad_batch(const keel_case *c, keel_verdict *v) {
    enum { BACK_WITHIN = 2 + 3 }; // an excursion is known to be over three records later
    const keel_trouble *loss = FIND("loss_spike"), *norm = FIND("grad_norm_spike");
    (void)v;
    if (!loss || FIND("nonfinite") || FIND("loss_divergence") || !loss->closed || loss->bursts != 1) return 0;
    if (loss->peak_step != loss->first_step || loss->last_record - loss->first_record > BACK_WITHIN) return 0;
    // A norm that jumped too little to be told may still show in single gradients. A loss that is high in one record
    // alone is that of its batch at least.
    const bool once = loss->last_step == loss->first_step;
    if (!norm) return FIND("stale_second_moment") || FIND("tensor_jump") ? 0.46 : once ? 0.4 : 0;
    bool back = norm->closed && norm->bursts == 1 && norm->first_step == loss->first_step &&
                norm->last_record - norm->first_record <= BACK_WITHIN;
    return back ? 0.5 : 0;
}

static double beta2_large(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("stale_second_moment");
    double beta2 = c->run->settings->beta2;
    if (!t) return 0;
    v->culprit = t;
    keel_verdict_line(v, "RMS_t of %s reached %.3g: squared gradients are %.3g times the second moment", t->site,
                      t->value, t->value * t->value);
    if (c->run->settings->known)
        keel_verdict_line(v, "beta2 is %.6g: the second moment is a mean over about %.0f steps", beta2,
                          1 / (1 - beta2));
    // A moment over a few dozen steps is soon where the gradients are: it is behind after any jump of theirs.
    if (c->run->settings->known && beta2 < 0.99) return beta2 > 0.95 ? 0.3 : 0; // none is advised below 0.95
    // The loss of a step is that of the weights before its update: where it rose no later than RMS_t, the batch is odd.
    const keel_trouble *loss = FIND("loss_spike");
    return loss && loss->first_step <= t->first_step ? 0.45 : 0.8;
}

static double epsilon_large(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = keel_case_find_series(c, "update_ratio", "update");
    quote(v, t);
    return t ? 0.85 : 0;
}

static bool is_early(const keel_case *c) {
    const keel_run_settings *s = c->run->settings;
    return s->known && s->warmup_steps == 0 && !s->pretrained && c->first_step <= (uint64_t)fmax(64, 0.05 * s->steps);
}

static double no_warm_up(const keel_case *c, keel_verdict *v) {
    const keel_trouble *ratio = keel_case_find_series(c, "update_ratio", "update_ratio"), *other = symptom(c);
    if (!is_early(c) || (!ratio && !other)) return 0;
    keel_verdict_line(v, "warmup_steps is 0 and the trouble begins at step %" PRIu64, c->first_step);
    quote(v, ratio);
    quote(v, other);
    return ratio ? 0.75 : 0.6;
}

static double lr_high(const keel_case *c, keel_verdict *v) {
    const keel_trouble *ratio = keel_case_find_series(c, "update_ratio", "update_ratio"), *other = symptom(c),
                       *divergence = FIND("loss_divergence");
    if (!ratio && !other) return 0;
    if (c->run->facts->lr > 0)
        keel_verdict_line(v, "the learning rate is %.3g, its greatest so far %.3g", c->run->facts->lr,
                          c->run->facts->lr_peak);
    quote(v, ratio);
    quote(v, other);
    bool near_peak = c->run->facts->lr >= 0.5 * c->run->facts->lr_peak && c->run->facts->lr_peak > 0;
    if (ratio) return 0.65;
    return divergence && divergence->severity == KEEL_CRITICAL && near_peak && c->run->settings->known ? 0.4 : 0;
}

static double clip_high(const keel_case *c, keel_verdict *v) {
    double threshold = c->run->settings->max_grad_norm, usual = c->run->facts->grad_norm.median;
    const keel_trouble *t = symptom(c), *trend = FIND("tensor_trend");
    bool in_16_bits = c->run->settings->compute != KEEL_COMPUTED_FLOAT32;
    if (!t && trend && trend->severity >= KEEL_WARNING) t = trend;
    if (!t && in_16_bits) t = FIND("attention_logit_growth");
    const keel_trouble *never = FIND("clip_ineffective");
    quote(v, never);
    if (never && in_16_bits)
        keel_verdict_line(v,
                          "the run computes in %s: rare great gradients that its rounding makes go through as they are",
                          keel_computed_name(c->run->settings->compute));
    if (never) return 0.8;
    if (!t || !(usual > 0) || threshold < 20 * usual) return 0;
    keel_verdict_line(v, "the clip threshold is %.4g, the usual gradient norm %.4g: %.3g times", threshold, usual,
                      threshold / usual);
    const keel_trouble *norm = FIND("grad_norm_spike");
    if (norm && norm->value < threshold)
        keel_verdict_line(v, "a norm of %.4g at step %" PRIu64 " was not clipped", norm->value, norm->peak_step);
    if (in_16_bits) keel_verdict_line(v, "the run computes in %s", keel_computed_name(c->run->settings->compute));
    return !in_16_bits ? 0.6 : threshold >= 100 * usual ? 0.85 : 0.7;
}

// ---- the model ----

static double logit_growth(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("attention_logit_growth");
    v->culprit = t;
    quote(v, t);
    return t ? 0.8 : 0;
}

static double vanishing(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("vanishing_gradient");
    quote(v, t);
    return t ? 0.6 : 0;
}

static double bad_initialisation(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("initialisation");
    if (!t) return 0;
    v->culprit = t;
    quote(v, t);
    double loss = c->run->facts->first_loss, vocabulary = c->run->settings->vocab_size;
    if (isfinite(loss) && vocabulary > 1)
        keel_verdict_line(v, "the first loss was %.4g; ln(vocabulary) is %.4g", loss, log(vocabulary));
    return 0.85;
}

static double router_collapse(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("router_collapse");
    quote(v, t);
    return t ? 0.85 : 0;
}

static double experts_drop(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("drop_rate");
    quote(v, t);
    return t ? 0.8 : 0;
}

// ---- the data ----

static double corrupt_data(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("rank_outlier");
    if (!t || t->severity < KEEL_WARNING || FIND("replica_divergence")) return 0;
    quote(v, t);
    return 0.75;
}

static double repeated_batch(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = keel_case_find_series(c, "data_order", "batch");
    quote(v, t);
    return !t ? 0 : t->value > 1 ? 0.8 : 0.7;
}

static double order_of_data(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("data_order");
    quote(v, t);
    return t ? 0.7 : 0;
}

static double resume(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("resume_discontinuity");
    quote(v, t);
    return t ? 0.75 : 0;
}

// ---- the machine ----

static double straggler(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("straggler");
    quote(v, t);
    return t ? 0.9 : 0;
}

static double memory_leak(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("memory_growth");
    quote(v, t);
    return t ? 0.85 : 0;
}

static double hang(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("hang");
    quote(v, t);
    return t ? 0.9 : 0;
}

static double dead_rank(const keel_case *c, keel_verdict *v) {
    const keel_trouble *t = FIND("dead_rank");
    quote(v, t);
    return t ? 0.95 : 0;
}

const keel_cause_test keel_cause_table[] = {
    {"loss scale too large", loss_scale_large},
    {"learning rate jump", lr_jump},
    {"bit flip in a weight", bit_flip},
    {"replica out of step", replica_out_of_step},
    {"softmax in low precision", softmax_low},
    {"non-finite tensor", nonfinite_tensor},
    {"fake float32", fake_float32},
    {"gradients reduced in low precision", gradients_low},
    {"fp16 underflow", fp16_underflow},
    {"dead layer", dead_layer},
    {"bad initialisation", bad_initialisation},
    {"Adam epsilon too large", epsilon_large},
    {"beta2 too large", beta2_large},
    {"attention logit growth", logit_growth},
    {"repeated batch", repeated_batch},
    {"order of the data", order_of_data},
    {"resume does not continue", resume},
    {"corrupt data on one rank", corrupt_data},
    {"no warm-up", no_warm_up},
    {"clip threshold above the gradient norm", clip_high},
    {"learning rate too high", lr_high},
    {"vanishing gradient", vanishing},
    {"router collapse", router_collapse},
    {"experts drop tokens", experts_drop},
    {"bad batch", bad_batch},
    {"straggler", straggler},
    {"memory leak", memory_leak},
    {"dead rank", dead_rank},
    {"hang", hang},
    {NULL, NULL},
};
