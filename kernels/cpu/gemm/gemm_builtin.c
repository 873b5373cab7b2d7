#include "kernels/cpu/gemm/gemm_library.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/transpose.h"

// Block sizes: a packed block of a (BLOCK_M x BLOCK_K) stays in the second-level cache, a packed panel of b
// (BLOCK_K x BLOCK_N) in the third, a sliver of a (TILE_ROWS x BLOCK_K) and the rows of b that meet it in the
// first.
enum {
  BLOCK_K = 512,
  BLOCK_M = TILE_ROWS * (TILE_ROWS == 6 ? 20 : 10),
  BLOCK_N = 1024,
  AHEAD = 8, // rows prefetched ahead of packing
};

typedef struct packed {
  float *a, *b, *edge, *rows;
} packed;

// Slivers lie a cache line further apart than they are long: at a power of two apart, the stores of a packed
// row would fall into the same sets of the caches.
FSDP_INLINE int64_t sliver_stride(const int width, int64_t depth) {
  return width * depth + 16;
}

static packed divide_scratch(void *scratch) {
  packed p;
  p.a = scratch;
  p.b = scratch_after(p.a, BLOCK_M / TILE_ROWS * sliver_stride(TILE_ROWS, BLOCK_K));
  p.edge = scratch_after(p.b, BLOCK_N / TILE_COLUMNS * sliver_stride(TILE_COLUMNS, BLOCK_K));
  p.rows = scratch_after(p.edge, TILE_ROWS * TILE_COLUMNS);
  FSDP_CHECK((size_t)((char *)(p.rows + TRANSPOSED * BLOCK_K) - (char *)scratch) <=
                 FSDP_PRODUCT_SCRATCH_BYTES,
             "packed panels exceed the scratch");
  return p;
}

typedef struct matrix {
  const void *data;
  fsdp_dtype dtype;
  int64_t stride;
  const int32_t *rows;
  int64_t divisor;
} matrix;

static inline int64_t stored_row(matrix m, int64_t row) {
  return m.rows ? m.rows[row] / m.divisor : row;
}

static inline const float *matrix_row(matrix m, int64_t row, int64_t column, int64_t count, float *buffer) {
  fsdp_view view = {.data = (void *)(uintptr_t)m.data, .dtype = m.dtype};
  return load(&view, stored_row(m, row) * m.stride + column, count, buffer);
}

typedef struct range {
  int64_t first, count;
} range;

// Packs `items` x `depth` elements into slivers of `width`: sliver[p * width + i] is element (i, p), zero
// past the last item. Here the matrix's rows are items.
FSDP_INLINE void pack_rows(matrix m, range items, range depth, const int width, float *buffer, float *out) {
  for (int64_t s = 0; s < items.count; s += width, out += sliver_stride(width, depth.count)) {
    int64_t n = fsdp_min_i64(width, items.count - s);
    for (int64_t i = (n - 1) / TRANSPOSED * TRANSPOSED; i >= 0; i -= TRANSPOSED) {
      const float *rows[TRANSPOSED] = {0}; // GCC 13 does not see that no more than `count` are read
      int64_t count = fsdp_min_i64(TRANSPOSED, n - i);
      for (int64_t r = 0; r < count; r++)
        rows[r] = matrix_row(m, items.first + s + i + r, depth.first, depth.count, buffer + r * BLOCK_K);
      transpose_rows(rows, count, depth.count, width, out + i);
    }
    for (int64_t p = 0; n < width && p < depth.count; p++)
      for (int64_t i = n; i < width; i++) out[p * width + i] = 0;
  }
}

// Rows of a large matrix are on different pages, and the core does not prefetch across pages.
FSDP_INLINE void prefetch_row(matrix m, int64_t row, range items) {
  int64_t width = fsdp_dtype_bytes(m.dtype);
  const char *first = (const char *)m.data + (stored_row(m, row) * m.stride + items.first) * width;
  for (int64_t at = 0; at < items.count * width; at += 64) __builtin_prefetch(first + at);
}

// The same with the matrix's columns as items.
FSDP_INLINE void pack_columns(matrix m, range items, range depth, const int width, float *buffer,
                              float *out) {
  const int vectors = (width + FSDP_LANES - 1) / FSDP_LANES * FSDP_LANES;
  int64_t whole = items.count / width, rest = items.count % width, stride = sliver_stride(width, depth.count);
  for (int64_t p = 0; p < depth.count; p++, out += width) {
    const float *row = matrix_row(m, depth.first + p, items.first, items.count, buffer);
    int64_t s = 0;
    prefetch_row(m, depth.first + fsdp_min_i64(p + AHEAD, depth.count - 1), items);
    // Whole vectors: what they hold beyond the width is overwritten by the next p, or falls between slivers.
    for (; s + 1 < whole; s++) memcpy(out + s * stride, row + s * width, (size_t)vectors * sizeof *out);
    for (; s < whole; s++) memcpy(out + s * stride, row + s * width, (size_t)width * sizeof *out);
    for (int64_t i = 0; rest > 0 && i < width; i++)
      out[whole * stride + i] = i < rest ? row[whole * width + i] : 0;
  }
}

typedef struct block {
  range m, n, k;
} block;

static void store_edge(const float *edge, int64_t rows, int64_t columns, float *c, int64_t c_stride,
                       bool accumulate) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      c[i * c_stride + j] =
          accumulate ? c[i * c_stride + j] + edge[i * TILE_COLUMNS + j] : edge[i * TILE_COLUMNS + j];
}

// Not inlined: beside the packing the compiler runs out of registers, and keeps some of the sums in memory.
static __attribute__((noinline)) void multiply_tile(int64_t rows, int64_t depth, const float *a,
                                                    const float *b, float *c, int64_t c_stride,
                                                    bool accumulate) {
  tile(rows, depth, a, b, c, (tile_strides){1, TILE_ROWS, TILE_COLUMNS, c_stride}, accumulate);
}

static void multiply_block(const fsdp_gemm *g, block b, packed p, bool accumulate) {
  int64_t depth = b.k.count;
  for (int64_t n = 0; n < b.n.count; n += TILE_COLUMNS) {
    int64_t columns = fsdp_min_i64(TILE_COLUMNS, b.n.count - n);
    const float *b_sliver = p.b + n / TILE_COLUMNS * sliver_stride(TILE_COLUMNS, depth);
    for (int64_t m = 0; m < b.m.count; m += TILE_ROWS) {
      int64_t rows = fsdp_min_i64(TILE_ROWS, b.m.count - m);
      const float *a_sliver = p.a + m / TILE_ROWS * sliver_stride(TILE_ROWS, depth);
      float *c = (float *)g->c + (b.m.first + m) * g->c_stride + b.n.first + n;
      if (columns == TILE_COLUMNS) {
        multiply_tile(rows, depth, a_sliver, b_sliver, c, g->c_stride, accumulate);
      } else { // a vector would reach past the row
        multiply_tile(rows, depth, a_sliver, b_sliver, p.edge, TILE_COLUMNS, false);
        store_edge(p.edge, rows, columns, c, g->c_stride, accumulate);
      }
    }
  }
}

// Parts of `count` of at most `most`, nearly equal and whole multiples of `unit`.
static int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  int64_t parts = blocks_of(count, most);
  return fsdp_min_i64(most, fsdp_round_up(blocks_of(count, parts), unit));
}

void FSDP_CPU(product)(const fsdp_gemm *g, void *scratch) {
  FSDP_CHECK(g->c_dtype == FSDP_F32, "the built-in product stores fp32");
  if (g->m == 0 || g->n == 0) return;
  packed p = divide_scratch(scratch);
  matrix a = {g->a, g->ab_dtype, g->a_stride, g->a_rows, g->divisor};
  matrix b = {g->b, g->ab_dtype, g->b_stride, g->b_rows, g->divisor};
  // The cut of k decides the order of summation, so it depends on k alone.
  int64_t m_part = even_part(g->m, BLOCK_M, TILE_ROWS), n_part = even_part(g->n, BLOCK_N, TILE_COLUMNS);
  int64_t k_part = even_part(g->k, BLOCK_K, 8);
  block at;
  for (at.n.first = 0; at.n.first < g->n; at.n.first += n_part) {
    at.n.count = fsdp_min_i64(n_part, g->n - at.n.first);
    for (at.k.first = 0; at.k.first < g->k; at.k.first += k_part) {
      at.k.count = fsdp_min_i64(k_part, g->k - at.k.first);
      if (g->b_transposed) {
        pack_rows(b, at.n, at.k, TILE_COLUMNS, p.rows, p.b);
      } else {
        pack_columns(b, at.n, at.k, TILE_COLUMNS, p.rows, p.b);
      }
      for (at.m.first = 0; at.m.first < g->m; at.m.first += m_part) {
        at.m.count = fsdp_min_i64(m_part, g->m - at.m.first);
        if (g->a_transposed) {
          pack_columns(a, at.m, at.k, TILE_ROWS, p.rows, p.a);
        } else {
          pack_rows(a, at.m, at.k, TILE_ROWS, p.rows, p.a);
        }
        multiply_block(g, at, p, g->accumulate || at.k.first > 0);
      }
    }
  }
}
