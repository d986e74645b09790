// The table of a whole run, made of those of its ranks, which may differ: the stages of a pipeline hold different
// layers. Ranks with one table are a group; what several groups have (a tied embedding) is one site.
#ifndef KEEL_COLLECTORS_WHOLE_TABLE_H
#define KEEL_COLLECTORS_WHOLE_TABLE_H

#include "collectors/rank_table.h"

typedef struct keel_whole_table {
    keel_rank_table table; // ids are those of the whole
    uint32_t group_count;  // 1: the whole is the only group's
    keel_frame_map *maps;  // [group_count]: where what a group's frame holds goes; NULL with one group
    uint32_t *group_of;    // [ranks], owned; NULL with one group
    uint32_t *places;      // owned: what MAPS points to
    size_t place_count;
    bool compares; // some site's replicas are compared
} keel_whole_table;

// Of the TABLES of COUNT groups. LEADERS: the lowest rank of each, ascending. With one group the whole is its copy.
// With more, sites come in the order of the step's data flow, of equal places the lower group's first, and what a site
// is in the lowest group that has it goes for the whole (its stage, its place); scalars as they appear. KEEL_ERR_USAGE
// where groups have one site or scalar with different shapes, layouts or plans: the first difference, with both ranks.
keel_status keel_whole_table_open(const keel_rank_table *tables, const uint32_t *leaders, uint32_t count,
                                  keel_whole_table *whole);
void keel_whole_table_close(keel_whole_table *whole); // of zeroed ones: nothing

size_t keel_whole_table_bytes(const keel_whole_table *whole); // what it has allocated

#endif
