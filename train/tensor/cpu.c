#include "train/tensor/cpu.h"

#include <stddef.h>

#if defined(__x86_64__)
// This function must itself run on a CPU that lacks them.
__attribute__((target("no-avx"))) static const char *missing(void) {
    __builtin_cpu_init();
#ifdef __AVX__
    if (!__builtin_cpu_supports("avx")) return "AVX";
#endif
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2")) return "AVX2";
#endif
#ifdef __FMA__
    if (!__builtin_cpu_supports("fma")) return "FMA";
#endif
#ifdef __BMI2__
    if (!__builtin_cpu_supports("bmi2")) return "BMI2";
#endif
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f")) return "AVX512F";
#endif
#ifdef __AVX512VL__
    if (!__builtin_cpu_supports("avx512vl")) return "AVX512VL";
#endif
#ifdef __AVX512BW__
    if (!__builtin_cpu_supports("avx512bw")) return "AVX512BW";
#endif
#ifdef __AVX512DQ__
    if (!__builtin_cpu_supports("avx512dq")) return "AVX512DQ";
#endif
#ifdef __AVX512VBMI__
    if (!__builtin_cpu_supports("avx512vbmi")) return "AVX512VBMI";
#endif
#ifdef __AVX512VNNI__
    if (!__builtin_cpu_supports("avx512vnni")) return "AVX512VNNI";
#endif
    return NULL;
}
#else
static const char *missing(void) {
    return NULL;
}
#endif

keel_status keel_cpu_check(void) {
    const char *name = missing();
    if (!name) return KEEL_OK;
    return keel_fail(KEEL_ERR_USAGE,
                     "this trainer was compiled for a CPU with %s, which this one lacks: build it here, or with "
                     "-DKEEL_TRAIN_MARCH=x86-64-v2",
                     name);
}
