// Element types of observed tensors, and exact conversions.
#ifndef KEEL_PROBE_DTYPE_H
#define KEEL_PROBE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

KEEL_C_BEGIN

typedef enum keel_dtype { KEEL_F32, KEEL_F64, KEEL_F16, KEEL_BF16, KEEL_DTYPE_COUNT } keel_dtype;

KEEL_API size_t keel_dtype_size(keel_dtype dtype);      // bytes of one element
KEEL_API const char *keel_dtype_name(keel_dtype dtype); // "float32", "float64", "float16", "bfloat16"

// IEEE round to nearest even; NaN stays NaN (quiet), values beyond the largest finite become Inf.
KEEL_API uint16_t keel_f16_from_f32(float value);
KEEL_API uint16_t keel_bf16_from_f32(float value);
// Exact.
KEEL_API float keel_f16_to_f32(uint16_t bits);
KEEL_API float keel_bf16_to_f32(uint16_t bits);

KEEL_C_END

#endif
