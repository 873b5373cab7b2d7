#include "runtime/base/dtype.h"
#include "tests/simt/simt.h"

namespace simt {

float ring_sum(const float *values, int ranks, int chunk, bool is_bf16) {
  float sum = values[(chunk + 1) % ranks];
  for (int hop = 2; hop <= ranks; hop++) {
    sum += values[(chunk + hop) % ranks];
    if (is_bf16) sum = fsdp_bf16_to_f32(fsdp_bf16_from_f32(sum));
  }
  return sum;
}

} // namespace simt
