// Products grouped by expert: of expert e those routed rows that lie from offsets[e] to offsets[e + 1], one
// gemm each. Row u of them is of row slots[u] / k of what has a row for each token. Such rows are copied side
// by side, in the workspace. N tokens, k slots of each, E experts, C channels, I intermediate size.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

#include <string.h>

typedef struct grouped {
  const fsdp_kernel_call *call;
  const int32_t *slots, *offsets;
  int64_t E, C, I, first, room; // the routed rows of the operands: those from `first` on
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

static int64_t rows_of(const grouped *g, int64_t e) {
  return begin_of(g, e + 1) - begin_of(g, e);
}

// ---- Rows into the workspace

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

// The tokens' rows of `view` (N, C) that expert e has, side by side.
static const void *gather(const grouped *g, int64_t e, const fsdp_view *view) {
  void *packed = fsdp_kernel_workspace(g->call)->data;
  row_copy copy = {.packed = packed,
                   .spread = view->data,
                   .slots = g->slots + g->first + begin_of(g, e),
                   .row_bytes = g->C * fsdp_dtype_bytes(view->dtype),
                   .divisor = g->call->attrs->slots};
  fsdp_pool_run(g->call->pool, rows_of(g, e), copy_row, &copy);
  return packed;
}

// ---- Products with a weight (out, in) of expert e

typedef struct expert_gemm {
  const void *a;
  const fsdp_view *weight;
  void *c;
  fsdp_dtype dtype; // of c
  int64_t rows, e, out, in;
} expert_gemm;

// c (rows, out) = a (rows, in) * weight^T.
static void multiply(const grouped *g, const expert_gemm *m) {
  fsdp_gemm gemm = {.m = m->rows,
                    .n = m->out,
                    .k = m->in,
                    .a = m->a,
                    .a_stride = m->in,
                    .b = element(m->weight, m->e * m->out * m->in),
                    .b_stride = m->in,
                    .b_transposed = true,
                    .c = m->c,
                    .c_stride = m->out,
                    .ab_dtype = m->weight->dtype,
                    .c_dtype = m->dtype};
  if (m->rows > 0) fsdp_gemm_run(g->call->pool, &gemm);
}

// c (rows, in) = a (rows, out) * weight.
static void multiply_back(const grouped *g, const expert_gemm *m) {
  fsdp_gemm gemm = {.m = m->rows,
                    .n = m->in,
                    .k = m->out,
                    .a = m->a,
                    .a_stride = m->out,
                    .b = element(m->weight, m->e * m->out * m->in),
                    .b_stride = m->in,
                    .c = m->c,
                    .c_stride = m->in,
                    .ab_dtype = m->weight->dtype,
                    .c_dtype = m->dtype};
  if (m->rows > 0) fsdp_gemm_run(g->call->pool, &gemm);
}

// Of the weight's gradient: d_weight (out, in) = d_y (rows, out)^T * x (rows, in), or += if it is added to.
// That of an expert without rows is zero.
static void multiply_rows(const grouped *g, const expert_gemm *m, const void *d_y, const void *x,
                          fsdp_dtype dtype) {
  void *d_weight = element(m->weight, m->e * m->out * m->in);
  fsdp_gemm gemm = {.m = m->out,
                    .n = m->in,
                    .k = m->rows,
                    .a = d_y,
                    .a_stride = m->out,
                    .a_transposed = true,
                    .b = x,
                    .b_stride = m->in,
                    .c = d_weight,
                    .c_stride = m->in,
                    .ab_dtype = dtype,
                    .c_dtype = m->weight->dtype,
                    .accumulate = updates(m->weight)};
  if (m->rows > 0)
    fsdp_gemm_run(g->call->pool, &gemm);
  else if (!updates(m->weight))
    memset(d_weight, 0, (size_t)(m->out * m->in * fsdp_dtype_bytes(m->weight->dtype)));
}

void FSDP_CPU(expert_up)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[1], .dtype = o[4].dtype, .out = 2 * g.I, .in = g.C};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    m.a = gather(&g, m.e, &o[0]);
    m.c = element(&o[4], begin_of(&g, m.e) * m.out);
    multiply(&g, &m);
  }
}

void FSDP_CPU(expert_down)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[1], .dtype = o[4].dtype, .out = g.C, .in = g.I};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    m.a = element(&o[0], begin_of(&g, m.e) * m.in);
    m.c = element(&o[4], begin_of(&g, m.e) * m.out);
    multiply(&g, &m);
  }
}

void FSDP_CPU(expert_down_backward_input)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[1], .dtype = o[4].dtype, .out = g.C, .in = g.I};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    m.a = gather(&g, m.e, &o[0]);
    m.c = element(&o[4], begin_of(&g, m.e) * m.in);
    multiply_back(&g, &m);
  }
}

void FSDP_CPU(expert_down_backward_weight)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[4], .out = g.C, .in = g.I};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    multiply_rows(&g, &m, gather(&g, m.e, &o[0]), element(&o[1], begin_of(&g, m.e) * m.in), o[0].dtype);
  }
}

void FSDP_CPU(expert_up_backward_input)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[1], .dtype = o[4].dtype, .out = 2 * g.I, .in = g.C};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    m.a = element(&o[0], begin_of(&g, m.e) * m.out);
    m.c = element(&o[4], begin_of(&g, m.e) * m.in);
    multiply_back(&g, &m);
  }
}

void FSDP_CPU(expert_up_backward_weight)(const fsdp_kernel_call *call) {
  const fsdp_view *o;
  const grouped g = open_grouped(call, &o);
  expert_gemm m = {.weight = &o[4], .out = 2 * g.I, .in = g.C};
  for (m.e = 0; m.e < g.E; m.e++) {
    m.rows = rows_of(&g, m.e);
    multiply_rows(&g, &m, element(&o[0], begin_of(&g, m.e) * m.out), gather(&g, m.e, &o[1]), o[0].dtype);
  }
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
    if (updates(s->y)) {
      const float *y = load(s->y, n * s->C + c, count, buffer);
      for (int64_t i = 0; i < count; i++) sum[i] += y[i];
    }
    store(s->y, n * s->C + c, count, sum);
  }
}

void FSDP_CPU(combine)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  combination s = {.z = &o[0], .places = o[1].data, .y = &o[2]};
  s.C = call->attrs->channels, s.k = call->attrs->slots;
  s.first = call->attrs->first_routed, s.room = fsdp_op_letter_size(call->attrs, 'u', 0);
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, combine_row, &s);
}
