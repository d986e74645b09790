#include "collectors/watch/host_event.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/store/h5.h"

#define FOLDER "hosts"
#define ENDING ".jsonl"

static const char *const kinds[] = {[KEEL_HOST_GONE] = "gone", [KEEL_HOST_SILENT] = "silent"};

void keel_host_event_here(keel_host_event *event) {
    event->time_unix = keel_unix_seconds_now();
    if (gethostname(event->host, sizeof event->host) != 0) strcpy(event->host, "unknown");
    event->host[sizeof event->host - 1] = '\0';
    for (char *c = event->host; *c; c++)
        if (*c == '/') *c = '_';
}

// ---- writing ----

static char *line_of(const keel_host_event *event) {
    json_t *object =
        json_pack("{s:s, s:i, s:I, s:f, s:f, s:i, s:s, s:s}", "event", kinds[event->kind], "rank", (int)event->rank,
                  "step", (json_int_t)event->step, "time_unix", event->time_unix, "seconds", event->seconds, "pid",
                  (int)event->pid, "host", event->host, "how", event->how);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    char *line = NULL;
    if (text && asprintf(&line, "%s\n", text) < 0) line = NULL;
    free(text);
    return line;
}

static keel_status append(const char *path, const char *line) {
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    const size_t size = strlen(line);
    errno = ENOSPC; // what a short write means
    keel_status status = write(fd, line, size) == (ssize_t)size && fsync(fd) == 0
                             ? KEEL_OK
                             : keel_fail(KEEL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    close(fd);
    return status;
}

keel_status keel_host_event_write(const char *directory, const keel_host_event *event) {
    char *folder = NULL, *path = NULL, *line = line_of(event);
    keel_status status = KEEL_OK;
    if (asprintf(&folder, "%s/" FOLDER, directory) < 0) folder = NULL;
    if (!folder || asprintf(&path, "%s/%s" ENDING, folder, event->host) < 0) path = NULL;
    if (!folder || !path || !line)
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for an event of its hosts", directory);
    else if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        status = keel_fail(KEEL_ERR_IO, "%s: %s", directory, strerror(errno));
    else if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = keel_fail(KEEL_ERR_IO, "%s: %s", folder, strerror(errno));
    else
        status = append(path, line);
    free(folder);
    free(path);
    free(line);
    return status;
}

// ---- reading ----

typedef struct event_list {
    keel_host_event *events;
    size_t count;
} event_list;

static bool parse(const char *line, keel_host_event *event) {
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const char *kind, *host, *how;
    json_int_t step;
    int rank, pid;
    *event = (keel_host_event){0};
    bool good = object && json_unpack(object, "{s:s, s:i, s:I, s:F, s:F, s:i, s:s, s:s}", "event", &kind, "rank", &rank,
                                      "step", &step, "time_unix", &event->time_unix, "seconds", &event->seconds, "pid",
                                      &pid, "host", &host, "how", &how) == 0;
    good = good && rank >= -1 && step >= 0;
    if (good && strcmp(kind, kinds[KEEL_HOST_SILENT]) == 0)
        event->kind = KEEL_HOST_SILENT;
    else
        good = good && strcmp(kind, kinds[KEEL_HOST_GONE]) == 0;
    if (good) {
        event->rank = rank;
        event->step = (uint64_t)step;
        event->pid = pid;
        snprintf(event->host, sizeof event->host, "%s", host);
        snprintf(event->how, sizeof event->how, "%s", how);
        keel_h5_clean_text(event->host);
        keel_h5_clean_text(event->how);
    }
    json_decref(object);
    return good;
}

static keel_status add(event_list *list, const keel_host_event *event) {
    keel_host_event *grown = realloc(list->events, (list->count + 1) * sizeof *grown);
    if (!grown) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu events of hosts", list->count + 1);
    list->events = grown;
    grown[list->count++] = *event;
    return KEEL_OK;
}

static keel_status read_file(const char *folder, const char *name, event_list *list) {
    char *path, *line = NULL;
    size_t room = 0, number = 0;
    if (asprintf(&path, "%s/%s", folder, name) < 0) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", folder);
    FILE *file = fopen(path, "re");
    keel_status status = file ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    while (!status && getline(&line, &room, file) > 0) {
        keel_host_event event;
        number++;
        if (parse(line, &event))
            status = add(list, &event);
        else
            keel_log(KEEL_LOG_WARNING, "%s:%zu: not an event of a rank; it is left out", path, number);
    }
    free(line);
    if (file) fclose(file);
    free(path);
    return status;
}

static int by_time(const void *a, const void *b) {
    const keel_host_event *x = a, *y = b;
    if (x->time_unix != y->time_unix) return x->time_unix < y->time_unix ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

keel_status keel_host_events_read(const char *directory, keel_host_event **events, size_t *count) {
    char *folder;
    if (asprintf(&folder, "%s/" FOLDER, directory) < 0) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", directory);
    event_list list = {0};
    DIR *dir = opendir(folder);
    keel_status status = KEEL_OK;
    if (!dir && errno != ENOENT && errno != ENOTDIR) status = keel_fail(KEEL_ERR_IO, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry; dir && !status && (entry = readdir(dir));) {
        const size_t length = strlen(entry->d_name), ending = sizeof ENDING - 1;
        if (length > ending && strcmp(entry->d_name + length - ending, ENDING) == 0)
            status = read_file(folder, entry->d_name, &list);
    }
    if (dir) closedir(dir);
    free(folder);
    if (status) {
        free(list.events);
        return status;
    }
    if (list.count) qsort(list.events, list.count, sizeof *list.events, by_time);
    *events = list.events;
    *count = list.count;
    return KEEL_OK;
}
