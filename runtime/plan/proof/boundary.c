#include "runtime/plan/proof/boundary.h"

#include "runtime/base/check.h"

fsdp_boundary fsdp_boundary_create(const fsdp_program *program, bool of_ends) {
  fsdp_boundary b = {fsdp_alloc((size_t)(program->instr_count + 1) * sizeof *b.first),
                     fsdp_alloc((size_t)program->tensor_count * sizeof *b.next)};
  for (int i = 0; i < program->instr_count; i++) b.first[i] = -1;
  for (int t = program->tensor_count - 1; t >= 0; t--) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->end < tensor->begin) continue;
    int position = of_ends ? tensor->end : tensor->begin;
    FSDP_CHECK(position >= 0 && position < program->instr_count, "tensor %s lives from %d to %d",
               tensor->name, tensor->begin, tensor->end);
    b.next[t] = b.first[position];
    b.first[position] = t;
  }
  return b;
}

void fsdp_boundary_destroy(fsdp_boundary *boundary) {
  free(boundary->first);
  free(boundary->next);
}
