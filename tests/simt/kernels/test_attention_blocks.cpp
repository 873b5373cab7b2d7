// Attention's grids on 132 multiprocessors (H100, H200): the blocks that the launchers ask for, in the order
// in which a GPU starts them, go one after the other to whatever is free first. Nothing runs.
//
// A block takes as long as the tiles that it walks. A multiprocessor holds as many blocks as its registers
// (the kernels' __launch_bounds__) and its 228 KiB of shared memory, of which each block's launch takes 1 KiB
// more than it asks for; each of them goes at the same speed, however many are left. Blocks' starts and ends,
// memory and the clock are left out. The ideal is all tiles shared out evenly.
#include "kernels/cuda/attention/attention_blocks.cuh"

#include <cstdio>
#include <functional>
#include <queue>
#include <vector>

namespace {

constexpr int multiprocessors = 132;
constexpr size_t shared_bytes = size_t(228) << 10, reserved_bytes = 1 << 10;

struct kernel_set {
  const char *name;
  fsdp_attention_kernel kernel;
  attention_grid (*forward)(const attention_shape &s);
  attention_grid (*d_q)(const attention_shape &s);
  attention_grid (*d_k_d_v)(const attention_shape &s, int head_parts);
};
const kernel_set sets[] = {{"mma", FSDP_ATTENTION_MMA, attention_tensor_forward_grid,
                            attention_tensor_d_q_grid, attention_tensor_d_k_d_v_grid},
                           {"wgmma", FSDP_ATTENTION_WGMMA, attention_hopper_forward_grid,
                            attention_hopper_d_q_grid, attention_hopper_d_k_d_v_grid}};

// `limit`: of makespan / ideal.
struct setting {
  int64_t B, T, H, K, D;
  bool one_at_once; // a multiprocessor has one block
  double limit;
  int64_t window = 0, parts = 0, part = 0; // part `part` of `parts` of the sequence, each of T queries
};
const setting settings[] = {
    {4, 4096, 32, 8, 128, false, 1.03},
    {1, 4096, 32, 8, 128, false, 1.05},
    {1, 4096, 8, 2, 128, true, 1.1},
    {1, 8192, 8, 2, 128, true, 1.1},
    {1, 4096, 8, 1, 128, true, 1.1},
    {1, 8192, 8, 1, 128, true, 1.1},
    {1, 8192, 4, 1, 128, true, 1.1},
    {1, 4096, 4, 1, 128, true, 2.05}, // one head's longest block of 128 rows is twice the ideal
    {4, 4096, 32, 8, 128, false, 1.1, 1024},
    {1, 8192, 32, 8, 128, false, 1.1, 4096},
    {2, 4096, 32, 8, 128, false, 1.1, 0, 4, 0},
    {2, 4096, 32, 8, 128, false, 1.1, 0, 4, 3},
    {2, 4096, 32, 8, 128, false, 1.1, 2048, 4, 1},
    {8, 1024, 12, 12, 64, false, 1.1},
};

int failures;

void expect(bool good, const char *what, const kernel_set &set, const attention_grid &grid) {
  if (good) return;
  printf("FAILED %s %s: %s\n", set.name, grid.kernel, what);
  failures++;
}

fsdp_op_attrs attrs_of(const setting &c) {
  fsdp_op_attrs attrs = {};
  attrs.batch = c.B;
  attrs.seq = c.T;
  attrs.heads = c.H;
  attrs.kv_heads = c.K;
  attrs.head_dim = c.D;
  attrs.window = c.window;
  if (c.parts == 0) return attrs;
  attrs.chunk = c.T / 2;
  attrs.first_index = c.part * attrs.chunk;
  attrs.second_index = (2 * c.parts - 1 - c.part) * attrs.chunk;
  attrs.kv_seq = c.parts * c.T;
  attrs.kv_parts = c.parts;
  attrs.out_stride = c.H * c.D;
  return attrs;
}

attention_shape shape_of(const setting &c, const fsdp_op_attrs &attrs) {
  fsdp_kernel_call call = {};
  call.kind = c.parts > 0 ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION;
  call.attrs = &attrs;
  return attention_shape_of(&call);
}

// Tiles that all blocks of one head walk, by trying every pair of a block and a tile.
int64_t pairs_of(const setting &c, const attention_grid &grid, bool owns_keys) {
  const int64_t S = c.parts > 0 ? c.parts * c.T : c.T, chunk = c.parts > 0 ? c.T / 2 : c.T;
  const int64_t W = c.window > 0 ? c.window : S;
  const int64_t firsts[2] = {c.part * chunk, (2 * c.parts - 1 - c.part) * chunk};
  const int64_t query_rows = owns_keys ? grid.tile : grid.own, key_rows = owns_keys ? grid.own : grid.tile;
  int64_t pairs = 0;
  for (int i = 0; i < (c.parts > 0 ? 2 : 1); i++)
    for (int64_t q = 0; q < chunk; q += query_rows)
      for (int64_t k = 0; k < S; k += key_rows) {
        const int64_t first = firsts[i] + q, last = firsts[i] + least(q + query_rows, chunk) - 1;
        const int64_t last_key = least(k + key_rows, S) - 1;
        pairs += k <= last && last_key > first - W;
      }
  return pairs;
}

int slots_of(const attention_grid &grid, bool one_at_once) {
  const int by_memory = int(shared_bytes / (grid.shared_bytes + reserved_bytes));
  return multiprocessors * (one_at_once ? 1 : least(grid.at_once, by_memory));
}

void schedule(const kernel_set &set, const attention_grid &grid, const setting &c, const attention_shape &s,
              int head_parts, bool owns_keys) {
  const int slots = slots_of(grid, c.one_at_once);
  expect(slots > 0, "no multiprocessor holds a block", set, grid);
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> free_at;
  for (int i = 0; i < slots; i++) free_at.push(0);
  int64_t total = 0, end = 0;
  for (int y = 0; y < grid.rows; y++)
    for (int x = 0; x < grid.columns; x++) {
      const int64_t steps = grid.steps(s, head_parts, x, y), done = free_at.top() + steps;
      free_at.pop();
      free_at.push(done);
      total += steps;
      end = done > end ? done : end;
    }
  const double ideal = double(total) / slots, ratio = double(end) / ideal;
  printf("  %-8s %2d part%s %5lld blocks in %3d slots   ideal %8.1f tiles   makespan %6lld   %.3f\n",
         grid.kernel, head_parts, head_parts > 1 ? "s" : " ", (long long)(grid.columns * grid.rows), slots,
         ideal, (long long)end, ratio);
  expect(ratio <= c.limit, "above its limit", set, grid);
  expect(total == c.B * c.H * pairs_of(c, grid, owns_keys), "not every tile once", set, grid);
}

} // namespace

int main() {
  for (const kernel_set &set : sets)
    for (const setting &c : settings) {
      fsdp_op_attrs attrs = attrs_of(c);
      attrs.attention = set.kernel;
      const attention_shape s = shape_of(c, attrs);
      const int parts = int(fsdp_op_attention_choose_parts(&attrs, multiprocessors));
      printf("%s, %lld x %lld, %lld/%lld heads of %lld", set.name, (long long)c.B, (long long)c.T,
             (long long)c.H, (long long)c.K, (long long)c.D);
      if (c.window > 0) printf(", window %lld", (long long)c.window);
      if (c.parts > 0) printf(", part %lld of %lld", (long long)c.part, (long long)c.parts);
      printf("%s; limit %.2f\n", c.one_at_once ? ", one block a multiprocessor" : "", c.limit);
      schedule(set, set.forward(s), c, s, 1, false);
      schedule(set, set.d_q(s), c, s, 1, false);
      schedule(set, set.d_k_d_v(s, parts), c, s, parts, true);
    }
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
