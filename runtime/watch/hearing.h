// Who hears of whom: which nodes send what they know to which others, again and again.
//
// Up to a number of nodes, a circle, all hear of each other. Of more, node k and nodes k + 1, k + 2, k + 4,
// ... (modulo their number) do, so that each hears of 2 log N others, and what one knows is known to all
// after log N messages. Who hears of a node is heard by it.
#pragma once

#include "runtime/base/job.h"

#include <stdbool.h>

typedef struct fsdp_heard {
  int rank, node; // node: its lowest rank
  bool local;     // of this node
  int order;      // of the nodes that hear of its node, how many do so from closer by; 0 in a circle
  char host[FSDP_HOST_NAME_BYTES];
} fsdp_heard;

// What one rank hears and tells.
typedef struct fsdp_hearing {
  fsdp_heard *heard;  // this node's ranks and those of the nodes that it hears of, ascending
  int count, self;    // self: the index of this rank
  int rounds;         // of messages until all know what one knows; 0: in a circle
  int node_ranks_max; // of any node
} fsdp_hearing;

typedef struct fsdp_hearing_config {
  int rank, size, circle;
  const int *node;          // by rank: its node, numbered by the lowest rank
  const char *const *hosts; // by rank
} fsdp_hearing_config;

// Destroy it with fsdp_hearing_release.
void fsdp_hearing_find(const fsdp_hearing_config *config, fsdp_hearing *hearing);
void fsdp_hearing_release(fsdp_hearing *hearing);

// The index of a rank among those heard; -1: it is none of them.
int fsdp_hearing_index(const fsdp_hearing *hearing, int rank);
