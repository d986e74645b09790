#include "tools/bench_stats.h"

#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probe/stats.h"

// Pairs of measurements, and the bytes that one measurement touches at least: a small tensor is taken many times.
enum { PAIRS = 11 };
static const size_t MEASURED_BYTES = (size_t)256 << 20;

// Of this thread on a processor: what others take meanwhile is no part of it.
static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// The fastest that this CPU reads: whole vectors into several registers, combined by an operation that costs nothing
// beside the load.
__attribute__((target("avx512f"))) static uint64_t read_avx512(const unsigned char *at, size_t bytes) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        a = _mm512_or_si512(a, _mm512_loadu_si512(at + i));
        b = _mm512_or_si512(b, _mm512_loadu_si512(at + i + 64));
        c = _mm512_or_si512(c, _mm512_loadu_si512(at + i + 128));
        d = _mm512_or_si512(d, _mm512_loadu_si512(at + i + 192));
    }
    return (uint64_t)_mm512_reduce_or_epi64(_mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d)));
}

static uint64_t read_plain(const unsigned char *at, size_t bytes) {
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        a = _mm_or_si128(a, _mm_loadu_si128((const __m128i *)(at + i)));
        b = _mm_or_si128(b, _mm_loadu_si128((const __m128i *)(at + i + 16)));
        c = _mm_or_si128(c, _mm_loadu_si128((const __m128i *)(at + i + 32)));
        d = _mm_or_si128(d, _mm_loadu_si128((const __m128i *)(at + i + 48)));
    }
    return (uint64_t)_mm_cvtsi128_si64(_mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d)));
}

// Normal values by the sum of twelve uniform ones: the statistics do not care for the tails.
static void fill(unsigned char *at, size_t n, keel_dtype dtype) {
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 6; k++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += ((double)(state >> 40) + (double)((state >> 16) & 0xffffff)) * 0x1p-24;
        }
        const double value = 0.02 * sum;
        const float narrow = (float)value;
        const uint16_t half = dtype == KEEL_F16 ? keel_f16_from_f32(narrow) : keel_bf16_from_f32(narrow);
        const void *from = dtype == KEEL_F64 ? (const void *)&value : dtype == KEEL_F32 ? (const void *)&narrow : &half;
        const size_t size = keel_dtype_size(dtype);
        memcpy(at + i * size, from, size);
    }
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, PAIRS, sizeof *values, compare_doubles);
    return values[PAIRS / 2];
}

keel_status keel_bench_stats(size_t bytes, keel_dtype dtype, uint32_t fields, keel_bench_stats_result *out) {
    const size_t size = keel_dtype_size(dtype);
    if (size == 0 || bytes < size) return keel_fail(KEEL_ERR_USAGE, "bench stats: %zu bytes hold no element", bytes);
    const size_t n = bytes / size;
    unsigned char *memory = NULL;
    if (posix_memalign((void **)&memory, 4096, n * size))
        return keel_fail(KEEL_ERR_MEMORY, "bench stats: no memory for %zu bytes", bytes);
    fill(memory, n, dtype);

    const bool wide_vectors = keel_stats_kernel_get(KEEL_ISA_AVX512) != NULL;
    const keel_stats_params params = {.fields = fields, .eps = 1e-8, .scale = 1};
    const size_t repeats = 1 + MEASURED_BYTES / bytes;
    double read[PAIRS], observed[PAIRS], ratio[PAIRS];
    for (int pair = 0; pair < PAIRS; pair++) {
        const double start = seconds_now();
        for (size_t i = 0; i < repeats; i++) {
            const uint64_t read_bits = wide_vectors ? read_avx512(memory, n * size) : read_plain(memory, n * size);
            __asm__ volatile("" ::"r"(read_bits) : "memory"); // each read is wanted, also one like the one before
        }
        const double between = seconds_now();
        for (size_t i = 0; i < repeats; i++) {
            keel_stats stats;
            keel_stats_clear(&stats);
            keel_stats_observe(&stats, &params, dtype, memory, n);
        }
        const double end = seconds_now();
        const double gigabytes = 1e-9 * (double)(n * size) * (double)repeats;
        read[pair] = gigabytes / (between - start);
        observed[pair] = gigabytes / (end - between);
        ratio[pair] = observed[pair] / read[pair];
    }
    free(memory);
    *out = (keel_bench_stats_result){.read_gbps = median(read), .stats_gbps = median(observed), .ratio = median(ratio)};
    return KEEL_OK;
}
