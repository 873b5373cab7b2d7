#include "runtime/comm/comm_inproc.h"

#include "runtime/base/check.h"
#include "runtime/comm/comm_shared.h"

#include <stdlib.h>
#include <string.h>

struct fsdp_inproc {
  fsdp_comm_group *groups; // by rank and communicator
  int group_count, ranks;
  // By communicator and color; as many colors as there are ranks at most.
  fsdp_shared_control **controls;
};

static const fsdp_comm_group *group_of(const fsdp_inproc *inproc, int index, int rank) {
  FSDP_CHECK(index >= 0 && index < inproc->group_count && rank >= 0 && rank < inproc->ranks,
             "communicator %d of rank %d", index, rank);
  return &inproc->groups[rank * inproc->group_count + index];
}

static fsdp_shared_control **control_of(const fsdp_inproc *inproc, int index, int rank) {
  return &inproc->controls[index * inproc->ranks + group_of(inproc, index, rank)->color];
}

fsdp_inproc *fsdp_inproc_create(const fsdp_comm_group *groups, int group_count, int ranks) {
  fsdp_inproc *inproc = fsdp_alloc_zeroed(1, sizeof *inproc);
  size_t count = (size_t)group_count * (size_t)ranks;
  inproc->group_count = group_count;
  inproc->ranks = ranks;
  inproc->groups = fsdp_alloc((count + 1) * sizeof *inproc->groups);
  if (count > 0) memcpy(inproc->groups, groups, count * sizeof *groups);
  inproc->controls = fsdp_alloc_zeroed(count + 1, sizeof(fsdp_shared_control *));
  for (int c = 0; c < group_count; c++) {
    for (int r = 0; r < ranks; r++) {
      fsdp_shared_control **control = control_of(inproc, c, r);
      if (*control) continue;
      size_t bytes = (size_t)fsdp_shared_control_bytes(group_of(inproc, c, r)->size);
      // Members are aligned to cache lines.
      *control = aligned_alloc(64, (bytes + 63) / 64 * 64);
      FSDP_NEED_MEMORY(*control, "%zu bytes", bytes);
      memset(*control, 0, bytes);
    }
  }
  return inproc;
}

void fsdp_inproc_destroy(fsdp_inproc *inproc) {
  if (!inproc) return;
  for (int i = 0; i < inproc->group_count * inproc->ranks; i++) free(inproc->controls[i]);
  free(inproc->controls);
  free(inproc->groups);
  free(inproc);
}

fsdp_comm *fsdp_inproc_comm(fsdp_inproc *inproc, int index, int rank) {
  const fsdp_comm_group *group = group_of(inproc, index, rank);
  if (group->size == 1) return fsdp_comm_self();
  return fsdp_shared_create(&(fsdp_shared_config){
      .rank = group->rank, .size = group->size, .control = *control_of(inproc, index, rank)});
}
