// Planted bugs in the use of a warpgroup's products and of named barriers, as in test_detectors.cpp: each
// kernel is wrong in one way, and its right twin is not.
#include "kernels/cuda/attention/hopper.cuh"
#include "kernels/cuda/vector.cuh"

#include <cstdio>

namespace {

constexpr int threads = 256, panel_bytes = 64 * panel_row_bytes;

struct planted {
  bool wrong;
  float *out; // 1 where a thread's results are right
};

enum class plant {
  proxy_fence,          // none
  late_proxy_fence,     // after the barrier, of all readers but one thread
  proxy_fence_of_one,   // thread alone
  barrier,              // none between writes and products
  fence,                // no wgmma_fence
  fence_without_d,      // that names only a
  change_after_fence,   // of d
  change_of_a,          // of registers that a product reads
  read_before_wait,     // of d
  write_before_wait,    // of d
  commit,               // none
  wait,                 // none
  early_return,         // before it
  wait_for_too_few,     // groups
  wait_without_d,       // a wait that does not name d
  wait_without_a,       // nor a
  wait_names_too_much,  // registers of a product in progress
  overwrite_b,          // while a product reads it
  overwrite_after_wait, // of a different warp, with no barrier between
  half_of_a_warpgroup,  // starts a product
  two_descriptors,      // in one warpgroup
  swizzle_mode,         // none
  stride,               // between groups of 8 rows
  panel_distance,       // of a tile of two panels
  start,                // 16 bytes off
  unaligned_panel,      // a panel that does not start on 1024 bytes
  out_of_bounds,
};

// Small integers: sums of products are exact.
float number(int tile, int row, int column) {
  return float((row * 7 + column * 3 + tile * 5) % 9 - 4);
}

// Each warpgroup fills panels of 64 rows: tile 0 in the first, tile 1 in the other two (its rows are of 128).
void fill(const smem<bf16> &tiles, int base) {
  for (int i = int(threadIdx.x) % 128; i < 64 * 64; i += 128)
    for (int panel = 0; panel < 3; panel++) {
      const float x = number(panel > 0, i / 64, i % 64 + (panel == 2 ? 64 : 0));
      tiles[base + (panel * panel_bytes + panel_at(i / 64, i % 64)) / 2] = from_float<bf16>(x);
    }
}

// Tile 0 times the transpose of tile 1's first 64 columns.
float expected(int row, int column) {
  float sum = 0;
  for (int k = 0; k < 64; k++) sum += number(0, row, k) * number(1, column, k);
  return sum;
}
// The transpose of tile 0 times tile 1.
float expected_transposed(int row, int column) {
  float sum = 0;
  for (int k = 0; k < 64; k++) sum += number(0, k, row) * number(1, k, column);
  return sum;
}

int first_row() {
  return int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;
}

template <int TILES, class Expected> float is_right(const float (&d)[TILES][4], const Expected &wanted) {
  bool right = true;
  for (int n = 0; n < TILES; n++)
    for (int i = 0; i < 4; i++)
      right = right && d[n][i] == wanted(first_row() + i / 2 * 8, n * 8 + int(threadIdx.x) % 4 * 2 + i % 2);
  return right ? 1.0f : 0.0f;
}

// Rows of tile 0 as fragments of a.
void load_a(uint32_t (&a)[4][4]) {
  for (int step = 0; step < 4; step++)
    for (int i = 0; i < 4; i++) {
      const int row = first_row() + i % 2 * 8, k = step * 16 + int(threadIdx.x) % 4 * 2 + i / 2 * 8;
      a[step][i] = pack_bf16(number(0, row, k), number(0, row, k + 1));
    }
}

template <plant PLANT> uint64_t spoiled(bool wrong, uint64_t descriptor) {
  if (!wrong) return descriptor;
  if (PLANT == plant::swizzle_mode) return descriptor & ~(uint64_t(3) << 62);
  if (PLANT == plant::stride) return descriptor + (uint64_t(128 >> 4) << 32);
  if (PLANT == plant::panel_distance) return descriptor - (uint64_t(1024 >> 4) << 16);
  if (PLANT == plant::start) return descriptor + 1;
  if (PLANT == plant::out_of_bounds) return descriptor + (uint64_t(200 * 1024) >> 4);
  return descriptor;
}

constexpr int shared_bytes = 7 * panel_bytes;

// Two warpgroups with panels of their own: a product of 64 columns with a in registers and one of 128 with
// both factors transposed.
template <plant PLANT> void products(planted p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> tiles = bytes.part<bf16>(0, shared_bytes / 2);
  const bool wrong = p.wrong;
  const int base =
      int(threadIdx.x) / 128 * 3 * panel_bytes / 2 + (wrong && PLANT == plant::unaligned_panel ? 64 : 0);
  const auto is = [wrong](plant value) { return wrong && PLANT == value; };
  fill(tiles, base);
  const bool late = PLANT == plant::late_proxy_fence;
  if (!is(plant::proxy_fence) && !late && !(is(plant::proxy_fence_of_one) && threadIdx.x > 0))
    fence_proxy_async();
  if (!is(plant::barrier)) __syncthreads();
  if (late && !(wrong && threadIdx.x == 77)) fence_proxy_async();
  if (is(plant::half_of_a_warpgroup) && threadIdx.x >= 64 && threadIdx.x < 128) return;
  const uint32_t first = tiles.address(base);
  const uint64_t tile_0 = wgmma_descriptor(first, panel_bytes);
  uint64_t tile_1 = spoiled<PLANT>(wrong, wgmma_descriptor(first + panel_bytes, panel_bytes));
  if (is(plant::two_descriptors) && threadIdx.x % 128 == 77) tile_1 = tile_0;
  float d[8][4] = {}, e[16][4] = {};
  uint32_t a[4][4];
  load_a(a);
  if (is(plant::fence_without_d)) {
    wgmma_fence(a, e);
  } else if (!is(plant::fence)) {
    wgmma_fence(a, d, e);
  }
  if (is(plant::change_after_fence)) d[3][1] = 1;
  for (int step = 0; step < 4; step++)
    wgmma<major::k>(d, a[step], advance(tile_1, step_bytes<major::k>(step, panel_bytes)), true);
  if (!is(plant::commit)) wgmma_commit();
  for (int step = 0; step < 4; step++) {
    const int at = step_bytes<major::mn>(step, panel_bytes);
    wgmma<major::mn, major::mn>(e, advance(tile_0, at), advance(tile_1, at), step > 0);
  }
  wgmma_commit();
  if (is(plant::early_return)) return;
  if (is(plant::change_of_a)) a[1][2]++;
  if (is(plant::wait_names_too_much)) wgmma_wait<1>(a, d, e);
  if (is(plant::read_before_wait)) p.out[threadIdx.x] = is_right(d, expected);
  if (is(plant::write_before_wait)) e[3][0] = 0;
  if (is(plant::overwrite_b) && threadIdx.x == 128) tiles[base + panel_bytes / 2] = from_float<bf16>(0);
  float right = is(plant::read_before_wait) ? is_right(d, expected) : 1.0f;
  if (is(plant::wait_for_too_few)) {
    wgmma_wait<2>(a, d);
  } else if (is(plant::wait_without_d)) {
    wgmma_wait<1>(a);
  } else if (is(plant::wait_without_a)) {
    wgmma_wait<1>(d);
  } else if (!is(plant::wait)) {
    wgmma_wait<1>(a, d);
  }
  right *= is_right(d, expected);
  if (!is(plant::wait)) wgmma_wait<0>(e);
  right *= is_right(e, expected_transposed);
  if (is(plant::overwrite_after_wait) && threadIdx.x == 40) tiles[base] = from_float<bf16>(0);
  __syncthreads();
  tiles[base + panel_at(int(threadIdx.x) % 64, 0) / 2 + int(threadIdx.x) % 128 / 64] = from_float<bf16>(0);
  p.out[threadIdx.x] = right;
}

// d = tile 0, taken twice, times the transpose of tile 1: a factor goes on in its second panel.
void major_k(planted p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> tiles = bytes.part<bf16>(0, shared_bytes / 2);
  const int base = int(threadIdx.x) / 128 * 3 * panel_bytes / 2;
  fill(tiles, base);
  fence_proxy_async();
  __syncthreads();
  const uint64_t tile_0 = wgmma_descriptor(tiles.address(base), panel_bytes),
                 tile_1 = wgmma_descriptor(tiles.address(base) + panel_bytes, panel_bytes);
  float d[8][4];
  wgmma_fence(d);
  for (int step = 0; step < 8; step++) {
    const uint64_t a = advance(tile_0, step_bytes<major::k>(step % 4, panel_bytes)),
                   b = advance(tile_1, step_bytes<major::k>(p.wrong ? step % 4 : step, panel_bytes));
    wgmma<major::k, major::k>(d, a, b, step > 0);
  }
  wgmma_commit();
  wgmma_wait<0>(d);
  p.out[threadIdx.x] = is_right(d, [](int row, int column) {
    float sum = 0;
    for (int k = 0; k < 128; k++) sum += number(0, row, k % 64) * number(1, column, k);
    return sum;
  });
}

// ---- Named barriers: the first warpgroup makes what the second takes, in two stages

enum class lack {
  arrive,      // that a stage is full
  sync,        // of those that take it
  free_arrive, // that a stage is empty
  free_sync,   // of those that fill it
  count,       // a count that differs
  half_warps,  // a count of part of a warp
  lane         // a warp in two barriers
};

template <lack LACK> void stages(planted p) {
  FSDP_SHARED(float, stage, 2 * 128);
  const int t = int(threadIdx.x) % 128;
  const auto is = [&](lack value) { return p.wrong && LACK == value; };
  float right = 1;
  for (int i = 0; i < 5; i++) {
    const int full = 1 + i % 2, empty = 3 + i % 2;
    if (threadIdx.x < 128) {
      if (i >= 2 && !is(lack::free_sync)) named_barrier_sync(empty, 256);
      stage[i % 2 * 128 + t] = float(i * t);
      if (!is(lack::arrive) || i < 4)
        named_barrier_arrive(is(lack::lane) && threadIdx.x == 3 ? 7 : full, is(lack::half_warps) ? 240 : 256);
    } else {
      if (!is(lack::sync)) named_barrier_sync(full, is(lack::count) ? 128 : 256);
      if (stage[i % 2 * 128 + 127 - t] != float(i * (127 - t))) right = 0;
      if (i < 3 && !is(lack::free_arrive)) named_barrier_arrive(empty, 256);
    }
  }
  p.out[threadIdx.x] = right;
}

// ---- Boxes: of the results themselves, 8 rows of 64 bf16; what a box has beyond them is zeros

enum class box_lack { wait, turn, expect, few_bytes, many_bytes, alignment, init };

template <box_lack LACK> void boxes(planted p) {
  FSDP_SHARED_DYNAMIC(bytes);
  constexpr int rows = 16, box_bytes = rows * panel_row_bytes;
  const auto is = [&](box_lack value) { return p.wrong && LACK == value; };
  const smem<bf16> tiles = bytes.part<bf16>(0, 2 * panel_bytes / 2);
  const uint32_t barrier = bytes.address(2 * panel_bytes);
  const box_map map = box_map_of(p.out, 64, 8, 1, rows);
  if (threadIdx.x == 0 && !is(box_lack::init)) box_barrier_init(barrier);
  __syncthreads();
  float right = 1;
  for (int turn = 0; turn < 2; turn++) {
    if (threadIdx.x == 0) {
      const int more = is(box_lack::many_bytes) ? 128 : is(box_lack::few_bytes) ? -128 : 0;
      if (!is(box_lack::expect)) box_expect(barrier, box_bytes + more);
      copy_box(bytes.address(turn * panel_bytes + (is(box_lack::alignment) ? 128 : 0)), map, 0, 0, 0,
               barrier);
    }
    if (threadIdx.x >= 128) continue;
    if (!is(box_lack::wait)) box_wait(barrier, is(box_lack::turn) ? turn + 1 : turn);
    for (int i = int(threadIdx.x); i < rows * 64; i += 128) { // floats of 1 are pairs of 0 and 1
      const float x = to_float(bf16(tiles[(turn * panel_bytes + panel_at(i / 64, i % 64)) / 2]));
      if (x != (i / 64 < 8 && i % 2 == 1 ? 1.0f : 0.0f)) right = 0;
    }
  }
  __syncthreads();
  p.out[threadIdx.x] = right;
}

// A third warpgroup knows of the first's writes through the second alone.
void chain(planted p) {
  FSDP_SHARED(float, value, 64);
  const int t = int(threadIdx.x);
  if (t < 64) {
    value[t] = 1;
    named_barrier_arrive(1, 128);
  } else if (t < 128) {
    named_barrier_sync(1, 128);
    named_barrier_arrive(2, 192);
  } else {
    named_barrier_sync(p.wrong ? 3 : 2, p.wrong ? 128 : 192);
    if (value[t % 64] != 1) p.out[t] = 0;
  }
  p.out[t] = 1;
}

const struct {
  const char *name, *finding; // a piece of the message, "" if results are wrong
  void (*kernel)(planted);
} plants[] = {
    {"no fence_proxy_async", "no fence_proxy_async", products<plant::proxy_fence>},
    {"fence_proxy_async of all readers but one", "no fence_proxy_async", products<plant::late_proxy_fence>},
    {"fence_proxy_async of one thread", "no fence_proxy_async", products<plant::proxy_fence_of_one>},
    {"no barrier before a product", "no barrier", products<plant::barrier>},
    {"no wgmma_fence", "does not name", products<plant::fence>},
    {"a wgmma_fence without d", "does not name", products<plant::fence_without_d>},
    {"d changed after wgmma_fence", "has changed its registers of d", products<plant::change_after_fence>},
    {"a changed before the wait", "has written registers of a", products<plant::change_of_a>},
    {"d read before the wait", "", products<plant::read_before_wait>},
    {"d written before the wait", "has written an accumulator", products<plant::write_before_wait>},
    {"no commit", "still in progress", products<plant::commit>},
    {"no wait", "while a wgmma in progress reads it", products<plant::wait>},
    {"a return before the wait", "returns with a wgmma in progress", products<plant::early_return>},
    {"a wait for too few groups", "still in progress", products<plant::wait_for_too_few>},
    {"a wait that does not name d", "does not name", products<plant::wait_without_d>},
    {"a wait that does not name a", "does not name", products<plant::wait_without_a>},
    {"a wait that names too much", "still in progress", products<plant::wait_names_too_much>},
    {"b overwritten before the wait", "while a wgmma in progress reads it", products<plant::overwrite_b>},
    {"a overwritten by a different warp", "race", products<plant::overwrite_after_wait>},
    {"half of a warpgroup", "never come", products<plant::half_of_a_warpgroup>},
    {"two descriptors", "start different products", products<plant::two_descriptors>},
    {"a descriptor without swizzling", "is not of a 128-byte swizzle", products<plant::swizzle_mode>},
    {"a wrong stride", "", products<plant::stride>},
    {"a wrong distance of panels", "", products<plant::panel_distance>},
    {"a wrong start", "", products<plant::start>},
    {"a panel that is not aligned", "", products<plant::unaligned_panel>},
    {"a product out of bounds", "out of bounds", products<plant::out_of_bounds>},
    {"a wrong panel", "", major_k},
    {"no arrival at a full stage", "have arrived", stages<lack::arrive>},
    {"no wait for a full stage", "", stages<lack::sync>},
    {"no arrival at an empty stage", "have arrived", stages<lack::free_arrive>},
    {"no wait for an empty stage", "", stages<lack::free_sync>},
    {"two counts of threads", "", stages<lack::count>},
    {"a count of part of a warp", "whole warps", stages<lack::half_warps>},
    {"a warp at two barriers", "different named barriers", stages<lack::lane>},
    {"a barrier that does not order", "", chain},
    {"no wait for a box", "is read", boxes<box_lack::wait>},
    {"a wait for a later turn", "box_wait for turn 1", boxes<box_lack::turn>},
    {"a box that nobody expects", "before box_expect", boxes<box_lack::expect>},
    {"a box of more bytes", "more bytes than", boxes<box_lack::few_bytes>},
    {"boxes of fewer bytes", "on their way", boxes<box_lack::many_bytes>},
    {"a box that is not aligned", "not aligned to 1024", boxes<box_lack::alignment>},
    {"a barrier that is not made", "no box_barrier_init", boxes<box_lack::init>},
};

int failures;

void expect(bool held, const char *what, const char *plant, const std::string &message) {
  failures += !held;
  if (!held) printf("FAILED %s: %s (%s)\n", plant, what, message.c_str());
}

void check(size_t index, float *out) {
  const auto &plant = plants[index];
  for (int order = 0; order < simt::order_count; order++) {
    simt::set_order(static_cast<simt::order>(order));
    for (bool wrong : {true, false}) {
      const planted p = {wrong, out};
      for (int t = 0; t < threads; t++) out[t] = 1;
      const auto *kernel = reinterpret_cast<const void *>(plant.kernel);
      const std::string message = simt::expect_error([&] {
        simt::allow_shared(kernel, shared_bytes);
        simt::launch({dim3(1), dim3(threads), shared_bytes, kernel}, [&] { plant.kernel(p); });
      });
      bool right = true;
      for (int t = 0; t < threads; t++) right = right && out[t] == 1.0f;
      if (wrong) {
        const bool found =
            *plant.finding ? message.find(plant.finding) != std::string::npos : !message.empty() || !right;
        expect(found, "is not found", plant.name, message);
        if (order == 0) printf("%-40s %s\n", plant.name, message.empty() ? "wrong results" : message.c_str());
      } else {
        expect(message.empty(), "is reported in a correct program", plant.name, message);
        expect(right, "wrong result", plant.name, message);
      }
    }
  }
}

} // namespace

int main() {
  auto *out = static_cast<float *>(simt::memory_allocate(threads * sizeof(float)));
  for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) check(i, out);
  simt::memory_free_beyond(0);
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
