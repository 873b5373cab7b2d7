// Routed experts: the order of routed rows, products grouped by expert, and what lies between them.
#include "tests/simt/twin.h"

#include <algorithm>
#include <cstring>

extern "C" {
#include "runtime/base/random.h"
}

namespace {

const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// N rows of k slots each, E experts, of which `own` from `first` on are this rank's; there is room for
// `arrivals` routed rows (0: all slots, and every expert is its own). Operands have `wave` of them (0: all)
// from number `wave_first` on. Of a rank's experts an op has `block` (0: all) from `block_first` on.
struct experts_shape {
  int64_t N, k, E, C, I, first = 0, own = 0, arrivals = 0, wave_first = 0, wave = 0, block_first = 0,
                         block = 0;
};

fsdp_grouped_kernel tensor_kernel = FSDP_GROUPED_MMA;

// How slots choose experts: evenly; the first ones by far most often, so that others have no rows; one
// expert for all rows.
enum class choice { evenly, skewed, one };
const char *const choice_names[] = {"even", "skewed", "one"};

// Rows of one tile and of several of 64 and of 128, fewer rows than experts; dimensions that are multiples
// of a tile, of 8, and of nothing; one slot, and as many as experts; a rank's share of the experts.
const experts_shape shapes[] = {{1, 1, 1, 8, 8},
                                {3, 2, 8, 64, 24},
                                {70, 2, 5, 72, 40},
                                {40, 4, 4, 128, 136},
                                {150, 2, 3, 200, 64},
                                {33, 3, 40, 13, 9},
                                {20, 8, 64, 40, 33},
                                {60, 2, 9, 48, 16, 3, 4, 120},
                                {21, 2, 6, 20, 12, 4, 2, 42},
                                {50, 1, 7, 8, 8, 6, 1, 50},
                                {90, 2, 4, 64, 24, 0, 4, 180, 0, 70},
                                {90, 2, 4, 64, 24, 1, 2, 180, 70, 70},
                                {150, 2, 5, 72, 40, 0, 0, 0, 0, 0, 1, 3},
                                {90, 2, 6, 20, 12, 1, 4, 180, 70, 70, 2, 2}};

// Of those by wgmma, 128 x 256: several tiles of an expert and several experts for each of a GPU's blocks;
// tiles of one row and of one chunk of columns; of one to six steps, the last one whole and not; bands of more
// than 16 tiles; a rank's experts, waves and blocks.
const experts_shape large_shapes[] = {{300, 2, 3, 264, 200},
                                      {70, 3, 5, 520, 136},
                                      {129, 1, 1, 384, 264},
                                      {2200, 1, 1, 72, 24},
                                      {64, 4, 9, 72, 264, 3, 4, 256},
                                      {40, 3, 70, 72, 24},
                                      {200, 2, 4, 328, 64, 1, 2, 400, 150, 200},
                                      {150, 2, 5, 264, 40, 0, 0, 0, 0, 0, 1, 3}};

int64_t own_of(const experts_shape &s) {
  return s.arrivals > 0 ? s.own : s.E;
}
int64_t block_of(const experts_shape &s) {
  return s.block > 0 ? s.block : own_of(s);
}
int64_t arrivals_of(const experts_shape &s) {
  return s.arrivals > 0 ? s.arrivals : s.N * s.k;
}
// Rows of operands.
int64_t room_of(const experts_shape &s) {
  return s.wave > 0 ? s.wave : arrivals_of(s);
}

fsdp_op_attrs attrs_of(const experts_shape &s) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = s.N;
  attrs.channels = s.C;
  attrs.intermediate = s.I;
  attrs.slots = s.k;
  attrs.experts = block_of(s);
  attrs.held_experts = s.block > 0 ? own_of(s) : 0;
  attrs.first_expert = s.block_first;
  attrs.first_index = s.first;
  attrs.extent = s.arrivals > 0 ? s.E : 0;
  attrs.arrivals = s.arrivals;
  attrs.routed = s.wave;
  attrs.first_routed = s.wave_first;
  return attrs;
}

// Where slots are sent, and what the order of routed rows is: by brute force.
struct routing {
  std::vector<int32_t> experts, slots, offsets, places;
};

routing route(const experts_shape &s, choice how) {
  routing r;
  for (int64_t n = 0; n < s.N; n++)
    for (int64_t j = 0; j < s.k; j++) {
      uint32_t words[4];
      fsdp_random_words(uint64_t(s.E * 3 + int64_t(how)), 5, uint64_t(n * s.k + j), words);
      int64_t e = int64_t(words[0]) % s.E;
      if (how == choice::skewed && words[1] % 8 != 0) e %= (s.E + 2) / 3;
      if (how == choice::one) e = s.E / 2;
      const auto row = r.experts.end() - j;
      while (std::find(row, r.experts.end(), e) != r.experts.end()) e = (e + 1) % s.E;
      r.experts.push_back(int32_t(e));
    }
  r.places.assign(r.experts.size(), -1);
  for (int64_t e = s.first; e < s.first + own_of(s); e++) {
    r.offsets.push_back(int32_t(r.slots.size()));
    for (size_t i = 0; i < r.experts.size(); i++)
      if (r.experts[i] == e) r.places[i] = int32_t(r.slots.size()), r.slots.push_back(int32_t(i));
  }
  r.offsets.push_back(int32_t(r.slots.size()));
  if (s.block > 0)
    r.offsets = {r.offsets.begin() + s.block_first, r.offsets.begin() + s.block_first + s.block + 1};
  r.slots.resize(size_t(arrivals_of(s)), -1);
  return r;
}

struct expert_case {
  const experts_shape &s;
  const routing &r;
  fsdp_dtype dtype;
  choice how;
  // Of the operands, those that hold a routed row; and those behind them.
  int64_t rows() const { return std::min(std::max<int64_t>(r.offsets.back() - s.wave_first, 0), room_of(s)); }
  int64_t rest() const { return room_of(s) - rows(); }
};

twin_case start(fsdp_op_kind kind, const expert_case &e) {
  const experts_shape &s = e.s;
  twin_case c = twin_of(kind, attrs_of(s), e.dtype);
  const bool is_up = kind == FSDP_OP_EXPERT_UP || kind == FSDP_OP_EXPERT_UP_BACKWARD_INPUT ||
                     kind == FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT;
  const bool fits = e.dtype == FSDP_BF16 && s.C % 8 == 0 && (is_up ? 2 * s.I : s.I) % 8 == 0;
  c.attrs.products = fits ? tensor_kernel : FSDP_GROUPED_GENERAL;
  c.name += " N" + std::to_string(s.N) + " k" + std::to_string(s.k) + " E" + std::to_string(s.E) + " C" +
            std::to_string(s.C) + " I" + std::to_string(s.I) + " " + choice_names[int(e.how)];
  if (s.arrivals > 0) c.name += " experts from " + std::to_string(s.first);
  if (s.block > 0) c.name += " block from " + std::to_string(s.block_first);
  if (s.wave > 0) c.name += " rows from " + std::to_string(s.wave_first);
  return c;
}

// Routed rows: those that there are, and NaNs behind them, which nothing may read.
void routed_input(twin_case *c, const expert_case &e, int64_t width) {
  twin_input(c, e.dtype, room_of(e.s) * width);
  twin_operand &o = c->operands.back();
  const size_t at = size_t(e.rows() * width * fsdp_dtype_bytes(e.dtype));
  std::fill(o.initial.begin() + std::ptrdiff_t(at), o.initial.end(), 0xff);
  o.untouched = e.rest() * width;
}

// Routed rows that are written; what is behind them stays.
void routed_output(twin_case *c, const expert_case &e, int64_t width) {
  twin_update(c, e.dtype, room_of(e.s) * width);
  c->operands.back().access = FSDP_WRITE;
  c->operands.back().untouched = e.rest() * width;
}

void slots_and_offsets(twin_case *c, const expert_case &e, bool reads_slots) {
  twin_integers(c, e.r.slots);
  const int64_t past = e.s.wave_first + e.rows(); // of the slots that are read
  c->operands.back().untouched = reads_slots ? arrivals_of(e.s) - past : arrivals_of(e.s);
  twin_integers(c, e.r.offsets);
}

void workspace(twin_case *c) {
  const int64_t bytes = fsdp_op_workspace_bytes(FSDP_OP_CPU, c->kind, &c->attrs, 0);
  if (bytes > 0 || fsdp_op_workspace_bytes(FSDP_OP_CUDA, c->kind, &c->attrs, 0) > 0)
    twin_workspace(c, bytes / 4);
}

void orders(const expert_case &e) {
  if (e.s.block > 0) return; // it is of all
  twin_case c = start(FSDP_OP_ROUTE_ORDER, e);
  twin_integers(&c, e.r.experts);
  twin_output(&c, FSDP_I32, arrivals_of(e.s));
  twin_output(&c, FSDP_I32, own_of(e.s) + 1);
  twin_output(&c, FSDP_I32, e.s.N * e.s.k);
  workspace(&c);
  const std::vector<std::vector<unsigned char>> made = twin_check(c);
  if (twin_chosen() != TWIN_ALL) return;
  const std::vector<int32_t> *wanted[] = {&e.r.slots, &e.r.offsets, &e.r.places};
  for (size_t i = 0; i < 3; i++)
    twin_report(memcmp(made[i + 1].data(), wanted[i]->data(), wanted[i]->size() * 4) == 0,
                c.name + " operand " + std::to_string(i + 1) + " as counted");
}

// Of the first of several waves.
void overflows(const expert_case &e) {
  if (e.s.wave == 0 || e.s.wave_first > 0 || e.s.block > 0) return;
  for (bool adds : {false, true}) {
    twin_case c = start(FSDP_OP_ROUTE_OVERFLOW, e);
    c.name += adds ? " update" : "";
    twin_integers(&c, e.r.offsets);
    if (adds)
      twin_update(&c, FSDP_F32, 2);
    else
      twin_output(&c, FSDP_F32, 2);
    twin_check(c);
  }
}

// a (rows or tokens) times weights of every expert.
void product(fsdp_op_kind kind, const expert_case &e, int64_t in, int64_t out, bool gathers) {
  twin_case c = start(kind, e);
  if (gathers) {
    twin_input(&c, e.dtype, e.s.N * in);
  } else {
    routed_input(&c, e, in);
  }
  twin_input(&c, e.dtype, block_of(e.s) * in * out, 0.2);
  slots_and_offsets(&c, e, gathers);
  routed_output(&c, e, out);
  workspace(&c);
  twin_check(c);
}

void gradient(fsdp_op_kind kind, const expert_case &e, int64_t in, int64_t out, bool gathers_d_y) {
  for (fsdp_dtype weight_dtype : dtypes)
    for (bool updates : {false, true}) {
      twin_case c = start(kind, e);
      c.name += std::string(" d_weight ") + fsdp_dtype_name(weight_dtype) + (updates ? " update" : "");
      c.tolerance = twin_tolerance(weight_dtype);
      for (bool is_x : {false, true}) {
        const int64_t width = is_x ? in : out;
        if (is_x == gathers_d_y) {
          routed_input(&c, e, width);
        } else {
          twin_input(&c, e.dtype, e.s.N * width);
        }
      }
      slots_and_offsets(&c, e, true);
      twin_result(&c, updates, weight_dtype, block_of(e.s) * in * out);
      workspace(&c);
      twin_check(c);
    }
}

void activations(const expert_case &e) {
  const experts_shape &s = e.s;
  twin_case c = start(FSDP_OP_EXPERT_SWIGLU, e);
  routed_input(&c, e, 2 * s.I);
  twin_input(&c, FSDP_F32, s.N * s.k);
  twin_integers(&c, e.r.places);
  twin_integers(&c, e.r.offsets);
  routed_output(&c, e, s.I);
  twin_check(c);
  for (bool updates : {false, true}) {
    c = start(FSDP_OP_EXPERT_SWIGLU_BACKWARD, e);
    routed_input(&c, e, s.I);
    twin_input(&c, FSDP_F32, s.N * s.k);
    twin_integers(&c, e.r.places);
    twin_integers(&c, e.r.offsets);
    twin_update(&c, e.dtype, room_of(s) * 2 * s.I);
    c.operands.back().untouched = e.rest() * 2 * s.I;
    twin_result(&c, updates, FSDP_F32, s.N * s.k);
    twin_check(c);
  }
}

void combinations(const expert_case &e) {
  if (e.s.block > 0) return; // it is of all
  for (bool updates : {false, true}) {
    twin_case c = start(FSDP_OP_COMBINE, e);
    routed_input(&c, e, e.s.C);
    twin_integers(&c, e.r.places);
    twin_result(&c, updates, e.dtype, e.s.N * e.s.C);
    twin_check(c);
  }
}

// ---- The router

// N rows, E experts, k of them for a row; groups, how many are kept, and how many numbers of one are its
// quality.
struct router_shape {
  int64_t N, E, k;
  fsdp_route_score score;
  bool normalises, is_biased;
  int64_t groups, kept, best;
  float scale;
};
const router_shape routers[] = {{33, 8, 2, FSDP_ROUTE_SOFTMAX, true, false, 0, 0, 0, 0},
                                {20, 128, 8, FSDP_ROUTE_SOFTMAX, false, false, 0, 0, 0, 2.5f},
                                {17, 40, 40, FSDP_ROUTE_SOFTMAX, true, true, 0, 0, 0, 0},
                                {1, 1, 1, FSDP_ROUTE_SOFTMAX, true, false, 0, 0, 0, 0},
                                {9, 64, 6, FSDP_ROUTE_SOFTMAX, false, false, 8, 3, 1, 16},
                                {21, 256, 8, FSDP_ROUTE_SIGMOID, true, true, 8, 4, 2, 2.5f},
                                {10, 36, 5, FSDP_ROUTE_SIGMOID, false, false, 0, 0, 0, 0},
                                {15, 32, 4, FSDP_ROUTE_LOGITS, false, false, 0, 0, 0, 0},
                                {5, 513, 3, FSDP_ROUTE_LOGITS, false, true, 0, 0, 0, 0}};

fsdp_op_attrs router_attrs(const router_shape &s) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = s.N;
  attrs.experts = s.E;
  attrs.slots = s.k;
  attrs.route_score = s.score;
  attrs.route_normalises = s.normalises;
  attrs.route_groups = s.groups;
  attrs.route_groups_kept = s.kept;
  attrs.route_group_best = s.best;
  attrs.route_scale = s.scale;
  attrs.aux_weight = 0.01f;
  attrs.z_weight = 1e-3f;
  attrs.ranks = 3;
  return attrs;
}

twin_case start(fsdp_op_kind kind, const router_shape &s, fsdp_dtype dtype) {
  twin_case c = twin_of(kind, router_attrs(s), dtype);
  c.name += " N" + std::to_string(s.N) + " E" + std::to_string(s.E) + " k" + std::to_string(s.k) + " score " +
            std::to_string(int(s.score)) + " groups " + std::to_string(s.groups);
  return c;
}

// Every third row holds no token.
std::vector<int32_t> real_rows(const router_shape &s) {
  std::vector<int32_t> real(size_t(s.N), 1);
  for (size_t n = 1; n + 1 < real.size(); n += 3) real[n] = 0; // not the last, which must be missed
  return real;
}

// And the rows that hold a token, which the choice does not depend on.
void add_bias(twin_case *c, const router_shape &s, fsdp_dtype dtype) {
  twin_input(c, dtype, s.E);
  twin_integers(c, real_rows(s));
}

// Experts of some rows are given, in columns of wider rows; the others choose.
void routes_given(const router_shape &s, fsdp_dtype dtype, const std::vector<int32_t> &experts) {
  const int64_t stride = s.k + 3, offset = 2;
  twin_case c = start(s.is_biased ? FSDP_OP_ROUTE_GIVEN_BIASED : FSDP_OP_ROUTE_GIVEN, s, dtype);
  c.tolerance = twin_tolerance(FSDP_F32);
  c.attrs.out_features = s.k;
  c.attrs.out_stride = stride;
  c.attrs.out_offset = offset;
  std::vector<int32_t> routes(size_t(s.N * stride), -7);
  for (int64_t n = 0; n < s.N; n++)
    for (int64_t j = 0; j < s.k && n % 3 != 1; j++)
      routes[size_t(n * stride + offset + j)] = experts[size_t(n * s.k + j)];
  twin_input(&c, dtype, s.N * s.E, 2);
  if (s.is_biased) add_bias(&c, s, dtype);
  if (s.is_biased || s.score != FSDP_ROUTE_SOFTMAX)
    for (twin_operand &o : c.operands) o.untouched = o.numel;
  twin_integers(&c, routes);
  twin_output(&c, FSDP_F32, s.N * s.k);
  twin_output(&c, FSDP_I32, s.N * s.k);
  twin_check(c);
}

// Experts are chosen as on the CPU, so logits differ by more than rounding of scores does.
void routes(const router_shape &s, fsdp_dtype dtype) {
  twin_case c = start(s.is_biased ? FSDP_OP_ROUTE_BIASED : FSDP_OP_ROUTE, s, dtype);
  c.tolerance = twin_tolerance(FSDP_F32); // weights are in fp32
  twin_input(&c, dtype, s.N * s.E, 2);
  const twin_operand logits = c.operands[0];
  if (s.is_biased) add_bias(&c, s, dtype);
  if (s.is_biased || s.score != FSDP_ROUTE_SOFTMAX) // a number that is not chosen leaves no trace
    for (twin_operand &o : c.operands) o.untouched = o.numel;
  twin_output(&c, FSDP_F32, s.N * s.k);
  twin_output(&c, FSDP_I32, s.N * s.k);
  twin_check(c);
  const std::vector<int32_t> experts = route({s.N, s.k, s.E, 0, 0}, choice::evenly).experts;
  routes_given(s, dtype, experts);
  for (bool updates : {false, true}) {
    c = start(FSDP_OP_ROUTE_BACKWARD, s, dtype);
    c.operands.push_back(logits);
    twin_integers(&c, experts);
    twin_input(&c, FSDP_F32, s.N * s.k);
    twin_result(&c, updates, dtype, s.N * s.E);
    twin_check(c);
    c = start(FSDP_OP_ROUTE_COUNTS, s, FSDP_F32);
    twin_integers(&c, experts);
    twin_result(&c, updates, FSDP_F32, s.E);
    twin_check(c);
    c = start(FSDP_OP_ROUTE_LOADS, s, dtype);
    twin_integers(&c, experts);
    twin_integers(&c, real_rows(s));
    twin_result(&c, updates, dtype, s.E);
    twin_check(c);
    if (s.score == FSDP_ROUTE_LOGITS) continue;
    c = start(FSDP_OP_ROUTE_SUMS, s, dtype);
    c.operands.push_back(logits);
    twin_integers(&c, experts);
    twin_integers(&c, real_rows(s));
    twin_result(&c, updates, FSDP_F32, 2 * s.E + 1);
    twin_result(&c, updates, FSDP_F32, 1);
    twin_workspace(&c, 0);
    c.tolerance = twin_tolerance(FSDP_F32);
    twin_check(c);
    c = start(FSDP_OP_ROUTE_SUMS_BACKWARD, s, dtype);
    c.operands.push_back(logits);
    twin_input(&c, FSDP_F32, s.E + 1);
    twin_integers(&c, real_rows(s));
    twin_result(&c, updates, dtype, s.N * s.E);
    twin_check(c);
  }
}

void route_losses(int64_t E) {
  for (bool updates : {false, true}) {
    const router_shape s = {40, E, 2, FSDP_ROUTE_SOFTMAX, true, false, 0, 0, 0, 0};
    twin_case c = start(FSDP_OP_ROUTE_LOSS, s, FSDP_F32);
    c.attrs.aux_of_rank = updates;
    std::vector<float> sums(size_t(2 * E), 1.5f);
    for (size_t i = 0; i < sums.size(); i += 3) sums[i] = 0.25f;
    sums.push_back(40);
    twin_floats(&c, sums);
    twin_floats(&c, {77});
    twin_result(&c, updates, FSDP_F32, 1);
    twin_result(&c, updates, FSDP_F32, 1);
    twin_output(&c, FSDP_F32, E + 1);
    twin_check(c);
  }
}

// ---- Beside the routed experts

void shareds(fsdp_dtype dtype, int64_t N, int64_t C) {
  fsdp_op_attrs attrs = {};
  attrs.batch = 1;
  attrs.seq = N;
  attrs.channels = C;
  const std::string shape = " N" + std::to_string(N) + " C" + std::to_string(C);
  twin_case c = twin_of(FSDP_OP_SHARED_GATE, attrs, dtype);
  c.name += shape;
  twin_input(&c, dtype, N * C);
  twin_input(&c, dtype, N);
  twin_output(&c, dtype, N * C);
  twin_check(c);
  c = twin_of(FSDP_OP_SHARED_GATE_BACKWARD, attrs, dtype);
  c.name += shape;
  twin_input(&c, dtype, N * C);
  twin_input(&c, dtype, N);
  twin_update(&c, dtype, N * C);
  twin_output(&c, dtype, N);
  twin_check(c);
  c = twin_of(FSDP_OP_SHARED_ADD, attrs, dtype);
  c.name += shape;
  twin_input(&c, dtype, N * C);
  twin_input(&c, dtype, N * C);
  twin_output(&c, dtype, N * C);
  twin_check(c);
}

void balances(fsdp_dtype dtype, fsdp_dtype state, float factor, bool has_copy) {
  const int64_t E = 300;
  fsdp_op_attrs attrs = {};
  attrs.balance_rate = 1e-3f;
  twin_case c = twin_of(FSDP_OP_BALANCE, attrs, dtype);
  c.name += std::string(" state ") + fsdp_dtype_name(state) + (factor == FSDP_FACTOR_SKIP ? " skipped" : "");
  std::vector<float> loads;
  for (int64_t e = 0; e < E; e++) loads.push_back(float(e % 3 - 1) * 12);
  twin_values(&c, dtype, loads, FSDP_READ);
  twin_floats(&c, std::vector<float>(size_t(fsdp_op_letter_size(&attrs, 'k', E)), 1.0f));
  c.operands.back().untouched = c.operands.back().numel;
  if (factor == FSDP_FACTOR_SKIP) c.operands[0].untouched = E;
  twin_floats(&c, {factor});
  if (factor != FSDP_FACTOR_SKIP) c.operands.back().untouched = 1; // any other one does as well
  for (int i = 0; i < 3; i++) {
    twin_update(&c, state, E);
    if (i > 0 || factor == FSDP_FACTOR_SKIP) c.operands.back().untouched = E;
  }
  if (has_copy) {
    twin_update(&c, dtype, E);
    c.operands.back().access = FSDP_WRITE;
    if (factor == FSDP_FACTOR_SKIP) c.operands.back().untouched = E;
  }
  twin_check(c);
}

void routers_of(fsdp_dtype dtype) {
  for (const router_shape &s : routers) routes(s, dtype);
  for (int64_t C : {8, 13, 520}) shareds(dtype, 5, C);
  balances(dtype, FSDP_F32, 1, true);
  balances(dtype, FSDP_BF16, 1, false);
  balances(dtype, FSDP_F32, FSDP_FACTOR_SKIP, true);
}

} // namespace

void twin_use_grouped(fsdp_grouped_kernel kernel) {
  tensor_kernel = kernel;
}

static void products(const expert_case &e) {
  const experts_shape &s = e.s;
  product(FSDP_OP_EXPERT_UP, e, s.C, 2 * s.I, true);
  product(FSDP_OP_EXPERT_DOWN, e, s.I, s.C, false);
  product(FSDP_OP_EXPERT_UP_BACKWARD_INPUT, e, 2 * s.I, s.C, false);
  product(FSDP_OP_EXPERT_DOWN_BACKWARD_INPUT, e, s.C, s.I, true);
  gradient(FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT, e, s.C, 2 * s.I, false);
  gradient(FSDP_OP_EXPERT_DOWN_BACKWARD_WEIGHT, e, s.I, s.C, true);
}

// Those in bf16, and large ones: of the kernel that tiles of large shapes fill.
void twin_grouped() {
  const auto run = [](const experts_shape &s, choice how) {
    const routing r = route(s, how);
    products({s, r, FSDP_BF16, how});
  };
  for (const experts_shape &s : shapes)
    if (s.C % 8 == 0 && s.I % 8 == 0) run(s, choice::skewed);
  for (const experts_shape &s : large_shapes)
    for (choice how : {choice::evenly, choice::skewed}) run(s, how);
}

void twin_experts() {
  for (fsdp_dtype dtype : dtypes) routers_of(dtype);
  for (int64_t E : {1, 8, 200}) route_losses(E);
  for (fsdp_dtype dtype : dtypes)
    for (const experts_shape &s : shapes)
      for (choice how : {choice::evenly, choice::skewed, choice::one}) {
        if (how == choice::one && s.k > 1 && s.E > 8) continue;
        const routing r = route(s, how);
        const expert_case e = {s, r, dtype, how};
        if (dtype == FSDP_F32) orders(e), overflows(e);
        products(e);
        activations(e);
        combinations(e);
      }
  const experts_shape many = {3000, 3, 300, 8, 8}; // chunks of slots, and more experts than threads' lanes
  const routing r = route(many, choice::skewed);
  orders({many, r, FSDP_F32, choice::skewed});
}
