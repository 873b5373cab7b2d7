// Causal attention with grouped key/value heads, both directions.
#include "tests/simt/twin.h"

#include <cstring>

namespace {

struct heads {
  int64_t B, T, H, K, D, window;
};

// Groups of 1, 4 and 8; sequences below, at and above a tile; head dimensions that fill a tile and that do
// not.
const heads shapes[] = {{1, 1, 1, 1, 64, 0},    {3, 17, 4, 1, 64, 0},   {1, 128, 8, 8, 64, 0},
                        {1, 1000, 1, 1, 64, 0}, {1, 1, 8, 1, 80, 0},    {1, 128, 4, 1, 80, 0},
                        {3, 17, 8, 1, 80, 0},   {1, 1000, 1, 1, 80, 0}, {1, 17, 8, 8, 128, 0},
                        {1, 128, 8, 1, 128, 0}, {3, 65, 4, 1, 128, 0},  {1, 1000, 1, 1, 128, 0}};
// Taken by the general kernels alone.
const heads odd_shapes[] = {{1, 33, 2, 1, 20, 0},
                            {2, 17, 2, 2, 2, 0},
                            {1, 40, 1, 1, 160, 0},
                            {1, 19, 4, 1, 256, 0},
                            {1, 9, 1, 1, 7, 0}};
// Windows below, at and above tiles of 32, 64 and 128, whose ends fall inside tiles; that of the sequence's
// length is none.
const heads windowed_shapes[] = {{1, 131, 2, 1, 64, 1},    {1, 193, 1, 1, 64, 2},    {1, 193, 2, 1, 64, 63},
                                 {1, 193, 1, 1, 64, 64},   {1, 263, 1, 1, 64, 65},   {1, 263, 1, 1, 64, 128},
                                 {2, 131, 4, 2, 128, 1},   {1, 193, 1, 1, 128, 31},  {1, 193, 2, 1, 128, 64},
                                 {1, 263, 1, 1, 128, 100}, {1, 131, 1, 1, 128, 130}, {1, 131, 1, 1, 128, 131},
                                 {1, 97, 4, 1, 80, 33},    {1, 67, 2, 1, 20, 5},     {1, 67, 1, 1, 160, 17}};

void forward_and_backward(fsdp_dtype dtype, const heads &s) {
  const int64_t N = s.B * s.T, Q = (s.H + 2 * s.K) * s.D;
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.heads = s.H;
  attrs.kv_heads = s.K;
  attrs.head_dim = s.D;
  attrs.window = s.window;
  twin_case c = twin_of(FSDP_OP_ATTENTION, attrs, dtype);
  std::string shape = " B" + std::to_string(s.B) + " T" + std::to_string(s.T) + " H" + std::to_string(s.H) +
                      " K" + std::to_string(s.K) + " D" + std::to_string(s.D);
  if (s.window > 0) shape += " window " + std::to_string(s.window);
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
    back.operands[i].is_unwritten = false;
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
  for (const heads &s : windowed_shapes) forward_and_backward(dtype, s);
}

// The operand in fp32, holding the same numbers.
twin_operand widened(twin_operand o) {
  std::vector<unsigned char> wide(size_t(o.numel) * 4);
  for (int64_t e = 0; e < o.numel; e++) {
    fsdp_bf16 half;
    memcpy(&half, &o.initial[size_t(e) * 2], 2);
    const float value = fsdp_bf16_to_f32(half);
    memcpy(&wide[size_t(e) * 4], &value, 4);
  }
  o.initial = wide;
  o.dtype = FSDP_F32;
  return o;
}

// Runs a case in bf16, and in fp32 on the same numbers, and compares what `results` names. Returns fp32's.
std::vector<std::vector<unsigned char>> against_fp32(const twin_case &c, const std::vector<size_t> &results) {
  twin_case exact = c;
  for (twin_operand &o : exact.operands)
    if (o.dtype == FSDP_BF16) o = widened(o);
  const std::vector<std::vector<unsigned char>> mine = twin_run(c), wanted = twin_run(exact);
  for (size_t i : results)
    twin_compare(c.name + " operand " + std::to_string(i) + " against fp32", c.operands[i].dtype, mine[i],
                 FSDP_F32, wanted[i], c.tolerance);
  return wanted;
}

} // namespace

void twin_attention_production() {
#if defined(FSDP_SIMT)
  const heads s = {1, 96, 4, 1, 128, 0};
#else
  const heads s = {1, 4096, 32, 8, 128, 0};
#endif
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.heads = s.H;
  attrs.kv_heads = s.K;
  attrs.head_dim = s.D;
  const int64_t N = s.B * s.T, Q = (s.H + 2 * s.K) * s.D;
  const std::string shape = " T" + std::to_string(s.T) + " H" + std::to_string(s.H) + " K" +
                            std::to_string(s.K) + " D" + std::to_string(s.D);
  twin_case c = twin_of(FSDP_OP_ATTENTION, attrs, FSDP_BF16);
  c.name += shape;
  twin_input(&c, FSDP_BF16, N * Q);
  twin_output(&c, FSDP_BF16, N * s.H * s.D);
  twin_output(&c, FSDP_F32, N * s.H);
  const std::vector<std::vector<unsigned char>> made = against_fp32(c, {1, 2});
  twin_case back = twin_of(FSDP_OP_ATTENTION_BACKWARD, attrs, FSDP_BF16);
  back.name += shape;
  back.tolerance = 2 * twin_tolerance(FSDP_BF16); // o, p and d_s are each rounded to 8 bits
  back.operands = {c.operands[0], c.operands[1], c.operands[2]};
  for (size_t i = 1; i < 3; i++) {
    back.operands[i].access = FSDP_READ;
    back.operands[i].is_unwritten = false;
  }
  for (size_t e = 0; e < made[1].size() / 4; e++) { // what fp32's forward made, in bf16
    float value;
    memcpy(&value, &made[1][e * 4], 4);
    const fsdp_bf16 half = fsdp_bf16_from_f32(value);
    memcpy(&back.operands[1].initial[e * 2], &half, 2);
  }
  back.operands[2].initial = made[2];
  twin_input(&back, FSDP_BF16, N * s.H * s.D);
  twin_output(&back, FSDP_BF16, N * Q);
  twin_workspace(&back, 0);
  against_fp32(back, {4});
}

void twin_attention_fp32() {
  run(FSDP_F32);
}

void twin_attention_bf16() {
  run(FSDP_BF16);
}
