// The backward by wgmma, in place of attention_hopper_backward.cu.
#define attention_hopper_backward right_backward
#include "kernels/cuda/attention/attention_hopper_backward.cu"
#undef attention_hopper_backward
#include "tests/simt/planted/planted.h"

void attention_hopper_backward(const attention_gradient<bf16> &p, launch_stream stream) {
  right_backward(with_planted("wgmma", p), stream);
}
