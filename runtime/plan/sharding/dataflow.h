// The dataflow of a graph's forward: which dimensions of its nodes' operands are cut together, and who makes
// and reads what.
//
//   fc1: matmul      x[n,i] w[i,o] -> y[n,o]     n and o are shared, i is contracted: y is a sum over it
//   bias: add        a[a,b] b[b]   -> y[a,b]
//
// A letter is a dimension of an operator's work; operands that have it are cut together. A letter that an
// output lacks is contracted: if it is cut, each rank has a summand of that output, and they are summed
// before anyone reads it. Some letters must be whole. It is read off a graph, a model's or that of a list of
// operators (listed.h), and propagate.h decides how each operator is cut.
#pragma once

#include "models/graph/graph.h"

#define FSDP_OPERATOR_OPERANDS FSDP_OP_MAX_OPERANDS
#define FSDP_OPERATOR_LETTERS  8
#define FSDP_OPERATOR_NAMES    FSDP_NODE_MAX_WEIGHTS
#define FSDP_OPERATOR_LISTS    6
#define FSDP_STRATEGY_PLACE    160

typedef enum fsdp_operator_tensor_role {
  FSDP_TENSOR_INPUT,     // of the graph; lies as one of its readers wants it, and has no gradient
  FSDP_TENSOR_PARAMETER, // lies as its readers want it: they must agree
  FSDP_TENSOR_MADE       // by an operator
} fsdp_operator_tensor_role;

typedef struct fsdp_operator_tensor {
  char name[FSDP_NAME_BYTES];
  fsdp_operator_tensor_role role;
  int dims;
  int64_t shape[FSDP_MAX_DIMS];
  int item_bytes;
  int maker;  // operator, -1: none
  int source; // the value of the graph
} fsdp_operator_tensor;

typedef struct fsdp_operator_operand {
  int tensor;
  signed char letter[FSDP_MAX_DIMS]; // by dimension: index of the operator's letter; -1: always whole
  int list;                          // of inputs: the operator's list of slice counts that it belongs to
} fsdp_operator_operand;

typedef struct fsdp_operator_letter {
  char name;
  bool is_whole;
  bool is_even;  // slices divide `limit`: heads, which are cut as the keys' and values' heads are
  int64_t size;  // of the greatest dimension that has it
  int64_t limit; // the most slices: the size of the least one
} fsdp_operator_letter;

typedef struct fsdp_operator {
  // What users call it, alone or followed by ".kind". A model's product of several weights has a name for
  // each.
  char names[FSDP_OPERATOR_NAMES][FSDP_NAME_BYTES];
  int name_count;
  char kind[FSDP_NAME_BYTES];
  fsdp_operator_operand operands[FSDP_OPERATOR_OPERANDS]; // inputs, then outputs
  int input_count, operand_count;
  int list_count; // lists of slice counts that describe its inputs
  fsdp_operator_letter letters[FSDP_OPERATOR_LETTERS];
  int letter_count;
  // Of a model's attention: over the axes that cut this letter it gathers its keys and values inside, so many
  // columns of its first input. -1: nothing is gathered.
  int gathered_letter;
  int64_t gathered_columns;
} fsdp_operator;

// An operand of an operator that reads a tensor.
typedef struct fsdp_tensor_reader {
  int op, operand;
} fsdp_tensor_reader;

typedef struct fsdp_dataflow {
  fsdp_operator_tensor *tensors;
  fsdp_operator *operators; // makers before readers
  int tensor_count, operator_count;
  fsdp_tensor_reader *readers; // those of tensor t from first_reader[t] to first_reader[t + 1], in order
  int *first_reader;
  bool joins_rows; // a model's: the first two dimensions, batch and sequence, may be given as one count
} fsdp_dataflow;

void fsdp_dataflow_destroy(fsdp_dataflow *flow); // NULL is allowed

// What an op does on a mesh, its strategy: the axes that shard each of its letters, 'a' to 'z'.
typedef struct fsdp_op_strategy {
  fsdp_axis_set of[26];
} fsdp_op_strategy;

static inline fsdp_axis_set fsdp_strategy_axes(const fsdp_op_strategy *strategy, char letter) {
  return strategy->of[letter - 'a'];
}

// The first reader of an input or a parameter, by its value of the graph; op -1: none.
fsdp_tensor_reader fsdp_dataflow_reader_of(const fsdp_dataflow *flow, int value);
// Index of an operator's letter, -1: none.
int fsdp_operator_letter_find(const fsdp_operator *op, char name);
// The operand's dimension that has a letter, -1: none.
int fsdp_operand_dim(const fsdp_operator_operand *operand, int letter);
// "fc1", or "model.layers.0.self_attn.rope": the first name, with the kind if the name belongs to several
// operators. Returns `out`.
#define FSDP_OPERATOR_TEXT (2 * FSDP_NAME_BYTES)
const char *fsdp_operator_print(const fsdp_dataflow *flow, int op, char out[FSDP_OPERATOR_TEXT]);
// Whether an operand begins with the batch and the sequence of a model's rows.
bool fsdp_operand_joins_rows(const fsdp_dataflow *flow, const fsdp_operator *op, int operand);

// Whether a node has one item of a letter of which others have more: heads that are normalised together,
// which nothing may cut.
bool fsdp_node_joins(const fsdp_graph *graph, const fsdp_node *node, char letter);

// The forward of `graph`, with a batch `batches` times as large: what all ranks together work on. Operator i
// is node i, and what a node updates in place becomes another tensor.
//
// Of a model, the letter of rows becomes two, b and t. Letters are those of ops.def, and may be cut as there,
// or where the partition makes other ops of it: the head's vocabulary, attention's sequence, the inputs of a
// product with a bias. A listed operator has those of its node. `compute` is the run's parameter dtype. Never
// NULL.
fsdp_dataflow *fsdp_dataflow_of_graph(const fsdp_graph *graph, int64_t batches, fsdp_dtype compute);
