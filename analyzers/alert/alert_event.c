#include "analyzers/alert/alert_event.h"

#include "analyzers/alert/alert.h"

static keel_status send_all(keel_analysis *analysis, const keel_monitor_config *config) {
    keel_sink sink;
    keel_status status = keel_alert_sink_open(config, analysis, &sink);
    if (status) return status;
    size_t count;
    const keel_incident *const *changed = keel_analysis_changed(analysis, &count);
    for (size_t i = 0; !status && i < count; i++) status = sink.incident(sink.context, changed[i]);
    sink.close(sink.context);
    return status;
}

keel_status keel_alert_event(const keel_monitor_config *config, const keel_host_event *event) {
    static const keel_run_info nothing = {.world_size = 1};
    keel_analysis *analysis;
    keel_status status = keel_analysis_open(config, &analysis);
    if (status) return status;
    status = keel_analysis_start(analysis, &nothing);
    if (!status) status = keel_analysis_event(analysis, event);
    if (!status) status = send_all(analysis, config);
    keel_analysis_close(analysis);
    return status;
}
