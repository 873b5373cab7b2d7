// Movement and sums over flat ranges, and AdamW.
#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"
extern "C" {
#include "runtime/base/random.h"
}

#include <cuda_runtime.h>

#include <cmath>
#include <cstring>

namespace {

const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
const int64_t lengths[] = {1, 7, 4096, 20011};

fsdp_dtype narrower(fsdp_dtype a, fsdp_dtype b) {
  return a == FSDP_BF16 ? a : b;
}

void movements(fsdp_dtype from, fsdp_dtype to, int64_t P) {
  for (fsdp_op_kind kind : {FSDP_OP_CAST, FSDP_OP_ADD}) {
    twin_case c = twin_of(kind, fsdp_op_attrs(), from);
    c.name += std::string(" to ") + fsdp_dtype_name(to) + " P" + std::to_string(P);
    c.tolerance = 0; // one rounding
    twin_input(&c, from, P);
    twin_result(&c, kind == FSDP_OP_ADD, to, P);
    twin_check(c);
  }
}

void sums(fsdp_op_kind kind, fsdp_dtype dtype, int64_t P, bool updates, bool workspace) {
  fsdp_op_attrs attrs = {};
  attrs.norm_weight = 0.25f;
  twin_case c = twin_of(kind, attrs, FSDP_F32);
  c.name += std::string(" of ") + fsdp_dtype_name(dtype) + " P" + std::to_string(P) +
            (updates ? " update" : "") + (workspace ? " two stages" : "");
  twin_input(&c, dtype, P);
  twin_result(&c, updates, FSDP_F32, 1);
  if (workspace) twin_workspace(&c, 0);
  twin_check(c);
}

void fills() {
  for (fsdp_op_kind kind : {FSDP_OP_ZERO, FSDP_OP_POISON}) {
    twin_case c = twin_of(kind, fsdp_op_attrs(), FSDP_BF16);
    twin_output(&c, FSDP_BF16, 1001);
    twin_output(&c, FSDP_F32, 33);
    c.operands[0].is_compared = c.operands[1].is_compared = kind == FSDP_OP_ZERO; // NaNs compare with nothing
    twin_check(c);
  }
}

void clips(float max_norm, float sum, float limit) {
  fsdp_op_attrs attrs = {};
  attrs.max_norm = max_norm;
  attrs.norm_limit = limit;
  twin_case c = twin_of(FSDP_OP_CLIP_FACTOR, attrs, FSDP_F32);
  c.name +=
      " max " + std::to_string(max_norm) + " of " + std::to_string(sum) + " limit " + std::to_string(limit);
  twin_floats(&c, {sum});
  twin_output(&c, FSDP_F32, 1);
  c.operands.back().is_compared = !std::isnan(sum);
  twin_output(&c, FSDP_F32, 1);
  twin_check(c);
}

// New weights: the very bits that the host draws, wherever a range begins and ends, and nothing beside it.
template <class T> void draws(fsdp_dtype dtype, int64_t first, int64_t numel) {
  const int64_t zero = first + numel / 2 - 1; // three elements are zero, as far as they are in the range
  constexpr int64_t beside = 3;               // so that the range is not aligned either
  const fsdp_drawing d = {
      0x123456789abcdefULL, fsdp_random_stream("model.norm.weight"), first, numel, zero, 3, 0.5f, 0.02f};
  std::vector<float> drawn(static_cast<size_t>(numel));
  fsdp_random_normal(d.seed, d.stream, first, numel, d.mean, d.deviation, drawn.data());
  for (int64_t i = 0; i < numel; i++)
    if (first + i >= zero && first + i < zero + 3) drawn[size_t(i)] = 0;
  std::vector<T> expected(static_cast<size_t>(numel + 2 * beside)), mine(expected.size());
  memset(expected.data(), 0x5a, expected.size() * sizeof(T));
  mine = expected;
  for (int64_t i = 0; i < numel; i++) {
    T *to = &expected[size_t(i + beside)];
    const float x = drawn[size_t(i)];
    const fsdp_bf16 low = fsdp_bf16_from_f32(x);
    memcpy(to, sizeof(T) == 4 ? static_cast<const void *>(&x) : &low, sizeof(T));
  }
  const size_t bytes = mine.size() * sizeof(T);
  void *memory;
  bool good = cudaMalloc(&memory, bytes) == cudaSuccess &&
              cudaMemcpy(memory, mine.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess;
  fsdp_cuda_draw(&d, static_cast<T *>(memory) + beside, dtype, nullptr);
  good = good && cudaMemcpy(mine.data(), memory, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(memory);
  twin_report(good && memcmp(mine.data(), expected.data(), bytes) == 0,
              std::string("draw ") + fsdp_dtype_name(dtype) + " elements " + std::to_string(first) + " + " +
                  std::to_string(numel));
}

// Whole numbers: the digest is the same bits on both devices, whatever the length and its last word.
void checksum(fsdp_dtype dtype, int64_t P) {
  twin_case c = twin_of(FSDP_OP_CHECKSUM, fsdp_op_attrs(), dtype);
  c.name += " P" + std::to_string(P);
  twin_input(&c, dtype, P);
  twin_output(&c, FSDP_I32, 2);
  twin_check(c);
}

struct states {
  fsdp_dtype grad, master, moment, copy;
  bool has_copy;
};

// Parameters of odd lengths, each at a multiple of 16, so that there is padding between them.
std::vector<fsdp_param_run> segments_of(int64_t P, int64_t length) {
  std::vector<fsdp_param_run> segments;
  for (int64_t at = 0; at < P; at += (length + 15) / 16 * 16)
    segments.push_back({at, std::min(length, P - at), int64_t(segments.size()) * 5000000000,
                        segments.size() * 977 + 3, 0, 0, segments.size() % 2 > 0});
  return segments;
}

void adamw(const states &s, int64_t P, int64_t segment_length, double beta2 = 0.95,
           bool decays_some = false) {
  fsdp_op_attrs attrs = {};
  attrs.beta1 = 0.9;
  attrs.beta2 = beta2;
  attrs.adam_eps = 1e-8f;
  attrs.weight_decay = decays_some ? 30 : 0.1f; // seen in every element
  attrs.decays_some = decays_some;
  const bool rounds = s.master == FSDP_BF16 || s.moment == FSDP_BF16;
  twin_case c =
      twin_of(FSDP_OP_ADAMW, attrs, narrower(narrower(s.master, s.moment), s.has_copy ? s.copy : FSDP_F32));
  c.name += std::string(" grad ") + fsdp_dtype_name(s.grad) + " master " + fsdp_dtype_name(s.master) +
            " moments " + fsdp_dtype_name(s.moment) +
            (s.has_copy ? std::string(" copy ") + fsdp_dtype_name(s.copy) : "") + " P" + std::to_string(P) +
            (beta2 > 0.99 ? " beta2 near 1" : "") + (decays_some ? " some decay" : "");
  const double step = 12;
  std::vector<float> scalars(FSDP_SCALAR_COUNT);
  scalars[FSDP_SCALAR_LR] = 1e-2f;
  scalars[FSDP_SCALAR_CORRECTION1] = float(1 - std::pow(attrs.beta1, step));
  scalars[FSDP_SCALAR_CORRECTION2] = float(1 - std::pow(attrs.beta2, step));
  scalars[FSDP_SCALAR_STEP] = float(step);
  scalars[FSDP_SCALAR_ONE] = 1;
  twin_input(&c, s.grad, P);
  twin_floats(&c, scalars);
  twin_floats(&c, {0.5f});
  twin_update(&c, s.master, P);
  twin_update(&c, s.moment, P);
  std::vector<float> squares(static_cast<size_t>(P));
  for (size_t i = 0; i < squares.size(); i++) squares[i] = 0.5f + 0.001f * float(i % 977);
  twin_update(&c, s.moment, P);
  for (int64_t i = 0; i < P; i++) { // the second moment is not negative: clear the sign
    std::vector<unsigned char> &v = c.operands.back().initial;
    v[size_t((i + 1) * fsdp_dtype_bytes(s.moment) - 1)] &= 0x7f;
  }
  if (s.has_copy) twin_output(&c, s.copy, P);
  if (decays_some) c.segments = segments_of(P, segment_length);
  if (rounds) {
    // The same random words round the same way, except if the two computed values differ in their last bits.
    c.segments = segments_of(P, segment_length);
    c.bits_equal_least = 0.99;
    c.seed = 0x123456789abcdefULL;
  }
  twin_check(c);
}

// A step that is skipped: gradients that are no numbers, and all that could be updated keeps its bits.
void skipped_adamw(const states &s, int64_t P) {
  fsdp_op_attrs attrs = {};
  attrs.beta1 = 0.9, attrs.beta2 = 0.95, attrs.weight_decay = 0.1f;
  twin_case c = twin_of(FSDP_OP_ADAMW, attrs, FSDP_F32);
  c.name += std::string(" skipped, master ") + fsdp_dtype_name(s.master) + " moments " +
            fsdp_dtype_name(s.moment) + " P" + std::to_string(P);
  c.tolerance = 0;
  twin_floats(&c, std::vector<float>(size_t(P), NAN));
  twin_floats(&c, {1, 0.1f, 0.1f, 1, 1});
  twin_floats(&c, {FSDP_FACTOR_SKIP});
  for (fsdp_dtype dtype : {s.master, s.moment, s.moment, s.copy}) twin_update(&c, dtype, P);
  c.operands.back().access = FSDP_WRITE;
  for (twin_operand &o : c.operands)
    if (o.numel == P) o.untouched = P;
  c.segments = segments_of(P, 100);
  const std::vector<std::vector<unsigned char>> cpu = twin_check(c);
  for (size_t i = 3; i < cpu.size(); i++)
    FSDP_CHECK(cpu[i] == c.operands[i].initial, "%s: operand %zu has changed", c.name.c_str(), i);
}

// Gradients that are no numbers or infinite, and those whose squares are infinite or vanish: what becomes of
// each is known.
void extreme_adamw(fsdp_dtype states, int64_t P) {
  const struct {
    float grad, m, v, master;
  } rules[] = {{NAN, NAN, NAN, NAN},
               {INFINITY, INFINITY, INFINITY, NAN},
               {-INFINITY, -INFINITY, INFINITY, NAN},
               {1e30f, 5e29f, INFINITY, 0.5f},
               {1e-30f, 5e-31f, 0, 0.5f},
               {0, 0, 0, 0.5f},
               {1, 0.5f, 1, 0.25f}};
  const int64_t kinds = sizeof rules / sizeof *rules;
  fsdp_op_attrs attrs = {};
  attrs.beta1 = 0.5, attrs.adam_eps = 1e-8f, attrs.weight_decay = 1;
  twin_case c = twin_of(FSDP_OP_ADAMW, attrs, FSDP_F32);
  std::vector<float> grad;
  for (int64_t i = 0; i < P; i++) grad.push_back(rules[i % kinds].grad);
  twin_floats(&c, grad);
  twin_floats(&c, {0.5f, 1, 1, 3, 1}); // learning rate 1/2: half of a weight of 1 decays
  twin_floats(&c, {1});
  twin_values(&c, states, std::vector<float>(size_t(P), 1.0f), FSDP_UPDATE);
  for (int moment = 0; moment < 2; moment++)
    twin_values(&c, states, std::vector<float>(size_t(P), 0.0f), FSDP_UPDATE);
  if (states == FSDP_BF16) c.segments = segments_of(P, 100);
  const std::vector<std::vector<unsigned char>> out = twin_run(c);
  bool good = true;
  for (int64_t i = 0; i < P; i++) {
    const auto &rule = rules[i % kinds];
    const float expected[] = {rule.master, rule.m, rule.v};
    for (size_t state = 0; state < 3; state++) {
      const float x = twin_value(states, out[3 + state], i);
      const float near = (states == FSDP_BF16 ? 0.01f : 1e-6f) * std::fabs(expected[state]);
      good = good && (std::isnan(expected[state])   ? std::isnan(x)
                      : std::isinf(expected[state]) ? x == expected[state]
                                                    : std::fabs(x - expected[state]) <= near);
    }
  }
  twin_report(good, std::string("adamw of extreme gradients, states ") + fsdp_dtype_name(states) + " P" +
                        std::to_string(P));
}

// A step whose arithmetic is exact in any order (as in tests/unit/kernels/test_kernels_flat.c, which holds the CPU's
// kernel to the rule of the random bits), so that both twins must store the very same bits. Runs begin and
// end anywhere, in the shard and in their parameter. They are in rows of `row` elements, unless that is 0.
void exact_adamw(int64_t P, int64_t step, fsdp_dtype master, fsdp_dtype moment, int64_t row = 0) {
  fsdp_op_attrs attrs = {};
  attrs.beta1 = 0.5;
  twin_case c = twin_of(FSDP_OP_ADAMW, attrs, FSDP_BF16);
  c.name += std::string(" exact master ") + fsdp_dtype_name(master) + " moments " + fsdp_dtype_name(moment) +
            " P" + std::to_string(P) + " runs of " + std::to_string(step) +
            (row > 0 ? " in rows of " + std::to_string(row) : "");
  c.tolerance = 0;
  c.bits_equal_least = 1;
  c.seed = 0xfedcba9876543210ULL;
  std::vector<float> grad, weights, scalars(FSDP_SCALAR_COUNT);
  scalars[FSDP_SCALAR_LR] = 1.0f / 256;
  scalars[FSDP_SCALAR_CORRECTION1] = scalars[FSDP_SCALAR_CORRECTION2] = 1;
  scalars[FSDP_SCALAR_STEP] = 7;
  for (int64_t i = 0; i < P; i++) {
    const int64_t mixed = i * 7919 + i * i % 613;
    grad.push_back(float(2048 + mixed % 2048) / 2048 * (mixed % 3 ? 1.0f : -1.0f));
    weights.push_back(float(128 + mixed % 127) / 128 * float(1 << i % 6));
  }
  const std::vector<float> zeros(static_cast<size_t>(P));
  twin_floats(&c, grad);
  twin_floats(&c, scalars);
  twin_floats(&c, {1});
  twin_values(&c, master, weights, FSDP_UPDATE);
  twin_values(&c, moment, zeros, FSDP_UPDATE);
  twin_values(&c, moment, zeros, FSDP_UPDATE);
  for (int64_t at = step % 5, i = 0; at < P; at += step + i % 3, i++)
    c.segments.push_back({at, std::min(step, P - at), i * 5000000000 + i % 8, uint64_t(i) * 977 + 3, row,
                          row > 0 ? row + 24 + i % 2 * 5 : 0, i % 2 > 0});
  twin_check(c);
}

} // namespace

void twin_flat() {
  for (int64_t first : {int64_t(0), int64_t(5), (int64_t(1) << 40) + 3}) {
    for (int64_t numel : {int64_t(0), int64_t(1), int64_t(6), int64_t(40009)}) {
      draws<uint32_t>(FSDP_F32, first, numel);
      draws<uint16_t>(FSDP_BF16, first, numel);
    }
  }
  for (fsdp_dtype from : dtypes)
    for (fsdp_dtype to : dtypes)
      for (int64_t P : lengths) movements(from, to, P);
  for (fsdp_dtype dtype : dtypes)
    for (int64_t P : lengths)
      for (bool updates : {false, true}) {
        sums(FSDP_OP_SUM_SQUARES, dtype, P, updates, true);
        sums(FSDP_OP_SUM_SQUARES, dtype, P, updates, false);
      }
  sums(FSDP_OP_SUM, FSDP_F32, 37, false, false);
  for (fsdp_dtype dtype : dtypes)
    for (int64_t P : {1, 2, 3, 4, 5, 7, 16, 4096, 20011}) checksum(dtype, P);
  fills();
  for (float max_norm : {0.0f, 1.0f, 10.0f})
    for (float limit : {4.0f, 5.0f, 1e30f}) clips(max_norm, 100, limit);
  clips(1, NAN, 1e30f);
  adamw({FSDP_F32, FSDP_F32, FSDP_F32, FSDP_BF16, false}, 20011, 0);
  adamw({FSDP_BF16, FSDP_F32, FSDP_F32, FSDP_BF16, true}, 4096, 0);
  adamw({FSDP_F32, FSDP_BF16, FSDP_BF16, FSDP_BF16, true}, 20011, 1009);
  adamw({FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16, false}, 20000, 101); // more segments than a launch takes
  adamw({FSDP_BF16, FSDP_F32, FSDP_BF16, FSDP_F32, true}, 333, 40);
  adamw({FSDP_F32, FSDP_BF16, FSDP_F32, FSDP_BF16, false}, 64, 64);
  for (double beta2 : {0.99999, 0.999999})
    adamw({FSDP_F32, FSDP_F32, FSDP_F32, FSDP_F32, false}, 4099, 0, beta2);
  adamw({FSDP_F32, FSDP_F32, FSDP_F32, FSDP_BF16, true}, 20000, 101, 0.95, true); // several launches
  adamw({FSDP_F32, FSDP_F32, FSDP_F32, FSDP_BF16, false}, 333, 64, 0.95, true);
  adamw({FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_BF16, true}, 4099, 333, 0.95, true);
  skipped_adamw({FSDP_F32, FSDP_F32, FSDP_F32, FSDP_BF16, true}, 4099);
  skipped_adamw({FSDP_F32, FSDP_BF16, FSDP_BF16, FSDP_F32, true}, 777);
  for (fsdp_dtype states : dtypes)
    for (int64_t P : {5, 4099}) extreme_adamw(states, P);
  exact_adamw(20011, 1000, FSDP_BF16, FSDP_BF16);
  exact_adamw(20011, 8, FSDP_BF16, FSDP_BF16);
  exact_adamw(4099, 13, FSDP_BF16, FSDP_F32);
  exact_adamw(777, 5, FSDP_F32, FSDP_BF16);
  exact_adamw(20011, 1000, FSDP_BF16, FSDP_BF16, 64); // whole vectors in a row
  exact_adamw(4099, 333, FSDP_BF16, FSDP_F32, 37);
  exact_adamw(777, 100, FSDP_F32, FSDP_BF16, 3);
}
