// A row: one step of a run as it is stored, judged and reported; the same whether it comes from a merged frame or from
// the store. Detectors read rows only, so that live and later agree.
#ifndef KEEL_COLLECTORS_ROW_H
#define KEEL_COLLECTORS_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/frame.h"
#include "probe/site.h"
#include "probe/stats.h"

// A series of one rank's own values of a site, where asked for.
typedef struct keel_rank_series {
    uint32_t rank, site;
} keel_rank_series;

// What does not change over a segment of a run: the tables that rows index.
typedef struct keel_run_info {
    char run_id[64];
    char created_utc[32]; // ISO 8601
    char host[64];
    const char *command;
    uint32_t world_size;
    uint32_t dp, tp, pp, ep;
    uint32_t micro_count;
    const char *config_yaml; // monitor and trainer settings, one document with top-level keys; "" when unknown
    uint32_t site_count;
    const keel_site_info *sites; // by id
    uint32_t scalar_count;
    // "loss", "grad_norm", ...: live, the frame's scalars in their order, then NAME_rank for each that merges by max or
    // min, in that order.
    const char *const *scalar_names;
    bool op_stored[KEEL_OP_COUNT]; // some site collects it: its dataset exists
    // [site_count], bit keel_op: what is kept of each site, the rest is not collected; NULL: all
    const uint64_t *op_mask;
    uint32_t micro_site_count;   // sites with per-micro-batch rows, in the order of micro_sites
    const uint32_t *micro_sites; // site ids
    uint32_t rank_series_count;  // by rank, then by site
    const keel_rank_series *rank_series;
    bool rank_op_stored[KEEL_OP_COUNT]; // some series collects it
    const uint64_t *rank_op_mask;       // [rank_series_count], as op_mask
} keel_run_info;

typedef struct keel_row {
    keel_step step;
    uint64_t dropped_frames;                // steps lost just before this one
    const double *scalars;                  // [scalar_count]; keel_not_collected() where not set
    const bool *scalar_set;                 // [scalar_count]: distinguishes a NaN that was set from absence
    const double *f64[KEEL_OP_COUNT];       // [site_count] per f64 op; NULL where no site collects it
    const uint64_t *u64[KEEL_OP_COUNT];     // [site_count] per count op
    const double *micro_f64[KEEL_OP_COUNT]; // [micro_count][micro_site_count]; NULL when none
    const uint64_t *micro_u64[KEEL_OP_COUNT];
    const double *rank_f64[KEEL_OP_COUNT]; // [rank_series_count]; NULL when none
    const uint64_t *rank_u64[KEEL_OP_COUNT];
} keel_row;

// A scalar that was not set, and an f64 op that was not collected, is stored as this NaN; a NaN that was measured is
// stored as the ordinary quiet NaN. So absence and sickness differ in the store as well (h5py shows both as nan).
#define KEEL_NOT_COLLECTED_BITS UINT64_C(0x7ff800006b65656c)
double keel_not_collected(void);
bool keel_is_not_collected(double value); // by its bits
// The eight bytes that stand for OP of STATS in a row and in the store; and for OP where it was not collected.
uint64_t keel_op_bits(const keel_stats *stats, keel_op op);
uint64_t keel_op_absent(keel_op op);

// The value of an op at a site as double; keel_not_collected() where it was not collected.
double keel_row_value(const keel_row *row, keel_op op, uint32_t site);

// The same of the J-th series of a single rank.
double keel_row_rank_value(const keel_row *row, keel_op op, uint32_t j);

// Index of a scalar by name, or -1.
int32_t keel_run_scalar(const keel_run_info *info, const char *name);

// True if /micro/OP exists: a site with rows per micro-batch keeps OP.
bool keel_run_keeps_micro(const keel_run_info *info, keel_op op);

// Owner of the buffers of a row, sized for INFO, which it borrows. Opened with nothing collected.
typedef struct keel_row_buffer keel_row_buffer;
keel_status keel_row_buffer_open(const keel_run_info *info, keel_row_buffer **buffer);
void keel_row_buffer_close(keel_row_buffer *buffer);     // NULL is fine
size_t keel_row_buffer_bytes(const keel_run_info *info); // what open allocates
keel_row *keel_row_buffer_row(keel_row_buffer *buffer);  // its row, for as long as the buffer
void keel_row_buffer_clear(keel_row_buffer *buffer);     // nothing collected, step 0
// RANK_VALUES: of the series of single ranks, series by series, the bits of each op of its mask; NULL where none are
// asked for.
void keel_row_buffer_fill(keel_row_buffer *buffer, const keel_frame *merged, const uint64_t *rank_values,
                          uint64_t dropped_frames);
void keel_row_buffer_copy(keel_row_buffer *buffer, const keel_row *row); // ROW is of the same info
// For rows that do not come from a frame. The arrays that the row points to, or NULL; of f64 and of count ops.
void keel_row_buffer_set_scalar(keel_row_buffer *buffer, uint32_t scalar, double value);
double *keel_row_buffer_f64(keel_row_buffer *buffer, keel_op op);
uint64_t *keel_row_buffer_u64(keel_row_buffer *buffer, keel_op op);

#endif
