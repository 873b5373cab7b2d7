// Products grouped by expert: shared by the implementations.
//
//   grouped_hopper.cu    bf16, dimensions that are multiples of 8: warpgroups (wgmma), on 9.0 alone
//   grouped_tensor.cu    the same by tensor cores (mma.sync)
//   grouped_general.cu   fp32, and bf16 of any other dimensions
//
// Routed rows lie in the order of their experts, those of expert e from offsets[e] to offsets[e + 1].
// Operands have U of them, from number `first` on, or fewer: what lies behind the last one is neither read
// nor written. A weight has (out, in) elements for each of E experts.
//
//   forward   c (U, out) = a (U, in) weight^T
//   input     c (U, in) = a (U, out) weight
//   weight    d_weight (out, in) = or += d_y (U, out)^T x (U, in): zero or as before without rows
//
// A factor of routed rows is a matrix of them, or is gathered: routed row number u is row slots[u] / k of a
// matrix of tokens, k slots of each. How many rows an expert has is known on the device alone. Grids do not
// depend on it: of rows in tiles of B, cut by expert, there are at most floor((U + E (B - 1)) / B).
#pragma once

#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/rows.cuh"

struct grouped_shape {
  const int *slots, *offsets;
  int experts, out, in, first, rows; // rows: U
  divisor row_slots;
};

// The first of the operands' rows that expert e has, or of those behind it.
__device__ __forceinline__ int begin_of(const grouped_shape &s, int e) {
  const int row = global_load(s.offsets + e) - s.first;
  return row < 0 ? 0 : least(row, s.rows);
}

// Routed rows as a factor.
template <class T> struct grouped_rows {
  const T *data;
  bool is_gathered;
};

// Forward and input.
template <class T> struct grouped_product {
  grouped_shape shape;
  grouped_rows<T> a;
  const T *weight;
  T *c;
  bool is_input;
};

template <class T, class G> struct grouped_gradient {
  grouped_shape shape;
  grouped_rows<T> d_y, x;
  G *d_weight;
  bool adds;
};

// The row of the factor's matrix that the operands' row `row` is.
template <class T>
__device__ __forceinline__ int64_t row_in(const grouped_shape &s, const grouped_rows<T> &rows, int row) {
  return rows.is_gathered ? quotient(global_load(s.slots + s.first + row), s.row_slots) : row;
}

inline int64_t grouped_tiles(const grouped_shape &s, int tile_rows) {
  return (int64_t(s.rows) + int64_t(s.experts) * (tile_rows - 1)) / tile_rows;
}

// Rows `first` to `end` - 1 of an expert, at most ROWS; -1: no expert has such a tile.
struct expert_rows {
  int expert, first, end;
};

// Tile `tile` of ROWS rows, expert by expert. A warp looks at 32 experts at a time.
template <int ROWS> __device__ __forceinline__ expert_rows expert_rows_at(const grouped_shape &s, int tile) {
  const int lane = int(threadIdx.x) % warp_lanes;
  for (int from = 0; from < s.experts; from += warp_lanes) {
    const int e = from + lane;
    const int first = e < s.experts ? begin_of(s, e) : 0;
    const int count = e < s.experts ? begin_of(s, e + 1) - first : 0;
    const int tiles = (count + ROWS - 1) / ROWS;
    const int past = warp_sum_so_far(tiles); // of the experts up to this lane's
    const uint32_t reached = __ballot_sync(whole_warp, past > tile);
    if (reached != 0) {
      const int owner = __ffs(int(reached)) - 1;
      const int begin = first + (tile - (past - tiles)) * ROWS;
      return {from + owner, __shfl_sync(whole_warp, begin, owner),
              __shfl_sync(whole_warp, least(begin + ROWS, first + count), owner)};
    }
    tile -= __shfl_sync(whole_warp, past, warp_lanes - 1);
  }
  return {-1, 0, 0};
}

void grouped_hopper(const grouped_product<bf16> &p, launch_stream stream);
template <class G> void grouped_hopper(const grouped_gradient<bf16, G> &p, launch_stream stream);

void grouped_tensor(const grouped_product<bf16> &p, launch_stream stream);
template <class G> void grouped_tensor(const grouped_gradient<bf16, G> &p, launch_stream stream);

// For T and G float and bf16.
template <class T> void grouped_general(const grouped_product<T> &p, launch_stream stream);
template <class T, class G> void grouped_general(const grouped_gradient<T, G> &p, launch_stream stream);
