// Products grouped by expert by warpgroups, in place of grouped_hopper.cu: the weights' gradients are taken to
// have a row fewer than there are.
#define grouped_hopper right_hopper_products
#include "kernels/cuda/experts/grouped_hopper.cu"
#undef grouped_hopper
#include "tests/simt/planted/planted.h"

void grouped_hopper(const grouped_product<bf16> &p, launch_stream stream) {
  right_hopper_products(p, stream);
}

template <class G> void grouped_hopper(const grouped_gradient<bf16, G> &p, launch_stream stream) {
  grouped_gradient<bf16, G> given = p;
  if (is_planted("experts-wgmma")) given.shape.rows--;
  right_hopper_products(given, stream);
}
template void grouped_hopper(const grouped_gradient<bf16, float> &p, launch_stream stream);
template void grouped_hopper(const grouped_gradient<bf16, bf16> &p, launch_stream stream);
