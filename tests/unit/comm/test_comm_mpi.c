// Collectives between processes: the direct ones and messages, with pieces small enough to need many. Alone
// it is a world of one rank; tests/program/faults/test_comm_ranks.sh starts it with more.
#include "runtime/base/check.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "tests/support/comm_cases.h"

#include <string.h>
#include <time.h>

#define SLOT_ELEMS_MAX 33001

static const int64_t sizes[] = {1, 17, 1000, SLOT_ELEMS_MAX};

static int run_group(fsdp_world *world, fsdp_comm *comm, fsdp_device *device, const char *kind) {
  if (comm->size > 1 && strcmp(comm->table->name, kind) != 0) {
    fprintf(stderr, "rank %d: the communicator is %s, not %s\n", world->rank, comm->table->name, kind);
    return 1;
  }
  int64_t wrong = 0;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    char message[256] = "";
    wrong += comm_cases_run(comm, sizes[s], device->arenas.memory[FSDP_SPACE_DEVICE], message,
                            (int)sizeof message);
    if (message[0]) fprintf(stderr, "rank %d, %s: %s\n", world->rank, kind, message);
  }
  return wrong != 0;
}

// Groups of `size` neighbours, and of the ranks that have the same place among them.
static int run_comms(fsdp_world *world, fsdp_device *device, int size, bool messages, int64_t piece_bytes) {
  fsdp_comm_group groups[2] = {
      {.color = world->rank / size, .rank = world->rank % size, .size = size},
      {.color = world->rank % size, .rank = world->rank / size, .size = world->size / size}};
  fsdp_comms comms;
  fsdp_error error;
  fsdp_comms_config config = {.groups = groups,
                              .group_count = 2,
                              .arenas = &device->arenas,
                              .messages = messages,
                              .piece_bytes = piece_bytes};
  fsdp_status status = fsdp_world_comms(world, &config, &comms, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  int failed = 0;
  const char *kind = messages ? "messages" : "direct";
  failed |= run_group(world, comms.comm[0], device, kind);
  failed |= run_group(world, comms.comm[1], device, kind);
  fsdp_comms_destroy(&comms);
  return failed;
}

// A difference is named on every rank; an error on one rank is known to all.
static int run_agreement(fsdp_world *world) {
  fsdp_error error = {FSDP_OK, ""};
  int failed = fsdp_world_agree(world, "the plan", 42, &error) != FSDP_OK;
  uint64_t mine = world->rank == world->size - 1 ? 7 : 42;
  fsdp_status status = fsdp_world_agree(world, "the plan", mine, &error);
  failed |= (status == FSDP_OK) != (world->size == 1);
  if (world->size > 1) failed |= strstr(error.message, "the plan differs between rank 0") == NULL;
  fsdp_error own = {FSDP_OK, ""};
  if (world->rank == world->size - 1) fsdp_fail(&own, FSDP_ERR_INPUT, "file %d", world->rank);
  char wanted[32]; // and behind it who it was
  int length = snprintf(wanted, sizeof wanted, "file %d", world->size - 1);
  failed |= fsdp_world_share_error(world, &own) != FSDP_ERR_INPUT;
  failed |= strncmp(own.message, wanted, (size_t)length) != 0 || world->failed_rank != world->size - 1;
  int64_t number = world->rank == 0 ? 5 : 0;
  fsdp_world_broadcast(world, &number, (int64_t)sizeof number);
  failed |= number != 5;
  failed |= fsdp_world_min(world, 10 - world->rank) != 11 - world->size;
  failed |= fsdp_world_min(world, world->rank - 3) != -3;
  fsdp_world_barrier(world);
  if (failed) fprintf(stderr, "rank %d: ranks do not agree as they should\n", world->rank);
  return failed;
}

// Groups that do not fit together are refused by all ranks: one names a place twice, or a larger group.
static int run_wrong_groups(fsdp_world *world, fsdp_device *device) {
  int failed = 0, last = world->size - 1;
  for (int wrong = 0; wrong < 2; wrong++) {
    fsdp_comm_group group = {.color = 0, .rank = world->rank, .size = world->size};
    if (world->rank == last && wrong == 0) group.rank = 0;
    if (world->rank == last && wrong == 1) group.size++;
    fsdp_comms comms;
    fsdp_error error = {FSDP_OK, ""};
    fsdp_comms_config config = {
        .groups = &group, .group_count = 1, .arenas = &device->arenas, .messages = true};
    failed |= fsdp_world_comms(world, &config, &comms, &error) != FSDP_ERR_OPTION;
    failed |= strstr(error.message, "do not fit together") == NULL;
  }
  if (failed) fprintf(stderr, "rank %d: groups that do not fit together\n", world->rank);
  return failed;
}

// Few values by messages: the sum is there when the call returns, also when a rank is late. The buffer is
// written again at once, which a sum still under way would take.
static int run_small_sums(fsdp_world *world, fsdp_device *device) {
  fsdp_comm_group group = {.color = 0, .rank = world->rank, .size = world->size};
  fsdp_comms comms;
  fsdp_error error;
  fsdp_comms_config config = {
      .groups = &group, .group_count = 1, .arenas = &device->arenas, .messages = true};
  fsdp_status status = fsdp_world_comms(world, &config, &comms, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  float *values = (float *)(void *)device->arenas.memory[FSDP_SPACE_DEVICE];
  int wrong = 0, size = world->size;
  for (int turn = 0; turn < 20; turn++) {
    if (turn % size == world->rank) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    for (int i = 0; i < 3; i++) values[i] = (float)((world->rank + 1) * (turn + i + 1));
    fsdp_collective call = {.output = values, .numel = 3, .dtype = FSDP_F32};
    if (size > 1) fsdp_comm_run(comms.comm[0], FSDP_ALL_REDUCE, &call);
    for (int i = 0; i < 3 && size > 1; i++) {
      int ranks = size * (size + 1) / 2; // their numbers from 1 on
      wrong += values[i] != (float)(ranks * (turn + i + 1));
    }
  }
  fsdp_comms_destroy(&comms);
  if (wrong) fprintf(stderr, "rank %d: %d sums of few values are wrong\n", world->rank, wrong);
  return wrong != 0;
}

int main(int argc, char **argv) {
  fsdp_world *world;
  fsdp_error error;
  fsdp_status status = fsdp_world_create(&argc, &argv, &world, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  int failed = run_agreement(world);
  // `--lose-rank`: the last rank dies inside a collective; the others must end too.
  bool loses = argc > 1 && strcmp(argv[1], "--lose-rank") == 0;
  fsdp_device_config config = {.arena_bytes = {comm_cases_bytes(world->size, SLOT_ELEMS_MAX), 4096},
                               .shared = true};
  fsdp_device *device;
  status = fsdp_device_cpu()->create(&config, &device, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  failed |= run_small_sums(world, device);
  if (world->size > 1) failed |= run_wrong_groups(world, device);
  failed |= run_comms(world, device, world->size, false, 0);
  if (loses && world->rank == world->size - 1) _Exit(9);
  failed |= run_comms(world, device, world->size, true, 0);
  failed |= run_comms(world, device, world->size, true, 1000);
  if (world->size % 2 == 0) {
    failed |= run_comms(world, device, world->size / 2, false, 0);
    failed |= run_comms(world, device, world->size / 2, true, 4096);
  }
  fsdp_device_cpu()->destroy(device);
  fsdp_world_destroy(world);
  return failed;
}
