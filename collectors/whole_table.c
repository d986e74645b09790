#include "collectors/whole_table.h"

#include <stdlib.h>
#include <string.h>

#include "collectors/copies.h"

// A site of a group.
typedef struct member {
    const keel_site_info *info;
    uint32_t group, id;
    const struct member *first; // the same site in the lowest group that has it
    uint32_t whole;             // of the first: its id in the whole
} member;

typedef struct merging {
    const keel_rank_table *tables;
    const uint32_t *leaders;
    uint32_t count;
    size_t member_count;
    member *members; // group by group
    member **sorted;
    size_t firsts; // after same_sites: how many members of SORTED there are, each the first of its site
} merging;

static int by_place(const member *a, const member *b) {
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static int by_name(const void *left, const void *right) {
    const member *a = *(member *const *)left, *b = *(member *const *)right;
    if (a->info->quantity != b->info->quantity) return a->info->quantity < b->info->quantity ? -1 : 1;
    const int order = strcmp(a->info->name, b->info->name);
    return order ? order : by_place(a, b);
}

static int by_flow(const void *left, const void *right) {
    const member *a = *(member *const *)left, *b = *(member *const *)right;
    const int order = keel_site_compare(a->info, b->info);
    return order ? order : by_place(a, b);
}

static bool same_plan(const keel_site_plan *a, const keel_site_plan *b) {
    return a->fields == b->fields && a->per_micro == b->per_micro && a->eps == b->eps &&
           a->schedule.start == b->schedule.start && a->schedule.every == b->schedule.every &&
           a->schedule.count == b->schedule.count;
}

static bool same_site(const merging *m, const member *a, const member *b) {
    const keel_rank_table *x = &m->tables[a->group], *y = &m->tables[b->group];
    return a->info->dtype == b->info->dtype && a->info->layout == b->info->layout && a->info->phase == b->info->phase &&
           a->info->replica_count == b->info->replica_count && a->info->ndim == b->info->ndim &&
           memcmp(a->info->shape, b->info->shape, a->info->ndim * sizeof *a->info->shape) == 0 &&
           x->op_masks[a->id] == y->op_masks[b->id] && x->rank_entries[a->id] == y->rank_entries[b->id] &&
           same_plan(&x->plans[a->id], &y->plans[b->id]);
}

static keel_status open_merging(merging *m) {
    for (uint32_t g = 0; g < m->count; g++) m->member_count += m->tables[g].site_count;
    m->members = calloc(m->member_count + 1, sizeof *m->members);
    m->sorted = calloc(m->member_count + 1, sizeof(member *));
    if (!m->members || !m->sorted)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the tables of %u groups of ranks", m->count);
    size_t i = 0;
    for (uint32_t g = 0; g < m->count; g++)
        for (uint32_t s = 0; s < m->tables[g].site_count; s++, i++) {
            m->members[i] = (member){.info = &m->tables[g].sites[s], .group = g, .id = s};
            m->sorted[i] = &m->members[i];
        }
    return KEEL_OK;
}

static void close_merging(merging *m) {
    free(m->members);
    free(m->sorted);
}

static keel_status differ(const merging *m, const member *odd) {
    char theirs[KEEL_TABLE_TEXT_BYTES], of_first[KEEL_TABLE_TEXT_BYTES];
    keel_rank_table_describe_site(&m->tables[odd->group], odd->id, theirs);
    keel_rank_table_describe_site(&m->tables[odd->first->group], odd->first->id, of_first);
    return keel_fail(KEEL_ERR_USAGE, "rank %u registered %s where rank %u registered %s", m->leaders[odd->group],
                     theirs, m->leaders[odd->first->group], of_first);
}

// Finds what is one site; leaves the first of each in SORTED.
static keel_status same_sites(merging *m) {
    qsort(m->sorted, m->member_count, sizeof(member *), by_name);
    const member *odd = NULL;
    for (size_t i = 0; i < m->member_count; i++) {
        member *it = m->sorted[i];
        const member *before = m->firsts ? m->sorted[m->firsts - 1] : NULL;
        if (!before || before->info->quantity != it->info->quantity ||
            strcmp(before->info->name, it->info->name) != 0) {
            it->first = it;
            m->sorted[m->firsts++] = it;
            continue;
        }
        it->first = before;
        if (!same_site(m, before, it) && (!odd || by_place(it, odd) < 0)) odd = it;
    }
    return odd ? differ(m, odd) : KEEL_OK;
}

static keel_status merge_sites(merging *m, keel_whole_table *whole) {
    qsort(m->sorted, m->firsts, sizeof(member *), by_flow);
    keel_rank_table *table = &whole->table;
    uint32_t micro_sites = 0;
    uint32_t *micro_of = calloc(m->firsts + 1, sizeof *micro_of);
    if (!micro_of) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu sites", m->firsts);
    for (uint32_t w = 0; w < m->firsts; w++) {
        member *first = m->sorted[w];
        first->whole = w;
        table->sites[w] = *first->info;
        table->sites[w].id = w;
        table->plans[w] = m->tables[first->group].plans[first->id];
        table->op_masks[w] = m->tables[first->group].op_masks[first->id];
        table->rank_entries[w] = m->tables[first->group].rank_entries[first->id];
        micro_of[w] = micro_sites;
        micro_sites += keel_plan_is_per_micro(&table->plans[w]);
    }
    size_t i = 0;
    for (uint32_t g = 0; g < m->count; g++)
        for (uint32_t s = 0, micro = 0; s < m->tables[g].site_count; s++, i++) {
            const uint32_t place = m->members[i].first->whole;
            whole->maps[g].sites[s] = place;
            if (keel_plan_is_per_micro(&table->plans[place])) whole->maps[g].micro_sites[micro++] = micro_of[place];
        }
    free(micro_of);
    return KEEL_OK;
}

static keel_status merge_scalars(const merging *m, keel_whole_table *whole) {
    keel_rank_table *table = &whole->table;
    uint32_t *from = calloc((size_t)table->scalar_count + 1, sizeof *from); // the group that brought it
    if (!from) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u scalars", table->scalar_count);
    keel_status status = KEEL_OK;
    table->scalar_count = 0;
    for (uint32_t g = 0; g < m->count; g++)
        for (uint32_t i = 0; i < m->tables[g].scalar_count; i++) {
            const keel_table_scalar *scalar = &m->tables[g].scalars[i];
            uint32_t w = 0;
            while (w < table->scalar_count && strcmp(table->scalars[w].name, scalar->name) != 0) w++;
            whole->maps[g].scalars[i] = w;
            if (w == table->scalar_count) {
                table->scalars[w] = *scalar;
                from[w] = g;
                table->scalar_count++;
            } else if (table->scalars[w].merge != scalar->merge && !status) {
                char theirs[KEEL_TABLE_TEXT_BYTES], before[KEEL_TABLE_TEXT_BYTES];
                keel_rank_table_describe_scalar(&m->tables[g], i, theirs);
                keel_rank_table_describe_scalar(table, w, before);
                status = keel_fail(KEEL_ERR_USAGE, "rank %u registered %s where rank %u registered %s", m->leaders[g],
                                   theirs, m->leaders[from[w]], before);
            }
        }
    free(from);
    return status;
}

static keel_status open_maps(const keel_rank_table *tables, uint32_t count, keel_whole_table *whole) {
    for (uint32_t g = 0; g < count; g++)
        whole->place_count += 2 * (size_t)tables[g].site_count + tables[g].scalar_count;
    whole->maps = calloc((size_t)count + 1, sizeof *whole->maps);
    whole->places = calloc(whole->place_count + 1, sizeof *whole->places);
    if (!whole->maps || !whole->places)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the maps of %u groups of ranks", count);
    uint32_t *next = whole->places;
    for (uint32_t g = 0; g < count; g++) {
        whole->maps[g].site_count = tables[g].site_count;
        whole->maps[g].sites = next;
        next += tables[g].site_count;
        whole->maps[g].micro_sites = next;
        next += tables[g].site_count;
        whole->maps[g].scalars = next;
        next += tables[g].scalar_count;
    }
    return KEEL_OK;
}

static keel_status copy_only(const keel_rank_table *only, keel_rank_table *table) {
    *table = (keel_rank_table){.micro_count = only->micro_count,
                               .site_count = only->site_count,
                               .scalar_count = only->scalar_count,
                               .ranks_hash = only->ranks_hash};
    const keel_status status = keel_rank_table_alloc(table);
    if (status) return status;
    memcpy(table->sites, only->sites, only->site_count * sizeof *only->sites);
    memcpy(table->plans, only->plans, only->site_count * sizeof *only->plans);
    memcpy(table->op_masks, only->op_masks, only->site_count * sizeof *only->op_masks);
    memcpy(table->rank_entries, only->rank_entries, only->site_count * sizeof *only->rank_entries);
    memcpy(table->scalars, only->scalars, only->scalar_count * sizeof *only->scalars);
    return KEEL_OK;
}

static keel_status merge_tables(merging *m, keel_whole_table *whole) {
    for (uint32_t g = 1; g < m->count; g++)
        if (m->tables[g].ranks_hash != m->tables[0].ranks_hash)
            return keel_fail(KEEL_ERR_USAGE, "the selections of rank %u name other ranks than those of rank %u",
                             m->leaders[g], m->leaders[0]);
    whole->table.ranks_hash = m->tables[0].ranks_hash;
    for (uint32_t g = 1; g < m->count; g++)
        if (m->tables[g].micro_count != m->tables[0].micro_count)
            return keel_fail(KEEL_ERR_USAGE, "rank %u registered %u micro-batches where rank %u registered %u",
                             m->leaders[g], m->tables[g].micro_count, m->leaders[0], m->tables[0].micro_count);
    keel_status status = open_merging(m);
    if (!status) status = same_sites(m);
    if (status) return status;
    whole->table.micro_count = m->tables[0].micro_count;
    whole->table.site_count = (uint32_t)m->firsts;
    for (uint32_t g = 0; g < m->count; g++) whole->table.scalar_count += m->tables[g].scalar_count; // at most
    status = keel_rank_table_alloc(&whole->table);
    if (!status) status = open_maps(m->tables, m->count, whole);
    if (!status) status = merge_sites(m, whole);
    return status ? status : merge_scalars(m, whole);
}

keel_status keel_whole_table_open(const keel_rank_table *tables, const uint32_t *leaders, uint32_t count,
                                  keel_whole_table *out) {
    keel_whole_table whole = {.group_count = count};
    keel_status status;
    if (count == 1) {
        status = copy_only(tables, &whole.table);
    } else {
        merging m = {.tables = tables, .leaders = leaders, .count = count};
        status = merge_tables(&m, &whole);
        close_merging(&m);
    }
    if (status) {
        keel_whole_table_close(&whole);
        return status;
    }
    for (uint32_t s = 0; s < whole.table.site_count; s++) whole.compares |= keel_copies_compared(&whole.table, s);
    *out = whole;
    return KEEL_OK;
}

void keel_whole_table_close(keel_whole_table *whole) {
    keel_rank_table_close(&whole->table);
    free(whole->maps);
    free(whole->places);
    free(whole->group_of);
    *whole = (keel_whole_table){0};
}

size_t keel_whole_table_bytes(const keel_whole_table *whole) {
    return keel_rank_table_bytes(&whole->table) + (whole->maps ? whole->group_count * sizeof *whole->maps : 0) +
           whole->place_count * sizeof *whole->places;
}
