// Values that are not finite: where the first of them is.
#pragma once

#include "runtime/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// The index of the first NaN or infinity among `elems` values, or -1; of integers none is.
int64_t fsdp_first_not_finite(fsdp_dtype dtype, const void *values, int64_t numel);

// "nan", "inf" or "-inf": what value `index` is, where it is not finite.
const char *fsdp_not_finite_name(fsdp_dtype dtype, const void *values, int64_t index);

#ifdef __cplusplus
}
#endif
