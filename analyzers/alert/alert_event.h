// An alert of what a rank's fellows saw of its end, by a process that judges nothing else: rank 0, which judges and
// alerts, may be the one.
#ifndef KEEL_ANALYZERS_ALERT_ALERT_EVENT_H
#define KEEL_ANALYZERS_ALERT_ALERT_EVENT_H

#include "collectors/watch/host_event.h"
#include "configs/monitor_config.h"

// Judges EVENT by the rules alone, without the run's past, and sends what that makes by every configured way. Waits for
// hooks to end, at most their time limit.
keel_status keel_alert_event(const keel_monitor_config *config, const keel_host_event *event);

#endif
