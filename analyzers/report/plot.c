#include "analyzers/report/plot.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { LABEL = 11, MAX_COLUMNS = 100, DOTS_X = 2, DOTS_Y = 4, MAX_X = MAX_COLUMNS * DOTS_X };

typedef struct column {
    double low, high;
    bool drawn;
} column;

typedef struct axis {
    double low, high;
    bool logarithmic;
} axis;

static double along(const axis *a, double value) {
    double low = a->logarithmic ? log(a->low) : a->low, high = a->logarithmic ? log(a->high) : a->high;
    double v = a->logarithmic ? log(value) : value;
    return high > low ? (v - low) / (high - low) : 0.5;
}

// The buckets that column X of WIDTH shows: FROM up to, not including, the result.
static uint32_t buckets_of(uint32_t x, uint32_t width, uint32_t count, uint32_t *from) {
    *from = (uint32_t)((uint64_t)x * count / width);
    uint32_t to = (uint32_t)((uint64_t)(x + 1) * count / width);
    return to > *from ? to : *from + 1;
}

static axis gather(const keel_trace *t, uint32_t index, uint32_t width, column *columns) {
    axis a = {.low = INFINITY, .high = -INFINITY};
    for (uint32_t x = 0; x < width; x++) {
        columns[x] = (column){.low = INFINITY, .high = -INFINITY};
        uint32_t from, to = buckets_of(x, width, t->count, &from);
        for (uint32_t b = from; b < to; b++) {
            const keel_trace_value *v = &t->values[index][b];
            if (v->count == 0) continue;
            columns[x].drawn = true;
            columns[x].low = fmin(columns[x].low, v->min);
            columns[x].high = fmax(columns[x].high, v->max);
        }
        a.low = fmin(a.low, columns[x].low);
        a.high = fmax(a.high, columns[x].high);
    }
    a.logarithmic = a.low > 0 && a.high / a.low >= 100;
    return a;
}

// A grid of dots, [y][x], y from the top.
typedef struct grid {
    unsigned char dot[KEEL_PLOT_ROWS * DOTS_Y][MAX_X];
    uint32_t width, height;
} grid;

static void draw(grid *g, const column *columns, const axis *a) {
    double top = g->height - 1;
    for (uint32_t x = 0; x < g->width; x++) {
        if (!columns[x].drawn) continue;
        uint32_t low = (uint32_t)lround(along(a, columns[x].low) * top);
        uint32_t high = (uint32_t)lround(along(a, columns[x].high) * top);
        for (uint32_t y = low; y <= high; y++) g->dot[g->height - 1 - y][x] = 1;
    }
}

// The braille cell at (ROW, AT), as the low byte of its code point in U+2800.
static unsigned cell_at(const grid *g, uint32_t row, uint32_t at) {
    static const unsigned char bits[DOTS_Y][DOTS_X] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    unsigned cell = 0;
    for (uint32_t y = 0; y < DOTS_Y; y++)
        for (uint32_t x = 0; x < DOTS_X; x++)
            if (g->dot[row * DOTS_Y + y][at * DOTS_X + x]) cell |= bits[y][x];
    return cell;
}

static void print_braille(const grid *g, uint32_t row, FILE *out) {
    uint32_t end = g->width / DOTS_X;
    while (end > 0 && cell_at(g, row, end - 1) == 0) end--;
    for (uint32_t c = 0; c < end; c++) {
        unsigned cell = cell_at(g, row, c);
        if (cell == 0)
            fputc(' ', out);
        else
            fprintf(out, "\xE2%c%c", (int)(0xA0 | cell >> 6), (int)(0x80 | (cell & 0x3F))); // in UTF-8
    }
}

static void print_ascii(const grid *g, uint32_t row, FILE *out) {
    uint32_t end = g->width;
    while (end > 0 && !g->dot[row][end - 1]) end--;
    for (uint32_t x = 0; x < end; x++) fputc(g->dot[row][x] ? '*' : ' ', out);
}

static void print_marks(const keel_result *r, uint32_t index, uint32_t width, FILE *out) {
    const keel_trace *t = r->trace;
    char marks[MAX_COLUMNS + 1];
    uint32_t last = 0;
    for (uint32_t x = 0; x < width; x++) {
        uint32_t from, to = buckets_of(x, width, t->count, &from);
        marks[x] = ' ';
        for (uint32_t b = from; b < to; b++)
            if (t->values[index][b].bad) marks[x] = 'x';
        for (size_t i = 0; i < r->incident_count; i++) {
            const keel_incident *k = &r->incidents[i];
            if (k->severity < KEEL_WARNING || k->first_step > t->last_step[to - 1]) continue;
            if (k->first_step < t->first_step[from] && !(from > 0 && k->first_step > t->last_step[from - 1])) continue;
            if (marks[x] != '!') marks[x] = k->severity == KEEL_CRITICAL ? '!' : '^';
        }
        if (marks[x] != ' ') last = x + 1;
    }
    marks[last] = 0;
    if (last) fprintf(out, "  %*s  %s\n", LABEL, "", marks);
}

void keel_plot_series(const keel_result *r, uint32_t index, const keel_report_style *style, FILE *out) {
    const keel_trace *t = r->trace;
    column columns[MAX_X];
    int room = (style->width > 40 ? style->width : 40) - LABEL - 4;
    uint32_t cells = room < MAX_COLUMNS ? (uint32_t)room : MAX_COLUMNS;
    uint32_t width = style->ascii ? cells : cells * DOTS_X;
    if (t->count == 0) return;
    axis a = gather(t, index, width, columns);
    if (!(a.low <= a.high)) return;
    grid g = {.width = width, .height = style->ascii ? KEEL_PLOT_ROWS : KEEL_PLOT_ROWS * DOTS_Y};
    draw(&g, columns, &a);
    fprintf(out, "\n  %s%s\n", t->name[index], a.logarithmic ? " (logarithmic)" : "");
    for (uint32_t row = 0; row < KEEL_PLOT_ROWS; row++) {
        char label[LABEL + 8] = "";
        if (row == 0) snprintf(label, sizeof label, "%.4g", a.high);
        if (row == KEEL_PLOT_ROWS - 1) snprintf(label, sizeof label, "%.4g", a.low);
        fprintf(out, "  %*s %s", LABEL, label, style->ascii ? "|" : "\xE2\x94\x82");
        if (style->ascii)
            print_ascii(&g, row, out);
        else
            print_braille(&g, row, out);
        fputc('\n', out);
    }
    print_marks(r, index, cells, out);
    char range[64];
    int n = snprintf(range, sizeof range, "step %" PRIu64, t->first_step[0]);
    fprintf(out, "  %*s  %s%*s%" PRIu64 "\n", LABEL, "", range, (int)cells - n - 12 > 1 ? (int)cells - n - 12 : 1, "",
            t->last_step[t->count - 1]);
}
