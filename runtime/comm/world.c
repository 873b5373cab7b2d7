#include "runtime/comm/world.h"

#include "runtime/base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fsdp_status fsdp_world_agree(fsdp_world *world, const char *what, uint64_t value, fsdp_error *error) {
  uint64_t *values = fsdp_alloc((size_t)world->size * sizeof *values);
  fsdp_world_gather(world, &value, (int64_t)sizeof value, values);
  int differs = 0;
  while (differs < world->size && values[differs] == values[0]) differs++;
  uint64_t first = values[0], other = differs < world->size ? values[differs] : 0;
  free(values);
  if (differs == world->size) return FSDP_OK;
  fsdp_rank_name *names = fsdp_world_rank_names(world);
  fsdp_status status = fsdp_fail(error, FSDP_ERR_OPTION,
                                 "%s differs between %s (%016llx) and %s (%016llx); start every rank with "
                                 "the same executable, options and files",
                                 what, names[0].text, (unsigned long long)first, names[differs].text,
                                 (unsigned long long)other);
  free(names);
  return status;
}

char *fsdp_world_broadcast_text(fsdp_world *world, const char *text) {
  int64_t bytes = (int64_t)strlen(text) + 1;
  fsdp_world_broadcast(world, &bytes, (int64_t)sizeof bytes);
  char *first = fsdp_alloc((size_t)bytes);
  if (world->rank == 0) memcpy(first, text, (size_t)bytes);
  fsdp_world_broadcast(world, first, bytes);
  return first;
}

fsdp_rank_name *fsdp_world_rank_names(fsdp_world *world) {
  fsdp_rank_name mine = {{0}}, *all = fsdp_alloc((size_t)world->size * sizeof *all);
  snprintf(mine.text, sizeof mine.text, "rank %d (host %s)", world->rank, world->host);
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  return all;
}

int64_t fsdp_world_sum(fsdp_world *world, int64_t mine) {
  int64_t *all = fsdp_alloc((size_t)world->size * sizeof *all), sum = 0;
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < world->size; r++) sum += all[r];
  free(all);
  return sum;
}

int64_t fsdp_world_min(fsdp_world *world, int64_t mine) {
  int64_t *all = fsdp_alloc((size_t)world->size * sizeof *all), least = mine;
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < world->size; r++) least = fsdp_min_i64(least, all[r]);
  free(all);
  return least;
}

// Appends the rank's name if the message lacks it.
static void name_failed_rank(fsdp_world *world, int rank, fsdp_error *error) {
  fsdp_rank_name *names = fsdp_world_rank_names(world);
  size_t used = strlen(error->message);
  if (!strstr(error->message, names[rank].text))
    snprintf(error->message + used, sizeof error->message - used, " (%s)", names[rank].text);
  free(names);
}

fsdp_status fsdp_world_share_error(fsdp_world *world, fsdp_error *error) {
  fsdp_error *errors = fsdp_alloc((size_t)world->size * sizeof *errors);
  fsdp_world_gather(world, error, (int64_t)sizeof *error, errors);
  int failed = 0;
  while (failed < world->size && errors[failed].status == FSDP_OK) failed++;
  if (failed < world->size) *error = errors[failed];
  world->failed_rank = failed;
  free(errors);
  if (failed > 0 && failed < world->size) name_failed_rank(world, failed, error);
  return error->status;
}

void fsdp_world_set_comm_timeout(fsdp_world *world, int seconds) {
  if (world->watch) fsdp_watch_set_limit(world->watch, seconds);
}

void fsdp_world_set_saves(fsdp_world *world, bool saves) {
  if (world->watch) fsdp_watch_set_saves(world->watch, saves);
}

void fsdp_world_set_failed(fsdp_world *world) {
  if (world->watch) fsdp_watch_set_said(world->watch);
}

void fsdp_world_set_error_folder(fsdp_world *world, const char *folder) {
  if (world->watch) fsdp_watch_set_folder(world->watch, folder);
}
