// Which incidents are worth a message now: one for each, another if it becomes more severe, at most 6 an hour for a
// run, the rest as a digest when there is room again. Critical ones always pass, and take no room.
#ifndef KEEL_ANALYZERS_ALERT_ALERT_LIMIT_H
#define KEEL_ANALYZERS_ALERT_ALERT_LIMIT_H

#include <stdbool.h>

#include "collectors/incident.h"

enum { KEEL_ALERTS_AN_HOUR = 6, KEEL_ALERT_RULES = 8 };

typedef struct keel_alert_limit keel_alert_limit;

typedef struct keel_alert_held {
    uint32_t count;
    uint32_t rules; // of rule and times
    char rule[KEEL_ALERT_RULES][KEEL_RULE_BYTES];
    uint32_t times[KEEL_ALERT_RULES];
    uint64_t first_step, last_step;
} keel_alert_held;

keel_status keel_alert_limit_open(keel_severity least, keel_alert_limit **limit);
void keel_alert_limit_close(keel_alert_limit *limit);
// True: send it. NOW in seconds of any clock that does not go back.
bool keel_alert_limit_take(keel_alert_limit *limit, const keel_incident *incident, double now);
// True if some were held back and there is room for a digest of them, which takes it: *held is filled and the count
// begins anew. AT_END: room or not.
bool keel_alert_limit_digest(keel_alert_limit *limit, double now, bool at_end, keel_alert_held *held);

#endif
