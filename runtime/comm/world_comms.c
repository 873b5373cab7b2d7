// Which communicator a group gets: shared memory if all its ranks are on one node and can open each other's
// arenas, else messages.
#include "runtime/base/check.h"
#include "runtime/comm/comm_shared.h"
#include "runtime/comm/shared_file.h"
#include "runtime/comm/world_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What ranks exchange first.
typedef struct introduction {
  int process, node;
  fsdp_shared_file arena[FSDP_SPACE_COUNT];
  fsdp_comm_group group[FSDP_COMMS_MAX];
  fsdp_shared_file control[FSDP_COMMS_MAX]; // made by the first rank of each group
} introduction;

typedef struct builder {
  fsdp_world *world;
  const fsdp_comms_config *config;
  introduction *ranks; // everyone's
  fsdp_shared_control *controls[FSDP_COMMS_MAX];
  int *peer_files[FSDP_COMMS_MAX]; // by rank in the group and space
} builder;

static int64_t control_bytes(const fsdp_comms_config *config, int group) {
  return fsdp_shared_control_bytes(config->groups[group].size);
}

static void release_control(fsdp_shared_control *control, void *owner) {
  munmap(control, *(size_t *)owner);
  free(owner);
}

// Whether a peer is in this rank's group.
static bool is_member(const builder *self, int group, int peer) {
  return self->ranks[peer].group[group].color == self->config->groups[group].color;
}

// Maps the group's control block and opens every peer's arenas. False if any of it is not possible.
static bool open_group(builder *self, int group) {
  int rank = self->world->rank, size = self->config->groups[group].size;
  if (size == 1) return true;
  if (self->config->messages) return false;
  int *files = fsdp_alloc((size_t)size * FSDP_SPACE_COUNT * sizeof *files);
  for (int i = 0; i < size * FSDP_SPACE_COUNT; i++) files[i] = -1;
  self->peer_files[group] = files;
  for (int r = 0; r < self->world->size; r++) {
    if (!is_member(self, group, r)) continue;
    const introduction *peer = &self->ranks[r];
    if (peer->node != self->ranks[rank].node) return false;
    int place = peer->group[group].rank;
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
      if (self->config->arenas->bytes[s] == 0 && peer->arena[s].descriptor < 0) continue;
      files[place * FSDP_SPACE_COUNT + s] = fsdp_shared_file_open(peer->process, &peer->arena[s]);
      if (files[place * FSDP_SPACE_COUNT + s] < 0) return false;
    }
    if (place != 0) continue;
    int control = fsdp_shared_file_open(peer->process, &peer->control[group]);
    self->controls[group] = fsdp_shared_file_map(control, control_bytes(self->config, group));
    if (!self->controls[group]) return false;
  }
  return self->controls[group] != NULL;
}

static void close_group(builder *self, int group) {
  int count = self->config->groups[group].size * FSDP_SPACE_COUNT;
  for (int i = 0; self->peer_files[group] && i < count; i++) {
    if (self->peer_files[group][i] >= 0) close(self->peer_files[group][i]);
  }
  if (self->controls[group]) munmap(self->controls[group], (size_t)control_bytes(self->config, group));
  self->controls[group] = NULL;
}

static fsdp_comm *create_direct(builder *self, int group) {
  size_t *bytes = fsdp_alloc(sizeof *bytes);
  *bytes = (size_t)control_bytes(self->config, group);
  return fsdp_shared_create(&(fsdp_shared_config){.rank = self->config->groups[group].rank,
                                                  .size = self->config->groups[group].size,
                                                  .control = self->controls[group],
                                                  .arenas = self->config->arenas,
                                                  .peer_files = self->peer_files[group],
                                                  .release = release_control,
                                                  .owner = bytes});
}

// One communicator for each group: its ranks agree on the kind, as all know what worked where.
static void create_comms(builder *self, const unsigned char *opened, fsdp_comms *comms) {
  comms->count = self->config->group_count;
  for (int g = 0; g < comms->count; g++) {
    const fsdp_comm_group *group = &self->config->groups[g];
    bool direct = true, any_messages = false;
    for (int r = 0; r < self->world->size; r++) {
      bool works = opened[r * FSDP_COMMS_MAX + g] != 0;
      if (is_member(self, g, r)) direct = direct && works;
      any_messages = any_messages || !works;
    }
    fsdp_comm *messages = NULL;
    if (any_messages) {
      int color = direct ? -1 : group->color;
      messages = fsdp_world_split_messages(self->world, color, group->rank, self->config->piece_bytes);
    }
    if (group->size == 1) {
      comms->comm[g] = fsdp_comm_self();
    } else if (direct) {
      comms->comm[g] = create_direct(self, g);
    } else {
      close_group(self, g);
      comms->comm[g] = messages;
    }
    free(self->peer_files[g]);
  }
}

// Whether the groups are what all ranks together can form: as many members as each says, at its places.
static bool are_groups_whole(const builder *self) {
  for (int g = 0; g < self->config->group_count; g++) {
    const fsdp_comm_group *mine = &self->config->groups[g];
    int members = 0;
    int64_t places = 0;
    for (int r = 0; r < self->world->size; r++) {
      const fsdp_comm_group *peer = &self->ranks[r].group[g];
      if (!is_member(self, g, r)) continue;
      if (peer->size != mine->size || peer->rank < 0 || peer->rank >= mine->size) return false;
      members++;
      places += peer->rank;
    }
    if (members != mine->size || places != (int64_t)mine->size * (mine->size - 1) / 2) return false;
  }
  return true;
}

fsdp_status fsdp_world_comms(fsdp_world *world, const fsdp_comms_config *config, fsdp_comms *comms,
                             fsdp_error *error) {
  FSDP_CHECK(config->group_count >= 0 && config->group_count <= FSDP_COMMS_MAX, "%d communicators",
             config->group_count);
  builder self = {.world = world, .config = config};
  introduction mine = {.process = getpid(), .node = world->node_index};
  int control_files[FSDP_COMMS_MAX];
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    mine.arena[s] = fsdp_shared_file_describe(config->arenas->file[s]);
  for (int g = 0; g < config->group_count; g++) {
    mine.group[g] = config->groups[g];
    bool leads = config->groups[g].rank == 0;
    control_files[g] = leads ? fsdp_shared_file_create("fsdp-control", control_bytes(config, g)) : -1;
    mine.control[g] = fsdp_shared_file_describe(control_files[g]);
  }
  self.ranks = fsdp_alloc((size_t)world->size * sizeof *self.ranks);
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, self.ranks);
  if (!are_groups_whole(&self)) {
    free(self.ranks);
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "the groups of the %d ranks do not fit together: start every rank with the same options",
                     world->size);
  }

  unsigned char opened[FSDP_COMMS_MAX] = {0};
  unsigned char *all_opened = fsdp_alloc((size_t)world->size * sizeof opened);
  for (int g = 0; g < config->group_count; g++) opened[g] = open_group(&self, g);
  fsdp_world_gather(world, opened, (int64_t)sizeof opened, all_opened);
  create_comms(&self, all_opened, comms);

  // Everyone has opened what it needs: gathering was the proof.
  for (int g = 0; g < config->group_count; g++) {
    if (control_files[g] >= 0) close(control_files[g]);
  }
  free(all_opened);
  free(self.ranks);
  return FSDP_OK;
}
