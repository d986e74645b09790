// Alerts: at most one message per incident and severity, limited per hour, to the log and to an exec hook, as a sink of the monitor.
#ifndef KEEL_ANALYZERS_ALERT_ALERT_H
#define KEEL_ANALYZERS_ALERT_ALERT_H

#include "collectors/sink.h"
#include "configs/monitor_config.h"

// A way to send: one file each, behind one table (alert.c).
typedef struct keel_alert_channel {
    const char *name;
    keel_status (*open)(const keel_monitor_config *config, void **state); // *state NULL: not configured
    // Must not block: a hook runs on its own, with a time limit.
    void (*send)(void *state, const keel_incident *incident, const char *json);
    void (*close)(void *state); // waits at most the time limit for what is running
} keel_alert_channel;

keel_status keel_alert_sink_open(const keel_monitor_config *config, keel_sink *sink);

#endif
