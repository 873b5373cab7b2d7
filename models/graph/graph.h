// A model as data: a module tree, parameters, and the ops of one micro-batch's forward and backward.
//
//   module tree ── owns ──► parameters            values: what ops read and write (inputs, parameters,
//        ▲                      ▲                         activations, gradients); one buffer each
//        └── each node belongs ─┘
//   forward nodes (written by the model, top to bottom) ──► backward nodes (fsdp_graph_backward, by op)
//
// A value is a buffer, not a single assignment: a node may update one in place (RoPE, the gradient of the
// residual stream). The order of nodes is the order of execution.
#pragma once

#include "models/graph/op.h"
#include "models/graph/placement.h"
#include "runtime/base/access.h"
#include "runtime/base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_NAME_BYTES       96
#define FSDP_PARAM_MAX_BLOCKS FSDP_CUT_MAX_BLOCKS
#define FSDP_STORED_MAX_NAMES 2

#define FSDP_OUTPUT_DIMS        3 // of a module's output: (batch, sequence, channels)
#define FSDP_MODULE_MAX_OUTPUTS 4

typedef enum fsdp_input {
#define FSDP_INPUT(ROLE, name, PLACE) FSDP_INPUT_##ROLE,
#include "models/graph/inputs.def"
  FSDP_INPUT_COUNT
} fsdp_input;

#define FSDP_GRAPH_MAX_LOSSES 4

// Rates of dropout, 0: none. Of the embedding, positions included; of attention's probabilities; of what each
// layer's attention and MLP add to the residual stream.
typedef struct fsdp_dropout {
  float embedding, attention, residual;
} fsdp_dropout;

static inline bool fsdp_dropout_any(const fsdp_dropout *rates) {
  return rates->embedding > 0 || rates->attention > 0 || rates->residual > 0;
}

typedef enum fsdp_value_role {
  FSDP_VALUE_INPUT,         // of the graph
  FSDP_VALUE_COUNT_SCALAR,  // the global count of unmasked targets
  FSDP_VALUE_LOSS,          // a scalar of which the sum is minimised
  FSDP_VALUE_STATISTIC,     // numbers that are summed over a step's tokens and handed out with its losses
  FSDP_VALUE_PARAM,         // a parameter in compute dtype
  FSDP_VALUE_ACTIVATION,    // made by the forward
  FSDP_VALUE_GRADIENT,      // gradient of an activation
  FSDP_VALUE_PARAM_GRADIENT // gradient of a parameter, in reduce dtype
} fsdp_value_role;

typedef enum fsdp_value_dtype {
  FSDP_VALUE_COMPUTE, // the run's parameter dtype
  FSDP_VALUE_F32,
  FSDP_VALUE_I32,
  FSDP_VALUE_REDUCE // the run's reduce dtype
} fsdp_value_dtype;

typedef struct fsdp_value {
  char name[FSDP_NAME_BYTES];
  fsdp_value_role role;
  fsdp_value_dtype dtype;
  int dims;
  int64_t shape[FSDP_MAX_DIMS]; // whole, over all ranks that have parts of it
  int64_t numel;
  int64_t local[FSDP_MAX_DIMS]; // what one rank holds, padding included
  int64_t local_numel;
  int param;           // of PARAM and PARAM_GRADIENT, else -1
  int gradient;        // the value that holds this one's gradient, or -1
  bool needs_gradient; // a parameter that trains, or made from one (set by fsdp_graph_backward)
  bool unread; // the gradient of a value that needs none, which an op writes beside one that is needed
  // Of PARAM, which the partition writes: axes over which its flat storage is cut, beside those of its cut;
  // and those over which the ranks' gradients are summands, beside the batch's.
  fsdp_axis_set flat, partial;
  int module;      // whose op makes it
  int64_t place;   // of STATISTIC: its first number among a step's
  bool kept;       // if the block that it opens is recomputed
  bool regathered; // gathered again for the backward unless it is to be kept
} fsdp_value;

typedef struct fsdp_param {
  // What fsdp_graph_param is told.
  char name[FSDP_NAME_BYTES]; // there behind its module's path ("weight", "bias"), then as in the state dict
  int dims;
  int64_t shape[FSDP_MAX_DIMS]; // as stored
  float init_mean, init_deviation;
  int64_t zero_first, zero_numel; // new weights: these elements are zero
  bool transposed; // a matrix stored (in, out), as GPT-2's Conv1D; a Linear's is stored (out, in)
  // A router's correction bias: what its gradient has is how far experts' loads are above their mean, and its
  // update is the sign rule's, not an optimizer's.
  bool balances;
  bool stored_f32; // weight files hold it in fp32, whatever the others are in
  // If one parameter holds the weights of several gemms side by side (GPT-2's c_attn: q, k and v): the number
  // of outputs of each, in order. A placement cuts each block by itself. None: one block.
  int block_count;
  int64_t block_sizes[FSDP_PARAM_MAX_BLOCKS];
  // How weight files name it, if not by its name, below the module `stored_below` (stored.h). Static.
  const char *stored[FSDP_STORED_MAX_NAMES];
  int stored_below;
  // What the graph and its plan add.
  int module; // that owns it
  int64_t numel;
  int value;        // has its placement
  bool trainable;   // else it has no gradient and no optimizer state; true until it is frozen
  fsdp_cut cut;     // what of `shape` a rank holds (the value's `local`), before that is cut into flat shards
  int whole;        // the parameter whose block of experts it is, among the first param_count; else itself
  int expert_block; // which one, from 1 on; 0: it is whole
} fsdp_param;

typedef struct fsdp_module {
  char name[FSDP_NAME_BYTES];       // in its parent: "q_proj", "0"
  char class_name[FSDP_NAME_BYTES]; // "LlamaDecoderLayer"
  char detail[FSDP_NAME_BYTES];     // what stands between the parentheses of a leaf: "4096, 4096, bias=False"
  int parent;                       // -1 for the root
  int first_child, next_sibling;    // -1 at the end; in state-dict order
  int first_param, param_count;     // those that it owns itself: neighbours in the graph's list
  // The tensors that its forward returns: none (a ModuleList), one, or several, of which the first is the
  // residual stream.
  int output_count, output_dims[FSDP_MODULE_MAX_OUTPUTS];
} fsdp_module;

// A module's use of a parameter that another module owns.
typedef struct fsdp_tie {
  int module, param;
  char name[FSDP_NAME_BYTES]; // what the parameter would be called here: "lm_head.weight"
} fsdp_tie;

typedef struct fsdp_node_operand {
  int value;
  fsdp_access access;
} fsdp_node_operand;

#define FSDP_NODE_MAX_WEIGHTS 3

// How a value lies over a set of axes.
typedef enum fsdp_spread {
  FSDP_SPREAD_WHOLE,   // every rank holds all of it
  FSDP_SPREAD_ROWS,    // its rows are cut, in as many equal ranges
  FSDP_SPREAD_COLUMNS, // its columns are, rounded up
  FSDP_SPREAD_PARTIAL  // every rank holds a summand
} fsdp_spread;

// A change of placement over a set of axes: what a REDISTRIBUTE node does.
typedef struct fsdp_conversion {
  fsdp_axis_set axes;
  fsdp_spread from, to;
  fsdp_spread gradient; // that of what it makes: as `to`, or partial, as its readers use the value
  int64_t columns;      // of the whole value
  int64_t used_columns; // what it makes has the first so many alone, and its gradient too; 0: all
} fsdp_conversion;

typedef struct fsdp_node {
  fsdp_op_kind kind;
  fsdp_op_attrs attrs; // of one rank, without those that depend on which
  fsdp_affine first_index, second_index, first_row, first_head; // evaluated into those of attrs
  // In the order of ops.def, without weights and biases of linear ops and without workspaces. A linear node
  // may have up to three weights (q|k|v, gate|up) whose outputs are neighbouring columns of one y. `weights`
  // are values of parameters (forward, backward input) or of parameters' gradients (backward weight), and so
  // are `biases`: as many as there are weights, alone (bias backward), or none.
  fsdp_node_operand operands[FSDP_OP_MAX_OPERANDS];
  int operand_count;
  int weights[FSDP_NODE_MAX_WEIGHTS];
  int biases[FSDP_NODE_MAX_WEIGHTS];
  int weight_count, bias_count; // 0 for every op but the linear ones
  fsdp_conversion conversion;   // of a REDISTRIBUTE node
  fsdp_op_letters *letters;     // of a LISTED node, owned by the graph; NULL: those of its kind
  int module;
  int block;   // decoder layer, or -1
  int forward; // of a backward node: the forward node whose backward it belongs to
} fsdp_node;

typedef struct fsdp_graph {
  fsdp_value *values;
  // In state-dict order; those that are cut in blocks of experts are their first blocks, and behind the last
  // one follow the others, up to part_count (expert_blocks.h).
  fsdp_param *params;
  fsdp_module *modules; // parents before children, in state-dict order; 0 is the root
  fsdp_tie *ties;
  fsdp_node *forward;  // ends in the loss
  fsdp_node *backward; // begins with the loss's backward, which computes the loss too: a training step leaves
                       // the forward's last node out
  int value_count, param_count, part_count, module_count, tie_count, forward_count, backward_count;
  int block_count; // decoder layers
  // Where experts are cut: routed rows that an op makes room for, as a multiple of those that a rank's
  // experts have if all get as many; what is beyond takes further waves. 0: for all that they can be sent.
  double expert_capacity;
  const char *block_class; // of their modules, static
  const char *base_prefix; // prefix of parameters' names, which weight files may omit; "" or static
  bool skips_extra_layers; // weight files may have tensors of layers behind the last, which are left out
  int64_t batch, seq;
  fsdp_axis_set token_axes;     // over which ranks have different tokens, which the partition writes
  int inputs[FSDP_INPUT_COUNT]; // values by what they are; -1: the model has none
  int losses[FSDP_GRAPH_MAX_LOSSES], loss_count; // of which the first is the cross-entropy
  int64_t statistic_numel;                       // of all together
  int count;                                     // value
  fsdp_dropout dropout;                          // what the partition adds
  float *inv_freq;                               // RoPE's D/2 inverse frequencies, owned
  int value_capacity, param_capacity, module_capacity, tie_capacity, forward_capacity, backward_capacity;
} fsdp_graph;

// An empty graph for micro-batches of `batch` sequences of `seq` tokens. Never NULL.
fsdp_graph *fsdp_graph_create(int64_t batch, int64_t seq);
void fsdp_graph_destroy(fsdp_graph *graph); // NULL is allowed

// Adds a module below `parent` (-1: the root). `detail` is what a leaf prints between its parentheses.
// Returns its index.
int fsdp_graph_module(fsdp_graph *graph, int parent, const char *name, const char *class_name,
                      const char *detail);

// Lets the module return one more tensor, of `dims` dimensions.
void fsdp_graph_module_output(fsdp_graph *graph, int module, int dims);

// Adds a parameter like `told`, named "<path of the module>.<name>", and its value. A module's parameters are
// added one after the other, before those of any later module. Returns the parameter's index.
int fsdp_graph_param(fsdp_graph *graph, int module, const fsdp_param *told);

// Lets `module` use a parameter that another module owns as its `name` (tied embeddings).
void fsdp_graph_tie(fsdp_graph *graph, int module, const char *name, int param);

// The parameter that `module` itself owns, or is tied to, as `name` ("weight"); -1: none.
int fsdp_graph_param_of(const fsdp_graph *graph, int module, const char *name);

// Adds a value. Returns its index.
int fsdp_graph_value(fsdp_graph *graph, fsdp_value_role role, fsdp_value_dtype dtype, int module,
                     const char *name, int dims, const int64_t *shape);

// The value of an input of `rows` numbers, added if there is none yet; a new loss.
int fsdp_graph_input(fsdp_graph *graph, fsdp_input input, int64_t rows);
// Whether a value is an input with numbers for positions of whole sequences, not for a rank's rows.
bool fsdp_graph_is_of_sequences(const fsdp_graph *graph, int value);
int fsdp_graph_loss(fsdp_graph *graph, const char *name);
// A new statistic of `numel` numbers, behind those that there are.
int fsdp_graph_statistic(fsdp_graph *graph, int module, const char *name, int64_t numel);

// Appends what counts the rows that `grouped`, a node of a first wave, leaves for further waves, and those of
// these waves that have rows: two more statistics.
void fsdp_graph_count_overflow(fsdp_graph *graph, const fsdp_node *grouped);
// Rows of the rank whose experts get most, over what as many experts get in the mean; the mean over layers. 1
// where every rank has all. rows (layers with experts, experts): of each expert, of all ranks together.
double fsdp_graph_imbalance(const fsdp_graph *graph, const float *rows);
// A step has so many micro-batches: losses that are means over them say so.
void fsdp_graph_divide_losses(fsdp_graph *graph, int micro_batches);

// Appends a node to the forward; the returned pointer is valid until the next call.
fsdp_node *fsdp_graph_forward_node(fsdp_graph *graph, fsdp_op_kind kind, int module, int block);

// The same for the backward; used by the ops' rules.
fsdp_node *fsdp_graph_backward_node(fsdp_graph *graph, fsdp_op_kind kind, int module, int block);

// Outputs that a rank has of a linear layer, by its weight or its bias (the value of a parameter or of its
// gradient), and its inputs by the weight.
int64_t fsdp_graph_outputs(const fsdp_graph *graph, int value);
int64_t fsdp_graph_inputs(const fsdp_graph *graph, int weight);

// The dtype, and a rank's bytes, of a value that is no parameter's gradient, in a run that computes in
// `compute`.
fsdp_dtype fsdp_graph_dtype(const fsdp_graph *graph, int value, fsdp_dtype compute);
int64_t fsdp_graph_bytes(const fsdp_graph *graph, int value, fsdp_dtype compute);

// Appends a LISTED node with a copy of these letters; the pointer is valid until the next node.
fsdp_node *fsdp_graph_listed(fsdp_graph *graph, int module, const fsdp_op_letters *letters);
// The letters of a node's operands: its own, or those of its kind.
const fsdp_op_letters *fsdp_node_letters(const fsdp_node *node);

// Adds an operand to a node.
void fsdp_node_operand_add(fsdp_node *node, int value, fsdp_access access);

// Appends a change of placement to the forward; `source` becomes `made`. They are the same: a sum where it
// lies; `made` -1: only the gradient is summed.
fsdp_node *fsdp_graph_redistribute(fsdp_graph *graph, int module, int block,
                                   const fsdp_conversion *conversion, int source, int made);
bool fsdp_node_redistributes(const fsdp_node *node);

// Takes the biases off a product: `product` loses them, and *adds becomes the op that adds them to what it
// makes.
void fsdp_node_take_biases(fsdp_node *product, fsdp_node *adds);

// Makes attention an op whose keys and values, of all positions, lie in rows of `kv`.
void fsdp_node_take_context(fsdp_node *attention, int q, int kv);

// Whether attention's backward, a launch with these attributes, can do the work of `next` too: it rotates
// back the gradients that it makes. NULL: there is none.
bool fsdp_node_rotates(const fsdp_node *node, const fsdp_op_attrs *attrs, const fsdp_node *next);

// Tells documents apart: every op that can (ops.def: @starts) reads their starts, a new input. Before the
// graph is partitioned and before its backward.
void fsdp_graph_add_documents(fsdp_graph *graph);

// Lets each document count the same in the loss: the head reads how many targets of a row's document count,
// a new input. At the same place.
void fsdp_graph_weigh_documents(fsdp_graph *graph);

// Asks for dropout: adds the input of its draws. The partition of the graph, which knows the rows of a rank,
// adds the ops. At the same place.
void fsdp_graph_add_dropout(fsdp_graph *graph, const fsdp_dropout *rates);

// Builds the backward of the whole forward from each op's rule (models/graph/ops/<family>.c). Call once, when
// the forward is complete.
void fsdp_graph_backward(fsdp_graph *graph);

// Lets gemms add the residual (residual.c) wherever delta goes from a gemm of one weight straight into the
// sum h = x + delta of a norm. A partial sum over ranks does not: the sum over ranks lies between, and each
// would add the residual. Neither do columns that ranks exchange. Once placements and the backward are made.
void fsdp_graph_add_residuals(fsdp_graph *graph);

// Whether the forward node's gemm adds the residual. Its sum belongs to the next node, the norm's.
bool fsdp_node_adds_residual(const fsdp_node *node);

// The dotted path of a module ("model.layers.0.self_attn"; "" for the root) into out[FSDP_NAME_BYTES].
void fsdp_graph_module_path(const fsdp_graph *graph, int module, char out[FSDP_NAME_BYTES]);

// Whether `module` is `ancestor` or lies below it.
bool fsdp_graph_module_within(const fsdp_graph *graph, int module, int ancestor);

// The layer that a module is, or lies in; -1: none.
int fsdp_graph_layer_of(const fsdp_graph *graph, int module);

#ifdef __cplusplus
}
#endif
