// A network of operators as data: which dimensions of their operands are cut together.
//
//   fc1: matmul      x[n,i] w[i,o] -> y[n,o]     n and o are shared, i is contracted: y is a sum over it
//   bias: add        a[a,b] b[b]   -> y[a,b]
//
// A letter is a dimension of an operator's work; operands that have it are cut together. A letter that an
// output lacks is contracted: if it is cut, each rank has a summand of that output, and they are summed
// before anyone reads it. Some letters must be whole. Networks are made from a list of operators
// (fsdp_network_add) or from a model's forward graph (fsdp_network_of_graph); propagate.h decides how each of
// their operators is cut.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

#define FSDP_OPERATOR_OPERANDS FSDP_OP_MAX_OPERANDS
#define FSDP_OPERATOR_LETTERS  8
#define FSDP_OPERATOR_NAMES    FSDP_NODE_MAX_WEIGHTS
#define FSDP_OPERATOR_LISTS    6
#define FSDP_NETWORK_PLACE     160

typedef enum fsdp_operator_tensor_role {
  FSDP_TENSOR_INPUT,     // of the network; lies as one of its readers wants it, and has no gradient
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
  int source; // of a model: the value of the graph, else -1
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
  char kind[FSDP_NAME_BYTES / 2];
  fsdp_operator_operand operands[FSDP_OPERATOR_OPERANDS]; // inputs, then outputs
  int input_count, operand_count;
  int list_count; // lists of slice counts that describe its inputs
  fsdp_operator_letter letters[FSDP_OPERATOR_LETTERS];
  int letter_count;
  int64_t begin; // slice: the first item that it takes
  int node;      // of a model: of the graph's forward, else -1
  // Of a model's attention: over the axes that cut this letter it gathers its keys and values inside, so many
  // columns of its first input. -1: nothing is gathered.
  int gathered_letter;
  int64_t gathered_columns;
} fsdp_operator;

typedef struct fsdp_network {
  fsdp_operator_tensor *tensors;
  fsdp_operator *operators; // makers before readers
  int tensor_count, operator_count;
  int tensor_capacity, operator_capacity;
  bool joins_rows; // a model's: the first two dimensions, batch and sequence, may be given as one count
} fsdp_network;

// An empty network. Never NULL.
fsdp_network *fsdp_network_create(void);
void fsdp_network_destroy(fsdp_network *network); // NULL is allowed

// Whether it has no more items than costs can be computed for.
#define FSDP_OPERATOR_TENSOR_NUMEL_MAX ((int64_t)1 << 40)
bool fsdp_operator_tensor_fits(const fsdp_operator_tensor *tensor);

// Adds a tensor, which fits. Returns its index.
int fsdp_network_tensor(fsdp_network *network, const fsdp_operator_tensor *tensor);
// Its index by name, -1: none.
int fsdp_network_find(const fsdp_network *network, const char *name);

// Index of an operator's letter, -1: none.
int fsdp_operator_letter_find(const fsdp_operator *op, char name);
// The operand's dimension that has a letter, -1: none.
int fsdp_operand_dim(const fsdp_operator_operand *operand, int letter);
// "fc1", or "model.layers.0.self_attn.rope": the first name, with the kind if the name belongs to several
// operators. Returns `out`.
#define FSDP_OPERATOR_TEXT (2 * FSDP_NAME_BYTES)
const char *fsdp_operator_print(const fsdp_network *network, int op, char out[FSDP_OPERATOR_TEXT]);
// Whether an operand begins with the batch and the sequence of a model's rows.
bool fsdp_operand_joins_rows(const fsdp_network *network, const fsdp_operator *op, int operand);

// ---- Networks from a list of operators (operator_kinds.c)

// One operator as its user writes it.
typedef struct fsdp_operator_spec {
  const char *name, *kind;         // kind: one of those below
  int inputs[FSDP_OPERATOR_LISTS]; // tensors
  int input_count;
  bool transposed;                // matmul: the weight is stored [o,i]
  int permutation[FSDP_MAX_DIMS]; // transpose: output dimension d is input dimension permutation[d]
  int permutation_count;          // 0: the last two are exchanged
  int axis;                       // reduce_mean, slice
  bool keeps_axis;                // reduce_mean: as a dimension of 1
  int64_t begin, size;            // slice
  int item_bytes;                 // of its output
  const char *attributes;         // names of those given, each with a space behind it; NULL: not checked
  const char *place;              // for messages: "net.yaml:3"
} fsdp_operator_spec;

// Adds an operator and its output, which has the operator's name.
//
//   matmul       x[..,n,i] w[i,o] (or w[..,i,o]) -> [..,n,o]
//   add, mul     a b -> their sum or product, broadcast
//   relu         x -> the same shape
//   transpose    x -> its dimensions permuted
//   reduce_mean  x -> without `axis`, over which it is a sum
//   slice        x -> `size` items from `begin` of `axis`, which must be whole
//   gather       table[v,c] indices[..] -> [..,c]
//   rmsnorm      x[..,c!] weight[c] -> [..,c]
//   attention    q[b,h,t,d!] k[b,h,s!,d] v[b,h,s,d] -> [b,h,t,d]; k and v may have fewer heads, which slices
//                of h divide; causal, as in models: position t sees positions 0 to t
//
// FSDP_ERR_INPUT for an unknown kind, a wrong number of inputs, an attribute that it does not have, or shapes
// that do not go together.
fsdp_status fsdp_network_add(fsdp_network *network, const fsdp_operator_spec *spec, fsdp_error *error);

// ---- Networks from a model (network_of_graph.c)

// Whether a node has one item of a letter of which others have more: heads that are normalised together,
// which nothing may cut.
bool fsdp_node_joins(const fsdp_graph *graph, const fsdp_node *node, char letter);

// The forward graph of `graph`, with a batch `batches` times as large: what all ranks together work on. The
// letter of rows becomes two, b and t. Letters are those of ops.def, and may be cut as there, or where the
// partition makes other ops of it: the head's vocabulary, attention's sequence, the inputs of a product with
// a bias. `compute` is the run's parameter dtype. Never NULL.
fsdp_network *fsdp_network_of_graph(const fsdp_graph *graph, int64_t batches, fsdp_dtype compute);
