#include "analyzers/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/cause.h"
#include "analyzers/clipped_text.h"
#include "analyzers/rules.h"

enum { SLOTS = 32, TROUBLES = 12, SAME_SERIES_REACH = 4 };
enum { CHANGES = SLOTS + KEEL_FINDINGS_MAX }; // of one row: each finding may drive one incident out of its slot
#define NO_INCIDENT UINT32_MAX
#define SURE        0.5 // from which confidence the finding that decides the cause leads the incident

// An incident that goes on or may be taken up again. Plain memory.
typedef struct slot {
    uint32_t incident; // index; NO_INCIDENT: free
    uint32_t count;
    uint64_t last_record;
    keel_trouble troubles[TROUBLES]; // in the order in which they came
    double published_distance;       // |value - expected| of the latest revision
    // Lines that a detector gave: of the trouble that began first, of equal ones by the table of rules.
    uint64_t evidence_step;
    uint32_t evidence_rule, evidence_count;
    char evidence[KEEL_EVIDENCE_MAX][KEEL_EVIDENCE_BYTES];
} slot;

struct keel_group {
    slot slots[SLOTS];
    uint32_t last_id;
    keel_incident *incidents;
    keel_incident_extra *extras;
    size_t count, capacity;
    const keel_incident *changed[CHANGES];
    uint32_t changed_index[CHANGES];
    uint32_t changed_count;
};

keel_status keel_group_open(keel_group **out) {
    keel_group *group = calloc(1, sizeof *group);
    if (!group) return keel_fail(KEEL_ERR_MEMORY, "no memory for incidents");
    for (uint32_t i = 0; i < SLOTS; i++) group->slots[i].incident = NO_INCIDENT;
    *out = group;
    return KEEL_OK;
}

void keel_group_close(keel_group *group) {
    if (!group) return;
    free(group->incidents);
    free(group->extras);
    free(group);
}

static keel_status reserve(keel_group *g, size_t count) {
    if (count <= g->capacity) return KEEL_OK;
    size_t capacity = g->capacity ? 2 * g->capacity : 16;
    while (capacity < count) capacity *= 2;
    keel_incident *incidents = realloc(g->incidents, capacity * sizeof *incidents);
    if (incidents) g->incidents = incidents;
    keel_incident_extra *extras = incidents ? realloc(g->extras, capacity * sizeof *extras) : NULL;
    if (!extras) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu incidents", capacity);
    g->extras = extras;
    g->capacity = capacity;
    return KEEL_OK;
}

// ---- where a finding goes ----

static bool over(const slot *s) {
    for (uint32_t i = 0; i < s->count; i++)
        if (!s->troubles[i].closed) return false;
    return true;
}

static bool same_series(const keel_trouble *t, uint32_t rule, const keel_finding *f) {
    return t->rule == rule && strncmp(t->series, f->series, sizeof t->series - 1) == 0;
}

static keel_trouble *find_trouble(keel_group *g, uint32_t rule, const keel_finding *f, slot **home) {
    for (slot *s = g->slots; s < g->slots + SLOTS; s++) {
        if (s->incident == NO_INCIDENT) continue;
        for (uint32_t i = 0; i < s->count; i++) {
            keel_trouble *t = &s->troubles[i];
            if (t->key != f->key || !same_series(t, rule, f)) continue;
            *home = s;
            return t;
        }
    }
    return NULL;
}

// A trouble that is more than a note has gone on for longer than REACH.
static bool is_old(const slot *s, uint64_t record, uint32_t reach) {
    for (uint32_t i = 0; i < s->count; i++)
        if (s->troubles[i].severity >= KEEL_WARNING && record - s->troubles[i].first_record > reach) return true;
    return false;
}

// A second trouble of one series is the same one only while the first hardly ended: spikes here and there are apart.
static bool may_join(const slot *s, uint32_t rule, const keel_finding *f, uint64_t record) {
    if (s->incident == NO_INCIDENT || keel_rule_table[rule]->link == KEEL_LINK_ALONE) return false;
    if (keel_rule_table[rule]->from_outside && is_old(s, record, keel_rule_table[rule]->reach)) return false;
    bool near = false;
    for (uint32_t i = 0; i < s->count; i++) {
        const keel_trouble *t = &s->troubles[i];
        if (keel_rule_table[t->rule]->link == KEEL_LINK_ALONE) return false;
        uint32_t reach = same_series(t, rule, f) ? SAME_SERIES_REACH : keel_rule_table[t->rule]->reach;
        if (!t->closed || record - t->last_record <= reach) near = true;
    }
    return near;
}

// The slot that a new trouble joins: of several, the one that was touched last, and of these the newest; NULL: none.
static slot *find_company(keel_group *g, uint32_t rule, const keel_finding *f, uint64_t record) {
    slot *best = NULL;
    for (slot *s = g->slots; s < g->slots + SLOTS; s++) {
        if (!may_join(s, rule, f, record)) continue;
        const bool later = !best || s->last_record > best->last_record;
        if (later || (s->last_record == best->last_record && s->incident > best->incident)) best = s;
    }
    return best;
}

static void publish(keel_group *g, const keel_run_view *run, slot *s);

// A free slot; else that of the incident untouched for longest, preferably one that is over.
static slot *take_slot(keel_group *g, const keel_run_view *run) {
    slot *oldest = NULL;
    for (slot *s = g->slots; s < g->slots + SLOTS; s++) {
        if (s->incident == NO_INCIDENT) return s;
        bool better =
            !oldest || over(s) > over(oldest) || (over(s) == over(oldest) && s->last_record < oldest->last_record);
        if (better) oldest = s;
    }
    for (uint32_t i = 0; i < oldest->count; i++) oldest->troubles[i].closed = 1;
    publish(g, run, oldest);
    return oldest;
}

static void copy_text(char *to, size_t size, const char *from) {
    size_t n = strnlen(from, size - 1);
    memcpy(to, from, n);
    memset(to + n, 0, size - n);
}

// A burst goes on to tell of itself; another one takes its place only by being worse, and a note never does.
static bool is_worst(const keel_trouble *t, const keel_finding *f) {
    if (t->bursts == 0 || f->key == t->peak_key) return true;
    if ((f->severity == KEEL_INFO) != (t->peak_severity == KEEL_INFO)) return f->severity != KEEL_INFO;
    return fabs(f->score) > fabs(t->score);
}

static void take_place(keel_trouble *t, const keel_run_view *run, int64_t id) {
    t->flow = -1;
    if (id < 0 || id >= (int64_t)run->info->site_count) return;
    const keel_site_info *site = &run->info->sites[id];
    t->flow = (int32_t)run->index->flow[id];
    snprintf(t->site, sizeof t->site, "%s:%s", site->name, keel_quantity_name(site->quantity));
}

static void update_trouble(keel_trouble *t, const keel_run_view *run, const keel_finding *f, uint64_t record) {
    bool again = t->key != f->key; // another burst of what the incident has seen already
    bool first = t->bursts == 0;
    bool worst = is_worst(t, f);
    if (again || first) t->bursts++;
    t->key = f->key;
    t->closed = f->closed;
    t->skipped = f->skipped;
    if (f->severity > t->severity) t->severity = f->severity;
    if (first || f->first_step < t->first_step) t->first_step = f->first_step;
    if (first || f->last_step > t->last_step) t->last_step = f->last_step;
    if (worst) {
        t->peak_key = f->key;
        t->peak_severity = f->severity;
        t->peak_step = f->peak_step;
        t->value = f->value;
        t->expected = f->expected;
        t->score = f->score;
        copy_text(t->clause, sizeof t->clause, f->clause);
    }
    if (first) {
        t->first_record = record;
        t->rank = -1;
    }
    if (first || (!t->site[0] && f->site >= 0)) take_place(t, run, f->site);
    if (f->rank >= 0) t->rank = (int32_t)f->rank;
    if (first || !f->closed) t->last_record = record; // what ends it is no sign of life
}

static keel_status new_incident(keel_group *g, slot *s) {
    keel_status status = reserve(g, g->count + 1);
    if (status) return status;
    memset(s, 0, sizeof *s);
    s->incident = (uint32_t)g->count;
    memset(&g->incidents[g->count], 0, sizeof *g->incidents);
    memset(&g->extras[g->count], 0, sizeof *g->extras);
    g->incidents[g->count].id = ++g->last_id;
    g->count++;
    return KEEL_OK;
}

static void take_evidence(slot *s, uint32_t rule, const keel_finding *f) {
    bool other = s->evidence_count && rule != s->evidence_rule;
    if (f->evidence_count == 0 || (other && f->first_step > s->evidence_step)) return;
    if (other && f->first_step == s->evidence_step && rule > s->evidence_rule) return;
    s->evidence_rule = rule;
    s->evidence_step = f->first_step;
    s->evidence_count = f->evidence_count;
    for (uint32_t i = 0; i < f->evidence_count; i++) copy_text(s->evidence[i], sizeof s->evidence[i], f->evidence[i]);
}

static keel_status take(keel_group *g, const keel_run_view *run, uint32_t rule, const keel_finding *f, uint64_t record,
                        bool *touched) {
    slot *s = NULL;
    keel_trouble *t = find_trouble(g, rule, f, &s);
    if (!t) {
        if (f->closed && !f->at_once) return KEEL_OK; // the incident that held it has made room for others
        s = find_company(g, rule, f, record);
        if (!s) {
            s = take_slot(g, run);
            keel_status status = new_incident(g, s);
            if (status) return status;
        }
        for (uint32_t i = 0; !t && i < s->count; i++)
            if (same_series(&s->troubles[i], rule, f)) t = &s->troubles[i];
        if (!t && s->count == TROUBLES) return KEEL_OK; // it has shown enough
        if (!t) {
            t = &s->troubles[s->count++];
            memset(t, 0, sizeof *t);
            t->rule = rule;
            copy_text(t->series, sizeof t->series, f->series);
        }
    }
    update_trouble(t, run, f, record);
    s->last_record = record;
    take_evidence(s, rule, f);
    touched[s - g->slots] = true;
    return KEEL_OK;
}

// ---- what an incident says ----

// A context that explains what else began with it or after it.
static bool explains(const slot *s, const keel_trouble *t) {
    if (keel_rule_table[t->rule]->link != KEEL_LINK_CONTEXT || t->severity < KEEL_WARNING) return false;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->troubles[i].first_step < t->first_step) return false;
    return true;
}

// The trouble that names the incident: a context that explains it, else the most severe, of those the earliest in the
// table.
static const keel_trouble *leader(const slot *s) {
    const keel_trouble *lead = NULL;
    for (uint32_t i = 0; i < s->count; i++) {
        const keel_trouble *t = &s->troubles[i];
        if (explains(s, t)) return t;
        if (!lead || t->severity > lead->severity || (t->severity == lead->severity && t->rule < lead->rule)) lead = t;
    }
    return lead;
}

static keel_severity greatest_severity(const slot *s) {
    keel_severity greatest = KEEL_INFO;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->troubles[i].severity > greatest) greatest = s->troubles[i].severity;
    return greatest;
}

static int by_beginning(const void *a, const void *b) {
    const keel_trouble *x = *(const keel_trouble *const *)a, *y = *(const keel_trouble *const *)b;
    if (x->first_step != y->first_step) return x->first_step < y->first_step ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool names_series(const char *list, const char *series) {
    size_t n = strlen(series);
    for (const char *at = list; (at = strstr(at, series)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) return true;
    return false;
}

// When it began. Notes that went on before do not make it older than what it is about, but for those that explain it.
static uint64_t beginning(const slot *s) {
    keel_severity least = greatest_severity(s) >= KEEL_WARNING ? KEEL_WARNING : KEEL_INFO;
    uint64_t first = UINT64_MAX;
    for (const keel_trouble *t = s->troubles; t < s->troubles + s->count; t++)
        if ((t->severity >= least || keel_rule_table[t->rule]->link == KEEL_LINK_CONTEXT) && t->first_step < first)
            first = t->first_step;
    return first;
}

// The first bad place: of what began first, from step FROM on, in the order of the data flow.
static const keel_trouble *first_placed(const slot *s, uint64_t from) {
    const keel_trouble *best = NULL;
    for (const keel_trouble *t = s->troubles; t < s->troubles + s->count; t++) {
        if (!t->site[0] || t->first_step < from) continue;
        bool earlier = !best || t->first_step < best->first_step;
        if (earlier || (t->first_step == best->first_step && t->flow < best->flow)) best = t;
    }
    return best;
}

// How much an incident's troubles say for RANK: what is more than a note counts for more than all notes.
static uint32_t votes_for(const slot *s, int32_t rank) {
    uint32_t votes = 0;
    for (const keel_trouble *t = s->troubles; t < s->troubles + s->count; t++)
        if (t->rank == rank) votes += t->severity >= KEEL_WARNING ? TROUBLES : 1;
    return votes;
}

// The rank that most of its troubles name; of such, who it began with, by the rules in their order.
static int32_t first_rank(const slot *s, uint64_t from) {
    const keel_trouble *best = NULL;
    for (const keel_trouble *t = s->troubles; t < s->troubles + s->count; t++) {
        if (t->rank < 0 || t->first_step < from) continue;
        const uint32_t votes = votes_for(s, t->rank), most = best ? votes_for(s, best->rank) : 0;
        if (votes < most) continue;
        const bool earlier = votes > most || t->first_step < best->first_step;
        if (earlier || (t->first_step == best->first_step && t->rule < best->rule)) best = t;
    }
    return best ? best->rank : -1;
}

static void add_line(keel_incident_extra *extra, const char *line) {
    if (extra->evidence_count < KEEL_EVIDENCE_MAX)
        copy_text(extra->evidence[extra->evidence_count++], KEEL_EVIDENCE_BYTES, line);
}

// What decides the cause, then what shows the trouble.
static void fill_evidence(const slot *s, const keel_trouble *const *order, const keel_verdict *verdict,
                          keel_incident_extra *extra) {
    extra->evidence_count = 0;
    for (uint32_t i = 0; i < verdict->lines; i++) add_line(extra, verdict->evidence[i]);
    for (uint32_t i = 0; i < s->evidence_count; i++) add_line(extra, s->evidence[i]);
    for (uint32_t i = 0; i < s->count && s->evidence_count == 0 && verdict->lines == 0; i++)
        if (order[i]->clause[0]) add_line(extra, order[i]->clause);
}

static void fill(const slot *s, const keel_run_view *run, keel_incident *incident, keel_incident_extra *extra) {
    const keel_trouble *order[TROUBLES];
    const uint64_t from = beginning(s);
    for (uint32_t i = 0; i < s->count; i++) order[i] = &s->troubles[i];
    qsort(order, s->count, sizeof *order, by_beginning);
    const keel_case c = {.run = run, .troubles = s->troubles, .count = s->count, .first_step = from};
    keel_verdict verdict;
    keel_cause(&c, &verdict);
    const keel_trouble *culprit = verdict.culprit, *lead = leader(s);
    if (culprit && culprit->severity >= KEEL_WARNING && verdict.confidence >= SURE) lead = culprit;

    keel_incident old = *incident;
    memset(incident, 0, sizeof *incident);
    incident->id = old.id;
    incident->revision = old.revision;
    incident->severity = greatest_severity(s);
    incident->open = !over(s);
    copy_text(incident->rule, sizeof incident->rule, keel_rule_table[lead->rule]->rule);
    incident->first_step = from;
    for (uint32_t i = 0; i < s->count; i++) {
        const keel_trouble *t = order[i];
        if (t->last_step > incident->last_step) incident->last_step = t->last_step;
        if (names_series(incident->series, t->series)) continue;
        if (incident->series[0]) keel_text_append(incident->series, sizeof incident->series, ",");
        keel_text_append(incident->series, sizeof incident->series, "%s", t->series);
    }
    incident->peak_step = lead->peak_step;
    incident->value = lead->value;
    incident->expected = lead->expected;
    incident->score = lead->score;
    keel_text_append(incident->message, sizeof incident->message, "%s", lead->clause);
    for (uint32_t i = 0; i < s->count; i++) {
        if (order[i] == lead || !order[i]->clause[0]) continue;
        keel_text_append(incident->message, sizeof incident->message, "; %s", order[i]->clause);
    }
    const keel_trouble *place = culprit && culprit->site[0] ? culprit : first_placed(s, from);
    if (place) copy_text(incident->site, sizeof incident->site, place->site);
    incident->rank = culprit && culprit->rank >= 0 ? culprit->rank : first_rank(s, from);
    snprintf(incident->cause, sizeof incident->cause, "%s", verdict.cause);
    incident->confidence = verdict.confidence;
    extra->skipped = lead->skipped;
    fill_evidence(s, order, &verdict, extra);
}

static bool differs(const keel_incident *a, const keel_incident *b) {
    return a->severity != b->severity || a->open != b->open || strcmp(a->rule, b->rule) != 0 ||
           strcmp(a->series, b->series) != 0 || strcmp(a->site, b->site) != 0 || a->rank != b->rank ||
           strcmp(a->cause, b->cause) != 0;
}

// Writes the incident anew; a revision where it says something new.
static void publish(keel_group *g, const keel_run_view *run, slot *s) {
    keel_incident *incident = &g->incidents[s->incident];
    keel_incident old = *incident;
    fill(s, run, incident, &g->extras[s->incident]);
    double distance = fabs(incident->value - incident->expected);
    bool grown = distance > 1.1 * s->published_distance && incident->peak_step != old.peak_step;
    if (old.revision && !grown && !differs(&old, incident)) return;
    s->published_distance = distance;
    incident->revision = old.revision + 1;
    g->changed_index[g->changed_count++] = s->incident;
}

static void point_at_changed(keel_group *g) {
    for (uint32_t i = 0; i < g->changed_count; i++) g->changed[i] = &g->incidents[g->changed_index[i]];
}

keel_status keel_group_row(keel_group *g, const keel_run_view *run, const keel_findings *findings, uint64_t record) {
    g->changed_count = 0;
    if (findings->count == 0) return KEEL_OK;
    bool touched[SLOTS] = {false};
    keel_status status = KEEL_OK;
    for (uint32_t i = 0; !status && i < findings->count; i++)
        status = take(g, run, findings->entries[i].rule, &findings->entries[i].finding, record, touched);
    for (uint32_t i = 0; i < SLOTS; i++)
        if (touched[i]) publish(g, run, &g->slots[i]);
    point_at_changed(g);
    return status;
}

const keel_incident *const *keel_group_changed(const keel_group *g, size_t *count) {
    *count = g->changed_count;
    return g->changed;
}

const keel_incident *keel_group_incidents(const keel_group *g, size_t *count) {
    *count = g->count;
    return g->incidents;
}

const keel_incident_extra *keel_group_extra(const keel_group *g, size_t index) {
    return &g->extras[index];
}

uint32_t keel_group_open_count(const keel_group *g, keel_severity severity) {
    uint32_t count = 0;
    for (const slot *s = g->slots; s < g->slots + SLOTS; s++) {
        if (s->incident == NO_INCIDENT) continue;
        const keel_incident *incident = &g->incidents[s->incident];
        count += incident->open && incident->severity == severity;
    }
    return count;
}

void keel_group_set_last_id(keel_group *g, uint32_t last) {
    if (last > g->last_id) g->last_id = last;
}

uint32_t keel_group_last_id(const keel_group *g) {
    return g->last_id;
}

keel_status keel_group_adopt(keel_group *g, const keel_incident *incident) {
    keel_status status = reserve(g, g->count + 1);
    if (status) return status;
    bool taken = incident->id == 0;
    for (size_t i = 0; i < g->count; i++) taken |= g->incidents[i].id == incident->id;
    keel_incident *own = &g->incidents[g->count];
    *own = *incident;
    if (taken) own->id = g->last_id + 1;
    keel_group_set_last_id(g, own->id);
    keel_incident_extra *extra = &g->extras[g->count++];
    memset(extra, 0, sizeof *extra);
    add_line(extra, incident->message);
    return KEEL_OK;
}

// ---- state ----

void keel_group_save(const keel_group *g, keel_state_writer *w) {
    keel_state_write_u64(w, sizeof(slot));
    keel_state_write(w, g->slots, sizeof g->slots);
    keel_state_write_u64(w, g->last_id);
    keel_state_write_u64(w, sizeof *g->incidents + sizeof *g->extras);
    keel_state_write_u64(w, g->count);
    keel_state_write(w, g->incidents, g->count * sizeof *g->incidents);
    keel_state_write(w, g->extras, g->count * sizeof *g->extras);
}

keel_status keel_group_load(keel_group *g, keel_state_reader *r) {
    uint64_t last_id = 0, count = 0;
    keel_status status = keel_state_expect(r, sizeof(slot), "the size of an open incident");
    if (!status) status = keel_state_read(r, g->slots, sizeof g->slots);
    if (!status) status = keel_state_read_u64(r, &last_id);
    if (!status) status = keel_state_expect(r, sizeof *g->incidents + sizeof *g->extras, "the size of an incident");
    if (!status) status = keel_state_read_u64(r, &count);
    if (status) return status;
    if (count > r->left / (sizeof *g->incidents + sizeof *g->extras))
        return keel_fail(KEEL_ERR_FORMAT, "detector state: more incidents than it has bytes");
    if ((status = reserve(g, count))) return status;
    if ((status = keel_state_read(r, g->incidents, count * sizeof *g->incidents))) return status;
    if ((status = keel_state_read(r, g->extras, count * sizeof *g->extras))) return status;
    g->count = count;
    g->changed_count = 0;
    keel_group_set_last_id(g, (uint32_t)last_id);
    return KEEL_OK;
}

keel_status keel_group_keep_discarded(keel_group *g, const keel_group *other) {
    for (size_t i = 0; i < other->count; i++) {
        const keel_incident *incident = &other->incidents[i];
        bool known = false;
        for (size_t k = 0; !known && k < g->count; k++)
            known = g->incidents[k].id == incident->id && g->incidents[k].revision == incident->revision;
        if (known) continue;
        keel_status status = reserve(g, g->count + 1);
        if (status) return status;
        g->incidents[g->count] = *incident;
        g->extras[g->count] = other->extras[i];
        g->extras[g->count++].discarded = 1;
    }
    keel_group_set_last_id(g, other->last_id);
    return KEEL_OK;
}
