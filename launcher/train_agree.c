#include "launcher/train.h"
#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

// The first line in which two descriptions differ, into `mine` and `theirs`.
static void first_difference(const char *a, const char *b, char mine[128], char theirs[128]) {
  while (*a && *b) {
    size_t length_a = strcspn(a, "\n"), length_b = strcspn(b, "\n");
    if (length_a != length_b || memcmp(a, b, length_a) != 0) break;
    a += length_a + 1;
    b += length_b + 1;
  }
  snprintf(mine, 128, "%.*s", (int)strcspn(a, "\n"), a);
  snprintf(theirs, 128, "%.*s", (int)strcspn(b, "\n"), b);
}

fsdp_status fsdp_train_agree_on_options(fsdp_world *world, const fsdp_options *options, fsdp_error *error) {
  char *mine = fsdp_options_describe(options);
  int64_t bytes = (int64_t)strlen(mine) + 1;
  fsdp_world_broadcast(world, &bytes, (int64_t)sizeof bytes);
  char *first = fsdp_alloc((size_t)bytes);
  if (world->rank == 0) memcpy(first, mine, (size_t)bytes);
  fsdp_world_broadcast(world, first, bytes);
  error->status = FSDP_OK;
  if (strcmp(mine, first) != 0) {
    char here[128], there[128];
    first_difference(mine, first, here, there);
    fsdp_fail(error, FSDP_ERR_OPTION,
              "rank %d was started with --%s but rank 0 with --%s: start every rank with the same options",
              world->rank, here, there);
  }
  free(mine);
  free(first);
  return fsdp_world_share_error(world, error);
}
