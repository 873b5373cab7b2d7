// The forward by the general kernel, in place of attention_general.cu.
#define attention_general_forward right_forward
#include "kernels/cuda/attention/attention_general.cu"
#undef attention_general_forward
#include "tests/simt/planted/planted.h"

template <class T> void attention_general_forward(const attention_forward<T> &p, launch_stream stream) {
  right_forward(with_planted("general", p), stream);
}
template void attention_general_forward(const attention_forward<float> &p, launch_stream stream);
template void attention_general_forward(const attention_forward<bf16> &p, launch_stream stream);
