#include "collectors/copies.h"

#include <stdlib.h>

bool keel_copies_compared(const keel_rank_table *table, uint32_t site) {
    return table->op_masks[site] >> KEEL_OP_replica_residual & 1;
}

keel_status keel_copies_open(const keel_rank_table *table, keel_copies *out) {
    keel_copies copies = {0};
    for (uint32_t s = 0; s < table->site_count; s++) copies.count += keel_copies_compared(table, s);
    copies.sites = calloc((size_t)copies.count + 1, sizeof *copies.sites);
    if (!copies.sites) return keel_fail(KEEL_ERR_MEMORY, "no memory for the checksums of %u sites", copies.count);
    for (uint32_t s = 0, i = 0; s < table->site_count; s++)
        if (keel_copies_compared(table, s))
            copies.sites[i++] = (struct keel_copy_site){.hash = keel_site_hash(&table->sites[s]),
                                                        .id = s,
                                                        .replica_index = table->sites[s].replica_index,
                                                        .replica_count = table->sites[s].replica_count};
    *out = copies;
    return KEEL_OK;
}

void keel_copies_close(keel_copies *copies) {
    free(copies->sites);
    *copies = (keel_copies){0};
}

void keel_copies_note(keel_copies *copies, keel_frame *frame) {
    for (uint32_t i = 0; i < copies->count; i++) {
        struct keel_copy_site *site = &copies->sites[i];
        const keel_stats *stats = frame ? &keel_frame_stats(frame)[site->id] : NULL;
        site->held = stats && stats->rank_parts > 0;
        if (site->held) site->print = keel_stats_replica_print(stats, site->replica_index, site->replica_count);
    }
}

keel_copy keel_copies_answer(const keel_copies *copies, uint64_t hash, uint32_t rank) {
    for (uint32_t i = 0; i < copies->count; i++) {
        const struct keel_copy_site *site = &copies->sites[i];
        if (site->hash == hash)
            return (keel_copy){
                .print = site->print, .rank = rank, .replica_index = site->replica_index, .held = site->held};
    }
    return (keel_copy){.rank = rank};
}

bool keel_copies_choose(const keel_rank_table *table, keel_frame *merged, uint32_t *site) {
    bool found = false;
    const keel_stats *stats = keel_frame_stats(merged);
    for (uint32_t s = 0; s < table->site_count; s++) {
        if (!keel_copies_compared(table, s) || !(stats[s].fields & KEEL_FIELDS_CHECKSUM)) continue;
        if (stats[s].replica_residual == 0) continue;
        if (found && keel_site_compare(&table->sites[s], &table->sites[*site]) >= 0) continue;
        found = true;
        *site = s;
    }
    return found;
}

static int by_print(const void *left, const void *right) {
    const keel_copy *a = left, *b = right;
    if (a->held != b->held) return a->held ? -1 : 1;
    if (a->print != b->print) return a->print < b->print ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

// Which ranks hold the same part is known nowhere. But a part on which all agree has its print REPLICA_COUNT times, or
// a multiple of that where parts are alike; so that the copies that differ are those whose prints are fewer.
bool keel_copies_vote(keel_copy *all, uint32_t count, uint32_t replica_count, uint32_t *rank, uint32_t *peer) {
    const keel_copy *few = NULL, *pair[2] = {NULL, NULL};
    uint32_t singles = 0;
    qsort(all, count, sizeof *all, by_print);
    for (uint32_t begin = 0, end; begin < count && all[begin].held; begin = end) {
        for (end = begin + 1; end < count && all[end].held && all[end].print == all[begin].print;) end++;
        if (2 * (end - begin) < replica_count && (!few || all[begin].rank < few->rank)) few = &all[begin];
        if (end - begin == 1 && singles++ < 2) pair[singles - 1] = &all[begin];
    }
    if (few) {
        *rank = *peer = few->rank;
        return true;
    }
    if (replica_count != 2 || singles != 2 || pair[0]->replica_index == pair[1]->replica_index) return false;
    const bool in_order = pair[0]->replica_index < pair[1]->replica_index;
    *rank = pair[!in_order]->rank;
    *peer = pair[in_order]->rank;
    return true;
}
