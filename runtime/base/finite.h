// Finds values that are not finite.
#pragma once

#include "runtime/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// The index of the first NaN or infinity among `numel` values, or -1. Integers are always finite.
int64_t fsdp_first_not_finite(fsdp_dtype dtype, const void *values, int64_t numel);

// "nan", "inf" or "-inf": what value `index` is, if it is not finite.
const char *fsdp_not_finite_name(fsdp_dtype dtype, const void *values, int64_t index);

#ifdef __cplusplus
}
#endif
