// Every place where a thread of our kernels waits (__syncthreads, __syncwarp, a wait for cp.async; on Hopper
// also a named barrier, a fence, a commit and a wait for products) is needed, and the harness knows: each is left
// out in turn, and at least one of the cases here must then end with an error.
#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/emulator/simt.h"
#include "tests/simt/twin.h"

#include <cstdio>
#include <map>

namespace {

typedef std::vector<std::vector<unsigned char>> results;

fsdp_op_attrs row_attrs(int64_t N, int64_t C) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = N;
  attrs.channels = C;
  attrs.eps = 1e-5f;
  return attrs;
}

fsdp_op_attrs head_attrs(int64_t T, int64_t H, int64_t K, int64_t D) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = T;
  attrs.heads = H;
  attrs.kv_heads = K;
  attrs.head_dim = D;
  return attrs;
}

twin_case attention(fsdp_dtype dtype, const fsdp_op_attrs &attrs) {
  const int64_t T = attrs.seq, Q = (attrs.heads + 2 * attrs.kv_heads) * attrs.head_dim;
  twin_case c = twin_of(FSDP_OP_ATTENTION, attrs, dtype);
  twin_input(&c, dtype, T * Q);
  twin_output(&c, dtype, T * attrs.heads * attrs.head_dim);
  twin_output(&c, FSDP_F32, T * attrs.heads);
  return c;
}

twin_case attention_backward(fsdp_dtype dtype, const fsdp_op_attrs &attrs) {
  const int64_t T = attrs.seq, width = attrs.heads * attrs.head_dim;
  const int64_t Q = (attrs.heads + 2 * attrs.kv_heads) * attrs.head_dim;
  twin_case c = twin_of(FSDP_OP_ATTENTION_BACKWARD, attrs, dtype);
  twin_input(&c, dtype, T * Q);
  twin_input(&c, dtype, T * width);
  twin_input(&c, FSDP_F32, T * attrs.heads);
  twin_input(&c, dtype, T * width);
  twin_output(&c, dtype, T * Q);
  twin_workspace(&c, 0);
  return c;
}

twin_case rmsnorm_backward() {
  const int64_t N = 520, C = 512; // four warps, and some blocks have two rows
  twin_case c = twin_of(FSDP_OP_RMSNORM_BACKWARD, row_attrs(N, C), FSDP_F32);
  twin_input(&c, FSDP_F32, N * C);
  twin_input(&c, FSDP_F32, N);
  twin_input(&c, FSDP_F32, C);
  twin_input(&c, FSDP_F32, N * C);
  twin_output(&c, FSDP_F32, N * C);
  twin_output(&c, FSDP_F32, C);
  twin_workspace(&c, 0);
  return c;
}

twin_case bias_backward() {
  fsdp_op_attrs attrs = row_attrs(200, 0);
  attrs.out_features = attrs.out_stride = 300;
  twin_case c = twin_of(FSDP_OP_BIAS_BACKWARD, attrs, FSDP_F32);
  twin_input(&c, FSDP_F32, 200 * 300);
  twin_output(&c, FSDP_F32, 300);
  twin_workspace(&c, 0);
  return c;
}

twin_case embedding_backward() {
  const int64_t N = 5000, V = 300, C = 8;
  fsdp_op_attrs attrs = row_attrs(N, C);
  attrs.vocabulary = V;
  twin_case c = twin_of(FSDP_OP_EMBEDDING_BACKWARD, attrs, FSDP_F32);
  std::vector<int32_t> tokens;
  for (int64_t n = 0; n < N; n++) tokens.push_back(int32_t(n * n % V));
  twin_integers(&c, tokens);
  twin_input(&c, FSDP_F32, N * C);
  twin_output(&c, FSDP_F32, V * C);
  twin_workspace(&c, 0);
  return c;
}

twin_case cross_entropy() {
  const int64_t N = 2, V = 5001, C = 4;
  fsdp_op_attrs attrs = row_attrs(N, C);
  attrs.vocabulary = V;
  attrs.chunk_rows = 2;
  twin_case c = twin_of(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, attrs, FSDP_BF16);
  twin_input(&c, FSDP_BF16, N * C);
  twin_input(&c, FSDP_BF16, V * C);
  twin_integers(&c, {7, 5000});
  twin_floats(&c, {2});
  twin_output(&c, FSDP_F32, 1);
  twin_output(&c, FSDP_BF16, N * C);
  twin_output(&c, FSDP_F32, V * C);
  twin_workspace(&c, 0);
  return c;
}

twin_case head_logits() {
  const int64_t N = 2, V = 5001, C = 4;
  fsdp_op_attrs attrs = row_attrs(N, C);
  attrs.vocabulary = V;
  attrs.extent = V - 5;
  twin_case c = twin_of(FSDP_OP_HEAD_LOGITS, attrs, FSDP_F32);
  twin_input(&c, FSDP_F32, N * C);
  twin_input(&c, FSDP_F32, V * C);
  twin_integers(&c, {7, 4995});
  twin_output(&c, FSDP_F32, N * V);
  twin_output(&c, FSDP_F32, N * 3);
  return c;
}

twin_case rope(const std::vector<float> &inv_freq) {
  fsdp_op_attrs attrs = head_attrs(3, 2, 1, 128);
  attrs.inv_freq = inv_freq.data();
  twin_case c = twin_of(FSDP_OP_ROPE, attrs, FSDP_BF16);
  twin_update(&c, FSDP_BF16, 3 * 4 * 128);
  return c;
}

// Products grouped by expert by wgmma: of each of two experts several tiles, and more steps than stages.
twin_case grouped(fsdp_op_kind kind) {
  const int64_t N = 300, E = 2, C = 328, I = 64;
  fsdp_op_attrs attrs = row_attrs(N, C);
  attrs.intermediate = I;
  attrs.slots = 1;
  attrs.experts = E;
  attrs.products = FSDP_GROUPED_WGMMA;
  const bool is_weight = kind == FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT;
  std::vector<int32_t> slots(static_cast<size_t>(N));
  for (size_t i = 0; i < slots.size(); i++) slots[i] = int32_t(i * 7 % slots.size());
  twin_case c = twin_of(kind, attrs, FSDP_BF16);
  if (is_weight) twin_input(&c, FSDP_BF16, N * 2 * I);
  twin_input(&c, FSDP_BF16, N * C);
  if (!is_weight) twin_input(&c, FSDP_BF16, E * 2 * I * C);
  twin_integers(&c, slots);
  twin_integers(&c, {0, 260, int32_t(N)});
  twin_output(&c, FSDP_BF16, is_weight ? E * 2 * I * C : N * 2 * I);
  return c;
}

// The last part of a path.
std::string name_of(const simt::place &place) {
  return place.what + " at " + place.file.substr(place.file.rfind('/') + 1) + ":" +
         std::to_string(place.line);
}

} // namespace

int main() {
  fsdp_cuda_gemm_open(nullptr);
  const std::vector<float> inv_freq(64, 0.5f);
  const auto by = [](fsdp_attention_kernel kernel, fsdp_op_attrs attrs) {
    attrs.attention = kernel;
    return attrs;
  };
  const fsdp_op_attrs mma = by(FSDP_ATTENTION_MMA, head_attrs(200, 2, 1, 64));
  const fsdp_op_attrs general = by(FSDP_ATTENTION_GENERAL, head_attrs(40, 2, 1, 20));
  const twin_case cases[] = {
      attention(FSDP_BF16, mma),
      attention_backward(FSDP_BF16, mma),
      attention(FSDP_BF16, by(FSDP_ATTENTION_WGMMA, head_attrs(600, 1, 1, 64))),
      attention_backward(FSDP_BF16, by(FSDP_ATTENTION_WGMMA, head_attrs(400, 2, 1, 64))),
      grouped(FSDP_OP_EXPERT_UP),
      grouped(FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT),
      attention(FSDP_F32, general),
      attention_backward(FSDP_F32, general),
      rmsnorm_backward(),
      bias_backward(),
      embedding_backward(),
      cross_entropy(),
      head_logits(),
      rope(inv_freq)};
  std::map<simt::place, std::string> findings; // "" until a case has found it missing
  for (const twin_case &c : cases) {
    results right;
    const auto run = [&] { return twin_run(c); };
    const std::string message = simt::expect_error([&] { right = run(); });
    if (!message.empty()) {
      printf("FAILED %s: %s\n", c.name.c_str(), message.c_str());
      return 1;
    }
    for (const simt::place &place : simt::places_passed()) findings.emplace(place, "");
    for (auto &finding : findings) {
      if (!finding.second.empty()) continue;
      results wrong;
      simt::leave_out(&finding.first);
      finding.second = simt::expect_error([&] { wrong = run(); });
      simt::leave_out(nullptr);
      if (finding.second.empty() && wrong != right) finding.second = "results differ";
    }
  }
  int survivors = 0;
  for (const auto &finding : findings) {
    survivors += finding.second.empty();
    printf("%s %-52s %s\n", finding.second.empty() ? "FAILED" : "ok    ", name_of(finding.first).c_str(),
           finding.second.empty() ? "nobody misses it" : finding.second.c_str());
  }
  printf("%zu places, %d failed\n", findings.size(), survivors);
  return survivors ? 1 : 0;
}
