#include "analyzers/alert/alert_limit.h"

#include <stdlib.h>
#include <string.h>

#define HOUR 3600.0

typedef struct sent {
    uint32_t id;
    int severity; // of the latest message, or of what was not worth one; -1: not seen yet
} sent;

struct keel_alert_limit {
    keel_severity least;
    sent *sent;
    size_t sent_count, capacity;
    double times[KEEL_ALERTS_AN_HOUR]; // of the latest messages
    uint32_t count;
    keel_alert_held held;
};

keel_status keel_alert_limit_open(keel_severity least, keel_alert_limit **out) {
    keel_alert_limit *limit = calloc(1, sizeof *limit);
    if (!limit) return keel_fail(KEEL_ERR_MEMORY, "no memory for alerts");
    limit->least = least;
    *out = limit;
    return KEEL_OK;
}

void keel_alert_limit_close(keel_alert_limit *limit) {
    if (!limit) return;
    free(limit->sent);
    free(limit);
}

static bool has_room(const keel_alert_limit *limit, double now) {
    if (limit->count < KEEL_ALERTS_AN_HOUR) return true;
    return now - limit->times[limit->count % KEEL_ALERTS_AN_HOUR] >= HOUR;
}

static void take_room(keel_alert_limit *limit, double now) {
    limit->times[limit->count % KEEL_ALERTS_AN_HOUR] = now;
    limit->count++;
}

static void hold(keel_alert_held *held, const keel_incident *incident) {
    if (held->count++ == 0) held->first_step = incident->first_step;
    held->last_step = incident->first_step;
    for (uint32_t i = 0; i < held->rules; i++) {
        if (strcmp(held->rule[i], incident->rule) != 0) continue;
        held->times[i]++;
        return;
    }
    if (held->rules == KEEL_ALERT_RULES) return;
    memcpy(held->rule[held->rules], incident->rule, KEEL_RULE_BYTES);
    held->times[held->rules++] = 1;
}

// What was said of this incident before; NULL: no memory, which must not silence anything. Ids are whatever a store
// says; those that still change are mostly the last ones.
static sent *said(keel_alert_limit *limit, uint32_t id) {
    for (size_t i = limit->sent_count; i-- > 0;)
        if (limit->sent[i].id == id) return &limit->sent[i];
    if (limit->sent_count == limit->capacity) {
        size_t capacity = limit->capacity ? 2 * limit->capacity : 64;
        sent *grown = realloc(limit->sent, capacity * sizeof *grown);
        if (!grown) return NULL;
        limit->sent = grown;
        limit->capacity = capacity;
    }
    sent *added = &limit->sent[limit->sent_count++];
    *added = (sent){.id = id, .severity = -1};
    return added;
}

bool keel_alert_limit_take(keel_alert_limit *limit, const keel_incident *incident, double now) {
    sent *before = said(limit, incident->id);
    bool resumed =
        before && before->severity < 0 && incident->revision > 1; // the process before this one has told of it
    bool more = !before || (int)incident->severity > before->severity;
    if (before && more) before->severity = (int)incident->severity;
    if (!more || resumed || incident->severity < limit->least) return false;
    if (incident->severity == KEEL_CRITICAL) return true;
    if (!has_room(limit, now)) {
        hold(&limit->held, incident);
        return false;
    }
    take_room(limit, now);
    return true;
}

bool keel_alert_limit_digest(keel_alert_limit *limit, double now, bool at_end, keel_alert_held *held) {
    if (limit->held.count == 0 || (!at_end && !has_room(limit, now))) return false;
    take_room(limit, now);
    *held = limit->held;
    limit->held = (keel_alert_held){0};
    return true;
}
