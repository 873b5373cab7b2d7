// The world of a build without MPI: this process.
#include "runtime/base/check.h"
#include "runtime/comm/world_internal.h"

#include <stdlib.h>
#include <unistd.h>

fsdp_status fsdp_world_create(int *argc, char ***argv, fsdp_world **world, fsdp_error *error) {
  (void)argc, (void)argv, (void)error;
  fsdp_world *self = fsdp_alloc_zeroed(1, sizeof *self);
  *self = (fsdp_world){.size = 1, .local_size = 1}; // its exchanges send nothing
  gethostname(self->host, sizeof self->host - 1);
  fsdp_world_find_nodes(self, 0);
  fsdp_job_identify(0, self->host, NULL);
  *world = self;
  return FSDP_OK;
}

void fsdp_world_set_patient(fsdp_world *world, bool patient) {
  (void)world, (void)patient;
}

void fsdp_world_destroy(fsdp_world *world) {
  if (world) fsdp_world_release_nodes(world);
  free(world);
}

fsdp_comm *fsdp_world_split_messages(int color, int key, int64_t piece_bytes) {
  (void)color, (void)key, (void)piece_bytes;
  return NULL;
}

void fsdp_world_open_mail(fsdp_world *world, int bytes_max) {
  (void)world, (void)bytes_max;
}
