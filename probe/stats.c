#include "probe/stats.h"

#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "probe/fp_guard.h"
#include "probe/stats_kernel.h"
#include "probe/stats_moments.h"

void keel_stats_clear(keel_stats *stats) {
    memset(stats, 0, sizeof *stats); // the padding too: records travel as bytes
    stats->min = stats->abs_min = stats->norm_low = INFINITY;
    stats->max = stats->norm_high = -INFINITY;
    stats->rank_low = stats->rank_high = stats->rank_nonfinite = stats->micro_nonfinite = KEEL_RANK_NONE;
    stats->replica_rank = stats->replica_peer = KEEL_RANK_NONE;
}

// ---- kernels ----

static bool supported(keel_isa isa) {
    // The compiler's run-time asks the operating system too: wide registers that it does not save do not count.
    switch (isa) {
    case KEEL_ISA_SCALAR:
        return true;
    case KEEL_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); // F16C is older than both
    case KEEL_ISA_AVX512:
        return supported(KEEL_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case KEEL_ISA_COUNT:
        break;
    }
    return false;
}

static keel_stats_kernel *const kernels[KEEL_ISA_COUNT] = {
    [KEEL_ISA_SCALAR] = keel_stats_scalar,
    [KEEL_ISA_AVX2] = keel_stats_avx2,
    [KEEL_ISA_AVX512] = keel_stats_avx512,
};

keel_stats_kernel *keel_stats_kernel_get(keel_isa isa) {
    return supported(isa) ? kernels[isa] : NULL;
}

keel_isa keel_isa_best(void) {
    unsigned isa = KEEL_ISA_COUNT - 1;
    while (!supported((keel_isa)isa)) isa--;
    return (keel_isa)isa;
}

const char *keel_isa_name(keel_isa isa) {
    switch (isa) {
    case KEEL_ISA_SCALAR:
        return "scalar";
    case KEEL_ISA_AVX2:
        return "avx2";
    case KEEL_ISA_AVX512:
        return "avx512";
    case KEEL_ISA_COUNT:
        break;
    }
    return "unknown";
}

static keel_stats_kernel *best_kernel(void) {
    static _Atomic(keel_stats_kernel *) chosen;
    keel_stats_kernel *kernel = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!kernel) {
        kernel = kernels[keel_isa_best()];
        atomic_store_explicit(&chosen, kernel, memory_order_relaxed);
    }
    return kernel;
}

// True if the squares of the next values may be subnormal floats, by the least magnitude of the block before.
static bool may_be_tiny(const keel_stats_stream *stream) {
    const uint64_t harmless = 0x20000000; // 2^-63
    return (stream->fields & KEEL_FIELDS_BASE) && stream->dtype != KEEL_F64 &&
           (stream->least_before < harmless || stream->least_before > KEEL_F32_INF);
}

// Tiny float results are flushed, which the kernels allow for, since some CPUs take a hundred cycles for each.
static void run_kernel(keel_stats_kernel *kernel, keel_stats_stream *stream, keel_stats *stats, const void *data,
                       size_t n) {
    const unsigned wanted = may_be_tiny(stream) ? KEEL_FP_DEFAULT | _MM_FLUSH_ZERO_ON : KEEL_FP_DEFAULT;
    const unsigned control = keel_fp_enter(wanted);
    kernel(stream, stats, data, n);
    keel_fp_leave(control, wanted);
}

static void begin(keel_stats_stream *stream, const keel_stats_params *params, keel_dtype dtype) {
    const uint32_t fields = keel_stats_fields(params);
    keel_stats_clear(&stream->part);
    stream->moments = stream->plain = (keel_moments){0};
    stream->limits = keel_limits_of(params, fields, dtype);
    stream->least_before = UINT64_MAX;
    memset(stream->below, 0, sizeof stream->below);
    stream->needed[0] = stream->needed[1] = 0;
    stream->counting = (keel_limit_list){0};
    stream->dtype = dtype;
    stream->asked = stream->fields = fields;
}

void keel_stats_stream_begin(keel_stats_stream *stream, const keel_stats_params *params, keel_dtype dtype) {
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT);
    begin(stream, params, dtype);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

void keel_stats_stream_add(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n) {
    run_kernel(best_kernel(), stream, stats, data, n);
}

void keel_stats_stream_end(keel_stats_stream *stream, keel_stats *stats) {
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT);
    if (stream->part.fields) keel_stream_close(stream, stats);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

void keel_stats_observe_with(keel_stats_kernel *kernel, keel_stats *stats, const keel_stats_params *params,
                             keel_dtype dtype, const void *data, size_t n) {
    keel_stats_stream stream;
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT);
    begin(&stream, params, dtype);
    run_kernel(kernel, &stream, stats, data, n);
    keel_stats_stream_end(&stream, stats);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

void keel_stats_observe(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data,
                        size_t n) {
    keel_stats_observe_with(best_kernel(), stats, params, dtype, data, n);
}

// ---- merge ----

static uint32_t merged_fields(uint32_t a, uint32_t b) {
    return a && b ? a & b : a | b;
}

static uint64_t saturating_sum(uint64_t a, uint64_t b) {
    const uint64_t sum = a + b;
    return sum < KEEL_SATURATE_AT ? sum : KEEL_SATURATE_AT;
}

#define MERGE_sum(name) into->name += from->name;
#define MERGE_min(name)                                                                                                \
    if (from->name < into->name) into->name = from->name;
#define MERGE_max(name)                                                                                                \
    if (from->name > into->name) into->name = from->name;
#define MERGE_saturate(name) into->name = saturating_sum(into->name, from->name);
#define MERGE_moment(name)   // together, below
#define MERGE_owner(name)    // before the value it follows

// The owner of the value that wins; of equal ones the lowest rank.
static uint32_t merged_owner(double into_value, uint32_t into_owner, double from_value, uint32_t from_owner,
                             bool greatest) {
    if (into_value == from_value) return into_owner < from_owner ? into_owner : from_owner;
    return (from_value > into_value) == greatest ? from_owner : into_owner;
}

void keel_stats_merge(keel_stats *into, const keel_stats *from) {
    keel_moments moments = keel_moments_of(into);
    const keel_moments more = keel_moments_of(from);
    keel_moments_merge(&moments, &more);
    into->rank_low = merged_owner(into->norm_low, into->rank_low, from->norm_low, from->rank_low, false);
    into->rank_high = merged_owner(into->norm_high, into->rank_high, from->norm_high, from->rank_high, true);
#define KEEL_STAT(name, type, group, merge, doc) MERGE_##merge(name)
#include "probe/stats_fields.def"
#undef KEEL_STAT
    into->sum = moments.sum;
    into->sum_sq = moments.sum_sq;
    into->m2 = moments.m2;
    into->exponent = moments.exponent;
    into->fields = merged_fields(into->fields, from->fields);
}

// ---- ranks ----

// 64 well mixed bits of X: the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// c_r = g(r) - g(r + 1 mod R), so that they sum to 0. The low bits of g make every c_r odd, hence any single difference
// visible; with an odd number of replicas one of them must be even, and is 2 mod 4.
static uint64_t replica_potential(uint32_t r, uint32_t count) {
    const uint64_t high = mix(r) & ~UINT64_C(3);
    if (r % 2 == 1) return high | 1;
    return r > 0 && r == count - 1 ? high | 2 : high;
}

static uint64_t replica_factor(uint32_t r, uint32_t count) {
    return replica_potential(r, count) - replica_potential((r + 1) % count, count);
}

void keel_stats_seal_rank(keel_stats *stats, uint32_t rank, uint32_t replica_index, uint32_t replica_count) {
    if (stats->fields == 0) return;
    stats->rank_parts = 1;
    if (keel_stats_nonfinite(stats)) stats->rank_nonfinite = rank;
    if ((stats->fields & KEEL_FIELDS_BASE) && keel_stats_finite_count(stats) > 0) {
        const double norm = ldexp(sqrt(stats->sum_sq), stats->exponent);
        stats->norm_low = stats->norm_high = norm;
        stats->rank_low = stats->rank_high = rank;
        if (stats->sum_sq > 0) {
            const double log_norm = 0.5 * log(stats->sum_sq) + stats->exponent * M_LN2;
            stats->log_norm_sum = log_norm;
            stats->log_norm_sum_sq = log_norm * log_norm;
            stats->log_norm_ranks = 1;
        }
    }
    if (replica_count > 1) stats->replica_residual = replica_factor(replica_index, replica_count) * stats->checksum;
    if (replica_index == 0) return;

    keel_stats copy;
    keel_stats_clear(&copy);
#define KEEL_STAT(name, type, group, merge, doc) COPY_##group(name)
#define COPY_base(name)
#define COPY_half(name)
#define COPY_precision(name)
#define COPY_checksum(name)
#define COPY_rank(name) copy.name = stats->name;
#include "probe/stats_fields.def"
#undef KEEL_STAT
    *stats = copy;
}

// The inverse of an odd number mod 2^64, by Newton's method: each round doubles the bits that are right, 3 at first.
static uint64_t inverse(uint64_t odd) {
    uint64_t x = odd;
    for (int round = 0; round < 5; round++) x *= 2 - odd * x;
    return x;
}

uint64_t keel_stats_replica_print(const keel_stats *sealed, uint32_t replica_index, uint32_t replica_count) {
    const uint64_t factor = replica_factor(replica_index, replica_count);
    return factor % 2 ? 2 * sealed->replica_residual * inverse(factor) : sealed->replica_residual * inverse(factor / 2);
}

// ---- views ----

static const keel_op_info ops[KEEL_OP_COUNT] = {
#define NEED_base      KEEL_FIELDS_BASE
#define NEED_half      KEEL_FIELDS_HALF
#define NEED_precision KEEL_FIELDS_PRECISION
#define NEED_checksum  KEEL_FIELDS_CHECKSUM
#define NEED_flags     KEEL_FIELDS_FLAGS
#define COUNT_f64      false
#define COUNT_u64      true
#define KEEL_OP(op, type, need, text)                                                                                  \
    [KEEL_OP_##op] = {.name = #op, .doc = (text), .is_count = COUNT_##type, .fields = NEED_##need},
#include "probe/stats_ops.def"
#undef KEEL_OP
};

const keel_op_info *keel_op_get(keel_op op) {
    return (unsigned)op < KEEL_OP_COUNT ? &ops[op] : NULL;
}

keel_op keel_op_find(const char *name) {
    unsigned op = 0;
    while (op < KEEL_OP_COUNT && strcmp(ops[op].name, name) != 0) op++;
    return (keel_op)op;
}

static uint64_t rank_or_none(uint32_t rank) {
    return rank == KEEL_RANK_NONE ? KEEL_NOT_COLLECTED : rank;
}

uint64_t keel_stats_view_count(const keel_stats *s, keel_op op) {
    // Known also where only a copy that does not count was looked at.
    if (op == KEEL_OP_rank_nonfinite) return rank_or_none(s->rank_nonfinite);
    if (op == KEEL_OP_micro_nonfinite) return rank_or_none(s->micro_nonfinite);
    if (!(s->fields & ops[op].fields)) return KEEL_NOT_COLLECTED;
    switch (op) {
    case KEEL_OP_subnormals:
        return s->subnormals;
    case KEEL_OP_nans:
        return s->nans;
    case KEEL_OP_infs:
        return s->pos_infs + s->neg_infs;
    case KEEL_OP_not_bf16:
        return s->not_bf16;
    case KEEL_OP_not_fp16:
        return s->not_fp16;
    case KEEL_OP_not_tf32:
        return s->not_tf32;
    case KEEL_OP_rank_low:
        return rank_or_none(s->rank_low);
    case KEEL_OP_rank_high:
        return rank_or_none(s->rank_high);
    case KEEL_OP_replica_residual:
        return s->replica_residual;
    case KEEL_OP_replica_rank:
        return rank_or_none(s->replica_rank);
    case KEEL_OP_replica_peer:
        return rank_or_none(s->replica_peer);
    default:
        return KEEL_NOT_COLLECTED;
    }
}

// COUNT / OF, NaN of nothing.
static double share(double count, double of) {
    return of > 0 ? count / of : NAN;
}

static double spread(double sum, double sum_sq, double count) {
    if (!(count > 0)) return NAN;
    const double variance = sum_sq / count - sum / count * (sum / count);
    return variance > 0 ? sqrt(variance) : 0;
}

static double finite_or_nan(double value) {
    return isfinite(value) ? value : NAN;
}

double keel_stats_view(const keel_stats *s, keel_op op) {
    if (ops[op].is_count) {
        const uint64_t count = keel_stats_view_count(s, op);
        return count == KEEL_NOT_COLLECTED ? NAN : (double)count;
    }
    if (!(s->fields & ops[op].fields)) return NAN;
    const double n = (double)s->n;
    const double finite = keel_stats_finite_count(s);
    const double nonzero = finite - (double)s->zeros;
    // A sick tensor must not look healthy: what a NaN or Inf would spoil is NaN, also where only a copy that does not
    // count, on another rank, holds it.
    const double healthy = keel_stats_nonfinite(s) || s->rank_nonfinite != KEEL_RANK_NONE ? NAN : n;
    const double ranks = (double)s->log_norm_ranks;
    switch (op) {
    case KEEL_OP_norm:
        return healthy > 0 ? ldexp(sqrt(s->sum_sq), s->exponent) : NAN;
    case KEEL_OP_norm_finite:
        return finite > 0 ? ldexp(sqrt(s->sum_sq), s->exponent) : NAN;
    case KEEL_OP_max:
        return finite_or_nan(s->max);
    case KEEL_OP_min:
        return finite_or_nan(s->min);
    case KEEL_OP_abs_min:
        return finite_or_nan(s->abs_min);
    case KEEL_OP_mean:
        return ldexp(share(s->sum, healthy), s->exponent);
    case KEEL_OP_std:
        return ldexp(sqrt(share(s->m2, healthy)), s->exponent);
    case KEEL_OP_rms:
        return ldexp(sqrt(share(s->sum_sq, healthy)), s->exponent);
    case KEEL_OP_zeros:
        return share((double)s->zeros, n);
    case KEEL_OP_near_zero:
        return share((double)s->near_zeros, n);
    case KEEL_OP_underflow:
        return share((double)s->fp16_flush, nonzero);
    case KEEL_OP_fp16_subnormal:
        return share((double)s->fp16_subnormal, nonzero);
    case KEEL_OP_overflow:
        return share((double)s->fp16_overflow, nonzero);
    case KEEL_OP_norm_low:
        return s->rank_low == KEEL_RANK_NONE ? NAN : s->norm_low;
    case KEEL_OP_norm_high:
        return s->rank_high == KEEL_RANK_NONE ? NAN : s->norm_high;
    case KEEL_OP_log_norm_mean:
        return share(s->log_norm_sum, ranks);
    case KEEL_OP_log_norm_std:
        return spread(s->log_norm_sum, s->log_norm_sum_sq, ranks);
    default:
        return NAN;
    }
}
