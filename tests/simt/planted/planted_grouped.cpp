// Products grouped by expert on tensor cores, in place of grouped_tensor.cu: rows of factors are taken to be
// eight elements shorter than they are.
#define grouped_tensor right_products
#include "kernels/cuda/experts/grouped_tensor.cu"
#undef grouped_tensor
#include "tests/simt/planted/planted.h"

void grouped_tensor(const grouped_product<bf16> &p, launch_stream stream) {
  grouped_product<bf16> given = p;
  if (is_planted("experts-mma")) (p.is_input ? given.shape.out : given.shape.in) -= 8;
  right_products(given, stream);
}

template <class G> void grouped_tensor(const grouped_gradient<bf16, G> &p, launch_stream stream) {
  right_products(p, stream);
}
template void grouped_tensor(const grouped_gradient<bf16, float> &p, launch_stream stream);
template void grouped_tensor(const grouped_gradient<bf16, bf16> &p, launch_stream stream);
