// GELU (Hendrycks and Gimpel 2016) in GPT-2's form: y = x/2 * (1 + tanh(u)),
// u = sqrt(2/pi) * (x + 0.044715 x^3). As 1 + tanh(u) = 2 * sigmoid(2u), y = x * sigmoid(2u): nothing
// overflows or cancels.
#include "kernels/cpu/operand.h"

enum { CHUNK = 1024 }; // elements at a time, so that a converted chunk stays in the first-level cache

#define CUBIC  0.044715f
#define DOUBLE 1.5957691216f // 2 * sqrt(2/pi)
#define FAR    16.0f         // beyond it the sigmoid is 0 or 1 in fp32, and x^2 would overflow at last

typedef struct activation {
  const fsdp_view *x, *y, *d_y; // backward: x's gradient takes its place
  int64_t numel;
} activation;

FSDP_INLINE fsdp_vf clamp(fsdp_vf x) {
  const fsdp_vf far = vf_set(FAR);
  return vf_max(vf_min(x, far), -far);
}

FSDP_INLINE fsdp_vf sigmoid(fsdp_vf near) {
  return 1.0f / (1.0f + vf_exp(near * -DOUBLE * (1.0f + CUBIC * (near * near))));
}

FSDP_INLINE fsdp_vf activate_vector(fsdp_vf x) {
  return x * sigmoid(clamp(x));
}

// d/dx of x * s, s = sigmoid(2u): s + x * s * (1 - s) * 2u'.
FSDP_INLINE fsdp_vf slope(fsdp_vf x) {
  fsdp_vf near = clamp(x), s = sigmoid(near);
  return s + near * s * (1.0f - s) * DOUBLE * (1.0f + 3 * CUBIC * (near * near));
}

static void forward_chunk(void *argument, int64_t index, void *scratch) {
  const activation *k = argument;
  int64_t first = index * CHUNK, count = fsdp_min_i64(CHUNK, k->numel - first);
  float *buffer = scratch;
  const float *x = load_vectors(k->x, first, count, buffer);
  float *y = result_vectors(k->y, first, count, buffer + CHUNK);
  for (int64_t i = 0; i < count; i += FSDP_LANES) vf_store(y + i, activate_vector(vf_load(x + i)));
  store(k->y, first, count, y);
}

void FSDP_CPU(gelu)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  activation k = {.x = &o[0], .y = &o[1], .numel = o[0].numel};
  fsdp_pool_run(call->pool, blocks_of(k.numel, CHUNK), forward_chunk, &k);
}

static void backward_chunk(void *argument, int64_t index, void *scratch) {
  const activation *k = argument;
  int64_t first = index * CHUNK, count = fsdp_min_i64(CHUNK, k->numel - first);
  float *buffer = scratch;
  const float *x = load_vectors(k->x, first, count, buffer);
  const float *d_y = load_vectors(k->d_y, first, count, buffer + CHUNK);
  float *d_x = result_vectors(k->x, first, count, buffer + 2 * CHUNK);
  for (int64_t i = 0; i < count; i += FSDP_LANES) vf_store(d_x + i, vf_load(d_y + i) * slope(vf_load(x + i)));
  store(k->x, first, count, d_x);
}

void FSDP_CPU(gelu_backward)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  activation k = {.d_y = &o[0], .x = &o[1], .numel = o[0].numel};
  fsdp_pool_run(call->pool, blocks_of(k.numel, CHUNK), backward_chunk, &k);
}
