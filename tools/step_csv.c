#include "tools/step_csv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 256 };

struct keel_step_csv {
    char *path;
    int file;
    off_t end;            // of its last whole line
    bool scale, overflow; // columns
    bool told;
    uint64_t missing; // lines, since the file was written last
};

static void tell(keel_step_csv *csv, int error) {
    if (!csv->told)
        keel_log(KEEL_LOG_WARNING, "%s: cannot be written: %s; training goes on, and steps are missing there",
                 csv->path, strerror(error));
    csv->told = true;
}

static void put(keel_step_csv *csv, const char *line, size_t bytes, uint64_t step) {
    errno = ENOSPC; // what a short write means
    if (pwrite(csv->file, line, bytes, csv->end) != (ssize_t)bytes) {
        tell(csv, errno);
        if (ftruncate(csv->file, csv->end)) tell(csv, errno);
        csv->missing++;
        return;
    }
    csv->end += (off_t)bytes;
    if (csv->missing)
        keel_log(KEEL_LOG_WARNING, "%s: written again from step %" PRIu64 " on; lines that are missing: %" PRIu64,
                 csv->path, step, csv->missing);
    csv->missing = 0;
}

// The columns of a file that is there, and the end of its last whole line; 0: it has none. -1: it cannot be read, errno
// says why.
static off_t read_columns(keel_step_csv *csv) {
    char header[LINE_BYTES] = "", block[4096];
    const ssize_t got = pread(csv->file, header, sizeof header - 1, 0);
    if (got < 0) return -1;
    char *newline = strchr(header, '\n');
    if (!newline) return 0;
    *newline = '\0';
    csv->scale = strstr(header, "loss_scale") != NULL;
    csv->overflow = strstr(header, "overflow") != NULL;
    const off_t size = lseek(csv->file, 0, SEEK_END);
    const off_t from = size > (off_t)sizeof block ? size - (off_t)sizeof block : 0;
    const ssize_t last = pread(csv->file, block, sizeof block, from);
    if (last < 0) return -1;
    const char *end = memrchr(block, '\n', (size_t)last);
    return end ? from + (end - block) + 1 : size;
}

keel_status keel_step_csv_open(const char *path, bool resume, bool scaled, keel_step_csv **csv) {
    keel_step_csv *made = calloc(1, sizeof *made);
    if (!made || !(made->path = strdup(path))) {
        free(made);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    }
    made->scale = made->overflow = scaled;
    made->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (made->file >= 0 && resume) made->end = read_columns(made);
    if (made->file < 0 || made->end < 0 || ftruncate(made->file, made->end)) {
        const keel_status status = keel_fail(KEEL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
        keel_step_csv_close(made);
        return status;
    }
    *csv = made;
    return KEEL_OK;
}

void keel_step_csv_put(keel_step_csv *csv, const keel_step *step, double loss, double grad_norm, double lr,
                       double loss_scale) {
    char text[2 * LINE_BYTES];
    int n = 0;
    // With the first line that finds room.
    if (csv->end == 0)
        n = snprintf(text, sizeof text, "step,loss,grad_norm,lr%s%s\n", csv->scale ? ",loss_scale" : "",
                     csv->overflow ? ",overflow" : "");
    n += snprintf(text + n, LINE_BYTES, "%" PRIu64 ",%.17g,%.17g,%.17g", step->step, loss, grad_norm, lr);
    if (csv->scale) n += snprintf(text + n, 32, ",%.17g", loss_scale > 0 ? loss_scale : 1);
    if (csv->overflow) n += snprintf(text + n, 32, ",%d", (step->flags & KEEL_STEP_OVERFLOW) != 0);
    text[n++] = '\n';
    put(csv, text, (size_t)n, step->step);
}

void keel_step_csv_close(keel_step_csv *csv) {
    if (!csv) return;
    if (csv->file >= 0 && close(csv->file)) tell(csv, errno);
    free(csv->path);
    free(csv);
}
