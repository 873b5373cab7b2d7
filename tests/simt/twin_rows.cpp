// Embedding, learned positions, norms, RoPE, SwiGLU, GELU and columns. B sequences, T tokens each, C channels.
#include "kernels/row_map.h"
#include "tests/simt/twin.h"

#include <algorithm>
#include <cmath>

extern "C" {
#include "runtime/base/random.h"
}

namespace {

const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

struct row_shape {
  int64_t B, T, C;
};
// Rows below a warp's width, odd ones (scalar accesses), ones that fill several vectors per thread.
const row_shape shapes[] = {{1, 1, 1},    {1, 1, 12},   {1, 17, 80}, {3, 5, 257},
                            {3, 17, 512}, {1, 3, 4096}, {1, 2, 8200}};

std::string shape_text(const row_shape &s) {
  return " B" + std::to_string(s.B) + " T" + std::to_string(s.T) + " C" + std::to_string(s.C);
}

fsdp_op_attrs attrs_of(const row_shape &s) {
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.channels = attrs.intermediate = s.C;
  attrs.eps = 1e-5f;
  return attrs;
}

void rmsnorms(fsdp_dtype dtype, const row_shape &s) {
  const int64_t N = s.B * s.T;
  twin_case c = twin_of(FSDP_OP_RMSNORM, attrs_of(s), dtype);
  c.name += shape_text(s);
  twin_input(&c, dtype, N * s.C);
  twin_input(&c, dtype, s.C);
  twin_output(&c, dtype, N * s.C);
  twin_output(&c, FSDP_F32, N);
  twin_check(c);
  c = twin_of(FSDP_OP_ADD_RMSNORM, attrs_of(s), dtype);
  c.name += shape_text(s);
  twin_input(&c, dtype, N * s.C);
  twin_input(&c, dtype, N * s.C);
  twin_input(&c, dtype, s.C);
  twin_output(&c, dtype, N * s.C);
  twin_output(&c, dtype, N * s.C);
  twin_output(&c, FSDP_F32, N);
  twin_check(c);
}

void rmsnorm_backward(fsdp_dtype dtype, const row_shape &s, bool updates, fsdp_dtype weight_dtype) {
  if (s.C == 1) return; // the gradient of a single normalised channel cancels to rounding
  const int64_t N = s.B * s.T;
  twin_case c = twin_of(FSDP_OP_RMSNORM_BACKWARD, attrs_of(s), dtype);
  c.name += shape_text(s) + (updates ? " update" : "") + " d_weight " + fsdp_dtype_name(weight_dtype);
  if (weight_dtype == FSDP_BF16) c.tolerance = 1e-2;
  twin_input(&c, dtype, N * s.C);
  std::vector<float> rstd(static_cast<size_t>(N));
  for (size_t n = 0; n < rstd.size(); n++) rstd[n] = 0.7f + 0.01f * float(n);
  twin_floats(&c, rstd);
  twin_input(&c, dtype, s.C);
  twin_input(&c, dtype, N * s.C);
  twin_result(&c, updates, dtype, N * s.C);
  twin_result(&c, updates, weight_dtype, s.C);
  twin_workspace(&c, 0);
  twin_check(c);
}

void layernorms(fsdp_dtype dtype, const row_shape &s, double mean = 0) {
  const int64_t N = s.B * s.T;
  for (bool adds : {false, true}) {
    twin_case c = twin_of(adds ? FSDP_OP_ADD_LAYERNORM : FSDP_OP_LAYERNORM, attrs_of(s), dtype);
    c.name += shape_text(s) + (mean != 0 ? " of mean " + std::to_string(mean) : "");
    std::vector<float> h(static_cast<size_t>(N * s.C));
    for (size_t i = 0; i < h.size(); i++) h[i] = float(mean + std::sin(0.37 * double(i) + 0.2));
    twin_values(&c, dtype, h, FSDP_READ);
    if (adds) twin_input(&c, dtype, N * s.C);
    twin_input(&c, dtype, s.C);
    twin_input(&c, dtype, s.C);
    if (adds) twin_output(&c, dtype, N * s.C);
    twin_output(&c, dtype, N * s.C);
    twin_output(&c, FSDP_F32, N);
    twin_output(&c, FSDP_F32, N);
    twin_check(c);
  }
}

void layernorm_backward(fsdp_dtype dtype, const row_shape &s, bool updates, fsdp_dtype param_dtype) {
  const int64_t N = s.B * s.T;
  twin_case c = twin_of(FSDP_OP_LAYERNORM_BACKWARD, attrs_of(s), dtype);
  c.name += shape_text(s) + (updates ? " update" : "") + " d_weight " + fsdp_dtype_name(param_dtype);
  if (param_dtype == FSDP_BF16) c.tolerance = 1e-2;
  twin_input(&c, dtype, N * s.C);
  std::vector<float> mean(static_cast<size_t>(N)), rstd(static_cast<size_t>(N));
  for (size_t n = 0; n < rstd.size(); n++)
    mean[n] = 0.3f - 0.02f * float(n), rstd[n] = 0.7f + 0.01f * float(n);
  twin_floats(&c, mean);
  twin_floats(&c, rstd);
  twin_input(&c, dtype, s.C);
  twin_input(&c, dtype, N * s.C);
  twin_result(&c, updates, dtype, N * s.C);
  twin_result(&c, updates, param_dtype, s.C);
  twin_result(&c, updates, param_dtype, s.C);
  twin_workspace(&c, 0);
  twin_check(c);
}

void gelus(fsdp_dtype dtype, const row_shape &s) {
  const int64_t numel = s.B * s.T * s.C;
  for (double deviation : {1.0, 10.0}) {     // of 10: tanh saturates
    if (s.C == 1 && deviation > 1) continue; // a single value, and its gelu is a denormal
    twin_case c = twin_of(FSDP_OP_GELU, attrs_of(s), dtype);
    c.name += shape_text(s) + " deviation " + std::to_string(deviation);
    twin_input(&c, dtype, numel, deviation);
    twin_output(&c, dtype, numel);
    twin_check(c);
    c = twin_of(FSDP_OP_GELU_BACKWARD, attrs_of(s), dtype);
    c.name += shape_text(s) + " deviation " + std::to_string(deviation);
    twin_input(&c, dtype, numel);
    twin_update(&c, dtype, numel, deviation);
    twin_check(c);
  }
}

// How a sequence's T rows lie: `pieces` of them; positions from `first` on, and from `second` on in the second
// half of the indices.
struct cut {
  int64_t first, pieces, second;
};
const cut cuts[] = {{2, 2, 0}, {0, 1, 30}, {5, 4, 17}, {12, 3, 24}};

fsdp_op_attrs cut_attrs(fsdp_op_attrs attrs, const cut &how) {
  attrs.first_index = how.first;
  if (how.pieces > 1) attrs.piece = attrs.seq / how.pieces;
  if (how.second > 0) attrs.chunk = attrs.seq / 2, attrs.second_index = how.second;
  return attrs;
}

std::string cut_text(const cut &how) {
  std::string text = " from " + std::to_string(how.first);
  if (how.second > 0) text += " and " + std::to_string(how.second);
  if (how.pieces > 1) text += " pieces " + std::to_string(how.pieces);
  return text;
}

// Of each sequence's positions, the first one of their document: documents of drawn lengths.
std::vector<int32_t> starts_of(int64_t B, int64_t positions) {
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < B * positions; i++) {
    uint32_t words[4];
    fsdp_random_words(uint64_t(positions), 7, uint64_t(i), words);
    starts.push_back(i % positions == 0 || words[0] % 7 == 0 ? int32_t(i % positions) : starts.back());
  }
  return starts;
}

// The rows' greatest position in its document, and, counted from the end, the rows of which every one is
// padding: M or more.
struct position_extent {
  int64_t greatest, padding;
};
position_extent extent_of(const fsdp_row_map &map, const std::vector<int32_t> &starts, int64_t positions,
                          int64_t M) {
  position_extent extent = {};
  std::vector<bool> used(size_t(map.batch * map.seq));
  for (int64_t b = 0; b < map.batch; b++)
    for (int64_t t = 0; t < map.seq; t++) {
      const int64_t position = fsdp_row_position(&map, t);
      const int64_t start = starts.empty() ? 0 : starts[size_t(b * positions + position)];
      extent.greatest = std::max(extent.greatest, position - start);
      used[size_t(fsdp_row_of(&map, b, t))] = position - start < M;
    }
  for (size_t row = used.size(); row > 0 && !used[row - 1]; row--) extent.padding++;
  return extent;
}

// A table of M positions, which need not be all that the rows have. They count from the start of a document,
// in sequences of `documents` positions, unless that is 0.
void positions(fsdp_dtype dtype, const row_shape &s, int64_t M, const cut &how, int64_t documents = 0) {
  fsdp_op_attrs attrs = cut_attrs(attrs_of(s), how);
  attrs.positions = M;
  attrs.documents = documents;
  fsdp_kernel_call call = {};
  call.kind = FSDP_OP_ADD_POSITIONS;
  call.attrs = &attrs;
  const fsdp_row_map map = fsdp_row_map_of(&call);
  const std::vector<int32_t> starts = starts_of(s.B, documents);
  const position_extent extent = extent_of(map, starts, documents, M);
  const int64_t rest = extent.greatest < M ? (M - 1 - extent.greatest) * s.C : 0; // of the table
  const std::string shape =
      shape_text(s) + " M" + std::to_string(M) + cut_text(how) + (documents > 0 ? " documents" : "");
  const auto add_starts = [&](twin_case *c) {
    if (documents == 0) return;
    twin_integers(c, starts);
    c->operands.back().untouched = documents - 1 - fsdp_row_position(&map, s.T - 1);
  };
  twin_case c = twin_of(FSDP_OP_ADD_POSITIONS, attrs, dtype);
  c.name += shape;
  twin_input(&c, dtype, M * s.C);
  c.operands.back().untouched = rest;
  twin_update(&c, dtype, s.B * s.T * s.C);
  c.operands.back().untouched = extent.padding * s.C;
  add_starts(&c);
  twin_check(c);
  for (fsdp_dtype weight_dtype : dtypes)
    for (bool updates : {false, true}) {
      c = twin_of(FSDP_OP_POSITIONS_BACKWARD, attrs, dtype);
      c.name += shape + (updates ? " update" : "") + " d_weight " + fsdp_dtype_name(weight_dtype);
      c.tolerance = twin_tolerance(weight_dtype);
      twin_input(&c, dtype, s.B * s.T * s.C);
      c.operands.back().untouched = extent.padding * s.C;
      twin_result(&c, updates, weight_dtype, M * s.C);
      if (updates && documents == 0) c.operands.back().untouched = rest;
      add_starts(&c);
      twin_check(c);
    }
}

void swiglus(fsdp_dtype dtype, const row_shape &s) {
  const int64_t N = s.B * s.T;
  twin_case c = twin_of(FSDP_OP_SWIGLU, attrs_of(s), dtype);
  c.name += shape_text(s);
  twin_input(&c, dtype, N * 2 * s.C, 3);
  twin_output(&c, dtype, N * s.C);
  twin_check(c);
  c = twin_of(FSDP_OP_SWIGLU_BACKWARD, attrs_of(s), dtype);
  c.name += shape_text(s);
  twin_input(&c, dtype, N * s.C);
  twin_update(&c, dtype, N * 2 * s.C, 3);
  twin_check(c);
}

struct head_shape {
  int64_t B, T, H, K, D;
};
const head_shape head_shapes[] = {{1, 1, 1, 1, 64}, {3, 17, 4, 1, 80}, {1, 1000, 2, 1, 128}, {1, 5, 8, 1, 6}};

fsdp_op_attrs heads_attrs(const head_shape &s) {
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.heads = s.H;
  attrs.kv_heads = s.K;
  attrs.head_dim = s.D;
  attrs.eps = 1e-5f;
  return attrs;
}

std::string heads_text(const head_shape &s) {
  return " B" + std::to_string(s.B) + " T" + std::to_string(s.T) + " H" + std::to_string(s.H) + " K" +
         std::to_string(s.K) + " D" + std::to_string(s.D);
}

void qk_norms(fsdp_dtype dtype, const head_shape &s) {
  const int64_t N = s.B * s.T, Q = (s.H + 2 * s.K) * s.D, normed = s.H + s.K;
  twin_case c = twin_of(FSDP_OP_QK_NORM, heads_attrs(s), dtype);
  c.name += heads_text(s);
  twin_input(&c, dtype, N * Q);
  twin_input(&c, dtype, s.D);
  twin_input(&c, dtype, s.D);
  twin_output(&c, dtype, N * Q);
  twin_output(&c, FSDP_F32, N * normed);
  twin_check(c);
  for (fsdp_dtype weight_dtype : dtypes)
    for (bool updates : {false, true}) {
      c = twin_of(FSDP_OP_QK_NORM_BACKWARD, heads_attrs(s), dtype);
      c.name += heads_text(s) + (updates ? " update" : "") + " d_weight " + fsdp_dtype_name(weight_dtype);
      if (weight_dtype == FSDP_BF16) c.tolerance = 1e-2;
      twin_input(&c, dtype, N * Q);
      c.operands.back().untouched = s.K * s.D; // v
      std::vector<float> rstd(size_t(N * normed));
      for (size_t i = 0; i < rstd.size(); i++) rstd[i] = 0.7f + 0.01f * float(i % 53);
      twin_floats(&c, rstd);
      twin_input(&c, dtype, s.D);
      twin_input(&c, dtype, s.D);
      twin_update(&c, dtype, N * Q);
      c.operands.back().untouched = s.K * s.D;
      twin_result(&c, updates, weight_dtype, s.D);
      twin_result(&c, updates, weight_dtype, s.D);
      twin_workspace(&c, fsdp_op_workspace_bytes(FSDP_OP_CPU, c.kind, &c.attrs, 0) / 4);
      twin_check(c);
    }
}

// In documents of sequences of `documents` positions; 0: they are not told apart.
void ropes(fsdp_dtype dtype, const head_shape &s, const cut &how, int64_t documents = 0) {
  for (fsdp_op_kind kind : {FSDP_OP_ROPE, FSDP_OP_ROPE_BACKWARD}) {
    std::vector<float> inv_freq;
    for (int64_t i = 0; i < s.D / 2; i++) inv_freq.push_back(std::pow(10000.0f, float(-2 * i) / float(s.D)));
    fsdp_op_attrs attrs = cut_attrs(heads_attrs(s), how);
    attrs.inv_freq = inv_freq.data();
    attrs.documents = documents;
    twin_case c = twin_of(kind, attrs, dtype);
    c.name += heads_text(s) + cut_text(how) + (documents > 0 ? " documents" : "");
    twin_update(&c, dtype, s.B * s.T * (s.H + 2 * s.K) * s.D);
    c.operands.back().untouched = s.K * s.D; // v
    if (s.T == 1 && how.first == 0)
      c.operands.back().untouched = c.operands.back().numel; // position 0 is not rotated
    if (documents > 0) {
      fsdp_kernel_call call = {};
      call.kind = kind;
      call.attrs = &attrs;
      const fsdp_row_map map = fsdp_row_map_of(&call);
      twin_integers(&c, starts_of(s.B, documents));
      c.operands.back().untouched = documents - 1 - fsdp_row_position(&map, s.T - 1);
    }
    twin_check(c);
  }
}

// Some tokens occur often, most never; the first and the last of the vocabulary do.
std::vector<int32_t> tokens_of(int64_t N, int64_t V) {
  std::vector<int32_t> tokens;
  for (int64_t n = 0; n < N; n++) tokens.push_back(int32_t(n % 3 == 0 ? 7 % V : n * n * 5 % V));
  tokens[0] = 0;
  tokens.back() = int32_t(V - 1);
  return tokens;
}

// V rows of a table of `extent`, from row `first` on; the whole table if extent is 0.
void embeddings(fsdp_dtype dtype, int64_t V, int64_t C, int64_t B, int64_t T, int64_t first = 0,
                int64_t extent = 0) {
  fsdp_op_attrs attrs = attrs_of({B, T, C});
  attrs.vocabulary = V;
  attrs.first_index = first;
  attrs.extent = extent;
  const int64_t table = extent ? extent : V;
  const std::string shape =
      shape_text({B, T, C}) + " V" + std::to_string(V) + " from " + std::to_string(first);
  twin_case c = twin_of(FSDP_OP_EMBEDDING, attrs, dtype);
  c.name += shape;
  c.tolerance = 0;
  twin_integers(&c, tokens_of(B * T, table));
  twin_input(&c, dtype, V * C);
  twin_output(&c, dtype, B * T * C);
  twin_check(c);
  for (fsdp_dtype weight_dtype : dtypes)
    for (bool updates : {false, true}) {
      attrs.padding_token = updates && table > 1 ? table : 0; // the last position's token
      c = twin_of(FSDP_OP_EMBEDDING_BACKWARD, attrs, dtype);
      c.name += shape + (updates ? " update" : "") + " d_weight " + fsdp_dtype_name(weight_dtype);
      if (weight_dtype == FSDP_BF16) c.tolerance = 1e-2;
      twin_integers(&c, tokens_of(B * T, table));
      twin_input(&c, dtype, B * T * C);
      twin_result(&c, updates, weight_dtype, V * C);
      twin_workspace(&c, 0);
      twin_check(c);
    }
}

// Rows of `stride` columns, of which `slice` from `offset` on are meant; parts of `part` columns.
struct column_shape {
  int64_t B, T, stride, offset, slice, first, part, ranks;
};
// Scalar accesses, wide ones, parts with padding, padding alone, several rows a block and several blocks a row.
const column_shape column_shapes[] = {{1, 1, 1, 0, 1, 0, 1, 1},      {3, 17, 41, 3, 29, 13, 10, 3},
                                      {2, 5, 64, 8, 48, 16, 16, 3},  {2, 50, 96, 16, 40, 32, 16, 3},
                                      {2, 5, 64, 8, 48, 48, 16, 4},  {1, 3, 6000, 8, 5600, 8, 2800, 2},
                                      {1, 3, 640, 0, 600, 5, 600, 1}};

void columns(fsdp_op_kind kind, fsdp_dtype dtype, const column_shape &s, bool adds) {
  const bool out = kind == FSDP_OP_TAKE_COLUMNS || kind == FSDP_OP_SPLIT_COLUMNS;
  const bool one = kind == FSDP_OP_TAKE_COLUMNS || kind == FSDP_OP_PUT_COLUMNS;
  const int64_t N = s.B * s.T, ranks = one ? 1 : s.ranks;
  fsdp_op_attrs attrs = {};
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.in_features = kind == FSDP_OP_PUT_COLUMNS ? s.slice : s.part;
  attrs.out_features = s.slice;
  attrs.out_stride = s.stride;
  attrs.out_offset = s.offset;
  attrs.ranks = ranks;
  if (kind == FSDP_OP_TAKE_COLUMNS) attrs.first_index = s.first;
  // Of the last row of each, the elements that are not accessed.
  const int64_t real = std::min(s.slice - attrs.first_index, ranks * attrs.in_features);
  const int64_t wide = N * s.stride, parts = ranks * N * attrs.in_features;
  const int64_t beside = real > 0 ? s.stride - s.offset - attrs.first_index - real : wide;
  const int64_t last = (s.slice - 1) / attrs.in_features; // the last part that is not padding alone
  const int64_t unread =
      parts - ((last + 1) * N - 1) * attrs.in_features - (s.slice - last * attrs.in_features);
  twin_case c = twin_of(kind, attrs, dtype);
  c.name += shape_text({s.B, s.T, s.slice}) + " of " + std::to_string(s.stride) + ", " +
            std::to_string(ranks) + " of " + std::to_string(attrs.in_features) + (adds ? " update" : "");
  c.tolerance = adds ? c.tolerance : 0;
  twin_input(&c, dtype, out ? wide : parts);
  c.operands.back().untouched = out ? beside : unread;
  if (out) {
    twin_output(&c, dtype, parts);
  } else {
    twin_update(&c, dtype, wide); // if it is written, its other columns still stay
    c.operands.back().access = adds ? FSDP_UPDATE : FSDP_WRITE;
    c.operands.back().untouched = beside;
  }
  twin_check(c);
}

} // namespace

void twin_rows() {
  for (fsdp_dtype dtype : dtypes) {
    for (const row_shape &s : shapes) {
      rmsnorms(dtype, s);
      rmsnorm_backward(dtype, s, false, dtype);
      rmsnorm_backward(dtype, s, true, FSDP_F32);
      layernorms(dtype, s);
      layernorm_backward(dtype, s, false, dtype);
      layernorm_backward(dtype, s, true, FSDP_F32);
      swiglus(dtype, s);
      gelus(dtype, s);
      positions(dtype, s, s.T, {0, 1, 0});
      positions(dtype, s, s.T + 5, {3, 1, 0});
    }
    rmsnorm_backward(dtype, {3, 200, 40}, true, FSDP_F32); // more rows than blocks
    rmsnorm_backward(dtype, {1, 1030, 264}, false, dtype);
    rmsnorm_backward(dtype, {1, 513, 9}, true, dtype);
    layernorms(dtype, {1, 5, 768}, 100);
    layernorm_backward(dtype, {3, 200, 40}, true, FSDP_F32);
    layernorm_backward(dtype, {1, 1030, 264}, false, dtype);
    layernorm_backward(dtype, {1, 513, 9}, true, dtype);
    for (const head_shape &s : head_shapes)
      for (int64_t first : {0, 1000}) ropes(dtype, s, {first, 1, 0});
    ropes(dtype, {2, 70, 2, 1, 64}, {0, 1, 0}, 70);
    positions(dtype, {2, 70, 72}, 70, {0, 1, 0}, 70);
    positions(dtype, {1, 40, 9}, 4, {0, 1, 0}, 40);
    for (const cut &how : cuts) {
      ropes(dtype, {3, 24, 3, 1, 16}, how);
      for (int64_t M : {12, 25, 60}) positions(dtype, {3, 24, 40}, M, how);
      ropes(dtype, {3, 24, 3, 1, 16}, how, 60);
      for (int64_t M : {3, 60}) positions(dtype, {3, 24, 40}, M, how, 60);
    }
    for (const head_shape &s : head_shapes) qk_norms(dtype, s);
    qk_norms(dtype, {1, 7, 11, 9, 256}); // more heads than a block has at a time
    qk_norms(dtype, {1, 4, 33, 3, 2});
    qk_norms(dtype, {1, 600, 3, 1, 24});
    for (const column_shape &s : column_shapes) {
      columns(FSDP_OP_TAKE_COLUMNS, dtype, s, false);
      columns(FSDP_OP_SPLIT_COLUMNS, dtype, s, false);
      for (bool adds : {false, true}) {
        columns(FSDP_OP_PUT_COLUMNS, dtype, s, adds);
        columns(FSDP_OP_JOIN_COLUMNS, dtype, s, adds);
      }
    }
    embeddings(dtype, 1, 8, 1, 1);
    embeddings(dtype, 257, 33, 3, 17);
    embeddings(dtype, 600, 24, 3, 1000);
    embeddings(dtype, 32001, 8, 1, 17);
    embeddings(dtype, 300, 12, 1, 1);
    for (int64_t rank = 0; rank < 4; rank++) embeddings(dtype, 87, 24, 2, 100, rank * 87, 257);
    embeddings(dtype, 5, 8, 1, 17, 20, 17); // padding alone
  }
}
