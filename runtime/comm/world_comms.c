// Which communicator a group gets: shared memory if all its ranks are on one node and can open each other's
// arenas, else messages.
#include "runtime/base/check.h"
#include "runtime/base/shared_file.h"
#include "runtime/comm/comm_shared.h"
#include "runtime/comm/world_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What the ranks of a node exchange first.
typedef struct introduction {
  int process;
  fsdp_shared_file arena[FSDP_SPACE_COUNT];
  fsdp_comm_group group[FSDP_COMMS_MAX];
  fsdp_shared_file control[FSDP_COMMS_MAX]; // made by the first rank of each group
} introduction;

typedef struct builder {
  fsdp_world *world;
  const fsdp_comms_config *config;
  introduction *ranks; // of this node
  fsdp_shared_control *controls[FSDP_COMMS_MAX];
  int *peer_files[FSDP_COMMS_MAX]; // by rank in the group and space
} builder;

static int64_t control_bytes(const fsdp_comms_config *config, int group) {
  return fsdp_shared_control_bytes(config->groups[group].size);
}

// Whether a rank of this node is in this rank's group.
static bool is_member(const builder *self, int group, int peer) {
  return self->ranks[peer].group[group].color == self->config->groups[group].color;
}

static int count_members(const builder *self, int group) {
  int members = 0;
  for (int r = 0; r < self->world->local_size; r++) members += is_member(self, group, r);
  return members;
}

// Maps the group's control block and opens every peer's arenas. False if any of it is not possible.
static bool open_group(builder *self, int group) {
  int size = self->config->groups[group].size;
  if (size == 1) return true;
  if (self->config->messages || count_members(self, group) != size) return false; // some are on other nodes
  int *files = fsdp_alloc((size_t)size * FSDP_SPACE_COUNT * sizeof *files);
  for (int i = 0; i < size * FSDP_SPACE_COUNT; i++) files[i] = -1;
  self->peer_files[group] = files;
  for (int r = 0; r < self->world->local_size; r++) {
    if (!is_member(self, group, r)) continue;
    const introduction *peer = &self->ranks[r];
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
  return fsdp_shared_create(&(fsdp_shared_config){.rank = self->config->groups[group].rank,
                                                  .size = self->config->groups[group].size,
                                                  .control = self->controls[group],
                                                  .arenas = self->config->arenas,
                                                  .peer_files = self->peer_files[group]});
}

// Whether the node's members of this rank's group have places of their own in it, and name the same size.
static bool is_group_sound(const builder *self, int group) {
  const fsdp_comm_group *mine = &self->config->groups[group];
  for (int r = 0; r < self->world->local_size; r++) {
    const fsdp_comm_group *peer = &self->ranks[r].group[group];
    if (!is_member(self, group, r)) continue;
    if (peer->size != mine->size || peer->rank < 0 || peer->rank >= mine->size) return false;
    for (int other = 0; other < r; other++)
      if (is_member(self, group, other) && self->ranks[other].group[group].rank == peer->rank) return false;
  }
  return count_members(self, group) <= mine->size;
}

// Which groups of this rank need no messages: all members are on this node and have opened each other's
// memory.
static void find_direct(const builder *self, bool *direct) {
  const fsdp_world *world = self->world;
  unsigned char *all = fsdp_alloc((size_t)world->local_size * FSDP_COMMS_MAX);
  unsigned char opened[FSDP_COMMS_MAX] = {0};
  for (int g = 0; g < self->config->group_count; g++) opened[g] = direct[g];
  fsdp_world_gather_node(self->world, opened, (int64_t)sizeof opened, all);
  for (int g = 0; g < self->config->group_count; g++)
    for (int r = 0; r < world->local_size; r++)
      if (is_member(self, g, r)) direct[g] = direct[g] && all[r * FSDP_COMMS_MAX + g];
  free(all);
}

// One communicator for each group. False if a group is not what its ranks say.
static bool create_comms(builder *self, const bool *direct, fsdp_comms *comms) {
  bool whole = true;
  int64_t messages[FSDP_COMMS_MAX]; // whether any rank's group sends them: all ranks take part in the split
  comms->count = self->config->group_count;
  for (int g = 0; g < comms->count; g++) messages[g] = !direct[g];
  fsdp_world_reduce(self->world, FSDP_REDUCE_MAX, messages, comms->count);
  for (int g = 0; g < comms->count; g++) {
    const fsdp_comm_group *group = &self->config->groups[g];
    fsdp_comm *made = NULL;
    if (messages[g]) {
      int color = direct[g] ? -1 : group->color;
      made = fsdp_world_split_messages(color, group->rank, self->config->piece_bytes);
    }
    if (group->size == 1) {
      made = fsdp_comm_self();
    } else if (direct[g]) {
      made = create_direct(self, g);
    } else {
      close_group(self, g);
    }
    whole = whole && made->size == group->size && made->rank == group->rank;
    comms->comm[g] = made;
    free(self->peer_files[g]);
  }
  return whole;
}

fsdp_status fsdp_world_comms(fsdp_world *world, const fsdp_comms_config *config, fsdp_comms *comms,
                             fsdp_error *error) {
  FSDP_CHECK(config->group_count >= 0 && config->group_count <= FSDP_COMMS_MAX, "%d communicators",
             config->group_count);
  builder self = {.world = world, .config = config};
  introduction mine = {.process = getpid()};
  int control_files[FSDP_COMMS_MAX];
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    mine.arena[s] = fsdp_shared_file_describe(config->arenas->file[s]);
  for (int g = 0; g < config->group_count; g++) {
    mine.group[g] = config->groups[g];
    bool leads = config->groups[g].rank == 0;
    control_files[g] = leads ? fsdp_shared_file_create("fsdp-control", control_bytes(config, g)) : -1;
    mine.control[g] = fsdp_shared_file_describe(control_files[g]);
  }
  self.ranks = fsdp_alloc((size_t)world->local_size * sizeof *self.ranks);
  fsdp_world_gather_node(world, &mine, (int64_t)sizeof mine, self.ranks);
  bool sound = true, direct[FSDP_COMMS_MAX];
  for (int g = 0; g < config->group_count; g++) sound = sound && is_group_sound(&self, g);
  memset(comms, 0, sizeof *comms);
  sound = fsdp_world_min(world, sound) != 0;
  if (sound) {
    for (int g = 0; g < config->group_count; g++) direct[g] = open_group(&self, g);
    find_direct(&self, direct);
    sound = fsdp_world_min(world, create_comms(&self, direct, comms)) != 0;
  }
  // Everyone has opened what it needs: exchanging was the proof.
  for (int g = 0; g < config->group_count; g++) {
    if (control_files[g] >= 0) close(control_files[g]);
  }
  free(self.ranks);
  if (sound) return FSDP_OK;
  fsdp_comms_destroy(comms);
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "the groups of the %d ranks do not fit together: start every rank with the same options",
                   world->size);
}
