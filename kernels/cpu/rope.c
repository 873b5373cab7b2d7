// Rotary position embedding (Su et al. 2021) in Hugging Face's order: elements i and i + D/2 of a head
// are a pair, rotated by position * inv_freq[i]. Of a head whose first R elements alone are rotated, i and
// i + R/2 are. In place over the q and k columns of rows of q|k|v. B
// sequences of T positions, H heads, K key/value heads, D head dimension, Q = (H + 2K) * D. Which position a
// row has is kernels/row_map.h's; it counts from
// the start of its document.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"
#include "kernels/row_map.h"

#include <math.h>

enum { POSITIONS_PER_TASK = 8, HALF_MAX = 4096 };

typedef struct rotation {
  const fsdp_view *qkv;
  const fsdp_op_attrs *attrs;
  const int32_t *starts; // of documents; or NULL
  fsdp_row_map rows;
  float direction; // -1 rotates back: the gradient of a rotation is its inverse
} rotation;

static void rotate(const float *restrict cosine, const float *restrict sine, float *restrict low,
                   float *restrict high, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

static int64_t rotated(const fsdp_op_attrs *attrs) {
  return attrs->rotary_dim ? attrs->rotary_dim : attrs->head_dim;
}

static void find_angles(const rotation *r, int64_t position, float *cosine, float *sine) {
  for (int64_t i = 0; i < rotated(r->attrs) / 2; i++) {
    float angle = (float)position * r->attrs->inv_freq[i];
    cosine[i] = cosf(angle);
    sine[i] = r->direction * sinf(angle);
  }
}

// The angles of a position serve every head, and without documents every sequence, so a task is a few
// positions.
static void rotate_positions(void *argument, int64_t index, void *scratch) {
  const rotation *r = argument;
  const fsdp_op_attrs *attrs = r->attrs;
  int64_t D = attrs->head_dim, R = rotated(attrs), half = R / 2, heads = attrs->heads + attrs->kv_heads;
  int64_t Q = (heads + attrs->kv_heads) * D,
          last = fsdp_min_i64(attrs->seq, (index + 1) * POSITIONS_PER_TASK);
  float *cosine = scratch, *sine = scratch_after(cosine, half), *buffer = scratch_after(sine, half);
  for (int64_t t = index * POSITIONS_PER_TASK; t < last; t++) {
    const int64_t position = fsdp_row_position(&r->rows, t);
    for (int64_t b = 0; b < attrs->batch; b++) {
      const int64_t start = r->starts ? r->starts[b * attrs->documents + position] : 0;
      if (b == 0 || r->starts) find_angles(r, position - start, cosine, sine);
      for (int64_t head = 0; head < heads; head++) {
        int64_t first = fsdp_row_of(&r->rows, b, t) * Q + head * D;
        float *x = result(r->qkv, first, buffer);
        if (x == buffer) load_into(r->qkv, first, R, buffer);
        rotate(cosine, sine, x, x + half, half);
        store(r->qkv, first, R, x);
      }
    }
  }
}

static void rotate_all(const fsdp_kernel_call *call, const fsdp_view *qkv, float direction) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(rotated(attrs) % 2 == 0 && rotated(attrs) <= attrs->head_dim && rotated(attrs) / 2 <= HALF_MAX &&
                 attrs->inv_freq,
             "RoPE over %lld of head dimension %lld", (long long)rotated(attrs), (long long)attrs->head_dim);
  rotation r = {qkv, attrs, fsdp_kernel_starts(call), fsdp_row_map_of(call), direction};
  fsdp_pool_run(call->pool, blocks_of(attrs->seq, POSITIONS_PER_TASK), rotate_positions, &r);
}

static void run_rope(const fsdp_kernel_call *call, float direction) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t D = attrs->head_dim, N = attrs->batch * attrs->seq, Q = (attrs->heads + 2 * attrs->kv_heads) * D;
  const fsdp_view *qkv = open_operands(call, PART(0));
  // The v columns stay: of the last row only q and k belong to the range.
  if (N > 0) fsdp_kernel_report(call, 0, 0, N * Q - attrs->kv_heads * D, FSDP_UPDATE);
  rotate_all(call, qkv, direction);
}

void FSDP_CPU(rotate_back)(const fsdp_kernel_call *call, const fsdp_view *d_qkv) {
  rotate_all(call, d_qkv, -1.0f);
}

void FSDP_CPU(rope)(const fsdp_kernel_call *call) {
  run_rope(call, 1.0f);
}

void FSDP_CPU(rope_backward)(const fsdp_kernel_call *call) {
  run_rope(call, -1.0f);
}
