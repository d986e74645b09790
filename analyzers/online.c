#include "analyzers/online.h"

#include <pthread.h>
#include <stdlib.h>

// The analysis runs on the writer thread, which also comes to it of itself while a step lasts; the training thread
// saves and loads it. What may be asked at any time is copied, so that nobody waits for the rules to know it.
typedef struct judge_context {
    keel_analysis *analysis;
    keel_monitor *monitor;
    pthread_mutex_t analysing; // held around every use of the analysis once rows may come
    pthread_mutex_t lock;      // of health
    keel_health health;
} judge_context;

static void publish_health(judge_context *c) {
    keel_health health = keel_analysis_health(c->analysis);
    pthread_mutex_lock(&c->lock);
    c->health = health;
    pthread_mutex_unlock(&c->lock);
}

static void tell(judge_context *c) {
    publish_health(c);
    size_t count;
    const keel_incident *const *changed = keel_analysis_changed(c->analysis, &count);
    for (size_t i = 0; i < count; i++) keel_monitor_emit(c->monitor, changed[i]);
}

static keel_status judge_start(void *context, const keel_run_info *info) {
    return keel_analysis_start(((judge_context *)context)->analysis, info);
}

static keel_status judge_row(void *context, const keel_row *row) {
    judge_context *c = context;
    pthread_mutex_lock(&c->analysing);
    keel_status status = keel_analysis_row(c->analysis, row);
    tell(c);
    pthread_mutex_unlock(&c->analysing);
    return status;
}

static void judge_watch(void *context, double seconds, const keel_host_event *waited_for) {
    judge_context *c = context;
    pthread_mutex_lock(&c->analysing);
    if (keel_analysis_watch(c->analysis, seconds, waited_for)) keel_log(KEEL_LOG_ERROR, "%s", keel_error());
    tell(c);
    pthread_mutex_unlock(&c->analysing);
}

static void judge_event(void *context, const keel_host_event *event) {
    judge_context *c = context;
    pthread_mutex_lock(&c->analysing);
    if (keel_analysis_event(c->analysis, event)) keel_log(KEEL_LOG_ERROR, "%s", keel_error());
    tell(c);
    pthread_mutex_unlock(&c->analysing);
}

static keel_health judge_health(void *context) {
    judge_context *c = context;
    pthread_mutex_lock(&c->lock);
    keel_health health = c->health;
    pthread_mutex_unlock(&c->lock);
    return health;
}

static keel_status judge_save(void *context, void **bytes, size_t *size) {
    judge_context *c = context;
    pthread_mutex_lock(&c->analysing);
    const keel_status status = keel_analysis_save(c->analysis, bytes, size);
    pthread_mutex_unlock(&c->analysing);
    return status;
}

static keel_status judge_load(void *context, uint64_t step, const void *bytes, size_t size) {
    judge_context *c = context;
    pthread_mutex_lock(&c->analysing);
    keel_status status = keel_analysis_load(c->analysis, step, bytes, size);
    publish_health(c);
    pthread_mutex_unlock(&c->analysing);
    return status;
}

static void judge_close(void *context) {
    judge_context *c = context;
    keel_analysis_close(c->analysis);
    pthread_mutex_destroy(&c->analysing);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

keel_status keel_online_judge(keel_analysis *analysis, keel_monitor *monitor, keel_judge *judge) {
    judge_context *c = calloc(1, sizeof *c);
    if (!c) return keel_fail(KEEL_ERR_MEMORY, "no memory for the judge");
    c->analysis = analysis;
    c->monitor = monitor;
    pthread_mutex_init(&c->analysing, NULL);
    pthread_mutex_init(&c->lock, NULL);
    *judge = (keel_judge){
        .sink = {.context = c, .name = "rules", .start = judge_start, .row = judge_row, .close = judge_close},
        .health = judge_health,
        .save = judge_save,
        .load = judge_load,
        .watch = judge_watch,
        .event = judge_event};
    return KEEL_OK;
}
