// The node list: what one section does, in order, before it becomes instructions.
//
//   graph ─► nodes ─► pass ─► nodes ─► pass ─► ... ─► instructions
//
// A node is a future instruction: kind, stream and op, and operands that are ranges of tensors. Until a pass
// has chosen a buffer, an operand names what it needs instead (FSDP_UNIT_WEIGHTS, FSDP_UNIT_GRADIENT): the
// whole flat buffer of a unit's parameters in compute dtype, or of their gradients. Passes insert, change and
// remove nodes. Each finds what it needs through the list's definitions and uses (fsdp_uses_*), and knows no
// other pass.
#pragma once

#include "runtime/base/access.h"
#include "runtime/plan/program/program.h"

// What an operand names instead of a tensor.
#define FSDP_UNIT_WEIGHTS(unit)  (-2 - 2 * (unit))
#define FSDP_UNIT_GRADIENT(unit) (-3 - 2 * (unit))

// The unit whose weights (or gradient) an operand names, or -1.
static inline int fsdp_weights_unit(int tensor) {
  return tensor <= -2 && tensor % 2 == 0 ? (-2 - tensor) / 2 : -1;
}
static inline int fsdp_gradient_unit(int tensor) {
  return tensor <= -3 && tensor % 2 != 0 ? (-3 - tensor) / 2 : -1;
}

#define FSDP_NO_NODE (-1)

typedef struct fsdp_list_node {
  int previous, next;
  int operand_count;
  // The forward node that it (or whose backward) comes from, counted along the section, or -1. Nodes of one
  // origin are neighbours until some overlap or are repeated; gathers and reductions go before and after all
  // of them.
  int origin;
  int block;        // decoder layer, or -1
  bool is_backward; // of the backward, recomputation included
  bool is_bounded;  // runs ahead of the compute stream by what the passes allow: a POLICY wait
  fsdp_instr instr; // without operands, waits and policy
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS]; // those behind operand_count are not set
} fsdp_list_node;

typedef struct fsdp_nodes {
  fsdp_list_node *nodes; // by index, which an insertion does not change; the array may move
  int count, capacity;
  int first, last;
  int cursor; // new nodes go before this one; FSDP_NO_NODE: at the end
} fsdp_nodes;

// Makes room for about so many nodes, so that they are seldom moved while they are added.
void fsdp_nodes_reserve(fsdp_nodes *list, int nodes);
void fsdp_nodes_clear(fsdp_nodes *list);
void fsdp_nodes_release(fsdp_nodes *list);

// Inserts a node at the cursor, of which nothing but its links is set. Returns its index.
int fsdp_nodes_add(fsdp_nodes *list);
// Inserts a copy of `node`, which is none of the list's, at the cursor. Returns its index.
int fsdp_nodes_insert(fsdp_nodes *list, const fsdp_list_node *node);
void fsdp_nodes_remove(fsdp_nodes *list, int node);

// The first of the neighbours that have `node`'s origin; and the next node with a different one, or
// FSDP_NO_NODE.
int fsdp_nodes_origin_begin(const fsdp_nodes *list, int node);
int fsdp_nodes_after_origin(const fsdp_nodes *list, int node);

// What a list still names beside tensors.
typedef enum fsdp_named { FSDP_NAMED_WEIGHTS = 1, FSDP_NAMED_GRADIENTS = 2 } fsdp_named;

// Aborts, with the name of the pass that left the list, unless every operand names a tensor of the program or
// what `named` (a set) allows, and no tensor of this section alone is read before it is written.
void fsdp_nodes_check(const fsdp_nodes *list, const fsdp_program *program, int unit_count, unsigned named,
                      const char *pass);

// Aborts unless nodes of one origin are neighbours.
void fsdp_nodes_check_origins(const fsdp_nodes *list);

// One operand of one node.
typedef struct fsdp_use {
  int node, operand;
} fsdp_use;

// Definitions and uses of every tensor (or unit's weights, or gradient) of a list. Stale once the list
// changes.
typedef struct fsdp_uses {
  int *first; // by key: index in `uses` of its first use; one more entry at the end
  fsdp_use *uses;
  int tensor_count, key_count;
} fsdp_uses;

fsdp_uses fsdp_uses_create(const fsdp_nodes *list, int tensor_count, int unit_count);
void fsdp_uses_release(fsdp_uses *uses);

// The uses of `tensor`, in list order; their number in *count.
const fsdp_use *fsdp_uses_of(const fsdp_uses *uses, int tensor, int *count);

// The first node that writes `tensor`, or FSDP_NO_NODE.
int fsdp_uses_definition(const fsdp_uses *uses, const fsdp_nodes *list, int tensor);
