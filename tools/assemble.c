#include "tools/assemble_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/alert/alert.h"
#include "analyzers/alert/alert_event.h"
#include "analyzers/online.h"
#include "collectors/monitor.h"
#include "collectors/store/reader.h"
#include "collectors/store/writer.h"

struct keel_assembly {
    keel_monitor_config *owned_config; // NULL where the caller lent one
    const keel_monitor_config *config;
    char *directory;
    char *command, *config_yaml;
    char run_id[64]; // of the run that is continued; "" for a new one
    keel_probe *probe;
    keel_monitor *monitor;
    keel_merge merge;      // until the monitor takes it over; zeros: none
    keel_beat_board board; // the same
    uint32_t rank;
};

// What the run directory holds already. A store that cannot be read does not stop a run from being resumed: training
// matters more than its record.
static keel_status look_for_run(keel_assembly *assembly, bool resume, uint32_t *last_incident) {
    const char *directory = assembly->directory;
    DIR *dir = opendir(directory);
    if (!dir)
        return errno == ENOENT ? KEEL_OK : keel_fail(KEEL_ERR_IO, "monitor.output: %s: %s", directory, strerror(errno));
    bool exists = false;
    for (const struct dirent *entry; !exists && (entry = readdir(dir));)
        exists = strncmp(entry->d_name, "keel-", 5) == 0 && strstr(entry->d_name, ".h5");
    closedir(dir);
    if (!exists) return KEEL_OK;
    if (!resume)
        return keel_fail(KEEL_ERR_USAGE,
                         "%s: holds a run already: resume it, name another monitor.output, or remove it", directory);

    keel_store_reader *reader = NULL;
    keel_incident *incidents = NULL;
    size_t count = 0;
    keel_status status = keel_store_open(directory, &reader);
    if (!status) {
        memcpy(assembly->run_id, keel_store_info(reader, 0)->run_id, sizeof assembly->run_id);
        status = keel_store_incidents(reader, &incidents, &count);
    }
    if (status)
        keel_log(KEEL_LOG_WARNING,
                 "%s; recording goes on in a new segment, but no report will read the run until that "
                 "file is moved away",
                 keel_error());
    for (size_t i = 0; i < count; i++)
        if (incidents[i].id > *last_incident) *last_incident = incidents[i].id;
    free(incidents);
    keel_store_close(reader);
    return KEEL_OK;
}

// What the store keeps: the program's settings, and as `monitor` those that the monitor has, whatever the program's
// say.
static keel_status settings_text(const keel_assembly_options *options, const keel_monitor_config *config, char **text) {
    const char *own = options->config_yaml ? options->config_yaml : "";
    keel_yaml *doc;
    size_t size;
    keel_status status = keel_yaml_parse("config_yaml", own, strlen(own), &doc);
    if (status) return status;
    if (config->doc) status = keel_yaml_take(doc, config->doc, "monitor");
    if (!status) status = keel_yaml_dump(doc, text, &size);
    keel_yaml_free(doc);
    return status;
}

// Store, then judge, then alerts: what is alerted is stored, and what is judged is stored before.
static keel_status add_sinks(keel_assembly *assembly, uint32_t last_incident) {
    keel_sink sink;
    keel_status status = keel_store_sink_open(
        assembly->directory, &(keel_store_options){.segment_bytes = (uint64_t)assembly->config->segment_bytes}, &sink);
    if (!status) status = keel_monitor_add_sink(assembly->monitor, &sink);
    if (status) return status;

    keel_analysis *analysis;
    if ((status = keel_analysis_open(assembly->config, &analysis))) return status;
    keel_analysis_set_last_id(analysis, last_incident);
    keel_judge judge;
    if ((status = keel_online_judge(analysis, assembly->monitor, &judge))) {
        keel_analysis_close(analysis);
        return status;
    }
    if ((status = keel_monitor_add_judge(assembly->monitor, &judge))) return status;

    if ((status = keel_alert_sink_open(assembly->config, analysis, &sink))) return status;
    return keel_monitor_add_sink(assembly->monitor, &sink);
}

// On the thread of the watch over ranks.
static void alert_event(void *context, const keel_host_event *event) {
    const keel_assembly *assembly = context;
    if (keel_alert_event(assembly->config, event)) keel_log(KEEL_LOG_ERROR, "%s", keel_error());
}

// Of this node's ranks over one another. When another rank's silence counts is the rule's to say.
static keel_status plan_watch(keel_assembly *assembly, const keel_assembly_ranks *ranks,
                              keel_rank_watch_options *watch) {
    keel_analysis *rules;
    keel_status status = keel_analysis_open(assembly->config, &rules);
    if (status) return status;
    *watch = (keel_rank_watch_options){.directory = assembly->directory,
                                       .hang_times = keel_analysis_param(rules, "hang", "times"),
                                       .hang_seconds = keel_analysis_param(rules, "hang", "min_seconds"),
                                       .end_seconds = assembly->config->hang_timeout_seconds,
                                       .judges = assembly->rank == 0,
                                       .context = assembly,
                                       .alert = alert_event,
                                       .end_job = ranks->end_job};
    keel_analysis_close(rules);
    watch->board = assembly->board;
    return KEEL_OK;
}

keel_status keel_assembly_open(const keel_assembly_options *options, keel_assembly **assembly) {
    return keel_assembly_open_ranks(options, NULL, assembly);
}

keel_status keel_assembly_open_ranks(const keel_assembly_options *options, const keel_assembly_ranks *ranks,
                                     keel_assembly **out) {
    keel_assembly *assembly = calloc(1, sizeof *assembly);
    if (!assembly) return keel_fail(KEEL_ERR_MEMORY, "no memory for the monitor");
    keel_status status = KEEL_OK;
    if (ranks) assembly->merge = *ranks->merge;
    if (ranks) assembly->board = *ranks->board;
    assembly->config = options->config;
    if (!assembly->config) {
        status = options->monitor_path
                     ? keel_monitor_config_load(options->monitor_path, NULL, 0, &assembly->owned_config)
                     : keel_monitor_config_default(&assembly->owned_config);
        if (status) goto fail;
        assembly->config = assembly->owned_config;
    }

    const uint32_t rank = assembly->rank = ranks ? ranks->merge->rank : 0;
    keel_rank_watch_options watch;
    if ((status = keel_probe_open(rank, &assembly->probe))) goto fail;
    if (!assembly->config->enabled) {
        *out = assembly;
        return KEEL_OK;
    }

    const char *directory = assembly->config->output ? assembly->config->output : options->output;
    assembly->directory = strdup(directory ? directory : "runs/keel");
    if (!assembly->directory) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for the monitor");
        goto fail;
    }
    uint32_t last_incident = 0;
    if (rank == 0 && (status = look_for_run(assembly, options->resume, &last_incident))) goto fail;
    assembly->command = strdup(options->command ? options->command : "");
    if (!assembly->command) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for the monitor");
        goto fail;
    }
    if ((status = settings_text(options, assembly->config, &assembly->config_yaml))) goto fail;
    if (ranks && (status = plan_watch(assembly, ranks, &watch))) goto fail;
    if ((status = keel_monitor_open(&(keel_monitor_options){.config = assembly->config,
                                                            .merge = ranks ? ranks->merge : NULL,
                                                            .watch = ranks ? &watch : NULL,
                                                            .run_id = *assembly->run_id ? assembly->run_id : NULL,
                                                            .command = assembly->command,
                                                            .config_yaml = assembly->config_yaml,
                                                            .dp = options->dp ? options->dp : 1,
                                                            .tp = options->tp ? options->tp : 1,
                                                            .pp = options->pp ? options->pp : 1,
                                                            .ep = options->ep ? options->ep : 1},
                                    &assembly->monitor)))
        goto fail;
    assembly->merge = (keel_merge){0};
    assembly->board = (keel_beat_board){0};
    if (rank == 0 && (status = add_sinks(assembly, last_incident))) goto fail;
    if ((status = keel_monitor_attach(assembly->monitor, assembly->probe))) goto fail;
    *out = assembly;
    return KEEL_OK;
fail:
    keel_assembly_close(assembly);
    return status;
}

keel_probe *keel_assembly_probe(keel_assembly *assembly) {
    return assembly->probe;
}

const char *keel_assembly_directory(const keel_assembly *assembly) {
    return assembly->directory;
}

const char *keel_assembly_describe(const keel_assembly *assembly) {
    return assembly->monitor ? keel_monitor_describe(assembly->monitor) : "monitor off";
}

void keel_assembly_stopping(keel_assembly *assembly) {
    if (assembly->monitor) keel_monitor_stopping(assembly->monitor);
}

keel_status keel_assembly_close(keel_assembly *assembly) {
    if (!assembly) return KEEL_OK;
    keel_status status = assembly->monitor ? keel_monitor_close(assembly->monitor) : KEEL_OK;
    if (assembly->merge.close) assembly->merge.close(assembly->merge.context, false);
    keel_beat_board_close(&assembly->board);
    keel_probe_close(assembly->probe);
    keel_monitor_config_free(assembly->owned_config);
    free(assembly->directory);
    free(assembly->command);
    free(assembly->config_yaml);
    free(assembly);
    return status;
}
