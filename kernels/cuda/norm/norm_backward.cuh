// What the gradients of LayerNorm and of RMSNorm share. Blocks walk rows that lie a grid apart, and leave
// their parts of d_weight and of d_bias in the workspace: those of all d_weight, then those of d_bias
// (sum_parts.cuh).
#pragma once

#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/cuda/sum_parts.cuh"

constexpr int threads_max = 512;

template <class T> struct norm_gradient {
  const T *h, *weight, *d_y;
  const float *mean, *rstd; // mean of LayerNorm, and so are bias_parts
  T *d_h;
  float *weight_parts, *bias_parts; // (P, C)
  int64_t N;
  int C;
  bool adds; // to d_h
};

// P; `gradients`: of how many parameters.
inline int64_t part_count_of(const fsdp_kernel_call *call, int gradients) {
  const int64_t C = call->attrs->channels;
  FSDP_CHECK(C <= INT32_MAX, "%s: rows of %lld channels are too long", fsdp_op_name(call->kind),
             (long long)C);
  return fsdp_kernel_workspace(call)->numel / (gradients * C);
}

// Operands: h, [mean,] rstd, weight, d_y, d_h.
template <class T, bool CENTERS>
norm_gradient<T> norm_gradient_of(const fsdp_kernel_call *call, int64_t parts) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = call->operands;
  norm_gradient<T> p = {};
  p.h = numbers_of<T>(call, 0);
  if (CENTERS) p.mean = data_of<float>(&o[1]);
  p.rstd = data_of<float>(&o[1 + CENTERS]);
  p.weight = numbers_of<T>(call, 2 + CENTERS);
  p.d_y = numbers_of<T>(call, 3 + CENTERS);
  p.d_h = numbers_of<T>(call, 4 + CENTERS);
  p.weight_parts = data_of<float>(fsdp_kernel_workspace(call));
  if (CENTERS) p.bias_parts = p.weight_parts + parts * attrs->channels;
  p.N = attrs->batch * attrs->seq;
  p.C = int(attrs->channels);
  p.adds = updates(&o[4 + CENTERS]);
  return p;
}

template <class T> bool takes_vectors(const norm_gradient<T> &p) {
  return takes_vectors<T>(p.C, p.h, p.weight, p.d_y, p.d_h, p.weight_parts, p.bias_parts);
}

// Launches the kernel, unless its blocks are too small for the rows.
template <int WIDTH, int CHUNKS, class T>
bool launch_rows(const fsdp_kernel_call *call, const norm_gradient<T> &p, int64_t parts,
                 void (*kernel)(norm_gradient<T>)) {
  const int64_t threads = row_threads<WIDTH, CHUNKS>(p.C);
  if (threads > threads_max) return false;
  launch({parts, int(threads), stream_of(call)}, kernel, p);
  return true;
}
