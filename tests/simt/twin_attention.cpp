// Causal attention with grouped key/value heads, both directions.
#include "kernels/row_map.h"
#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"

#include <cmath>
#include <cstring>

extern "C" {
#include "runtime/base/random.h"
#include "tests/support/draws.h"
}

namespace {

struct heads {
  int64_t B, T, H, K, D, window;
};

// How a sequence's T rows lie: `pieces` of them; part `part` of `parts` (0: attention, whose keys lie in the
// same rows). `is_alone`: q is no slice of q|k|v.
struct cut {
  int64_t pieces, parts, part;
  bool is_alone = false;
  int64_t head_parts = 0; // blocks that share a group's heads in the backward
  bool rotates_back = false;
  int64_t documents = 0; // their mean length; 0: they are not told apart
  float dropout = 0;     // of probabilities
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

// Several pieces, in a tile and over several; one that holds the end of the first chunk; chunks of a tile and a
// bit; the parts at both ends.
const struct cut_heads {
  heads s;
  cut how;
} cut_shapes[] = {{{2, 136, 2, 1, 64, 0}, {2, 0, 0}},   {{1, 200, 4, 2, 128, 0}, {4, 0, 0}},
                  {{2, 12, 2, 1, 64, 0}, {4, 0, 0}},    {{1, 136, 2, 1, 80, 50}, {2, 0, 0}},
                  {{2, 66, 2, 1, 20, 7}, {3, 0, 0}},    {{1, 100, 2, 1, 64, 0}, {1, 1, 0}},
                  {{2, 132, 2, 1, 64, 0}, {1, 2, 0}},   {{2, 132, 2, 1, 64, 0}, {3, 2, 1}},
                  {{1, 204, 4, 1, 128, 0}, {4, 2, 0}},  {{2, 36, 2, 2, 128, 0}, {1, 4, 3}},
                  {{1, 132, 2, 1, 64, 70}, {3, 3, 2}},  {{1, 70, 2, 1, 80, 33}, {1, 3, 0}},
                  {{2, 24, 2, 1, 20, 0}, {4, 3, 1}},    {{1, 12, 2, 2, 64, 1}, {3, 2, 1}},
                  {{1, 36, 1, 1, 160, 0}, {2, 2, 1}},   {{2, 2, 3, 1, 8, 0}, {1, 4, 0}},
                  {{1, 280, 1, 1, 128, 100}, {2, 2, 1}}};
// q alone: as wide as k|v; by tensor cores and not, with a window, over parts.
const cut_heads alone_shapes[] = {{{1, 100, 2, 1, 64, 0}, {1, 1, 0, true}},
                                  {{2, 132, 4, 1, 128, 0}, {3, 2, 1, true}},
                                  {{1, 70, 4, 2, 80, 33}, {1, 3, 0, true}},
                                  {{2, 24, 2, 1, 20, 0}, {4, 3, 1, true}},
                                  {{1, 36, 1, 1, 160, 0}, {2, 2, 1, true}}};

// The heads of a group cut over blocks: into all, some and a prime number of parts; head dimensions that fill
// a tile, that end inside one and that have an odd number of eights; windows, pieces, parts of a sequence with
// keys that no query sees; and what the general kernels take, which cut nothing.
const cut_heads parted_shapes[] = {
    {{2, 130, 8, 2, 64, 0}, {1, 0, 0, false, 4}}, {{1, 200, 8, 1, 128, 0}, {1, 0, 0, false, 2}},
    {{1, 33, 7, 1, 72, 0}, {1, 0, 0, false, 7}},  {{1, 140, 4, 2, 80, 50}, {1, 0, 0, false, 2}},
    {{2, 132, 4, 1, 64, 0}, {3, 2, 1, false, 2}}, {{1, 36, 4, 2, 128, 0}, {1, 4, 1, false, 2}},
    {{1, 132, 4, 1, 64, 70}, {3, 3, 2, true, 4}}, {{1, 33, 4, 1, 20, 0}, {1, 0, 0, false, 4}}};

// The gradients rotated back: heads of the two tiles' widths; parts of a group, pieces and a window.
const cut_heads rotated_shapes[] = {{{2, 130, 4, 2, 64, 0}, {1, 0, 0, false, 0, true}},
                                    {{1, 200, 2, 1, 128, 0}, {1, 0, 0, false, 0, true}},
                                    {{1, 200, 4, 1, 128, 70}, {4, 0, 0, false, 2, true}},
                                    {{1, 70, 4, 1, 64, 0}, {2, 0, 0, false, 4, true}}};

// Documents: shorter and longer than tiles, of one token each, one a sequence; windows shorter and longer than
// they are; what pieces, chunks and parts of a group change; gradients rotated back, in their documents.
const cut_heads document_shapes[] = {{{1, 33, 2, 1, 64, 0}, {1, 0, 0, false, 0, false, 1}},
                                     {{3, 130, 4, 2, 64, 0}, {1, 0, 0, false, 0, false, 20}},
                                     {{2, 300, 2, 1, 128, 0}, {1, 0, 0, false, 0, false, 150}},
                                     {{1, 263, 1, 1, 128, 0}, {1, 0, 0, false, 0, false, 10000}},
                                     {{2, 193, 2, 1, 64, 30}, {1, 0, 0, false, 0, false, 50}},
                                     {{1, 263, 2, 1, 128, 100}, {1, 0, 0, false, 0, false, 60}},
                                     {{1, 140, 4, 2, 80, 64}, {2, 0, 0, false, 2, false, 30}},
                                     {{2, 132, 4, 1, 64, 0}, {3, 2, 1, false, 2, false, 40}},
                                     {{1, 204, 4, 1, 128, 0}, {4, 2, 0, false, 0, false, 100}},
                                     {{2, 36, 2, 2, 128, 0}, {1, 4, 3, true, 0, false, 12}},
                                     {{1, 132, 2, 1, 64, 70}, {3, 3, 2, false, 0, false, 90}},
                                     {{2, 67, 2, 1, 20, 0}, {1, 0, 0, false, 0, false, 12}},
                                     {{2, 24, 2, 1, 20, 9}, {4, 3, 1, false, 0, false, 20}},
                                     {{1, 67, 1, 1, 160, 17}, {1, 0, 0, false, 0, false, 30}}};
const cut_heads rotated_document_shapes[] = {{{2, 130, 4, 2, 64, 0}, {1, 0, 0, false, 0, true, 40}},
                                             {{1, 200, 4, 1, 128, 70}, {4, 0, 0, false, 2, true, 60}}};

// Dropout of probabilities, by the general kernels: groups of heads; windows; pieces and parts; documents; both
// widths of a thread's columns.
const cut_heads dropped_shapes[] = {{{2, 67, 4, 2, 64, 0}, {1, 0, 0, false, 0, false, 0, 0.3f}},
                                    {{1, 130, 2, 1, 20, 33}, {1, 0, 0, false, 0, false, 0, 0.1f}},
                                    {{2, 66, 2, 1, 32, 0}, {3, 0, 0, false, 0, false, 0, 0.5f}},
                                    {{2, 36, 4, 2, 16, 0}, {3, 2, 1, false, 0, false, 0, 0.3f}},
                                    {{1, 70, 4, 2, 80, 33}, {1, 3, 0, true, 0, false, 12, 0.2f}},
                                    {{2, 40, 1, 1, 160, 0}, {1, 0, 0, false, 0, false, 15, 0.3f}}};

// For the wgmma kernel without a fence; with one tile, and with many.
const heads unfenced_shapes[] = {{2, 65, 2, 1, 64, 0}, {1, 400, 1, 1, 128, 0}};

// For a grid of 2 blocks along y: more tiles of rows than that, so that the last layer along z is not full.
const cut_heads many_tiles[] = {{{1, 270, 2, 1, 64, 0}, {1, 0, 0, false, 2}},
                                {{2, 35, 1, 1, 20, 0}, {1, 0, 0}},
                                {{1, 270, 1, 1, 128, 3}, {1, 0, 0}},
                                {{1, 140, 1, 1, 64, 0}, {1, 2, 0}},
                                {{1, 36, 1, 1, 160, 0}, {3, 2, 1}}};

// As models have them: of head dimension 64, and near enough for 128.
const float *frequencies() {
  static std::vector<float> values;
  for (int i = int(values.size()); i < 64; i++) values.push_back(powf(10000.0f, -float(i) / 32));
  return values.data();
}

bool is_apart(const cut &how) {
  return how.parts > 0;
}

// Columns of what q lies in.
int64_t width_of(const heads &s, const cut &how) {
  return (how.is_alone ? s.H : s.H + 2 * s.K) * s.D;
}

// Positions of a whole sequence.
int64_t keys_of(const heads &s, const cut &how) {
  return is_apart(how) ? how.parts * s.T : s.T;
}

// Of each sequence's positions, the first one of their document: documents of drawn lengths, and padding at the
// end, of which each position is a document.
std::vector<int32_t> starts_of(const heads &s, const cut &how) {
  const int64_t S = keys_of(s, how);
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < s.B * S; i++) {
    uint32_t words[4];
    fsdp_random_words(uint64_t(S + how.documents), 7, uint64_t(i), words);
    const bool begins = i % S == 0 || i % S >= S - S / 16 || words[0] % uint64_t(how.documents) == 0;
    starts.push_back(begins ? int32_t(i % S) : starts.back());
  }
  return starts;
}

fsdp_attention_kernel tensor_kernel = FSDP_ATTENTION_MMA;

// As a plan on a GPU that has the kernel decides.
fsdp_attention_kernel kernel_of(fsdp_dtype dtype, int64_t D, bool drops = false) {
  const bool is_general = dtype != FSDP_BF16 || D % 8 != 0 || D > 128 || drops;
  return is_general ? FSDP_ATTENTION_GENERAL : tensor_kernel;
}

fsdp_op_attrs attrs_of(const heads &s, const cut &how, fsdp_dtype dtype) {
  fsdp_op_attrs attrs = {};
  attrs.attention = kernel_of(dtype, s.D, how.dropout > 0);
  attrs.batch = s.B;
  attrs.seq = s.T;
  attrs.heads = s.H;
  attrs.kv_heads = s.K;
  attrs.head_dim = s.D;
  attrs.window = s.window;
  attrs.head_parts = how.head_parts;
  attrs.rotates_back = how.rotates_back;
  if (how.rotates_back) attrs.inv_freq = frequencies();
  if (how.documents > 0) attrs.documents = keys_of(s, how);
  if (how.pieces > 1) attrs.piece = s.T / how.pieces;
  if (how.parts > 1) {
    attrs.chunk = s.T / 2;
    attrs.first_index = how.part * attrs.chunk;
    attrs.second_index = (2 * how.parts - 1 - how.part) * attrs.chunk;
  }
  if (how.dropout > 0) { // rows and heads of a larger whole
    attrs.dropout = how.dropout;
    attrs.drop_key = 0x123456789abcdefu;
    attrs.first_row = 3;
    attrs.draws = s.B * s.T + 5;
    attrs.first_head = 4;
    attrs.head_group = s.H / s.K + 1;
  }
  attrs.kv_seq = how.parts * s.T;
  attrs.kv_parts = how.parts;
  attrs.kv_piece = is_apart(how) ? attrs.piece : 0;
  attrs.out_stride = is_apart(how) ? width_of(s, how) : 0;
  return attrs;
}

std::string text_of(const heads &s, const cut &how) {
  std::string text = " B" + std::to_string(s.B) + " T" + std::to_string(s.T) + " H" + std::to_string(s.H) +
                     " K" + std::to_string(s.K) + " D" + std::to_string(s.D);
  if (s.window > 0) text += " window " + std::to_string(s.window);
  if (how.pieces > 1) text += " pieces " + std::to_string(how.pieces);
  if (is_apart(how)) text += " part " + std::to_string(how.part) + "/" + std::to_string(how.parts);
  if (how.is_alone) text += " q alone";
  if (how.head_parts > 1) text += " a group in " + std::to_string(how.head_parts);
  if (how.rotates_back) text += " rotated back";
  if (how.documents > 0) text += " documents of " + std::to_string(how.documents);
  if (how.dropout > 0) text += " dropout";
  return text;
}

// q|k|v, and k|v if they have rows of their own: columns of k and v beside q are NaN then.
void inputs_of(twin_case *c, fsdp_dtype dtype, const heads &s, const cut &how, double deviation) {
  const int64_t Q = width_of(s, how), KV = 2 * s.K * s.D, others = Q - s.H * s.D;
  twin_input(c, dtype, s.B * s.T * Q, deviation);
  if (!is_apart(how)) return;
  twin_operand &qkv = c->operands.back();
  const int64_t width = fsdp_dtype_bytes(dtype);
  for (int64_t row = 0; row < s.B * s.T; row++)
    memset(&qkv.initial[0] + ((row + 1) * Q - others) * width, 0xff, size_t(others * width));
  qkv.untouched = others;
  twin_input(c, dtype, s.B * how.parts * s.T * KV, deviation);
}

// d_q|d_k|d_v, and d_k|d_v if they have rows of their own: their columns beside d_q stay then.
void gradients_of(twin_case *c, fsdp_dtype dtype, const heads &s, const cut &how) {
  const int64_t N = s.B * s.T, Q = width_of(s, how), KV = 2 * s.K * s.D;
  if (!is_apart(how)) {
    twin_output(c, dtype, N * Q);
    return;
  }
  twin_update(c, dtype, N * Q);
  c->operands.back().access = FSDP_WRITE;
  c->operands.back().untouched = Q - s.H * s.D;
  twin_output(c, dtype, s.B * how.parts * s.T * KV);
}

// Two words for each row, of which every seventh drops nothing.
void draws_of(twin_case *c, const cut &how) {
  if (how.dropout == 0) return;
  std::vector<int32_t> draws(size_t(FSDP_DROPOUT_WORDS * c->attrs.draws));
  for (int64_t row = 0; row < c->attrs.draws; row++) {
    fsdp_dropout_row(9, 2, 1, row, &draws[size_t(FSDP_DROPOUT_WORDS * row)]);
    if (row % 7 == 6) draws[size_t(FSDP_DROPOUT_WORDS * row)] = 0;
  }
  twin_integers(c, draws);
  c->operands.back().untouched = 2 * FSDP_DROPOUT_WORDS; // of the rows behind
}

// The starts of documents, if they are told apart.
void documents_of(twin_case *c, const heads &s, const cut &how) {
  if (how.documents == 0) return;
  twin_integers(c, starts_of(s, how));
  const fsdp_op_attrs &attrs = c->attrs;
  if (attrs.chunk > 0) // of a part without the last positions
    c->operands.back().untouched = attrs.documents - attrs.second_index - (attrs.seq - attrs.chunk);
}

void forward_and_backward(fsdp_dtype dtype, const heads &s, const cut &how = {1, 0, 0}) {
  const int64_t N = s.B * s.T;
  const bool apart = is_apart(how);
  const fsdp_op_attrs attrs = attrs_of(s, how, dtype);
  twin_case c = twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION, attrs, dtype);
  c.name += text_of(s, how);
  inputs_of(&c, dtype, s, how, 1.5); // some rows are nearly one-hot
  const size_t inputs = c.operands.size();
  twin_output(&c, dtype, N * s.H * s.D);
  twin_output(&c, FSDP_F32, N * s.H);
  const std::vector<twin_operand> forward = c.operands;
  documents_of(&c, s, how);
  draws_of(&c, how);
  const std::vector<std::vector<unsigned char>> results = twin_check(c);
  twin_case back =
      twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION_BACKWARD : FSDP_OP_ATTENTION_BACKWARD, attrs, dtype);
  back.name += text_of(s, how);
  back.operands = forward;
  for (size_t i = inputs; i < inputs + 2; i++) { // what the CPU's forward made
    back.operands[i].initial = results[i];
    back.operands[i].access = FSDP_READ;
    back.operands[i].is_unwritten = false;
  }
  twin_input(&back, dtype, N * s.H * s.D);
  gradients_of(&back, dtype, s, how);
  documents_of(&back, s, how);
  draws_of(&back, how);
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
  for (const cut_heads &c : cut_shapes) forward_and_backward(dtype, c.s, c.how);
  for (const cut_heads &c : alone_shapes) forward_and_backward(dtype, c.s, c.how);
  for (const cut_heads &c : parted_shapes) forward_and_backward(dtype, c.s, c.how);
  for (const cut_heads &c : document_shapes) forward_and_backward(dtype, c.s, c.how);
  for (const cut_heads &c : dropped_shapes) forward_and_backward(dtype, c.s, c.how);
  if (dtype == FSDP_BF16) {
    for (const cut_heads &c : rotated_shapes) forward_and_backward(dtype, c.s, c.how);
    for (const cut_heads &c : rotated_document_shapes) forward_and_backward(dtype, c.s, c.how);
  }
  if (dtype == FSDP_BF16 && tensor_kernel == FSDP_ATTENTION_WGMMA) {
    tensor_kernel = FSDP_ATTENTION_WGMMA_UNFENCED;
    for (const heads &s : unfenced_shapes) forward_and_backward(dtype, s);
    tensor_kernel = FSDP_ATTENTION_WGMMA;
  }
  fsdp_cuda_limit_grid(2);
  for (const cut_heads &c : many_tiles) forward_and_backward(dtype, c.s, c.how);
  fsdp_cuda_limit_grid(0);
}

// ---- No leak

// Draws for the case `number`.
struct drawing {
  uint64_t number, next = 0;
  int64_t below(int64_t count) {
    uint32_t words[4];
    fsdp_random_words(number, 21, next++, words);
    return int64_t(words[0] % uint64_t(count));
  }
};

// A drawn packing: the shape, the cut of its rows and the mean length of documents. Windows are shorter and
// longer than documents, some sequences longer than any tile.
cut_heads draw_packing(drawing *d, fsdp_dtype dtype) {
  const bool odd = dtype == FSDP_F32 || kernel_of(dtype, 64) == FSDP_ATTENTION_GENERAL;
  const int64_t widths[] = {64, 128, odd ? 20 : 80}, parts = d->below(2) ? 0 : 1 + d->below(4);
  cut_heads c = {{1 + d->below(2), 0, 2, 1, widths[d->below(3)], 0}, {1 + d->below(3), parts, 0}};
  if (d->below(3) == 0) c.s.H = 4, c.s.K = 2;
  c.s.T = c.how.pieces * 2 * (1 + d->below((parts > 1 ? 150 : 300) / c.how.pieces / 2));
  if (parts > 0) c.how.part = d->below(parts), c.how.is_alone = d->below(2);
  if (d->below(2)) c.how.head_parts = c.s.H / c.s.K;
  if (d->below(2)) c.s.window = 1 + d->below(c.s.T);
  c.how.rotates_back = kernel_of(dtype, c.s.D) != FSDP_ATTENTION_GENERAL && c.s.D % 64 == 0 && d->below(2);
  c.how.documents = 1 + d->below(d->below(2) ? 20 : keys_of(c.s, c.how));
  return c;
}

struct packing {
  heads s;
  cut how;
  fsdp_row_map queries;
  fsdp_key_map keys;
  std::vector<int32_t> starts;
};

packing packing_of(const cut_heads &c, const twin_case &attention) {
  fsdp_kernel_call call = {};
  call.kind = attention.kind;
  call.attrs = &attention.attrs;
  packing p = {c.s, c.how, fsdp_row_map_of(&call), {}, starts_of(c.s, c.how)};
  p.keys = fsdp_key_map_of(&call, &p.queries);
  return p;
}

// Rows of queries of sequence b, or of keys, by whether they belong to the document that begins at `start`.
std::vector<int64_t> rows_of(const packing &p, bool of_keys, int64_t b, int64_t start, bool within) {
  std::vector<int64_t> rows;
  const int64_t S = keys_of(p.s, p.how), count = of_keys ? S : p.s.T;
  for (int64_t other = 0; other < p.s.B; other++)
    for (int64_t i = 0; i < count; i++) {
      const int64_t position = of_keys ? i : fsdp_row_position(&p.queries, i);
      const bool is_within = other == b && p.starts[size_t(other * S + position)] == start;
      if (is_within == within)
        rows.push_back(of_keys ? fsdp_key_row(&p.keys, other, i) : fsdp_row_of(&p.queries, other, i));
    }
  return rows;
}

// Other numbers in some rows of an operand.
void change_rows(twin_operand *o, const std::vector<int64_t> &rows, int64_t width) {
  const size_t bytes = size_t(width * fsdp_dtype_bytes(o->dtype));
  for (int64_t row : rows)
    for (size_t i = 0; i < bytes; i += 2) o->initial[size_t(row) * bytes + i] ^= 0x15;
}

bool same_rows(const std::vector<unsigned char> &a, const std::vector<unsigned char> &b,
               const std::vector<int64_t> &rows, int64_t row_bytes) {
  for (int64_t row : rows)
    if (memcmp(&a[size_t(row * row_bytes)], &b[size_t(row * row_bytes)], size_t(row_bytes))) return false;
  return true;
}

// Changes all of one document, and looks at the others' rows of what the kernels leave.
void no_leak(fsdp_dtype dtype, uint64_t number) {
  drawing d = {number};
  const cut_heads c = draw_packing(&d, dtype);
  const bool apart = is_apart(c.how);
  const fsdp_op_attrs attrs = attrs_of(c.s, c.how, dtype);
  const int64_t N = c.s.B * c.s.T, width = c.s.H * c.s.D, Q = width_of(c.s, c.how), KV = 2 * c.s.K * c.s.D;
  const int64_t S = keys_of(c.s, c.how), bytes = fsdp_dtype_bytes(dtype);
  twin_case ops[2] = {
      twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION, attrs, dtype),
      twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION_BACKWARD : FSDP_OP_ATTENTION_BACKWARD, attrs, dtype)};
  const packing p = packing_of(c, ops[0]);
  const int64_t b = d.below(c.s.B), start = p.starts[size_t(b * S + d.below(S))];
  const std::vector<int64_t> own = rows_of(p, false, b, start, true),
                             others = rows_of(p, false, b, start, false);
  const std::vector<int64_t> own_keys = rows_of(p, true, b, start, true),
                             other_keys = rows_of(p, true, b, start, false);
  std::vector<std::vector<unsigned char>> made[2][2]; // forward and backward, before and after the change
  for (int changed = 0; changed < 2; changed++)
    for (int backward = 0; backward < 2; backward++) {
      twin_case run = ops[backward];
      inputs_of(&run, dtype, c.s, c.how, 1.5);
      const size_t inputs = run.operands.size();
      if (changed) change_rows(&run.operands[0], own, Q);
      if (changed && apart) change_rows(&run.operands[1], own_keys, KV);
      twin_output(&run, dtype, N * width);
      twin_output(&run, FSDP_F32, N * c.s.H);
      if (backward) {
        for (size_t i = inputs; i < inputs + 2; i++) {
          run.operands[i].initial = made[0][changed][i];
          run.operands[i].access = FSDP_READ;
          run.operands[i].is_unwritten = false;
        }
        twin_input(&run, dtype, N * width);
        if (changed) change_rows(&run.operands.back(), own, width);
        gradients_of(&run, dtype, c.s, c.how);
      }
      documents_of(&run, c.s, c.how);
      if (backward) twin_workspace(&run, 0);
      made[backward][changed] = twin_run(run);
    }
  const size_t o = 1 + apart, d_q = o + 3;
  bool good = same_rows(made[0][0][o], made[0][1][o], others, width * bytes);
  good = good && same_rows(made[1][0][d_q], made[1][1][d_q], others, Q * bytes);
  if (apart) good = good && same_rows(made[1][0][d_q + 1], made[1][1][d_q + 1], other_keys, KV * bytes);
  // And something of its own rows is another.
  good = good && (own.empty() || !same_rows(made[0][0][o], made[0][1][o], own, width * bytes));
  twin_report(good, "no leak " + std::to_string(number) + " " + fsdp_dtype_name(dtype) + text_of(c.s, c.how) +
                        " of " + std::to_string(start));
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
  exact.attrs.attention = FSDP_ATTENTION_GENERAL;
  for (twin_operand &o : exact.operands)
    if (o.dtype == FSDP_BF16) o = widened(o);
  const std::vector<std::vector<unsigned char>> mine = twin_run(c), wanted = twin_run(exact);
  for (size_t i : results)
    twin_compare(c.name + " operand " + std::to_string(i) + " against fp32", c.operands[i].dtype, mine[i],
                 FSDP_F32, wanted[i], c.tolerance);
  return wanted;
}

// What a GPU reaches; attention is counted causally.
void print_rate(const twin_case &c) {
#if !defined(FSDP_SIMT)
  const double seconds = twin_time_s(c);
  printf("rate   %-64s %8.1f us %7.1f TFLOP/s\n", c.name.c_str(), 1e6 * seconds,
         fsdp_op_flops(c.kind, &c.attrs) / seconds / 1e12);
  fflush(stdout);
#else
  (void)c;
#endif
}

void production(const heads &s, const cut &how) {
  const fsdp_op_attrs attrs = attrs_of(s, how, FSDP_BF16);
  const bool apart = is_apart(how);
  const int64_t N = s.B * s.T;
  twin_case c = twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION, attrs, FSDP_BF16);
  c.name += text_of(s, how);
  inputs_of(&c, FSDP_BF16, s, how, 1);
  const size_t o = c.operands.size(), lse = o + 1;
  twin_output(&c, FSDP_BF16, N * s.H * s.D);
  twin_output(&c, FSDP_F32, N * s.H);
  const std::vector<std::vector<unsigned char>> made = against_fp32(c, {o, lse});
  print_rate(c);
  twin_case back =
      twin_of(apart ? FSDP_OP_CONTEXT_ATTENTION_BACKWARD : FSDP_OP_ATTENTION_BACKWARD, attrs, FSDP_BF16);
  back.name += text_of(s, how);
  back.tolerance = 2 * twin_tolerance(FSDP_BF16); // o, p and d_s are each rounded to 8 bits
  back.operands = c.operands;
  for (size_t i = o; i <= lse; i++) {
    back.operands[i].access = FSDP_READ;
    back.operands[i].is_unwritten = false;
  }
  for (size_t e = 0; e < made[o].size() / 4; e++) { // what fp32's forward made, in bf16
    float value;
    memcpy(&value, &made[o][e * 4], 4);
    const fsdp_bf16 half = fsdp_bf16_from_f32(value);
    memcpy(&back.operands[o].initial[e * 2], &half, 2);
  }
  back.operands[lse].initial = made[lse];
  twin_input(&back, FSDP_BF16, N * s.H * s.D);
  gradients_of(&back, FSDP_BF16, s, how);
  std::vector<size_t> results = {lse + 2};
  if (apart) results.push_back(lse + 3);
  twin_workspace(&back, 0);
  against_fp32(back, results);
  print_rate(back);
}

} // namespace

void twin_use_attention(fsdp_attention_kernel kernel) {
  tensor_kernel = kernel;
}

void twin_attention_production() {
#if defined(FSDP_SIMT)
  production({1, 96, 4, 1, 128, 0}, {1, 0, 0});
  production({1, 96, 4, 1, 128, 0}, {2, 2, 0});
#else
  production({1, 4096, 32, 8, 128, 0}, {1, 0, 0});
  production({1, 4096, 32, 8, 128, 0}, {8, 2, 0});
#endif
}

void twin_attention_leaks() {
  const uint64_t count = uint64_t(test_draws(60, 10));
  for (uint64_t number = 0; number < count; number++) {
    no_leak(FSDP_BF16, number);
    if (number % 4 == 0) no_leak(FSDP_F32, number);
  }
}

void twin_attention_fp32() {
  run(FSDP_F32);
}

void twin_attention_bf16() {
  run(FSDP_BF16);
}
