// keel_stats: what one pass over a tensor leaves of it. Mergeable: any split of a tensor merges to the statistics of
// the whole.
#ifndef KEEL_PROBE_STATS_H
#define KEEL_PROBE_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/dtype.h"
#include "probe/status.h"

KEEL_C_BEGIN

#define KEEL_RANK_NONE     UINT32_MAX
#define KEEL_SATURATE_AT   UINT64_C(65536)
#define KEEL_NOT_COLLECTED UINT64_MAX // a u64 op that was not collected

// Field groups: a site pays only for what it is asked.
enum {
    KEEL_FIELDS_BASE = 1u << 0,
    KEEL_FIELDS_HALF = 1u << 1,
    KEEL_FIELDS_PRECISION = 1u << 2,
    KEEL_FIELDS_CHECKSUM = 1u << 3,
    KEEL_FIELDS_FLAGS = 1u << 4, // nans, pos_infs, neg_infs alone; part of base
    KEEL_FIELDS_ALL = KEEL_FIELDS_BASE | KEEL_FIELDS_HALF | KEEL_FIELDS_PRECISION | KEEL_FIELDS_CHECKSUM,
};

typedef uint64_t keel_field_u64;
typedef double keel_field_f64;
typedef uint32_t keel_field_u32;
typedef int32_t keel_field_i32;

typedef struct keel_stats {
#define KEEL_STAT(name, type, group, merge, doc) keel_field_##type name;
#include "probe/stats_fields.def"
#undef KEEL_STAT
    uint32_t fields; // groups that were observed, KEEL_FIELDS_*; merge ands them where both sides observed something,
                     // else keeps the one
} keel_stats;

// Sums of x * 2^-exponent over finite values. The exponent follows from the greatest magnitude alone, so that every
// split of a tensor agrees on it: 0 from 2^-350 up to 2^350, where squares of doubles neither overflow nor vanish, else
// one of two others that bring the values there. The other dtypes never leave the middle.
typedef struct keel_moments {
    double count;
    double sum;
    double sum_sq;
    double m2; // sum of squares about the mean
    int32_t exponent;
} keel_moments;

// What is counted of magnitudes below a limit.
typedef enum keel_limit {
    KEEL_LIMIT_ZEROS,     // below the least that is not 0
    KEEL_LIMIT_NEAR_ZERO, // below the first that is not < eps
    KEEL_LIMIT_FLUSH,     // below the first that fp16 does not flush
    KEEL_LIMIT_NORMAL16,  // below the first that is not subnormal in fp16
    KEEL_LIMIT_NORMAL,    // below the least normal of the tensor's own dtype
    KEEL_LIMIT_COUNT,
    KEEL_LIMIT_SLOTS = 8, // a whole vector of 64 bits
} keel_limit;

// Magnitudes as bits without the sign, which are in the order of the values: of float for f32, f16, bf16 (which widen
// exactly), of double for f64.
typedef struct keel_limits {
    uint64_t end[KEEL_LIMIT_SLOTS]; // 0: not asked
    uint64_t greatest_end;
    uint64_t overflow16; // the first that overflows fp16
    uint64_t infinity;
} keel_limits;

// A set of limits (SET: bits of keel_limit) that a pass over floats is to count below. That of zeros comes first.
typedef struct keel_limit_list {
    uint32_t set, count;
    keel_limit which[KEEL_LIMIT_COUNT];
    uint32_t end[KEEL_LIMIT_COUNT];
} keel_limit_list;

typedef struct keel_stats_params {
    uint32_t fields; // KEEL_FIELDS_*
    double eps;      // near_zeros: |x| < eps
    double scale;    // half group: y = x * scale is what is rounded to fp16
} keel_stats_params;

// The empty record: the identity of the merge.
KEEL_API void keel_stats_clear(keel_stats *stats);

// Adds the N elements at DATA to STATS. DATA need not be aligned. N = 0 marks the groups as observed and counts
// nothing. One pass over memory; uses the best kernel for this CPU. Does not allocate, lock or call the system. Rank
// fields are left alone. HALF and PRECISION bring BASE with them, every group brings FLAGS; HALF is not observed where
// the scale is not positive and finite. Counts, extremes and checksum are exact, the same on every CPU and for every
// cut of a tensor. The sums are within 1e-6 of the sum of magnitudes (m2: of itself): float and 16-bit values are added
// 32 at a time as floats before they are added as doubles, so that other cuts differ by about 1e-8; doubles within
// 1e-12.
KEEL_API void keel_stats_observe(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data,
                                 size_t n);

// An observation in several calls, for pieces so small that what keel_stats_observe prepares in each call would cost as
// much as the piece. Begin, adds, end. What it holds is the kernels' own.
typedef struct keel_stats_stream {
    keel_stats part; // of the present chunk
    keel_moments moments;
    keel_moments plain; // sums that are to join MOMENTS, whose m2 follows from them
    keel_limits limits;
    uint64_t least_before;            // least magnitude of the block before, as bits
    uint64_t below[KEEL_LIMIT_COUNT]; // counts of the chunk, which are to join PART
    uint32_t needed[2];               // sets of limits that had to be counted below in the two blocks before
    keel_limit_list counting;
    keel_dtype dtype;
    uint32_t asked, fields; // groups; FIELDS: without those that can no longer grow
} keel_stats_stream;
KEEL_API void keel_stats_stream_begin(keel_stats_stream *stream, const keel_stats_params *params, keel_dtype dtype);
// The N elements at DATA: to STATS, which is complete after the end only; the same STATS at each call.
KEEL_API void keel_stats_stream_add(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n);
// The next N elements are known to be finite and nothing but FLAGS is asked: they need not be looked at.
static inline void keel_stats_stream_add_finite(keel_stats_stream *stream, keel_stats *stats, size_t n) {
    stats->n += n;
    stats->fields = stream->asked;
}
KEEL_API void keel_stats_stream_end(keel_stats_stream *stream, keel_stats *stats);

// INTO becomes the record of both tensors together. Associative; counts, min and max exact in any order; sums by
// compensated or pairwise update such that any merge order agrees within 1e-12 of the sum of magnitudes; m2 by the
// parallel formula of Chan, Golub and LeVeque (1979). Rank fields merge as well.
KEEL_API void keel_stats_merge(keel_stats *into, const keel_stats *from);

// Fills the rank fields from the record's own values, before a merge over ranks: norm_low = norm_high = norm of finite
// values, ... MICRO is left as observed. For a replica (index r of count R) replica_residual = c_r * checksum and, for
// r > 0, everything but the residual and the rank fields is cleared, so that copies count once.
KEEL_API void keel_stats_seal_rank(keel_stats *stats, uint32_t rank, uint32_t replica_index, uint32_t replica_count);

// Of a sealed record of one of several copies: equal for equal copies, whatever their index. 63 bits of the checksum.
KEEL_API uint64_t keel_stats_replica_print(const keel_stats *sealed, uint32_t replica_index, uint32_t replica_count);

// True if the record holds a NaN or an infinity.
static inline bool keel_stats_nonfinite(const keel_stats *s) {
    return (s->nans | s->pos_infs | s->neg_infs) != 0;
}

typedef enum keel_op {
#define KEEL_OP(name, type, need, doc) KEEL_OP_##name,
#include "probe/stats_ops.def"
#undef KEEL_OP
    KEEL_OP_COUNT
} keel_op;

typedef struct keel_op_info {
    const char *name;
    const char *doc;
    bool is_count;   // stored as u64
    uint32_t fields; // the group it needs
} keel_op_info;

KEEL_API const keel_op_info *keel_op_get(keel_op op);
// By name, as in the store ("norm"); KEEL_OP_COUNT if there is none.
KEEL_API keel_op keel_op_find(const char *name);

// The view of the record: NaN where undefined or its group was not observed. Counts come as double (exact below 2^53).
KEEL_API double keel_stats_view(const keel_stats *stats, keel_op op);
// The same for count ops, as stored: KEEL_NOT_COLLECTED where its group was not observed.
KEEL_API uint64_t keel_stats_view_count(const keel_stats *stats, keel_op op);

// Kernels, for tests and benchmarks: all agree with the scalar one.
typedef void keel_stats_kernel(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n);
typedef enum keel_isa { KEEL_ISA_SCALAR, KEEL_ISA_AVX2, KEEL_ISA_AVX512, KEEL_ISA_COUNT } keel_isa;
KEEL_API keel_stats_kernel *keel_stats_kernel_get(keel_isa isa); // NULL where this CPU lacks it
KEEL_API void keel_stats_observe_with(keel_stats_kernel *kernel, keel_stats *stats, const keel_stats_params *params,
                                      keel_dtype dtype, const void *data, size_t n);
KEEL_API keel_isa keel_isa_best(void);
KEEL_API const char *keel_isa_name(keel_isa isa); // "scalar", "avx2", "avx512"

KEEL_C_END

#endif
