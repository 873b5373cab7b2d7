// The forward by mma, in place of attention_tensor.cu.
#define attention_tensor_forward right_forward
#include "kernels/cuda/attention/attention_tensor.cu"
#undef attention_tensor_forward
#include "tests/simt/planted/planted.h"

void attention_tensor_forward(const attention_forward<bf16> &p, launch_stream stream) {
  right_forward(with_planted("mma", p), stream);
}
