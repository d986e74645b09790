#include "analyzers/site_trouble.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/clipped_text.h"

// A scalar comes before all sites.
static uint32_t flow_of(const keel_site_index *index, const keel_odd_site *s) {
    return s->site < 0 ? 0 : 1 + index->flow[s->site];
}

void keel_odd_sites_add(keel_odd_sites *odd, const keel_site_index *index, const keel_odd_site *site) {
    if (odd->count++ == 0 || fabs(site->score) > fabs(odd->worst.score)) odd->worst = *site;
    uint32_t at = odd->kept;
    while (at > 0 && flow_of(index, site) < flow_of(index, &odd->first[at - 1])) at--;
    if (at == KEEL_EVIDENCE_MAX) return;
    if (odd->kept < KEEL_EVIDENCE_MAX) odd->kept++;
    memmove(odd->first + at + 1, odd->first + at, (odd->kept - 1 - at) * sizeof *odd->first);
    odd->first[at] = *site;
}

bool keel_site_wait_add(keel_site_wait *wait, bool odd, uint32_t early, double records) {
    if (wait->known < early) {
        wait->known++;
        return false;
    }
    wait->odd = odd ? (uint16_t)(wait->odd + (wait->odd < UINT16_MAX)) : 0;
    return wait->odd >= records;
}

static void describe_site(const keel_detector_input *in, const keel_odd_site *s, const char *verb, char *text,
                          size_t size) {
    const keel_site_info *site = s->site < 0 ? NULL : &in->info->sites[s->site];
    if (site && s->plain) {
        keel_text_append(text, size, "%s (%s) %s at step %" PRIu64, site->name, keel_quantity_name(site->quantity),
                         s->plain, in->row->step.step);
        return;
    }
    keel_text_append(text, size, "%s ", s->op);
    if (site) keel_text_append(text, size, "of %s (%s) ", site->name, keel_quantity_name(site->quantity));
    keel_text_append(text, size, "%s %.4g at step %" PRIu64, verb, s->value, in->row->step.step);
    if (isfinite(s->expected)) keel_text_append(text, size, " (expected %.4g)", s->expected);
}

static void begin(keel_site_trouble *t, const keel_detector_input *in, const keel_odd_sites *odd, const char *verb) {
    uint32_t key = t->key;
    memset(t, 0, sizeof *t);
    t->key = key + 1;
    t->active = 1;
    t->first_step = in->row->step.step;
    t->site = odd->first[0].site;
    if (t->site >= 0) t->site_hash = keel_site_hash(&in->info->sites[t->site]);
    snprintf(t->series, sizeof t->series, "%s", odd->first[0].op);
    for (uint32_t i = 0; i < odd->kept; i++)
        describe_site(in, &odd->first[i], verb, t->evidence[t->evidence_count++], KEEL_EVIDENCE_BYTES);
}

static void describe(keel_site_trouble *t, const keel_odd_sites *odd) {
    memset(t->clause, 0, sizeof t->clause);
    keel_text_append(t->clause, sizeof t->clause, "%s", t->evidence[0]);
    t->most = odd->count;
    if (odd->count > 1)
        keel_text_append(t->clause, sizeof t->clause, ", and %" PRIu32 " more site%s", odd->count - 1,
                         odd->count > 2 ? "s" : "");
}

bool keel_site_trouble_row(keel_site_trouble *t, const keel_detector_input *in, const keel_odd_sites *odd,
                           keel_severity severity, const char *verb) {
    t->site = keel_site_now(in->info, t->site, t->site_hash);
    if (odd->count == 0) {
        if (!t->active || ++t->quiet < KEEL_SITE_TROUBLE_QUIET) return false;
        t->active = 0;
        return true;
    }
    if (!t->active) begin(t, in, odd, verb);
    t->quiet = 0;
    t->records++;
    t->last_step = in->row->step.step;
    if (severity > t->severity) t->severity = severity;
    if (odd->count > t->most) describe(t, odd);
    if (t->records == 1 || fabs(odd->worst.score) > fabs(t->score)) {
        t->peak_step = t->last_step;
        t->value = odd->worst.value;
        t->expected = odd->worst.expected;
        t->score = odd->worst.score;
    }
    return true;
}

keel_finding keel_site_trouble_finding(const keel_site_trouble *t) {
    return (keel_finding){.series = t->series,
                          .severity = t->severity,
                          .key = t->key,
                          .closed = !t->active,
                          .site = t->site,
                          .rank = -1,
                          .first_step = t->first_step,
                          .peak_step = t->peak_step,
                          .last_step = t->last_step,
                          .value = t->value,
                          .expected = t->expected,
                          .score = t->score,
                          .clause = t->clause,
                          .evidence = t->evidence,
                          .evidence_count = t->evidence_count};
}
