// Products grouped by expert: of expert e those routed rows that lie from offsets[e] to offsets[e + 1], one
// gemm each. Row u of them is of row slots[u] / k of what has a row for each token: the built-in gemm takes
// such rows where they are, for a library they are copied side by side, in the workspace. N tokens, k slots
// of each, E experts, C channels, I intermediate size.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"

#include <string.h>

typedef struct grouped {
  const fsdp_kernel_call *call;
  const int32_t *slots, *offsets;
  int64_t E, C, I, first, room; // the routed rows of the operands: those from `first` on
  // Of expert 0, as if its rows were those of the operands from the first on. The weight, or its gradient, is
  // that of expert e `weight_elems` times e elements further on.
  fsdp_gemm gemm;
  int64_t weight_elems;
  bool of_weight; // its gradient: rows are summed over
} grouped;

// The operands, of which 2 and 3 are slots and offsets in every op with products.
static grouped open_grouped(const fsdp_kernel_call *call, const fsdp_view **operands) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call, 0);
  FSDP_CHECK(o[0].dtype == o[1].dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(o[0].dtype), fsdp_dtype_name(o[1].dtype));
  *operands = o;
  return (grouped){.call = call,
                   .slots = o[2].data,
                   .offsets = o[3].data,
                   .E = attrs->experts,
                   .C = attrs->channels,
                   .I = attrs->intermediate,
                   .first = attrs->first_routed,
                   .room = fsdp_op_letter_size(attrs, 'u', 0)};
}

// The first of the operands' rows that expert e has, or of those behind it.
static int64_t begin_of(const grouped *g, int64_t e) {
  return fsdp_min_i64(fsdp_max_i64(g->offsets[e] - g->first, 0), g->room);
}

static const void *moved(const void *data, fsdp_dtype dtype, int64_t elems) {
  return (const char *)data + elems * fsdp_dtype_bytes(dtype);
}

static fsdp_gemm gemm_of(const void *context, int64_t e) {
  const grouped *g = context;
  const int64_t begin = begin_of(g, e), rows = begin_of(g, e + 1) - begin, weight = e * g->weight_elems;
  fsdp_gemm gemm = g->gemm;
  if (gemm.a_rows)
    gemm.a_rows += begin;
  else
    gemm.a = moved(gemm.a, gemm.ab_dtype, begin * gemm.a_stride);
  if (!g->of_weight) {
    gemm.m = rows;
    gemm.b = moved(gemm.b, gemm.ab_dtype, weight);
    gemm.c = (char *)gemm.c + begin * gemm.c_stride * fsdp_dtype_bytes(gemm.c_dtype);
    return gemm;
  }
  gemm.k = rows;
  gemm.c = (char *)gemm.c + weight * fsdp_dtype_bytes(gemm.c_dtype);
  if (gemm.b_rows)
    gemm.b_rows += begin;
  else
    gemm.b = moved(gemm.b, gemm.ab_dtype, begin * gemm.b_stride);
  return gemm;
}

// ---- By a library

typedef struct row_copy {
  char *packed;
  const char *spread;
  const int32_t *slots;
  int64_t row_bytes, divisor;
} row_copy;

static void copy_row(void *argument, int64_t i, void *scratch) {
  const row_copy *c = argument;
  (void)scratch;
  memcpy(c->packed + i * c->row_bytes, c->spread + c->slots[i] / c->divisor * c->row_bytes,
         (size_t)c->row_bytes);
}

// The rows of `matrix` that *rows says, side by side in the workspace; then *rows is NULL.
static const void *gather(const grouped *g, const fsdp_gemm *gemm, const void *matrix, const int32_t **rows) {
  if (!*rows) return matrix;
  void *packed = fsdp_kernel_workspace(g->call)->data;
  row_copy copy = {.packed = packed,
                   .spread = matrix,
                   .slots = *rows,
                   .row_bytes = g->C * fsdp_dtype_bytes(gemm->ab_dtype),
                   .divisor = gemm->divisor};
  fsdp_pool_run(g->call->pool, g->of_weight ? gemm->k : gemm->m, copy_row, &copy);
  *rows = NULL;
  return packed;
}

static void run_by_library(const grouped *g) {
  for (int64_t e = 0; e < g->E; e++) {
    fsdp_gemm gemm = gemm_of(g, e);
    if (gemm.m == 0) continue;
    if (gemm.k == 0) { // the gradient of an expert without rows
      if (!gemm.accumulate) memset(gemm.c, 0, (size_t)(g->weight_elems * fsdp_dtype_bytes(gemm.c_dtype)));
      continue;
    }
    gemm.a = gather(g, &gemm, gemm.a, &gemm.a_rows);
    gemm.b = gather(g, &gemm, gemm.b, &gemm.b_rows);
    fsdp_gemm_run(g->call->pool, &gemm);
  }
}

static void run(const grouped *g) {
  if (fsdp_gemm_takes_rows(g->gemm.ab_dtype))
    fsdp_gemm_run_group(g->call->pool, &(fsdp_gemm_group){.count = g->E, .at = gemm_of, .context = g});
  else
    run_by_library(g);
}

// ---- Products with a weight (out, in) of each expert: (2 I, C) of up, (C, I) of down

// c = a * weight^T with a (rows, in), or `back`: c = a * weight with a (rows, out). What up reads and what
// comes back to down has a row for each token.
static void multiply(const fsdp_kernel_call *call, bool is_up, bool back) {
  const fsdp_view *o;
  grouped g = open_grouped(call, &o);
  const int64_t out = is_up ? 2 * g.I : g.C, in = is_up ? g.C : g.I;
  const bool of_tokens = is_up != back;
  g.weight_elems = out * in;
  g.gemm = (fsdp_gemm){.n = back ? in : out,
                       .k = back ? out : in,
                       .a = o[0].data,
                       .a_stride = back ? out : in,
                       .a_rows = of_tokens ? g.slots + g.first : NULL,
                       .b = o[1].data,
                       .b_stride = in,
                       .b_transposed = !back,
                       .c = o[4].data,
                       .c_stride = back ? in : out,
                       .divisor = call->attrs->slots,
                       .ab_dtype = o[0].dtype,
                       .c_dtype = o[4].dtype};
  run(&g);
}

// Of the weight's gradient: d_weight (out, in) = d_y (rows, out)^T * x (rows, in), or += if it is added to.
// That of an expert without rows is zero. Of d_y and x one has a row for each token.
static void multiply_rows(const fsdp_kernel_call *call, bool is_up) {
  const fsdp_view *o;
  grouped g = open_grouped(call, &o);
  const int32_t *rows = g.slots + g.first;
  const int64_t out = is_up ? 2 * g.I : g.C, in = is_up ? g.C : g.I;
  g.weight_elems = out * in;
  g.of_weight = true;
  g.gemm = (fsdp_gemm){.m = out,
                       .n = in,
                       .a = o[0].data,
                       .a_stride = out,
                       .a_rows = is_up ? NULL : rows,
                       .a_transposed = true,
                       .b = o[1].data,
                       .b_stride = in,
                       .b_rows = is_up ? rows : NULL,
                       .c = o[4].data,
                       .c_stride = in,
                       .divisor = call->attrs->slots,
                       .ab_dtype = o[0].dtype,
                       .c_dtype = o[4].dtype,
                       .accumulate = updates(&o[4])};
  run(&g);
}

void FSDP_CPU(expert_up)(const fsdp_kernel_call *call) {
  multiply(call, true, false);
}
void FSDP_CPU(expert_down)(const fsdp_kernel_call *call) {
  multiply(call, false, false);
}
void FSDP_CPU(expert_up_backward_input)(const fsdp_kernel_call *call) {
  multiply(call, true, true);
}
void FSDP_CPU(expert_down_backward_input)(const fsdp_kernel_call *call) {
  multiply(call, false, true);
}
void FSDP_CPU(expert_up_backward_weight)(const fsdp_kernel_call *call) {
  multiply_rows(call, true);
}
void FSDP_CPU(expert_down_backward_weight)(const fsdp_kernel_call *call) {
  multiply_rows(call, false);
}

// ---- The sum over a row's slots

enum { CHUNK = 1024 }; // columns at a time

typedef struct combination {
  const fsdp_view *z, *y;
  const int32_t *places;
  int64_t C, k, first, room; // the routed rows of z: those from `first` on
} combination;

static bool is_among(const combination *s, int32_t place) {
  return place >= s->first && place < s->first + s->room;
}

static void combine_row(void *argument, int64_t n, void *scratch) {
  const combination *s = argument;
  const int32_t *places = s->places + n * s->k;
  float *sum = scratch, *buffer = scratch_after(scratch, CHUNK);
  bool any = !updates(s->y);
  for (int64_t j = 0; j < s->k; j++) any |= is_among(s, places[j]);
  for (int64_t c = 0; c < s->C && any; c += CHUNK) {
    const int64_t count = fsdp_min_i64(CHUNK, s->C - c);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t j = 0; j < s->k; j++) {
      if (!is_among(s, places[j])) continue;
      const float *z = load(s->z, (places[j] - s->first) * s->C + c, count, buffer);
      for (int64_t i = 0; i < count; i++) sum[i] += z[i];
    }
    store_sums(s->y, n * s->C + c, count, sum, buffer);
  }
}

void FSDP_CPU(combine)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  combination s = {.z = &o[0], .places = o[1].data, .y = &o[2]};
  s.C = call->attrs->channels, s.k = call->attrs->slots;
  s.first = call->attrs->first_routed, s.room = fsdp_op_letter_size(call->attrs, 'u', 0);
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, combine_row, &s);
}
