// Linear layers with and without a bias, and the fused linear + cross-entropy.
#include "tests/simt/twin.h"

namespace {

const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// Of y and d_y: columns [offset, offset + out) of rows that are `stride` wide.
struct layer {
  int64_t N, in, out, stride, offset;
  bool transposed;
};

twin_case layer_case(fsdp_op_kind kind, fsdp_dtype dtype, const layer &l, const std::string &more) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = l.N;
  attrs.in_features = l.in;
  attrs.out_features = l.out;
  attrs.out_stride = l.stride;
  attrs.out_offset = l.offset;
  attrs.weight_transposed = l.transposed;
  twin_case c = twin_of(kind, attrs, dtype);
  c.name += " N" + std::to_string(l.N) + " " + std::to_string(l.in) + "->" + std::to_string(l.out) + " of " +
            std::to_string(l.stride) + (l.transposed ? " transposed" : "") + more;
  return c;
}

// What the op leaves alone of the last operand's last row.
void beside(twin_case *c, const layer &l) {
  c->operands.back().untouched = l.stride - l.offset - l.out;
}

void d_y_of(twin_case *c, fsdp_dtype dtype, const layer &l) {
  twin_input(c, dtype, l.N * l.stride);
  beside(c, l);
}

void forwards(fsdp_dtype dtype, const layer &l, bool updates) {
  for (bool biased : {false, true}) {
    if (biased && updates) continue; // it never adds
    twin_case c =
        layer_case(biased ? FSDP_OP_LINEAR_BIAS : FSDP_OP_LINEAR, dtype, l, updates ? " update" : "");
    twin_input(&c, dtype, l.N * l.in);
    twin_input(&c, dtype, l.out * l.in);
    if (biased) twin_input(&c, dtype, l.out, 30); // as large as the products
    twin_update(&c, dtype, l.N * l.stride);       // columns beside the product's stay as they are
    beside(&c, l);
    if (!updates) c.operands.back().access = FSDP_WRITE;
    twin_check(c);
  }
}

void bias_gradient(fsdp_dtype dtype, fsdp_dtype bias_dtype, const layer &l, bool updates) {
  twin_case c = layer_case(FSDP_OP_BIAS_BACKWARD, dtype, l,
                           std::string(updates ? " update" : "") + " d_bias " + fsdp_dtype_name(bias_dtype));
  if (bias_dtype == FSDP_BF16) c.tolerance = 1e-2;
  d_y_of(&c, dtype, l);
  twin_result(&c, updates, bias_dtype, l.out);
  twin_workspace(&c, 0);
  twin_check(c);
}

void linears(fsdp_dtype dtype, fsdp_dtype weight_dtype, const layer &l, bool updates) {
  const std::string update = updates ? " update" : "";
  forwards(dtype, l, updates);
  twin_case c = layer_case(FSDP_OP_LINEAR_BACKWARD_INPUT, dtype, l, update);
  d_y_of(&c, dtype, l);
  twin_input(&c, dtype, l.out * l.in);
  twin_result(&c, updates, dtype, l.N * l.in);
  twin_check(c);
  c = layer_case(FSDP_OP_LINEAR_BACKWARD_WEIGHT, dtype, l,
                 update + " d_weight " + fsdp_dtype_name(weight_dtype));
  d_y_of(&c, dtype, l);
  twin_input(&c, dtype, l.N * l.in);
  twin_result(&c, updates, weight_dtype, l.out * l.in);
  twin_check(c);
  bias_gradient(dtype, weight_dtype, l, updates);
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
    for (bool transposed : {false, true}) {
      linears(dtype, dtype, {51, 40, 24, 56, 16, transposed}, false);
      linears(dtype, FSDP_F32, {51, 40, 24, 56, 16, transposed}, true);
      linears(dtype, dtype, {17, 33, 7, 29, 3, transposed}, true);
    }
    // Many parts of rows, the last one short; more than one block of columns; a row; one column.
    for (bool updates : {false, true}) {
      bias_gradient(dtype, FSDP_F32, {1000, 0, 520, 528, 8, false}, updates);
      bias_gradient(dtype, FSDP_BF16, {130, 0, 300, 300, 0, false}, updates);
      bias_gradient(dtype, FSDP_F32, {65, 0, 33, 35, 1, false}, updates);
      bias_gradient(dtype, dtype, {1, 0, 8, 8, 0, false}, updates);
      bias_gradient(dtype, dtype, {70, 0, 1, 1, 0, false}, updates);
    }
    losses(dtype, 5, 16, 32001, 2, true); // rows of odd length: scalar accesses
    losses(dtype, 3, 8, 32000, 3, false);
    losses(dtype, 1, 12, 32001, 1, false);
    losses(dtype, 4, 4, 3076, 4, true); // a tile of 768 fours and one more
    losses(dtype, 17, 12, 64, 8, true);
    losses(dtype, 9, 5, 3, 4, false);
  }
}
