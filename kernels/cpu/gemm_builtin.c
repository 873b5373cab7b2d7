#include "kernels/cpu/gemm_builtin.h"

#include "kernels/cpu/operand.h"
#include "kernels/cpu/tile.h"

// Block sizes: a packed block of a (BLOCK_M x BLOCK_K) stays in the second-level cache, a packed panel of b
// (BLOCK_K x BLOCK_N) in the third, and a sliver of b (BLOCK_K x TILE_COLUMNS) in the first.
enum {
  BLOCK_K = 256,
  BLOCK_M = TILE_ROWS * (TILE_ROWS == 6 ? 24 : 10),
  BLOCK_N = 1536,
  EDGE_FLOATS = TILE_ROWS * TILE_COLUMNS,
};

typedef struct packed {
  float *a, *b, *edge, *row;
} packed;

static packed divide_scratch(void *scratch) {
  packed p;
  p.a = scratch;
  p.b = scratch_after(p.a, (int64_t)BLOCK_M * BLOCK_K);
  p.edge = scratch_after(p.b, (int64_t)BLOCK_N * BLOCK_K);
  p.row = scratch_after(p.edge, EDGE_FLOATS);
  FSDP_CHECK((size_t)((char *)(p.row + BLOCK_N) - (char *)scratch) <= FSDP_PRODUCT_SCRATCH_BYTES,
             "packed panels exceed the scratch");
  return p;
}

typedef struct matrix {
  const void *data;
  fsdp_dtype dtype;
  int64_t stride;
} matrix;

static inline const float *matrix_row(matrix m, int64_t row, int64_t column, int64_t count, float *buffer) {
  fsdp_view view = {.data = (void *)(uintptr_t)m.data, .dtype = m.dtype};
  return load(&view, row * m.stride + column, count, buffer);
}

// Packs `count` x `depth` elements into slivers of `width`: sliver[p * width + i] = element (first + i, p),
// zeros past the last. `along` says that the stored rows run along i (element (i, p) is at [p][i]), else
// along p.
FSDP_INLINE void pack(matrix m, bool along, int64_t first, int64_t count, int64_t depth_first, int64_t depth,
                      const int width, float *row_buffer, float *out) {
  for (int64_t s = 0; s < count; s += width) {
    int64_t n = fsdp_min_i64(width, count - s);
    float *sliver = out + s * depth;
    if (along) continue;
    for (int64_t i = 0; i < n; i++) {
      const float *row = matrix_row(m, first + s + i, depth_first, depth, row_buffer);
      for (int64_t p = 0; p < depth; p++) sliver[p * width + i] = row[p];
    }
    for (int64_t i = n; i < width; i++)
      for (int64_t p = 0; p < depth; p++) sliver[p * width + i] = 0;
  }
  for (int64_t p = 0; along && p < depth; p++) {
    const float *row = matrix_row(m, depth_first + p, first, count, row_buffer);
    int64_t s = 0;
    for (; s + width <= count; s += width)
      memcpy(out + s * depth + p * width, row + s, (size_t)width * sizeof *out);
    if (s == count) continue;
    float *rest = out + s * depth + p * width;
    for (int i = 0; i < width; i++) rest[i] = s + i < count ? row[s + i] : 0;
  }
}

typedef struct block {
  int64_t m, n, k; // first row, column and contraction index
  int64_t rows, columns, depth;
} block;

static void store_edge(const float *edge, int64_t rows, int64_t columns, float *c, int64_t c_stride,
                       bool accumulate) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      c[i * c_stride + j] = edge[i * TILE_COLUMNS + j] + (accumulate ? c[i * c_stride + j] : 0);
}

static void multiply_block(const fsdp_gemm *g, block b, packed p, bool accumulate) {
  for (int64_t n = 0; n < b.columns; n += TILE_COLUMNS) {
    int64_t columns = fsdp_min_i64(TILE_COLUMNS, b.columns - n);
    const float *b_sliver = p.b + n * b.depth;
    for (int64_t m = 0; m < b.rows; m += TILE_ROWS) {
      int64_t rows = fsdp_min_i64(TILE_ROWS, b.rows - m);
      const float *a_sliver = p.a + m * b.depth;
      float *c = (float *)g->c + (b.m + m) * g->c_stride + b.n + n;
      if (columns == TILE_COLUMNS) {
        tile(rows, b.depth, a_sliver, b_sliver, c, (tile_strides){1, TILE_ROWS, TILE_COLUMNS, g->c_stride},
             accumulate);
      } else { // a vector would reach past the row
        tile(rows, b.depth, a_sliver, b_sliver, p.edge,
             (tile_strides){1, TILE_ROWS, TILE_COLUMNS, TILE_COLUMNS}, false);
        store_edge(p.edge, rows, columns, c, g->c_stride, accumulate);
      }
    }
  }
}

void FSDP_CPU(product)(const fsdp_gemm *g, void *scratch) {
  FSDP_CHECK(g->c_dtype == FSDP_F32, "the built-in product stores fp32");
  packed p = divide_scratch(scratch);
  matrix a = {g->a, g->ab_dtype, g->a_stride}, b = {g->b, g->ab_dtype, g->b_stride};
  for (int64_t n = 0; n < g->n; n += BLOCK_N) {
    int64_t columns = fsdp_min_i64(BLOCK_N, g->n - n);
    for (int64_t k = 0; k < g->k; k += BLOCK_K) {
      int64_t depth = fsdp_min_i64(BLOCK_K, g->k - k);
      pack(b, !g->b_transposed, n, columns, k, depth, TILE_COLUMNS, p.row, p.b);
      for (int64_t m = 0; m < g->m; m += BLOCK_M) {
        int64_t rows = fsdp_min_i64(BLOCK_M, g->m - m);
        pack(a, g->a_transposed, m, rows, k, depth, TILE_ROWS, p.row, p.a);
        multiply_block(g, (block){m, n, k, rows, columns, depth}, p, g->accumulate || k > 0);
      }
    }
  }
}
