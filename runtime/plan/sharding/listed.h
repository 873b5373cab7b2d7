// Lists of operators that are no model, as graphs: fsdp_plan --graph FILE.
//
//   x [16,32] ─► fc1: matmul ─► bias: add ─► act: relu ─► fc2: matmul      w1 [32,64], b1 [64], w2 [64,32]
//
// Inputs, parameters and outputs are values; an operator is a LISTED node, and a module with its name, of the
// class `kind`. The node has the letters of its operands itself, since they follow from shapes and
// attributes. Such a graph is propagated over (dataflow.h), and never run.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

// A graph without operators. Never NULL.
fsdp_graph *fsdp_listed_create(void);

// Whether a tensor has no more items than costs can be computed for.
#define FSDP_LISTED_NUMEL_MAX ((int64_t)1 << 40)
bool fsdp_listed_fits(int dims, const int64_t *shape);

// Adds an input or, with the role FSDP_VALUE_PARAM, a parameter, which fits. Returns its value.
int fsdp_listed_tensor(fsdp_graph *graph, fsdp_value_role role, const char *name, int dims,
                       const int64_t *shape);
// A value by its name, -1: none.
int fsdp_listed_find(const fsdp_graph *graph, const char *name);

// One operator as its user writes it.
#define FSDP_LISTED_INPUTS 6
typedef struct fsdp_listed_operator {
  const char *name, *kind;        // kind: one of those below
  int inputs[FSDP_LISTED_INPUTS]; // values
  int input_count;
  bool transposed;                // matmul: the weight is stored [o,i]
  int permutation[FSDP_MAX_DIMS]; // transpose: output dimension d is input dimension permutation[d]
  int permutation_count;          // 0: the last two are exchanged
  int axis;                       // reduce_mean, slice
  bool keeps_axis;                // reduce_mean: as a dimension of 1
  int64_t begin, size;            // slice
  const char *attributes;         // names of those given, each with a space behind it; NULL: not checked
  const char *place;              // for messages: "net.yaml:3"
} fsdp_listed_operator;

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
fsdp_status fsdp_listed_add(fsdp_graph *graph, const fsdp_listed_operator *op, fsdp_error *error);
