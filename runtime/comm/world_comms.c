// Which communicator a group gets: direct where all its ranks are on one node and can open each other's
// arenas.
#include "runtime/base/check.h"
#include "runtime/comm/comm_direct.h"
#include "runtime/comm/shared_file.h"
#include "runtime/comm/world_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What ranks tell each other to begin with.
typedef struct introduction {
  int process, node;
  fsdp_shared_file arena[FSDP_SPACE_COUNT];
  fsdp_shared_file control[FSDP_GROUP_COUNT]; // made by the first rank of each group
} introduction;

typedef struct builder {
  fsdp_world *world;
  const fsdp_comms_config *config;
  introduction *ranks; // everyone's
  fsdp_direct_control *controls[FSDP_GROUP_COUNT];
  int *peer_files[FSDP_GROUP_COUNT]; // by group rank and space
} builder;

static int64_t control_bytes(const fsdp_mesh *mesh, fsdp_group group) {
  return fsdp_direct_control_bytes(fsdp_mesh_group_size(mesh, group));
}

static void release_control(fsdp_direct_control *control, void *owner) {
  munmap(control, *(size_t *)owner);
  free(owner);
}

static bool same_group(const fsdp_mesh *mesh, fsdp_group group, int a, int b) {
  return fsdp_mesh_group_color(mesh, group, a) == fsdp_mesh_group_color(mesh, group, b);
}

// Maps the group's control block and opens every peer's arenas. False where any of it is not possible.
static bool open_group(builder *self, fsdp_group group) {
  const fsdp_mesh *mesh = self->config->mesh;
  int rank = self->world->rank, size = fsdp_mesh_group_size(mesh, group);
  if (size == 1) return true;
  if (self->config->messages) return false;
  int *files = fsdp_alloc((size_t)size * FSDP_SPACE_COUNT * sizeof *files);
  for (int i = 0; i < size * FSDP_SPACE_COUNT; i++) files[i] = -1;
  self->peer_files[group] = files;
  for (int r = 0; r < self->world->size; r++) {
    if (!same_group(mesh, group, r, rank)) continue;
    const introduction *peer = &self->ranks[r];
    if (peer->node != self->ranks[rank].node) return false;
    int place = fsdp_mesh_group_rank(mesh, group, r);
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
      if (self->config->arenas->bytes[s] == 0 && peer->arena[s].descriptor < 0) continue;
      files[place * FSDP_SPACE_COUNT + s] = fsdp_shared_file_open(peer->process, &peer->arena[s]);
      if (files[place * FSDP_SPACE_COUNT + s] < 0) return false;
    }
    if (place != 0) continue;
    int control = fsdp_shared_file_open(peer->process, &peer->control[group]);
    self->controls[group] = fsdp_shared_file_map(control, control_bytes(mesh, group));
    if (!self->controls[group]) return false;
  }
  return self->controls[group] != NULL;
}

static void close_group(builder *self, fsdp_group group) {
  const fsdp_mesh *mesh = self->config->mesh;
  int count = fsdp_mesh_group_size(mesh, group) * FSDP_SPACE_COUNT;
  for (int i = 0; self->peer_files[group] && i < count; i++) {
    if (self->peer_files[group][i] >= 0) close(self->peer_files[group][i]);
  }
  if (self->controls[group]) munmap(self->controls[group], (size_t)control_bytes(mesh, group));
  self->controls[group] = NULL;
}

static fsdp_comm *create_direct(builder *self, fsdp_group group) {
  const fsdp_mesh *mesh = self->config->mesh;
  size_t *bytes = fsdp_alloc(sizeof *bytes);
  *bytes = (size_t)control_bytes(mesh, group);
  return fsdp_direct_create(
      &(fsdp_direct_config){.rank = fsdp_mesh_group_rank(mesh, group, self->world->rank),
                            .size = fsdp_mesh_group_size(mesh, group),
                            .control = self->controls[group],
                            .arenas = self->config->arenas,
                            .peer_files = self->peer_files[group],
                            .release = release_control,
                            .owner = bytes});
}

// One communicator for each group: its ranks agree on the kind, as all know what worked where.
static void create_comms(builder *self, const unsigned char *opened, fsdp_comms *comms) {
  const fsdp_mesh *mesh = self->config->mesh;
  int rank = self->world->rank;
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) {
    fsdp_group group = (fsdp_group)g;
    bool direct = true, any_messages = false;
    for (int r = 0; r < self->world->size; r++) {
      bool works = opened[r * FSDP_GROUP_COUNT + g] != 0;
      if (same_group(mesh, group, r, rank)) direct = direct && works;
      any_messages = any_messages || !works;
    }
    fsdp_comm *messages = NULL;
    if (any_messages) {
      int color = direct ? -1 : fsdp_mesh_group_color(mesh, group, rank);
      int key = fsdp_mesh_group_rank(mesh, group, rank);
      messages = fsdp_world_split_messages(self->world, color, key, self->config->piece_bytes);
    }
    if (fsdp_mesh_group_size(mesh, group) == 1) {
      comms->group[g] = fsdp_comm_self();
    } else if (direct) {
      comms->group[g] = create_direct(self, group);
    } else {
      close_group(self, group);
      comms->group[g] = messages;
    }
    free(self->peer_files[g]);
  }
}

fsdp_status fsdp_world_comms(fsdp_world *world, const fsdp_comms_config *config, fsdp_comms *comms,
                             fsdp_error *error) {
  const fsdp_mesh *mesh = config->mesh;
  if (fsdp_mesh_ranks(mesh) != world->size) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "the mesh has %d ranks, but the job has %d",
                     fsdp_mesh_ranks(mesh), world->size);
  }
  builder self = {.world = world, .config = config};
  introduction mine = {.process = getpid(), .node = world->node_index};
  int control_files[FSDP_GROUP_COUNT];
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    mine.arena[s] = fsdp_shared_file_describe(config->arenas->file[s]);
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) {
    bool leads = fsdp_mesh_group_rank(mesh, (fsdp_group)g, world->rank) == 0;
    control_files[g] =
        leads ? fsdp_shared_file_create("fsdp-control", control_bytes(mesh, (fsdp_group)g)) : -1;
    mine.control[g] = fsdp_shared_file_describe(control_files[g]);
  }
  self.ranks = fsdp_alloc((size_t)world->size * sizeof *self.ranks);
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, self.ranks);

  unsigned char opened[FSDP_GROUP_COUNT];
  unsigned char *all_opened = fsdp_alloc((size_t)world->size * sizeof opened);
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) opened[g] = open_group(&self, (fsdp_group)g);
  fsdp_world_gather(world, opened, (int64_t)sizeof opened, all_opened);
  create_comms(&self, all_opened, comms);

  // Everyone has opened what it needs: gathering was the proof.
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) {
    if (control_files[g] >= 0) close(control_files[g]);
  }
  free(all_opened);
  free(self.ranks);
  return FSDP_OK;
}

void fsdp_comms_destroy(fsdp_comms *comms) {
  for (int g = 0; g < FSDP_GROUP_COUNT; g++) fsdp_comm_destroy(comms->group[g]);
}
