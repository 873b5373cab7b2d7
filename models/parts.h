// What families are built of: modules with their parameters, and the ops of a decoder over them.
//
// Legend: B sequences, T tokens each, N = B*T rows, C hidden size, H heads, K key/value heads, D head
// dimension, Q = (H + 2K)*D, I intermediate size, V vocabulary.
#pragma once

#include "models/model.h"

typedef struct fsdp_parts {
  const fsdp_model_config *config;
  fsdp_graph *graph;
  int64_t rows;        // N
  fsdp_op_attrs attrs; // what every op of the model may need
  int block;           // decoder block that new ops belong to, -1 outside of them
} fsdp_parts;

// `graph` is empty but for inv_freq, if the family has RoPE.
fsdp_parts fsdp_parts_of(const fsdp_model_config *config, fsdp_graph *graph);

// A new value of the module: `rows` rows of `columns` columns (0: one number a row).
int fsdp_parts_value(fsdp_parts *parts, int module, const char *name, fsdp_value_dtype dtype, int64_t rows,
                     int64_t columns);

// Appends a node with these operands, the first `count` of the op's row, which says how each is accessed. The
// pointer is valid until the next node.
fsdp_node *fsdp_parts_node(fsdp_parts *parts, fsdp_op_kind kind, int module, int count, const int *operands);

// ---- Counts

// FLOPs of attention's gemms, forward and backward, for one token of a sequence of `seq`: 12 H D for each
// position that it attends to. By the causal convention these are T/2 on average, w - w^2/(2T) with a window
// of w < T.
double fsdp_parts_attention_flops_per_token(const fsdp_model_config *config, int64_t seq,
                                            fsdp_flops_convention convention);

// ---- Modules; each returns its index

// Linear: weight (out, in), drawn with the configuration's deviation; bias (out), drawn as zeros.
int fsdp_parts_linear_module(fsdp_parts *parts, int parent, const char *name, int64_t in, int64_t out,
                             bool bias);

typedef struct fsdp_conv1d_spec {
  int64_t in, out;
  float init_deviation; // of the weight
  int block_count;      // gemms of as many outputs whose weights lie side by side (q, k and v); 0: one gemm
} fsdp_conv1d_spec;

// Transformers' Conv1D, a linear layer: weight (in, out), bias (out), drawn as zeros.
int fsdp_parts_conv1d_module(fsdp_parts *parts, int parent, const char *name, const fsdp_conv1d_spec *spec);

// RMSNorm over C, over each head, or over all of them: weight (width) of ones. Without a class name
// LayerNorm, which has a bias (width) of zeros too.
int fsdp_parts_norm_module(fsdp_parts *parts, int parent, const char *name, const char *class_name,
                           int64_t width);

// Embedding: weight (count, C).
int fsdp_parts_embedding_module(fsdp_parts *parts, int parent, const char *name, int64_t count);

// Dropout's module, which is there to be printed: a plan adds the ops (graph.h: fsdp_graph_add_dropout).
void fsdp_parts_dropout_module(fsdp_parts *parts, int parent, const char *name, double probability);

// The head: Linear from C to V, with the embedding's weight if the configuration ties them.
int fsdp_parts_head_module(fsdp_parts *parts, int parent, const char *name, int embedding);

// ---- Ops, top to bottom; each returns the value that it makes

// The residual stream, and the last sublayer's output, which is still to be added to it (-1: none yet).
typedef struct fsdp_residual {
  int h, delta;
} fsdp_residual;

// h (N, C): the tokens' rows of the table.
int fsdp_parts_embedding(fsdp_parts *parts, int module);

// Adds a table's row of each position to h (N, C), in place. The table, an Embedding's, has at least T rows.
void fsdp_parts_add_positions(fsdp_parts *parts, int h, int module);

// Adds the pending delta to the stream and normalises the sum: y (N, C), and the sum in stream->h. A module
// with a bias is a LayerNorm, else an RMSNorm. `opens_block`: the sum is kept if the block is recomputed.
int fsdp_parts_add_norm(fsdp_parts *parts, fsdp_residual *stream, int module, bool opens_block);

// y = x * weight^T (+ bias, if the modules own one) of one module, or of neighbours whose outputs lie side by
// side in y (N, sum of outs).
int fsdp_parts_linear(fsdp_parts *parts, int x, int count, const int *modules, const char *name);

// y (N, Q): q|k|v with each head of q and of k normalised, or all heads of each together, by the weights of
// two modules of fsdp_parts_norm_module.
int fsdp_parts_qk_norm(fsdp_parts *parts, int qkv, int q_norm, int k_norm);

// Rotates q and k of q|k|v (N, Q), in place.
void fsdp_parts_rope(fsdp_parts *parts, int qkv, int module);

// o (N, H*D): causal attention over q|k|v (N, Q), within the layer's window.
int fsdp_parts_attention(fsdp_parts *parts, int qkv, int module);

// s (N, I) = silu(gate) * up, of gate|up (N, 2I).
int fsdp_parts_swiglu(fsdp_parts *parts, int gate_up, int module);

// y (N, I) = gelu(x), x (N, I), in the form with tanh.
int fsdp_parts_gelu(fsdp_parts *parts, int x, int module);

// The loss of the head's logits over y.
void fsdp_parts_cross_entropy(fsdp_parts *parts, int y, int head);
