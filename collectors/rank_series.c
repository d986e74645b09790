#include "collectors/rank_series.h"

#include <stdlib.h>

#include "collectors/quantity/quantity.h"
#include "collectors/select.h"

static uint64_t ops_of(const keel_monitor_config *config, const keel_rank_table *table, uint32_t site, uint32_t rank) {
    if (!keel_select_names_rank(config, table->rank_entries[site], rank)) return 0;
    return table->op_masks[site] & keel_ops_of_one_rank();
}

static uint32_t count_ops(uint64_t ops) {
    return (uint32_t)__builtin_popcountll(ops);
}

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for the values of single ranks");
}

static keel_status pick_own(const keel_monitor_config *config, const keel_rank_table *own, uint32_t rank,
                            keel_rank_series_table *table, uint32_t *values) {
    table->picks = calloc((size_t)own->site_count + 1, sizeof *table->picks);
    if (!table->picks) return no_memory();
    for (uint32_t s = 0; s < own->site_count; s++) {
        const uint64_t ops = ops_of(config, own, s, rank);
        if (ops) table->picks[table->pick_count++] = (struct keel_rank_pick){s, ops};
        *values += count_ops(ops);
    }
    return KEEL_OK;
}

// The series of RANK, whose sites MAP places in the whole; NULL: they are the whole's. With no table to fill: counts.
static void list_rank(const keel_monitor_config *config, const keel_whole_table *whole, uint32_t rank,
                      keel_rank_series_table *table, keel_rank_part *part) {
    const uint32_t group = whole->group_of ? whole->group_of[rank] : 0;
    const uint32_t sites = whole->maps ? whole->maps[group].site_count : whole->table.site_count;
    *part = (keel_rank_part){.rank = rank, .offset = table->value_count};
    for (uint32_t s = 0; s < sites; s++) {
        const uint32_t w = whole->maps ? whole->maps[group].sites[s] : s;
        const uint64_t ops = ops_of(config, &whole->table, w, rank);
        if (!ops) continue;
        if (table->series) {
            table->series[table->series_count] = (keel_rank_series){rank, w};
            table->ops[table->series_count] = ops;
        }
        table->series_count++;
        part->count += count_ops(ops);
    }
    table->value_count += part->count;
}

static keel_status list_all(const keel_monitor_config *config, const keel_whole_table *whole, uint32_t ranks,
                            keel_rank_series_table *table) {
    keel_rank_part part;
    for (uint32_t r = 0; r < ranks; r++) {
        list_rank(config, whole, r, table, &part);
        table->part_count += part.count > 0;
        if (table->value_count > KEEL_RANK_VALUES_MOST)
            return keel_fail(KEEL_ERR_LIMIT,
                             "more than %d values of single ranks a step: name fewer ranks, sites or ops with ranks",
                             KEEL_RANK_VALUES_MOST);
    }
    table->series = calloc((size_t)table->series_count + 1, sizeof *table->series);
    table->ops = calloc((size_t)table->series_count + 1, sizeof *table->ops);
    table->parts = calloc((size_t)table->part_count + 1, sizeof *table->parts);
    if (!table->series || !table->ops || !table->parts) return no_memory();
    table->series_count = table->part_count = 0;
    table->value_count = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        list_rank(config, whole, r, table, &part);
        if (part.count) table->parts[table->part_count++] = part;
    }
    return KEEL_OK;
}

static keel_status list_own(uint32_t rank, uint32_t values, keel_rank_series_table *table) {
    table->parts = calloc(1, sizeof *table->parts);
    if (!table->parts) return no_memory();
    table->parts[0] = (keel_rank_part){.rank = rank, .count = values};
    table->part_count = values > 0;
    table->value_count = values;
    return KEEL_OK;
}

keel_status keel_rank_series_open(const keel_monitor_config *config, const keel_rank_table *own,
                                  const keel_whole_table *whole, uint32_t rank, uint32_t ranks,
                                  keel_rank_series_table *out) {
    keel_rank_series_table table = {0};
    uint32_t values = 0;
    keel_status status = keel_select_check_ranks(config, ranks);
    if (!status) status = pick_own(config, own, rank, &table, &values);
    if (!status) status = rank == 0 ? list_all(config, whole, ranks, &table) : list_own(rank, values, &table);
    if (status) {
        keel_rank_series_close(&table);
        return status;
    }
    *out = table;
    return KEEL_OK;
}

void keel_rank_series_close(keel_rank_series_table *table) {
    free(table->picks);
    free(table->series);
    free(table->ops);
    free(table->parts);
    *table = (keel_rank_series_table){0};
}

size_t keel_rank_series_bytes(const keel_rank_series_table *table) {
    return table->pick_count * sizeof *table->picks +
           table->series_count * (sizeof *table->series + sizeof *table->ops) +
           table->part_count * sizeof *table->parts;
}

// Rank 0 is the lowest, hence first; other ranks have but their own.
void keel_rank_series_take(const keel_rank_series_table *table, keel_frame *frame, uint64_t *values) {
    for (uint32_t i = 0; i < table->pick_count; i++) {
        const struct keel_rank_pick *pick = &table->picks[i];
        const keel_stats *stats = frame ? &keel_frame_stats(frame)[pick->site] : NULL;
        for (unsigned op = 0; op < KEEL_OP_COUNT; op++)
            if (pick->ops >> op & 1) *values++ = stats ? keel_op_bits(stats, (keel_op)op) : keel_op_absent((keel_op)op);
    }
}

void keel_rank_series_forget_others(const keel_rank_series_table *table, uint64_t *values) {
    for (uint32_t j = 0; j < table->series_count; j++)
        for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
            if (!(table->ops[j] >> op & 1)) continue;
            if (table->series[j].rank != 0) *values = keel_op_absent((keel_op)op);
            values++;
        }
}
