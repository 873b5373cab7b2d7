#include "tests/support/network_compute.h"

#include "kernels/kernels.h"
#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
  const fsdp_dataflow *flow;
  const fsdp_operator *op;
  const network_part *in;
  network_part *out;
  fsdp_pool *pool;
} work;

// ---- Kernels

static fsdp_view view_of(const network_part *p, fsdp_access access) {
  return (fsdp_view){.data = p->data, .numel = p->numel, .dtype = FSDP_F32, .access = access};
}

static network_part temporary(int64_t numel) {
  return (network_part){.numel = numel, .data = fsdp_alloc((size_t)numel * sizeof(float))};
}

static void run_kernel(const work *w, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                       const fsdp_view *operands, int count) {
  const fsdp_kernel_call call = {
      .kind = kind, .attrs = attrs, .operands = operands, .operand_count = count, .pool = w->pool};
  fsdp_cpu_kernels()->kernels[kind](&call);
}

static bool has_letter(const work *w, int operand, int dim, char name) {
  int letter = w->op->operands[operand].letter[dim];
  return letter >= 0 && w->op->letters[letter].name == name;
}

// One product with a matrix, or one for each matrix.
static void run_matmul(const work *w) {
  const network_part *x = &w->in[0], *weight = &w->in[1];
  int64_t columns = x->shape[x->dims - 1], outputs = w->out->shape[w->out->dims - 1];
  int64_t matrices = weight->numel / (columns * outputs), rows = x->numel / columns / matrices;
  const fsdp_op_attrs attrs = {.batch = rows,
                               .seq = 1,
                               .in_features = columns,
                               .out_features = outputs,
                               .out_stride = outputs,
                               .weight_transposed = has_letter(w, 1, weight->dims - 1, 'o')};
  for (int64_t m = 0; m < matrices; m++) {
    const network_part x_m = {.data = x->data + m * rows * columns, .numel = rows * columns};
    const network_part weight_m = {.data = weight->data + m * columns * outputs, .numel = columns * outputs};
    const network_part out_m = {.data = w->out->data + m * rows * outputs, .numel = rows * outputs};
    const fsdp_view views[] = {view_of(&x_m, FSDP_READ), view_of(&weight_m, FSDP_READ),
                               view_of(&out_m, FSDP_WRITE)};
    run_kernel(w, FSDP_OP_LINEAR, &attrs, views, 3);
  }
}

static void run_rmsnorm(const work *w) {
  const network_part *x = &w->in[0], *weight = &w->in[1];
  const fsdp_op_attrs attrs = {
      .batch = x->numel / weight->numel, .seq = 1, .channels = weight->numel, .eps = NETWORK_NORM_EPS};
  network_part rstd = temporary(attrs.batch);
  const fsdp_view views[] = {view_of(x, FSDP_READ), view_of(weight, FSDP_READ), view_of(w->out, FSDP_WRITE),
                             view_of(&rstd, FSDP_WRITE)};
  run_kernel(w, FSDP_OP_RMSNORM, &attrs, views, 4);
  free(rstd.data);
}

// The items of a dimension, with what lies behind it, are columns.
static void run_slice(const work *w) {
  const network_part *x = &w->in[0];
  int axis = 0;
  while (w->op->operands[1].letter[axis] >= 0) axis++;
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < axis; d++) outer *= x->shape[d];
  for (int d = axis + 1; d < x->dims; d++) inner *= x->shape[d];
  int64_t columns = w->out->shape[axis] * inner;
  const fsdp_op_attrs attrs = {.batch = outer,
                               .seq = 1,
                               .in_features = columns,
                               .out_features = columns,
                               .out_stride = x->shape[axis] * inner,
                               .out_offset = w->op->begin * inner};
  const fsdp_view views[] = {view_of(x, FSDP_READ), view_of(w->out, FSDP_WRITE)};
  run_kernel(w, FSDP_OP_TAKE_COLUMNS, &attrs, views, 2);
}

// Rows of a part of the table; zero for an index of another part's.
static void run_gather(const work *w) {
  const network_part *table = &w->in[0], *indices = &w->in[1];
  const fsdp_op_attrs attrs = {.batch = indices->numel,
                               .seq = 1,
                               .vocabulary = table->shape[0],
                               .channels = table->shape[1],
                               .first_index = table->begin[0],
                               .extent = w->flow->tensors[w->op->operands[0].tensor].shape[0]};
  int32_t *tokens = fsdp_alloc((size_t)indices->numel * sizeof *tokens);
  for (int64_t e = 0; e < indices->numel; e++) tokens[e] = (int32_t)indices->data[e];
  const fsdp_view views[] = {
      {.data = tokens, .numel = indices->numel, .dtype = FSDP_I32, .access = FSDP_READ},
      view_of(table, FSDP_READ),
      view_of(w->out, FSDP_WRITE)};
  run_kernel(w, FSDP_OP_EMBEDDING, &attrs, views, 3);
  free(tokens);
}

// Copies between heads[b,h,t,d] and columns `column` on of rows[bt,..], which are `width` wide.
static void copy_heads(const network_part *heads, float *rows, int64_t column, int64_t width, bool to_rows) {
  const int64_t H = heads->shape[1], T = heads->shape[2], D = heads->shape[3];
  for (int64_t row = 0; row < heads->shape[0] * H * T; row++) {
    int64_t b = row / (H * T), h = row / T % H, t = row % T;
    float *at = rows + (b * T + t) * width + column + h * D, *head = heads->data + row * D;
    memcpy(to_rows ? at : head, to_rows ? head : at, (size_t)D * sizeof *at);
  }
}

static void run_attention(const work *w) {
  const network_part *q = &w->in[0], *k = &w->in[1], *v = &w->in[2];
  const int64_t B = q->shape[0], H = q->shape[1], T = q->shape[2], D = q->shape[3];
  const int64_t K = k->shape[1], S = k->shape[2];
  FSDP_CHECK(q->begin[1] * K == k->begin[1] * H, "%s: a rank has the keys of other queries", w->op->names[0]);
  const fsdp_op_attrs attrs = {.batch = B,
                               .seq = T,
                               .heads = H,
                               .kv_heads = K,
                               .head_dim = D,
                               .kv_seq = S,
                               .out_stride = H * D,
                               .first_index = q->begin[2]};
  network_part queries = temporary(q->numel), kv = temporary(B * S * 2 * K * D);
  network_part rows = temporary(q->numel), lse = temporary(B * H * T);
  copy_heads(q, queries.data, 0, H * D, true);
  copy_heads(k, kv.data, 0, 2 * K * D, true);
  copy_heads(v, kv.data, K * D, 2 * K * D, true);
  const fsdp_view views[] = {view_of(&queries, FSDP_READ), view_of(&kv, FSDP_READ),
                             view_of(&rows, FSDP_WRITE), view_of(&lse, FSDP_WRITE)};
  run_kernel(w, FSDP_OP_CONTEXT_ATTENTION, &attrs, views, 4);
  copy_heads(w->out, rows.data, 0, H * D, false);
  free(queries.data);
  free(kv.data);
  free(rows.data);
  free(lse.data);
}

// ---- Loops

// The element of operand `a` that has the letters of element `e` of operand `b`; a dimension without a letter
// has one item.
static int64_t element_of(const fsdp_operator *op, const network_part *a, int operand_a,
                          const network_part *b, int operand_b, int64_t e) {
  int64_t index = 0, stride = 1, at[FSDP_OPERATOR_LETTERS] = {0};
  for (int d = b->dims - 1; d >= 0; d--) {
    int letter = op->operands[operand_b].letter[d];
    if (letter >= 0) at[letter] = e % b->shape[d];
    e /= b->shape[d];
  }
  for (int d = a->dims - 1; d >= 0; d--) {
    int letter = op->operands[operand_a].letter[d];
    if (letter >= 0) index += at[letter] * stride;
    stride *= a->shape[d];
  }
  return index;
}

static float input_at(const work *w, int input, int64_t e) {
  return w->in[input].data[element_of(w->op, &w->in[input], input, w->out, w->op->input_count, e)];
}

static void run_mul(const work *w) {
  for (int64_t e = 0; e < w->out->numel; e++) w->out->data[e] = input_at(w, 0, e) * input_at(w, 1, e);
}

static void run_relu(const work *w) {
  for (int64_t e = 0; e < w->out->numel; e++) w->out->data[e] = w->in->data[e] > 0 ? w->in->data[e] : 0;
}

static void run_transpose(const work *w) {
  for (int64_t e = 0; e < w->out->numel; e++) w->out->data[e] = input_at(w, 0, e);
}

static void run_mean(const work *w) {
  double items = 1; // of the whole: each rank has its summand
  for (int l = 0; l < w->op->letter_count; l++)
    if (fsdp_operand_dim(&w->op->operands[1], l) < 0) items *= (double)w->op->letters[l].size;
  memset(w->out->data, 0, (size_t)w->out->numel * sizeof(float));
  for (int64_t e = 0; e < w->in->numel; e++)
    w->out->data[element_of(w->op, w->out, 1, w->in, 0, e)] += (float)((double)w->in->data[e] / items);
}

// Whether a part has the last dimensions of another.
static bool is_tail(const network_part *tail, const network_part *whole) {
  bool same = tail->dims <= whole->dims;
  for (int d = 1; d <= tail->dims && same; d++)
    same = tail->shape[tail->dims - d] == whole->shape[whole->dims - d];
  return same;
}

static void run_add(const work *w) {
  network_part *out = w->out;
  const network_part *a = &w->in[0], *b = &w->in[1];
  if (a->numel < b->numel) a = &w->in[1], b = &w->in[0];
  if (a->numel != out->numel || !is_tail(b, out)) {
    for (int64_t e = 0; e < out->numel; e++) out->data[e] = input_at(w, 0, e) + input_at(w, 1, e);
    return;
  }
  const fsdp_op_attrs attrs = {
      .batch = out->numel / b->numel, .seq = 1, .out_features = b->numel, .out_stride = b->numel};
  memcpy(out->data, a->data, (size_t)out->numel * sizeof *out->data);
  const fsdp_view views[] = {view_of(b, FSDP_READ), view_of(out, FSDP_UPDATE)};
  run_kernel(w, b->numel == out->numel ? FSDP_OP_ADD : FSDP_OP_ADD_BIAS, &attrs, views, 2);
}

// ---- All

typedef struct kind_row {
  const char *kind;
  void (*run)(const work *w);
} kind_row;

static const kind_row kinds[] = {{"matmul", run_matmul},
                                 {"add", run_add},
                                 {"mul", run_mul},
                                 {"relu", run_relu},
                                 {"transpose", run_transpose},
                                 {"reduce_mean", run_mean},
                                 {"slice", run_slice},
                                 {"gather", run_gather},
                                 {"rmsnorm", run_rmsnorm},
                                 {"attention", run_attention}};

void network_compute(const fsdp_dataflow *flow, int op, const network_part *in, network_part *out,
                     fsdp_pool *pool) {
  const work w = {.flow = flow, .op = &flow->operators[op], .in = in, .out = out, .pool = pool};
  if (out->numel == 0) return;
  for (int i = 0; i < w.op->input_count; i++) {
    if (in[i].numel > 0) continue;
    memset(out->data, 0, (size_t)out->numel * sizeof *out->data); // the summand of nothing
    return;
  }
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    if (strcmp(kinds[k].kind, w.op->kind) != 0) continue;
    kinds[k].run(&w);
    return;
  }
  FSDP_CHECK(false, "an operator of kind %s cannot be run", w.op->kind);
}
