#include "runtime/plan/sharding/dataflow.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fsdp_dataflow_destroy(fsdp_dataflow *flow) {
  if (!flow) return;
  free(flow->tensors);
  free(flow->operators);
  free(flow->readers);
  free(flow->first_reader);
  free(flow);
}

fsdp_tensor_reader fsdp_dataflow_reader_of(const fsdp_dataflow *flow, int value) {
  int t = 0;
  while (t < flow->tensor_count && flow->tensors[t].source != value) t++;
  return t < flow->tensor_count ? flow->readers[flow->first_reader[t]] : (fsdp_tensor_reader){-1, -1};
}

int fsdp_operator_letter_find(const fsdp_operator *op, char name) {
  for (int l = 0; l < op->letter_count; l++)
    if (op->letters[l].name == name) return l;
  return -1;
}

int fsdp_operand_dim(const fsdp_operator_operand *operand, int letter) {
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    if (operand->letter[d] == letter) return d;
  return -1;
}

const char *fsdp_operator_print(const fsdp_dataflow *flow, int op, char out[FSDP_OPERATOR_TEXT]) {
  const fsdp_operator *o = &flow->operators[op];
  bool shared = false;
  for (int i = 0; i < flow->operator_count && !shared; i++)
    shared = i != op && !strcmp(flow->operators[i].names[0], o->names[0]);
  snprintf(out, FSDP_OPERATOR_TEXT, "%s%s%s", o->names[0], shared ? "." : "", shared ? o->kind : "");
  return out;
}

bool fsdp_operand_joins_rows(const fsdp_dataflow *flow, const fsdp_operator *op, int operand) {
  const signed char *letters = op->operands[operand].letter;
  return flow->joins_rows && letters[0] >= 0 && letters[1] >= 0 && op->letters[letters[0]].name == 'b' &&
         op->letters[letters[1]].name == 't';
}

// ---- Of a graph

typedef struct builder {
  const fsdp_graph *graph;
  fsdp_dataflow *flow;
  int64_t batch;
  fsdp_dtype compute;
  int tensor_capacity;
  int *tensor;   // by value: the one that holds it now, -1: none yet
  bool *is_read; // by value: an operator of the forward reads it
} builder;

static char letter_of(const fsdp_op_dim *dim) {
  return dim->blocks[0].letters[0];
}

// Whether a dimension is a model's rows.
static bool is_rows(const builder *b, const fsdp_op_dim *dim) {
  return b->flow->joins_rows && (letter_of(dim) == 'n' || !strcmp(dim->blocks[0].letters, "bt"));
}

static fsdp_operator_tensor_role role_of(const fsdp_value *value) {
  switch (value->role) {
  case FSDP_VALUE_PARAM:
    return FSDP_TENSOR_PARAMETER;
  case FSDP_VALUE_INPUT:
  case FSDP_VALUE_COUNT_SCALAR:
    return FSDP_TENSOR_INPUT;
  default:
    return FSDP_TENSOR_MADE;
  }
}

// A tensor for a value, or for what an operator makes of it. Its rows are two dimensions.
static int add_tensor(builder *b, int value, const fsdp_op_operand *operand, int maker) {
  const fsdp_value *v = &b->graph->values[value];
  fsdp_operator_tensor tensor = {.role = role_of(v),
                                 .maker = maker,
                                 .source = value,
                                 .item_bytes =
                                     (int)fsdp_dtype_bytes(fsdp_graph_dtype(b->graph, value, b->compute))};
  snprintf(tensor.name, sizeof tensor.name, "%s", v->param >= 0 ? b->graph->params[v->param].name : v->name);
  for (int d = 0; d < v->dims; d++) {
    if (d == 0 && tensor.role != FSDP_TENSOR_PARAMETER && is_rows(b, &operand->dims[0])) {
      tensor.shape[tensor.dims++] = b->batch;
      tensor.shape[tensor.dims++] = b->graph->seq;
    } else if (v->numel > 1 || !b->flow->joins_rows) {
      tensor.shape[tensor.dims++] = v->shape[d];
    }
  }
  fsdp_dataflow *n = b->flow;
  n->tensors = fsdp_grow(n->tensors, n->tensor_count + 1, &b->tensor_capacity, sizeof *n->tensors);
  n->tensors[n->tensor_count] = tensor;
  return n->tensor_count++;
}

// Gives dimension `dim` of an operand, which has `size` items to cut, the letter `name`.
static void name_dim(fsdp_operator *op, fsdp_operator_operand *operand, int dim, char name, int64_t size) {
  FSDP_CHECK(name >= 'a' && name <= 'z', "dimension %d of an operand of %s has no letter", dim, op->names[0]);
  int l = fsdp_operator_letter_find(op, name);
  if (l < 0) {
    FSDP_CHECK(op->letter_count < FSDP_OPERATOR_LETTERS, "too many letters of %s", op->names[0]);
    l = op->letter_count++;
    op->letters[l] = (fsdp_operator_letter){.name = name, .size = size, .limit = size};
  }
  if (size > op->letters[l].size) op->letters[l].size = size;
  if (size < op->letters[l].limit) op->letters[l].limit = size;
  operand->letter[dim] = (signed char)l;
}

// Columns of heads count as single columns: what is cut is padded to whole heads.
static void add_operand(const builder *b, const fsdp_op_operand *row, int tensor, int list) {
  fsdp_operator *op = &b->flow->operators[b->flow->operator_count - 1];
  FSDP_CHECK(op->operand_count < FSDP_OPERATOR_OPERANDS, "too many operands of %s", op->names[0]);
  fsdp_operator_operand *operand = &op->operands[op->operand_count++];
  *operand = (fsdp_operator_operand){.tensor = tensor, .list = list};
  memset(operand->letter, -1, sizeof operand->letter);
  const fsdp_operator_tensor *t = &b->flow->tensors[tensor];
  int param = t->role == FSDP_TENSOR_PARAMETER ? b->graph->values[t->source].param : -1;
  bool reversed = param >= 0 && b->graph->params[param].transposed;
  int dim = 0;
  for (int d = 0; d < row->dim_count && dim < t->dims; d++) {
    const fsdp_op_dim *named = &row->dims[reversed ? row->dim_count - 1 - d : d];
    if (is_rows(b, named)) {
      name_dim(op, operand, dim, 'b', t->shape[dim]);
      name_dim(op, operand, dim + 1, 't', t->shape[dim + 1]);
      dim += 2;
    } else { // a constant has no letter, and is always whole
      if (letter_of(named)) name_dim(op, operand, dim, letter_of(named), t->shape[dim]);
      dim++;
    }
  }
}

bool fsdp_node_joins(const fsdp_graph *graph, const fsdp_node *node, char letter) {
  bool more = false;
  if (fsdp_op_letter_size(&node->attrs, letter, 0) != 1) return false;
  for (const fsdp_node *n = graph->forward; n < graph->forward + graph->forward_count; n++)
    more |= fsdp_op_letter_find(fsdp_op_letters_of(n->kind), letter) &&
            fsdp_op_letter_size(&n->attrs, letter, 0) > 1;
  return more;
}

static void mark_whole(const builder *b, const fsdp_node *node, fsdp_operator *op) {
  const fsdp_op_letters *row = fsdp_node_letters(node);
  for (int l = 0; l < op->letter_count; l++) {
    const fsdp_op_letter *letter = fsdp_op_letter_find(row, op->letters[l].name);
    bool may_part = letter && letter->may_part;
    // Experts, and with them routed rows, are cut by no strategy: decisions.h.
    bool is_routed = !node->letters && strchr("eua", op->letters[l].name);
    const bool joins = letter && !node->letters && fsdp_node_joins(b->graph, node, letter->name);
    op->letters[l].is_whole = is_routed || joins || (letter && letter->is_whole && !may_part);
    op->letters[l].is_even = letter && letter->is_even;
  }
}

// The row's operands that the node has: of linear ops, each weight and each bias.
typedef struct seen_operand {
  int row, value;
  fsdp_access access;
} seen_operand;

static int list_operands(const fsdp_node *node, seen_operand *out) {
  const fsdp_op_letters *row = fsdp_node_letters(node);
  int weight = node->weight_count ? fsdp_op_slice_weight(row) : -1;
  int bias = node->weight_count ? fsdp_op_slice_bias(row) : -1, count = 0, next = 0;
  for (int r = 0; r < row->operand_count && next <= node->operand_count; r++) {
    if (row->operands[r].given) continue; // every rank has those of its sequences
    if (r == weight) {
      for (int w = 0; w < node->weight_count; w++)
        out[count++] = (seen_operand){r, node->weights[w], FSDP_READ};
    } else if (r == bias) {
      for (int w = 0; w < node->bias_count; w++) out[count++] = (seen_operand){r, node->biases[w], FSDP_READ};
    } else if (next < node->operand_count) {
      out[count++] = (seen_operand){r, node->operands[next].value, node->operands[next].access};
      next++;
    }
  }
  return count;
}

// Letters of listed operators are in the order in which users give their slices.
static void begin_letters(const fsdp_node *node, fsdp_operator *op) {
  if (!node->letters) return;
  op->letter_count = node->letters->letter_count;
  for (int l = 0; l < op->letter_count; l++)
    op->letters[l] = (fsdp_operator_letter){.name = node->letters->letters[l].name, .limit = INT64_MAX};
}

// Appends an empty operator. A product of several weights has the name of each one's module.
static fsdp_operator *add_operator(const builder *b, const fsdp_node *node) {
  fsdp_operator *op = &b->flow->operators[b->flow->operator_count++];
  *op = (fsdp_operator){.name_count = 1};
  op->gathered_letter = -1;
  fsdp_graph_module_path(b->graph, node->module, op->names[0]);
  snprintf(op->kind, sizeof op->kind, "%s",
           node->letters ? b->graph->modules[node->module].class_name : fsdp_op_name(node->kind));
  for (int w = 0; w < node->weight_count; w++)
    fsdp_graph_module_path(b->graph, b->graph->params[b->graph->values[node->weights[w]].param].module,
                           op->names[w]);
  if (node->weight_count) op->name_count = node->weight_count;
  begin_letters(node, op);
  return op;
}

static void add_node(builder *b, const fsdp_node *node) {
  const fsdp_op_letters *row = fsdp_node_letters(node);
  seen_operand seen[FSDP_OP_MAX_OPERANDS + 2 * FSDP_NODE_MAX_WEIGHTS];
  int count = list_operands(node, seen), self = b->flow->operator_count, list = -1, last = -1;
  fsdp_operator *op = add_operator(b, node);
  for (int i = 0; i < count; i++) {
    const seen_operand *s = &seen[i];
    if (!(s->access & FSDP_READ)) continue;
    if (b->tensor[s->value] < 0) b->tensor[s->value] = add_tensor(b, s->value, &row->operands[s->row], -1);
    list += s->row != last;
    last = s->row;
    add_operand(b, &row->operands[s->row], b->tensor[s->value], list);
  }
  op->input_count = op->operand_count;
  op->list_count = list + 1;
  for (int i = 0; i < count; i++) {
    const seen_operand *s = &seen[i];
    if (!(s->access & FSDP_WRITE)) continue;
    bool counts = b->is_read[s->value] || b->graph->values[s->value].role == FSDP_VALUE_LOSS || node->letters;
    if (!counts) continue;
    b->tensor[s->value] = add_tensor(b, s->value, &row->operands[s->row], self);
    add_operand(b, &row->operands[s->row], b->tensor[s->value], -1);
  }
  mark_whole(b, node, op);
  if (!fsdp_op_gathers_keys(node->kind)) return;
  op->gathered_letter = fsdp_operator_letter_find(op, 't');
  op->gathered_columns = 2 * node->attrs.kv_heads * node->attrs.head_dim;
}

static void list_readers(fsdp_dataflow *n) {
  int *first = n->first_reader = fsdp_alloc_zeroed((size_t)n->tensor_count + 2, sizeof *first);
  for (int o = 0; o < n->operator_count; o++)
    for (int i = 0; i < n->operators[o].input_count; i++) first[n->operators[o].operands[i].tensor + 2]++;
  for (int t = 0; t < n->tensor_count; t++) first[t + 2] += first[t + 1];
  n->readers = fsdp_alloc((size_t)(first[n->tensor_count + 1] + 1) * sizeof *n->readers);
  // Each tensor's entry is where the next of its readers goes, and in the end where the next tensor's begin.
  for (int o = 0; o < n->operator_count; o++)
    for (int i = 0; i < n->operators[o].input_count; i++)
      n->readers[first[n->operators[o].operands[i].tensor + 1]++] = (fsdp_tensor_reader){o, i};
}

fsdp_dataflow *fsdp_dataflow_of_graph(const fsdp_graph *graph, int64_t batches, fsdp_dtype compute) {
  builder b = {.graph = graph,
               .flow = fsdp_alloc_zeroed(1, sizeof(fsdp_dataflow)),
               .batch = graph->batch * batches,
               .compute = compute,
               .tensor = fsdp_alloc((size_t)graph->value_count * sizeof(int)),
               .is_read = fsdp_alloc_zeroed((size_t)graph->value_count, sizeof(bool))};
  b.flow->joins_rows = graph->seq > 0;
  b.flow->operators = fsdp_alloc((size_t)(graph->forward_count + 1) * sizeof *b.flow->operators);
  for (int v = 0; v < graph->value_count; v++) b.tensor[v] = -1;
  for (int n = 0; n < graph->forward_count; n++)
    for (int o = 0; o < graph->forward[n].operand_count; o++)
      if (graph->forward[n].operands[o].access & FSDP_READ)
        b.is_read[graph->forward[n].operands[o].value] = true;
  for (int n = 0; n < graph->forward_count; n++) add_node(&b, &graph->forward[n]);
  list_readers(b.flow);
  free(b.tensor);
  free(b.is_read);
  return b.flow;
}
