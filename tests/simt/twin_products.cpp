// Matrix products and the fused linear + cross-entropy.
#include "tests/simt/twin.h"

namespace {

const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

void linears(fsdp_dtype dtype, fsdp_dtype weight_dtype, bool updates) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 3;
  attrs.seq = 17;
  attrs.in_features = 40;
  attrs.out_features = 24;
  attrs.out_stride = 56;
  attrs.out_offset = 16;
  const int64_t N = 3 * 17;
  twin_case c = twin_of(FSDP_OP_LINEAR, attrs, dtype);
  c.name += updates ? " update" : "";
  twin_input(&c, dtype, N * 40);
  twin_input(&c, dtype, 24 * 40);
  twin_update(&c, dtype, N * 56); // columns beside the product's stay as they are
  c.operands.back().untouched = 56 - 16 - 24;
  if (!updates) c.operands.back().access = FSDP_WRITE;
  twin_check(c);
  c = twin_of(FSDP_OP_LINEAR_BACKWARD_INPUT, attrs, dtype);
  c.name += updates ? " update" : "";
  twin_input(&c, dtype, N * 56);
  c.operands.back().untouched = 56 - 16 - 24;
  twin_input(&c, dtype, 24 * 40);
  twin_result(&c, updates, dtype, N * 40);
  twin_check(c);
  c = twin_of(FSDP_OP_LINEAR_BACKWARD_WEIGHT, attrs, dtype);
  c.name += std::string(updates ? " update" : "") + " d_weight " + fsdp_dtype_name(weight_dtype);
  twin_input(&c, dtype, N * 56);
  c.operands.back().untouched = 56 - 16 - 24;
  twin_input(&c, dtype, N * 40);
  twin_result(&c, updates, weight_dtype, 24 * 40);
  twin_check(c);
}

void losses(fsdp_dtype dtype, int64_t N, int64_t C, int64_t V, int64_t chunk_rows, bool updates) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = N;
  attrs.channels = C;
  attrs.vocabulary = V;
  attrs.chunk_rows = chunk_rows;
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < N; n++)
    targets.push_back(n % 4 == 3 ? FSDP_TARGET_IGNORED : int32_t(n == 0 ? V - 1 : n * 7919 % V));
  for (bool backward : {false, true}) {
    twin_case c = twin_of(backward ? FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD : FSDP_OP_LINEAR_CROSS_ENTROPY,
                          attrs, dtype);
    c.name += " N" + std::to_string(N) + " C" + std::to_string(C) + " V" + std::to_string(V) + " chunks of " +
              std::to_string(chunk_rows) + (updates ? " update" : "");
    twin_input(&c, dtype, N * C);
    twin_input(&c, dtype, V * C);
    twin_integers(&c, targets);
    twin_floats(&c, {float(N - N / 4)});
    twin_result(&c, updates, FSDP_F32, 1);
    if (backward) {
      twin_output(&c, dtype, N * C);
      twin_result(&c, updates, updates ? FSDP_F32 : dtype, V * C);
    }
    twin_workspace(&c, chunk_rows * V);
    twin_check(c);
  }
}

} // namespace

void twin_products() {
  for (fsdp_dtype dtype : dtypes) {
    linears(dtype, dtype, false);
    linears(dtype, FSDP_F32, true);
    losses(dtype, 5, 16, 32001, 2, true); // rows of odd length: scalar accesses
    losses(dtype, 3, 8, 32000, 3, false);
    losses(dtype, 1, 12, 32001, 1, false);
    losses(dtype, 4, 4, 3076, 4, true); // a tile of 768 fours and one more
    losses(dtype, 17, 12, 64, 8, true);
    losses(dtype, 9, 5, 3, 4, false);
  }
}
