// Alerts: at most one message per incident and severity, limited per hour, to the log and to an exec hook, as a sink of
// the monitor.
#ifndef KEEL_ANALYZERS_ALERT_ALERT_H
#define KEEL_ANALYZERS_ALERT_ALERT_H

#include "analyzers/online.h"
#include "collectors/sink.h"
#include "configs/monitor_config.h"

typedef struct keel_alert_message {
    const keel_incident *incident; // NULL: a digest of incidents that were held back
    keel_severity severity;
    const char *text; // one line
    const char *json; // one object on one line
} keel_alert_message;

// A way to send: one file each, behind the table in alert.c.
typedef struct keel_alert_channel {
    const char *name;
    keel_status (*open)(const keel_monitor_config *config, void **state); // *state NULL: not configured
    // Must not block and cannot fail for the caller: a hook runs on its own, with a time limit. MESSAGE is copied where
    // it is kept.
    void (*send)(void *state, const keel_alert_message *message);
    void (*close)(void *state); // waits at most the time limit for what is running
} keel_alert_channel;

extern const keel_alert_channel keel_alert_log;  // keel_log, if alerts.log is set
extern const keel_alert_channel keel_alert_exec; // alerts.exec.command

// CONFIG is not kept. ANALYSIS, whose incidents are sent, is asked for their evidence while incidents come; NULL: none.
keel_status keel_alert_sink_open(const keel_monitor_config *config, const keel_analysis *analysis, keel_sink *sink);

#endif
