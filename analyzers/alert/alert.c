#include "analyzers/alert/alert.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "analyzers/alert/alert_limit.h"
#include "analyzers/clipped_text.h"
#include "analyzers/report/report.h"
#include "collectors/helper_thread.h"

static const keel_alert_channel *const channels[] = {&keel_alert_log, &keel_alert_exec};
enum { CHANNELS = sizeof channels / sizeof *channels };

typedef struct alerts {
    keel_alert_limit *limit;
    const keel_analysis *analysis; // NULL: no evidence
    void *states[CHANNELS];        // NULL: not configured
} alerts;

static void send(alerts *a, const keel_alert_message *message) {
    for (int i = 0; i < CHANNELS; i++)
        if (a->states[i]) channels[i]->send(a->states[i], message);
}

static void send_digest(alerts *a, const keel_alert_held *held) {
    char text[512] = "";
    keel_text_append(text, sizeof text,
                     "%" PRIu32 " more incident%s between steps %" PRIu64 " and %" PRIu64 " held back:", held->count,
                     held->count == 1 ? "" : "s", held->first_step, held->last_step);
    json_t *rules = json_object();
    for (uint32_t i = 0; i < held->rules; i++) {
        keel_text_append(text, sizeof text, "%s %" PRIu32 " %s", i ? "," : "", held->times[i], held->rule[i]);
        json_object_set_new(rules, held->rule[i], json_integer(held->times[i]));
    }
    json_t *object = json_pack("{s:b, s:I, s:I, s:I, s:o, s:s}", "digest", 1, "count", (json_int_t)held->count,
                               "first_step", (json_int_t)held->first_step, "last_step", (json_int_t)held->last_step,
                               "rules", rules, "message", text);
    char *json = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    send(a, &(keel_alert_message){.severity = KEEL_WARNING, .text = text, .json = json ? json : "{}"});
    free(json);
}

static const keel_incident_extra *extra_of(const alerts *a, const keel_incident *incident) {
    if (!a->analysis) return NULL;
    size_t count;
    const keel_incident *all = keel_analysis_incidents(a->analysis, &count);
    for (size_t i = count; i-- > 0;)
        if (all[i].id == incident->id) return keel_analysis_extra(a->analysis, i);
    return NULL;
}

static keel_status on_incident(void *context, const keel_incident *incident) {
    alerts *a = context;
    if (!keel_alert_limit_take(a->limit, incident, keel_seconds_now())) return KEEL_OK;
    char *json;
    keel_status status = keel_incident_json(incident, extra_of(a, incident), &json);
    if (status) return status;
    char text[KEEL_MESSAGE_BYTES + 128] = "";
    keel_text_append(text, sizeof text, "%sincident %" PRIu32 " (%s): %s", // the log says warning by itself
                     incident->severity == KEEL_CRITICAL ? "critical " : "", incident->id, incident->rule,
                     incident->message);
    send(a, &(keel_alert_message){.incident = incident, .severity = incident->severity, .text = text, .json = json});
    free(json);
    return KEEL_OK;
}

// Only time passes.
static keel_status on_row(void *context, const keel_row *row) {
    (void)row;
    alerts *a = context;
    keel_alert_held held;
    if (keel_alert_limit_digest(a->limit, keel_seconds_now(), false, &held)) send_digest(a, &held);
    return KEEL_OK;
}

static keel_status on_start(void *context, const keel_run_info *info) {
    (void)context;
    (void)info;
    return KEEL_OK;
}

static void on_close(void *context) {
    alerts *a = context;
    keel_alert_held held;
    if (a->limit && keel_alert_limit_digest(a->limit, keel_seconds_now(), true, &held)) send_digest(a, &held);
    for (int i = 0; i < CHANNELS; i++)
        if (a->states[i]) channels[i]->close(a->states[i]);
    keel_alert_limit_close(a->limit);
    free(a);
}

keel_status keel_alert_sink_open(const keel_monitor_config *config, const keel_analysis *analysis, keel_sink *sink) {
    alerts *a = calloc(1, sizeof *a);
    if (!a) return keel_fail(KEEL_ERR_MEMORY, "no memory for alerts");
    a->analysis = analysis;
    keel_severity least = config->alert_min_severity > KEEL_WARNING ? KEEL_CRITICAL : KEEL_WARNING;
    keel_status status = keel_alert_limit_open(least, &a->limit);
    for (int i = 0; !status && i < CHANNELS; i++) status = channels[i]->open(config, &a->states[i]);
    if (status) {
        on_close(a);
        return status;
    }
    *sink = (keel_sink){
        .context = a, .name = "alerts", .start = on_start, .row = on_row, .incident = on_incident, .close = on_close};
    return KEEL_OK;
}
