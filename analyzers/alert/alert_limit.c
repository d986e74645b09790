#include "analyzers/alert/alert_limit.h"

#include <stdlib.h>
#include <string.h>

#define HOUR 3600.0

struct keel_alert_limit {
    keel_severity least;
    unsigned char *sent; // [by id] severity of the latest message + 1, or of what was not worth one; 0: never seen
    uint32_t capacity;
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

// What was said of this incident before; NULL: no memory, which must not silence anything.
static unsigned char *said(keel_alert_limit *limit, uint32_t id) {
    if (id >= limit->capacity) {
        uint32_t capacity = limit->capacity ? limit->capacity : 64;
        while (capacity <= id) capacity *= 2;
        unsigned char *grown = realloc(limit->sent, capacity);
        if (!grown) return NULL;
        memset(grown + limit->capacity, 0, capacity - limit->capacity);
        limit->sent = grown;
        limit->capacity = capacity;
    }
    return &limit->sent[id];
}

bool keel_alert_limit_take(keel_alert_limit *limit, const keel_incident *incident, double now) {
    unsigned char *before = said(limit, incident->id), severity = (unsigned char)(incident->severity + 1);
    bool resumed = before && *before == 0 && incident->revision > 1; // the process before this one has told of it
    bool more = !before || severity > *before;
    if (before && more) *before = severity;
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
