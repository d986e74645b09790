// Alerts to the log: one line each.
#include "analyzers/alert/alert.h"

static keel_status open_log(const keel_monitor_config *config, void **state) {
    static int configured; // has no state of its own; its address says that it is on
    *state = config->alert_log ? &configured : NULL;
    return KEEL_OK;
}

static void send_log(void *state, const keel_alert_message *message) {
    (void)state;
    keel_log(message->severity == KEEL_CRITICAL ? KEEL_LOG_ERROR : KEEL_LOG_WARNING, "%s", message->text);
}

static void close_log(void *state) {
    (void)state;
}

const keel_alert_channel keel_alert_log = {.name = "log", .open = open_log, .send = send_log, .close = close_log};
