// Rotary position embedding (Su et al. 2021) in Hugging Face's order: elements i and i + D/2 of a head
// are a pair, rotated by position * inv_freq[i]. Of a head whose first R elements alone are rotated, i and
// i + R/2 are. In place over the q and k columns of rows of q|k|v. B
// sequences of T positions, H heads, K key/value heads, D head dimension, Q = (H + 2K) * D. Which position a
// row has is kernels/row_map.h's; it counts from
// the start of its document.
#include "kernels/cpu/operand.h"
#include "kernels/row_map.h"

enum {
  POSITIONS_PER_TASK = 8,
  HALF_MAX = 4096,
  COLUMNS = 4096, // of heads that are converted together, about
};

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

// Cosine and sine of fp32 angles by their Taylor series in double precision, after whole quarter turns: to
// fp32's last place, in vector code, as calls of the library's would take longer than the rotations.
static void find_angles(const rotation *r, int64_t position, float *restrict cosine, float *restrict sine) {
  const double per_quarter = 0x1.45f306dc9c883p-1;   // 2 / pi
  const double quarter = 0x1.921fb544p+0;            // pi / 2, of which few bits: its multiples are exact
  const double quarter_rest = 0x1.0b4611a626331p-34; // the rest of it
  const double magic = 0x1.8p+52;                    // adding it rounds to an integer
  const float *inv_freq = r->attrs->inv_freq, direction = r->direction;
  const int64_t half = rotated(r->attrs) / 2;
  for (int64_t i = 0; i < half; i++) {
    const double angle = (double)((float)position * inv_freq[i]), shifted = angle * per_quarter + magic;
    const double turns = shifted - magic, x = (angle - turns * quarter) - turns * quarter_rest, y = x * x;
    double s = 1.0 / 6227020800, c = 1.0 / 479001600;
    s = s * y - 1.0 / 39916800, c = c * y - 1.0 / 3628800;
    s = s * y + 1.0 / 362880, c = c * y + 1.0 / 40320;
    s = s * y - 1.0 / 5040, c = c * y - 1.0 / 720;
    s = s * y + 1.0 / 120, c = c * y + 1.0 / 24;
    s = s * y - 1.0 / 6, c = c * y - 1.0 / 2;
    s = (s * y + 1) * x, c = c * y + 1;
    int64_t quarters; // in the low bits
    memcpy(&quarters, &shifted, sizeof quarters);
    const double of_cosine = quarters & 1 ? s : c, of_sine = quarters & 1 ? c : s;
    cosine[i] = (float)((quarters + 1) & 2 ? -of_cosine : of_cosine);
    sine[i] = direction * (float)(quarters & 2 ? -of_sine : of_sine);
  }
}

// The angles of a position serve every head, and without documents every sequence, so a task is a few
// positions.
static void rotate_positions(void *argument, int64_t index, void *scratch) {
  const rotation *r = argument;
  const fsdp_op_attrs *attrs = r->attrs;
  int64_t D = attrs->head_dim, half = rotated(attrs) / 2, heads = attrs->heads + attrs->kv_heads;
  int64_t Q = (heads + attrs->kv_heads) * D,
          last = fsdp_min_i64(attrs->seq, (index + 1) * POSITIONS_PER_TASK);
  const int64_t together = fsdp_max_i64(1, COLUMNS / D); // heads
  float *cosine = scratch, *sine = scratch_after(cosine, half), *buffer = scratch_after(sine, half);
  for (int64_t t = index * POSITIONS_PER_TASK; t < last; t++) {
    const int64_t position = fsdp_row_position(&r->rows, t);
    for (int64_t b = 0; b < attrs->batch; b++) {
      const int64_t start = r->starts ? r->starts[b * attrs->documents + position] : 0;
      if (b == 0 || r->starts) find_angles(r, position - start, cosine, sine);
      for (int64_t head = 0; head < heads; head += together) {
        const int64_t first = fsdp_row_of(&r->rows, b, t) * Q + head * D;
        const int64_t count = fsdp_min_i64(together, heads - head);
        float *x = result(r->qkv, first, buffer);
        if (x == buffer) load_into(r->qkv, first, count * D, buffer);
        for (int64_t k = 0; k < count; k++) rotate(cosine, sine, x + k * D, x + k * D + half, half);
        store(r->qkv, first, count * D, x);
      }
    }
  }
}

static void rotate_all(const fsdp_kernel_call *call, const fsdp_view *qkv, float direction) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(rotated(attrs) % 2 == 0 && rotated(attrs) <= attrs->head_dim && rotated(attrs) / 2 <= HALF_MAX &&
                 attrs->inv_freq,
             "RoPE over %lld of head dimension %lld", (long long)rotated(attrs), (long long)attrs->head_dim);
  rotation r = {qkv, attrs, fsdp_kernel_given(call, FSDP_GIVEN_BY_DOCUMENTS), fsdp_row_map_of(call),
                direction};
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
