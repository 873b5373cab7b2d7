#include "runtime/comm/comm_inproc.h"

#include "runtime/base/check.h"
#include "runtime/comm/comm_direct.h"

#include <stdlib.h>
#include <string.h>

struct fsdp_inproc {
  fsdp_mesh mesh;
  // By group and color; as many colors as there are ranks at most.
  fsdp_direct_control **controls;
};

static int control_index(const fsdp_mesh *mesh, fsdp_group group, int rank) {
  return (int)group * fsdp_mesh_ranks(mesh) + fsdp_mesh_group_color(mesh, group, rank);
}

fsdp_inproc *fsdp_inproc_create(const fsdp_mesh *mesh) {
  fsdp_inproc *inproc = fsdp_alloc_zeroed(1, sizeof *inproc);
  int ranks = fsdp_mesh_ranks(mesh);
  inproc->mesh = *mesh;
  inproc->controls = fsdp_alloc_zeroed((size_t)(FSDP_GROUP_COUNT * ranks), sizeof(fsdp_direct_control *));
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) {
    size_t bytes = (size_t)fsdp_direct_control_bytes(fsdp_mesh_group_size(mesh, (fsdp_group)g));
    for (int r = 0; r < ranks; r++) {
      fsdp_direct_control **control = &inproc->controls[control_index(mesh, (fsdp_group)g, r)];
      if (*control) continue;
      // Members are aligned to cache lines.
      *control = aligned_alloc(64, (bytes + 63) / 64 * 64);
      FSDP_CHECK(*control, "out of host memory for %zu bytes", bytes);
      memset(*control, 0, bytes);
    }
  }
  return inproc;
}

void fsdp_inproc_destroy(fsdp_inproc *inproc) {
  if (!inproc) return;
  for (int i = 0; i < FSDP_GROUP_COUNT * fsdp_mesh_ranks(&inproc->mesh); i++) free(inproc->controls[i]);
  free(inproc->controls);
  free(inproc);
}

fsdp_comm *fsdp_inproc_comm(fsdp_inproc *inproc, fsdp_group group, int rank) {
  const fsdp_mesh *mesh = &inproc->mesh;
  if (fsdp_mesh_group_size(mesh, group) == 1) return fsdp_comm_self();
  return fsdp_direct_create(
      &(fsdp_direct_config){.rank = fsdp_mesh_group_rank(mesh, group, rank),
                            .size = fsdp_mesh_group_size(mesh, group),
                            .control = inproc->controls[control_index(mesh, group, rank)]});
}
