#include "runtime/exec/world.h"

#include <string.h>

fsdp_status fsdp_world_agree(fsdp_world *world, const char *what, uint64_t value, fsdp_error *error) {
  uint64_t *values = fsdp_alloc((size_t)world->size * sizeof *values);
  fsdp_world_gather(world, &value, (int64_t)sizeof value, values);
  int differs = 0;
  while (differs < world->size && values[differs] == values[0]) differs++;
  uint64_t first = values[0], other = differs < world->size ? values[differs] : 0;
  free(values);
  if (differs == world->size) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "%s differs between rank 0 (%016llx) and rank %d (%016llx); start every rank with the same "
      "program, options and files",
      what, (unsigned long long)first, differs, (unsigned long long)other);
}

int64_t fsdp_world_sum(fsdp_world *world, int64_t mine) {
  int64_t *all = fsdp_alloc((size_t)world->size * sizeof *all), sum = 0;
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < world->size; r++) sum += all[r];
  free(all);
  return sum;
}

fsdp_status fsdp_world_share_error(fsdp_world *world, fsdp_error *error) {
  fsdp_error *errors = fsdp_alloc((size_t)world->size * sizeof *errors);
  fsdp_world_gather(world, error, (int64_t)sizeof *error, errors);
  for (int r = 0; r < world->size; r++) {
    if (errors[r].status == FSDP_OK) continue;
    *error = errors[r];
    break;
  }
  free(errors);
  return error->status;
}
