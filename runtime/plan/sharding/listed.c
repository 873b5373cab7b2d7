#include "runtime/plan/sharding/listed.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"

#include <stdio.h>
#include <string.h>

// ---- The graph

fsdp_graph *fsdp_listed_create(void) {
  fsdp_graph *graph = fsdp_graph_create(0, 0);
  fsdp_graph_module(graph, -1, "", "Listed", "");
  return graph;
}

bool fsdp_listed_fits(int dims, const int64_t *shape) {
  int64_t numel = 1;
  for (int d = 0; d < dims; d++) {
    if (shape[d] > FSDP_LISTED_NUMEL_MAX / numel) return false;
    numel *= shape[d];
  }
  return true;
}

int fsdp_listed_tensor(fsdp_graph *graph, fsdp_value_role role, const char *name, int dims,
                       const int64_t *shape) {
  FSDP_CHECK(fsdp_listed_fits(dims, shape), "%s has too many items", name);
  if (role != FSDP_VALUE_PARAM)
    return fsdp_graph_value(graph, role, FSDP_VALUE_COMPUTE, 0, name, dims, shape);
  fsdp_param spec = {.dims = dims};
  snprintf(spec.name, sizeof spec.name, "%s", name);
  memcpy(spec.shape, shape, (size_t)dims * sizeof *shape);
  const int param = fsdp_graph_param(graph, 0, &spec);
  return graph->params[param].value;
}

int fsdp_listed_find(const fsdp_graph *graph, const char *name) {
  for (int v = 0; v < graph->value_count; v++)
    if (!strcmp(graph->values[v].name, name)) return v;
  return -1;
}

// ---- An operator

typedef struct maker {
  const fsdp_graph *graph;
  const fsdp_listed_operator *spec;
  fsdp_op_letters letters;      // of inputs, then of the output
  int64_t shape[FSDP_MAX_DIMS]; // of the output
  fsdp_error *error;
} maker;

static const fsdp_value *input(const maker *m, int i) {
  return &m->graph->values[m->spec->inputs[i]];
}

// "[2, 8]"
static const char *shape_text(const fsdp_value *tensor, char out[96]) {
  int used = snprintf(out, 96, "[");
  for (int d = 0; d < tensor->dims; d++)
    used += snprintf(out + used, 96 - (size_t)used, "%s%lld", d ? ", " : "", (long long)tensor->shape[d]);
  snprintf(out + used, 96 - (size_t)used, "]");
  return out;
}

static fsdp_status refuse(const maker *m, const char *rule) {
  char shapes[FSDP_LISTED_INPUTS * (FSDP_NAME_BYTES + 100)] = "", one[96];
  size_t used = 0;
  for (int i = 0; i < m->spec->input_count; i++)
    used += (size_t)snprintf(shapes + used, sizeof shapes - used, "%s%s %s", i ? ", " : "", input(m, i)->name,
                             shape_text(input(m, i), one));
  return fsdp_fail(m->error, FSDP_ERR_INPUT, "%s: %s: %s is given %.400s: %s", m->spec->place, m->spec->name,
                   m->spec->kind, shapes, rule);
}

static fsdp_op_letter *find_letter(maker *m, char name) {
  for (int l = 0; l < m->letters.letter_count; l++)
    if (m->letters.letters[l].name == name) return &m->letters.letters[l];
  return NULL;
}

// Gives a dimension of input `i` a letter. Slices are compared in the order in which letters come first.
static void name_dim(maker *m, int i, int dim, char letter) {
  m->letters.operands[i].dims[dim].blocks[0].letters[0] = letter;
  if (find_letter(m, letter)) return;
  FSDP_CHECK(m->letters.letter_count < FSDP_OP_MAX_LETTERS, "too many letters of %s", m->spec->name);
  m->letters.letters[m->letters.letter_count++].name = letter;
}

static void need_whole(maker *m, char letter) {
  find_letter(m, letter)->is_whole = true;
}

static fsdp_op_operand *output(maker *m) {
  return &m->letters.operands[m->spec->input_count];
}

// The output's next dimension: `letter`'s, or 0: always whole.
static void add_out(maker *m, char letter, int64_t size) {
  m->shape[output(m)->dim_count] = size;
  output(m)->dims[output(m)->dim_count++].blocks[0].letters[0] = letter;
}

// Names the first `count` dimensions of an input p, q, u, w.
static const char leading[] = "pquw";

static void name_leading(maker *m, int i, int count) {
  for (int d = 0; d < count; d++) name_dim(m, i, d, leading[d]);
}

// ---- Kinds

static fsdp_status make_matmul(maker *m) {
  const fsdp_value *x = input(m, 0), *w = input(m, 1);
  int outer = x->dims - 2, rows = w->dims - 2 + m->spec->transposed,
      columns = w->dims - 1 - m->spec->transposed;
  bool same = outer >= 0 && (w->dims == 2 || w->dims == x->dims);
  for (int d = 0; d < w->dims - 2 && same; d++) same = w->shape[d] == x->shape[d];
  if (!same || w->shape[rows] != x->shape[outer + 1])
    return refuse(m, "a matrix, or as many matrices as the first input has, whose rows are the first input's "
                     "columns; transposed: true exchanges the two");
  name_leading(m, 0, outer);
  if (w->dims > 2) name_leading(m, 1, outer);
  name_dim(m, 0, outer, 'n');
  name_dim(m, 0, outer + 1, 'i');
  name_dim(m, 1, rows, 'i');
  name_dim(m, 1, columns, 'o');
  for (int d = 0; d < outer; d++) add_out(m, leading[d], x->shape[d]);
  add_out(m, 'n', x->shape[outer]);
  add_out(m, 'o', w->shape[columns]);
  return FSDP_OK;
}

// Element by element; what has one item or is not there is the same for all items of the other.
static fsdp_status make_broadcast(maker *m) {
  int dims = input(m, 0)->dims > input(m, 1)->dims ? input(m, 0)->dims : input(m, 1)->dims;
  int64_t shape[FSDP_MAX_DIMS];
  for (int d = 0; d < dims; d++) {
    shape[d] = 1;
    for (int i = 0; i < 2; i++) {
      int own = d - (dims - input(m, i)->dims);
      if (own < 0 || input(m, i)->shape[own] == 1) continue;
      if (shape[d] != 1 && shape[d] != input(m, i)->shape[own])
        return refuse(m, "their dimensions, counted from the last, must be equal or 1");
      shape[d] = input(m, i)->shape[own];
      name_dim(m, i, own, leading[d]);
    }
  }
  for (int d = 0; d < dims; d++) add_out(m, shape[d] > 1 ? leading[d] : 0, shape[d]);
  return FSDP_OK;
}

static fsdp_status make_relu(maker *m) {
  name_leading(m, 0, input(m, 0)->dims);
  for (int d = 0; d < input(m, 0)->dims; d++) add_out(m, leading[d], input(m, 0)->shape[d]);
  return FSDP_OK;
}

static fsdp_status make_transpose(maker *m) {
  const fsdp_value *x = input(m, 0);
  int order[FSDP_MAX_DIMS], seen = 0;
  for (int d = 0; d < x->dims; d++) order[d] = d;
  if (m->spec->permutation_count) {
    for (int d = 0; d < m->spec->permutation_count; d++) order[d] = m->spec->permutation[d];
  } else if (x->dims > 1) {
    order[x->dims - 1] = x->dims - 2;
    order[x->dims - 2] = x->dims - 1;
  }
  for (int d = 0; d < x->dims; d++) seen |= order[d] >= 0 && order[d] < x->dims ? 1 << order[d] : 0;
  bool fits = !m->spec->permutation_count || m->spec->permutation_count == x->dims;
  if (!fits || seen != (1 << x->dims) - 1 || x->dims < 2)
    return refuse(m, "permutation must have each of its dimensions, from 0, once");
  name_leading(m, 0, x->dims);
  for (int d = 0; d < x->dims; d++) add_out(m, leading[order[d]], x->shape[order[d]]);
  return FSDP_OK;
}

static fsdp_status check_axis(const maker *m) {
  if (m->spec->axis >= 0 && m->spec->axis < input(m, 0)->dims) return FSDP_OK;
  return refuse(m, "axis must be one of its dimensions, from 0");
}

static fsdp_status make_reduce_mean(maker *m) {
  if (check_axis(m)) return FSDP_ERR_INPUT;
  name_leading(m, 0, input(m, 0)->dims);
  for (int d = 0; d < input(m, 0)->dims; d++) {
    if (d != m->spec->axis) add_out(m, leading[d], input(m, 0)->shape[d]);
    if (d == m->spec->axis && m->spec->keeps_axis) add_out(m, 0, 1);
  }
  return FSDP_OK;
}

// A part of a dimension lies on other ranks than the whole would, so the dimension is whole.
static fsdp_status make_slice(maker *m) {
  const fsdp_value *x = input(m, 0);
  if (check_axis(m)) return FSDP_ERR_INPUT;
  int64_t begin = m->spec->begin, size = m->spec->size, items = x->shape[m->spec->axis];
  if (begin < 0 || size < 1 || begin > items - size)
    return refuse(m, "begin must be 0 or more, size 1 or more, and both together at most the items of axis");
  name_leading(m, 0, x->dims);
  need_whole(m, leading[m->spec->axis]);
  for (int d = 0; d < x->dims; d++)
    add_out(m, d == m->spec->axis ? 0 : leading[d], d == m->spec->axis ? size : x->shape[d]);
  return FSDP_OK;
}

static fsdp_status make_gather(maker *m) {
  const fsdp_value *table = input(m, 0), *indices = input(m, 1);
  if (table->dims != 2 || indices->dims < 1 || indices->dims >= FSDP_MAX_DIMS)
    return refuse(m, "a table of two dimensions and indices of one to three");
  name_dim(m, 0, 0, 'v');
  name_dim(m, 0, 1, 'c');
  name_leading(m, 1, indices->dims);
  for (int d = 0; d < indices->dims; d++) add_out(m, leading[d], indices->shape[d]);
  add_out(m, 'c', table->shape[1]);
  return FSDP_OK;
}

static fsdp_status make_rmsnorm(maker *m) {
  const fsdp_value *x = input(m, 0), *weight = input(m, 1);
  int last = x->dims - 1;
  if (last < 0 || weight->dims != 1 || weight->shape[0] != x->shape[last])
    return refuse(m, "the weight has one dimension, the input's last");
  name_leading(m, 0, last);
  name_dim(m, 0, last, 'c');
  name_dim(m, 1, 0, 'c');
  need_whole(m, 'c');
  for (int d = 0; d < last; d++) add_out(m, leading[d], x->shape[d]);
  add_out(m, 'c', x->shape[last]);
  return FSDP_OK;
}

static fsdp_status make_attention(maker *m) {
  const int64_t *q = input(m, 0)->shape, *k = input(m, 1)->shape, *v = input(m, 2)->shape;
  bool fits = input(m, 0)->dims == 4 && input(m, 1)->dims == 4 && input(m, 2)->dims == 4;
  fits = fits && k[0] == q[0] && k[3] == q[3] && q[1] % k[1] == 0 && !memcmp(k, v, 4 * sizeof *k);
  if (!fits)
    return refuse(m, "q is [batch, heads, positions, channels], and k and v have its batch and channels, and "
                     "heads that divide its heads");
  for (int i = 0; i < 3; i++) {
    name_dim(m, i, 0, 'b');
    name_dim(m, i, 1, 'h');
    name_dim(m, i, 2, i ? 's' : 't');
    name_dim(m, i, 3, 'd');
  }
  need_whole(m, 's');
  need_whole(m, 'd');
  find_letter(m, 'h')->is_even = true;
  for (int d = 0; d < 4; d++) add_out(m, "bhtd"[d], q[d]);
  return FSDP_OK;
}

// ---- All

typedef struct kind_row {
  const char *name;
  int inputs;
  const char *attributes; // each with a space behind it
  fsdp_status (*make)(maker *m);
} kind_row;

static const kind_row kinds[] = {{"matmul", 2, "transposed ", make_matmul},
                                 {"add", 2, "", make_broadcast},
                                 {"mul", 2, "", make_broadcast},
                                 {"relu", 1, "", make_relu},
                                 {"transpose", 1, "permutation ", make_transpose},
                                 {"reduce_mean", 1, "axis keep ", make_reduce_mean},
                                 {"slice", 1, "axis begin size ", make_slice},
                                 {"gather", 2, "", make_gather},
                                 {"rmsnorm", 2, "", make_rmsnorm},
                                 {"attention", 3, "", make_attention}};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

static fsdp_status find_kind(const fsdp_listed_operator *spec, const kind_row **found, fsdp_error *error) {
  const char *names[KIND_COUNT];
  char list[256] = "";
  size_t used = 0;
  for (int k = 0; k < KIND_COUNT; k++) {
    names[k] = kinds[k].name;
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", k ? ", " : "", kinds[k].name);
    if (!strcmp(kinds[k].name, spec->kind)) {
      *found = &kinds[k];
      return FSDP_OK;
    }
  }
  char near[FSDP_NEAREST_TEXT];
  fsdp_nearest_question(spec->kind, names, KIND_COUNT, near);
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s: unknown operator \"%.60s\"%s; there are %s", spec->place,
                   spec->name, spec->kind, near, list);
}

static fsdp_status check_attributes(const fsdp_listed_operator *spec, const kind_row *kind,
                                    fsdp_error *error) {
  for (const char *name = spec->attributes; name && *name; name = strchr(name, ' ') + 1) {
    int length = (int)strcspn(name, " ");
    bool known = false;
    for (const char *own = kind->attributes; *own && !known; own = strchr(own, ' ') + 1)
      known = !strncmp(own, name, (size_t)length + 1);
    if (known) continue;
    int own_length = (int)strlen(kind->attributes) - 1;
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s: %s has no attribute \"%.*s\"; its attributes: %.*s",
                     spec->place, spec->name, spec->kind, length, name, own_length < 0 ? 4 : own_length,
                     own_length < 0 ? "none" : kind->attributes);
  }
  return FSDP_OK;
}

// Every operand is one block a dimension, a constant where it has no letter.
static void begin_operands(maker *m) {
  m->letters.operand_count = m->spec->input_count + 1;
  for (int i = 0; i < m->letters.operand_count; i++) {
    fsdp_op_operand *operand = &m->letters.operands[i];
    operand->access = operand == output(m) ? FSDP_WRITE : FSDP_READ;
    operand->dim_count = operand == output(m) ? 0 : input(m, i)->dims;
    for (int d = 0; d < FSDP_OP_MAX_DIMS; d++) operand->dims[d].block_count = 1;
  }
}

fsdp_status fsdp_listed_add(fsdp_graph *graph, const fsdp_listed_operator *op, fsdp_error *error) {
  const kind_row *kind = NULL;
  fsdp_status status = find_kind(op, &kind, error);
  if (status) return status;
  if (op->input_count != kind->inputs)
    return fsdp_fail(
        error, FSDP_ERR_INPUT, "%s: %s: %s has %d input%s, not %d: write {%s: [...]} with as many names",
        op->place, op->name, op->kind, kind->inputs, kind->inputs == 1 ? "" : "s", op->input_count, op->kind);
  status = check_attributes(op, kind, error);
  if (status) return status;
  maker m = {.graph = graph, .spec = op, .error = error};
  begin_operands(&m);
  status = kind->make(&m);
  if (status) return status;
  if (!fsdp_listed_fits(output(&m)->dim_count, m.shape))
    return refuse(&m, "the output has more than 2^40 items");
  int module = fsdp_graph_module(graph, 0, op->name, op->kind, "");
  int made = fsdp_graph_value(graph, FSDP_VALUE_ACTIVATION, FSDP_VALUE_COMPUTE, module, op->name,
                              output(&m)->dim_count, m.shape);
  fsdp_node *node = fsdp_graph_listed(graph, module, &m.letters);
  for (int i = 0; i < op->input_count; i++) fsdp_node_operand_add(node, op->inputs[i], FSDP_READ);
  fsdp_node_operand_add(node, made, FSDP_WRITE);
  return FSDP_OK;
}
