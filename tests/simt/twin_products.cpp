// Linear layers with and without a bias, the fused linear + cross-entropy, and the head on a shard.
#include "tests/simt/twin.h"

#include <algorithm>
#include <cmath>

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

// The residual lies as the sum does, and the columns beside the product's are not read.
void sums(fsdp_dtype dtype, const layer &l) {
  for (bool biased : {false, true}) {
    twin_case c = layer_case(biased ? FSDP_OP_LINEAR_BIAS_ADD : FSDP_OP_LINEAR_ADD, dtype, l, "");
    twin_input(&c, dtype, l.N * l.in);
    twin_input(&c, dtype, l.out * l.in);
    if (biased) twin_input(&c, dtype, l.out, 30);
    twin_input(&c, dtype, l.N * l.stride, 30);
    beside(&c, l);
    twin_update(&c, dtype, l.N * l.stride);
    beside(&c, l);
    c.operands.back().access = FSDP_WRITE;
    twin_check(c);
  }
}

void bias(fsdp_dtype dtype, const layer &l) {
  twin_case c = layer_case(FSDP_OP_ADD_BIAS, dtype, l, "");
  twin_input(&c, dtype, l.out);
  twin_update(&c, dtype, l.N * l.stride);
  beside(&c, l);
  twin_check(c);
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

// Targets of each row's document.
void learned_of(twin_case *c, int64_t N) {
  std::vector<int32_t> learned;
  for (int64_t n = 0; n < N; n++) learned.push_back(int32_t(1 + n % 7));
  if (c->attrs.loss_of_documents) twin_integers(c, learned);
}

void losses(fsdp_dtype dtype, int64_t N, int64_t C, int64_t V, int64_t chunk_rows, bool updates,
            bool of_documents = false) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = N;
  attrs.channels = C;
  attrs.vocabulary = V;
  attrs.chunk_rows = chunk_rows;
  attrs.loss_of_documents = of_documents;
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < N; n++)
    targets.push_back(n % 4 == 3 ? FSDP_TARGET_IGNORED : int32_t(n == 0 ? V - 1 : n * 7919 % V));
  for (bool backward : {false, true}) {
    twin_case c = twin_of(backward ? FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD : FSDP_OP_LINEAR_CROSS_ENTROPY,
                          attrs, dtype);
    c.name += " N" + std::to_string(N) + " C" + std::to_string(C) + " V" + std::to_string(V) + " chunks of " +
              std::to_string(chunk_rows) + (updates ? " update" : "") + (of_documents ? " documents" : "");
    twin_input(&c, dtype, N * C);
    twin_input(&c, dtype, V * C);
    twin_integers(&c, targets);
    twin_floats(&c, {float(N - N / 4)});
    twin_result(&c, updates, FSDP_F32, 1);
    if (backward) {
      twin_output(&c, dtype, N * C);
      twin_result(&c, updates, updates ? FSDP_F32 : dtype, V * C);
    }
    learned_of(&c, N);
    twin_workspace(&c, chunk_rows * V);
    twin_check(c);
  }
}

// A shard of the vocabulary: N rows, C channels, V columns for the entries from `first` on, of `extent` that
// are real; statistics of `ranks` shards.
struct shard {
  int64_t N, C, V, first, extent, ranks;
  bool is_large; // logits near 30000 and -30000, which are integers
};

twin_case shard_case(fsdp_op_kind kind, fsdp_dtype dtype, const shard &s, bool updates) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = s.N;
  attrs.channels = s.C;
  attrs.vocabulary = s.V;
  attrs.first_index = s.first;
  attrs.extent = s.extent;
  attrs.ranks = s.ranks;
  attrs.loss_of_documents = s.N % 2 == 0 && kind != FSDP_OP_HEAD_LOGITS;
  twin_case c = twin_of(kind, attrs, dtype);
  c.name += " N" + std::to_string(s.N) + " C" + std::to_string(s.C) + " V" + std::to_string(s.V) + " at " +
            std::to_string(s.first) + " of " + std::to_string(s.extent) + (s.is_large ? " large" : "") +
            (updates ? " update" : "");
  return c;
}

void shard_inputs(twin_case *c, fsdp_dtype dtype, const shard &s) {
  std::vector<float> x, weight;
  for (int64_t n = 0; n < s.N; n++)
    for (int64_t i = 0; i < s.C; i++) x.push_back(i > 0 ? 1.0f : n % 2 ? -29952.0f : 29952.0f);
  for (int64_t v = 0; v < s.V; v++)
    for (int64_t i = 0; i < s.C; i++) weight.push_back(i > 0 ? float((v * 7 + i) % 5) : 1.0f);
  if (s.is_large) {
    twin_values(c, dtype, x, FSDP_READ);
    twin_values(c, dtype, weight, FSDP_READ);
  } else {
    twin_input(c, dtype, s.N * s.C);
    twin_input(c, dtype, s.V * s.C);
  }
}

// Of the shard's entries (the last real one first), of other shards', and ignored.
std::vector<int32_t> shard_targets(const shard &s) {
  std::vector<int32_t> targets;
  const int64_t end = std::min(s.extent, s.first + s.V);
  for (int64_t n = 0; n < s.N; n++)
    targets.push_back(n % 4 == 3   ? FSDP_TARGET_IGNORED
                      : n % 4 == 2 ? int32_t(n * 7919 % s.extent)
                                   : int32_t(std::max<int64_t>(0, end - 1 - n)));
  return targets;
}

// Of several ranks, the last but one has padding alone. The last row's target is the last rank's.
void shard_stats(twin_case *c, const shard &s) {
  std::vector<float> stats;
  for (int64_t rank = 0; rank < s.ranks; rank++)
    for (int64_t n = 0; n < s.N; n++) {
      const bool is_padding = rank == s.ranks - 2;
      const int64_t back = s.N - 1 - n, holder = back % 2 && s.ranks > 2 ? 0 : s.ranks - 1;
      stats.push_back(is_padding ? -INFINITY : 2 + 0.5f * float((rank + n) % 7));
      stats.push_back(is_padding ? 0 : 30 + float(n));
      stats.push_back(rank == holder ? 1.25f : -INFINITY);
    }
  twin_floats(c, stats);
}

void shard_losses(fsdp_dtype dtype, const shard &s, bool updates) {
  if (!updates) {
    twin_case c = shard_case(FSDP_OP_HEAD_LOGITS, dtype, s, updates);
    shard_inputs(&c, dtype, s);
    twin_integers(&c, shard_targets(s));
    twin_output(&c, FSDP_F32, s.N * s.V);
    twin_output(&c, FSDP_F32, s.N * 3);
    twin_check(c);
  }
  twin_case c = shard_case(FSDP_OP_HEAD_LOSS, FSDP_F32, s, updates);
  shard_stats(&c, s);
  twin_integers(&c, shard_targets(s));
  twin_floats(&c, {float(s.N - s.N / 4)});
  twin_result(&c, updates, FSDP_F32, 1);
  learned_of(&c, s.N);
  if (dtype == FSDP_F32) twin_check(c);
  c = shard_case(FSDP_OP_HEAD_BACKWARD, dtype, s, updates);
  shard_stats(&c, s);
  twin_integers(&c, shard_targets(s));
  twin_floats(&c, {float(s.N - s.N / 4)});
  shard_inputs(&c, dtype, s);
  twin_result(&c, updates, FSDP_F32, 1);
  std::vector<float> logits;
  for (int64_t i = 0; i < s.N * s.V; i++)
    logits.push_back(s.first + i % s.V < s.extent ? float(i * 31 % 64) / 16 : -INFINITY);
  twin_floats(&c, logits, FSDP_UPDATE);
  c.operands.back().is_compared = dtype == FSDP_F32; // else the gradients lie in half of each row
  twin_result(&c, updates, dtype, s.N * s.C);
  twin_result(&c, updates, updates ? FSDP_F32 : dtype, s.V * s.C);
  learned_of(&c, s.N);
  twin_check(c);
}

} // namespace

void twin_products() {
  for (fsdp_dtype dtype : dtypes) {
    for (bool transposed : {false, true}) {
      linears(dtype, dtype, {51, 40, 24, 56, 16, transposed}, false);
      linears(dtype, FSDP_F32, {51, 40, 24, 56, 16, transposed}, true);
      linears(dtype, dtype, {17, 33, 7, 29, 3, transposed}, true);
      sums(dtype, {51, 40, 24, 56, 16, transposed});
      sums(dtype, {17, 33, 7, 7, 0, transposed});
    }
    // Rows that a thread's four do not divide; more than one block of columns; scalar accesses.
    for (const layer &l :
         {layer{1, 0, 1, 1, 0, false}, layer{4, 0, 64, 64, 0, false}, layer{7, 0, 24, 72, 24, false},
          layer{9, 0, 33, 64, 5, false}, layer{6, 0, 2560, 2560, 0, false}})
      bias(dtype, l);
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
    losses(dtype, 9, 5, 67, 4, true, true);
    losses(dtype, 3, 8, 3200, 3, false, true);
    for (bool updates : {false, true}) {
      shard_losses(dtype, {9, 12, 64, 64, 257, 5, false}, updates);
      shard_losses(dtype, {6, 5, 67, 67, 257, 3, false}, updates);  // rows of odd length
      shard_losses(dtype, {2, 8, 5, 0, 5, 1, false}, updates);      // all of a small vocabulary
      shard_losses(dtype, {6, 5, 67, 201, 257, 3, false}, updates); // 56 entries and padding
      shard_losses(dtype, {5, 4, 64, 192, 253, 4, false}, updates); // 61 entries in fours
      shard_losses(dtype, {5, 8, 16, 272, 257, 6, false}, updates); // padding alone
      shard_losses(dtype, {4, 2, 64, 64, 128, 3, true}, updates);
    }
    shard_losses(dtype, {3, 4, 3076, 3076, 6150, 2, false}, true); // a tile of 768 fours and one more
    shard_losses(dtype, {2, 4, 8001, 24003, 32001, 4, false}, false);
  }
}
