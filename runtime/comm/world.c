#include "runtime/comm/world.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- The list of exchanges

// One line: what this rank does, the kind, among whom, how many, and the bytes of each.
static void note_exchange(void *owner, const fsdp_peers *peers, fsdp_exchange_kind kind, int64_t bytes) {
  static const char *const activities[FSDP_ACTIVITY_COUNT] = {"start", "load",   "step", "evaluate",
                                                              "save",  "finish", "left"};
  static const char *const kinds[FSDP_EXCHANGE_KIND_COUNT] = {"reduce", "broadcast", "gather",
                                                              "gather_first"};
  const fsdp_world *world = owner;
  const fsdp_world_nodes *nodes = &world->nodes;
  const char *whom = !peers->ranks                        ? "world"
                     : peers->ranks == nodes->local_ranks ? "node"
                     : peers->ranks == nodes->first       ? "nodes"
                                                          : "some";
  int32_t activity = atomic_load_explicit(&fsdp_board_mine->activity, memory_order_relaxed);
  fprintf(world->exchanges, "%s %s %s %d %lld\n", activities[activity], kinds[kind], whom, peers->size,
          (long long)bytes);
}

void fsdp_world_list_exchanges(fsdp_world *world) {
  const char *path = getenv("FSDP_EXCHANGES");
  if (!path || world->rank > 0) return;
  world->exchanges = fopen(path, "w");
  if (!world->exchanges) {
    fsdp_job_note("FSDP_EXCHANGES: %.400s cannot be written (%s)", path, strerror(errno));
    return;
  }
  setvbuf(world->exchanges, NULL, _IOLBF, 0);
  world->link.note = note_exchange;
  world->link.note_owner = world;
}

// ---- Exchanges

// Counts the exchanges of all ranks, so that a waiting rank can report which ranks have not arrived.
static fsdp_peers begin_exchange(const fsdp_world *world) {
  fsdp_board_slot *mine = fsdp_board_mine;
  atomic_fetch_add_explicit(&mine->exchanges, 1, memory_order_relaxed);
  return (fsdp_peers){.link = &world->link, .place = world->rank, .size = world->size};
}

void fsdp_world_reduce(fsdp_world *world, fsdp_reduction how, int64_t *values, int count) {
  fsdp_peers all = begin_exchange(world);
  fsdp_exchange_reduce(&all, how, values, count);
}

void fsdp_world_barrier(fsdp_world *world) {
  fsdp_world_sum(world, 0);
}

int64_t fsdp_world_sum(fsdp_world *world, int64_t mine) {
  fsdp_world_reduce(world, FSDP_REDUCE_SUM, &mine, 1);
  return mine;
}

int64_t fsdp_world_min(fsdp_world *world, int64_t mine) {
  fsdp_world_reduce(world, FSDP_REDUCE_MIN, &mine, 1);
  return mine;
}

int64_t fsdp_world_max(fsdp_world *world, int64_t mine) {
  fsdp_world_reduce(world, FSDP_REDUCE_MAX, &mine, 1);
  return mine;
}

void fsdp_world_gather(fsdp_world *world, const void *mine, int64_t bytes, void *out) {
  fsdp_peers all = begin_exchange(world);
  fsdp_exchange_gather(&all, mine, bytes, out);
}

void fsdp_world_gather_node(fsdp_world *world, const void *mine, int64_t bytes, void *out) {
  fsdp_peers node = fsdp_world_among(world, world->nodes.local_ranks, world->local_size);
  fsdp_exchange_gather(&node, mine, bytes, out);
}

fsdp_peers fsdp_world_among(fsdp_world *world, const int *ranks, int count) {
  fsdp_peers peers = begin_exchange(world);
  peers.ranks = ranks;
  peers.size = count;
  peers.place = 0;
  while (peers.place < count && ranks[peers.place] != world->rank) peers.place++;
  if (peers.place == count) peers.place = -1;
  return peers;
}

void fsdp_world_broadcast_from(fsdp_world *world, int root, void *data, int64_t bytes) {
  fsdp_peers all = begin_exchange(world);
  fsdp_exchange_broadcast(&all, root, data, bytes);
}

void fsdp_world_broadcast(fsdp_world *world, void *data, int64_t bytes) {
  fsdp_world_broadcast_from(world, 0, data, bytes);
}

// ---- Agreement

// A value and its complement: the least of both over all ranks is the least and the greatest value.
bool fsdp_world_compare(fsdp_world *world, const uint64_t *values, int count, int *differs) {
  size_t bytes = (size_t)count * sizeof *values;
  int64_t *bounds = fsdp_alloc(2 * bytes);
  bool same = true;
  for (int i = 0; i < count; i++) bounds[i] = (int64_t)values[i], bounds[count + i] = (int64_t)~values[i];
  fsdp_world_reduce(world, FSDP_REDUCE_MIN, bounds, 2 * count);
  for (int i = 0; i < count; i++) same = same && bounds[i] == ~bounds[count + i];
  for (int i = 0; i < count; i++) differs[i] = -1;
  if (!same) {
    uint64_t *first = fsdp_alloc(bytes);
    memcpy(first, values, bytes);
    fsdp_world_broadcast(world, first, (int64_t)bytes);
    for (int i = 0; i < count; i++) bounds[i] = values[i] == first[i] ? INT64_MAX : world->rank;
    fsdp_world_reduce(world, FSDP_REDUCE_MIN, bounds, count);
    for (int i = 0; i < count; i++) differs[i] = bounds[i] == INT64_MAX ? -1 : (int)bounds[i];
    free(first);
  }
  free(bounds);
  return same;
}

fsdp_status fsdp_world_agree(fsdp_world *world, const char *what, uint64_t value, fsdp_error *error) {
  int differs;
  uint64_t first = value, other = value;
  if (fsdp_world_compare(world, &value, 1, &differs)) return FSDP_OK;
  fsdp_world_broadcast(world, &first, (int64_t)sizeof first);
  fsdp_world_broadcast_from(world, differs, &other, (int64_t)sizeof other);
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "%s differs between %s (%016llx) and %s (%016llx); start every rank with the same "
                   "executable, options and files",
                   what, fsdp_world_rank_name(world, 0).text, (unsigned long long)first,
                   fsdp_world_rank_name(world, differs).text, (unsigned long long)other);
}

char *fsdp_world_broadcast_text(fsdp_world *world, const char *text) {
  int64_t bytes = (int64_t)strlen(text) + 1;
  fsdp_world_broadcast(world, &bytes, (int64_t)sizeof bytes);
  char *first = fsdp_alloc((size_t)bytes);
  if (world->rank == 0) memcpy(first, text, (size_t)bytes);
  fsdp_world_broadcast(world, first, bytes);
  return first;
}

fsdp_rank_name fsdp_world_rank_name(const fsdp_world *world, int rank) {
  fsdp_rank_name name;
  snprintf(name.text, sizeof name.text, "rank %d (host %s)", rank,
           world->nodes.hosts[world->nodes.index[rank]]);
  return name;
}

// Appends this rank's name if the message lacks it.
static void append_name(const fsdp_world *world, fsdp_error *error) {
  fsdp_rank_name name = fsdp_world_rank_name(world, world->rank);
  size_t used = strlen(error->message);
  if (!strstr(error->message, name.text))
    snprintf(error->message + used, sizeof error->message - used, " (%s)", name.text);
}

fsdp_status fsdp_world_share_error(fsdp_world *world, fsdp_error *error) {
  int failed = (int)fsdp_world_min(world, error->status == FSDP_OK ? world->size : world->rank);
  world->failed_rank = failed;
  if (failed == world->size) return FSDP_OK;
  if (failed == world->rank && failed > 0) append_name(world, error);
  fsdp_world_broadcast_from(world, failed, error, (int64_t)sizeof *error);
  return error->status;
}
