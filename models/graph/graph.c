#include "models/graph/graph.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fsdp_graph *fsdp_graph_create(int64_t batch, int64_t seq) {
  fsdp_graph *graph = fsdp_alloc_zeroed(1, sizeof *graph);
  graph->batch = batch;
  graph->seq = seq;
  graph->block_class = graph->base_prefix = "";
  for (int i = 0; i < FSDP_INPUT_COUNT; i++) graph->inputs[i] = -1;
  return graph;
}

void fsdp_graph_destroy(fsdp_graph *graph) {
  if (!graph) return;
  for (int n = 0; n < graph->forward_count; n++) free(graph->forward[n].letters);
  free(graph->values);
  free(graph->params);
  free(graph->modules);
  free(graph->ties);
  free(graph->forward);
  free(graph->backward);
  free(graph->inv_freq);
  free(graph);
}

// A text, cut off where its place ends. Formatting would take ten times as long, and a search makes thousands
// of graphs.
static void copy_text(char *out, size_t bytes, const char *text) {
  const size_t length = strnlen(text, bytes - 1);
  memcpy(out, text, length);
  out[length] = 0;
}

int fsdp_graph_module(fsdp_graph *graph, int parent, const char *name, const char *class_name,
                      const char *detail) {
  graph->modules =
      fsdp_grow(graph->modules, graph->module_count + 1, &graph->module_capacity, sizeof *graph->modules);
  int index = graph->module_count++;
  fsdp_module *module = &graph->modules[index];
  *module = (fsdp_module){.parent = parent, .first_child = -1, .next_sibling = -1};
  copy_text(module->name, sizeof module->name, name);
  copy_text(module->class_name, sizeof module->class_name, class_name);
  copy_text(module->detail, sizeof module->detail, detail);
  if (strcmp(class_name, "ModuleList") != 0) fsdp_graph_module_output(graph, index, FSDP_OUTPUT_DIMS);
  if (parent >= 0) {
    int *link = &graph->modules[parent].first_child;
    while (*link >= 0) link = &graph->modules[*link].next_sibling;
    *link = index;
  }
  return index;
}

void fsdp_graph_module_output(fsdp_graph *graph, int module, int dims) {
  fsdp_module *m = &graph->modules[module];
  FSDP_CHECK(m->output_count < FSDP_MODULE_MAX_OUTPUTS && dims >= 0 && dims <= FSDP_MAX_DIMS,
             "output %d of %s has %d dimensions", m->output_count, m->name, dims);
  m->output_dims[m->output_count++] = dims;
}

void fsdp_graph_module_path(const fsdp_graph *graph, int module, char out[FSDP_NAME_BYTES]) {
  char path[FSDP_NAME_BYTES]; // filled from its end, as the innermost name is known first
  size_t at = FSDP_NAME_BYTES - 1;
  path[at] = 0;
  for (; module > 0; module = graph->modules[module].parent) {
    const char *name = graph->modules[module].name;
    const size_t length = strlen(name), dot = path[at] ? 1 : 0;
    FSDP_CHECK(length + dot <= at, "module path longer than %d bytes", FSDP_NAME_BYTES);
    if (dot) path[--at] = '.';
    at -= length;
    memcpy(path + at, name, length);
  }
  memcpy(out, path + at, FSDP_NAME_BYTES - at);
}

bool fsdp_graph_module_within(const fsdp_graph *graph, int module, int ancestor) {
  while (module >= 0 && module != ancestor) module = graph->modules[module].parent;
  return module >= 0;
}

int fsdp_graph_layer_of(const fsdp_graph *graph, int module) {
  while (module >= 0 && strcmp(graph->modules[module].class_name, graph->block_class) != 0)
    module = graph->modules[module].parent;
  return module;
}

int fsdp_graph_value(fsdp_graph *graph, fsdp_value_role role, fsdp_value_dtype dtype, int module,
                     const char *name, int dims, const int64_t *shape) {
  graph->values =
      fsdp_grow(graph->values, graph->value_count + 1, &graph->value_capacity, sizeof *graph->values);
  int index = graph->value_count++;
  fsdp_value *value = &graph->values[index];
  *value = (fsdp_value){
      .role = role, .dtype = dtype, .dims = dims, .numel = 1, .param = -1, .gradient = -1, .module = module};
  copy_text(value->name, sizeof value->name, name);
  for (int d = 0; d < dims; d++) {
    value->shape[d] = value->local[d] = shape[d];
    value->numel *= shape[d];
  }
  value->local_numel = value->numel;
  return index;
}

enum place { OF_ROWS, OF_SEQUENCES };

static const struct {
  const char *name;
  enum place place;
} inputs[FSDP_INPUT_COUNT] = {
#define FSDP_INPUT(ROLE, own_name, PLACE) {.name = #own_name, .place = OF_##PLACE},
#include "models/graph/inputs.def"
};

int fsdp_graph_input(fsdp_graph *graph, fsdp_input input, int64_t rows) {
  int *value = &graph->inputs[input];
  if (*value < 0)
    *value = fsdp_graph_value(graph, FSDP_VALUE_INPUT, FSDP_VALUE_I32, 0, inputs[input].name, 1, &rows);
  return *value;
}

bool fsdp_graph_is_of_sequences(const fsdp_graph *graph, int value) {
  for (int i = 0; i < FSDP_INPUT_COUNT; i++)
    if (graph->inputs[i] == value) return inputs[i].place == OF_SEQUENCES;
  return false;
}

// Whether the op has an operand that is there for this reason.
static bool may_be_given(fsdp_op_kind kind, fsdp_op_given given) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  bool may = false;
  for (int i = 0; i < op->operand_count; i++) may |= op->operands[i].given == given;
  return may;
}

// Gives the input, a number for each row, to every op that has an operand for it.
static void give(fsdp_graph *graph, fsdp_input input, fsdp_op_given given) {
  const int value = fsdp_graph_input(graph, input, graph->batch * graph->seq);
  FSDP_CHECK(graph->backward_count == 0, "%s are given before the backward is made", inputs[input].name);
  for (int n = 0; n < graph->forward_count; n++) {
    fsdp_op_attrs *attrs = &graph->forward[n].attrs;
    if (!may_be_given(graph->forward[n].kind, given)) continue;
    if (given == FSDP_GIVEN_BY_DOCUMENTS) attrs->documents = graph->seq;
    attrs->loss_of_documents |= given == FSDP_GIVEN_BY_LEARNED;
    fsdp_node_operand_add(&graph->forward[n], value, FSDP_READ);
  }
}

void fsdp_graph_add_documents(fsdp_graph *graph) {
  give(graph, FSDP_INPUT_STARTS, FSDP_GIVEN_BY_DOCUMENTS);
}

void fsdp_graph_weigh_documents(fsdp_graph *graph) {
  give(graph, FSDP_INPUT_LEARNED, FSDP_GIVEN_BY_LEARNED);
}

void fsdp_graph_add_dropout(fsdp_graph *graph, const fsdp_dropout *rates) {
  FSDP_CHECK(graph->backward_count == 0, "dropout is added before the backward is made");
  fsdp_graph_input(graph, FSDP_INPUT_DRAWS, FSDP_DROPOUT_WORDS * graph->batch * graph->seq);
  graph->dropout = *rates;
}

int fsdp_graph_loss(fsdp_graph *graph, const char *name) {
  const int64_t one = 1;
  FSDP_CHECK(graph->loss_count < FSDP_GRAPH_MAX_LOSSES, "more than %d losses", FSDP_GRAPH_MAX_LOSSES);
  int value = fsdp_graph_value(graph, FSDP_VALUE_LOSS, FSDP_VALUE_F32, 0, name, 1, &one);
  graph->losses[graph->loss_count++] = value;
  return value;
}

int fsdp_graph_statistic(fsdp_graph *graph, int module, const char *name, int64_t numel) {
  int value = fsdp_graph_value(graph, FSDP_VALUE_STATISTIC, FSDP_VALUE_F32, module, name, 1, &numel);
  graph->values[value].place = graph->statistic_numel;
  graph->statistic_numel += numel;
  return value;
}

void fsdp_graph_divide_losses(fsdp_graph *graph, int micro_batches) {
  FSDP_CHECK(graph->backward_count == 0, "losses are divided before the backward is made");
  for (int n = 0; n < graph->forward_count; n++) {
    graph->forward[n].attrs.aux_weight /= (float)micro_batches;
    graph->forward[n].attrs.z_weight /= (float)micro_batches;
  }
}

// "<path of the module>.<name>"
static void param_name(const fsdp_graph *graph, int module, const char *name, char out[FSDP_NAME_BYTES]) {
  char path[FSDP_NAME_BYTES];
  fsdp_graph_module_path(graph, module, path);
  int length = snprintf(out, FSDP_NAME_BYTES, "%s%s%s", path, path[0] ? "." : "", name);
  FSDP_CHECK(length < FSDP_NAME_BYTES, "parameter name longer than %d bytes", FSDP_NAME_BYTES);
}

// The blocks must cover all outputs: the last dimension of a transposed matrix, the first of any other.
static void check_blocks(const fsdp_param *param) {
  int64_t outputs = 0;
  for (int i = 0; i < param->block_count; i++) outputs += param->block_sizes[i];
  FSDP_CHECK(!param->block_count || outputs == param->shape[param->transposed ? param->dims - 1 : 0],
             "the blocks of %s have %lld outputs together", param->name, (long long)outputs);
}

int fsdp_graph_param(fsdp_graph *graph, int module, const fsdp_param *told) {
  FSDP_CHECK(told->dims >= 0 && told->dims <= FSDP_MAX_DIMS && told->block_count <= FSDP_PARAM_MAX_BLOCKS,
             "a parameter of %d dimensions and %d blocks", told->dims, told->block_count);
  graph->params =
      fsdp_grow(graph->params, graph->param_count + 1, &graph->param_capacity, sizeof *graph->params);
  int index = graph->param_count++;
  fsdp_param *param = &graph->params[index];
  graph->part_count = graph->param_count;
  *param = *told;
  param->module = module;
  param->whole = index;
  param->trainable = true;
  param->numel = 1;
  for (int d = 0; d < param->dims; d++) param->numel *= param->shape[d];
  param_name(graph, module, told->name, param->name);
  check_blocks(param);
  param->value = fsdp_graph_value(graph, FSDP_VALUE_PARAM, FSDP_VALUE_COMPUTE, module, param->name,
                                  param->dims, param->shape);
  graph->values[param->value].param = index;
  fsdp_module *owner = &graph->modules[module];
  if (!owner->param_count) owner->first_param = index;
  FSDP_CHECK(owner->first_param + owner->param_count == index, "%s is added apart from its module's others",
             param->name);
  owner->param_count++;
  return index;
}

void fsdp_graph_tie(fsdp_graph *graph, int module, const char *name, int param) {
  graph->ties = fsdp_grow(graph->ties, graph->tie_count + 1, &graph->tie_capacity, sizeof *graph->ties);
  fsdp_tie *tie = &graph->ties[graph->tie_count++];
  *tie = (fsdp_tie){.module = module, .param = param};
  param_name(graph, module, name, tie->name);
}

int fsdp_graph_param_of(const fsdp_graph *graph, int module, const char *name) {
  const fsdp_module *owner = &graph->modules[module];
  char full[FSDP_NAME_BYTES];
  param_name(graph, module, name, full);
  for (int p = owner->first_param; p < owner->first_param + owner->param_count; p++)
    if (!strcmp(graph->params[p].name, full)) return p;
  for (int t = 0; t < graph->tie_count; t++)
    if (graph->ties[t].module == module && !strcmp(graph->ties[t].name, full)) return graph->ties[t].param;
  return -1;
}

// Appends a zeroed node to one of the two lists.
static fsdp_node *append(fsdp_node **nodes, int *count, int *capacity, fsdp_op_kind kind, int module,
                         int block) {
  *nodes = fsdp_grow(*nodes, *count + 1, capacity, sizeof **nodes);
  fsdp_node *node = &(*nodes)[(*count)++];
  *node = (fsdp_node){.kind = kind, .module = module, .block = block};
  return node;
}

fsdp_node *fsdp_graph_forward_node(fsdp_graph *graph, fsdp_op_kind kind, int module, int block) {
  return append(&graph->forward, &graph->forward_count, &graph->forward_capacity, kind, module, block);
}

fsdp_node *fsdp_graph_backward_node(fsdp_graph *graph, fsdp_op_kind kind, int module, int block) {
  return append(&graph->backward, &graph->backward_count, &graph->backward_capacity, kind, module, block);
}

fsdp_node *fsdp_graph_listed(fsdp_graph *graph, int module, const fsdp_op_letters *letters) {
  fsdp_node *node = fsdp_graph_forward_node(graph, FSDP_OP_LISTED, module, -1);
  node->letters = fsdp_alloc(sizeof *letters);
  *node->letters = *letters;
  return node;
}

const fsdp_op_letters *fsdp_node_letters(const fsdp_node *node) {
  return node->letters ? node->letters : fsdp_op_letters_of(node->kind);
}

static bool is_transposed(const fsdp_graph *graph, const fsdp_value *value) {
  FSDP_CHECK(value->param >= 0, "'%s' is no parameter", value->name);
  return graph->params[value->param].transposed;
}

int64_t fsdp_graph_outputs(const fsdp_graph *graph, int value) {
  const fsdp_value *v = &graph->values[value];
  return v->local[is_transposed(graph, v) ? v->dims - 1 : 0];
}

int64_t fsdp_graph_inputs(const fsdp_graph *graph, int weight) {
  const fsdp_value *v = &graph->values[weight];
  FSDP_CHECK(v->dims == 2, "'%s' is no matrix", v->name);
  return v->local[!is_transposed(graph, v)];
}

fsdp_dtype fsdp_graph_dtype(const fsdp_graph *graph, int value, fsdp_dtype compute) {
  switch (graph->values[value].dtype) {
  case FSDP_VALUE_COMPUTE:
    return compute;
  case FSDP_VALUE_F32:
    return FSDP_F32;
  case FSDP_VALUE_I32:
    return FSDP_I32;
  case FSDP_VALUE_REDUCE:
    break;
  }
  FSDP_CHECK(false, "value '%s' has the reduce dtype", graph->values[value].name);
}

int64_t fsdp_graph_bytes(const fsdp_graph *graph, int value, fsdp_dtype compute) {
  return graph->values[value].local_numel * fsdp_dtype_bytes(fsdp_graph_dtype(graph, value, compute));
}

void fsdp_node_operand_add(fsdp_node *node, int value, fsdp_access access) {
  FSDP_CHECK(node->operand_count < FSDP_OP_MAX_OPERANDS, "too many operands of %s", fsdp_op_name(node->kind));
  node->operands[node->operand_count++] = (fsdp_node_operand){value, access};
}
