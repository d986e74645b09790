#include "train/tensor/blas.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CORE_VARIABLE "OPENBLAS_CORETYPE"
#define MARK_VARIABLE "KEEL_BLAS_CHOSEN"

// OpenBLAS's names of its x86 kernels, by the vectors they use.
typedef struct core_level {
    const char *name;
    int level; // 0: SSE, 1: AVX, 2: AVX2 and FMA, 3: AVX-512
} core_level;

static const core_level cores[] = {
    {"Katmai", 0},         {"Coppermine", 0},  {"Northwood", 0},    {"Prescott", 0},   {"Banias", 0},
    {"Atom", 0},           {"Core2", 0},       {"Penryn", 0},       {"Dunnington", 0}, {"Nehalem", 0},
    {"Athlon", 0},         {"Opteron", 0},     {"Opteron_SSE3", 0}, {"Barcelona", 0},  {"Nano", 0},
    {"Bobcat", 0},         {"Sandybridge", 1}, {"Bulldozer", 1},    {"Piledriver", 1}, {"Steamroller", 1},
    {"Excavator", 1},      {"Haswell", 2},     {"Zen", 2},          {"SkylakeX", 3},   {"Cooperlake", 3},
    {"SapphireRapids", 3},
};

static int level_of(const char *core) {
    for (size_t i = 0; core && i < sizeof cores / sizeof *cores; i++)
        if (!strcasecmp(core, cores[i].name)) return cores[i].level;
    return -1;
}

bool keel_blas_is_below(const char *core, const char *expected) {
    int have = level_of(core), want = level_of(expected);
    return have >= 0 && have < want;
}

const char *keel_blas_core(void) {
    return openblas_get_corename();
}

const char *keel_blas_core_expected(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    // Of AMD's CPUs with AVX-512 the first only split such vectors in two: what OpenBLAS runs there is right.
    if (avx2 && __builtin_cpu_is("amd")) return "Zen";
    // Cooperlake and SapphireRapids differ in the kernels of bfloat16 alone.
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (avx2) return "Haswell";
    if (__builtin_cpu_supports("avx")) return "Sandybridge";
#endif
    return NULL;
}

void keel_blas_choose_for(char **argv, const char *core, const char *expected) {
    if (getenv(MARK_VARIABLE) || getenv(CORE_VARIABLE) || !keel_blas_is_below(core, expected)) return;
    if (setenv(CORE_VARIABLE, expected, 1) || setenv(MARK_VARIABLE, "1", 1)) return;
    execv("/proc/self/exe", argv);
    keel_log(KEEL_LOG_WARNING, "OpenBLAS runs %s kernels where %s is possible, and the program cannot start again: %s",
             core, expected, strerror(errno));
    unsetenv(CORE_VARIABLE);
}

void keel_blas_choose(char **argv) {
    keel_blas_choose_for(argv, keel_blas_core(), keel_blas_core_expected());
}

// Values in [-1, 1) without a pattern that an error in the order of elements would keep.
static void fill(float *x, size_t n, unsigned state) {
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static keel_status check_product(bool transpose_a, bool transpose_b) {
    // Odd sizes beyond a kernel's own, so that its edges are tried.
    enum { M = 67, N = 75, K = 131 };
    static const float alpha = 1, beta = 0;
    float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * K * N), *c = malloc(sizeof(float) * M * N);
    keel_status status = KEEL_OK;
    if (!a || !b || !c) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory to check BLAS");
        goto done;
    }
    fill(a, (size_t)M * K, 1);
    fill(b, (size_t)K * N, 2);
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, M, N,
                K, alpha, a, transpose_a ? M : K, b, transpose_b ? K : N, beta, c, N);
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            double sum = 0;
            for (size_t p = 0; p < K; p++)
                sum += (double)a[transpose_a ? p * M + i : i * K + p] * (double)b[transpose_b ? j * K + p : p * N + j];
            if (fabs((double)c[i * N + j] - sum) <= 1e-4) continue;
            status =
                keel_fail(KEEL_ERR_FORMAT,
                          "OpenBLAS's %s kernels compute wrong products (%g instead of %g); set %s to another core",
                          keel_blas_core(), (double)c[i * N + j], sum, CORE_VARIABLE);
            goto done;
        }
done:
    free(a);
    free(b);
    free(c);
    return status;
}

keel_status keel_blas_check(void) {
    const char *core = keel_blas_core(), *expected = keel_blas_core_expected();
    if (openblas_get_parallel() != OPENBLAS_OPENMP)
        keel_log(KEEL_LOG_WARNING,
                 "this OpenBLAS is not built for OpenMP: its threads and the trainer's share the cores");
    if (keel_blas_is_below(core, expected))
        keel_log(KEEL_LOG_WARNING, "OpenBLAS runs %s kernels; this CPU can do %s", core, expected);
    for (int form = 0; form < 4; form++) {
        keel_status status = check_product(form & 1, form & 2);
        if (status != KEEL_OK) return status;
    }
    return KEEL_OK;
}

char *keel_blas_describe(void) {
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
    char name[32] = "", version[32] = "", *text;
    if (sscanf(openblas_get_config(), "%31s %31s", name, version) < 2) version[0] = 0;
    int threads = openblas_get_num_threads();
    int n = asprintf(&text, "%s %s, %s kernels, %d thread%s", name, version, keel_blas_core(), threads,
                     threads == 1 ? "" : "s");
    if (n >= 0) return text;
    (void)keel_fail(KEEL_ERR_MEMORY, "no memory to describe BLAS");
    return NULL;
}
