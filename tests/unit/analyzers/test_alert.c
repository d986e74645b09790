// Alerts: which incidents are sent, and hooks that hang, fail, fill their output or ignore their input: none may delay
// anything.
#include "tests/unit/analyzers/synthetic_run.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "analyzers/alert/alert.h"
#include "analyzers/alert/alert_limit.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- the log ----

static struct {
    pthread_mutex_t lock;
    int lines, errors;
    char last[1024], all[8192];
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(void *context, keel_log_level level, const char *text) {
    (void)context;
    pthread_mutex_lock(&heard.lock);
    heard.lines++;
    heard.errors += level == KEEL_LOG_ERROR;
    snprintf(heard.last, sizeof heard.last, "%s", text);
    if (strlen(heard.all) + strlen(text) + 2 < sizeof heard.all) strcat(strcat(heard.all, text), "\n");
    pthread_mutex_unlock(&heard.lock);
}

static int listen_to_log(void **state) {
    (void)state;
    heard.lines = heard.errors = 0;
    heard.last[0] = heard.all[0] = 0;
    keel_log_set(hear, NULL);
    return 0;
}

static keel_incident incident_of(uint32_t id, keel_severity severity) {
    keel_incident k = {.id = id,
                       .revision = 1,
                       .severity = severity,
                       .open = 1,
                       .rank = 1,
                       .first_step = 120,
                       .peak_step = 121,
                       .last_step = 122,
                       .value = NAN,
                       .expected = 3,
                       .score = 9,
                       .confidence = 0.5};
    strcpy(k.rule, "loss_spike");
    strcpy(k.series, "loss,grad_norm");
    strcpy(k.site, "layers.0:activation");
    strcpy(k.cause, "unknown");
    strcpy(k.message, "loss jumped to \"9\" at step 121");
    return k;
}

// ---- the limit ----

static void one_message_for_each_incident(void **unused) {
    (void)unused;
    keel_alert_limit *limit;
    assert_int_equal(keel_alert_limit_open(KEEL_WARNING, &limit), KEEL_OK);
    keel_incident k = incident_of(1, KEEL_INFO);
    assert_false(keel_alert_limit_take(limit, &k, 0)); // a note is never sent
    k.severity = KEEL_WARNING;
    k.revision = 2;
    assert_true(keel_alert_limit_take(limit, &k, 1));
    k.revision = 3;
    assert_false(keel_alert_limit_take(limit, &k, 2));
    k.severity = KEEL_CRITICAL;
    assert_true(keel_alert_limit_take(limit, &k, 3)); // more severe
    assert_false(keel_alert_limit_take(limit, &k, 4));
    keel_incident old = incident_of(900, KEEL_CRITICAL);
    old.revision = 5; // told by the process before the resume
    assert_false(keel_alert_limit_take(limit, &old, 5));
    for (uint32_t high = 0; high < 2; high++) { // what a damaged store may give
        k = incident_of(high ? UINT32_MAX : UINT32_C(1) << 31, KEEL_WARNING);
        assert_true(keel_alert_limit_take(limit, &k, 6));
        assert_false(keel_alert_limit_take(limit, &k, 7));
    }
    keel_alert_limit_close(limit);
}

static void six_an_hour_then_a_digest(void **unused) {
    (void)unused;
    keel_alert_limit *limit;
    keel_alert_held held;
    assert_int_equal(keel_alert_limit_open(KEEL_WARNING, &limit), KEEL_OK);
    int sent = 0;
    for (uint32_t id = 1; id <= 20; id++) {
        keel_incident k = incident_of(id, KEEL_WARNING);
        if (id == 15) k.severity = KEEL_CRITICAL;
        if (id == 16) strcpy(k.rule, "plateau");
        bool now_sent = keel_alert_limit_take(limit, &k, 10.0 * id);
        if (id == 15) assert_true(now_sent); // critical ones pass
        sent += now_sent;
    }
    assert_int_equal(sent, 7);
    assert_false(keel_alert_limit_digest(limit, 300, false, &held));
    assert_true(keel_alert_limit_digest(limit, 10 + 3600, false, &held));
    assert_int_equal(held.count, 13);
    assert_int_equal(held.rules, 2);
    assert_int_equal(held.times[0], 12);
    assert_string_equal(held.rule[1], "plateau");
    assert_false(keel_alert_limit_digest(limit, 20 + 3600, false, &held)); // nothing more is held
    keel_alert_limit_close(limit);
}

// ---- the sink ----

static keel_sink open_sink_of(const keel_analysis *analysis, char **argv, double limit, bool log) {
    keel_monitor_config config = {
        .alert_log = log, .exec_argv = argv, .exec_timeout_seconds = limit, .alert_min_severity = KEEL_WARNING};
    keel_sink sink;
    assert_int_equal(keel_alert_sink_open(&config, analysis, &sink), KEEL_OK);
    return sink;
}

static keel_sink open_sink(char **argv, double limit, bool log) {
    return open_sink_of(NULL, argv, limit, log);
}

// Sends an incident; the time it took.
static double send(keel_sink *sink, uint32_t id, keel_severity severity) {
    keel_incident k = incident_of(id, severity);
    double begin = now();
    assert_int_equal(sink->incident(sink->context, &k), KEEL_OK);
    return now() - begin;
}

static void the_log_gets_one_line(void **unused) {
    (void)unused;
    keel_sink sink = open_sink(NULL, 1, true);
    send(&sink, 3, KEEL_WARNING);
    assert_int_equal(heard.lines, 1);
    assert_int_equal(heard.errors, 0);
    assert_string_equal(heard.last, "incident 3 (loss_spike): loss jumped to \"9\" at step 121");
    send(&sink, 3, KEEL_CRITICAL);
    assert_int_equal(heard.errors, 1);
    sink.close(sink.context);
}

static void what_is_held_back_is_said_at_the_end(void **unused) {
    (void)unused;
    keel_sink sink = open_sink(NULL, 1, true);
    for (uint32_t id = 1; id <= 9; id++) send(&sink, id, KEEL_WARNING);
    assert_int_equal(heard.lines, 6);
    sink.close(sink.context);
    assert_int_equal(heard.lines, 7);
    assert_string_equal(heard.last, "3 more incidents between steps 120 and 120 held back: 3 loss_spike");
}

static void the_hook_gets_json_and_variables(void **unused) {
    (void)unused;
    char path[] = "/tmp/keel-alert-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char script[] =
        "cat > \"$0\"; echo >> \"$0\"; echo \"$KEEL_INCIDENT_ID|$KEEL_RULE|$KEEL_SEVERITY|$KEEL_SERIES|$KEEL_SITE|"
        "$KEEL_RANK|$KEEL_FIRST_STEP|$KEEL_PEAK_STEP|$KEEL_LAST_STEP|$KEEL_VALUE|$KEEL_CAUSE|$KEEL_MESSAGE\" >> \"$0\"";
    char *argv[] = {"sh", "-c", script, path, NULL};
    keel_sink sink = open_sink(argv, 10, false);
    assert_true(send(&sink, 7, KEEL_CRITICAL) < 0.5);
    sink.close(sink.context); // waits for what is running
    FILE *file = fopen(path, "r");
    char json[2048] = "", variables[1024] = "";
    assert_non_null(fgets(json, sizeof json, file));
    assert_non_null(fgets(variables, sizeof variables, file));
    fclose(file);
    unlink(path);
    json_t *k = json_loads(json, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(k, "id")), 7);
    assert_string_equal(json_string_value(json_object_get(k, "value")), "nan");
    json_decref(k);
    assert_string_equal(variables,
                        "7|loss_spike|critical|loss,grad_norm|layers.0:activation|1|120|121|122|nan|unknown|loss "
                        "jumped to \"9\" at step 121\n");
    assert_int_equal(heard.lines, 0);
}

static void the_hook_gets_the_evidence(void **unused) {
    (void)unused;
    synthetic_run run;
    run_init(&run);
    run_add_site(&run, "layers.0", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 1);
    keel_analysis *analysis = analysis_of(&run);
    for (uint64_t step = 1; step <= 100; step++) {
        run_step(&run, step);
        run_set(&run, LOSS, 3 + 0.01 * sin((double)step * 12.9898));
        if (step == 100) run_bad_site(&run, 0, 1, 0);
        judge(analysis, &run);
    }
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(analysis, &count);
    assert_int_equal(count, 1);
    assert_true(keel_analysis_extra(analysis, 0)->evidence_count > 0);
    char path[] = "/tmp/keel-alert-XXXXXX", script[] = "cat > \"$0\"", *argv[] = {"sh", "-c", script, path, NULL};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    keel_sink sink = open_sink_of(analysis, argv, 10, false);
    assert_int_equal(sink.incident(sink.context, &incidents[0]), KEEL_OK);
    sink.close(sink.context);
    json_t *k = json_load_file(path, 0, NULL);
    unlink(path);
    const json_t *evidence = json_object_get(json_object_get(k, "cause"), "evidence");
    assert_int_equal(json_array_size(evidence), keel_analysis_extra(analysis, 0)->evidence_count);
    assert_string_equal(json_string_value(json_array_get(evidence, 0)), keel_analysis_extra(analysis, 0)->evidence[0]);
    json_decref(k);
    keel_analysis_close(analysis);
}

static void arguments_are_no_shell(void **unused) {
    (void)unused;
    char path[] = "/tmp/keel-alert-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char injected[] = "$(rm -f /tmp/keel-nothing); `false` | \"x\"",
         *argv[] = {"sh", "-c", "printf %s \"$1\" > \"$0\"", path, injected, NULL};
    keel_sink sink = open_sink(argv, 10, false);
    send(&sink, 1, KEEL_WARNING);
    sink.close(sink.context);
    char got[256] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(fgets(got, sizeof got, file));
    fclose(file);
    unlink(path);
    assert_string_equal(got, injected);
}

static void a_hook_that_hangs_is_killed_with_its_children(void **unused) {
    (void)unused;
    char path[] = "/tmp/keel-alert-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char *argv[] = {"sh", "-c", "sleep 600 & echo $! > \"$0\"; sleep 600", path, NULL};
    keel_sink sink = open_sink(argv, 0.5, false);
    for (uint32_t id = 1; id <= 6; id++) assert_true(send(&sink, id, KEEL_WARNING) < 0.2);
    double begin = now();
    sink.close(sink.context);
    assert_true(now() - begin < 3);
    assert_non_null(strstr(heard.all, "took longer than 0.5 seconds and was killed"));
    assert_int_equal(heard.lines, 1); // said once
    FILE *file = fopen(path, "r");
    long grandchild = 0;
    assert_int_equal(fscanf(file, "%ld", &grandchild), 1);
    fclose(file);
    unlink(path);
    for (int i = 0; i < 100 && kill((pid_t)grandchild, 0) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    char state[64];
    snprintf(state, sizeof state, "/proc/%ld/stat", grandchild);
    file = fopen(state, "r"); // gone, or a zombie that nobody reaps in this container
    char status = 'Z';
    if (file) {
        if (fscanf(file, "%*d %*s %c", &status) != 1) status = '?';
        fclose(file);
    }
    assert_int_equal(status, 'Z');
}

static void hooks_that_misbehave_are_harmless(void **unused) {
    (void)unused;
    static char *const hooks[][4] = {
        {"false"},                                                         // fails
        {"sh", "-c", "exec 0<&-; exit 0"},                                 // ignores its input
        {"sh", "-c", "yes | head -c 50000000; yes >&2 | head -c 1000000"}, // fills its output
        {"/nonexistent/hook"},                                             // does not exist
        {"sh", "-c", "kill -9 $$"},                                        // dies
    };
    static const char *const said[] = {"exit code 1", NULL, NULL, "cannot be started", "signal 9"};
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        listen_to_log(NULL);
        char *argv[] = {hooks[i][0], hooks[i][1], hooks[i][2], hooks[i][3], NULL};
        keel_sink sink = open_sink(argv, 5, false);
        for (uint32_t id = 1; id <= 6; id++) assert_true(send(&sink, id, KEEL_WARNING) < 0.2);
        sink.close(sink.context);
        if (said[i]) {
            assert_int_equal(heard.lines, 1);
            assert_non_null(strstr(heard.last, said[i]));
        }
    }
}

static void a_flood_is_bounded(void **unused) {
    (void)unused;
    char *argv[] = {"sleep", "5", NULL};
    keel_sink sink = open_sink(argv, 0.3, false);
    double begin = now();
    for (uint32_t id = 1; id <= 200; id++) send(&sink, id, KEEL_CRITICAL);
    assert_true(now() - begin < 1);
    sink.close(sink.context);
    assert_true(now() - begin < 4);
    assert_non_null(strstr(heard.all, "does not keep up"));
    assert_int_equal(heard.lines, 2); // that, and the time limit
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_message_for_each_incident),
        cmocka_unit_test(six_an_hour_then_a_digest),
        cmocka_unit_test_setup(the_log_gets_one_line, listen_to_log),
        cmocka_unit_test_setup(what_is_held_back_is_said_at_the_end, listen_to_log),
        cmocka_unit_test_setup(the_hook_gets_json_and_variables, listen_to_log),
        cmocka_unit_test_setup(the_hook_gets_the_evidence, listen_to_log),
        cmocka_unit_test_setup(arguments_are_no_shell, listen_to_log),
        cmocka_unit_test_setup(a_hook_that_hangs_is_killed_with_its_children, listen_to_log),
        cmocka_unit_test_setup(hooks_that_misbehave_are_harmless, listen_to_log),
        cmocka_unit_test_setup(a_flood_is_bounded, listen_to_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
