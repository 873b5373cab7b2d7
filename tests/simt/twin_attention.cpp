// Causal attention with grouped key/value heads, both directions.
#include "tests/simt/twin.h"

namespace {

struct heads {
  int64_t B, T, H, K, D;
};

// Groups of 1, 4 and 8; sequences below, at and above a tile; head dimensions that fill a tile and that do
// not.
const heads shapes[] = {{1, 1, 1, 1, 64},   {3, 17, 4, 1, 64},   {1, 128, 8, 8, 64}, {1, 1000, 1, 1, 64},
                        {1, 1, 8, 1, 80},   {1, 128, 4, 1, 80},  {3, 17, 8, 1, 80},  {1, 1000, 1, 1, 80},
                        {1, 17, 8, 8, 128}, {1, 128, 8, 1, 128}, {3, 65, 4, 1, 128}, {1, 1000, 1, 1, 128}};
// Taken by the general kernels alone.
const heads odd_shapes[] = {
    {1, 33, 2, 1, 20}, {2, 17, 2, 2, 2}, {1, 40, 1, 1, 160}, {1, 19, 4, 1, 256}, {1, 9, 1, 1, 7}};

void forward_and_backward(fsdp_dtype dtype, const heads &s) {
  const int64_t N = s.B * s.T, Q = (s.H + 2 * s.K) * s.D;
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.heads = s.H;
  attrs.kv_heads = s.K;
  attrs.head_dim = s.D;
  twin_case c = twin_of(FSDP_OP_ATTENTION, attrs, dtype);
  const std::string shape = " B" + std::to_string(s.B) + " T" + std::to_string(s.T) + " H" +
                            std::to_string(s.H) + " K" + std::to_string(s.K) + " D" + std::to_string(s.D);
  c.name += shape;
  twin_input(&c, dtype, N * Q, 1.5); // some rows are nearly one-hot
  twin_output(&c, dtype, N * s.H * s.D);
  twin_output(&c, FSDP_F32, N * s.H);
  const std::vector<std::vector<unsigned char>> results = twin_check(c);
  twin_case back = twin_of(FSDP_OP_ATTENTION_BACKWARD, attrs, dtype);
  back.name += shape;
  back.operands = {c.operands[0], c.operands[1], c.operands[2]};
  for (size_t i = 1; i < 3; i++) { // what the CPU's forward made
    back.operands[i].initial = results[i];
    back.operands[i].access = FSDP_READ;
  }
  twin_input(&back, dtype, N * s.H * s.D);
  twin_output(&back, dtype, N * Q);
  twin_workspace(&back, N * s.H);
  twin_check(back);
}

void run(fsdp_dtype dtype) {
  for (const heads &s : shapes) {
#if defined(FSDP_SANITIZE_ADDRESS)
    if (dtype == FSDP_F32 && s.T == 1000) continue; // minutes, of nothing that shorter ones do not do
#endif
    forward_and_backward(dtype, s);
  }
  for (const heads &s : odd_shapes) forward_and_backward(dtype, s);
}

} // namespace

void twin_attention_fp32() {
  run(FSDP_F32);
}

void twin_attention_bf16() {
  run(FSDP_BF16);
}
