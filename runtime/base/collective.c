#include "runtime/base/collective.h"

const fsdp_collective_row fsdp_collective_rows[FSDP_COLLECTIVE_COUNT] = {
#define FSDP_COLLECTIVE(KIND, name, title, input, output, meets, sums, passes, tree)                         \
  {#name, title, FSDP_PART_##input, FSDP_PART_##output, FSDP_MEETS_##meets, sums, passes, tree},
#include "runtime/base/collectives.def"
};
