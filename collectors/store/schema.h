// Schema 1 of the store (docs/store.md), shared by writer, packer and reader: names, record types, datasets.
#ifndef KEEL_COLLECTORS_STORE_SCHEMA_H
#define KEEL_COLLECTORS_STORE_SCHEMA_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/incident.h"
#include "collectors/row.h"

enum { KEEL_SCHEMA = 1 };

#define KEEL_ATTRIBUTE_SCHEMA "keel_schema"
#define KEEL_ATTRIBUTE_ORIGIN "origin" // why the segment was begun: one of the three below
#define KEEL_ORIGIN_START     "start"
#define KEEL_ORIGIN_RESUME    "resume"   // by another process than the segment before
#define KEEL_ORIGIN_ROLLOVER  "rollover" // by the same process
// Only where the segment is packed.
#define KEEL_ATTRIBUTE_FIRST  "first_step"
#define KEEL_ATTRIBUTE_LAST   "last_step"
#define KEEL_ATTRIBUTE_RISING "rising" // 1: every step is greater than the one before it

#define KEEL_PATH_STEPS        "/steps"
#define KEEL_PATH_SCALARS      "/scalars"
#define KEEL_PATH_SCALAR_NAMES "/scalar_names"
#define KEEL_PATH_SITES        "/sites"
#define KEEL_PATH_MICRO_SITES  "/micro_sites"
#define KEEL_PATH_INCIDENTS    "/incidents"
#define KEEL_PATH_CONFIG       "/config_yaml"
#define KEEL_PATH_RANK_SERIES  "/rank_series"
// Only where the segment is not packed: of each row of each dataset, and of the incidents. A dataset has its column as
// an attribute.
#define KEEL_PATH_CHECKSUMS          "/checksums"          // [row, k]
#define KEEL_PATH_INCIDENT_CHECKSUMS "/incident_checksums" // [revision]
#define KEEL_ATTRIBUTE_CHECKSUM      "checksum_column"
// Of /config_yaml: its crc32.
#define KEEL_ATTRIBUTE_CRC32 "crc32"

enum { KEEL_STORED_SCALAR_BYTES = 64, KEEL_ENUM_NAME_BYTES = 24, KEEL_DATASET_PATH_BYTES = 64 };

// The groups of datasets of ops.
typedef enum keel_op_group {
    KEEL_GROUP_STATS, // [row, site]
    KEEL_GROUP_MICRO, // [row, micro_batch, k]
    KEEL_GROUP_RANKS, // [row, j]
    KEEL_GROUP_COUNT
} keel_op_group;
const char *keel_op_group_path(keel_op_group group);                                    // "/stats"
void keel_op_path(keel_op_group group, keel_op op, char path[KEEL_DATASET_PATH_BYTES]); // "/stats/norm"

// ---- records: the same bytes in memory and in the file, so that HDF5 has nothing to convert ----

typedef struct keel_step_record {
    uint64_t step, update, samples, first_batch, last_batch;
    double time_unix, seconds;
    uint64_t dropped_frames;
    uint64_t flags; // KEEL_STEP_*
} keel_step_record;

typedef struct keel_site_record {
    uint32_t id, order;
    int32_t layer, stage;
    uint32_t ndim, replica_count;
    uint64_t numel;
    uint64_t shape[KEEL_MAX_DIMS];
    char name[KEEL_SITE_NAME_BYTES];
    char quantity[KEEL_ENUM_NAME_BYTES];
    char module[KEEL_MODULE_NAME_BYTES];
    char dtype[KEEL_ENUM_NAME_BYTES];
    char layout[KEEL_ENUM_NAME_BYTES];
    char phase[KEEL_ENUM_NAME_BYTES];
} keel_site_record;

typedef struct keel_incident_record {
    uint32_t id, revision;
    int32_t rank;
    uint32_t open;
    uint64_t first_step, peak_step, last_step;
    double value, expected, score, confidence;
    char severity[KEEL_ENUM_NAME_BYTES];
    char rule[KEEL_RULE_BYTES];
    char series[KEEL_SERIES_BYTES];
    char site[KEEL_INCIDENT_SITE_BYTES];
    char cause[KEEL_CAUSE_BYTES];
    char message[KEEL_MESSAGE_BYTES];
} keel_incident_record;

typedef struct keel_mesh_record {
    uint32_t dp, tp, pp, ep;
} keel_mesh_record;

typedef enum keel_record_kind {
    KEEL_RECORD_STEP,
    KEEL_RECORD_SITE,
    KEEL_RECORD_INCIDENT,
    KEEL_RECORD_MESH,
    KEEL_RECORD_RANK_SERIES, // keel_rank_series
} keel_record_kind;

// Its compound type, to be closed by the caller; < 0 on failure.
hid_t keel_record_type(keel_record_kind kind);
size_t keel_record_bytes(keel_record_kind kind);
// True if the types are the same, or FOUND is a compound that has every member of WANTED with its type.
bool keel_type_fits(hid_t wanted, hid_t found);

void keel_step_to_record(const keel_row *row, keel_step_record *record);
void keel_step_from_record(const keel_step_record *record, keel_row *row);
void keel_site_to_record(const keel_site_info *site, keel_site_record *record);
void keel_incident_to_record(const keel_incident *incident, keel_incident_record *record);
// Texts in RECORD are made safe for a terminal. KEEL_ERR_FORMAT names PATH, ROW and what is wrong: a text without end,
// a name that is none, a number out of range.
keel_status keel_site_from_record(keel_site_record *record, const char *path, uint32_t row, keel_site_info *site);
keel_status keel_incident_from_record(keel_incident_record *record, const char *path, size_t row,
                                      keel_incident *incident);

// ---- datasets that grow by rows ----

typedef struct keel_growing {
    char path[KEEL_DATASET_PATH_BYTES];
    const char *doc;      // what it holds; kept as an attribute. NULL: nothing
    hid_t type;           // borrowed
    size_t element_bytes; // of TYPE
    int rank;             // 1: [row], 2: [row, column], 3: [row, micro_batch, column]
    hsize_t tail[2];      // its dimensions after the rows
    bool plain;           // not compressed where packed either: small, and every reading of a run reads it
} keel_growing;

// Columns of a row: 1, or tail; and micro-batches: 1 but for rank 3.
hsize_t keel_growing_columns(const keel_growing *growing);
hsize_t keel_growing_micros(const keel_growing *growing);
// Live: about 256 KiB, not compressed. Wide rather than high: fewer writes a row, and fewer rows that a segment's end
// leaves unused. Packed: [256, 16] of 8 bytes, shuffle and deflate, but for a plain one, and a checksum.
void keel_growing_chunk(const keel_growing *growing, bool packed, hsize_t chunk[3]);
// With ROWS rows, nothing allocated. *DATASET is the caller's.
keel_status keel_growing_create(hid_t file, const char *file_path, const keel_growing *growing, bool packed,
                                hsize_t rows, hid_t *dataset);

// ---- the parts that are written once ----

keel_status keel_schema_make_groups(hid_t file, const char *path);
// The groups, attributes, /sites, /scalar_names, /micro_sites, /rank_series and /config_yaml.
keel_status keel_schema_write_tables(hid_t file, const char *path, const keel_run_info *info, const char *origin);

#endif
