// What each collective is: the rows of collectives.def.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum fsdp_collective_kind {
#define FSDP_COLLECTIVE(KIND, ...) FSDP_##KIND,
#include "runtime/base/collectives.def"
  FSDP_COLLECTIVE_COUNT
} fsdp_collective_kind;

typedef enum fsdp_collective_part { FSDP_PART_SLOT, FSDP_PART_WHOLE } fsdp_collective_part;
typedef enum fsdp_collective_meeting {
  FSDP_MEETS_OWN_SLOT,
  FSDP_MEETS_ANY_SLOT,
  FSDP_MEETS_SAME,
  FSDP_MEETS_NOWHERE
} fsdp_collective_meeting;

typedef struct fsdp_collective_row {
  const char *name, *title;
  fsdp_collective_part input, output;
  fsdp_collective_meeting meets;
  bool sums;
  int passes;
  bool tree;
} fsdp_collective_row;

extern const fsdp_collective_row fsdp_collective_rows[FSDP_COLLECTIVE_COUNT]; // by kind

// What a rank of a group of `ranks` sends, by a ring's counts, of a whole of these bytes.
static inline int64_t fsdp_collective_sent_bytes(const fsdp_collective_row *row, int64_t whole_bytes,
                                                 int64_t ranks) {
  return row->passes * whole_bytes * (ranks - 1) / ranks;
}
