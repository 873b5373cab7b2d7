// Scratch that a kernel takes as an additional last operand.
#include "runtime/base/check.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

void pass_workspaces(step_builder *s) {
  for (int n = s->nodes.first; n != FSDP_NO_NODE; n = s->nodes.nodes[n].next) {
    fsdp_list_node *node = &s->nodes.nodes[n];
    if (node->instr.kind != FSDP_INSTR_OP || node->instr.module < 0) continue;
    int64_t bytes =
        fsdp_op_workspace_bytes(s->config->backend->device, node->instr.op, &node->instr.attrs, 0);
    if (!bytes) continue;
    FSDP_CHECK(node->operand_count < FSDP_OP_MAX_OPERANDS, "no room for the workspace of %s",
               fsdp_op_name(node->instr.op));
    char owner[FSDP_NAME_BYTES];
    fsdp_graph_module_path(s->graph, node->instr.module, owner);
    int tensor = make_tensor(s, owner, "workspace", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                             FSDP_LIVE_SECTION, -1, node->instr.module, bytes);
    node->operands[node->operand_count++] = make_whole(s, tensor, FSDP_F32, FSDP_WRITE);
  }
}
